"""Local commands of a session over real processes: a gate, a person from a script, events."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import anyio
from agent_fakes import Person, Ticks, check_here

from aish.agent.conversation import Buffer
from aish.agent.runtime import AgentRuntime
from aish.config.model import PLATFORM_SHELL, LoopLimits
from aish.core.events import EVENT_TYPES, Event, ToolDecided, ToolOutput
from aish.core.protocols import Meter
from aish.core.rules import RuleEntry, RuleLists
from aish.engine.environment import Recorder
from aish.engine.resources.toolbox import AllTools, LocalCommands
from aish.policy.gate import Gate
from aish.policy.rules import compile_policy
from aish.shell.local.approval import CommandAsking, Reaction, RepeatingApprover
from aish.shell.local.shell import LocalShell
from aish.system.process.reaper import Reaper

T = TypeVar("T")
ENVIRON = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}


@dataclass
class ScriptedPerson(CommandAsking):
    """A person who answers from a script: an edit is the word and the new text."""

    script: list[Reaction] = field(default_factory=list)
    edits: list[str | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    edited: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda _: None

    async def ask(self, command: str, answered: Callable[[], str | None]) -> Reaction:
        del answered
        await anyio.lowlevel.checkpoint()
        self.before(command)
        self.asked.append(command)
        return self.script.pop(0)

    async def edit(self, command: str) -> str | None:
        await anyio.lowlevel.checkpoint()
        self.edited.append(command)
        return self.edits.pop(0)


@dataclass
class Scene:
    """What `shell()` is made of; `events` and `waiting()` are looked at afterwards."""

    cwd: Path
    auto: tuple[RuleEntry, ...] = ()
    ask: tuple[RuleEntry, ...] = ()
    deny: tuple[RuleEntry, ...] = ()
    scripted_person: ScriptedPerson | None = None
    person: Person = field(default_factory=Person)
    limit: int = 32 * 1024
    environment: Mapping[str, str] = field(default_factory=lambda: dict(ENVIRON))
    prefix: tuple[str, ...] = PLATFORM_SHELL
    recorder: Recorder | None = None
    meter: Meter | None = None
    cmd_lines: bool = True
    events: list[Event] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)
    buffer: Buffer = field(default_factory=Buffer)
    on_event: Callable[[Event], None] = lambda _: None

    def run(self, play: Callable[[LocalShell], Awaitable[T]]) -> T:
        """Play a scene within half a minute; nothing is left running after it."""

        async def scene() -> T:
            reaper = Reaper()
            try:
                with anyio.fail_after(60):
                    return await play(self.shell(reaper))
            finally:
                reaper.close()

        return anyio.run(scene)

    def shell(self, reaper: Reaper) -> LocalShell:
        said = RepeatingApprover(self.person)
        rules = RuleLists(auto_approve=self.auto, ask=self.ask, deny=self.deny)
        commands = LocalCommands(self.cwd, {}, reaper, self.recorder, shell=self.prefix)
        runtime = AgentRuntime(
            tools=AllTools(None, commands),
            gate=Gate(compile_policy(rules), said, "run-1"),
            emit=self._emit,
            clock=Ticks(),
            limits=replace(LoopLimits(), result_limit=self.limit),
            on_denied="continue",
            keep=self._keep,
            check_arguments=check_here,
            meter=self.meter,
        )
        return LocalShell(
            runtime,
            commands,
            said,
            self.buffer,
            environment=lambda: self.environment,
            asking=self.scripted_person,
            cmd_lines=self.cmd_lines,
        )

    def types(self) -> list[str]:
        """The types of all events, output of one stream as one."""
        found: list[str] = []
        for event in self.events:
            kind = EVENT_TYPES[type(event)]
            if isinstance(event, ToolOutput):
                kind = f"{kind} {event.stream}"
            if not found or found[-1] != kind:
                found.append(kind)
        return found

    def output(self, stream: str = "stdout") -> str:
        """What was told of a stream while it came."""
        found = (event for event in self.events_of(ToolOutput) if event.stream == stream)
        return "".join(event.text for event in found)

    def decisions(self) -> list[tuple[str, str]]:
        return [(event.verdict, event.rule) for event in self.events_of(ToolDecided)]

    def events_of(self, kind: type[T]) -> Sequence[T]:
        return [event for event in self.events if isinstance(event, kind)]

    def waiting(self) -> str:
        """What goes out with the next question."""
        return self.buffer.user_turn("").text

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)

    def _keep(self, name: str, data: bytes) -> str:
        self.kept[name] = data
        return f"files/{name}"


def words(line: str) -> RuleEntry:
    """A rule of `shell.auto_approve`."""
    return RuleEntry("shell__run", command=tuple(line.split()), path="shell.auto_approve[0]")
