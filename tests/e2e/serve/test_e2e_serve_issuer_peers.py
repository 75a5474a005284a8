"""`aish serve` behind issuers that others wrote, with clients that others wrote, and our own."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import HTTPRedirectHandler, build_opener, urlopen

import anyio
import pytest
from e2e_project import Project, stdio
from mcp_peers import MODULES, TOP, accepting, free_port, node, open_socket, port_of
from oauth_setups import USUAL
from served_http import HttpHub

pytest.importorskip("joserfc")
pytest.importorskip("httpx2")
pytest.importorskip("authlib")

import httpx2
from joserfc.jwk import ECKey
from mcp import ClientSession, MCPError
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

pytestmark = pytest.mark.peers

SECRET = "a-secret-of-programs"
STARTING = 180.0
"""Seconds in which programs of others have started, on a machine with much else to do."""
SUPPORT = TOP / "tests" / "support"
REDIRECT = "http://127.0.0.1:9/callback"


@contextmanager
def authlib_issuer(folder: Path, resource: str) -> Generator[str]:
    """The issuer of authlib, whose tokens are JWTs."""
    key, socket = folder / "public.pem", open_socket()
    key.write_bytes(ECKey.generate_key("P-256").as_pem(private=False))
    words = (str(key), f"{socket.fileno()}={USUAL.name}")
    argv = (sys.executable, str(SUPPORT / "oauth_peer_server.py"), *words)
    own = {"SECRET": SECRET, "AUDIENCE": resource}
    port = port_of(socket)
    with accepting(*argv, sockets=[socket], environment=own):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def oidc_provider(_folder: Path, resource: str) -> Generator[str]:
    """`oidc-provider`, a certified OpenID provider."""
    if not (MODULES / "oidc-provider").exists():
        pytest.skip("oidc-provider is missing; `make node` brings it")
    socket = open_socket()
    port = port_of(socket)
    words = (str(port), str(socket.fileno()), resource)
    argv = (node(), str(SUPPORT / "oidc_provider.mjs"), *words)
    with accepting(*argv, sockets=[socket], environment={"SECRET": SECRET}):
        yield f"http://127.0.0.1:{port}"


ISSUERS = {"authlib": authlib_issuer, "oidc-provider": oidc_provider}


def until_answering(issuer: str) -> None:
    """Wait until an issuer that listens has started, which takes long on a busy machine."""
    with urlopen(f"{issuer}/jwks", timeout=STARTING) as page:  # ruff: ignore[suspicious-url-open-usage] - of the test
        page.read()


@dataclass
class Scene:
    """A server behind an issuer."""

    hub: HttpHub
    issuer: str
    project: Project

    def decided(self) -> list[tuple[str, str]]:
        """Who called what, as the audit log has it."""
        return [(one["client"], one["tool"]) for one in self.hub.audit if one["event"] == "decided"]


@contextmanager
def serving(kind: str, project: Project, tmp_path: Path, auth: str = "") -> Generator[Scene]:
    """A server that has one tool for readers, and all for writers."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    with ISSUERS[kind](tmp_path, url) as issuer:
        until_answering(issuer)
        project.pipeline(
            f"""
            mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: ["s__*"]}}
            serve:
              auth: {{issuer: "{issuer}", audience: "{url}"{auth}}}
              clients:
                readers: {{scopes: ["notes:read"], tools: [s__echo]}}
                writers: {{scopes: ["notes:read", "notes:write"]}}
            """
        )
        with HttpHub(project, "p.yaml", listen=f"127.0.0.1:{port}") as hub:
            hub.until_ready(200)
            yield Scene(hub, issuer, project)


class Storage:
    """The tokens of one client of the SDK, in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@asynccontextmanager
async def session(url: str, auth: Any) -> AsyncGenerator[ClientSession]:
    """A session of the SDK's client, after its handshake."""
    async with (
        httpx2.AsyncClient(auth=auth, timeout=60) as client,
        streamable_http_client(url, http_client=client) as streams,
        ClientSession(*streams[:2]) as found,
    ):
        await found.initialize()
        yield found


def program(scene: Scene, name: str) -> ClientCredentialsOAuthProvider:
    """The SDK's login of a program, which asks for what the server tells it to."""
    return ClientCredentialsOAuthProvider(
        scene.hub.url, Storage(), name, SECRET, issuer=scene.issuer
    )


def person(scene: Scene) -> tuple[OAuthClientProvider, Storage]:
    """The SDK's login of a person, whose browser is sent on at once."""
    came: list[AuthorizationCodeResult] = []

    async def open_page(address: str) -> None:
        query = await anyio.to_thread.run_sync(partial(follow, address))
        fields = {name: values[0] for name, values in parse_qs(query).items()}
        came.append(AuthorizationCodeResult.model_validate(fields))

    async def wait() -> AuthorizationCodeResult:  # ruff: ignore[unused-async] - the SDK awaits it
        return came.pop()

    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "sdk",
            "redirect_uris": [REDIRECT],
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token"],
        }
    )
    storage = Storage()
    return OAuthClientProvider(scene.hub.url, metadata, storage, open_page, wait), storage


class Stay(HTTPRedirectHandler):
    """Goes where a page leads in no case."""

    def redirect_request(self, *_: Any) -> None:
        return None


