"""What the loop is given by its caller, what it says of each call it used, and sums of usage.

Tokens and money are added up so that unknown stays unknown (quirk 34, B10).
"""

from collections.abc import Awaitable, Callable

from aish.agent.result_limit import Spans, no_spans
from aish.config.model import LoopLimits, OnDenied
from aish.core.events import Verdict
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Clock, Emit, Every, Meter, Tools
from aish.core.tools import Media, ResultKind
from aish.policy.gate import Gate
from aish.system.clock import call_every
from aish.system.schema.check import SchemaProblem

Keep = Callable[[str, bytes], str | None]
"""A suggested file name and content -> the path shown in the reply; `None`: not kept."""

Mask = Callable[[str], str]
"""A text without its secrets."""

CheckArguments = Callable[[JsonObject, JsonValue], Awaitable[tuple[SchemaProblem, ...]]]


@frozen
class AgentRuntime:
    """Everything a tool loop needs beside its model; `gate` is the one way to a tool (P10).

    `long_texts` is what `agent.turn_recorder.RequestTeller` remembers of a run; with `None` nobody
    is told of the messages that are sent. `tells_cut_off`: the end of a call that is cancelled is
    told too; a session says that in its own words. `mask` takes the secrets out of a text before it
    is cut: of a secret that is cut in two, no half would be found later. `spans` finds the paths
    that a cassette has names for.
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


@frozen
class UsedCall:
    """One call and what came of it.

    `content` is the reply as the model sees it. `verdict` is `None` and `rule` empty where no
    decision was made, because the call never got that far. `media` is what goes into the turn
    beside `content`. `whole` is the text before it was cut, `full` the file that has it then.
    `hint` is for who wrote the rules, where no rule approves the call.
    """

    tool: str
    arguments: JsonValue
    verdict: Verdict | None
    rule: str
    kind: ResultKind
    content: str
    structured: JsonValue
    seconds: float
    media: tuple[Media, ...] = ()
    full: str | None = None
    whole: str = ""
    hint: str | None = None
