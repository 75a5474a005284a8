"""One hub on four transports: the same list on each, and a second `aish` behind each of them."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from e2e_project import Project, stdio
from plain_http import PLAIN
from served_http import BOTH, modern_headers, modern_request
from served_hub import PATIENCE, LineClient, ServedHub, SocketClient, text_of

CANNED = Path(__file__).parents[2] / "support" / "mcp_canned_server.py"
BRIDGE = Path(__file__).parents[2] / "support" / "line_bridge.py"
TOKEN = "outer-token-" + "0" * 32
ERAS = (False, True)
LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
EVERYWHERE = ("stdio", "unix:run/s", "tcp://127.0.0.1:0", "http://127.0.0.1:0")
ODD = ("with.dot", "with space/slash", "größe", "l" * 128, "__", "hub__s", "UPPER")


def list_in(data: bytes) -> bytes:
    """The bytes of `tools` in an answer."""
    start = data.index(b'"tools":') + len(b'"tools":')
    text = data[start:].decode("ascii")
    return text[: json.JSONDecoder().raw_decode(text)[1]].encode("ascii")


def line_list(client: LineClient, *, modern: bool) -> bytes:
    """The list over lines."""
    if not modern:
        client.begin()
    client.ask("tools/list", modern=modern)
    return list_in(client.lines[-1])


def http_list(url: str, token: str, *, modern: bool) -> bytes:
    """The list over HTTP."""
    headers = {**BOTH, "Authorization": f"Bearer {token}"}
    with httpx.Client(headers=headers, timeout=PATIENCE, verify=PLAIN) as client:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        if modern:
            message = modern_request(1, "tools/list")
            return list_in(client.post(url, json=message, headers=modern_headers(message)).content)
        begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}
        begun = client.post(
            url, json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": begin}
        )
        session = {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
        return list_in(client.post(url, json=message, headers=session).content)


def test_the_list_is_equal_bytes_on_four_transports_in_two_eras(project: Project) -> None:
    tools = [
        {
            "name": "odd",
            "description": "größe \u2028 \U0001f600 <b>",
            "inputSchema": {"type": "object", "x-unknown": [1.0, 1e3, None]},
            "annotations": {"readOnlyHint": True},
            "_meta": {"vendor/key": {"a": [1]}},
            "unknown": True,
        }
    ]
    script = {"tools": tools, "results": {}, "calls": str(project.folder / "calls.jsonl")}
    project.write("script.json", json.dumps(script))
    canned = json.dumps([sys.executable, str(CANNED), str(project.folder / "script.json")])
    project.aish.env["OUTER"] = TOKEN
    project.pipeline(
        f"""
        mcp:
          servers: {{c: {{command: {canned}}}, s: {{command: {stdio()}}}, p: {{pack: fs, root: .}}}}
        serve: {{listen: {json.dumps(EVERYWHERE)}, clients: {{outer: {{token_env: OUTER}}}}}}
        """
    )
    with ServedHub(project, "p.yaml") as hub:
        unix, tcp, http = hub.addresses()
        found = {("stdio", modern): line_list(hub, modern=modern) for modern in ERAS}
        for modern in ERAS:
            with SocketClient(unix) as over_unix, SocketClient(tcp, TOKEN) as over_tcp:
                found["unix", modern] = line_list(over_unix, modern=modern)
                found["tcp", modern] = line_list(over_tcp, modern=modern)
            found["http", modern] = http_list(http, TOKEN, modern=modern)
        hub.end_input()
        assert hub.finish() == 0

    assert len(found) == 8
    assert len(set(found.values())) == 1
    rows = json.loads(found["http", True])
    assert rows[0] == {**tools[0], "name": "c__odd"}
    assert {row["name"].partition("__")[0] for row in rows} == {"c", "s", "p"}


@pytest.mark.requirement("H1")
def test_a_second_file_reaches_a_hub_over_each_transport_under_both_rules(
    project: Project,
) -> None:
    project.aish.env["OUTER"] = TOKEN
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio()}}}}}
          auto_approve: [s__echo]
          deny: [s__fail]
        serve: {{listen: {json.dumps(EVERYWHERE[1:])}, clients: {{outer: {{token_env: OUTER}}}}}}
        """
    )
    with ServedHub(project, "p.yaml") as hub:
        unix, tcp, http = hub.addresses()
        bridge = [sys.executable, str(BRIDGE)]
        servers = {
            "over_unix": {"command": [*bridge, unix]},
            "over_tcp": {"command": [*bridge, tcp, "OUTER"], "env": {"OUTER": "${OUTER}"}},
            "over_http": {"url": http, "auth_env": "OUTER"},
        }
        steps = [
            {"id": alias, "call": f"{alias}__s__echo", "with": {"text": alias}} for alias in servers
        ]
        outer = {"auto_approve": ["*__s__echo", "*__s__add"], "servers": servers}
        text = f"mcp: {json.dumps(outer)}\nsteps: {json.dumps(steps)}\n"
        project.pipeline(text, name="outer.yaml")
        listed = project.aish("tools", "outer.yaml", "--json")
        ran = project.aish("run", "outer.yaml", "--format", "json")
        inner = project.aish("call", "outer.yaml", "over_tcp__s__add", "a=1", "b=2")
        denied = project.aish("call", "outer.yaml", "over_tcp__s__sleep", "ms=1")
        hub_audit = [one for one in hub.audit if one["event"] == "decided"]

    assert listed.code == 0, listed.stderr
    names = [row["tool"] for row in json.loads(listed.stdout)]
    for alias in servers:
        assert f"{alias}__s__echo" in names
        assert f"{alias}__s__fail" not in names
    assert ran.code == 0, ran.stderr
    assert inner.code == 1
    assert "tool call denied: no rule approves s__add" in inner.stderr
    assert denied.code == 3
    # What the outer file denies does not reach the hub.
    assert [(one["tool"], one["decision"]) for one in hub_audit] == [
        *[("s__echo", "auto")] * 3,
        ("s__add", "ask-no"),
    ]
    assert {one["client"] for one in hub_audit} > {"outer"}
    assert TOKEN not in ran.stdout + ran.stderr + json.dumps(hub_audit)


