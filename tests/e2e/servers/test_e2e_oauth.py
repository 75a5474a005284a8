"""A server behind OAuth, from the command line to the wire."""

import base64
import json
import re
from collections.abc import Generator
from dataclasses import dataclass

import pytest
from cli_process import Done
from e2e_project import Project
from mcp_emulators import Legacy, McpEndpoint
from model_endpoint import Recorded, Reply
from oauth_servers import CLIENT, AuthorizationServer, Guard, refusal, token_answer, unauthorized

SECRET = "oauth-planted-01234567"
TOKEN = "tok-planted-by-the-issuer"


@dataclass
class Behind:
    """A project with a call of a server that is behind an issuer."""

    project: Project
    issuer: AuthorizationServer
    server: McpEndpoint

    def write(self, **settings: str | bool) -> None:
        variable = "${CLIENT}"  # ruff: ignore[missing-f-string-syntax] - read by aish
        own = {"client_id": variable, "client_secret_env": "CLIENT_SECRET"}
        oauth = json.dumps(own | settings)
        self.project.pipeline(
            f"""
            mcp:
              servers:
                w: {{url: "{self.server.url}", oauth: {oauth}}}
              auto_approve: ["w__*"]
            call: w__echo
            with: {{text: "hello"}}
            """
        )

    def leaks(self, *runs: Done) -> list[str]:
        """The secrets that stand in what was printed or written."""
        seen = self.project.everything_written() + "".join(d.stdout + d.stderr for d in runs)
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode().rstrip("=")
        return [text for text in (SECRET, TOKEN, basic) if text in seen]


@pytest.fixture
def behind(project: Project) -> Generator[Behind]:
    issuer = AuthorizationServer(answer=lambda _form: token_answer(TOKEN))
    project.aish.env.update({"CLIENT_SECRET": SECRET, "CLIENT": CLIENT})
    with issuer, McpEndpoint(Guard([issuer.issuer], refuse=refuse)) as server:
        yield Behind(project, issuer, server)


def refuse(token: str, _request: Recorded) -> Reply | None:
    return None if token == TOKEN else unauthorized()


@pytest.mark.requirement("W18")
def test_a_run_logs_in_and_a_replay_does_not(behind: Behind) -> None:
    behind.write()
    project = behind.project

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", "-q")
    assert recorded.code == 0, recorded.stderr
    asked = len(behind.issuer.requests)
    del project.aish.env["CLIENT_SECRET"]
    replayed = project.run("--replay", "c.yaml")

    assert replayed.code == 0, replayed.stderr
    assert recorded.stdout == replayed.stdout
    assert "hello" in replayed.stdout
    assert len(behind.issuer.requests) == asked
    assert behind.leaks(recorded, replayed) == []
    cassette = (project.folder / "c.yaml").read_text("utf-8")
    # Its numbers of times and ports have any digits.
    assert re.search(r"(?<![\d.])401(?![\d.])", cassette) is None
    assert behind.issuer.origin not in cassette


def test_a_login_that_fails_ends_with_5_and_says_what_to_do(behind: Behind) -> None:
    said = f"the secret {SECRET} of {CLIENT} is old"
    behind.issuer.answer = lambda _form: refusal("invalid_client", said, 401)
    behind.write()

    recorded = behind.project.aish("record", "p.yaml", "-o", "c.yaml")
    failed = behind.project.run()

    assert recorded.code == failed.code == 5
    told = (
        f"mcp server `w`: no token from `{behind.issuer.origin}/token`: `invalid_client`"
        f" (the secret <secret> of {CLIENT} is old); it does not know the client `{CLIENT}` by this"
        " secret: see `client_id` and the variable `CLIENT_SECRET`, or set `token_auth` if it wants"
        " the secret elsewhere\n"
    )
    assert told in failed.stderr
    assert behind.leaks(recorded, failed) == []


def test_a_tool_that_repeats_the_token_does_not_show_it(behind: Behind) -> None:
    handler = Legacy(
        tools__call=lambda request: {
            "content": [{"type": "text", "text": request.headers["authorization"]}]
        }
    )
    with McpEndpoint(Guard([behind.issuer.issuer], handler, refuse=refuse)) as server:
        Behind(behind.project, behind.issuer, server).write()
        done = behind.project.run()

    assert done.code == 0, done.stderr
    assert "Bearer <secret:w.oauth_token>" in done.stdout
    assert behind.leaks(done) == []


