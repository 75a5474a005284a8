"""Conversations that steps of a resumed run go on with, out of its journal (B3)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from aish.agent.restore import HISTORY_REPLACED, history_of
from aish.agent.turn_json import ReadFile
from aish.core.events import Notice, Place
from aish.core.json import JsonObject
from aish.core.json_text import json_text
from aish.core.messages import Turn
from aish.engine.plan.plan import Plan
from aish.engine.records import StepRecord
from aish.engine.steps.prompt import continued
from aish.run.resuming.unknown import tags

_MASKED = (
    "a secret was in the conversation of this step; the journal has its name only, and so has what "
    "goes on with it"
)


class Conversations:
    """What each step has said and heard, as far as the journal tells; `turns` are its records."""

    def __init__(
        self, turns: Mapping[str, Sequence[JsonObject]], plan: Plan, read_file: ReadFile
    ) -> None:
        self._turns = turns
        self._before = dict(_links(plan))
        self._read_file = read_file
        self.notices: list[Notice] = []

    def put_into(self, done: Mapping[str, StepRecord]) -> dict[str, StepRecord]:
        """The steps that are done; with its conversation each that one goes on with which is not.

        Raises:
            UsageError: a record of the journal is no turn.
        """
        found = dict(done)
        wanted = {before for step, before in self._before.items() if step not in done}
        for step in wanted & found.keys():
            turns = self._of(step)
            found[step] = replace(found[step], history=None if turns is None else tuple(turns))
        return found

    def _of(self, step: str) -> Sequence[Turn] | None:
        """The whole conversation of a step; nothing where a part of it was not written down."""
        chain = [step]
        while (before := self._link(chain[-1])) is not None:
            chain.append(before)
        turns: Sequence[Turn] = ()
        for one in reversed(chain):
            records = self._turns.get(one)
            if not records:
                return None
            recalled = history_of(records, self._read_file, begin=turns)
            turns = recalled.history.turns
            self._tell(step, records, recalled.lost)
        return turns

    def _link(self, step: str) -> str | None:
        """The step that has to be asked first; none where all turns were told of anew."""
        records = self._turns.get(step, ())
        anew = any(record.get("type") == HISTORY_REPLACED for record in records)
        return None if anew else self._before.get(step)

    def _tell(self, step: str, records: Sequence[JsonObject], lost: Sequence[str]) -> None:
        place = Place(step)
        self.notices += [Notice(place, "warning", "media_lost", said) for said in lost]
        if tags([json_text(record) for record in records]):
            self.notices.append(Notice(place, "warning", "resumed_masked", _MASKED))


def _links(plan: Plan, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each step that goes on with another one, and that one, as events know them."""
    for step in plan.steps:
        before = continued(step)
        if before is not None:
            yield prefix + step.id, prefix + before
    for id, inner in plan.inner.items():
        yield from _links(inner, f"{prefix}{id}/")
