"""What a session keeps of its exchanges, for `:export` (S7)."""

from pathlib import Path

from aish.cassettes.errors import CassetteFileError
from aish.run.surroundings import AnyTape
from aish.run.taping.borders import tape_of
from aish.vocab.event_parts import NOWHERE
from aish.vocab.events import Notice
from aish.vocab.protocols import Emit

_NAME = "recording-{}.yaml"


def recordings(folder: Path) -> tuple[Path, ...]:
    """What each part of a session has recorded, in order."""
    found = folder.glob(_NAME.format("*"))
    return tuple(sorted(found, key=lambda path: int(path.stem.rpartition("-")[2])))


def next_recording(folder: Path) -> Path:
    """Where this part of the session records to."""
    number = 1
    while any(folder.glob(_NAME.format(number) + "*")):
        number += 1
    return folder / _NAME.format(number)


def end_recording(tape: AnyTape, emit: Emit) -> None:
    """Write it all; that this fails costs the session nothing but its export later on."""
    found = tape_of(tape)
    try:
        found.finish(found.head)
    except CassetteFileError as error:
        emit(Notice(NOWHERE, "info", "not_recorded", f"no cassette is kept: {error}"))
