"""Quotes of an answer, looked up in the texts that they may come from.

Pure: passages in, states out. Quotes and passages are normalised alike, and nothing is similar
enough: a quote is there or not. The time is linear in the passages, however many quotes there are;
input that could make it longer is refused.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, compress, islice
from typing import Literal

from aish.agent.runtime import UsedCall
from aish.config.model import Quoted
from aish.core.events import QuoteEvidence, QuoteState
from aish.core.frozen import frozen
from aish.core.json import JsonValue, strict_json
from aish.core.patterns import lazy_pattern
from aish.core.phrases import counted, shorten
from aish.core.tools import ToolName
from aish.engine.expectations.subject import ResultPath, find, parse_path
from aish.policy.rules import matches_tool
from aish.system.schema.check import spell_path
from aish.templates.values import text_of

MOST_QUOTES = 5_000
MOST_CHARACTERS = 16 << 20
_MOST_TRIES = 1 << 20
_MOST_VOTES = 1 << 17
_MOST_SEARCHED = 1 << 28
"""Characters that are searched one quote at a time, where the passages repeat themselves."""
_MOST_COMPARED = 1 << 24
_AROUND = 200
_MOST_SHOWN = 8
_MOST_NEAREST = 3


class TooMuchError(Exception):
    """Input that would take too long; the message completes `got …`."""


_FOREIGN = lazy_pattern(r"[\x00-\x7f]?[^\x00-\x7f]+")
_INVISIBLE = lazy_pattern("[\xad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
# Starters whose decomposition begins with a combining mark.
_MARKS = lazy_pattern("[\u0f73\u0f75\u0f81\uff9e\uff9f]")
_MANY = 30
# The time of NFKC is the square of such a run.
_MANY_MARKS = lazy_pattern(rb"[^\0]{31}")
_TYPOGRAPHIC = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2039\u203a", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\xab\xbb", '"'),
        **dict.fromkeys("\x85\u1680\u2028\u2029", " "),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    }
)
_LIGATURE, _LIGATURE_LENGTH = "\ufdfa", 18
_MANY_SPACES = lazy_pattern("  +")
_ELLIPSIS = lazy_pattern(r" ?(?:\[\.{3}\]|\.{3}) ?")


def normalise(text: str) -> str:
    """The form in which quotes and passages are compared, on one line."""
    # Half the time of joining the words.
    return _MANY_SPACES.sub(" ", _normalise_signs(text).translate(_SPACES)).strip(" ")


def _normalise_lines(text: str) -> list[str]:
    """The same of each line; those that are not empty, joined by spaces, are the form of all."""
    spaced = _MANY_SPACES.sub(" ", _normalise_signs(text).translate(_SPACES_IN_LINES))
    return spaced.replace(" \n", "\n").replace("\n ", "\n").strip(" ").split("\n")


_WHITE = "\t\n\v\f\r\x1c\x1d\x1e\x1f"
_SPACES = str.maketrans(dict.fromkeys(_WHITE, " "))
_SPACES_IN_LINES = str.maketrans(dict.fromkeys(_WHITE.replace("\n", ""), " "))


def _normalise_signs(text: str) -> str:
    return text if text.isascii() else _FOREIGN.sub(_normalise_foreign, text)


def _normalise_foreign(match: re.Match[str]) -> str:
    """Normalise characters beyond ASCII, with the one before that a mark may combine with."""
    text = _INVISIBLE.sub("", match[0])
    if len(text) > _MANY:
        text = _MARKS.sub(lambda mark: unicodedata.normalize("NFKD", mark[0]), text)
        if _MANY_MARKS.search(bytes(map(unicodedata.combining, text))):
            return text
    return unicodedata.normalize("NFKC", text).translate(_TYPOGRAPHIC)


def normalise_quote(text: str) -> str:
    """A quote without the quotation marks around all of it."""
    quote = normalise(text)
    while len(quote) > 1 and quote[0] == quote[-1] and quote[0] in "'\"":
        quote = quote[1:-1].strip()
    return quote


Role = Literal["shown", "hidden", "arguments", "written"]
"""`hidden` is the cut-off part of a result; `written` are arguments of a call that may write."""


@frozen
class Passage:
    """A text that a quote may come from; `call` numbers the call that it belongs to.

    A file belongs to all calls, which may have changed it. `lines` has the number of each line of
    the text in the file `path`, where that is known.
    """

    text: str
    role: Role = "shown"
    call: int | None = None
    name: str | None = None
    path: str | None = None
    lines: Sequence[int] | None = None


@frozen
class Quote:
    """A quote, and the file and line that the answer names for it."""

    path: str
    text: str
    file: JsonValue = None
    line: JsonValue = None


def quotes_of(quoted: Quoted, names: Mapping[str, JsonValue]) -> tuple[Quote, ...]:
    """The quotes of an answer.

    Raises:
        NotThereError: a path of the expectation leads to nothing.
    """
    place = parse_path(quoted.each or "output")
    value = find(place, names)
    entries = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
    if len(entries) > MOST_QUOTES:
        raise TooMuchError(f"{len(entries):,} quotes; {MOST_QUOTES:,} are the most")
    return tuple(
        quote
        for index, entry in entries
        for quote in _quotes_of_entry(quoted, (*place, *(() if index is None else (index,))), entry)
    )


def _quotes_of_entry(quoted: Quoted, place: ResultPath, entry: JsonValue) -> Iterator[Quote]:
    text = _field(entry, quoted.text) if quoted.text else entry
    place = (*place, *(parse_path(quoted.text) if quoted.text else ()))
    file, line = (_field(entry, key) if key else None for key in (quoted.file, quoted.line))
    texts = list(enumerate(text)) if isinstance(text, list) else [(None, text)]
    for index, one in texts:
        path = spell_path((*place, *(() if index is None else (index,))))
        yield Quote(path, one if isinstance(one, str) else "", file, line)


def _field(entry: JsonValue, path: str) -> JsonValue:
    value = entry
    for key in parse_path(path):
        if isinstance(key, str) and isinstance(value, dict):
            value = value.get(key)
        elif isinstance(key, int) and isinstance(value, list) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def call_passages(
    calls: Sequence[UsedCall], tool: str | None, own: Callable[[UsedCall], bool | None]
) -> Iterator[Passage]:
    """The texts of calls; only results of `tool` count, a glob.

    `own` is true for a tool of ours that only reads, false for another of ours, else `None`.
    """
    for index, call in enumerate(calls):
        if call.kind not in {"denied", "bad_arguments"}:
            words = "\n".join(_texts(call.arguments))
            yield Passage(words, "arguments" if own(call) else "written", index)
        server, _, name = call.tool.partition("__")
        if call.kind == "ok" and (tool is None or matches_tool(tool, ToolName(server, name))):
            yield from _result_passages(call, index, is_own=own(call) is not None)


def _result_passages(call: UsedCall, index: int, *, is_own: bool) -> Iterator[Passage]:
    if call.full is not None:
        yield Passage(call.content, call=index)
        hidden = (call.whole, *_texts(call.structured))
        yield from (Passage(text, "hidden", index) for text in hidden)
        return
    located = list(_located(call.structured, index, None)) if is_own else []
    yield from located
    if len(located) != 1 or not call.content.startswith(located[0].text):
        yield Passage(call.content, call=index)
    if not is_own:
        data = call.structured
        if data is None and call.content.lstrip()[:1] in {"{", "["}:
            try:
                data = strict_json(call.content)
            except (ValueError, RecursionError):
                return
        yield from (Passage(text, call=index) for text in _texts(data))


TOOLS_WITH_LINES = (
    *("file_read", "file_search", "py_get_definition", "py_get_signature", "py_get_docstring"),
    *("py_get_class_summary", "py_get_var_declaration", "c_get_definition", "c_get_signature"),
)
"""Tools of packs whose results have texts with their file and lines."""
_TEXT_KEYS = ("content", "source", "signature", "docstring", "text")
_LINE_KEYS = ("start_line", "line")


def _located(data: JsonValue, call: int, path: str | None) -> Iterator[Passage]:
    """The texts in a result of a tool of ours whose file is known, and mostly their lines."""
    if isinstance(data, list):
        for entry in data:
            yield from _located(entry, call, path)
    elif isinstance(data, dict):
        own = data.get("path")
        path = own if isinstance(own, str) else path
        first = next((data[key] for key in _LINE_KEYS if isinstance(data.get(key), int)), None)
        for key, value in data.items():
            if isinstance(value, list | dict):
                yield from _located(value, call, path)
            elif key in _TEXT_KEYS and isinstance(value, str) and path and isinstance(first, int):
                lines = range(first, first + value.count("\n") + 1)
                yield Passage(value, call=call, path=path, lines=lines)


def value_passages(name: str, value: JsonValue) -> Iterator[Passage]:
    """The texts of a value of the template context, and the whole of it as a prompt shows it."""
    if not isinstance(value, str):
        yield Passage(text_of(value), name=name)
    yield from (Passage(text, name=name) for text in _texts(value))


def file_passage(name: str, text: str, calls: int) -> Passage:
    """The text of a file, after that many calls."""
    lines = range(1, text.count("\n") + 2)
    return Passage(text, call=calls, name=name, path=name, lines=lines)


def _texts(value: JsonValue) -> Iterator[str]:
    stack = [value]
    while stack:
        match stack.pop():
            case str() as text if text:
                yield text
            case list() as items:
                stack += reversed(items)
            case dict() as items:
                stack += reversed(items.values())
            case _:
                pass


_HUNK = lazy_pattern(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")


def diff_passages(name: str, text: str) -> Iterator[Passage]:
    """The hunks of a unified diff without their first column; lines count in the new file.

    A hunk that removes and adds lines is also there as the file was before it and as it is now.
    """
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    path = old_path = ""
    for line in lines:
        if line.startswith("--- "):
            old_path = _diff_path(line[4:])
        elif line.startswith("+++ "):
            path = _diff_path(line[4:]) or old_path
        elif match := _HUNK.match(line):
            old, number, new = int(match[1] or 1), int(match[2]), int(match[3] or 1)
            rows: list[tuple[str, str, int]] = []
            while old > 0 or new > 0:
                row = next(lines, None)
                if row is None:
                    break
                sign = row[:1] or " "
                if sign not in " +-":
                    continue
                rows.append((sign, row[1:], number))
                old, new = old - (sign != "+"), new - (sign != "-")
                number += sign != "-"
            signs = {sign for sign, _, _ in rows}
            for left_out in ("", "-", "+") if {"-", "+"} <= signs else ("",):
                side = [row for row in rows if row[0] != left_out]
                joined = "\n".join(row for _, row, _ in side)
                yield Passage(joined, name=name, path=path, lines=[at for *_, at in side])


_ESCAPE = lazy_pattern(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)


def _unescape(match: re.Match[bytes]) -> bytes:
    """A byte of a quoted name, as git writes those beyond ASCII."""
    return match[1] if len(match[1]) == 1 else bytes([int(match[1], 8)])


def _diff_path(name: str) -> str:
    name = name.partition("\t")[0].strip()
    if name.startswith('"') and name.endswith('"'):
        raw = _ESCAPE.sub(_unescape, name[1:-1].encode("utf-8", "replace"))
        name = raw.decode("utf-8", "replace")
    return "" if name == "/dev/null" else name.removeprefix("a/" if name.startswith("a/") else "b/")


class _Texts:
    """Normalised passages, joined by line ends, which no quote has; `starts` are their places."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        given = sum(
            len(one.text) + one.text.count(_LIGATURE) * _LIGATURE_LENGTH for one in passages
        )
        if given > MOST_CHARACTERS:
            raise TooMuchError(f"sources of {given:,} characters; {MOST_CHARACTERS:,} are the most")
        texts = [normalise(passage.text) for passage in passages]
        self.passages = passages
        self.starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
        self.whole = "\n".join(texts)
        self._searched = 0
        self._line_starts: dict[int, Sequence[int]] = {}

    def passage_at(self, place: int) -> int:
        return bisect_right(self.starts, place) - 1

    def end(self, passage: int) -> int:
        return self.starts[passage + 1] - 1

    def line_starts(self, passage: int) -> Sequence[int]:
        """The place of each line of a passage."""
        if passage not in self._line_starts:
            lengths = map(len, _normalise_lines(self.passages[passage].text))
            steps = [length + 1 if length else 0 for length in lengths]
            self._line_starts[passage] = list(accumulate(steps, initial=self.starts[passage]))[:-1]
        return self._line_starts[passage]

    def line_at(self, passage: int, place: int) -> int | None:
        lines = self.passages[passage].lines
        if not lines:
            return None
        index = bisect_right(self.line_starts(passage), place) - 1
        return lines[min(index, len(lines) - 1)]

    def search(self, needles: Iterable[str]) -> Mapping[str, Mapping[int, int]]:
        """For each text the passages that have it, and its first place in each.

        Raises:
            TooMuchError: the passages repeat themselves too often.
        """
        found: dict[str, dict[int, int]] = {needle: {} for needle in needles}
        plain = {needle for needle in found if len(needle) < _least(_SMALLEST)}
        by_block = {needle: places for needle, places in found.items() if needle not in plain}
        if by_block:
            # As large as the shortest of them allows: the larger, the fewer blocks there are.
            size = min((min(map(len, by_block)) + 1) // 2, _LARGEST)
            plain |= self._search_blocks(by_block, size)
        for needle in plain:
            found[needle] = self._find_each(needle)
        return found

    def _search_blocks(self, found: Mapping[str, dict[int, int]], size: int) -> set[str]:
        """Find texts by one block of theirs; returns those that occur too often for that."""
        blocks: dict[str, list[tuple[str, int]]] = {}
        for needle in found:
            for offset in _offsets(needle, size):
                blocks.setdefault(needle[offset : offset + size], []).append((needle, offset))
        left = {needle: max(64, _MOST_COMPARED // len(needle)) for needle in found}
        tries = 0
        for place in self._places(blocks, size):
            for needle, offset in blocks[self.whole[place : place + size]]:
                start = place - offset
                if left[needle] and start >= 0 and self.whole.startswith(needle, start):
                    passage = self.passage_at(start)
                    first = found[needle].get(passage, start)
                    found[needle][passage] = min(start, first)
                left[needle] = max(left[needle] - 1, 0)
                tries += 1
            if tries > _MOST_TRIES:
                return set(found)
        return {needle for needle, some in left.items() if not some}

    def _places(self, blocks: Mapping[str, object], size: int) -> Iterable[int]:
        """The places of blocks, among every `size`th."""
        if not blocks:
            return ()
        # One call for all slices, and one for all look-ups: half the time of a loop.
        pieces = re.findall(f"(?s).{{{size}}}", self.whole)
        places = range(0, len(self.whole), size)
        return compress(places, map(blocks.__contains__, pieces))

    def _find_each(self, needle: str) -> dict[int, int]:
        places: dict[int, int] = {}
        begin = 0
        while begin < len(self.whole):
            place = self.whole.find(needle, begin)
            self._searched += (len(self.whole) if place < 0 else place) - begin
            if self._searched > _MOST_SEARCHED:
                raise TooMuchError("sources that repeat themselves too often to be searched")
            if place < 0:
                break
            passage = self.passage_at(place)
            places[passage] = place
            begin = self.starts[passage + 1]
        return places

    def nearest(self, needles: Sequence[str]) -> Mapping[str, tuple[int, int, int]]:
        """For each text that is not there the passage with most in common: it, begin and end."""
        size = min(max(min(map(len, needles), default=0) // 3, _SMALLEST), _LARGEST)
        blocks: dict[str, list[tuple[str, int]]] = {}
        for needle in needles:
            for offset in range(min(len(needle), _LONGEST_COMPARED) - size + 1):
                entries = blocks.setdefault(needle[offset : offset + size], [])
                if len(entries) < _MOST_NEAREST * 2:
                    entries.append((needle, offset))
        votes: dict[tuple[str, int], list[int]] = {}
        for place in islice(self._places(blocks, size), _MOST_VOTES):
            for needle, offset in blocks[self.whole[place : place + size]]:
                start = max(place - offset, 0)
                vote = votes.setdefault((needle, start >> 5), [0, start])
                vote[0] += 1
                vote[1] = min(vote[1], start)
        best: dict[str, tuple[int, int, int]] = {}
        for (needle, _), (count, start) in sorted(votes.items(), key=lambda one: -one[1][0]):
            enough = count * size * 4 >= min(len(needle), _LONGEST_COMPARED)
            passage = self.passage_at(min(start + len(needle) // 2, len(self.whole) - 1))
            if needle not in best and enough and self.passages[passage].role == "shown":
                begin = self.whole.rfind(" ", 0, max(start - _BESIDE, 1)) + 1
                begin = max(begin, self.starts[passage])
                end = self.whole.find(" ", start + len(needle) + _BESIDE)
                limit = self.end(passage)
                best[needle] = passage, begin, limit if end < 0 else min(end, limit)
        return best


_SMALLEST, _LARGEST = 6, 16
"""Lengths of the blocks by which texts are found; every nth block of the passages is looked at."""
_LONGEST_COMPARED = 2_000
_BESIDE = 12


def _least(size: int) -> int:
    """The length of a text that has a whole block wherever it begins."""
    return 2 * size - 1


def _offsets(needle: str, size: int) -> Iterator[int]:
    """For each way to begin within a block, the offset of the most telling block."""
    last = len(needle) - size
    for first in range(size):
        choices = range(first, min(last, first + 2 * size) + 1, size)
        yield max(choices, key=lambda at: len(set(needle[at : at + size])))


@frozen
class Found:
    """The result for a quote; `begin` and `end` are its place among all passages, if it has one."""

    quote: Quote
    state: QuoteState
    passage: int | None = None
    begin: int = 0
    end: int = 0
    left_out: tuple[str, ...] = ()


@frozen
class _Place:
    passage: int
    begin: int
    end: int
    left_out: tuple[str, ...] = ()


class QuoteSearch:
    """Looks up quotes in passages."""

    def __init__(self, passages: Iterable[Passage], quoted: Quoted) -> None:
        self.texts = _Texts(tuple(passages))
        self._quoted = quoted

    def look_up(self, quotes: Sequence[Quote]) -> tuple[Found, ...]:
        """The state of each quote.

        Raises:
            TooMuchError: there is too much to look up.
        """
        given = sum(len(quote.text) for quote in quotes)
        if len(quotes) > MOST_QUOTES or given > MOST_CHARACTERS:
            raise TooMuchError(f"{len(quotes):,} quotes of {given:,} characters")
        normal = [normalise_quote(quote.text) for quote in quotes]
        long = [text for text in normal if len(text) >= self._quoted.min_length]
        parts = {text: self._parts(text) for text in long}
        needles = dict.fromkeys([*long, *(part for some in parts.values() for part in some)])
        found = self.texts.search(needle for needle in needles if needle)
        return tuple(
            self._state(quote, text, parts.get(text), found)
            for quote, text in zip(quotes, normal, strict=True)
        )

    def _parts(self, text: str) -> tuple[str, ...]:
        """The parts of a quote that leaves something out, if that is allowed."""
        if not self._quoted.ellipsis or not _ELLIPSIS.search(text):
            return ()
        return tuple(part for part in _ELLIPSIS.split(text) if part)

    def _state(
        self,
        quote: Quote,
        text: str,
        parts: tuple[str, ...] | None,
        found: Mapping[str, Mapping[int, int]],
    ) -> Found:
        if parts is None:
            return Found(quote, "short")
        places = [_Place(at, begin, begin + len(text)) for at, begin in found[text].items()]
        words = [text]
        if not places and parts:
            if any(len(part) < self._quoted.min_length for part in parts):
                return Found(quote, "short")
            words = list(parts)
            shared = set.intersection(*(set(found[part]) for part in parts))
            places = [place for at in sorted(shared) for place in self._elided(at, parts)]
        passages = self.texts.passages
        spoken = set.intersection(*(set(found[word]) for word in words))
        by_role = {role: [p for p in places if passages[p.passage].role == role] for role in _ROLES}
        own = [passages[at] for at in spoken if passages[at].role in {"arguments", "written"}]
        usable = [p for p in by_role["shown"] if not _is_own(passages[p.passage], own)]
        state: QuoteState = "found"
        place: _Place | None
        if usable:
            place = self._claimed(quote, words, usable)
            if place is None:
                state, place = "elsewhere", usable[0]
        elif by_role["shown"]:
            state, place = "own_words", by_role["shown"][0]
        else:
            place = next(iter(by_role["hidden"]), None)
            state = "missing" if place is None else "not_shown"
        if place is None:
            return Found(quote, state)
        return Found(quote, state, place.passage, place.begin, place.end, place.left_out)

    def _elided(self, passage: int, parts: Sequence[str]) -> Iterator[_Place]:
        """The first place in a passage that has the parts in their order, near enough."""
        whole, last, most = self.texts.whole, self.texts.end(passage), self._quoted.ellipsis
        begin, tries = self.texts.starts[passage], 0
        while tries < _MOST_STARTS and (begin := whole.find(parts[0], begin, last)) >= 0:
            tries += 1
            # From each place that a part may end at, those of the next one.
            ends: dict[int, tuple[str, ...]] = {begin + len(parts[0]): ()}
            for part in parts[1:]:
                reached: dict[int, tuple[str, ...]] = {}
                for end, left_out in ends.items():
                    limit, at = min(end + most + 2 + len(part), last), end
                    while len(reached) < _MOST_STARTS and (at := whole.find(part, at, limit)) >= 0:
                        gap = whole[end:at].strip()
                        if len(gap) <= most:
                            reached.setdefault(at + len(part), (*left_out, gap))
                        at += 1
                ends = reached
            if ends:
                end, left_out = next(iter(ends.items()))
                yield _Place(passage, begin, end, left_out)
                return
            begin += 1

    def _claimed(
        self, quote: Quote, words: Sequence[str], places: Sequence[_Place]
    ) -> _Place | None:
        """The place that the answer names; any, if nothing is known of files and lines."""
        quoted, passages = self._quoted, self.texts.passages
        located = [place for place in places if passages[place.passage].path is not None]
        if not quoted.file and not quoted.line:
            return (located or places)[0]
        for place in located:
            path = passages[place.passage].path or ""
            if quoted.file and not (isinstance(quote.file, str) and _same_path(quote.file, path)):
                continue
            near = self._near(quote, words, place) if quoted.line else place
            if near is not None:
                return near
        return None if located else places[0]

    def _near(self, quote: Quote, words: Sequence[str], place: _Place) -> _Place | None:
        """The place of a quote near its line, in the passage of another place."""
        lines = self.texts.passages[place.passage].lines
        wanted, within = _line_number(quote.line), self._quoted.within
        if lines is None:
            return place
        if wanted is None:
            return None
        first, last = bisect_left(lines, wanted - within), bisect_right(lines, wanted + within)
        starts = self.texts.line_starts(place.passage)
        if first >= last or first >= len(starts):
            return None
        begin, end = starts[first], self.texts.end(place.passage)
        before = starts[last] if last < len(starts) else end + 1
        if len(words) > 1:
            return place if begin <= place.begin < before else None
        at = self.texts.whole.find(words[0], begin, min(before - 1 + len(words[0]), end))
        return _Place(place.passage, at, at + len(words[0])) if at >= 0 else None


_ROLES: tuple[Role, ...] = ("shown", "hidden")
_MOST_STARTS = 64


def _is_own(shown: Passage, own: Sequence[Passage]) -> bool:
    """Return true if the words were an argument of the call, or written before it."""
    return shown.call is not None and any(
        words.call is not None
        and (words.call == shown.call or (words.role == "written" and words.call < shown.call))
        for words in own
    )


def _same_path(named: str, path: str) -> bool:
    return _plain_path(named) == _plain_path(path)


def _plain_path(path: str) -> list[str]:
    return [part for part in path.strip().split("/") if part not in {"", "."}]


def _line_number(value: JsonValue) -> int | None:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        return int(value.strip()[:9])
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def evidence_of(found: Found, search: QuoteSearch, calls: Sequence[UsedCall]) -> QuoteEvidence:
    """The record of a quote for events and reports."""
    quote = found.quote
    text = shorten(" ".join(quote.text.split()), _AROUND)
    if found.passage is None:
        return QuoteEvidence(quote.path, found.state, text)
    texts, passage = search.texts, search.texts.passages[found.passage]
    call = calls[passage.call] if passage.call is not None and passage.name is None else None
    place = None if call is None else call.place
    spare = max(_AROUND - (found.end - found.begin), 0) // 2
    begin = max(found.begin - spare, texts.starts[found.passage])
    return QuoteEvidence(
        quote.path,
        found.state,
        text,
        step=None if place is None else place.step,
        turn=None if place is None else place.turn,
        call=None if place is None else place.call,
        tool=None if call is None else call.tool,
        source=passage.name,
        file=passage.path,
        line=texts.line_at(found.passage, found.begin),
        around=texts.whole[begin : min(begin + _AROUND, texts.end(found.passage))],
        left_out=tuple(shorten(gap, _AROUND) for gap in found.left_out),
    )


_REASONS: Mapping[QuoteState, str] = {
    "missing": "not in the sources",
    "not_shown": "only in the part that was not shown",
    "own_words": "the model's own words",
    "short": "too short to prove anything",
    "elsewhere": "elsewhere",
}


def describe(found: Sequence[Found], evidence: Sequence[QuoteEvidence], search: QuoteSearch) -> str:
    """The count of the quotes that were found, and lines about the others."""
    good = sum(one.state == "found" for one in found)
    if not found:
        return "0 quotes"
    lines = [f"{good:,} of {counted(len(found), 'quote')} found"]
    bad = [pair for pair in zip(found, evidence, strict=True) if pair[0].state != "found"]
    lost = [normalise_quote(one.quote.text) for one, _ in bad if one.state == "missing"]
    nearest = search.texts.nearest(lost[:_MOST_NEAREST])
    for one, told in bad[:_MOST_SHOWN]:
        where = _where(told)
        reason = _REASONS[one.state] + (f", in {where}" if where else "")
        lines += (f"  {one.quote.path}: {reason}", f"  - {told.quote}")
        near = nearest.get(normalise_quote(one.quote.text)) if one.state == "missing" else None
        if near is not None:
            text = search.texts.whole[near[1] : near[2]]
            lines.append(f"  + {shorten(text, _AROUND)}")
    if len(bad) > _MOST_SHOWN:
        lines.append(f"  … {len(bad) - _MOST_SHOWN:,} more")
    lines += [
        f"  {one.quote.path}: leaves out `{'`, `'.join(told.left_out)}`"
        for one, told in zip(found, evidence, strict=True)
        if told.left_out
    ][:_MOST_SHOWN]
    return "\n".join(lines)


def _where(told: QuoteEvidence) -> str:
    place = told.file or told.source or ""
    if place and told.line is not None:
        place += f":{told.line}"
    if told.tool is None:
        return place and f"`{place}`"
    return f"`{place}` ({told.tool})" if place else f"`{told.tool}`"
