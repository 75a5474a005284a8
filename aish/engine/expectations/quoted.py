"""Quotes of an answer, looked up in the texts that they may come from.

Pure: passages in, states out. Quotes and passages are normalised alike, and nothing is similar
enough: a quote is there or not. The time is linear in the passages, however many quotes there are;
input that could make it longer is refused.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal
from urllib.parse import unquote_plus

from aish.agent.runtime import UsedCall
from aish.config.model import Quoted
from aish.core.events import QuoteEvidence, QuoteState
from aish.core.frozen import frozen, replace
from aish.core.json import JsonValue, json_text, strict_json
from aish.core.patterns import lazy_pattern
from aish.core.phrases import counted, shorten
from aish.core.text_diff import equal_start
from aish.core.tools import ToolName
from aish.engine.expectations.subject import NotThereError, ResultPath, find, parse_path
from aish.policy.rules import matches_tool
from aish.system.schema.check import spell_path
from aish.templates.values import text_of

MOST_QUOTES = 5_000
MOST_CHARACTERS = 16 << 20
_MOST_STEPS = 1 << 21
"""Kibibytes that are searched, and places that are looked at."""
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
    return " ".join(filter(None, _normalise_lines(text)))


def _normalise_lines(text: str) -> list[str]:
    text = text if text.isascii() else _FOREIGN.sub(_normalise_foreign, text)
    spaced = _MANY_SPACES.sub(" ", text.translate(_SPACES))
    return spaced.replace(" \n", "\n").replace("\n ", "\n").strip(" ").split("\n")


_SPACES = str.maketrans(dict.fromkeys("\t\v\f\r\x1c\x1d\x1e\x1f", " "))


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
    # An entry without any quote has nothing to bear it out.
    texts = list(enumerate(text)) if isinstance(text, list) and text else [(None, text)]
    for index, one in texts:
        path = spell_path((*place, *(() if index is None else (index,))))
        yield Quote(path, one if isinstance(one, str) else "", file, line)


def _field(entry: JsonValue, path: str) -> JsonValue:
    try:
        return find(parse_path(path), {} if entry is None else entry)
    except NotThereError:
        return None


def call_passages(
    calls: Sequence[UsedCall], tool: str | None, own: Callable[[UsedCall], bool | None]
) -> Iterator[Passage]:
    """The texts of calls; only results of `tool` count, a glob.

    `own` is true for a tool of ours that only reads, false for another of ours, else `None`.
    """
    for index, call in enumerate(calls):
        if call.kind not in {"denied", "bad_arguments"}:
            yield Passage(_words_of(call), "arguments" if own(call) else "written", index)
        server, _, name = call.tool.partition("__")
        if call.kind == "ok" and (tool is None or matches_tool(tool, ToolName(server, name))):
            yield from _result_passages(call, index, is_own=own(call) is not None)


def _words_of(call: UsedCall) -> str:
    """The arguments of a call in the forms that an echo may have: texts, of an URL, and JSON."""
    texts = list(_texts(call.arguments))
    decoded = (unquote_plus(text) for text in texts if "%" in text or "+" in text)
    return "\n".join([*texts, json_text(call.arguments, spaced=True), *decoded])


def _result_passages(call: UsedCall, index: int, *, is_own: bool) -> Iterator[Passage]:
    located = list(_located(call.structured, index, None)) if is_own else []
    if call.full is not None:
        yield from _shown_ends(located, call.content)
        yield Passage(call.content, call=index)
        hidden = (call.whole, *_texts(call.structured))
        yield from (Passage(text, "hidden", index) for text in hidden)
        return
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


def _shown_ends(located: Sequence[Passage], content: str) -> Iterator[Passage]:
    """The beginning and the end of a single text, which is shown without its middle."""
    for whole in located if len(located) == 1 else ():
        text, lines = whole.text, whole.lines or ()
        last = len(text) - equal_start(text[::-1], content[::-1])
        for begin, end in ((0, equal_start(text, content)), (last, None)):
            first = text.count("\n", 0, begin)
            yield replace(whole, text=text[begin:end], lines=lines[first:])


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
_CONTROLS = bytes.maketrans(b"abtnvfr", b"\a\b\t\n\v\f\r")


def _unescape(match: re.Match[bytes]) -> bytes:
    """A byte of a quoted name, as git writes control characters and those beyond ASCII."""
    return match[1].translate(_CONTROLS) if len(match[1]) == 1 else bytes([int(match[1], 8)])


def _diff_path(name: str) -> str:
    name = name.partition("\t")[0].strip()
    if name.startswith('"') and name.endswith('"'):
        raw = _ESCAPE.sub(_unescape, name[1:-1].encode("utf-8", "replace"))
        name = raw.decode("utf-8", "replace")
    return "" if name == "/dev/null" else name.removeprefix("a/" if name.startswith("a/") else "b/")


@frozen
class _Place:
    """A place in the passages; `left_out` is what an ellipsis stands for."""

    passage: int
    begin: int
    end: int
    left_out: tuple[str, ...] = ()


@frozen
class Found:
    """The result for a quote."""

    quote: Quote
    state: QuoteState
    place: _Place | None = None


_ORDER: Mapping[Role, int] = {"arguments": 0, "written": 0, "shown": 1, "hidden": 2}


class QuoteSearch:
    """Looks up quotes in passages: normalised, and joined by line ends, which no quote has.

    Each text is searched by itself: its time is linear in the passages, however they repeat.

    Raises:
        TooMuchError: there is too much to look up.
    """

    def __init__(self, passages: Iterable[Passage], quoted: Quoted) -> None:
        # Own words first: they decide whether what follows is evidence.
        self.passages = tuple(sorted(passages, key=lambda one: _ORDER[one.role]))
        self._quoted = quoted
        given = sum(
            len(one.text) + one.text.count(_LIGATURE) * _LIGATURE_LENGTH for one in self.passages
        )
        if given > MOST_CHARACTERS:
            raise TooMuchError(f"sources of {given:,} characters; {MOST_CHARACTERS:,} are the most")
        self._line_starts: dict[int, Sequence[int]] = {}
        self.starts = [0]
        texts: list[str] = []
        for at, passage in enumerate(self.passages):
            rows = _normalise_lines(passage.text)
            texts.append(" ".join(filter(None, rows)))
            if passage.lines:
                steps = (len(row) + 1 if row else 0 for row in rows[:-1])
                self._line_starts[at] = list(accumulate(steps, initial=self.starts[at]))
            self.starts.append(self.starts[at] + len(texts[at]) + 1)
        self.whole = "\n".join(texts)
        self._steps = 0

    def look_up(self, quotes: Sequence[Quote]) -> tuple[Found, ...]:
        """The state of each quote.

        Raises:
            TooMuchError: there is too much to look up.
        """
        given = sum(len(quote.text) for quote in quotes)
        if len(quotes) > MOST_QUOTES or given > MOST_CHARACTERS:
            raise TooMuchError(f"{len(quotes):,} quotes of {given:,} characters")
        return tuple(self._state(quote, normalise_quote(quote.text)) for quote in quotes)

    def end(self, passage: int) -> int:
        return self.starts[passage + 1] - 1

    def line_at(self, place: _Place) -> int | None:
        """The line that a place begins in, if that is known."""
        lines = self.passages[place.passage].lines
        if not lines:
            return None
        index = bisect_right(self._line_starts[place.passage], place.begin) - 1
        return lines[min(index, len(lines) - 1)]

    def _state(self, quote: Quote, text: str) -> Found:
        least = self._quoted.min_length
        if len(text) < least:
            return Found(quote, "short")
        found = self._find(quote, [text], self._holders(text))
        if found.state != "missing" or not self._quoted.ellipsis or not _ELLIPSIS.search(text):
            return found
        parts = [part for part in _ELLIPSIS.split(text) if part]
        if any(len(part) < least for part in parts):
            return Found(quote, "short")
        holders = set.intersection(*(set(self._holders(part)) for part in parts))
        return self._find(quote, parts, sorted(holders))

    def _find(self, quote: Quote, parts: Sequence[str], holders: Iterable[int]) -> Found:
        """The state of a quote whose parts are in these passages; they are read as far as needed.

        The best state counts, and the first place that has it.
        """
        own: list[Passage] = []
        best, is_located = Found(quote, "missing"), False
        for at in holders:
            passage = self.passages[at]
            if passage.role in {"arguments", "written"}:
                own.append(passage)
                continue
            if (place := self._match(at, parts)) is None:
                continue
            if passage.role == "hidden" or _is_own(passage, own):
                state: QuoteState = "not_shown" if passage.role == "hidden" else "own_words"
                best = best if best.place else Found(quote, state, place)
                continue
            if best.state != "found":
                best = Found(quote, "found", place)
            if passage.path is not None:
                is_located = True
                if claimed := self._claimed(quote, parts, place):
                    return Found(quote, "found", claimed)
        return replace(best, state="elsewhere") if is_located else best

    def _holders(self, text: str) -> Iterator[int]:
        """The passages that have a text, in their order."""
        self._count((len(self.whole) >> 10) + 1)
        place = -1
        while (place := self.whole.find(text, place + 1)) >= 0:
            passage = bisect_right(self.starts, place) - 1
            yield passage
            place = self.end(passage)
            self._count(1)

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise TooMuchError("more sources and quotes than can be compared")

    def _match(
        self, passage: int, parts: Sequence[str], begin: int = 0, before: int | None = None
    ) -> _Place | None:
        """The first place that has the parts in their order, near enough, and begins there."""
        whole, last, most = self.whole, self.end(passage), self._quoted.ellipsis
        begin = max(begin, self.starts[passage])
        limit = last if before is None else min(before - 1 + len(parts[0]), last)
        while (begin := whole.find(parts[0], begin, limit)) >= 0:
            # From each place that a part may end at, those of the next one.
            ends: dict[int, tuple[str, ...]] = {begin + len(parts[0]): ()}
            for part in parts[1:]:
                reached: dict[int, tuple[str, ...]] = {}
                for end, left_out in ends.items():
                    at = end
                    while (at := whole.find(part, at, min(end + most + 2 + len(part), last))) >= 0:
                        self._count(1)
                        gap = whole[end:at].strip()
                        if len(gap) <= most:
                            reached.setdefault(at + len(part), (*left_out, gap))
                        at += 1
                ends = reached
            for end, left_out in ends.items():
                return _Place(passage, begin, end, left_out)
            self._count(1)
            begin += 1
        return None

    def _claimed(self, quote: Quote, parts: Sequence[str], place: _Place) -> _Place | None:
        """The place, or one beside it, if that is in the file and near the line of the answer."""
        path = self.passages[place.passage].path or ""
        if self._quoted.file and not (
            isinstance(quote.file, str) and _plain_path(quote.file) == _plain_path(path)
        ):
            return None
        return self._near(quote, parts, place) if self._quoted.line else place

    def _near(self, quote: Quote, parts: Sequence[str], place: _Place) -> _Place | None:
        """The place of a quote near its line, in the passage of another place."""
        lines, wanted = self.passages[place.passage].lines, _line_number(quote.line)
        if lines is None or wanted is None:
            return None if wanted is None else place
        within, starts = self._quoted.within, self._line_starts.get(place.passage, ())
        first, last = bisect_left(lines, wanted - within), bisect_right(lines, wanted + within)
        if first >= min(last, len(starts)):
            return None
        return self._match(place.passage, parts, starts[first], *starts[last : last + 1])

    def nearest(self, text: str) -> str | None:
        """The words of the sources that have most in common with a text that is not there."""
        size = min(max(len(text) // 3, _SMALLEST), _LARGEST)
        last = min(len(text), _LONGEST_COMPARED) - size
        offsets = range(0, last + 1, max(last // _MOST_PIECES, 1))
        votes: dict[int, list[int]] = {}
        for offset in offsets:
            place = -1
            for _ in range(_MOST_PIECES):
                place = self.whole.find(text[offset : offset + size], place + 1)
                if place < 0:
                    break
                start = max(place - offset, 0)
                votes.setdefault(start >> 5, []).append(start)
        for starts in sorted(votes.values(), key=len, reverse=True):
            passage = bisect_right(self.starts, min(starts) + len(text) // 2) - 1
            passage = min(passage, len(self.passages) - 1)
            if len(starts) * 4 >= len(offsets) and self.passages[passage].role == "shown":
                begin = self.whole.rfind(" ", 0, max(min(starts) - _BESIDE, 1)) + 1
                end = self.whole.find(" ", min(starts) + len(text) + _BESIDE)
                limit = self.end(passage)
                end = limit if end < 0 else min(end, limit)
                return self.whole[max(begin, self.starts[passage]) : end]
        return None


_SMALLEST, _LARGEST, _MOST_PIECES = 6, 16, 8
"""Lengths of the pieces that the nearest text is found by, and how many are looked for."""
_LONGEST_COMPARED = 2_000
_BESIDE = 12


def _is_own(shown: Passage, own: Sequence[Passage]) -> bool:
    """Return true if the words were an argument of the call, or written before it."""
    return shown.call is not None and any(
        words.call is not None
        and (words.call == shown.call or (words.role == "written" and words.call < shown.call))
        for words in own
    )


def _plain_path(path: str) -> list[str]:
    return [part for part in path.strip().split("/") if part not in {"", "."}]


def _line_number(value: JsonValue) -> int | None:
    text = str(value).strip().removesuffix(".0")
    return int(text[:9]) if text.isascii() and text.isdigit() else None


def evidence_of(found: Found, search: QuoteSearch, calls: Sequence[UsedCall]) -> QuoteEvidence:
    """The record of a quote for events and reports."""
    quote, place = found.quote, found.place
    told = QuoteEvidence(quote.path, found.state, shorten(" ".join(quote.text.split()), _AROUND))
    if place is None:
        return told
    passage = search.passages[place.passage]
    if passage.call is not None and passage.name is None:
        call = calls[passage.call]
        at = call.place
        told = replace(told, step=at.step, turn=at.turn, call=at.call, tool=call.tool)
    spare = max(_AROUND - (place.end - place.begin), 0) // 2
    begin = max(place.begin - spare, search.starts[place.passage])
    return replace(
        told,
        source=passage.name,
        file=passage.path,
        line=search.line_at(place),
        around=search.whole[begin : min(begin + _AROUND, search.end(place.passage))],
        left_out=tuple(shorten(gap, _AROUND) for gap in place.left_out),
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
    lost = [one for one, _ in bad if one.state == "missing"][:_MOST_NEAREST]
    for one, told in bad[:_MOST_SHOWN]:
        where = _where(told)
        reason = _REASONS[one.state] + (f", in {where}" if where else "")
        lines += (f"  {one.quote.path}: {reason}", f"  - {told.quote}")
        if one in lost and (near := search.nearest(normalise_quote(one.quote.text))):
            lines.append(f"  + {shorten(near, _AROUND)}")
    if len(bad) > _MOST_SHOWN:
        lines.append(f"  … {len(bad) - _MOST_SHOWN:,} more")
    gaps = [
        f"  {one.path}: leaves out `{'`, `'.join(one.left_out)}`"
        for one in evidence
        if one.left_out
    ]
    return "\n".join((*lines, *gaps[:_MOST_SHOWN]))


def _where(told: QuoteEvidence) -> str:
    place = told.file or told.source or ""
    if place and told.line is not None:
        place += f":{told.line}"
    if told.tool is None:
        return place and f"`{place}`"
    return f"`{place}` ({told.tool})" if place else f"`{told.tool}`"
