"""A run's cassette: file, replayed and recorded interactions, end.

Imported only by runs that have one: a plain run does not import `aish.cassettes`.
"""

import json
import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from anyio.lowlevel import checkpoint

from aish.cassettes.format.file import failed, load, partial, show_path
from aish.cassettes.format.interaction import (
    Cassette,
    CassetteFileError,
    Exchange,
    Interaction,
    RecordingMetadata,
    Request,
    in_order,
)
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.http import cassette_transport
from aish.cassettes.record.file_writer import Recording, require_place
from aish.cassettes.record.recorder import (
    KINDS,
    LEFT,
    CassetteRecorder,
    Kind,
    RecorderRules,
    Way,
    kind_of,
)
from aish.cassettes.replay.matching import Matching
from aish.config.model import ModelEntry, Pipeline
from aish.core.errors import AishError, ExitCode
from aish.core.events import NOWHERE, CassetteInfo, CassetteMode, CassetteUse, Event, Level, Notice
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.phrases import first_lines
from aish.core.protocols import Clock, Emit
from aish.core.tools import ToolResult
from aish.engine.environment import Recorder, RecordingEnd
from aish.engine.final import NAMES, FinalState, decide_exit
from aish.engine.plan.credentials import ResolvedModel
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder
from aish.mcp.transports.adapter import CassetteAdapter
from aish.models.retry import RetryTiming
from aish.models.transport import MakeClient
from aish.policy.questions import AnswerRecording
from aish.system.clock import SystemClock

Mode = CassetteMode
"""`none` replays; `once` does if there is a cassette, else it records; `new_episodes` records
what the cassette does not hold; `all` records everything (vcrpy's names)."""

COMPLETE = frozenset(
    {ExitCode.OK, ExitCode.FAILED, ExitCode.DENIED, ExitCode.BUDGET, ExitCode.LOCK}
)
"""A run that ended with one of these did all that it was to do, and is worth a replay."""

_NO_CONVERSATION = b'{"messages":[]}'


@frozen
class CassetteChoice:
    """The settings of the file and the command line for a run's cassette.

    `strict` makes unused interactions of a replay an error. `live_tools` replays the models
    and runs the tools; `live_model` is the alias that answers every prompt while the tools are
    replayed. `tools_only` replays the tools for any models: what only reads as often as it is asked
    for, and what is not recorded ends the run. `paced` replays with the recorded times.
    `answers_only` records requests to models without their conversation, which a long session would
    otherwise store with each request.
    `accepted` are the exit codes of runs whose recording replaces an older cassette; `keep_failed`
    stores the recording of any other run next to it. `renewal` is the command that records it
    again.
    """

    path: Path
    mode: Mode = "none"
    ignore: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    strict: bool = False
    live_tools: bool = False
    live_model: str | None = None
    tools_only: bool = False
    paced: bool = False
    answers_only: bool = False
    accepted: frozenset[ExitCode] = COMPLETE
    keep_failed: bool = False
    renewal: str = "aish record"


@frozen
class CassetteSession:
    """A choice and its replayed cassette; `None` if everything is recorded."""

    choice: CassetteChoice
    cassette: Cassette | None = None

    @property
    def ways(self) -> Mapping[Kind, Way]:
        """The mode of each kind of exchange."""
        if self.cassette is None:
            return dict.fromkeys(KINDS, "record")
        if self.choice.mode == "new_episodes":
            return dict.fromkeys(KINDS, "extend")
        live = self.choice.live_model is not None or self.choice.tools_only
        model: Way = "live" if live else "replay"
        tools: Way = "live" if self.choice.live_tools else "replay"
        # Clients are there, and ask what they want.
        return {**dict.fromkeys(KINDS, tools), "model": model, "client": "live"}

    @property
    def mode(self) -> Mode:
        """The effective mode: `once` replays or records, depending on whether a cassette exists."""
        if self.cassette is None:
            return "all"
        return "none" if self.choice.mode == "once" else self.choice.mode

    @property
    def records(self) -> bool:
        """True if a cassette is written."""
        return bool({"record", "extend"} & set(self.ways.values()))

    @property
    def replays(self) -> bool:
        """True if anything is answered from the cassette alone."""
        return "replay" in self.ways.values()

    @property
    def replays_models(self) -> bool:
        """True if models are replayed, so that none needs a key."""
        return self.ways["model"] == "replay"

    @property
    def replays_servers(self) -> bool:
        return self.ways["mcp"] == "replay"

    @property
    def variables(self) -> Mapping[str, str] | None:
        """The recorded variables; `None` if another program recorded the cassette."""
        head = self.cassette.head if self.cassette is not None else None
        return head.env if head is not None else None

    def open_recorder(
        self, plan: Plan, options: RunOptions, folder: RunFolder, clock: Clock
    ) -> AbstractContextManager["RunRecorder"]:
        """`open_recorder` for this session."""
        return open_recorder(self, plan, options, folder, clock)

    @property
    def shown(self) -> str:
        """The cassette's path for display."""
        return show_path(self.choice.path)


