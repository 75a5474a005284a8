"""Converts the records of a journal to the state of a resumed run, with conversations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from aish.agent.assemble import Assembled
from aish.agent.converse import Earlier
from aish.agent.restore import TURN_ADDED, RecordedTurns, Restorer, TurnsLostError
from aish.agent.runtime import UsedCall
from aish.agent.turn_json import SECRETS, ReadFile
from aish.core.events import Notice, Place
from aish.core.json import JsonObject, JsonValue, json_text, strict_json
from aish.core.messages import AssistantTurn, Finish, History, Served, Turn, Usage
from aish.core.phrases import counted
from aish.core.sources import NO_SOURCES, Sources, union
from aish.core.tools import ToolCall
from aish.engine.plan.plan import Plan
from aish.engine.records import StepRecord
from aish.engine.resume_state import NamedCalls, ResumeRefusedError, ResumeState, Unfinished
from aish.engine.steps.context import CALLS_REPEATED
from aish.engine.steps.prompt import step_to_continue
from aish.features.resume.plain_items import scan_journal
from aish.features.resume.rules import Rules
from aish.features.resume.scan import OpenAttempt, Scan, ScannedConversation, tags, within
from aish.features.resume.unknown_calls import check_calls
from aish.journal.reader import JournalReading
from aish.system.secrets.secrets import Secrets

_MASKED_TEXT = (
    "the conversation of this step contained a secret; the journal has only its name, and so has "
    "every continuation"
)


class StepConversations:
    """The conversation of each completed step, as far as recorded.

    `states` name the files with what each has of the files of `context.files`, `item` is the one
    that they belong to, if they are parts of one.
    """

    def __init__(
        self,
        talks: Mapping[str, ScannedConversation],
        states: Mapping[str, str],
        plan: Plan,
        read_file: ReadFile,
        item: str | None = None,
        *,
        follows: bool = False,
    ) -> None:
        self._item = item
        self._follows = follows
        self._sources = {step: talk.sources for step, talk in talks.items() if follows}
        self._recorded: dict[str, RecordedTurns | None] = {}
        for step, talk in talks.items():
            self._recorded[step] = talk.turns(read_file)
        self._states = states
        self._before = dict(_links(plan))
        self._read_file = read_file
        self._restore = partial(_restore_secrets, plan.secrets, _unset_secrets(plan))
        self.notices: list[Notice] = []

    def put_into(self, done: Mapping[str, StepRecord]) -> dict[str, StepRecord]:
        """The completed steps, with the conversation of each that an open step continues."""
        found = dict(done)
        wanted = {before for step, before in self._before.items() if step not in done}
        for step in wanted & found.keys():
            turns = self._of(step)
            history = None if turns is None else tuple(turns)
            # If the state of its files is lost, they are shown again.
            files = self._read(self._states.get(step))
            found[step] = replace(found[step], history=history, files=files)
        return found

    def conversation_of(self, unit: OpenAttempt) -> Unfinished:
        """The conversation of a step or an item that goes on within it, or its only call."""
        spent, talk, recorded = unit.spent, unit.talk, unit.turns
        if talk is None or recorded is None:
            assert unit.result is not None, "it goes on"
            return Unfinished((), Earlier(calls=(unit.result,)), 0, spent)
        before = None if recorded.anew else self._before.get(unit.step)
        begin = () if before is None else self._of(before) or ()
        sources = talk.sources if self._follows else NO_SOURCES
        restored = self._restore_turns(unit.step, unit.item, recorded.unfinished, begin, sources)
        turns = tuple(restored.turns)
        answer = None if recorded.answer is None else _last_answer(recorded.answer, turns)
        last: Any = talk.answers[-1].get("turn") if talk.answers else 0
        ended = tuple(unit.calls.results_by_turn())
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
            sources = self._sources.get(one, NO_SOURCES)
            turns = self._restore_turns(step, None, recorded.turns, turns, sources).turns
        return turns

    def _link(self, step: str) -> str | None:
        """The step whose turns come first; `None` if all turns were recorded again."""
        recorded = self._recorded.get(step)
        anew = recorded is not None and recorded.anew
        return None if anew else self._before.get(step)

    def _restore_turns(
        self,
        step: str,
        item: str | None,
        told: Sequence[JsonObject],
        begin: Sequence[Turn],
        sources: Sources,
    ) -> History:
        restorer = Restorer(self._read_file, begin, self._restore)
        for turn in told:
            restorer.take({"type": TURN_ADDED, "added": turn})
        place = Place(step, within(self._item, item))
        self.notices += [Notice(place, "warning", "media_lost", said) for said in restorer.lost]
        if tags([json_text(turn) for turn in told if not turn.get(SECRETS)]):
            self.notices.append(Notice(place, "warning", "resumed_masked", _MASKED_TEXT))
        turns = restorer.history.turns
        # Which turn had which is not recorded: all of them have all.
        whole = union((sources, *(turn.sources for turn in turns)))
        return History([replace(turn, sources=whole) for turn in turns] if whole else turns)


def _unset_secrets(plan: Plan) -> frozenset[str]:
    """The names under `secrets:` whose variables are not set."""
    own = frozenset(name for name in plan.pipeline.secrets if not plan.secrets.has(name))
    return own.union(*map(_unset_secrets, plan.inner.values()))


def _restore_secrets(secrets: Secrets, unset: frozenset[str], told: JsonValue) -> JsonValue:
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
    named = record.get("served")
    served = None if named is None else Served(named.get("model"), named.get("fingerprint"))
    finish = Finish(
        record["finish"], Usage(), record["finish"], model=record["model"], served=served
    )
    return Assembled(
        text=record["text"],
        calls=calls if added is None else added.calls,
        extras={} if added is None else added.extras,
        finish=finish,
        first_token=None,
        seconds=0.0,
    )


def _links(plan: Plan, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each step that continues another one, with the latter, by their ids in events."""
    for step in plan.steps:
        before = step_to_continue(step)
        if before is not None:
            yield prefix + step.id, prefix + before
    for id, inner in plan.inner.items():
        yield from _links(inner, f"{prefix}{id}/")


