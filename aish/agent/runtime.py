"""Context of the tool loop, records of its calls, and sums of usage.

Unknown tokens and costs stay unknown in sums.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from aish.agent.result_limit import Spans, no_spans
from aish.config.model import LoopLimits, OnDenied
from aish.core.events import NOWHERE, Place, Verdict
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import (
    Asking,
    Clock,
    Emit,
    Every,
    Meter,
    Model,
    Park,
    Signal,
    Tools,
)
from aish.core.sources import NO_SOURCES, Sources
from aish.core.tools import Media, ResultKind
from aish.policy.gate import Gate
from aish.system.clock import call_every
from aish.system.schema.check import SchemaProblem

if TYPE_CHECKING:
    # Few runs load it.
    from aish.policy.flow import RunFlow

Keep = Callable[[str, bytes], str | None]
"""A suggested file name and content -> the path shown in the reply; `None`: not kept."""

Mask = Callable[[str], str]
"""A text without its secrets."""


class PausedError(Exception):
    """The run ends before a question has its answer, and is resumed after it."""


async def park_alone(signal: Signal) -> None:
    """Wait for the answer; nothing else runs meanwhile."""
    await signal.wait()


CheckArguments = Callable[[JsonObject, JsonValue], Awaitable[tuple[SchemaProblem, ...]]]


@frozen
class AgentRuntime:
    """Everything a tool loop needs beside its model; `gate` is the only way to a tool.

    `long_texts` is the cache of `agent.turn_recorder.RequestRecorder` for a run; with `None` sent
    messages are not recorded. `tells_cut_off`: also emit the end of a cancelled call; a session
    reports that itself. `mask` masks a text before it is truncated: a truncated secret would not be
    recognized later. `spans` finds the paths that have names in a cassette. `models` are those of
    the file by alias, which tools of packs may ask. `asking` says how calls that need an
    approval are handled, and `park` lets a step wait for it; `park_request` lets it wait for an
    answer of a model that comes after hours, if the run is to end meanwhile. `resumes_rounds`: an
    interrupted round is left incomplete, because a resumed run continues it. `unchecked` are
    notices about patterns that were given already. `flow` follows the sources of text, where a file
    of the run asks for it.
    """

    tools: Tools
    gate: Gate
    emit: Emit
    clock: Clock
    limits: LoopLimits
    on_denied: OnDenied
    keep: Keep
    check_arguments: CheckArguments
    meter: Meter | None = None
    every: Every = call_every
    long_texts: dict[str, str] | None = None
    tells_cut_off: bool = False
    mask: Mask = str
    spans: Spans = no_spans
    models: Mapping[str, Model] = field(default_factory=dict)
    asking: Asking = Asking()
    park: Park = park_alone
    park_request: Park | None = None
    resumes_rounds: bool = False
    unchecked: set[str] = field(default_factory=set)
    flow: "RunFlow | None" = None


@frozen
class UsedCall:
    """A call and its result.

    `content` is the reply as the model sees it. `verdict` is `None` and `rule` empty if the call
    failed before a decision. `media` is added to the turn beside `content`. `whole` is the text
    before truncation, `full` the file that contains it then. `denial` and `hint` are for the author
    of the rules, if the call was denied. `exit_code` is that of a command that has ended by itself.
    `repeatable`: it may be made again unasked, as a rule or the mark of its pack says so, or as it
    is known not to have begun.
    """

    tool: str
    arguments: JsonValue
    verdict: Verdict | None
    rule: str
    kind: ResultKind
    content: str
    structured: JsonValue = None
    seconds: float = 0.0
    media: tuple[Media, ...] = ()
    full: str | None = None
    whole: str = ""
    denial: str = ""
    hint: str | None = None
    exit_code: int | None = None
    repeatable: bool = True
    sources: Sources = NO_SOURCES
    place: Place = NOWHERE
