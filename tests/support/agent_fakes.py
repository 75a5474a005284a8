"""In-memory seams for tests of the loop: a model, tools, a person, a clock, and a run of them."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio.lowlevel

from aish.agent.runtime import AgentRuntime
from aish.config.model import LoopLimits, OnDenied
from aish.core.events import Event
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import (
    AssistantTurn,
    Delta,
    Finish,
    FinishReason,
    History,
    SystemTurn,
    TextPiece,
    ToolTurn,
    Turn,
    Usage,
    UserTurn,
)
from aish.core.protocols import Answer as Said
from aish.core.protocols import ModelRequest, Progress, Question, Sampler
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import NO_MEDIA, MediaKinds, Tool, ToolCall, ToolName, ToolResult
from aish.policy.gate import Gate
from aish.policy.rules import compile_policy
from aish.system.schema.check import SchemaProblem, check

Answer = Sequence[Sequence[Delta] | Exception]
Handler = Callable[[JsonObject], Awaitable[ToolResult]]


def says(
    text: str = "", reason: FinishReason = "stop", *, usage: Usage | None = None
) -> list[Sequence[Delta] | Exception]:
    """An answer without calls."""
    pieces = [TextPiece(text)] if text else []
    return [[*pieces, Finish(reason, usage or Usage(1, 1))]]


def wants(name: str, arguments: str = "{}", id: str = "") -> ToolCall:
    return ToolCall(id, name, arguments)


def asks(*calls: ToolCall, text: str = "") -> list[Sequence[Delta] | Exception]:
    """An answer with calls."""
    pieces = [TextPiece(text)] if text else []
    return [[*pieces, *calls, Finish("tool_calls", Usage(1, 1))]]


@dataclass
class Talker:
    """A model that answers from a script, then says `done`; an exception in it is raised."""

    script: list[Answer]
    alias: str = "twin"
    enforces_schema: bool = False
    schema_with_tools: bool = True
    nulls_for_absent: bool = False
    media_kinds: MediaKinds = NO_MEDIA
    requests: list[ModelRequest] = field(default_factory=list)
    seen: list[tuple[Turn, ...]] = field(default_factory=list)
    closed: int = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Delta]]:
        answer = self.script[len(self.requests)] if len(self.requests) < len(self.script) else None
        self.requests.append(request)
        self.seen.append(tuple(request.history.turns))
        try:
            for batch in answer if answer is not None else says("done"):
                await anyio.lowlevel.checkpoint()
                if isinstance(batch, Exception):
                    raise batch
                yield batch
        finally:
            self.closed += 1


def tool(
    name: str, schema: JsonObject | None = None, *, server: str = "box", parallel: bool = False
) -> Tool:
    return Tool(
        ToolName(server, name),
        f"{server}__{name}",
        "",
        schema or {"type": "object"},
        parallel=parallel,
    )


@dataclass
class Box:
    """Tools that are functions; what was called stays in `called`."""

    tools: tuple[Tool, ...]
    handlers: dict[str, Handler] = field(default_factory=dict)
    called: list[tuple[str, JsonObject]] = field(default_factory=list)
    reports: tuple[Progress, ...] = ()
    samples: list[JsonObject] = field(default_factory=list)
    asks_model: JsonObject | None = None
    report_late: Callable[[Progress], None] = print

    def listed(self) -> tuple[Tool, ...]:
        return self.tools

    def by_wire_name(self, wire: str) -> Tool | None:
        return next((one for one in self.tools if one.wire == wire), None)

    def by_name(self, name: ToolName) -> Tool | None:
        return next((one for one in self.tools if one.name == name), None)

    async def call(
        self,
        tool: Tool,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: Sampler | None = None,
    ) -> ToolResult:
        self.called.append((tool.name.name, arguments))
        self.report_late = on_progress
        for report in self.reports:
            on_progress(report)
        if self.asks_model is not None and sample is not None:
            self.samples.append(await sample.sample(self.asks_model))
        await anyio.lowlevel.checkpoint()
        handler = self.handlers.get(tool.name.name)
        if handler is None:
            return ToolResult("ok", f"{tool.name.name} done")
        return await handler(arguments)


def gives(result: ToolResult) -> Handler:
    async def handler(arguments: JsonObject) -> ToolResult:
        await anyio.lowlevel.checkpoint()
        return result

    return handler


@dataclass
class Person:
    answer: bool = False
    attended: bool = False
    questions: list[Question] = field(default_factory=list)

    async def ask(self, question: Question) -> Said:
        self.questions.append(question)
        await anyio.lowlevel.checkpoint()
        return "yes" if self.answer else "no"


@dataclass
class Ticks:
    """A clock that goes on by a second whenever it is asked."""

    time: float = 0.0

    def now(self) -> float:
        return self.monotonic()

    def monotonic(self) -> float:
        self.time += 1.0
        return self.time


async def check_here(schema: JsonObject, value: JsonValue) -> tuple[SchemaProblem, ...]:
    await anyio.lowlevel.checkpoint()
    return check(schema, value)


def rules(*globs: str) -> tuple[RuleEntry, ...]:
    return tuple(RuleEntry(glob) for glob in globs)


@dataclass
class Kit:
    """An `Equipment` over twins; all of `events` and `kept` can be looked at afterwards."""

    box: Box
    auto: tuple[str, ...] = ("*__*",)
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    parallel: tuple[str, ...] = ()
    idempotent: tuple[str, ...] = ()
    person: Person = field(default_factory=Person)
    limits: LoopLimits = field(default_factory=LoopLimits)
    on_denied: OnDenied = "continue"
    ephemeral: bool = False
    disk: OSError | None = None
    events: list[Event] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)

    def runtime(self) -> AgentRuntime:
        lists = RuleLists(
            rules(*self.auto),
            rules(*self.ask),
            rules(*self.deny),
            rules(*self.parallel),
            rules(*self.idempotent),
        )
        return AgentRuntime(
            tools=self.box,
            gate=Gate(compile_policy(lists), self.person, "run-1"),
            emit=self.events.append,
            clock=Ticks(),
            limits=self.limits,
            on_denied=self.on_denied,
            keep=self.keep,
            check_arguments=check_here,
        )

    def keep(self, name: str, data: bytes) -> str | None:
        if self.disk is not None:
            raise self.disk
        if self.ephemeral:
            return None
        assert name not in self.kept
        self.kept[name] = data
        return f"files/{name}"

    def events_of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def asked(text: str = "go") -> History:
    return History([UserTurn(text)])


def replies(history: History) -> list[str]:
    return [turn.content for turn in history.turns if isinstance(turn, ToolTurn)]


def assert_legal(turns: Sequence[Turn]) -> None:
    """The rules of L12, written a second time and without looking at the code under test."""
    waiting: list[str] = []
    seen: set[str] = set()
    before: Turn | None = None
    for place, turn in enumerate(turns):
        if isinstance(turn, ToolTurn):
            assert turn.call_id in waiting
            waiting.remove(turn.call_id)
            assert turn.content.strip()
            turn.content.encode()
            before = turn
            continue
        assert not waiting
        if isinstance(turn, SystemTurn):
            assert place == 0
        if isinstance(turn, AssistantTurn):
            assert isinstance(before, UserTurn | ToolTurn)
            assert turn.text or turn.calls
            turn.text.encode()
            for call in turn.calls:
                assert call.id
                assert call.id not in seen
                seen.add(call.id)
                waiting.append(call.id)
                assert isinstance(json.loads(call.arguments, parse_constant=_never), dict)
                call.arguments.encode()
                assert call.name
                assert set(call.name) <= _NAME_CHARACTERS
                assert len(call.name) <= 64
        before = turn
    assert not waiting


def _never(constant: str) -> None:
    raise AssertionError(f"{constant} in the history")


_NAME_CHARACTERS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
