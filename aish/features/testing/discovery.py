"""Pipeline files to test, cassettes that no test uses, and the cases that `-k` means (C12)."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.features.yaml_files import SUFFIXES, beginning, files_below, is_cassette, is_pipeline

USUAL = Path("pipelines")
"""Where pipelines are looked for if nothing is said and it is there."""

_TESTED = re.compile(rb"""^(?:\{\s*)?["']?(?:tests|extends)["']?[ \t]*:""", re.MULTILINE)


@frozen
class Search:
    """What the given paths lead to; `searched` says of a file that it was found in a folder."""

    files: tuple[Path, ...]
    searched: frozenset[Path]

    @property
    def whole(self) -> bool:
        """Whether only folders were given, so that nothing in them was left out."""
        return len(self.searched) == len(self.files)


def find_files(paths: Sequence[Path]) -> Search:
    """The pipeline files among `paths` and below them, each once, in the order given.

    Raises:
        UsageError: a path does not exist, or there is no pipeline at all.
    """
    if not paths:
        paths = (USUAL if USUAL.is_dir() else Path(),)
    found: dict[Path, Path] = {}
    searched: set[Path] = set()
    for path in paths:
        if path.is_dir():
            for file in filter(_is_meant, files_below(path)):
                if file.resolve() not in found:
                    found[file.resolve()] = file
                    searched.add(file)
        elif path.exists():
            shown = found.setdefault(path.resolve(), path)
            searched.discard(shown)
        else:
            raise UsageError("there is no such file or folder", where=str(path))
    if not found:
        named = backticked(paths)
        hint = "a pipeline is a `.yaml` file with `aish: 1`; `aish init` writes one"
        raise UsageError(f"no pipeline files in {named}", hint=hint)
    return Search(tuple(found.values()), frozenset(searched))


def may_have_tests(file: Path) -> bool:
    """Whether a file that cannot be loaded looks as if it had tests, of its own or inherited."""
    return _TESTED.search(beginning(file)) is not None


def orphans(used: Iterable[Path]) -> tuple[Path, ...]:
    """The cassettes in the folders of those in `used` that are not among these."""
    known = {path.resolve() for path in used}
    found: list[Path] = []
    for folder in sorted({path.parent for path in known}):
        if not folder.is_dir():
            continue
        found += (
            path
            for path in sorted(folder.iterdir())
            if path.suffix in SUFFIXES and path.resolve() not in known and is_cassette(path)
        )
    return tuple(found)


def _is_meant(file: Path) -> bool:
    return file.suffix in SUFFIXES and is_pipeline(file)


Selection = Callable[[str], bool]
"""Whether the case of a name (`pipelines/notes.yaml::writes notes`) is meant."""

_LONGEST = 10_000
_DEEPEST = 100
_TOKEN = re.compile(r"""\s*(?:([()])|"([^"]*)"|'([^']*)'|([^\s()"']+))""")
_HINT = "words joined by `and`, `or`, `not`; quotes around what has spaces"


def everything(name: str) -> bool:
    """The selection where nothing was said."""
    del name
    return True


def parse_selection(text: str) -> Selection:
    """What an expression selects; an empty one selects everything.

    Raises:
        UsageError: it is no such expression.
    """
    if len(text) > _LONGEST:
        raise _wrong(f"longer than {_LONGEST} characters")
    reader = _Reader(tuple(_tokens(text)))
    return reader.whole() if text.strip() else everything


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Each token with its kind: itself where it is a sign or a joining word, else `word`."""
    place = 0
    while text[place:].strip():
        found = _TOKEN.match(text, place)
        if found is None:
            raise _wrong("a quote that is not closed")
        place = found.end()
        sign, double, single, word = found.groups()
        quoted = double if double is not None else single
        if quoted is not None:
            yield "word", quoted
        elif sign or word in {"and", "or", "not"}:
            yield sign or word, sign or word
        else:
            yield "word", word


class _Reader:
    """Reads from left to right; `or` binds weakest, `not` strongest."""

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self._tokens = (*tokens, ("end", "the end"))
        self._place = 0
        self._depth = 0

    def whole(self) -> Selection:
        """The expression with nothing after it."""
        found = self._any()
        if self._next != "end":
            raise self._unexpected("`and`, `or` or the end")
        return found

    @property
    def _next(self) -> str:
        return self._tokens[self._place][0]

    def _takes(self, kind: str) -> bool:
        if self._next != kind:
            return False
        self._place += 1
        return True

    def _any(self) -> Selection:
        found = [self._all()]
        while self._takes("or"):
            found.append(self._all())
        return found[0] if len(found) == 1 else lambda name: any(one(name) for one in found)

    def _all(self) -> Selection:
        found = [self._one()]
        while self._takes("and"):
            found.append(self._one())
        return found[0] if len(found) == 1 else lambda name: all(one(name) for one in found)

    def _one(self) -> Selection:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _wrong("nested too deeply")
        found = self._term()
        self._depth -= 1
        return found

    def _term(self) -> Selection:
        if self._takes("not"):
            inner = self._one()
            return lambda name: not inner(name)
        if self._takes("("):
            found = self._any()
            if not self._takes(")"):
                raise self._unexpected("`)`")
            return found
        word = self._tokens[self._place][1].casefold()
        if not self._takes("word"):
            raise self._unexpected("a word")
        return lambda name: word in name.casefold()

    def _unexpected(self, wanted: str) -> UsageError:
        kind, text = self._tokens[self._place]
        found = text if kind == "end" else f"`{text}`"
        return _wrong(f"expected {wanted}, found {found}")


def _wrong(what: str) -> UsageError:
    return UsageError(what, where="-k", hint=_HINT)