class RunRecorder(CassetteRecorder):
    """The recorder of a run, with what its end needs to know."""

    session: CassetteSession
    head: RecordingMetadata
    entries: tuple[ModelEntry, ...] = ()
    """The models of the file, whose prices a comparison wants."""
    following: object | None = None
    """A `compare.TrajectoryCollector`, which only these runs import: it takes milliseconds."""
    is_of_server: bool = False
    """Whether it is that of a server, in which runs begin and end."""
    _approvals: AnswerRecording | None = None

    @property
    def offline(self) -> bool:
        """See `Recorder`. A server listens to its clients whatever is replayed."""
        return self.replays_all and not self.is_of_server

    @property
    def replays_all(self) -> bool:
        """True if everything but clients comes from the cassette."""
        return super().offline

    @property
    def asks_only_models(self) -> bool:
        return self.session.choice.tools_only

    @property
    def info(self) -> CassetteInfo:
        return CassetteInfo(self.session.shown, self.session.mode)

    @property
    def files(self) -> frozenset[Path]:
        """The resolved paths of the cassette, and of what is written in its place."""
        path = self.session.choice.path
        return frozenset(Path(os.path.realpath(one)) for one in (path, partial(path), failed(path)))

    def begin(self, kind: Kind, request: Request) -> Exchange | None:
        if kind == "model" and self.session.choice.answers_only:
            request = replace(request, body=_NO_CONVERSATION)
        return super().begin(kind, request)

    def so_far(self) -> tuple[Interaction, ...]:
        """The recording until now, in writable form.

        It includes a server's last answer, which may be continued, and its unsolicited messages;
        other answers in progress are not included.
        """
        self.settle()
        return in_order([self._known_part(part) for part in self._kept])

    def _known_part(self, part: Interaction | Exchange | None) -> Interaction | None:
        if not isinstance(part, Exchange):
            return part
        if part.ended:
            return part.interaction
        if part.answered or part.interaction.request.method == "GET":
            return self.clean(part.so_far(None if part.answered else LEFT))
        return None

    def followed(self, emit: Emit) -> Emit:
        """The same `emit`; if another model answers, its actions are collected."""
        if self.session.choice.live_model is None:
            return emit
        from aish.features.recording.compare import TrajectoryCollector

        following = self.following = TrajectoryCollector()

        def both(event: Event) -> None:
            following.take(event)
            emit(event)

        return both

    def unstarted(self, model: ResolvedModel) -> ResolvedModel | None:
        if self.way("model") != "replay":
            return None
        return replace(model, entry=replace(model.entry, base_url=f"{_place(model)}/v1"))

    def make_client(self, model: ResolvedModel, make: MakeClient) -> MakeClient:
        # The port of a model in a child process differs between runs.
        origin = None if model.entry.embedded is None else _place(model)
        return lambda entry: cassette_transport(self, "model", lambda: make(entry), origin=origin)

    def retry_timing(self) -> RetryTiming:
        """No waits in replay, unless `--pace recorded`."""
        if self.way("model") != "replay" or self.rules.paced:
            return RetryTiming()
        clock = Hasty()
        # There are no waits, and the reported delays are the same each time.
        return RetryTiming(clock=clock, sleep=clock.sleep, chance=lambda: 0.5, waits=False)

    def server_adapter(self) -> CassetteAdapter | None:
        if self.way("mcp") == "live":
            return None
        from aish.mcp.recorded.cassette_adapter import RunCassetteAdapter

        return RunCassetteAdapter(self)

    async def command(
        self, step: str, arguments: JsonObject, run: Callable[[JsonObject], Awaitable[ToolResult]]
    ) -> ToolResult:
        from aish.features.recording.command import record_or_replay

        return await record_or_replay(self, step, arguments, run)

    @property
    def context_tag(self) -> str | None:
        from aish.features.recording.context_files import tag_of_recording

        cassette = self.session.cassette
        return None if cassette is None else tag_of_recording(cassette.interactions)

    async def context_files(
        self, step: str, asked: JsonObject, read: Callable[[], Awaitable[JsonObject | None]]
    ) -> JsonObject | None:
        from aish.features.recording.context_files import record_or_replay_files

        return await record_or_replay_files(self, step, asked, read)

    @property
    def approvals(self) -> AnswerRecording:
        from aish.features.recording.approvals import RecordedApprovals

        if self._approvals is None:
            self._approvals = RecordedApprovals(self)
        return self._approvals

    def end(self, state: FinalState, emit: Emit) -> RecordingEnd:
        """See `Recorder`. Everything was closed before.

        The end of a run in a server ends nothing: a miss is in `missed` until the server ends.
        """
        if self.is_of_server:
            return RecordingEnd((), None)
        return end_run_recording(self, state, emit)