def test_a_plan_and_a_checkup_say_who_issues_the_token_and_ask_nobody(behind: Behind) -> None:
    behind.write(token_url=f"{behind.issuer.origin}/token")

    planned = behind.project.aish("plan", "p.yaml", "--offline")
    listed = behind.project.aish("plan", "p.yaml", "--offline", "--format", "json")
    assert behind.issuer.requests == []
    assert behind.server.requests == []
    checked = behind.project.aish("doctor", "p.yaml")

    words = f"OAuth, a token of `{behind.issuer.origin}/token` for the client"
    assert f"login: {words} `${{CLIENT}}`, by `CLIENT_SECRET`" in planned.stdout
    assert words in json.loads(listed.stdout)["servers"][0]["login"]
    assert f"ok    login of `w`: {words} `{CLIENT}`, by `CLIENT_SECRET`" in checked.stdout
    assert checked.code == 0, checked.stdout


def test_a_plan_warns_of_a_secret_for_whomever_the_server_names(behind: Behind) -> None:
    warning = "mcp.servers.w.oauth: the authorization server that the server names gets the secret"
    behind.write()
    open_to_all = behind.project.aish("plan", "p.yaml", "--offline")
    strict = behind.project.aish("plan", "p.yaml", "--offline", "--strict")
    behind.write(login=True)
    for_a_person = behind.project.aish("plan", "p.yaml", "--offline")
    behind.write(issuer=behind.issuer.issuer)
    named = behind.project.aish("plan", "p.yaml", "--offline", "--strict")

    assert (open_to_all.code, strict.code, named.code) == (0, 2, 0), strict.stderr
    assert f"warning: {warning}\n  hint: `issuer` names the only one" in open_to_all.stderr
    assert f"error: {warning}\n" in strict.stderr
    assert f"warning: {warning}\n" in for_a_person.stderr
    assert "oauth" not in named.stderr


def test_a_checkup_finds_a_key_that_is_missing(behind: Behind) -> None:
    behind.write()
    file = behind.project.folder / "p.yaml"
    text = file.read_text("utf-8")
    key = "private_key_file: none.pem"
    file.write_text(text.replace('"client_secret_env": "CLIENT_SECRET"', key), "utf-8")

    checked = behind.project.aish("doctor", "p.yaml")

    assert checked.code == 5
    folder = behind.project.folder
    assert f"bad   login of `w`: there is no private key `{folder}/none.pem`" in checked.stdout


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("{client_id: x}", "a login needs `client_secret_env` or `private_key_file`"),
        ("{client_secret_env: X}", "`client_id` is missing"),
        ("{client_id: x, client_secret_env: X, private_key_file: k}",
         "a login has `client_secret_env` or `private_key_file`, not both"),
        ("{client_id: x, private_key_file: k, token_auth: post}",
         "`token_auth` goes with `client_secret_env`"),
        ("{client_id: x, client_secret_env: X, assertion_audience: issuer}",
         "`assertion_audience` goes with `private_key_file`"),
        ("{client_id: x, client_secret_env: X, issuer: 'http://login.example'}",
         "secrets are only sent to https, or to this machine"),
        ("{client_id: x, client_secret_env: X, token_url: 'login.example/t'}",
         "secrets are only sent to https, or to this machine"),
        ("{client_id: x, client_secret_env: X, scopes: ['a b']}", "a scope: one word"),
        ("{client_id: '${', client_secret_env: X}", "is not a reference to a variable"),
        ("{client_id: x, client_secret_env: X, device: true}", "device"),
        ("{client_id: x, client_secret_env: X}, auth_env: T",
         "`oauth` gets the token, and `auth_env` is another one"),
        ("{client_id: x, client_secret_env: X}, auth_command: [make-a-token]",
         "`oauth` gets the token, and `auth_command` is another one"),
        ("{client_id: x, client_secret_env: X}, headers: {Authorization: Basic x}",
         "`headers.Authorization` is another one"),
    ],
)  # fmt: skip
def test_a_login_that_cannot_work_is_a_problem_of_the_file(
    project: Project, settings: str, problem: str
) -> None:
    server = f"w: {{url: 'https://h.example/mcp', oauth: {settings}}}"
    project.pipeline(f"mcp: {{servers: {{{server}}}}}\ncall: w__echo\n")

    done = project.aish("validate", "p.yaml")

    assert done.code == 2, done.stdout + done.stderr
    assert problem in done.stdout + done.stderr


def test_a_login_is_for_a_server_with_a_url(project: Project) -> None:
    oauth = "{client_id: x, client_secret_env: X}"
    project.pipeline(f"mcp: {{servers: {{w: {{command: x, oauth: {oauth}}}}}}}\ncall: w__echo\n")

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert "`oauth` is for servers with `url`" in done.stdout + done.stderr
