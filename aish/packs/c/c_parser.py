"""Parses C and C++ with tree-sitter: choosing the grammar, and blanking macros and dead code.

Runs in the child that parses untrusted input, and imports only the parser.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import tree_sitter
import tree_sitter_c
import tree_sitter_cpp

EITHER = "either"
"""The language of a header: whichever has fewer errors."""
_GRAMMARS = {"c": tree_sitter_c, "cpp": tree_sitter_cpp}
_MOST_ARGUMENTS = 20_000
"""Bytes of the arguments of a macro that are blanked."""
_MOST_UNENDED = 20
"""Macros of one file whose arguments do not end; those behind them are blanked by name alone."""

# A directive is left as it is: without the name that it defines or tests it would not parse.
_DIRECTIVE = rb"^[ \t]*#(?:[^\\\n]|\\[\s\S])*"
_WORDS = rb"(?<!\w)(?:[A-Z0-9_]*_(?:API|EXPORT)|Q_OBJECT)(?!\w|[ \t]*\()"
# Export macros of other names: an upper-case word between `class` and a name.
_BEFORE_NAME = rb"(?<=\bclass )[A-Z][A-Z0-9_]{2,}(?=[ \t]+[A-Za-z_]\w*\s*(?:final\b\s*)?[:{])"
# The halves of `extern "C" { }` that only a C++ compiler sees: each is an unmatched bracket.
_GUARD = (
    rb"^[ \t]*#[ \t]*if(?:def|[ \t]+defined)[ \t]*\(?[ \t]*__cplusplus[ \t]*\)?[^\n]*\n"
    rb"""\s*(?:extern[ \t]*"C"[^\n{]*\s*\{|\})[^\n]*\n\s*#[ \t]*endif\b"""
)
# Lines of headers that no C has.
_ONLY_CPP = re.compile(
    rb"^[ \t]*(?:(?:inline[ \t]+)?namespace\b|template[ \t]*<|using[ \t]+\w|class[ \t]+\w"
    rb"|(?:public|private|protected)[ \t]*:)",
    re.MULTILINE,
)
_KIND = re.compile(rb"[ \t]*#[ \t]*(?P<name>if(?:n?def)?|el\w+|endif)\b(?P<zero>[ \t]+0(?!\w))?")
_BRACKET = re.compile(rb"""[()]|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""")


class Parse:
    """A syntax tree, its grammar, and the number of errors.

    `blanked` are the ranges of macros and dead code that were blanked for it, in order, and empty
    if nothing had to be. Offsets are those of `source`.
    """

    __slots__ = ("blanked", "errors", "language", "root", "source")

    def __init__(
        self, source: bytes, language: str, text: bytes, blanked: Sequence[tuple[int, int]]
    ) -> None:
        self.source = source
        self.language = language
        # The node keeps its tree alive.
        self.root: Any = _parser(language).parse(text).root_node
        self.errors = sum(1 for _ in error_nodes(self.root))
        self.blanked = blanked


def parse(source: bytes, language: str, macros: Sequence[str] = ()) -> Parse:
    """Return the parse with the fewest errors, preferring unchanged code and C.

    Args:
        source: The code, in UTF-8.
        language: `c`, `cpp` or `either`.
        macros: Words to blank beside export macros: a name, a name with `()` for one with its
            arguments, or any other text.
    """
    best: Parse | None = None
    for candidate in _languages(source) if language == EITHER else (language,):
        best = _better(best, Parse(source, candidate, source, ()))
        if best.errors:
            text, ranges = blank_out(source, macros)
            best = _better(best, Parse(source, candidate, text, ranges)) if ranges else best
        if not best.errors:
            break
    assert best is not None
    return best


def _better(first: Parse | None, second: Parse) -> Parse:
    return second if first is None or second.errors < first.errors else first


def _languages(source: bytes) -> tuple[str, ...]:
    """Return the grammars in the order of preference."""
    return ("cpp", "c") if _ONLY_CPP.search(source) else ("c", "cpp")


def parse_alike(source: bytes, example: Parse, macros: Sequence[str] = ()) -> Parse:
    """Parse code as another parse did: with its grammar, and blanked macros if it has any."""
    if not example.blanked:
        return Parse(source, example.language, source, ())
    text, ranges = blank_out(source, macros)
    return Parse(source, example.language, text, ranges)


