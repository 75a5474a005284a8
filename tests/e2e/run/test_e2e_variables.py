"""Variables that are not set, and which of those that are set are secrets (F7, F15, M3)."""

import json

import pytest
from e2e_project import ModelEndpoints, Project, http_server, stdio
from mcp_emulators import Legacy, McpEndpoint
from model_endpoint import text_reply

from aish.system.secrets.secrets import is_ordinary, names_credential

UNSET = """
aish: 1
name: unset
models:
  m: {base_url: "${NOWHERE_URL}", model: x, key_env: NO_KEY}
mcp:
  servers:
    s: {command: [server, "${NO_ARG}"], env: {A: "${NO_ENV}", B: "${HAS:-a default}"}}
    w: {url: "http://127.0.0.1:9/", auth_env: NO_TOKEN, headers: {X-A: "${NO_HEADER}"}}
prompt: Say hello
"""
REFERENCES = {"NOWHERE_URL": 5, "NO_ARG": 8, "NO_ENV": 8, "NO_HEADER": 9}
KEYS = {"NO_KEY": 5, "NO_TOKEN": 9}


@pytest.mark.requirement("F7")
def test_validate_needs_no_key_and_warns_of_variables(project: Project) -> None:
    project.write("p.yaml", UNSET)

    done = project.aish("validate", "p.yaml")
    strict = project.aish("validate", "--strict", "p.yaml")
    needed = project.aish("validate", "--env", "p.yaml")

    assert (done.code, done.stdout) == (0, "p.yaml: ok\n")
    for name, line in REFERENCES.items():
        (said,) = [row for row in done.stderr.splitlines() if f"`{name}` is not set" in row]
        assert said.startswith(f"warning: p.yaml:{line}:"), said
    assert not [name for name in (*KEYS, "HAS") if f"`{name}`" in done.stderr]
    assert (strict.code, strict.stderr) == (0, done.stderr)
    assert (needed.code, needed.stderr.count("error: p.yaml:")) == (2, len(REFERENCES))


def test_validate_is_quiet_about_variables_that_are_set(project: Project) -> None:
    project.write("p.yaml", UNSET)

    set_ones = dict.fromkeys(REFERENCES, "x")
    done = project.aish("validate", "--strict", "--env", "p.yaml", env=set_ones)

    assert (done.code, done.stderr) == (0, "")


def test_an_offline_plan_lists_what_is_not_set_and_any_other_plan_refuses(
    project: Project,
) -> None:
    project.write("p.yaml", UNSET)

    offline = project.aish("plan", "p.yaml", "--offline")
    as_json = project.aish("plan", "p.yaml", "--offline", "--format", "json")
    asking = project.aish("plan", "p.yaml")

    assert (offline.code, offline.stderr) == (0, "")
    for name in REFERENCES:
        assert f"  {name}  variable  " in offline.stdout
    for name in KEYS:
        assert f"  {name}  key  " in offline.stdout
    assert "  m  x  ${NOWHERE_URL}\n" in offline.stdout
    missing = json.loads(as_json.stdout)["missing"]
    assert {(row["variable"], row["line"], row["key"]) for row in missing} == {
        *((name, line, False) for name, line in REFERENCES.items()),
        *((name, line, True) for name, line in KEYS.items()),
    }
    assert asking.code == 2
    for name, line in {**REFERENCES, **KEYS}.items():
        (said,) = [row for row in asking.stderr.splitlines() if f"`{name}` is not set" in row]
        assert said.startswith(f"error: p.yaml:{line}:"), said


def test_an_offline_plan_lists_what_a_sub_pipeline_lacks(project: Project) -> None:
    inner = 'aish: 1\nmodels: {m: {base_url: "http://h/v1", model: x, key_env: DEEP_KEY}}\n'
    project.write("inner.yaml", f"{inner}prompt: Say hello\n")
    project.write("p.yaml", "aish: 1\nsteps: [{id: sub, pipeline: inner.yaml}]\n")

    done = project.aish("plan", "p.yaml", "--offline")

    assert done.code == 0, done.stderr
    assert "DEEP_KEY  key  models.m.key_env" in done.stdout
    assert "inner.yaml:2)" in done.stdout


def test_of_a_token_and_the_name_of_one_the_token_is_sent_with_a_notice(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("hello")]))
    with McpEndpoint(Legacy()) as server:
        project.pipeline(
            f"""
            mcp:
              servers:
                w: {{url: "{server.url}", auth_env: NOT_SET, auth_token: "literal-token"}}
            prompt: Say hello
            """
        )
        checked = project.aish("validate", "p.yaml")
        done = project.run()

    assert checked.code == 0
    assert "warning: p.yaml:" in checked.stderr
    assert "`auth_env` is not used: `auth_token` is set too" in checked.stderr
    assert done.code == 0, done.stderr
    assert "`auth_env` is not used" in done.stderr
    posts = [request for request in server.requests if request.method == "POST"]
    assert {request.headers["authorization"] for request in posts} == {"Bearer literal-token"}


