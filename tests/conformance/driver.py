"""The client under test of the MCP conformance suite: our own, driven as a scenario wants it.

The suite appends the server's url to the command and says in the environment which scenario and
which revision it plays. Every tool is called once, all at the same time, with the arguments of the
scenario's context where it has some and made-up ones elsewhere.
"""

import json
import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import anyio

from aish.config.model import ProtocolChoice, ServerEntry, ServerTimeout
from aish.core.tools import Tool, ToolName
from aish.mcp.client.registry import Registry, open_registry
from aish.mcp.transports.settings import ServerConnection
from aish.net.oauth import person_login
from aish.net.oauth.person_login import Person, PersonLogin
from aish.net.oauth.settings import Credentials, OAuthSettings
from aish.system.process.reaper import Reaper

ALIAS = "suite"
TIMEOUT = ServerTimeout(connect=10, call=20)
SAMPLES: Mapping[str, Any] = {"string": "text", "integer": 3, "number": 5, "boolean": True}
DOCUMENT = "https://conformance-test.local/client-metadata.json"
ECHO, FOCAL = "json_schema_echo", "json_schema_2020_12_tool"


async def accept(_: str, params: Mapping[str, Any]) -> Mapping[str, Any]:  # ruff: ignore[unused-async] - `Elicit`
    """Answer an elicitation as a person would who presses Enter: with the defaults."""
    properties = params.get("requestedSchema", {}).get("properties", {})
    content = {
        name: schema["default"] if "default" in schema else sample(schema)
        for name, schema in properties.items()
    }
    return {"action": "accept", "content": content}


def sample(schema: Mapping[str, Any]) -> Any:
    """A value that fits a simple schema."""
    return schema["enum"][0] if "enum" in schema else SAMPLES.get(schema.get("type", ""), {})


def arguments_for(registry: Registry, tool: Tool) -> Mapping[str, Any]:
    """Made-up arguments; the echo tool gets the schema it asks for, as we hold it."""
    if tool.name.name == ECHO:
        focal = registry.by_name(ToolName(ALIAS, FOCAL))
        assert focal is not None
        return {"schema": focal.input_schema}
    properties = cast("Mapping[str, Any]", tool.input_schema.get("properties", {}))
    required = cast("list[str]", tool.input_schema.get("required", []))
    return {name: sample(properties[name]) for name in required}


async def call_everything(registry: Registry, context: Mapping[str, Any]) -> None:
    calls = [
        (registry.by_name(ToolName(ALIAS, call["name"])), call["arguments"])
        for call in context.get("toolCalls", ())
    ] or [(tool, arguments_for(registry, tool)) for tool in registry.listed()]

    async def one(tool: Tool, arguments: Mapping[str, Any]) -> None:
        result = await registry.call(tool, arguments, lambda _: None)
        print(tool.name.name, result.kind, result.content)

    async with anyio.create_task_group() as tasks:
        for tool, arguments in calls:
            assert tool is not None
            tasks.start_soon(one, tool, arguments)


def login_of(context: Mapping[str, Any], folder: Path) -> Credentials | None:
    """The client that a scenario has registered, with its secret or its key.

    A person logs in where it wants one; without a client of the scenario it is a document.
    """
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    by_person = scenario.startswith("auth/") and "client-credentials" not in scenario
    if by_person:
        id, secret = context.get("client_id", DOCUMENT), context.get("client_secret")
        variable = "CLIENT_SECRET" if secret else None
        return Credentials(OAuthSettings(id, login=True, client_secret_env=variable), secret)
    if "client_id" not in context:
        return None
    key = None
    if "private_key_pem" in context:
        key = folder / "client.pem"
        key.write_text(context["private_key_pem"], encoding="utf-8")
    settings = OAuthSettings(context["client_id"], private_key_file=key)
    return Credentials(settings, context.get("client_secret"))


def visit(address: str) -> None:
    """Open an address as the browser of a person does, who agrees to everything."""
    with urlopen(address, timeout=TIMEOUT.call) as page:  # ruff: ignore[suspicious-url-open-usage] - of the suite
        page.read()


def attend_logins() -> None:
    """Let each login of a person have one, as in `aish login`: a run has none."""
    person = Person(
        lambda address, _: threading.Thread(target=visit, args=(address,), daemon=True).start(),
        TIMEOUT.call,
    )

    class Attended(PersonLogin):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **{**named, "person": person})

    person_login.PersonLogin = Attended  # type: ignore[misc]  # in the one process of a scenario


async def drive(url: str, version: str, context: Mapping[str, Any], folder: Path) -> str | None:
    """Connect and call; the reason why there was no connection."""
    protocol = cast("ProtocolChoice", version)
    entry = ServerEntry(alias=ALIAS, url=url, protocol=protocol, timeout=TIMEOUT)
    reaper = Reaper()
    async with open_registry(
        [ServerConnection(entry, login=login_of(context, folder))],
        reaper=reaper,
        logs=None,
        max_tool_name=64,
        notice=lambda *said: print(*said, file=sys.stderr),
        elicit=accept,
    ) as registry:
        await call_everything(registry, context)
        return registry.failure(ALIAS)


def main() -> None:
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "auto")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        attend_logins()
        failure = anyio.run(drive, sys.argv[1], version, context, Path(folder))
    if failure is not None:
        sys.exit(f"not connected: {failure}")


if __name__ == "__main__":
    main()
