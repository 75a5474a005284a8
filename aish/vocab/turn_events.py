"""Events of a conversation as a whole: its turns, and who answers them (design 11).

What is said piece by piece, and who asks, is in `events`, where the union of all events is.
"""

from typing import Literal

from aish.vocab.deltas import Usage
from aish.vocab.event_parts import MessagePurpose, Place
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject


@frozen
class TurnAdded:
    """A turn now stands at the end of a conversation.

    `turn` is what `loop.turn_json` makes of it; in JSON it is `added`. Where the `purpose` is that
    the conversation can be continued, every turn of it is told, with all it takes to say the same
    to a model again. Where it is that of requests, a turn is told that no other event has whole:
    answers and results of tools are in `TurnFinished` and `ToolFinished`.
    """

    place: Place
    turn: JsonObject
    purpose: MessagePurpose = "conversation"


@frozen
class HistoryReplaced:
    """`turns` stand in the place of all turns there were, and `reason` says why (L19).

    Where the `purpose` is to show what was sent, `{"at": 3}` is the turn that stood at this place
    before, counted from 0: what was sent already is not told again.
    """

    place: Place
    turns: tuple[JsonObject, ...]
    reason: str
    purpose: MessagePurpose = "conversation"


@frozen
class QuestionAsked:
    """A person asks: the `text` as it was typed, and the names of what is attached to it.

    `tools` are the names that the model is shown, as `alias__tool`.
    """

    place: Place
    text: str
    attached: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


@frozen
class RuleAdded:
    """A person has added a rule for this session; one that denies holds when it is gone on with."""

    place: Place
    list: Literal["auto_approve", "deny"]
    tool: str


@frozen
class ServerConnected:
    """A person has connected a server: at a `url`, or as the child process of a `command`."""

    place: Place
    alias: str
    url: str | None = None
    command: tuple[str, ...] = ()
    cwd: str | None = None
    auth_env: str | None = None


@frozen
class ModelChosen:
    """The model of this alias is asked from now on, in a session."""

    place: Place
    model: str


@frozen
class OutputWaits:
    """What a local command has printed waits to go out with the next question (L14).

    Where it waits `again`, it has gone out with a question that was taken back: it is now before
    all other output that waits.
    """

    place: Place
    text: str
    again: bool = False


@frozen
class WaitingAttachment:
    """`turn` is what `loop.turn_json` makes of a user turn with nothing else in it."""

    name: str
    turn: JsonObject


@frozen
class AttachmentsWait:
    """All that is attached now, and goes out with the next question; what was, before, is not."""

    place: Place
    attachments: tuple[WaitingAttachment, ...]


@frozen
class PipelineSpent:
    """A pipeline that was run in a session has used this, which counts for the session (B8).

    `folder` is that of its run. `cost_usd` of `None` is unknown.
    """

    place: Place
    folder: str | None
    turns: int
    tool_calls: int
    usage: Usage
    cost_usd: float | None


@frozen
class Fallback:
    """`from` and `to` in JSON."""

    place: Place
    source: str
    target: str
    reason: str


JournalOnly = (
    QuestionAsked
    | TurnAdded
    | HistoryReplaced
    | ModelChosen
    | OutputWaits
    | AttachmentsWait
    | RuleAdded
    | ServerConnected
    | PipelineSpent
)
"""What a conversation is gone on with from; what a person reads says the same in other events."""

OfConversation = JournalOnly | Fallback
