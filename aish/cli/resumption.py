"""`aish run FILE --resume`: from the options to the run that is resumed (B3).

Imported only if there is such an option.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from aish.cli.boundary import say
from aish.cli.options import Format, InputOptions, ResumeOptions
from aish.cli.output_setup import Before, Retold, RunOutput, Shape
from aish.cli.pipeline_options import Given
from aish.cli.printer import print_json
from aish.config.inputs import given_inputs
from aish.config.model import Pipeline
from aish.core.errors import UsageError
from aish.core.events import Notice, Place, Shard, Stamped
from aish.core.json import JsonValue, json_text
from aish.core.phrases import backticked
from aish.core.protocols import Clock
from aish.engine.execution.fingerprint import fingerprint
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.resume_state import (
    CallsNamedError,
    NamedCalls,
    ResumeRefusedError,
    ResumeState,
)
from aish.engine.run_folder import RunFolder, RunsPlace, reopen_folder
from aish.engine.steps.context import CALLS_REPEATED
from aish.features.history.run_store import LATEST
from aish.features.resume.differences import check_same, forced
from aish.features.resume.find import PastPart, hold_past
from aish.features.resume.replay_events import retold, retold_whole
from aish.features.resume.scan import tags
from aish.features.resume.state import read_resume_state
from aish.features.resume.unknown_calls import SHOWN
from aish.journal.reader import torn_tail
from aish.output.event_log import Sink
from aish.output.result import refused
from aish.system.files import atomic_write

_CALLS = "calls-to-check.txt"
"""The file with the calls that a resumed run might make again."""


def check_flags(flags: ResumeOptions, *, ephemeral: bool, with_cassette: bool) -> None:
    """Check that the options fit together.

    Raises:
        UsageError: they do not fit.
    """
    if flags.resume is not None:
        if ephemeral:
            said = "`--resume` and `--ephemeral` exclude each other"
            raise UsageError(said, hint="what the run has done already is in its folder")
        if with_cassette:
            said = "`--resume` and a cassette exclude each other"
            raise UsageError(said, hint="a cassette holds a whole run: start a new one")
        return
    given = {
        "--retry-failed": flags.retry_failed,
        "--retry-unknown": flags.retry_unknown,
        "--force": flags.force,
    }
    alone = next((flag for flag, is_given in given.items() if is_given), None)
    if alone is not None:
        raise UsageError(f"`{alone}` goes with `--resume`", hint=f"aish run FILE --resume {alone}")


def _earlier_inputs(past: PastPart) -> dict[str, JsonValue]:
    """The inputs with which the run was started, without those that were not stored."""
    masked = set(_masked(past))
    return {name: value for name, value in past.inputs.items() if name not in masked}


def _earlier_stdin(past: PastPart) -> str | None:
    """The stdin of the run, if it is still known."""
    text = past.stdin()
    return None if tags([text]) else text


class Resumption:
    """A run that is resumed, locked by this process."""

    def __init__(self, past: PastPart, flags: ResumeOptions) -> None:
        self._past = past
        self._flags = flags
        self._resume_state: ResumeState | None = None

    @property
    def shard(self) -> Shard | None:
        """The run's shard of the items."""
        return self._past.shard

    def filled(self, given: Given) -> Given:
        """The inputs of the command line, completed by those with which the run was started."""
        return replace(given, earlier=_earlier_inputs(self._past), stdin=_earlier_stdin(self._past))

    def resume_state(self, plan: Plan, options: RunOptions, form: Format) -> ResumeState:
        """The finished part of the run; differences are errors, unless that is forced.

        Raises:
            ResumeRefusedError: something is different, or a call might be made twice.
            JournalError: the journal is damaged.
        """
        past, flags = self._past, self._flags
        now = fingerprint(plan, options)
        told: tuple[Notice, ...] = ()
        if flags.force:
            told = forced(past.fingerprint, now, plan.pipeline)
        else:
            check_same(past.fingerprint, now, plan.pipeline)
        with past.read() as reading:
            try:
                self._resume_state = read_resume_state(
                    reading,
                    plan,
                    past.id,
                    retry_failed=flags.retry_failed,
                    retry_unknown=flags.retry_unknown,
                    notices=told,
                    read_file=past.kept,
                )
            except CallsNamedError as error:
                self._name(error, plan, form)
                raise
            notices = self._resume_state.notices
            listed = self._listed(self._resume_state.repeated)
            if listed:
                notices = (*notices, Notice(Place(), "warning", CALLS_REPEATED, listed))
            if reading.torn is not None:
                torn = Notice(Place(), "warning", "journal_torn", torn_tail(reading.torn))
                notices = (*notices, torn)
        self._resume_state = replace(self._resume_state, notices=notices)
        return self._resume_state

    def _name(self, error: CallsNamedError, plan: Plan, form: Format) -> None:
        """Name all calls, in the result too."""
        listed = self._listed(error.named)
        if listed:
            error.hint = f"{listed}; {error.hint}"
        if form is Format.JSON:
            print_json(refused(self._past.id, plan.pipeline.name, error, error.named.calls))

    def _listed(self, named: NamedCalls) -> str:
        """Put calls into a file if their message has not all of them; says where they are."""
        if len(named.calls) <= SHOWN:
            return ""
        path = self._past.path / _CALLS
        atomic_write(path, "".join(f"{line}\n" for line in named.lines).encode())
        return f"all of them are in {path}"

    def folder(self, plan: Plan) -> RunFolder:
        """The folder of the run, with the plan as it is now."""
        folder = reopen_folder(self._past.path, plan.secrets.mask)
        folder.write_plan(plan.pipeline.data)
        return folder

    def go_on(self) -> Before:
        """The state with which the sinks of this part begin."""
        assert self._resume_state is not None, "asked for first"
        done, journal = self._resume_state, self._past.journal.go_on()
        return _before(done, journal, done.last_seq, self._retold)

    def show_again(self, plan: Plan, shape: Shape, clock: Clock, *, quiet: bool) -> int:
        """Print the result of a run that has succeeded; returns the exit code."""
        folder = reopen_folder(self._past.path, plan.secrets.mask)
        if not quiet:
            say(f"note: run {self._past.id} is complete: nothing is left to do")
        assert self._resume_state is not None, "asked for first"
        before = _before(self._resume_state, None, 0, self._retold_whole)
        output = RunOutput(plan, folder, replace(shape, quiet=True), clock, before=before)
        with output:
            pass
        return int(output.lost)

    def _retold(self, kinds: frozenset[str] | None, known: int) -> Iterator[Stamped]:
        assert self._resume_state is not None, "asked for first"
        with self._past.read() as reading:
            yield from retold(reading, self._resume_state, kinds, known)

    def _retold_whole(self, kinds: frozenset[str] | None, known: int) -> Iterator[Stamped]:
        del kinds, known
        assert self._resume_state is not None, "asked for first"
        with self._past.read() as reading:
            yield from retold_whole(reading, self._resume_state)


