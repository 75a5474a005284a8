"""What a resumed run takes over from the run before; the scheduler knows nothing else (B3)."""

from collections.abc import Mapping
from dataclasses import field

from aish.core.errors import UsageError
from aish.core.events import Notice
from aish.core.frozen import frozen
from aish.run.records import StepRecord
from aish.run.resuming.items import DoneItems


class ResumeRefusedError(UsageError):
    """A run that is not gone on with: it says what is different, or what is not known."""

    code = "resume_refused"


@frozen
class SpentBefore:
    """What was used up: it counts for limits and in the totals of the run (B8).

    `turns` counts answers. Tokens are those that were told of; `cost_usd` is `None` where one
    answer's cost is unknown, `known_usd` what is known of it.
    """

    turns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = 0.0
    tool_calls: int = 0
    seconds: float = 0.0
    known_usd: float = 0.0


@frozen
class Carried:
    """The run that is gone on with.

    `steps` are those that finished well, by the id that events know them by (`outer/inner` in a
    sub-pipeline); a `foreach` step is there if all of its items are done and none failed.
    `items` are what is done of every `foreach` step, whether the step is finished or not.
    `spent` is all that was used, also on what is run again; `by_step` the same for each step.
    `last_seq` numbers the last record of the journal, `part_seq` the first one of its last part,
    `begun` the first one of each step in `steps`; `segments` counts the parts.
    `notices` are to be emitted right after `run.started`. `ended`: the run came to a good end, and
    nothing is left to do.
    """

    run: str
    steps: Mapping[str, StepRecord] = field(default_factory=dict)
    items: Mapping[str, DoneItems] = field(default_factory=dict)
    spent: SpentBefore = SpentBefore()
    by_step: Mapping[str, SpentBefore] = field(default_factory=dict)
    denials: tuple[str, ...] = ()
    begun: Mapping[str, int] = field(default_factory=dict)
    last_seq: int = 0
    part_seq: int = 0
    segments: int = 0
    notices: tuple[Notice, ...] = ()
    ended: bool = False
