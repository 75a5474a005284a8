"""Pipeline files to test, and cassettes that no test uses."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.features.yaml_files import SUFFIXES, files_below, is_cassette, is_pipeline, read_start
from aish.system.files import PROJECT_FILE

USUAL = Path("pipelines")
"""Where pipelines are looked for if nothing is said, it is there, and the folder has no file."""

_TESTED = re.compile(rb"""^(?:\{\s*)?["']?(?:tests|extends)["']?[ \t]*:""", re.MULTILINE)


@frozen
class FileSearch:
    """The files found for the given paths; `searched` says that a file was found in a folder."""

    files: tuple[Path, ...]
    searched: frozenset[Path]

    @property
    def whole(self) -> bool:
        """True if only folders were given, so that nothing in them was left out."""
        return len(self.searched) == len(self.files)


def find_files(paths: Sequence[Path]) -> FileSearch:
    """The pipeline files among `paths` and below them, each once, in the order given."""
    if not paths:
        paths = (USUAL if USUAL.is_dir() and not Path(PROJECT_FILE).exists() else Path(),)
    files: dict[Path, Path] = {}
    searched: set[Path] = set()
    for path in paths:
        if path.is_dir():
            for file in filter(_is_meant, files_below(path)):
                if file.resolve() not in files:
                    files[file.resolve()] = file
                    searched.add(file)
        elif path.exists():
            first = files.setdefault(path.resolve(), path)
            searched.discard(first)
        else:
            raise UsageError("there is no such file or folder", where=str(path))
    if not files:
        named = backticked(paths)
        hint = "a pipeline is a `.yaml` file with `aish: 1`; `aish init` writes one"
        raise UsageError(f"no pipeline files in {named}", hint=hint)
    return FileSearch(tuple(files.values()), frozenset(searched))


def may_have_tests(file: Path) -> bool:
    """Guess whether a file that cannot be loaded has tests, of its own or inherited."""
    return _TESTED.search(read_start(file)) is not None


def orphans(used: Iterable[Path]) -> tuple[Path, ...]:
    """The cassettes in the folders of those in `used` that are not among these."""
    known = {path.resolve() for path in used}
    files: list[Path] = []
    for folder in sorted({path.parent for path in known}):
        if not folder.is_dir():
            continue
        files += (
            path
            for path in sorted(folder.iterdir())
            if path.suffix in SUFFIXES and path.resolve() not in known and is_cassette(path)
        )
    return tuple(files)


def _is_meant(file: Path) -> bool:
    return file.suffix in SUFFIXES and is_pipeline(file)
