"""Converts the records of a journal to the state of a resumed run (B3), with conversations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from aish.agent.assemble import Assembled
from aish.agent.converse import Earlier
from aish.agent.restore import TURN_ADDED, RecordedTurns, Restorer, TurnsLostError
from aish.agent.runtime import UsedCall
from aish.agent.turn_json import SECRETS, ReadFile
from aish.config.model import Step
from aish.core.events import Notice, Place
from aish.core.json import JsonObject, JsonValue, json_text, strict_json
from aish.core.messages import AssistantTurn, Finish, History, Turn, Usage
from aish.core.phrases import counted
from aish.core.text import safe_utf8
from aish.core.tools import ToolCall
from aish.engine.execution.step import KINDS
from aish.engine.plan.order import steps_read
from aish.engine.plan.plan import Plan
from aish.engine.records import StepRecord
from aish.engine.resume_state import NamedCalls, ResumeRefusedError, ResumeState, Unfinished
from aish.engine.steps.context import CALLS_REPEATED
from aish.engine.steps.prompt import continued
from aish.features.resume.scan import Open, Rules, Scan, Talk, tags, within
from aish.features.resume.unknown_calls import RepeatableTools, check_calls
from aish.system.secrets.secrets import Secrets

_MASKED_TEXT = (
    "the conversation of this step contained a secret; the journal has only its name, and so has "
    "every continuation"
)


class Conversations:
    """The conversation of each completed step, as far as recorded.

    `states` name the files with what each has of the files of `context.files`, `item` is the one
    that they belong to, if they are parts of one.
    """

    def __init__(
        self,
        talks: Mapping[str, Talk],
        states: Mapping[str, str],
        plan: Plan,
        read_file: ReadFile,
        item: str | None = None,
    ) -> None:
        self._item = item
        self._recorded: dict[str, RecordedTurns | None] = {}
        for step, talk in talks.items():
            self._recorded[step] = talk.turns(read_file)
        self._states = states
        self._before = dict(_links(plan))
        self._read_file = read_file
        self._restore = partial(_restored, plan.secrets, _unset_secrets(plan))
        self.notices: list[Notice] = []

    def put_into(self, done: Mapping[str, StepRecord]) -> dict[str, StepRecord]:
        """The completed steps, with the conversation of each that an open step continues.

        Raises:
            UsageError: a record of the journal is not a turn.
        """
        found = dict(done)
        wanted = {before for step, before in self._before.items() if step not in done}
        for step in wanted & found.keys():
            turns = self._of(step)
            history = None if turns is None else tuple(turns)
            found[step] = replace(found[step], history=history, files=self._files_of(step))
        return found

    def unfinished(self, unit: Open) -> Unfinished:
        """The conversation of a step or an item that goes on within it (A10), or its only call.

        Raises:
            UsageError: a record of the journal is not a turn.
        """
        spent, talk, recorded = unit.spent.spent(0.0), unit.talk, unit.turns
        if talk is None or recorded is None:
            assert unit.result is not None, "it goes on"
            return Unfinished((), Earlier(calls=(unit.result,)), 0, spent)
        before = None if recorded.anew else self._before.get(unit.step)
        begin = () if before is None else self._of(before) or ()
        restored = self._restored(unit.step, unit.item, recorded.unfinished, begin)
        turns = tuple(restored.turns)
        answer = None if recorded.answer is None else _last_answer(recorded.answer, turns)
        last: Any = talk.answers[-1].get("turn") if talk.answers else 0
        ended = tuple(unit.calls.used_by_turn())
        over = len(talk.answers) - (answer is not None)
        earlier = Earlier(
            turns=len(talk.answers),
            rounds=sum(1 for one in talk.answers[:over] if one.get("calls")),
            calls=tuple(used for turn, _, used in ended if answer is None or turn != last),
            answer=answer,
            is_added=bool(turns) and isinstance(turns[-1], AssistantTurn),
            # One with an unknown outcome is made again, as `--retry-unknown` allows.
            ended={
                id: used
                for turn, id, used in ended
                if answer is not None and turn == last and used.kind != "unknown"
            },
            corrections=talk.corrections,
            attempt=talk.attempt,
        )
        turn = last - len(talk.answers)
        return Unfinished(turns, earlier, turn, spent, self._read(talk.files))

    def _files_of(self, step: str) -> JsonObject | None:
        """What the conversation has of its files; if that is lost, they are shown again."""
        return self._read(self._states.get(step))

    def _read(self, name: str | None) -> JsonObject | None:
        data = None if name is None else self._read_file(name)
        try:
            found = None if data is None else strict_json(data.decode())
        except ValueError:
            return None
        return found if isinstance(found, Mapping) else None

    def _of(self, step: str) -> Sequence[Turn] | None:
        """The whole conversation of a step; `None` if a part of it was not recorded."""
        chain = [step]
        while (before := self._link(chain[-1])) is not None:
            chain.append(before)
        turns: Sequence[Turn] = ()
        for one in reversed(chain):
            recorded = self._recorded.get(one)
            if recorded is None or not recorded.unfinished:
                return None
            try:
                recorded.end_round()
            except TurnsLostError:
                return None
            turns = self._restored(step, None, recorded.turns, turns).turns
        return turns

    def _link(self, step: str) -> str | None:
        """The step whose turns come first; `None` if all turns were recorded again."""
        recorded = self._recorded.get(step)
        anew = recorded is not None and recorded.anew
        return None if anew else self._before.get(step)

    def _restored(
        self, step: str, item: str | None, told: Sequence[JsonObject], begin: Sequence[Turn]
    ) -> History:
        restorer = Restorer(self._read_file, begin, self._restore)
        for turn in told:
            restorer.take({"type": TURN_ADDED, "added": turn})
        restored = restorer.so_far()
        place = Place(step, within(self._item, item))
        self.notices += [Notice(place, "warning", "media_lost", said) for said in restored.lost]
        if tags([json_text(turn) for turn in told if not turn.get(SECRETS)]):
            self.notices.append(Notice(place, "warning", "resumed_masked", _MASKED_TEXT))
        return restored.history


def _unset_secrets(plan: Plan) -> frozenset[str]:
    """The names under `secrets:` whose variables are not set."""
    own = frozenset(name for name in plan.pipeline.secrets if not plan.secrets.has(name))
    return own.union(*map(_unset_secrets, plan.inner.values()))


def _restored(secrets: Secrets, unset: frozenset[str], told: JsonValue) -> JsonValue:
    """A turn with its secrets; a reference in its place must not reach a model or a tool.

    Raises:
        ResumeRefusedError: the variable of one of them is not set any more.
    """
    found = secrets.restore_json(told)
    text = json_text(found) if unset else ""
    for name in sorted(unset):
        if f"<secret:{name}>" in text:
            said = f"the conversation so far has the secret `{name}` in it, which is not set now"
            raise ResumeRefusedError(said, hint=f"set `{name}` and resume again; nothing is lost")
    return found


def _last_answer(record: Any, turns: Sequence[Turn]) -> Assembled:
    """The last answer, whose calls have no replies yet, or whose end was not judged."""
    last = turns[-1] if turns else None
    added = last if isinstance(last, AssistantTurn) else None
    calls = tuple(ToolCall(one["id"], one["name"], one["arguments"]) for one in record["calls"])
    finish = Finish(record["finish"], Usage(), record["finish"], model=record["model"])
    return Assembled(
        text=record["text"],
        calls=calls if added is None else added.calls,
        extras={} if added is None else added.extras,
        finish=finish,
        first_token=None,
        seconds=0.0,
    )


def _links(plan: Plan, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each step that continues another one, and that one, by their ids in events."""
    for step in plan.steps:
        before = continued(step)
        if before is not None:
            yield prefix + step.id, prefix + before
    for id, inner in plan.inner.items():
        yield from _links(inner, f"{prefix}{id}/")


