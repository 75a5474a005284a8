"""Keys that commands make, in whole runs: recipes of the guide, batches, replays, locks (W13)."""

import json
import re
from typing import Any

import pytest
from docs_pages import ROOT, Block, blocks
from e2e_project import ModelEndpoints, Project, http_server
from key_scenes import TokenGate, TokenProgram, on_path, program, shell_program
from model_endpoint import json_reply, text_reply
from ruamel.yaml import YAML

PAGE = ROOT / "docs" / "jobs" / "made-keys.md"
TOKEN = "ya29.a-token-of-the-cloud"
KEY = "models: {m: {base_url: '${MODEL_URL}', model: m, key_command: [make-token]}}\n"

# What stands in for a program: what it has to be called with, and what it prints then.
STANDS_IN = """\
#!/bin/sh
printf '%s\\n' "$0" "$@" >> called
env >> environment
cat >> input
{}
"""


def recipe(word: str) -> tuple[Any, list[Block]]:
    """The recipe of the guide whose command begins with a word, and the files on that page."""
    found = list(blocks(PAGE))
    loaded = [
        YAML(typ="safe", pure=True).load(block.text)
        for block in found
        if block.language == "yaml" and "fragment" in block.options
    ]
    (chosen,) = (
        one
        for one in loaded
        for model in one.get("models", {}).values()
        if model["key_command"][: len(word.split())] == word.split()
    )
    return chosen, [block for block in found if "file" in block.options]


def run_recipe(
    project: Project, model_endpoint: ModelEndpoints, word: str, stands_in: dict[str, str]
) -> list[str]:
    """Run a recipe against stand-ins on `PATH`; the tokens that the endpoint saw."""
    chosen, files = recipe(word)
    for block in files:
        project.write(block.options["file"], block.text)
    for name, prints in stands_in.items():
        script = prints if prints.startswith("#!") else STANDS_IN.format(prints)
        program(project.folder / "bin" / name, script)
    project.aish.env["PATH"] = on_path(project.folder / "bin")
    endpoint = model_endpoint([text_reply("hi")])
    project.uses(endpoint)
    for model in chosen["models"].values():
        model["base_url"] = "${MODEL_URL}"
    text = json.dumps({"aish": 1, "prompt": "Hello", **chosen})
    project.write("p.yaml", text)

    done = project.run()

    assert done.code == 0, done.stderr
    assert TOKEN not in project.everything_written()
    return [request.headers["authorization"] for request in endpoint.requests]


@pytest.mark.parametrize(
    ("word", "called"),
    [
        ("gcloud", ["auth", "print-access-token"]),
        (
            "az",
            [
                *("account", "get-access-token", "--resource=https://cognitiveservices.azure.com"),
                *("--query=accessToken", "--output=tsv"),
            ],
        ),
        ("op", ["read", "op://team/openai/credential"]),
        ("vault", ["kv", "get", "-mount=secret", "-field=key", "models/openai"]),
        ("sops", ["decrypt", "--extract", '["openai_key"]', "keys.enc.yaml"]),
    ],
)
@pytest.mark.requirement("W13")
def test_a_recipe_of_the_guide_makes_the_key(
    project: Project, model_endpoint: ModelEndpoints, word: str, called: list[str]
) -> None:
    project.aish.env.update(
        VAULT_ADDR="https://vault.example",
        VAULT_TOKEN="hvs.a-token-of-vault",
        OP_SERVICE_ACCOUNT_TOKEN="ops_a-token-of-1password",
        SOPS_AGE_KEY_FILE="/nonexistent/age.txt",
        UNRELATED_TOKEN="of-something-else",
    )
    sent = run_recipe(project, model_endpoint, word, {word: f"echo {TOKEN}"})

    assert sent == [f"Bearer {TOKEN}"]
    _, *words = (project.folder / "called").read_text("utf-8").splitlines()
    assert words == called
    environment = (project.folder / "environment").read_text("utf-8")
    assert "UNRELATED_TOKEN" not in environment
    needed = {
        "op": ["OP_SERVICE_ACCOUNT_TOKEN"],
        "vault": ["VAULT_ADDR", "VAULT_TOKEN"],
        "sops": ["SOPS_AGE_KEY_FILE"],
    }
    assert all(f"{name}=" in environment for name in needed.get(word, []))