class Hasty:
    """A clock whose waits end at once."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._skipped = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock.now() + self._skipped

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._skipped

    async def sleep(self, seconds: float) -> None:
        """Advance the time without waiting."""
        self._skipped += max(0.0, seconds)
        await checkpoint()


def _place(model: ResolvedModel) -> str:
    return f"http://{model.entry.alias}.embedded"


def recorder_of(recorder: Recorder) -> RunRecorder:
    """The recorder of a run with the features of this package."""
    assert isinstance(recorder, RunRecorder), "`open_recorder` makes the recorders of runs"
    return recorder


class _Lasting(Recording):
    """Tolerates a failed append: `finish` writes everything again, and reports the error."""

    _is_stuck = False

    def append(self, interaction: Interaction) -> None:
        """Keep an interaction, unless the disk is full."""
        if not self._is_stuck:
            try:
                super().append(interaction)
            except CassetteFileError:
                self._is_stuck = True


def load_session(choice: CassetteChoice) -> CassetteSession:
    """Read the cassette, where the choice plays from it.

    Raises:
        CassetteFileError: it is missing, incomplete, or not a cassette.
    """
    fresh = choice.mode in {"once", "new_episodes"} and not choice.path.exists()
    if choice.mode == "all" or fresh:
        return CassetteSession(choice)
    return CassetteSession(choice, load(choice.path, renewal=choice.renewal))


def renewal(pipeline: Pipeline, path: Path) -> str:
    """The command that records the cassette at `path` again."""
    played = {(case.cassette or pipeline.cassette) for case in pipeline.tests}
    if any(settings is not None and _names(settings.path, path) for settings in played):
        return test_renewal(pipeline)
    own = pipeline.cassette is not None and pipeline.cassette.path.resolve() == path.resolve()
    return f"aish record {_quote_path(pipeline.file)}" + ("" if own else f" -o {_quote_path(path)}")


def test_renewal(pipeline: Pipeline) -> str:
    """The command that records the cassettes of a file's tests again."""
    return f"aish test {_quote_path(pipeline.file)} --record"


def serve_renewal(pipeline: Pipeline, path: Path) -> str:
    """The command that records a cassette of a server again."""
    return f"aish serve {_quote_path(pipeline.file)} --record {_quote_path(path)}"


