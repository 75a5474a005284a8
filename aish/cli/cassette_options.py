"""From the options of a command line to the cassette of a run.

Imported only if there is such an option: a plain run ignores `cassette:`.
"""

from pathlib import Path

from aish.cli.arguments import FILES_OWN
from aish.cli.options import CassetteOptions, RecordMode, ReplayPace
from aish.config.model import CassetteSettings, Pipeline
from aish.core.errors import UsageError
from aish.core.phrases import backticked
from aish.features.recording.session import (
    CassetteChoice,
    CassetteSession,
    Mode,
    load_session,
    renewal,
)

_MODES: dict[RecordMode, Mode] = {
    RecordMode.NONE: "none",
    RecordMode.ONCE: "once",
    RecordMode.NEW_EPISODES: "new_episodes",
    RecordMode.ALL: "all",
}
_IMPLIED: dict[str, Mode] = {"--record": "all", "--replay": "none", "--cassette": "once"}
_OWN = "name one with `cassette: PATH` in the file"


def session_of(
    pipeline: Pipeline, flags: CassetteOptions, renewed_by: str | None = None
) -> CassetteSession:
    """The cassette session that `aish run` replays from or records to.

    `renewed_by` is the command that records it again, if that is another one.

    Raises:
        CassetteFileError: the cassette cannot be read.
    """
    path, mode = _place_and_mode(pipeline, flags)
    _check(flags, mode)
    own = _settings(pipeline, path)
    choice = CassetteChoice(
        path=path,
        mode=mode,
        ignore=own.ignore,
        allow=own.allow,
        strict=own.strict is True,
        live_tools=flags.live_tools,
        live_model=flags.live_model,
        paced=flags.pace is ReplayPace.RECORDED,
        keep_failed=flags.keep_failed,
        renewal=renewed_by or renewal(pipeline, path),
    )
    return load_session(choice)


def session_to_record(
    pipeline: Pipeline, path: Path | None, *, keep_failed: bool = False
) -> CassetteSession:
    """The cassette session of `aish record`: of `path`, or of the one that the file names."""
    if path is None and pipeline.cassette is None:
        message = "no path is given for the cassette"
        raise UsageError(message, hint=f"give one with `-o CASSETTE`, or {_OWN}")
    own = _settings(pipeline, path)
    choice = CassetteChoice(
        own.path, "all", ignore=own.ignore, allow=own.allow, keep_failed=keep_failed
    )
    return CassetteSession(choice)


def _place_and_mode(pipeline: Pipeline, flags: CassetteOptions) -> tuple[Path, Mode]:
    places = {"--record": flags.record, "--replay": flags.replay, "--cassette": flags.cassette}
    paths = {flag: path for flag, path in places.items() if path is not None}
    for flag in [flag for flag, path in paths.items() if str(path) == FILES_OWN]:
        if pipeline.cassette is None:
            message = f"`{flag}` names no cassette, and the file has none"
            raise UsageError(message, hint=f"`{flag} PATH`, or {_OWN}")
        paths[flag] = pipeline.cassette.path
    if len(paths) > 1:
        message = backticked(paths, by=" and ")
        raise UsageError(
            f"{message} exclude each other",
            hint="`--cassette PATH --record-mode MODE` replays and records",
        )
    if flags.record_mode is not None and "--cassette" not in paths and paths:
        message = f"`{next(iter(paths))}` already sets what is recorded"
        raise UsageError(message, hint="`--record-mode` goes with `--cassette PATH`")
    if not paths and flags.record_mode is None:
        raise UsageError(
            f"`{_needy(flags)}` needs a cassette",
            hint="`--record PATH` names one, `--record` alone takes the file's own"
            if _needy(flags) == "--keep-failed"
            else "`--replay PATH` names one, `--replay` alone takes the file's own",
        )
    if not paths and pipeline.cassette is None:
        raise UsageError("no cassette is named", hint=f"add `--cassette PATH`, or {_OWN}")
    if not paths and pipeline.cassette is not None:
        paths = {"--cassette": pipeline.cassette.path}
    ((flag, path),) = paths.items()
    if flags.record_mode is not None:
        return path, _MODES[flags.record_mode]
    return path, _IMPLIED[flag]


def _check(flags: CassetteOptions, mode: Mode) -> None:
    if flags.live_tools and flags.live_model is not None:
        message = "`--live-tools` and `--live-model` exclude each other"
        raise UsageError(message, hint="without a cassette both are live: leave out all three")
    if (flags.live_tools or flags.live_model is not None) and mode != "none":
        raise UsageError(
            f"`{_needy(flags)}` replays a cassette and records none",
            hint="`--replay PATH` names one, `--replay` alone takes the file's own",
        )
    if flags.pace is ReplayPace.RECORDED and mode == "all":
        raise UsageError(
            "`--pace recorded` is about a replay, and nothing is replayed",
            hint="leave it out while recording",
        )
    if flags.keep_failed and mode == "none":
        raise UsageError(
            "`--keep-failed` is about a recording, and nothing is recorded",
            hint="leave it out in a replay",
        )


def _needy(flags: CassetteOptions) -> str:
    if flags.live_tools:
        return "--live-tools"
    if flags.live_model is not None:
        return "--live-model"
    return "--keep-failed" if flags.keep_failed else "--pace"


def _settings(pipeline: Pipeline, path: Path | None) -> CassetteSettings:
    """The file's own settings, for any path: they say what is volatile and what is not a secret."""
    own = pipeline.cassette
    if own is None:
        assert path is not None, "the callers have one or the other"
        return CassetteSettings(path)
    return CassetteSettings(path or own.path, own.ignore, own.strict, own.allow)