def _before(done: ResumeState, journal: Sink | None, after: int, told: Retold) -> Before:
    last = max((items.last for items in done.items.values()), default=0)
    counts = {step: len(items) for step, items in done.items.items()}
    return Before(journal, after, done.begun, last, told, counts, done.repeated.calls)


def resumption(
    pipeline: Pipeline,
    flags: ResumeOptions,
    filling: InputOptions,
    place: RunsPlace,
    stack: ExitStack,
    shard: Shard | None = None,
) -> Resumption:
    """The run that is resumed, locked until `stack` is left.

    Raises:
        UsageError: there is none, it is in use, or something has to be given again.
        JournalError: its journal is damaged.
    """
    past = hold_past(pipeline, place, flags.resume or LATEST, stack, shard)
    given = {text.partition("=")[0] for text in given_inputs(filling.inputs, filling.input_texts)}
    lost = [name for name in _masked(past) if name not in given]
    if lost and filling.inputs_file is None:
        names = backticked(lost)
        said = f"these inputs had a secret in them, and secrets are not stored: {names}"
        raise ResumeRefusedError(said, where=past.id, hint=f"give it again: -i {lost[0]}=…")
    return Resumption(past, flags)


def _masked(past: PastPart) -> list[str]:
    return [name for name, value in past.inputs.items() if tags([json_text(value)])]
