"""What the messages about common mistakes advise."""

import json
import sys

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Reply, json_reply

ENTRY = "`models: {main: {base_url: https://host/v1, model: gpt-4o, key_env: VARIABLE}}`"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("models: {m: gpt-4o}", "`{base_url: https://host/v1, model: NAME, key_env: VARIABLE}`"),
        ("models: {}\nmodel: gpt-4o", ENTRY),
        ("models: {m: {api_key: abc, model: x}}", "`key_env: VARIABLE`"),
        ("models: {m: {provider: openai, model: x}}", "`base_url: https://host/v1`"),
    ],
)
def test_a_model_that_is_declared_as_elsewhere_is_told_how_to_declare_it(
    project: Project, text: str, hint: str
) -> None:
    project.pipeline(f"{text}\nprompt: Say hello\n")

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert [line for line in done.stderr.splitlines() if hint in line and "hint:" in line]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            '"mcp-server-none --root x"',
            ["hint: write a list: `command: [mcp-server-none, --root, x]`"],
        ),
        (
            json.dumps([sys.executable, "-c", "print('I am a server')"]),
            ["on its stdout, which is for JSON-RPC, it printed: I am a server"],
        ),
        (
            json.dumps(
                [
                    sys.executable,
                    "-c",
                    "raise SystemExit('invalid peer certificate: UnknownIssuer')",
                ]
            ),
            ["hint: servers see only `HOME`, `PATH`", "`env: [SSL_CERT_FILE, HTTPS_PROXY]`"],
        ),
    ],
    ids=["one-string", "stdout", "certificate"],
)
def test_a_server_that_does_not_start_is_told_why(
    project: Project, command: str, said: list[str]
) -> None:
    project.pipeline(f"mcp: {{servers: {{s: {{command: {command}}}}}}}\nrun: [touch, never]\n")

    done = project.run()

    assert done.code == 5
    assert [one for one in said if one not in done.stderr] == []


PAGE = Reply((b"<!DOCTYPE html><title>Sign in</title>",), framing="length")


@pytest.mark.parametrize(
    ("reply", "hint"),
    [
        (PAGE, "hint: this is a web page: is `base_url` right"),
        (PAGE.but(status=403), "hint: this is a web page: is `base_url` right"),
        (
            json_reply(400, {"error": {"message": "Unsupported parameter: 'max_tokens'"}}),
            "hint: write `max_completion_tokens` instead of `max_tokens`",
        ),
        (
            json_reply(400, {"error": {"message": "request exceeds the available context size"}}),
            "hint: the prompt is too long for the model: `context: {max_tokens: N}`",
        ),
    ],
    ids=["page", "page-403", "max-tokens", "context"],
)
def test_an_endpoint_that_refuses_is_told_what_to_change(
    project: Project, model_endpoint: ModelEndpoints, reply: Reply, hint: str
) -> None:
    project.uses(model_endpoint([reply]))
    project.pipeline("prompt: Say hello\n")

    done = project.run()

    assert done.code != 0
    assert hint in done.stderr


def test_a_limit_of_tokens_that_is_too_high_is_not_taken_for_an_unknown_one(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([json_reply(400, {"error": "max_tokens is too large: 100000"})]))
    project.pipeline("prompt: Say hello\n")

    done = project.run()

    assert "max_completion_tokens" not in done.stderr


def test_a_batch_with_a_dead_endpoint_is_told_of_the_endpoint(project: Project) -> None:
    project.pipeline(
        """
        models: {m: {base_url: "http://127.0.0.1:1/v1", model: x, retry: {attempts: 1}}}
        steps:
          - {id: a, foreach: "range(9) | list", max_failures: 2, prompt: Say hello}
        """
    )

    done = project.run()

    assert done.code == 5
    assert "hint: is the server running at http://127.0.0.1:1?" in done.stderr
    assert "raise `max_failures`" not in done.stderr


def test_a_table_with_another_delimiter_is_told_how_to_name_it(project: Project) -> None:
    project.write("rows.csv", "id;text\n1;a\n")
    project.pipeline(
        """
        steps:
          - {id: a, foreach: {file: rows.csv}, key: item.id, run: [touch, never]}
        """
    )

    done = project.run()

    assert done.code == 2
    assert 'hint: one column that contains ";": set `delimiter: ";"`' in done.stderr
