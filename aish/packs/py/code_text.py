"""Python source as text, without its strings and comments: what a search for names reads.

Runs in the child that parses. It needs no grammar: a file with errors, or of a newer Python than
ours, is read like any other, and no nesting is too deep. Lines end as they do for Python.
"""

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterator

from aish.core.normal_form import compatible_form
from aish.packs.py.source_code import encoding_of

LONGEST_LINE = 300
"""Characters of a line that are shown with a hit."""
_LONGEST_PREFIX = 2
_NAMES_ONLY = frozenset({"punycode", "idna"})
"""Encodings of host names, which take time in proportion to the square of a text."""

_LITERAL = re.compile(
    r"#[^\n]*+"
    r'|"""(?:[^"\\]++|\\.|"(?!""))*+(?:""")?'
    r"|'''(?:[^'\\]++|\\.|'(?!''))*+(?:''')?"
    r'|"(?:[^"\\\n]++|\\.)*+"?'
    r"|'(?:[^'\\\n]++|\\.)*+'?",
    re.DOTALL,
)
"""A comment, or a string without its prefix; one without an end goes as far as it may."""
_IN_FORMAT = {
    quote: re.compile(rf"\\N\{{[^}}\n]*\}}|\\(?:[^{{]|$)|\{{\{{|\{{|\n|{quote}", re.DOTALL)
    for quote in ('"""', "'''", '"', "'")
}
_IN_FIELD = re.compile(r"[\[({})\]\n\"'#]|!=|[!:]")
_IN_SPEC = re.compile(r"[{}\n\"']")
_NAME = re.compile(r"[^\W\d]\w*")
# A statement that begins with one of these is not inside brackets, whatever was left open.
_RESTART = re.compile(r"(?:async[ \t]+def|def|class|import)[ \t]+[^\W\d]|@[^\W\d]")


