"""Records the exchanges of a session, for `:export`."""

from pathlib import Path

from aish.cassettes.format.file import UNFINISHED
from aish.cassettes.format.interaction import CassetteFileError
from aish.core.events import NOWHERE, Notice
from aish.core.protocols import Emit
from aish.engine.environment import Recorder
from aish.features.recording.session import recorder_of

_NAME = "recording-{}.yaml"


def recordings(folder: Path) -> tuple[Path, ...]:
    """The recording of each part of a session, in order; that of a killed part is incomplete."""
    names = {path.name.removesuffix(UNFINISHED) for path in folder.glob(_NAME.format("*") + "*")}
    paths = [folder / name for name in names]
    return tuple(sorted(paths, key=lambda path: int(path.stem.rpartition("-")[2])))


def next_recording(folder: Path) -> Path:
    number = 1
    while any(folder.glob(_NAME.format(number) + "*")):
        number += 1
    return folder / _NAME.format(number)


def settle(recorder: Recorder | None) -> None:
    """Write finished exchanges to disk: a session may be killed at any time."""
    if recorder is not None:
        recorder_of(recorder).settle()


def end_recording(recorder: Recorder, emit: Emit) -> None:
    """Write everything; a failure affects only a later export of the session."""
    recording = recorder_of(recorder)
    try:
        recording.finish(recording.head)
    except CassetteFileError as error:
        emit(Notice(NOWHERE, "info", "not_recorded", f"no cassette is kept: {error}"))