def follow(address: str) -> str:
    """The query that a browser brings back from a login page that asks nothing."""
    try:
        build_opener(Stay).open(address, timeout=60)
    except HTTPError as answer:
        with answer:
            return urlsplit(answer.headers["location"]).query
    raise AssertionError("the login page did not redirect")


@pytest.mark.requirement("W20")
@pytest.mark.parametrize("kind", ISSUERS)
def test_two_programs_of_the_sdk_may_call_what_their_scopes_allow(
    kind: str, project: Project, tmp_path: Path
) -> None:
    async def scene(where: Scene) -> None:
        async with session(where.hub.url, program(where, "reader")) as reader:
            assert [tool.name for tool in (await reader.list_tools()).tools] == ["s__echo"]
            await reader.call_tool("s__echo", {"text": "read"})
        refused = pytest.RaisesExc((MCPError, OAuthFlowError))
        with pytest.RaisesGroup(refused, flatten_subgroups=True):
            async with session(where.hub.url, program(where, "reader")) as reader:
                await reader.call_tool("s__add", {"a": 1, "b": 2})
        async with session(where.hub.url, program(where, "writer")) as writer:
            # It has little at first, and asks for more when it has to.
            added = await writer.call_tool("s__add", {"a": 1, "b": 2})
            assert not added.is_error
            assert "s__add" in [tool.name for tool in (await writer.list_tools()).tools]

    with serving(kind, project, tmp_path) as where:
        anyio.run(scene, where)
        decided = where.decided()

    assert decided == [("oauth:reader", "s__echo"), ("oauth:writer", "s__add")]


@pytest.mark.slow(reason="starts several programs; those of the SDK are in the test above")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ISSUERS)
def test_two_of_our_own_programs_may_call_what_their_scopes_allow(
    kind: str, project: Project, tmp_path: Path
) -> None:
    with serving(kind, project, tmp_path) as where:
        project.aish.env["CLIENT_SECRET"] = SECRET
        servers = {
            name: {
                "url": where.hub.url,
                "oauth": {
                    "client_id": name,
                    "client_secret_env": "CLIENT_SECRET",
                    "issuer": where.issuer,
                    "scopes": ["notes:read", *(["notes:write"] if name == "writer" else [])],
                },
            }
            for name in ("reader", "writer")
        }
        file = {"aish": 1, "mcp": {"servers": servers, "auto_approve": ["reader__*", "writer__*"]}}
        project.write("user.yaml", json.dumps(file))
        calls = [
            project.aish("call", "user.yaml", *words)
            for words in (
                ("reader__s__echo", "text=read"),
                ("reader__s__add", "a=1", "b=2"),
                ("writer__s__add", "a=1", "b=2"),
            )
        ]
        decided = where.decided()

    assert [done.code for done in calls] == [0, 2, 0], [done.stderr for done in calls]
    assert "no server offers the tool `reader__s__add`" in calls[1].stderr
    assert decided == [("oauth:reader", "s__echo"), ("oauth:writer", "s__add")]


@pytest.mark.slow(reason="starts the client of the SDK")
def test_a_person_of_the_sdk_finds_all_by_the_url_and_steps_up(
    project: Project, tmp_path: Path
) -> None:
    async def scene(where: Scene) -> list[str]:
        auth, storage = person(where)
        asked = []
        async with session(where.hub.url, auth) as client:
            assert storage.tokens is not None
            asked.append(storage.tokens.scope or "")
            assert "s__add" in [tool.name for tool in (await client.list_tools()).tools]
            added = await client.call_tool("s__add", {"a": 1, "b": 2})
            assert not added.is_error
            asked.append(storage.tokens.scope or "")
        return asked

    with serving("authlib", project, tmp_path, auth=", step_up: true") as where:
        asked = anyio.run(scene, where)
        decided = where.decided()

    assert asked == ["notes:read", "notes:read notes:write"]
    ((client, tool),) = decided
    assert client.startswith("oauth:ada/")
    assert tool == "s__add"


@pytest.mark.slow(reason="starts Node; the SDK for Python is in the test above")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ISSUERS)
def test_two_programs_of_the_typescript_sdk_may_call_what_their_scopes_allow(
    kind: str, project: Project, tmp_path: Path
) -> None:
    if not (MODULES / "@modelcontextprotocol" / "sdk").exists():
        pytest.skip("the TypeScript SDK is missing; `make node` brings it")

    def call(client: str, tool: str, **arguments: Any) -> subprocess.CompletedProcess[str]:
        scopes = "notes:read notes:write" if client == "writer" else "notes:read"
        words = (where.hub.url, client, scopes, tool, json.dumps(arguments))
        return subprocess.run(
            [node(), str(SUPPORT / "sdk_client.mjs"), *words],
            env={**os.environ, "SECRET": SECRET},
            capture_output=True,
            text=True,
            timeout=STARTING,
            check=False,
        )

    with serving(kind, project, tmp_path) as where:
        read = call("reader", "s__echo", text="read")
        denied = call("reader", "s__add", a=1, b=2)
        added = call("writer", "s__add", a=1, b=2)
        decided = where.decided()

    assert json.loads(read.stdout) == {"tools": ["s__echo"], "text": "read"}, read.stderr
    assert "Server returned 403 after trying upscoping" in denied.stderr
    found = json.loads(added.stdout)
    assert {"s__echo", "s__add"} <= set(found["tools"])
    assert found["text"] == "3"
    assert decided == [("oauth:reader", "s__echo"), ("oauth:writer", "s__add")]