def read_resume_state(
    records: Iterable[JsonObject],
    plan: Plan,
    run: str,
    *,
    retry_failed: bool = False,
    retry_unknown: bool = False,
    notices: tuple[Notice, ...] = (),
    read_file: ReadFile = lambda _: None,
) -> ResumeState:
    """The completed parts of the run with these `records`, which are not run again.

    `notices` are emitted in any case; `read_file` reads files of the run's folder.

    Raises:
        JournalError: the journal is damaged.
        ResumeRefusedError: a call might be repeated without consent.
    """
    scan = Scan(_rules(plan, retry_failed=retry_failed), read_file)
    for record in records:
        scan.take(record)
    if scan.started is None:
        raise ResumeRefusedError("the run was killed before it started", where=run, hint=_ANEW)
    named = NamedCalls()
    if not _is_complete(scan):
        named = check_calls(scan, retry_failed=retry_failed, retry_unknown=retry_unknown)
    told: list[Notice] = []
    if named.calls:
        told.append(Notice(Place(), "warning", CALLS_REPEATED, named.message))
    state = _done(scan, plan, run, read_file, told)
    return replace(
        state,
        spent=scan.spending.spent(),
        by_step=scan.spending.by_step(),
        denials=scan.denials,
        calls=scan.spending.calls,
        begun=scan.begun,
        last_seq=scan.last_seq,
        part_seq=scan.part_seq,
        segments=scan.segments,
        notices=(*_notices(scan, run), *told, *notices),
        ended=_is_complete(scan),
        questions=scan.questions,
        context_tag=scan.context_tag,
        repeated=named,
    )


