"""`aish run FILE --resume`: from the options to the run that is resumed.

Imported only if there is such an option.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import cast

from aish.cli.boundary import say
from aish.cli.options import Format, ResumeOptions, RunRequest
from aish.cli.output_setup import RunOutput
from aish.cli.printer import print_json
from aish.config.inputs import join_inputs
from aish.config.model import BATCH, Delivery, Pipeline
from aish.core.errors import UsageError
from aish.core.events import Notice, Place, Shard
from aish.core.json import JsonValue
from aish.core.phrases import backticked, counted, first_of
from aish.engine.execution.fingerprint import fingerprint
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.resume_state import CallsNamedError, NamedCalls, ResumeRefusedError
from aish.engine.run_folder import RunFolder, RunsPlace, reopen_folder
from aish.engine.steps.context import CALLS_REPEATED
from aish.features.history.run_store import LATEST
from aish.features.launch import EarlierPart, Launch, open_run
from aish.features.resume.differences import (
    check_nothing_changed,
    check_same,
    notices_of_differences,
)
from aish.features.resume.find import PastPart, hold_past
from aish.features.resume.replay_events import earlier_part
from aish.features.resume.scan import tags
from aish.features.resume.state import read_resume_state
from aish.features.resume.unknown_calls import SHOWN
from aish.items.shards import parse_shard
from aish.journal.batches import RecordedBatch
from aish.journal.reader import torn_tail
from aish.output.result import refusal_row
from aish.system.files import atomic_write

_CALLS = "calls-to-check.txt"
"""The file with the calls that a resumed run might make again."""


def _check_flags(asked: RunRequest, *, with_cassette: bool) -> None:
    flags = asked.resume
    if flags.resume is not None:
        if asked.output.ephemeral:
            message = "`--resume` and `--ephemeral` exclude each other"
            raise UsageError(message, hint="what the run has done already is in its folder")
        if with_cassette:
            message = "`--resume` and a cassette exclude each other"
            raise UsageError(message, hint="a cassette holds a whole run: start a new one")
        return
    options = {
        "--retry-failed": flags.retry_failed,
        "--retry-unknown": flags.retry_unknown,
        "--force": flags.force,
    }
    alone = next((flag for flag, is_given in options.items() if is_given), None)
    if alone is not None:
        raise UsageError(f"`{alone}` goes with `--resume`", hint=f"aish run FILE --resume {alone}")


class Resumption:
    """A run that is resumed, locked by this process."""

    def __init__(self, past: PastPart, flags: ResumeOptions) -> None:
        self._past = past
        self._flags = flags

    @property
    def shard(self) -> Shard | None:
        return self._past.shard

    @property
    def delivery(self) -> Delivery | None:
        return cast("Delivery | None", self._past.delivery)

    @property
    def inputs(self) -> dict[str, JsonValue]:
        """The inputs with which the run was started, without those that were not stored."""
        masked = self._past.masked_inputs
        return {name: value for name, value in self._past.inputs.items() if name not in masked}

    @property
    def stdin(self) -> str | None:
        text = self._past.stdin()
        return None if tags([text]) else text

    def earlier(self, plan: Plan, options: RunOptions, form: Format) -> EarlierPart:
        """The finished part of the run; differences are errors, unless that is forced.

        Raises:
            ResumeRefusedError: something is different, or a call might be made twice; also that
                something is different though the run is complete, whatever is forced.
            JournalError: the journal is damaged.
        """
        past, flags = self._past, self._flags
        now = fingerprint(plan, options)
        lines: tuple[Notice, ...] = ()
        if flags.force:
            lines = notices_of_differences(past.fingerprint, now, plan.pipeline)
        else:
            check_same(past.fingerprint, now, plan.pipeline)
        with past.read() as reading:
            try:
                state = read_resume_state(
                    reading,
                    plan,
                    past.id,
                    retry_failed=flags.retry_failed,
                    retry_unknown=flags.retry_unknown,
                    notices=lines,
                    read_file=past.kept,
                )
            except CallsNamedError as error:
                self._name(error, plan, form)
                raise
            if state.ended:
                check_nothing_changed(past.id, past.fingerprint, now, plan.pipeline)
            notices = (*state.notices, *_check_batches(state.batches, plan, forced=flags.force))
            if flags.force:
                repeated = tuple(replace(one, may_repeat=True) for one in state.batches)
                state = replace(state, batches=repeated)
            listed = self._list_or_write(state.repeated)
            if listed:
                notices = (*notices, Notice(Place(), "warning", CALLS_REPEATED, listed))
            if reading.torn is not None:
                torn = Notice(Place(), "warning", "journal_torn", torn_tail(reading.torn))
                notices = (*notices, torn)
        return earlier_part(past, replace(state, notices=notices))

    def _name(self, error: CallsNamedError, plan: Plan, form: Format) -> None:
        listed = self._list_or_write(error.named)
        if listed:
            error.hint = f"{listed}; {error.hint}"
        if form is Format.JSON:
            print_json(refusal_row(self._past.id, plan.pipeline.name, error, error.named.calls))

    def _list_or_write(self, named: NamedCalls) -> str:
        """Put calls into a file if their message has not all of them; says where they are."""
        if len(named.calls) <= SHOWN:
            return ""
        path = self._past.path / _CALLS
        atomic_write(path, "".join(f"{line}\n" for line in named.lines).encode())
        return f"all of them are in {path}"

    def folder(self, plan: Plan) -> RunFolder:
        return reopen_folder(self._past.path, plan.secrets.mask)

    def show_again(self, launch: Launch, asked: RunRequest, table: str | None) -> int:
        if not asked.output.quiet:
            say(f"note: run {self._past.id} is complete: nothing is left to do")
        asked = replace(asked, output=replace(asked.output, quiet=True))
        with open_run(launch) as run, RunOutput(run, asked, table) as output:
            pass
        return int(output.lost)


def _check_batches(
    batches: Sequence[RecordedBatch], plan: Plan, *, forced: bool
) -> tuple[Notice, ...]:
    """Check that answers which batches have are collected, not paid a second time.

    Raises:
        ResumeRefusedError: a model is not asked in batches any more.
    """
    in_batches = frozenset(_in_batches(plan))
    left = [one for one in batches if one.requests and one.model not in in_batches]
    if not left:
        return ()
    requests = counted(sum(len(one.requests) for one in left), "request")
    names = first_of([f"batch `{one.id or one.number}` of `{one.model}`" for one in left], SHOWN)
    if forced:
        said = f"{requests} may be paid again, as `--force` allows: {names}"
        return (Notice(Place(), "warning", "batch_repeated", said),)
    said = f"{requests} would be paid again: batches have their answers, or will: {names}"
    hint = "resume with `--delivery batch` to collect them; `--force` sends them again, alone"
    raise ResumeRefusedError(said, hint=hint)


def _in_batches(plan: Plan, prefix: str = "") -> Iterator[str]:
    """The models that are asked in batches, by their names in events."""
    for alias, model in plan.models.items():
        if model.entry.delivery == BATCH:
            yield prefix + alias
    for id, inner in plan.inner.items():
        yield from _in_batches(inner, f"{prefix}{id}/")


def resumption(
    asked: RunRequest, pipeline: Pipeline, stack: ExitStack, *, with_cassette: bool
) -> Resumption:
    """The run that is resumed, locked until `stack` is left.

    Raises:
        UsageError: the options exclude each other, or there is no such run.
        JournalError: its journal is damaged.
    """
    _check_flags(asked, with_cassette=with_cassette)
    place, flags = RunsPlace(pipeline.file.parent, asked.output.run_dir), asked.resume
    shard = None if asked.batch.shard is None else parse_shard(asked.batch.shard)
    past = hold_past(pipeline, place, flags.resume or LATEST, stack, shard)
    inputs = asked.inputs
    keys = {text.partition("=")[0] for text in join_inputs(inputs.inputs, inputs.input_texts)}
    lost = [name for name in past.masked_inputs if name not in keys]
    if lost and inputs.inputs_file is None:
        names = backticked(lost)
        message = f"these inputs had a secret in them, and secrets are not stored: {names}"
        raise ResumeRefusedError(message, where=past.id, hint=f"give it again: -i {lost[0]}=…")
    return Resumption(past, flags)
