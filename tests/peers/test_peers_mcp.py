"""Our client against MCP servers that others wrote."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_dynamic_registry import DynamicScene, dynamic_registry
from mcp_peers import free_port, listening, npm_server, python_server
from mcp_scenes import Scene, command, http, play, registry
from samples import sampled

from aish.core.errors import StepFailedError
from aish.core.json import JsonObject
from aish.mcp.transports.settings import ServerConnection

pytestmark = pytest.mark.peers

ORACLE = Path(__file__).parents[1] / "support" / "mcp_oracle_server.py"
SECONDS = 60.0


class Poet:
    """A sampler that answers everything with the same verse."""

    async def sample(self, params: JsonObject) -> JsonObject:
        content = {"type": "text", "text": "a verse"}
        return {"role": "assistant", "content": content, "model": "poet", "stopReason": "endTurn"}


def with_server(connection: ServerConnection, body: Any) -> None:
    async def scene() -> None:
        async with registry(connection) as s:
            assert s.registry.failure(connection.entry.alias) is None
            await body(s)

    play(scene, seconds=SECONDS)


async def everything(s: Scene) -> None:
    """What `server-everything` does over every transport."""
    assert len(s.names) >= 10
    assert await s.text("all__echo", message="hi") == "Echo: hi"
    assert "3" in await s.text("all__get-sum", a=1, b=2)
    picture = await s.call("all__get-tiny-image")
    assert picture.media[0].mime_type == "image/png"
    assert picture.media[0].data.startswith(b"\x89PNG")
    structured = await s.call("all__get-structured-content", location="Chicago")
    assert isinstance(structured.structured, dict)
    assert json.loads(structured.content) == structured.structured
    links = await s.text("all__get-resource-links")
    assert "[link: demo://resource/" in links
    resource = await s.text("all__get-resource-reference")
    assert "This is a plaintext resource" in resource
    await s.text("all__trigger-long-running-operation", duration=0.1, steps=2)
    assert [one.progress for one in s.progress] == [1.0, 2.0]
    odd = await s.call("all__get-annotated-message", messageType="error", includeImage=False)
    assert (odd.kind, odd.content) == ("ok", "Error: Operation failed")
    wrong = await s.call("all__echo")
    assert wrong.kind in {"handler_error", "rpc_error"}


async def asking(s: Scene) -> None:
    """What it asks of us."""
    assert "declined" in await s.text("all__trigger-elicitation-request")
    poem = await s.call("all__trigger-sampling-request", Poet(), prompt="x", maxTokens=5)
    assert "a verse" in poem.content
    assert "file:///srv" in await s.text("all__get-roots-list")


@pytest.mark.requirement("M13")
def test_server_everything_over_stdio() -> None:
    argv = (*npm_server("server-everything"), "stdio")

    async def body(s: Scene) -> None:
        await everything(s)
        await asking(s)
        environment = json.loads(await s.text("all__get-env"))
        names = {"HOME", "PATH", "LOGNAME", "SHELL", "TERM", "USER", "AISH_PROCESS_MARK"}
        assert set(environment) <= names

    with_server(command(*argv, alias="all", sampling="allow", roots=(Path("/srv"),)), body)


@pytest.fixture(params=["streamableHttp", "sse"])
def everything_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """`server-everything` over streamable HTTP, and over 2024's HTTP+SSE."""
    port = free_port()
    argv = (*npm_server("server-everything"), request.param)
    with listening(*argv, port=port, environment={"PORT": str(port)}) as origin:
        yield f"{origin}/{'mcp' if request.param == 'streamableHttp' else 'sse'}"


def test_server_everything_over_http(everything_url: str) -> None:
    async def body(s: Scene) -> None:
        await everything(s)
        await asking(s)

    connection = http(everything_url, "all", sampling="allow", roots=(Path("/srv"),))
    with_server(connection, body)


def test_server_filesystem(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    (folder / "note.txt").write_text("hello", encoding="utf-8")

    async def body(s: Scene) -> None:
        assert "note.txt" in await s.text("fs__list_directory", path=str(folder))
        assert await s.text("fs__read_text_file", path=str(folder / "note.txt")) == "hello"
        outside = await s.call("fs__read_text_file", path="/etc/passwd")
        assert outside.kind == "handler_error"
        assert "Access denied" in outside.content

    with_server(command(*npm_server("server-filesystem"), str(folder), alias="fs"), body)


def test_mcp_server_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "note.txt").write_text("hello", encoding="utf-8")

    async def body(s: Scene) -> None:
        assert "note.txt" in await s.text("git__git_status", repo_path=str(tmp_path))
        assert (await s.call("git__git_log", repo_path="/nowhere")).kind != "ok"

    argv = (python_server("mcp-server-git"), "--repository", str(tmp_path))
    with_server(command(*argv, alias="git"), body)