def _done(
    scan: Scan,
    plan: Plan,
    run: str,
    read_file: ReadFile,
    told: list[Notice],
    item: str | None = None,
) -> ResumeState:
    """What the whole run has done, or an item that is a pipeline; adds notices to `told`."""
    conversations = Conversations(scan.talks, scan.context_states, plan, read_file, item)
    unfinished: dict[tuple[str, str | None], Unfinished] = {}
    parts: dict[tuple[str, str], ResumeState] = {}
    made: dict[tuple[str, str | None], UsedCall] = {}
    for unit in scan.unfinished():
        call = unit.calls.first_made()
        if call is not None:
            made[unit.step, unit.item] = call
        if unit.parts is None:
            unfinished[unit.step, unit.item] = conversations.unfinished(unit)
        elif unit.item is not None:
            inner = within(item, unit.item)
            parts[unit.step, unit.item] = _done(unit.parts, plan, run, read_file, told, inner)
    steps = conversations.put_into(_steps(scan, _Plans(plan)))
    told += conversations.notices
    return ResumeState(run, steps, scan.items, unfinished=unfinished, parts=parts, made=made)


def _is_complete(scan: Scan) -> bool:
    """Whether the run ended successfully, so that nothing is left to do."""
    finished: Any = scan.finished
    return finished is not None and finished["exit"]["code"] == 0


_ANEW = "start a new run, without `--resume`; nothing is lost"


def _rules(plan: Plan, *, retry_failed: bool) -> Rules:
    found = _Plans(plan)
    return Rules(
        repeatable=found.repeatable,
        kind=found.kind,
        needed=found.needed,
        tolerant=found.tolerant,
        retry_failed=retry_failed,
        mask=lambda key: safe_utf8(plan.secrets.mask(key)),
    )


class _Plans:
    """Properties of a step in the plan, or in the plan of its sub-pipeline."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._repeatable: dict[str, RepeatableTools] = {}
        self._needed: dict[str, bool] = {}
        self._steps: dict[str, Step | None] = {}

    def repeatable(self, step: str) -> RepeatableTools:
        """The tools that the step may call again."""
        above = step.rpartition("/")[0]
        if above not in self._repeatable:
            self._repeatable[above] = RepeatableTools(self._of(step))
        return self._repeatable[above]

    def needed(self, step: str) -> bool:
        """Whether anything reads the results of the step's items."""
        if step not in self._needed:
            read = steps_read(self._of(step).pipeline)
            self._needed[step] = step.rpartition("/")[2] in read
        return self._needed[step]

    def kind(self, step: str) -> str | None:
        """The kind of the step, if there is one."""
        found = self._step(step)
        return None if found is None else KINDS[type(found)]

    def tolerant(self, step: str) -> bool:
        """Whether a denial does not fail the step."""
        found = self._step(step)
        return found is not None and found.on_denied == "continue"

    def has_items(self, step: str) -> bool:
        """Whether the step runs over items, however many there are."""
        found = self._step(step)
        return found is not None and found.flow.foreach is not None

    def _step(self, step: str) -> Step | None:
        if step not in self._steps:
            id = step.rpartition("/")[2]
            found = (one for one in self._of(step).steps if one.id == id)
            self._steps[step] = next(found, None)
        return self._steps[step]

    def _of(self, step: str) -> Plan:
        plan = self._plan
        for id in step.split("/")[:-1]:
            plan = plan.inner.get(id, plan)
        return plan


def _steps(scan: Scan, plans: _Plans) -> dict[str, StepRecord]:
    """The completed steps; those with items include their completed items."""
    found = dict(scan.steps)
    for step, record in scan.steps.items():
        items = scan.items.get(step)
        if items is not None or plans.has_items(step):
            kept = () if items is None else items.records()
            calls = tuple(call for item in kept for call in item.record.calls)
            found[step] = replace(record, items=kept, calls=calls)
    return found


def _notices(scan: Scan, run: str) -> Iterator[Notice]:
    done = [counted(len(scan.steps), "step")] if scan.steps else []
    items = sum(len(items) for items in scan.items.values())
    done += [counted(items, "item")] if items else []
    what = " and ".join(done) or "nothing"
    verb = "is" if [len(scan.steps), items] in ([0, 0], [1, 0], [0, 1]) else "are"
    yield Notice(Place(), "info", "resumed", f"run {run} is resumed: {what} {verb} done")
    for step, record in scan.steps.items():
        if tags((record.text, _as_text(record))):
            yield Notice(Place(step), "warning", "resumed_masked", _MASKED)


_MASKED = (
    "the result of this step contained a secret; the journal has only its name, and so have "
    "later steps that read it"
)


def _as_text(record: StepRecord) -> str | None:
    return None if record.output is None else json_text(record.output)