@pytest.mark.slow(reason="two hubs in a row; one behind another is in the test above")
def test_names_are_legal_behind_two_hubs(project: Project) -> None:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ODD]
    results = {name: {"result": {"content": [{"type": "text", "text": name}]}} for name in ODD}
    script = {"tools": tools, "results": results, "calls": str(project.folder / "calls.jsonl")}
    project.write("script.json", json.dumps(script))
    canned = json.dumps([sys.executable, str(CANNED), str(project.folder / "script.json")])
    project.pipeline(f"mcp: {{servers: {{s: {{command: {canned}}}}}, auto_approve: ['s__*']}}")
    for outer, inner in (("second.yaml", "p.yaml"), ("third.yaml", "second.yaml")):
        served = [sys.executable, "-m", "aish", "serve", str(project.folder / inner)]
        mcp = {"servers": {"hub": {"command": served}}, "auto_approve": ["hub__*"]}
        project.pipeline(f"mcp: {json.dumps(mcp)}", name=outer)

    listed = project.aish("tools", "third.yaml", "--json")
    names = [row["tool"] for row in json.loads(listed.stdout)]
    with ServedHub(project, "third.yaml") as hub:
        hub.begin()
        public = [tool["name"] for tool in hub.tools()]
        called = [text_of(hub.call(name)) for name in public]

    assert listed.code == 0, listed.stderr
    assert len(set(names)) == len(ODD)
    assert called == list(ODD)
    assert all(LEGAL.fullmatch(name) for name in public)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdks_client_is_served_over_http_in_both_eras(project: Project, mode: str) -> None:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    project.aish.env["OUTER"] = TOKEN
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio("--asks")}}}}}, auto_approve: ["s__*"]}}
        serve: {{listen: "{EVERYWHERE[-1]}", clients: {{outer: {{token_env: OUTER}}}}}}
        """
    )
    numbers: list[float] = []

    async def count(progress: float, total: float | None, message: str | None) -> None:  # ruff: ignore[unused-async] - as the SDK has it
        numbers.append(progress)

    async def use(url: str) -> tuple[str, list[str], str, bool]:
        async with (
            create_mcp_http_client(headers={"Authorization": f"Bearer {TOKEN}"}) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            listed = await client.list_tools()
            said = await client.call_tool("s__echo", {"text": "from the SDK"})
            await client.call_tool("s__count", {"steps": 3}, progress_callback=count)
            failed = await client.call_tool("s__fail", {})
            return (
                client.protocol_version,
                [tool.name for tool in listed.tools],
                text_of(said.model_dump()),
                failed.is_error,
            )

    with ServedHub(project, "p.yaml") as hub:
        (address,) = hub.addresses()
        version, names, text, is_error = anyio.run(use, address)

    assert version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
    assert names[0] == "s__echo"
    assert (text, is_error) == ("from the SDK", True)
    assert numbers[-1] == 3