def read_resume_state(
    records: JournalReading | Iterable[JsonObject],
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
    scan = Scan(Rules(plan, run, retry_failed=retry_failed), read_file)
    if isinstance(records, JournalReading):
        scan_journal(records, scan)
    else:
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
        spent=replace(scan.spending.whole, seconds=scan.time.seconds),
        by_step=scan.spending.steps,
        denials=scan.denials,
        calls=scan.spending.calls,
        served=scan.spending.served.all,
        begun=scan.begun,
        last_seq=scan.last_seq,
        part_seq=scan.part_seq,
        batches=scan.batches.all,
        segments=scan.segments,
        notices=(*_notices(scan, run), *told, *notices),
        ended=_is_complete(scan),
        questions=scan.approvals.past,
        context_tag=scan.context_tag,
        repeated=named,
        given=scan.given.all,
    )


def _done(
    scan: Scan,
    plan: Plan,
    run: str,
    read_file: ReadFile,
    told: list[Notice],
    item: str | None = None,
) -> ResumeState:
    """The state of the run, or of an item that is a pipeline; adds notices to `told`."""
    conversations = StepConversations(
        scan.talks, scan.context_states, plan, read_file, item, follows=scan.rules.follows
    )
    unfinished: dict[tuple[str, str | None], Unfinished] = {}
    parts: dict[tuple[str, str], ResumeState] = {}
    made: dict[tuple[str, str | None], UsedCall] = {}
    for unit in scan.units_to_continue():
        call = unit.calls.first_made()
        if call is not None:
            made[unit.step, unit.item] = call
        if unit.parts is None:
            unfinished[unit.step, unit.item] = conversations.conversation_of(unit)
        elif unit.item is not None:
            inner = within(item, unit.item)
            parts[unit.step, unit.item] = _done(unit.parts, plan, run, read_file, told, inner)
    steps = conversations.put_into(_steps(scan))
    told += conversations.notices
    return ResumeState(run, steps, scan.items, unfinished=unfinished, parts=parts, made=made)


def _is_complete(scan: Scan) -> bool:
    """True if the run ended successfully, so that nothing is left to do."""
    finished: Any = scan.finished
    return finished is not None and finished["exit"]["code"] == 0


_ANEW = "start a new run, without `--resume`; nothing is lost"


def _steps(scan: Scan) -> dict[str, StepRecord]:
    """The completed steps; those with items include their completed items."""
    found = dict(scan.steps)
    for step, record in scan.steps.items():
        items = scan.items.get(step)
        if items is not None or scan.rules.has_items(step):
            kept = () if items is None else items.records()
            calls = tuple(call for item in kept for call in item.record.calls)
            found[step] = replace(record, items=kept, calls=calls)
    return found


def _notices(scan: Scan, run: str) -> Iterator[Notice]:
    done = [counted(len(scan.steps), "step")] if scan.steps else []
    items = sum(len(items) for items in scan.items.values())
    if items:
        failed = sum(one.failed for one in scan.items.values())
        done.append(counted(items, "item") + (f" ({failed:,} failed)" if failed else ""))
    what = " and ".join(done) or "nothing"
    verb = "is" if [len(scan.steps), items] in ([0, 0], [1, 0], [0, 1]) else "are"
    yield Notice(Place(), "info", "resumed", f"run {run} is resumed: {what} {verb} done")
    for id in sorted(scan.approvals.unsigned):
        if id in scan.approvals.asked_here:
            said = f"another program wrote the approval of question `{id}` into the journal"
            raise ResumeRefusedError(said, where=run, hint="start a new run, without `--resume`")
        said = f"question `{id}` was approved elsewhere or by an older version: it is asked again"
        yield Notice(Place(), "warning", "asked_again", said)
    for step, record in scan.steps.items():
        output = None if record.output is None else json_text(record.output)
        if tags((record.text, output)):
            yield Notice(Place(step), "warning", "resumed_masked", _MASKED)


_MASKED = (
    "the result of this step contained a secret; the journal has only its name, and so have "
    "later steps that read it"
)