def test_the_recipe_for_github_exchanges_the_token_of_the_job(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.aish.env.update(
        ACTIONS_ID_TOKEN_REQUEST_URL="https://actions.example/token?version=2",
        ACTIONS_ID_TOKEN_REQUEST_TOKEN="a-request-token-of-the-job",
        CLOUD_PROVIDER="//iam.googleapis.com/projects/1/pools/p/providers/g",
    )
    curl = f"""\
case "$*" in
*sts.googleapis.com*) echo '{{"access_token": "{TOKEN}"}}' ;;
*) echo '{{"value": "an-identity-of-the-job"}}' ;;
esac"""
    jq = """#!/bin/sh\nsed 's/.*: "//; s/".*//'\n"""
    sent = run_recipe(project, model_endpoint, "sh cloud-token.sh", {"curl": curl, "jq": jq})

    assert sent == [f"Bearer {TOKEN}"]
    words = (project.folder / "called").read_text("utf-8")
    assert "https://actions.example/token?version=2&audience=https://iam.googleapis.com/" in words
    assert "audience=//iam.googleapis.com/projects/1/pools/p/providers/g" in words
    # Arguments can be seen by everybody on the machine.
    assert "a-request-token-of-the-job" not in words
    assert "an-identity-of-the-job" not in words
    read = (project.folder / "input").read_text("utf-8")
    assert 'header = "Authorization: Bearer a-request-token-of-the-job"' in read
    assert 'data-urlencode = "subject_token=an-identity-of-the-job"' in read


def make_tokens(project: Project, **options: str) -> TokenProgram:
    maker = TokenProgram(project.folder / "bin", **options)
    project.aish.env["PATH"] = on_path(project.folder / "bin")
    return maker


@pytest.mark.slow(reason="waits for a batch in several processes")
def test_a_batch_outlives_its_tokens_and_none_is_in_a_file(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    """Ten minutes of tokens that live 20 s are 30 tokens; here each is good for 20 requests."""
    maker, gate = make_tokens(project), TokenGate(uses=20)
    project.uses(model_endpoint(gate))
    project.write("rows.jsonl", "".join(f'{{"n": "w{n}"}}\n' for n in range(300)))
    each = '{id: each, foreach: {file: rows.jsonl}, concurrency: 32, prompt: "{{ item.n }}"}'
    project.pipeline(f"{KEY}steps: [{each}]")

    done = project.run("--format", "json")

    assert done.code == 0, done.stderr
    items = json.loads(done.stdout)["steps"]["each"]["items"]
    assert [(item["status"], item["text"]) for item in items] == [
        ("ok", f"w{n}") for n in range(300)
    ]
    assert maker.made == 15
    assert not maker.ran_at_once
    assert "made-token-" not in project.everything_written()
    assert "made-token-" not in done.stdout + done.stderr


def test_a_cassette_holds_the_renewal_and_its_replay_runs_no_command(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    maker = make_tokens(project)
    leak = json_reply(401, {"error": {"message": "made-token-1-0123456789 has expired"}})
    project.uses(model_endpoint([leak, text_reply("I saw made-token-2-0123456789.")]))
    project.pipeline(KEY + "prompt: Hello")

    recorded = project.run("--record", "c.yaml")
    assert recorded.code == 0, recorded.stderr
    (project.folder / "bin" / "make-token").unlink()
    replayed = project.run("--replay", "c.yaml")

    assert replayed.code == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout == "I saw <secret:models.m.key_command>.\n"
    assert maker.made == 2
    tape = (project.folder / "c.yaml").read_text("utf-8")
    assert "made-token-" not in tape + project.everything_written()
    assert "<secret:models.m.key_command> has expired" in tape


def test_validate_and_plan_show_the_command_and_do_not_run_it(project: Project) -> None:
    maker = make_tokens(project)
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.pipeline(KEY + "prompt: Hello")

    checked, planned = project.aish("validate", "p.yaml"), project.aish("plan", "p.yaml")
    rows = json.loads(project.aish("plan", "p.yaml", "--format", "json").stdout)

    assert checked.stdout == "p.yaml: ok\n  models.m.key_command  runs make-token\n"
    assert "keys\n  models.m.key_command  runs make-token\n" in planned.stdout
    assert rows["keys"] == [{"path": "models.m.key_command", "command": ["make-token"]}]
    assert maker.made == 0


def test_validate_shows_no_key_that_is_in_a_command(project: Project) -> None:
    command = "[echo, sk-proj-abcDEF0123456789abcDEF0123456789]"
    project.pipeline(KEY.replace("[make-token]", command) + "prompt: Hello")
    (row,) = json.loads(project.aish("validate", "p.yaml", "--format", "json").stdout)
    assert row["keys"] == [{"path": "models.m.key_command", "command": ["echo", "<key>"]}]


def test_a_lock_pins_the_command_of_a_key(project: Project) -> None:
    maker = make_tokens(project)
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    file = project.pipeline(KEY + "prompt: Hello")
    assert project.aish("lock", "p.yaml").code == 0
    assert project.aish("lock", "--check", "p.yaml").code == 0
    file.write_text(file.read_text("utf-8").replace("[make-token]", "[make-token, all]"), "utf-8")

    done = project.run()
    checked = project.aish("doctor", "p.yaml")

    assert done.code == 7
    assert "command for `models.m.key_command` differs from the lock: command" in done.stderr
    assert "`models.m.key_command` differs from the lock" in checked.stdout
    assert maker.made == 0


def test_a_lock_does_not_pin_the_file_of_a_key(project: Project) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    by_file = KEY.replace("key_command: [make-token]", "key_file: key.txt")
    file = project.pipeline(by_file + "prompt: Hello")
    assert project.aish("lock", "p.yaml").code == 0
    file.write_text(file.read_text("utf-8").replace("key.txt", "/run/other-key"), "utf-8")

    assert project.aish("lock", "--check", "p.yaml").code == 0
    assert "key.txt" not in (project.folder / "p.lock.json").read_text("utf-8")


def test_a_command_that_is_new_differs_from_an_older_lock(project: Project) -> None:
    maker = make_tokens(project)
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    file = project.pipeline(KEY.replace(", key_command: [make-token]", "") + "prompt: Hello")
    assert project.aish("lock", "p.yaml").code == 0
    file.write_text("aish: 1\n" + KEY + "prompt: Hello\n", "utf-8")

    done = project.run()

    assert done.code == 7
    assert "command for `models.m.key_command` is not in the lock" in done.stderr
    assert maker.made == 0


def test_a_run_without_a_key_ends_with_5_and_says_what_where_and_what_next(
    project: Project,
) -> None:
    shell_program(project.folder / "bin" / "make-token", "echo 'not logged in' >&2; exit 4")
    project.aish.env["PATH"] = on_path(project.folder / "bin")
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.pipeline(KEY + "prompt: Hello")

    done = project.run()
    doctor = project.aish("doctor", "p.yaml")

    said = "`make-token` ended with exit code 4; its stderr ends with: not logged in"
    assert (done.code, doctor.code) == (5, 5)
    assert f"models.m.key_command: {said}" in done.stderr
    assert f"models.m.key_command: {said}" in doctor.stdout + doctor.stderr
    assert "run it by hand" in done.stderr


def test_a_server_gets_what_its_commands_print(project: Project) -> None:
    make_tokens(project)
    with http_server("--token", "made-token-1-0123456789") as url:
        project.aish.env["NOTES_URL"] = url
        project.pipeline(
            """
            mcp:
              servers: {s: {url: "${NOTES_URL}", auth_command: [make-token]}}
              auto_approve: [s__echo]
            call: s__echo
            with: {text: hello}
            """
        )
        done = project.run()
    assert (done.code, done.stdout) == (0, "hello\n"), done.stderr


def test_the_page_has_a_recipe_for_each_program() -> None:
    text = PAGE.read_text("utf-8")
    assert set(re.findall(r"key_command:\s+(?:\[|- )(\w+)", text)) == {
        *("gcloud", "az", "op", "vault", "sops", "sh"),
    }