def new_problem(before: bytes, after: bytes, *, language: str, macros: Sequence[str] = ()) -> str:
    """Return where an edit broke code that parsed before; empty if it did not."""
    if parse(before, language, macros).errors:
        # Any edit may be part of the repair.
        return ""
    parsed = parse(after, language, macros)
    first = next(error_nodes(parsed.root), None)
    return "" if first is None else problem_of(first)


def problem_of(node: Any) -> str:
    line = node.start_point[0] + 1
    return f"line {line}: `{node.type}` is missing" if node.is_missing else f"line {line}: syntax"


def error_nodes(root: Any) -> Iterator[Any]:
    """Yield error nodes, and nodes that the parser inserted, in order."""
    pending = [root]
    while pending:
        node = pending.pop()
        if not node.has_error:
            continue
        if node.is_error or node.is_missing:
            yield node
        pending.extend(reversed(node.children))


def error_lines(parse: Parse, most: int = 100) -> list[int]:
    lines: dict[int, None] = {}
    for node in error_nodes(parse.root):
        lines[node.start_point[0] + 1] = None
        if len(lines) >= most:
            break
    return sorted(lines)


def blank_out(source: bytes, macros: Sequence[str]) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """Return the code with macros and dead code as spaces, at equal length, and their ranges."""
    ranges: list[tuple[int, int]] = []
    unended = 0
    dead = _DeadCode()
    pattern, with_arguments = _pattern(tuple(macros))
    for match in pattern.finditer(source):
        span: tuple[int, int] | None = match.span()
        if match.lastgroup == "directive":
            span = dead.directive(match)
        elif dead.since is not None:
            span = None
        elif unended < _MOST_UNENDED and match[0] in with_arguments:
            end = _end_of_arguments(source, match.end())
            unended += end == match.end()
            span = (match.start(), end)
        if span is not None and (not ranges or span[0] >= ranges[-1][1]):
            ranges.append(span)
    if not ranges:
        return source, ()
    text = bytearray(source)
    for start, end in ranges:
        # Line ends stay, so that lines are those of the file.
        text[start:end] = re.sub(rb"[^\r\n]", b" ", source[start:end])
    return bytes(text), tuple(ranges)


class _DeadCode:
    """Code between `#if 0` and its end, which need not be valid C."""

    __slots__ = ("_depth", "since")

    def __init__(self) -> None:
        self.since: int | None = None
        self._depth = 0

    def directive(self, match: re.Match[bytes]) -> tuple[int, int] | None:
        """Process the next directive; return the range that it closes, if any."""
        kind = _KIND.match(match[0])
        if kind is None:
            return None
        if self.since is None:
            if kind["zero"] is not None:
                self.since, self._depth = match.end(), 0
            return None
        if kind["name"].startswith(b"if"):
            self._depth += 1
        elif self._depth and kind["name"] == b"endif":
            self._depth -= 1
        elif not self._depth:
            span = (self.since, match.start())
            self.since = None
            return span if span[0] < span[1] else None
        return None


@cache
def _pattern(macros: tuple[str, ...]) -> tuple[re.Pattern[bytes], frozenset[bytes]]:
    """Return a pattern for directives and words to blank, and the words with arguments."""
    words = [_BEFORE_NAME, _WORDS]
    with_arguments: set[bytes] = set()
    for macro in macros:
        name = macro.strip().removesuffix("()").rstrip()
        if not name:
            continue
        word = name.encode(errors="replace")
        if name != macro.strip():
            with_arguments.add(word)
        before = rb"(?<!\w)" if name[0].isalnum() or name[0] == "_" else b""
        after = rb"(?!\w)" if name[-1].isalnum() or name[-1] == "_" else b""
        words.append(before + re.escape(word) + after)
    # What the file asks for comes first: it may be one of ours with its arguments.
    choices = b"|".join(reversed(words))
    pattern = rb"(?P<guard>%s)|(?P<directive>%s)|(?P<word>%s)" % (_GUARD, _DIRECTIVE, choices)
    return re.compile(pattern, re.MULTILINE), frozenset(with_arguments)


def _end_of_arguments(source: bytes, start: int) -> int:
    """Return the end of the arguments of a macro; without arguments, the end of its name."""
    depth = 0
    if not source[start : start + 100].lstrip().startswith(b"("):
        return start
    for match in _BRACKET.finditer(source, start, start + _MOST_ARGUMENTS):
        if match[0] == b"(":
            depth += 1
        elif match[0] == b")":
            depth -= 1
            if not depth:
                return match.end()
    return start


@cache
def _parser(language: str) -> Any:
    return tree_sitter.Parser(tree_sitter.Language(_GRAMMARS[language].language()))