def decode_module(source: bytes) -> str:
    """The text of a module as Python reads it, with line feeds only."""
    mark, encoding = encoding_of(source)
    try:
        # Not `rot13` or `zlib`, which are no encodings of text, nor those that take too long.
        is_text = encoding not in _NAMES_ONLY and codecs.lookup(encoding)._is_text_encoding  # ruff: ignore[private-member-access] - there is no public way to ask
        text = source[len(mark) :].decode(encoding if is_text else "utf-8")
    except (UnicodeError, LookupError, ValueError):
        # Not what Python accepts; names and lines can still be found.
        text = source[len(mark) :].decode("utf-8", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def code_only(text: str) -> str:
    """The text with comments blanked out, and each string as one quote, blanks, and a quote.

    As long as the text. Line ends within a string are blanks too. The replacement fields of
    f-strings are code: they stay, between commas.
    """
    pieces: list[str] = []
    end = 0
    find = _LITERAL.search
    while match := find(text, end):
        start = match.start()
        pieces.append(text[end:start])
        if text[start] == "#":
            end = match.end()
            pieces.append(" " * (end - start))
        elif _is_format(text, start):
            end, inside = _format_string(text, start)
            pieces.append(_quote(inside))
        else:
            end = match.end()
            pieces.append(_quote(" " * (end - start)))
    pieces.append(text[end:])
    return "".join(pieces)


def _quote(inside: str) -> str:
    return f'"{inside[1:-1]}"' if len(inside) > 1 else '"'


def _is_format(text: str, start: int) -> bool:
    """Return true if the string with its first quote at `start` is an f- or t-string."""
    prefix = start
    while prefix > max(start - _LONGEST_PREFIX - 1, 0) and _is_word(text[prefix - 1]):
        prefix -= 1
    return text[prefix:start].lower() in {"f", "rf", "fr", "t", "rt", "tr"}


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _format_string(  # ruff: ignore[complex-structure, too-many-branches] - one automaton
    text: str, start: int
) -> tuple[int, str]:
    """The end of an f-string, and as long a text with the code of its fields.

    Fields hold strings, f-strings too, and formats hold fields: a stack, and no recursion.
    """
    quote = text[start : start + 3] if text[start : start + 3] in {'"""', "'''"} else text[start]
    pieces = [" " * len(quote)]
    # What is open: a string by its quote, a field with the brackets open in it, or a format.
    stack: list[tuple[str, str, int]] = [("string", quote, 0)]
    place = start + len(quote)
    while stack:
        kind, quote, _ = stack[-1]
        pattern = {"string": _IN_FORMAT[quote], "field": _IN_FIELD, "format": _IN_SPEC}[kind]
        match = pattern.search(text, place)
        if match is None:
            found_start, sign = len(text), ""
        else:
            found_start, sign = match.start(), match[0]
        before = text[place:found_start]
        pieces.append(before.replace("\n", " ") if kind == "field" else " " * len(before))
        place = found_start
        if not sign or (sign == "\n" and len(quote) == 1):
            # It has no end.
            break
        after = place + len(sign)
        if kind == "string":
            if sign == quote:
                stack.pop()
            elif sign == "{":
                stack.append(("field", quote, 0))
            pieces.append("," if sign == "{" else " " * len(sign))
        elif kind == "field":
            after = _field_sign(text, place, sign, stack, pieces)
        else:
            if sign == "{":
                stack.append(("field", quote, 0))
            elif sign == "}":
                stack.pop()
            elif text.startswith(quote, place):
                # The field was not closed: the string ends here.
                while stack.pop()[0] != "string":
                    pass
                after = place + len(quote)
            pieces.append("," if sign in "{}" else " " * (after - place))
        place = after
    return place, "".join(pieces)


def _field_sign(
    text: str, place: int, sign: str, stack: list[tuple[str, str, int]], pieces: list[str]
) -> int:
    """Take one sign of a replacement field; returns where it ends."""
    _, quote, depth = stack[-1]
    after = place + len(sign)
    if sign in "\"'":
        literal = _LITERAL.match(text, place)
        assert literal is not None
        if _is_format(text, place):
            inner = text[place : place + 3]
            inner = inner if inner in {'"""', "'''"} else sign
            stack.append(("string", inner, 0))
            after = place + len(inner)
            pieces.append('"' + " " * (len(inner) - 1))
        else:
            after = literal.end()
            pieces.append(_quote(" " * (after - place)))
    elif sign == "#":
        end = text.find("\n", place)
        after = len(text) if end < 0 or len(quote) == 1 else end
        if len(quote) == 1:
            after = place + 1
        pieces.append(" " * (after - place))
    elif sign in "([{":
        stack[-1] = ("field", quote, depth + 1)
        pieces.append(sign)
    elif sign == "}" and depth == 0:
        stack.pop()
        pieces.append(",")
    elif sign in ")]}":
        stack[-1] = ("field", quote, max(depth - 1, 0))
        pieces.append(sign)
    elif sign in "!:" and depth == 0:
        stack[-1] = ("format", quote, 0)
        pieces.append(",")
    else:
        pieces.append(" " if sign == "\n" else sign)
    return after


class LineIndex:
    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0]
        place = text.find("\n")
        while place >= 0:
            self._starts.append(place + 1)
            place = text.find("\n", place + 1)

    def number(self, offset: int) -> int:
        """The number of the line with this offset, from 1."""
        return bisect_right(self._starts, offset)

    def start(self, number: int) -> int:
        return self._starts[number - 1]

    def hit(self, offset: int) -> list[int | str]:
        """Line, column and text of the line; both counted from 1, the text cut where it is long."""
        number = self.number(offset)
        start = self._starts[number - 1]
        end = self._text.find("\n", start)
        line = self._text[start : end if end >= 0 else len(self._text)]
        excerpt = line.strip()
        if len(excerpt) > LONGEST_LINE:
            excerpt = excerpt[: LONGEST_LINE - 1] + "…"
        return [number, offset - start + 1, excerpt]


