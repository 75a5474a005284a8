"""Runs the exported pipeline once on the recording; what it uses becomes its cassette."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import anyio

from aish.cassettes.format.edits import apply_to_response, text_of
from aish.cassettes.format.interaction import (
    Cassette,
    CassetteMissError,
    Interaction,
    RecordingMetadata,
    Request,
    Response,
    with_numbers,
)
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.inspect.conversation import chat_request, messages_of
from aish.cassettes.record.recorder import KINDS, Kind, RecorderRules
from aish.cassettes.replay.matching import Matching
from aish.config.model import Pipeline
from aish.core.events import Event, Exit, Stamped
from aish.core.frozen import frozen
from aish.core.json import canonical
from aish.engine.environment import RunEnvironment
from aish.engine.execution.run import execute
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import load_checked, make_plan
from aish.engine.run_folder import RunFolder
from aish.features.recording.session import CassetteChoice, CassetteSession, RunRecorder
from aish.features.suggest.calls import calls_of_run
from aish.journal.history import CallRecord, Ended, RunHistory, Unit
from aish.policy.decide import Ruling, decide
from aish.policy.rules import compile_policy
from aish.policy.suggest import Made, stand_in
from aish.shell.export.match_recordings import Matched
from aish.shell.export.pipeline import NotExportedError, PipelineDraft
from aish.shell.export.session_log import SessionLog
from aish.shell.session import ShellSession
from aish.system.secrets.secrets import Secrets
from aish.terminal.unattended import Unattended


class Rehearsal(RunRecorder):
    """Replays model answers in their order, and everything else by its request."""

    def __init__(
        self,
        matched: Matched,
        head: RecordingMetadata,
        choice: CassetteChoice,
        places: PathPlaceholders,
        secrets: Secrets,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(
            RecorderRules(dict.fromkeys(KINDS, "replay")),
            matched.others,
            Matching(places=places),
            places=places,
            secrets=secrets,
            monotonic=monotonic,
        )
        self.session = CassetteSession(choice, Cassette(head, matched.others))
        self.head = head
        self._used: list[Interaction] = []
        self._numbers: dict[int, int] = {}
        self._asked: list[Request] = []
        self._others: Sequence[Interaction] = matched.others
        self._answers = deque(matched.answers)

    @property
    def offline(self) -> bool:
        """The network is not blocked: the session's open servers keep running meanwhile."""
        return False

    @property
    def used(self) -> tuple[Interaction, ...]:
        return tuple(with_numbers(interaction, self._numbers) for interaction in self._used)

    @property
    def left(self) -> int:
        return len(self._answers)

    def sent_as_last(self, number: int, text: str) -> bool:
        """Return true if request `number`, counted from 0, had `text` as its last message."""
        body = chat_request(self._asked[number])
        last = messages_of(body)[-1:] if body else ()
        text_masked = self._secrets.mask(text)
        return any(self._secrets.mask(message.text) == text_masked for message in last)

    def recorded(self, kind: Kind, request: Request, *, fresh: bool = False) -> Response | None:
        """The next answer, or what was recorded for this request.

        Raises:
            CassetteMissError: there is no such recording.
        """
        if kind != "model":
            found = super().recorded(kind, request, fresh=fresh)
            number = self._store.last_taken
            self._used.append(self._others[number - 1])
            self._numbers[number] = len(self._used)
            return found
        self._asked.append(request)
        if not self._answers:
            miss = CassetteMissError("the pipeline makes more model requests than the session did")
            self.missed.append(miss)
            raise miss
        response = self._answers.popleft().response
        self._used.append(self.clean(Interaction(request, response)))
        return apply_to_response(response, self._places.showings(text_of(response.body)))


HINT = "what the session did is in its journal, which `:log` names; nothing was written"
_SECONDS = 120.0
_SAME = "the pipeline would not do what the session did"


@frozen
class Rehearsed:
    """The exchanges that were used, and harmless differences from the session."""

    used: tuple[Interaction, ...]
    notes: tuple[str, ...]