@pytest.mark.slow(reason="starts a real server")
def test_mcp_server_time() -> None:
    async def body(s: Scene) -> None:
        found = await s.call("time__get_current_time", timezone="UTC")
        assert isinstance(found.structured, dict)
        assert found.structured["timezone"] == "UTC"
        wrong = await s.call("time__get_current_time", timezone="Mars/Olympus")
        assert wrong.kind in {"handler_error", "rpc_error"}

    with_server(command(python_server("mcp-server-time"), alias="time"), body)


@pytest.mark.parametrize(
    ("protocol", "flags"),
    sampled(
        itertools.product(("auto", "legacy", "2025-03-26"), ((), ("--json",))),
        often={0, 3, 4},
        reason="each starts a server",
    ),
)
def test_a_server_made_with_the_official_sdk(flags: tuple[str, ...], protocol: Any) -> None:
    port = free_port()

    async def body(s: Scene) -> None:
        assert await s.text("sdk__add", a=1, b=2) == "3"
        failed = await s.call("sdk__fail")
        assert failed.kind == "handler_error"
        assert "fail" in failed.content
        await s.text("sdk__count", steps=3)
        if not flags:
            assert [one.progress for one in s.progress] == [1.0, 2.0, 3.0]
        assert s.notices.said == []

    with listening(sys.executable, str(ORACLE), str(port), *flags, port=port) as origin:
        with_server(http(f"{origin}/mcp", "sdk", protocol=protocol), body)


DYNAMIC = "demo://resource/dynamic"


async def offers(s: DynamicScene) -> None:
    """What `server-everything` offers beside tools."""
    listed = {one.uri: one for one in await s.registry.resources()}
    assert listed[f"{DYNAMIC}/text/{{resourceId}}"].template
    document = next(one for one in listed.values() if one.mime == "text/markdown")
    (part,) = await s.registry.read_resource("all", document.uri)
    assert (part.uri, part.media) == (document.uri, None)
    assert str(part.text).startswith("#")
    for kind in ("text", "blob"):
        (part,) = await s.registry.read_resource("all", f"{DYNAMIC}/{kind}/1")
        assert f"Resource 1: This is a {'plaintext' if kind == 'text' else 'base64'}" in str(
            part.text
        )
    with pytest.raises(StepFailedError, match="it refused the resource"):
        await s.registry.read_resource("all", "demo://nothing/here")


async def prompts(s: DynamicScene) -> None:
    """Its prompts, with arguments and without."""
    listed = {one.name: one for one in await s.registry.prompts()}
    city, state = listed["args-prompt"].arguments
    assert (city.name, city.required, state.required) == ("city", True, False)
    (plain,) = await s.registry.get_prompt("all", "simple-prompt", {})
    assert plain.role == "user"
    (asked,) = await s.registry.get_prompt("all", "args-prompt", {"city": "Oslo"})
    assert asked.text == "What's weather in Oslo?"
    with pytest.raises(StepFailedError, match="it refused the prompt `args-prompt`"):
        await s.registry.get_prompt("all", "args-prompt", {})
    filled = {"resourceType": "Text", "resourceId": "2"}
    _, resource = await s.registry.get_prompt("all", "resource-prompt", filled)
    assert resource.text.startswith("Resource 2: This is a plaintext resource")


AS_TASK = " is left out: it can only be called as a task"


def come_and_go(connection: ServerConnection) -> None:
    async def scene() -> None:
        async with dynamic_registry() as s:
            info = await s.dynamic_registry.connect(connection)
            assert info.state == "ready"
            await offers(s)
            await prompts(s)
            # One of its tools can only be called as a task; with sampling there are two of them.
            assert all(said.endswith(AS_TASK) for *_, said in s.notices.said)
            await s.dynamic_registry.disconnect("all")
            assert s.picture == ((), ())

    play(scene, seconds=SECONDS)


def test_server_everything_comes_and_goes_over_stdio() -> None:
    come_and_go(command(*npm_server("server-everything"), "stdio", alias="all"))


def test_server_everything_comes_and_goes_over_http(everything_url: str) -> None:
    come_and_go(http(everything_url, "all"))
