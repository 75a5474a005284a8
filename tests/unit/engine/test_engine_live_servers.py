"""The servers of a session behind the toolbox of a run."""

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from mcp_scenes import STDIO_SERVER, play

from aish.config.model import ServerEntry
from aish.core.events import Event, Notice, ServerInfo
from aish.core.tools import ToolName
from aish.engine.environment import RunEnvironment
from aish.engine.plan.credentials import ResolvedServer
from aish.engine.plan.lock import pins_of_file
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, load_checked, make_plan
from aish.engine.resources.resources import Toolbox, open_toolbox
from aish.engine.resources.servers import LiveServers, open_live_servers
from aish.engine.run_folder import RunFolder
from aish.mcp.client.registry import Registry
from aish.system.clock import SystemClock
from aish.system.process.reaper import Reaper
from aish.terminal.unattended import Unattended

KID = json.dumps([sys.executable, str(STDIO_SERVER), "--offers"])


@dataclass
class Session:
    """A toolbox over servers that come and go, and what was heard of it."""

    box: Toolbox
    live: LiveServers
    heard: list[ServerInfo] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def begin(self) -> None:
        """Begin with the servers of the plan."""
        plan = self.live.plan
        self.live.dynamic_registry.begin([self.live.connection(server) for server in plan.servers])


def plan_of(tmp_path: Path, servers: str) -> Plan:
    path = tmp_path / "p.yaml"
    model = "models: {m: {base_url: 'http://nobody.test/v1', model: m}}"
    path.write_text(f"aish: 1\n{model}\nmcp: {{servers: {servers}}}\nprompt: Hello\n", "utf-8")
    return make_plan(load_checked(path, ()), RunOptions(environ={}))


@asynccontextmanager
async def session(plan: Plan, tmp_path: Path) -> AsyncGenerator[Session]:
    events: list[Event] = []
    heard: list[ServerInfo] = []
    opened: list[LiveServers] = []
    folder = RunFolder("session", tmp_path / "folder")
    environment = RunEnvironment(events.append, Unattended(), SystemClock(), folder, {})

    @asynccontextmanager
    async def servers(
        plan: Plan, environment: RunEnvironment, reaper: Reaper
    ) -> AsyncGenerator[Registry]:
        async with open_live_servers(plan, environment, reaper, None, heard.append) as live:
            opened.append(live)
            yield live.dynamic_registry.registry

    async with open_toolbox(plan, environment, servers=servers) as box:
        yield Session(box, opened[0], heard, events)


def command(alias: str, *argv: str) -> ResolvedServer:
    entry = ServerEntry(alias=alias, command=(sys.executable, str(STDIO_SERVER), *argv))
    return ResolvedServer(entry, None, {})


def test_the_tools_of_a_session_follow_its_servers(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, f"{{kid: {{command: {KID}}}, repo: {{pack: fs, root: .}}}}")

    async def scene() -> None:
        async with session(plan, tmp_path) as s:
            assert s.box.servers == ()
            assert s.box.tools.listed() == ()
            s.begin()
            await s.live.dynamic_registry.wait_until_settled()
            assert sorted(info.alias for info in s.heard) == ["kid", "repo"]
            servers = {tool.name.server for tool in s.box.tools.listed()}
            assert servers == {"kid", "repo"}
            await s.live.dynamic_registry.connect(s.live.connection(command("more")))
            assert s.box.tools.by_name(ToolName("more", "echo")) is not None
            await s.live.dynamic_registry.disconnect("kid")
            assert s.box.tools.by_wire_name("kid__echo") is None

    play(scene)


@pytest.mark.requirement("M12")
def test_resources_and_prompts_are_reached_through_the_tools(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, f"{{kid: {{command: {KID}}}}}")

    async def scene() -> None:
        async with session(plan, tmp_path) as s:
            tools = s.box.tools.servers
            assert tools is not None
            assert (await tools.resources(), await tools.prompts()) == ((), ())
            s.begin()
            assert len(await tools.resources()) == 4
            assert [one.name for one in await tools.prompts()] == ["review", "plain"]
            (part,) = await tools.read_resource("kid", "docs://page/3")
            assert part.text == "page 3"
            (message,) = await tools.get_prompt("kid", "plain", {})
            assert message.text == "Say hello"

    play(scene)


def test_a_lock_lets_a_server_through_that_a_person_connects(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "{}")
    plan = replace(plan, lock=pins_of_file(plan.pipeline, plan.secrets), lock_mode="enforce")

    async def scene() -> None:
        async with session(plan, tmp_path) as s:
            await s.live.dynamic_registry.connect(s.live.connection(command("more")))
            assert len(s.box.tools.listed()) == 8
            assert s.box.tools.denial_of(s.box.tools.listed()[0]) is None
            assert [
                one for one in s.events if isinstance(one, Notice) and one.level == "error"
            ] == []

    play(scene)


def test_what_a_child_says_on_stderr_is_kept_in_the_folder(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "{}")

    async def scene() -> Any:
        async with session(plan, tmp_path) as s:
            await s.live.dynamic_registry.connect(
                s.live.connection(command("more", "--stderr", "3"))
            )

    play(scene)
    log = tmp_path / "folder" / "servers" / "more.stderr.log"
    assert log.read_text("utf-8").startswith("stderr line 0\n")
