"""Cassettes on disk: where they are stored, and how they are read safely.

Reading needs YAML, whose import takes time: only code that reads or writes imports it.
"""

import os
import re
from pathlib import Path

from aish.cassettes.format.interaction import LARGEST, Cassette, CassetteFileError
from aish.core.errors import UsageError
from aish.system.files import read_capped

UNFINISHED = ".partial"
FAILED = ".failed"
_KEYS = re.compile(rb"^(\xef\xbb\xbf)?(metadata|interactions):", re.MULTILINE)
_BEGINNING = 1 << 12


def partial(path: Path) -> Path:
    """The path of a recording until it is complete."""
    return path.with_name(f"{path.name}{UNFINISHED}")


def failed(path: Path) -> Path:
    """The path of a failed recording, so that the older cassette is kept."""
    return path.with_name(f"{path.name}{FAILED}")


def require_cassette(path: Path) -> None:
    """Check that a file to be replaced is a cassette, or empty; its beginning is checked.

    A typing error must not overwrite a pipeline.

    Raises:
        CassetteFileError: it is a regular file with other content.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING)
    if beginning.strip() and not _KEYS.search(beginning):
        raise CassetteFileError(
            f"`{show_path(path)}` is not a cassette, and would be overwritten",
            hint="give another path, or delete the file first",
        )


def show_path(path: Path) -> str:
    """A path as a user would type it here: relative to this folder if beneath it, without `..`."""
    whole, here = Path(os.path.normpath(Path.cwd() / path)), Path.cwd()
    if os.path.realpath(whole) != os.path.realpath(path):
        return str(path)  # `..` behind a link leads elsewhere
    if whole.is_relative_to(here):
        return str(whole.relative_to(here))
    return os.path.normpath(path)


def load(path: Path, *, unfinished: bool = False, renewal: str | None = None) -> Cassette:
    """A complete cassette, or one recorded by plain vcrpy; for display, `unfinished` too.

    `renewal` is the command that records it.

    Raises:
        CassetteFileError: it is missing, incomplete, of another version, or no cassette at all.
    """
    if path.name.endswith(UNFINISHED) and not unfinished:
        # Even if it looks complete: it was never renamed to its final path.
        message = "the recording was interrupted and is not complete"
        raise CassetteFileError(message, where=show_path(path), hint="record it again")
    return parse(contents(path, renewal), show_path(path), unfinished=unfinished)


def parse(data: bytes, name: str, *, unfinished: bool = False) -> Cassette:
    """The same from the content of a file called `name`.

    Raises:
        CassetteFileError: it is incomplete, of another version, or no cassette at all.
    """
    from aish.cassettes.format.file_reader import read_cassette

    return read_cassette(data, name, unfinished=unfinished)


def contents(path: Path, renewal: str | None = None) -> bytes:
    """The bytes of a cassette.

    Raises:
        CassetteFileError: it is missing, too large, or cannot be read.
    """
    try:
        return read_capped(path, LARGEST)
    except FileNotFoundError:
        raise CassetteFileError(
            f"no such cassette: `{show_path(path)}`", hint=_hint(path, renewal)
        ) from None
    except IsADirectoryError:
        raise CassetteFileError(f"`{show_path(path)}` is a folder, not a cassette") from None
    except UsageError:
        message = f"the cassette is larger than {LARGEST >> 20} MB"
        hint = "check that it is a cassette; large runs are recorded in parts"
        raise CassetteFileError(message, where=show_path(path), hint=hint) from None
    except OSError as error:
        message = f"the cassette cannot be read: {error.strerror}"
        raise CassetteFileError(message, where=show_path(path)) from None


def _hint(path: Path, renewal: str | None) -> str:
    records = f"`{renewal or f'aish record FILE -o {show_path(path)}'}` records it, live"
    beside = partial(path)
    if beside.exists():
        return f"a recording was interrupted: `{show_path(beside)}`; {records}"
    return records