def _names(named: Path, path: Path) -> bool:
    """Return true if a test replays a cassette; names that depend on rows match by prefix."""
    begins, is_template, _ = str(named).partition("{{")
    if is_template:
        folder, name = os.path.split(begins)
        return str(path.resolve()).startswith(f"{os.path.realpath(folder)}/{name}")
    return named.resolve() == path.resolve()


def _quote_path(path: Path) -> str:
    """A path with shell quotes; `shlex` would be imported by every recording."""
    text = show_path(path)
    if all(letter.isalnum() or letter in "/._-+=:,@%" for letter in text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


@contextmanager
def open_recorder(
    session: CassetteSession, plan: Plan, options: RunOptions, folder: RunFolder, clock: Clock
) -> Generator[RunRecorder]:
    """The recorder of a run; when recording, its temporary file is locked.

    Raises:
        CassetteFileError: the cassette cannot be written there, or is being recorded.
        UsageError: a path in `ignore` is of a kind that is not supported.
    """
    choice = session.choice
    places = PathPlaceholders(
        root=str(plan.pipeline.file.parent.resolve()),
        run="" if folder.path is None else str(folder.path),
        home=options.environ.get("HOME", ""),
    )
    matching = Matching(ignore=choice.ignore, places=places)
    head = RecordingMetadata(
        False, folder.id, _time(clock), {**(session.variables or {}), **plan.variables}
    )
    with ExitStack() as stack:
        recording = None
        if session.records:
            # An incomplete recording is never read, so it needs no variables.
            if choice.keep_failed:
                require_place(failed(choice.path))
            opened = _Lasting(choice.path, replace(head, env={}))
            recording = stack.enter_context(opened)
        recorder = RunRecorder(
            RecorderRules(
                session.ways,
                choice.allow,
                paced=choice.paced,
                lenient=choice.live_model is not None,
                reuses=choice.tools_only,
            ),
            session.cassette.interactions if session.cassette is not None else (),
            matching,
            renewal=choice.renewal,
            places=places,
            secrets=plan.secrets,
            monotonic=clock.monotonic,
            recording=recording,
        )
        recorder.session, recorder.head = session, head
        recorder.entries = tuple(plan.pipeline.models.values())
        stack.callback(recorder.settle)
        yield recorder


def _time(clock: Clock) -> str:
    return datetime.fromtimestamp(int(clock.now()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_CUT_OFF = frozenset({ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.INTERNAL})
_SHOWN = 5


class LeftoverError(AishError):
    """A replay under `strict` did not use all of its cassette."""

    exit_code = ExitCode.CASSETTE
    code = "cassette_leftovers"


class NotRecordedError(AishError):
    """The run is over, but its cassette could not be written."""

    code = "not_recorded"


def end_run_recording(found: RunRecorder, state: FinalState, emit: Emit) -> RecordingEnd:
    """Write the cassette, or report how well the replayed one matches."""
    missed = _first_miss(found)
    code = ExitCode(decide_exit(replace(state, others=(*state.others, *missed))).code)
    if found.session.records:
        return _end_recording(found, code, emit)
    played = [one for one in _interactions(found) if found.way(kind_of(one.request)) == "replay"]
    left = found.leftovers()
    use = CassetteUse(found.session.shown, "replayed", len(played) - len(left))
    if found.following is not None:
        if code not in _CUT_OFF:
            emit(_notice("info", "comparison", _comparison_text(found)))
        return RecordingEnd(missed, use)
    if missed or not left or code in _CUT_OFF or found.session.choice.tools_only:
        return RecordingEnd(missed, use)
    # After a failure of the run itself, unused interactions are not a second failure.
    if found.session.choice.strict and code is ExitCode.OK:
        return RecordingEnd((_leftover(found, left),), use)
    emit(_notice("info", "unused_interactions", str(_leftover(found, left))))
    return RecordingEnd((), use)


def _comparison_text(recorder: RunRecorder) -> str:
    """Describe how the live model deviated from the recorded one."""
    # Imported late: takes milliseconds, and few runs compare.
    from aish.cassettes.inspect.trajectory import compare, comparison_lines
    from aish.features.recording.compare import TrajectoryCollector, trajectory_of_models

    following = recorder.following
    assert isinstance(following, TrajectoryCollector), "`followed` makes them"
    recorded = trajectory_of_models(_interactions(recorder), recorder.entries)
    title = f"`{recorder.session.choice.live_model}` compared with {recorder.session.shown}"
    return "\n".join((title, *comparison_lines(compare(recorded, following.trajectory))))


def _interactions(recorder: RunRecorder) -> tuple[Interaction, ...]:
    cassette = recorder.session.cassette
    return cassette.interactions if cassette is not None else ()


def _first_miss(recorder: RunRecorder) -> tuple[AishError, ...]:
    """The first miss; the others usually follow from it."""
    if not recorder.missed:
        return ()
    first, more = recorder.missed[0], len(recorder.missed) - 1
    return (first,) if not more else (_with_more(first, more),)


def _with_more(miss: AishError, more: int) -> AishError:
    message = "1 more request was missed" if more == 1 else f"{more} more requests were missed"
    return type(miss)(f"{miss.message}\n{message} after it", where=miss.where, hint=miss.hint)


def _end_recording(recorder: RunRecorder, code: ExitCode, emit: Emit) -> RecordingEnd:
    choice = recorder.session.choice
    place = choice.path
    if code not in choice.accepted:
        if not choice.keep_failed:
            return _not_kept(recorder, code, emit)
        place = failed(place)
    left = recorder.leftovers()
    try:
        done = recorder.finish(recorder.head, place)
    except CassetteFileError as error:
        # In full, whatever else failed; the first line is the reason of the run's end.
        emit(_notice("error", NotRecordedError.code, str(error)))
        message = error.message.partition("\n")[0]
        return RecordingEnd((NotRecordedError(message, where=error.where, hint=error.hint),), None)
    if left:
        emit(_notice("warning", "unused_interactions", str(_leftover(recorder, left))))
    return RecordingEnd((), CassetteUse(show_path(place), "recorded", len(done)))


def _not_kept(recorder: RunRecorder, code: ExitCode, emit: Emit) -> RecordingEnd:
    """The older cassette is kept; the recording only if the run was interrupted."""
    path, there = recorder.session.choice.path, partial(recorder.session.choice.path)
    kept = f"`{recorder.session.shown}` is unchanged" if path.exists() else "no cassette is written"
    message = f"the run ended with {int(code)} ({NAMES[code]}), so {kept}"
    if code not in _CUT_OFF:
        recorder.discard()
        message += f"; `--keep-failed` writes the recording to `{show_path(failed(path))}`"
    elif there.exists():
        message += f"; what was recorded is in `{show_path(there)}`"
    emit(_notice("warning", "recording_incomplete", message))
    return RecordingEnd((), None)


def _leftover(recorder: RunRecorder, left: Sequence[tuple[int, Interaction]]) -> LeftoverError:
    single, many = "interaction of {} was not used", "interactions of {} were not used"
    what = (single if len(left) == 1 else many).format(recorder.session.shown)
    listed = [f"{number}: {_interaction_text(other)}" for number, other in left]
    lines = [f"{len(left)} {what}", *first_lines(listed, _SHOWN)]
    hint = f"if the change is meant, `{recorder.session.choice.renewal}` records it again"
    return LeftoverError("\n".join(lines), hint=hint)


def _interaction_text(interaction: Interaction) -> str:
    """An interaction for display: its destination and purpose."""
    request = interaction.request
    target = ""
    if kind_of(request) == "mcp":
        try:
            message = json.loads(request.body)
            target = f" {message['method']}"
            target += f" {message['params']['name']}"
        except (ValueError, RecursionError, KeyError, TypeError):
            # Only the parts that it has are shown.
            pass
    return f"{request.method} {request.uri}{target}"


def _notice(level: Level, code: str, text: str) -> Event:
    return Notice(NOWHERE, level, code, text)
