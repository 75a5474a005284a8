"""What the messages about common mistakes advise."""

import json
import os
import sys

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Reply, json_reply, text_reply

ENTRY = """
    {alias}:
      base_url: https://host/v1
      model: {model}
      key_env: VARIABLE
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("text", "hint", "entry"),
    [
        (
            "models: {m: gpt-4o}",
            "an entry of `models` is",
            ENTRY.format(alias="m", model="gpt-4o"),
        ),
        (
            "models:\n  m: qwen/qwen3:8b",
            "an entry of `models` is",
            ENTRY.format(alias="m", model="qwen/qwen3:8b"),
        ),
        (
            "models: {m: sk-3f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c}",
            "an entry of `models` is",
            ENTRY.format(alias="m", model="NAME"),
        ),
        ("models: {m: [1]}", "an entry of `models` is", ENTRY.format(alias="m", model="NAME")),
        (
            "model: gpt-4o",
            "write `model: main`, and under `models`",
            ENTRY.format(alias="main", model="gpt-4o"),
        ),
    ],
)
def test_a_model_that_is_only_named_is_told_the_three_lines_of_an_entry(
    project: Project, text: str, hint: str, entry: str
) -> None:
    """C3."""
    project.pipeline(
        f"models: {{}}\n{text}\nprompt: Say hello\n".replace("models: {}\nmodels", "models")
    )

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert f"  hint: {hint}{entry}" in done.stderr
    # What is printed can be pasted.
    project.pipeline(f"models:{entry}prompt: Say hello\n")
    assert project.aish("validate", "p.yaml").code == 0


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("models: {m: {api_key: abc, model: x}}", "`key_env: VARIABLE`"),
        ("models: {m: {provider: openai, model: x}}", "`base_url: https://host/v1`"),
        (
            "mcp: {servers: {d: {pack: [rag], options: {rag: {embeddings: {key_file: k}}}}}}",
            "a pack takes its key from a variable, `key_env`",
        ),
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
            "[mcp-server-none, --root, x]",
            [
                "hint: is `mcp-server-none` installed, in a folder of `PATH`? `required: false`",
            ],
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
    ids=["one-string", "not-installed", "stdout", "certificate"],
)
def test_a_server_that_does_not_start_is_told_why(
    project: Project, command: str, said: list[str]
) -> None:
    project.pipeline(f"mcp: {{servers: {{s: {{command: {command}}}}}}}\nrun: [touch, never]\n")

    done = project.run()

    assert done.code == 5
    assert [one for one in said if one not in done.stderr] == []


def test_a_launcher_that_takes_too_long_may_be_installing_the_server(project: Project) -> None:
    uvx = project.write("bin/uvx", "#!/bin/sh\nexec sleep 60\n")
    uvx.chmod(0o755)
    project.aish.env["PATH"] = f"{uvx.parent}:{os.environ['PATH']}"
    server = "{command: [uvx, some-server], timeout: {connect: 200ms}}"
    project.pipeline(f"mcp: {{servers: {{s: {server}}}}}\nrun: [touch, never]\n")

    done = project.run()

    assert done.code == 5
    assert "hint: `uvx` may be installing it: `aish fetch` does so beforehand" in done.stderr
    assert "`timeout: {connect: 2m}` under `mcp.servers.s` is the time for its start" in done.stderr


PAGE = Reply((b"<!DOCTYPE html><title>Sign in</title>",), framing="length")


@pytest.mark.sampled(2)
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


@pytest.mark.parametrize("most", ["max_failures: 0", "on_error: fail"])
def test_a_batch_that_stops_at_a_row_has_the_hint_about_the_row(
    project: Project, most: str
) -> None:
    """The first failure is named with its own hint, and how to run what is left (B3)."""
    project.write("rows.csv", "id,text\n,no key\nT-2,a\n")
    project.pipeline(
        f"""
        steps:
          - {{id: a, foreach: {{file: rows.csv}}, key: item.id, {most}, run: [echo, hello]}}
        mcp: {{auto_approve: [{{tool: shell__run, command: [echo, hello]}}]}}
        """
    )

    done = project.run()

    assert done.code == 1
    assert "hint: `key` names each item by a short text or a number of its own; " in done.stderr
    assert "; then `aish run p.yaml --resume` runs the remaining items" in done.stderr

    later = project.run("--resume", "--set", "steps.a.max_failures=1")

    assert later.code == 1
    assert later.stdout == "hello\n"


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


@pytest.mark.parametrize(
    ("text", "step", "code"),
    [
        ("id;text\n1;a\n", '{prompt: "{{ item.id }}"}', 1),
        ("id;text\n1;a\n", '{prompt: "{{ item }}"}', 0),
        ("id;text\n1;a, b\n", '{prompt: "{{ item }}"}', 1),
        ("id\ttext\n1\ta\n", '{prompt: "{{ item }}"}', 0),
    ],
    ids=["its column", "the row", "a row with a comma", "tabs"],
)
def test_a_table_that_is_one_column_is_told_of_the_delimiter_without_a_key(
    project: Project, model_endpoint: ModelEndpoints, text: str, step: str, code: int
) -> None:
    """C3: not only where a key's column is missing."""
    endpoint = model_endpoint([text_reply("well")] * 2)
    project.uses(endpoint)
    project.write("rows.csv", text)
    project.pipeline(f"steps: [{{id: a, foreach: {{file: rows.csv}}, {step[1:-1]}}}]")

    done = project.run()

    assert done.code == code
    sign = json.dumps(";" if ";" in text else "\t")
    assert f"one column that contains {sign}: set `delimiter: {sign}`" in done.stderr

    given = json.dumps({"file": "rows.csv", "delimiter": ","})
    project.pipeline(f"steps: [{{id: a, foreach: {given}, {step[1:-1]}}}]")
    if code == 0:
        assert "delimiter" not in project.run().stderr


def test_rows_of_a_test_that_are_one_column_are_told_of_the_delimiter(project: Project) -> None:
    project.write("cases.csv", "name;text\n1;a\n")
    project.pipeline(
        """
        inputs: {text: {type: string}}
        prompt: "{{ inputs.text }}"
        tests: [{name: t, foreach: {file: cases.csv}, key: item.name, inputs: {text: x}}]
        """
    )

    done = project.aish("test", "p.yaml")

    assert done.code == 2
    assert 'hint: one column that contains ";": set `delimiter: ";"`' in done.stdout