async def rehearse(
    session: ShellSession, file: Path, log: SessionLog, matched: Matched, made: PipelineDraft
) -> Rehearsed:
    """Run `file`; the exchanges that it uses become its cassette.

    Raises:
        NotExportedError: it does not do the same as the session.
    """
    opened, clock = session.open, session.open.environment.clock
    choice = CassetteChoice(file)
    head = RecordingMetadata(False, "", "", dict(opened.plan.variables))
    pipeline = load_checked(file, ())
    _require_unasked(pipeline, made)
    places = PathPlaceholders(
        root=str(file.parent.resolve()), run="", home=opened.options.environ.get("HOME", "")
    )
    options = RunOptions(environ=opened.options.environ, lock="none")
    plan = make_plan(
        pipeline, options, session=CassetteSession(choice, Cassette(head, matched.others))
    )
    recorder = Rehearsal(matched, head, choice, places, plan.secrets, clock.monotonic)
    history, ended, numbers = RunHistory(), list[Ended](), count(1)

    def hear(event: Event) -> None:
        ended.extend(history.take(Stamped(next(numbers), 0.0, event)))

    folder = RunFolder(id="", path=None, mask=plan.secrets.mask)
    environment = RunEnvironment(hear, Unattended(), clock, folder, options.environ, recorder)
    end = None
    with opened.interrupts.lend_to_run(), anyio.move_on_after(_SECONDS):
        end = await execute(plan, options, environment)
    if end is None:
        raise NotExportedError(f"the pipeline did not end within {_SECONDS:g} s", hint=HINT)
    if end.code or recorder.left:
        _require_rules(made)
        raise NotExportedError(_why(end, log, ended), hint=HINT)
    _require_same(
        made, calls_of_run(entry for entry in ended if isinstance(entry, CallRecord)).made
    )
    return Rehearsed(recorder.used, tuple(_changes_of_questions(log, matched, recorder)))


def _require_unasked(pipeline: Pipeline, source: PipelineDraft) -> None:
    """Refuse a file whose calls need approval: without a person they would be denied.

    Raises:
        NotExportedError: one of its own rules asks about a call that was approved by hand.
    """
    policy = compile_policy(pipeline.rules)
    for call in source.made:
        ruling: Ruling = decide(policy, stand_in(call.tool), call.arguments)
        if ruling.rule and ruling.verdict != "auto":
            raise NotExportedError(
                f"`{call.tool}` was called, and the rule `{ruling.rule}` of the file says"
                f" {ruling.verdict} to that: the export runs unattended",
                hint="remove that rule from the file to export the call",
            )


def _require_rules(source: PipelineDraft) -> None:
    for entry in source.suggestion.left_out:
        raise NotExportedError(
            f"{_SAME}: no rule approves the call of `{entry.call.tool}`: {entry.why}",
            hint="`:undo` and `:clear` leave questions out; nothing was written",
        )


def _require_same(source: PipelineDraft, calls: Sequence[Made]) -> None:
    expected, counts = Counter(map(_key, source.made)), Counter(map(_key, calls))
    for call in source.made:
        if expected[_key(call)] > counts[_key(call)]:
            _require_rules(source)
            raise NotExportedError(f"{_SAME}: it does not call `{call.tool}`", hint=HINT)


def _key(call: Made) -> str:
    return f"{call.tool} {canonical([call.arguments])}"


def _changes_of_questions(log: SessionLog, matched: Matched, recorder: Rehearsal) -> Sequence[str]:
    """Questions whose text differs now, for example because a file has changed meanwhile."""
    first = {step: number for number, step in reversed([*enumerate(matched.steps)])}
    return [
        f"`{line.id}` is asked with another text than in the session: what it takes along differs"
        for line in log.complete_lines()
        if line.sent and not recorder.sent_as_last(first[line.id], line.sent)
    ]


def _why(end: Exit, log: SessionLog, ended: Sequence[Ended]) -> str:
    """The first difference between the pipeline and the session."""
    ends = {one.step: one.finished for one in ended if isinstance(one, Unit) and one.item is None}
    for line in log.complete_lines():
        step = ends.get(line.id)
        if step is not None and step.status == "failed":
            reason = step.error.message if step.error is not None else step.status
            return f"{_SAME}: `{line.id}`: {reason}"
    reason = end.reason.partition("\n")[0] or "answers are left that it does not ask for"
    return f"{_SAME}: {reason}"
