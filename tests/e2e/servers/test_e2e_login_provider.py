"""Whole runs with logins at `oidc-provider`, a certified OpenID provider in its own process."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.request import urlopen

import pytest
from e2e_project import Project, stdio
from mcp_emulators import Legacy, McpEndpoint
from mcp_peers import MODULES, TOP, accepting, free_port, node, open_socket, port_of
from model_endpoint import Recorded, Reply
from oauth_person import fill_forms
from oauth_project import COMMAND, LoginProject
from oauth_servers import Guard, forbidden, unauthorized
from served_http import HttpHub

pytestmark = pytest.mark.peers

SECRET = "a secret: with + and % in it"
SCRIPT = TOP / "tests" / "support" / "oidc_provider.mjs"
NEEDED = {"add": ["notes:read", "notes:write"]}


@dataclass
class TokenCheck:
    """Takes JWTs of an issuer that are for this server and have the scopes of the call."""

    issuer: str = ""
    url: str = ""
    clients: list[str] = field(default_factory=list)

    def __call__(self, token: str, request: Recorded) -> Reply | None:
        joserfc = pytest.importorskip("joserfc")
        from joserfc import jwt
        from joserfc.jwk import KeySet

        if not token:
            return unauthorized()
        with urlopen(f"{self.issuer}/jwks", timeout=60) as page:  # ruff: ignore[suspicious-url-open-usage] - of the test
            keys = KeySet.import_key_set(json.load(page))
        try:
            claims = jwt.decode(token, keys).claims
        except joserfc.errors.JoseError:
            return unauthorized('Bearer error="invalid_token"')
        assert (claims["iss"], claims["aud"]) == (self.issuer, self.url)
        self.clients.append(claims["client_id"])
        message = request.json if request.method == "POST" else {}
        tool = message.get("params", {}).get("name", "") if "method" in message else ""
        needed = NEEDED.get(tool, ["notes:read"])
        if set(needed) <= set(claims.get("scope", "").split()):
            return None
        return forbidden(f'Bearer error="insufficient_scope", scope="{" ".join(needed)}"')


@contextmanager
def provider(project: Project, *servers: str) -> Generator[str]:
    """The address of an `oidc-provider` that knows these servers as resources."""
    if not (MODULES / "oidc-provider").exists():
        pytest.skip("oidc-provider is missing; `make node` brings it")
    project.aish.env["CLIENT_SECRET"] = SECRET
    listener = open_socket()
    port = port_of(listener)
    argv = (node(), str(SCRIPT), str(port), str(listener.fileno()), *servers)
    with accepting(*argv, sockets=[listener], environment={"SECRET": SECRET}):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def protected(
    project: Project, *, knows_server: bool = True
) -> Generator[tuple[LoginProject, TokenCheck]]:
    """A project with a server behind such a provider, and what checks its tokens."""
    check = TokenCheck()
    guard = Guard([], Legacy(), refuse=check, metadata={"scopes_supported": ["notes:read"]})
    with (
        McpEndpoint(guard) as server,
        provider(project, *([server.url] if knows_server else [])) as check.issuer,
    ):
        check.url, guard.issuers = server.url, [check.issuer]
        yield LoginProject(project, server.url), check


def test_a_person_logs_in_and_the_refresh_token_is_rotated_twice(project: Project) -> None:
    with protected(project) as (place, check):
        done = place.log_in(browse=fill_forms)

        assert done.code == 0, done.stderr
        assert f"w: logged in at `{check.issuer}` for `notes:read`\n" in done.stdout
        assert "it is renewed by itself" in done.stderr
        first = project.run()
        assert (first.code, first.stdout) == (0, "hello\n"), first.stderr
        seen = [place.kept()["secrets"]["refresh_token"]]
        for _ in range(2):
            place.change(expires=1.0)
            again = project.run()
            assert (again.code, again.stdout) == (0, "hello\n"), again.stderr
            seen.append(place.kept()["secrets"]["refresh_token"])
        assert len({*seen}) == 3
        assert {*check.clients} == {place.kept()["client_id"]}

        # The first one again, as a thief would: the provider ends the whole login.
        place.change(expires=1.0, secrets={**place.kept()["secrets"], "refresh_token": seen[0]})
        stolen, after = project.run(), project.run()
        assert (stolen.code, after.code) == (5, 5)
        assert "`invalid_grant`" in stolen.stderr
        assert f"nobody is logged in to `{place.url}`: {COMMAND}\n" in after.stderr
        assert not [one for one in seen if one in project.everything_written()]


@pytest.mark.slow(reason="starts a provider in Node")
def test_a_server_that_the_provider_does_not_know_is_told_with_the_setting(
    project: Project,
) -> None:
    with protected(project, knows_server=False) as (place, check):
        program = {"client_id": "reader", "client_secret_env": "CLIENT_SECRET"}
        person = place.log_in(browse=fill_forms)
        place.write(**program)
        run = project.run()

        assert (person.code, run.code) == (5, 5)
        advice = (
            f"it does not know the server as the resource `{place.url}`: register it there,"
            " or set `resource: false` to ask without naming it"
        )
        assert f"`{check.issuer}` refuses the login: `invalid_target`" in person.stderr
        assert advice in person.stderr
        assert f"no token from `{check.issuer}/token`: `invalid_target`" in run.stderr
        assert advice in run.stderr
        # It issues one then, which is for no server, and this one says so.
        place.write(**program, resource=False)
        unnamed = project.run()
        assert f"the server refuses the token that `{check.issuer}` has just" in unnamed.stderr


@pytest.mark.slow(reason="starts a provider in Node")
def test_programs_get_what_their_clients_may(project: Project) -> None:
    with protected(project) as (place, check):
        sum_of = {"tool": "add", "arguments": "{a: 1, b: 2}", "client_secret_env": "CLIENT_SECRET"}
        place.write(client_id="reader", client_secret_env="CLIENT_SECRET")
        read = project.run()
        place.write(**sum_of, client_id="reader")
        refused = project.run()
        place.write(**sum_of, client_id="writer")
        stepped_up = project.run()
        project.aish.env["CLIENT_SECRET"] = "another-secret-than-this"
        unknown = project.run()

        assert (read.code, read.stdout) == (0, "hello\n"), read.stderr
        assert refused.code == 5
        assert "`invalid_scope`" in refused.stdout + refused.stderr
        assert (stepped_up.code, stepped_up.stdout) == (0, "3\n"), stepped_up.stderr
        assert {*check.clients} == {"reader", "writer"}
        assert unknown.code == 5
        assert "`invalid_client`" in unknown.stderr
        assert SECRET not in project.everything_written()


@pytest.mark.slow(reason="starts a provider in Node; tokens of other issuers are in tests of hubs")
def test_a_served_project_behind_the_provider_lets_each_client_do_what_its_scopes_are_for(
    project: Project,
) -> None:
    """`aish serve` and its clients, all of them aish: a person, and two programs."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    with provider(project, url) as issuer:
        project.write(
            "served.yaml",
            f"""
            aish: 1
            mcp:
              servers: {{s: {{command: {stdio()}}}}}
              auto_approve: ["s__*"]
            serve:
              auth: {{issuer: "{issuer}", audience: "{url}"}}
              clients:
                readers: {{scopes: ["notes:read"], tools: [s__echo]}}
                writers: {{scopes: ["notes:read", "notes:write"]}}
            """,
        )
        # It listens before it has started, which takes long on a busy machine.
        with urlopen(f"{issuer}/jwks", timeout=60) as page:  # ruff: ignore[suspicious-url-open-usage] - of the test
            page.read()
        with HttpHub(project, "served.yaml", listen=f"127.0.0.1:{port}") as hub:
            hub.until_ready(200)
            add = {"tool": "s__add", "arguments": "{a: 1, b: 2}"}
            person = LoginProject(project, url)
            person.write(tool="s__echo", scopes=["notes:read"])
            logged_in = person.log_in(browse=fill_forms)
            done = [project.run()]
            secret = {"client_secret_env": "CLIENT_SECRET"}
            person.write(tool="s__echo", client_id="reader", scopes=["notes:read"], **secret)
            done.append(project.run())
            person.write(**add, client_id="reader", scopes=["notes:read"], **secret)
            done.append(project.run())
            both = ["notes:read", "notes:write"]
            person.write(**add, client_id="writer", scopes=both, **secret)
            done.append(project.run())
            calls = [one for one in hub.audit if one["event"] == "decided"]

    assert logged_in.code == 0, logged_in.stderr
    assert [one.code for one in done] == [0, 0, 1, 0], "\n".join(one.stderr for one in done)
    assert [one.stdout for one in done] == ["hello\n", "hello\n", "", "3\n"]
    assert "no server offers the tool `w__s__add`" in done[2].stderr
    assert calls[0]["peer"]["subject"] == "ada"
    peers = [(one["tool"], one["peer"]["entries"], one["peer"]["client_id"]) for one in calls]
    assert peers == [
        ("s__echo", ["readers"], person.kept()["client_id"]),
        ("s__echo", ["readers"], "reader"),
        ("s__add", ["readers", "writers"], "writer"),
    ]