def test_what_is_no_credential_is_neither_refused_nor_masked(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    seen = {"HOME": "/srv/people/ada", "DATA_PATH": "/srv/data:/srv/more", "DEBUG": "1"}
    endpoint = model_endpoint([text_reply(" ".join((*seen.values(), "word-of-a-key")))])
    project.uses(endpoint)
    note = project.folder / "note"
    project.pipeline(
        f"""
        mcp:
          servers:
            s:
              command: {stdio("--print-environment", note)}
              env: {{A: "${{HOME}}", B: "${{DATA_PATH}}", C: "${{DEBUG}}", D: "${{OTHER}}"}}
        prompt: Say hello
        """
    )

    done = project.run(env={**seen, "OTHER": "word-of-a-key"})

    assert done.code == 0, done.stderr
    assert done.stdout == "/srv/people/ada /srv/data:/srv/more 1 <secret:OTHER>\n"


@pytest.mark.parametrize(
    "entry",
    [
        '{command: [server], env: {A: "${API_KEY}"}}',
        '{command: [server], env: {API_KEY: "${A}"}}',
        '{url: "http://127.0.0.1:9/", headers: {Authorization: "Bearer ${A}"}}',
    ],
)
def test_a_short_credential_is_still_refused(project: Project, entry: str) -> None:
    project.pipeline(f"mcp: {{servers: {{s: {entry}}}}}\nprompt: Say hello\n")

    done = project.run(env={"MODEL_URL": "http://127.0.0.1:9/v1", "API_KEY": "tiny", "A": "tiny"})

    assert done.code == 2
    assert "is shorter than 8 characters" in done.stderr


def test_what_is_named_under_secrets_is_masked_whatever_it_is(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("/srv/people/ada")]))
    with http_server() as url:
        project.pipeline(
            f"""
            secrets: [HOME]
            mcp: {{servers: {{w: {{url: "{url}", headers: {{X-A: "${{HOME}}"}}}}}}}}
            prompt: Say hello
            """
        )
        done = project.run(env={"HOME": "/srv/people/ada"})

    assert (done.code, done.stdout) == (0, "<secret:HOME>\n")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "value", "ordinary"),
    [
        ("PATH", "/bin:/usr/bin", True),
        ("PYTHONPATH", "./src:../lib", True),
        ("LC_TIME", "de_DE.UTF-8", True),
        ("XDG_DATA_HOME", "/home/ada/.local", True),
        ("CACHE_DIR", "~/cache", True),
        ("LOG_LEVEL", "debug", True),
        ("MAX_TOKENS", "4096", True),
        ("SIGNING_PATH", "aGVsbG8gd29ybGQ", False),
        ("DB_PASSWORD", "hunter2", False),
        ("PGPASSWORD", "hunter2", False),
        ("TOKEN_LIMIT", "4096", True),
        ("DATABASE", "postgres://u:p@h/d", False),
    ],
)
def test_what_is_ordinary(name: str, value: str, *, ordinary: bool) -> None:
    assert is_ordinary(name, value) == ordinary


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "credential"),
    [
        ("Authorization", True),
        ("x-api-key", True),
        ("githubToken", True),
        ("--api-key", True),
        ("CLIENT_SECRET", True),
        ("PGPASSWORD", True),
        ("PGPASS", True),
        ("SSHPASS", True),
        ("DBPWD", True),
        ("SECRETKEY", True),
        ("githubtoken", True),
        ("API_KEY_2", True),
        ("API_KEY2", True),
        ("ENCRYPTIONKEY_PROD", True),
        ("NOTION_TOKEN_V2", True),
        ("GITHUB_TOKEN_READONLY", True),
        ("SECRET_KEY_BASE", True),
        ("PWD", False),
        ("OLDPWD", False),
        ("BYPASS", False),
        ("HOTKEY", False),
        ("MAX_NEW_TOKEN", False),
        ("MAXTOKEN", False),
        ("TOKEN_LIMIT", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("PASSWORD_MIN_LENGTH", False),
        ("PRIMARY_KEY_COLUMN", False),
        ("AWS_ACCESS_KEY_ID", False),
        ("SSH_AUTH_SOCK", False),
        ("MAX_TOKENS", False),
        ("KEYBOARD", False),
        ("Content-Type", False),
    ],
)
def test_what_a_credential_is_called(name: str, *, credential: bool) -> None:
    assert names_credential(name) == credential


def test_a_token_in_the_file_that_is_too_short_is_told_with_its_place(project: Project) -> None:
    project.write(
        "short.yaml",
        """
        aish: 1
        name: short
        mcp:
          servers:
            w: {url: "http://127.0.0.1:1/mcp", auth_token: seven77}
        steps: [{id: a, call: w__add}]
        """,
    )

    for command in (("validate",), ("plan", "--offline"), ("run",)):
        done = project.aish(*command, "short.yaml")

        assert done.code == 2, done.stderr
        said = "6:52: mcp.servers.w.auth_token: the token is shorter than 8 characters"
        assert f"error: short.yaml:{said}" in done.stderr


def test_validate_warns_of_variables_of_sub_pipelines(project: Project) -> None:
    inner = 'aish: 1\nmodels: {m: {base_url: "${DEEP_URL}", model: x}}\nprompt: Say hello\n'
    project.write("inner.yaml", inner)
    project.write("p.yaml", "aish: 1\nsteps: [{id: sub, pipeline: inner.yaml}]\n")

    done = project.aish("validate", "p.yaml")

    assert (done.code, done.stdout) == (0, "p.yaml: ok\n")
    assert done.stderr.startswith("warning: ")
    assert "inner.yaml:2:24: models.m.base_url: " in done.stderr
    assert "`DEEP_URL` is not set" in done.stderr