def statements(code: str) -> Iterator[tuple[int, int, str]]:
    """Offset, indentation and code of each logical line of what `code_only` returns.

    Line ends within it are blanks, so that offsets hold. A bracket that was never closed ends
    before the next line that begins a definition or an import.
    """
    offset = start = depth = 0
    parts: list[str] = []
    for line in code.split("\n"):
        bare = line.strip()
        after = offset + len(line) + 1
        if parts and depth > 0 and _RESTART.match(bare):
            yield _join_parts(start, parts)
            parts, depth = [], 0
        opened = line.count("(") + line.count("[") + line.count("{")
        closed = line.count(")") + line.count("]") + line.count("}") if opened or depth else 0
        if not parts and opened == closed and bare[-1:] != "\\":
            # Nearly all lines are a statement each.
            if bare:
                yield _join_parts(offset, [line])
        elif parts or bare:
            if not parts:
                start = offset
            is_continued = bare[-1:] == "\\"
            parts.append(line[: line.rindex("\\")] + " " if is_continued else line)
            depth = max(depth + opened - closed, 0)
            if depth == 0 and not is_continued:
                yield _join_parts(start, parts)
                parts = []
        offset = after
    if parts:
        yield _join_parts(start, parts)


def _join_parts(start: int, parts: list[str]) -> tuple[int, int, str]:
    whole = parts[0] if len(parts) == 1 else " ".join(parts)
    bare = whole.lstrip()
    blank = whole[: len(whole) - len(bare)]
    indent = len(blank.expandtabs(8)) if "\t" in blank else len(blank)
    return start + len(blank), indent, bare.rstrip()


def usages(*sources: bytes, name: str, mode: str, limit: int) -> list[list[list[int | str]]]:
    """Find a name or a text in each of the sources."""
    hit_lists: list[list[list[int | str]]] = []
    left = limit
    for source in sources:
        text = decode_module(source)
        hits = []
        lines: LineIndex | None = None
        for offset in _text_offsets(text, name) if mode == "text" else _name_offsets(text, name):
            if left <= 0:
                break
            lines = lines or LineIndex(text)
            hits.append(lines.hit(offset))
            left -= 1
        hit_lists.append(hits)
    return hit_lists


def mentions(*sources: bytes, name: str) -> list[list[list[int]]]:
    """Find a name in strings and comments: line, column, and 1 where `__all__` lists it."""
    pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    row_lists: list[list[list[int]]] = []
    for source in sources:
        text = decode_module(source)
        offsets = [match.start() for match in pattern.finditer(text)]
        code = code_only(text) if offsets else ""
        offsets = [offset for offset in offsets if not code.startswith(name, offset)]
        lists = _exports(code) if offsets and "__all__" in code else []
        lines = LineIndex(text)
        rows = []
        for offset in offsets:
            end = offset + len(name)
            is_whole = text[offset - 1 : offset] == text[end : end + 1] in {"'", '"'}
            is_listed = is_whole and any(start <= offset < stop for start, stop in lists)
            line = lines.number(offset)
            rows.append([line, offset - lines.start(line) + 1, int(is_listed)])
        row_lists.append(rows)
    return row_lists


def _exports(code: str) -> list[tuple[int, int]]:
    """The statements that make `__all__`, by their offsets."""
    return [
        (offset, offset + len(line))
        for offset, indent, line in statements(code)
        if line.startswith("__all__")
    ]


def _text_offsets(text: str, sought: str) -> Iterator[int]:
    place = text.find(sought)
    while place >= 0:
        yield place
        place = text.find(sought, place + len(sought))


def _name_offsets(text: str, name: str) -> Iterator[int]:
    """Find a name, or names with dots between them, outside of strings and comments."""
    parts = [compatible_form(part) for part in name.split(".")]
    if text.isascii():
        if not all(part in text for part in parts):
            return
        pattern = r"\s*\.\s*".join(re.escape(part) for part in parts)
        for match in re.finditer(rf"(?<!\w){pattern}(?!\w)", code_only(text)):
            yield match.start()
        return
    # Python compares names in their NFKC form, which may be of another length.
    code = code_only(text)
    words: list[tuple[str, int, int]] = []
    for match in _NAME.finditer(code):
        word = compatible_form(match[0])
        if len(parts) > 1 and words and code[words[-1][2] : match.start()].strip() != ".":
            words = []
        words = [*words, (word, match.start(), match.end())][-len(parts) :]
        if [item[0] for item in words] == parts:
            yield words[0][1]
