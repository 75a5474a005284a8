"""What events are made of: a place, a status, a failure, an exit (design 11)."""

from typing import Literal

from aish.vocab.frozen import frozen

StepStatus = Literal["ok", "failed", "skipped", "denied", "budget"]
StepKind = Literal["prompt", "call", "run", "pipeline"]
Verdict = Literal["auto", "ask-yes", "ask-no", "deny", "staged"]
Level = Literal["info", "warning", "error"]
AnnotationLevel = Literal["error", "warning", "notice"]
TurnPurpose = Literal["answer", "summary", "sampling", "judge"]
"""What a model is asked for: the step's own turn, old rounds in short (L19), a server's request
(M11), or a verdict on the step's result (F12)."""
MessagePurpose = Literal["conversation"] | TurnPurpose
"""What messages are written down for: so that a conversation can be continued with all of its
turns, or to show what was sent with requests of one purpose."""


@frozen
class Place:
    """Where in the run something happened; `None` where it does not apply."""

    step: str | None = None
    item: str | None = None
    turn: int | None = None
    call: str | None = None


NOWHERE = Place()


@frozen
class Failure:
    """What went wrong: a stable code, a sentence, and what to do next."""

    code: str
    message: str
    hint: str | None = None


@frozen
class Asked:
    """A tool call in `turn.finished`: what the model asked for."""

    id: str
    name: str
    arguments: str


@frozen
class Exit:
    """How the process ends (design 1.3)."""

    code: int
    name: str
    retryable: bool
    reason: str
    hint: str | None = None
