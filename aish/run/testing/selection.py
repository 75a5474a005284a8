"""`-k EXPR`: which cases are meant, by words that occur in their names.

The simple form of pytest's: a word occurs in the name, whatever the case of its letters; `not`,
`and`, `or` and parentheses join words; what has spaces in it stands in quotes.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from aish.core.errors import UsageError

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
