"""The places of a name in a module, each with what says its meaning there.

Runs in the child that parses. A use is `[kind, scope, path, line, column, text]`, with a path as
`module_facts` has it. Its kind is one of

- `name`: an expression that ends with the name; the path is all of it,
- `early`: a name in the body of a class, which may mean there what it means around the class,
- `keyword`: an argument of a call; the path is what is called,
- `pattern`: an attribute in a pattern of `case`; the path is its class,
- `import`: what `from … import` takes; the path is the module alone.
"""

import re
from collections.abc import Iterator
from typing import Any

from aish.packs.py.code_text import decode_module
from aish.packs.py.module_facts import (
    CLOSING,
    HEADER,
    LONGEST_PATH,
    OPENING,
    WORDS,
    Fact,
    ModuleReader,
    Token,
    block_start,
    bracket_ends,
    tokens_of,
)


def uses(*sources: bytes, name: str) -> list[Fact]:
    """The facts of each source, and the `uses` of a name in it."""
    return [_UseReader(decode_module(source), name).read() for source in sources]


class _UseReader(ModuleReader):
    """Reads one module, and notes a name on the way."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text, calls=True)
        self._name = name
        self._word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
        self._uses: list[list[Any]] = []

    def read(self) -> Fact:
        return {**super().read(), "uses": self._uses}

    def _read_statement(self, offset: int, indent: int, code: str) -> None:
        outer = self._index()
        bound = {outer} if self._name in self._scopes[outer]["binds"] else set()
        super()._read_statement(offset, indent, code)
        if not self._word.search(code):
            return
        inner = self._index()
        # The scope that the line opens has its parameters, and what follows the colon.
        header = HEADER.match(code) if inner != outer else None
        body = block_start(code) if header else 0
        tokens = tokens_of(code)
        # Comprehensions and lambdas do not see the names of a class.
        has_function = any(word in {"for", "lambda"} for word, _ in tokens)
        seen: set[int] = set()
        for kind, path, start, is_parameter in _uses_in(tokens, self._name, header):
            scope = inner if is_parameter or start >= body else outer
            if kind == "name" and len(path) == 1 and self._scopes[scope]["kind"] == "class":
                # A statement binds its first use of the name, after all others were read.
                binds = self._name in self._scopes[scope]["binds"] and scope not in seen
                is_early = has_function or (scope not in bound and not binds)
                seen.add(scope)
            else:
                is_early = False
            row = "early" if is_early else kind, scope, path
            self._uses.append([*row, *self._lines.hit(offset + start)])


def _uses_in(
    tokens: list[Token], name: str, header: re.Match[str] | None
) -> Iterator[tuple[str, list[str], int, bool]]:
    """Kind, path and offset of each use in a logical line, and whether it is a parameter."""
    begins = {end: begin for begin, end in bracket_ends(tokens).items()}
    is_case = _is_case([word for word, _ in tokens])
    signature = next((n for n, word in enumerate(tokens) if word[0] == "("), -1) if header else -1
    for place, around, first in _places(tokens, name):
        start = tokens[place][1]
        is_named = [word for word, _ in tokens[place + 1 : place + 2]] == ["="]
        is_argument = around >= 0 and _begins_argument(tokens, place)
        if tokens[first][0] in {"from", "import"}:
            words = [word for word, _ in tokens[first:place]]
            if words[-1] == "as":
                yield "name", [name], start, False
            elif words[0] == "from" and "import" in words:
                yield "import", ["".join(words[1 : words.index("import")])], start, False
        elif is_argument and header is not None and around == signature:
            # What a class has there is no parameter, and a name before `=` nothing of its own.
            is_function = header["kind"] == "def"
            if is_function or not is_named:
                yield "name", [name], start, is_function
        elif is_argument and is_named:
            kind = "pattern" if is_case else "keyword"
            yield kind, _path_to(tokens, around - 1, begins), start, False
        else:
            yield "name", _path_to(tokens, place, begins), start, False


def _is_case(words: list[str]) -> bool:
    """Return true if a line is the `case` of a `match`, and not about a thing of that name."""
    if words[0] != "case" or ":" not in words[2:]:
        return False
    return words[-1] == ":" or words[1] not in {"=", ".", "(", "[", ":"}


def _places(tokens: list[Token], name: str) -> Iterator[tuple[int, int, int]]:
    """Yield each place of a name, the bracket around it, or -1, and the start of its statement."""
    brackets: list[int] = []
    first = 0
    for place, (word, _) in enumerate(tokens):
        if word in OPENING:
            brackets.append(place)
        elif word in CLOSING and brackets:
            brackets.pop()
        elif word in {";", ":"} and not brackets:
            first = place + 1
        elif word == name and not _is_prefix(tokens, place):
            yield place, brackets[-1] if brackets else -1, first


def _is_prefix(tokens: list[Token], place: int) -> bool:
    """Return true if a token is the letter before a string: `f"…"`."""
    word, start = tokens[place]
    return any(
        one[0] == '"' and at == start + len(word) for one, at in tokens[place + 1 : place + 2]
    )


def _begins_argument(tokens: list[Token], place: int) -> bool:
    while tokens[place - 1][0] == "*":
        place -= 1
    return tokens[place - 1][0] in {"(", ","}


def _path_to(tokens: list[Token], place: int, begins: dict[int, int]) -> list[str]:
    """The path that ends with the token at a place."""
    path: list[str] = []
    while place >= 0 and len(path) < LONGEST_PATH:
        word = tokens[place][0]
        if word in CLOSING and place in begins:
            path.insert(0, "()" if word == ")" else "[]")
            place = begins[place] - 1
            continue
        if word[0] == '"' or word[0].isdigit():
            return ['"', *path]
        if not word.isidentifier() or word in WORDS:
            break
        if not place or tokens[place - 1][0] != ".":
            return [word, *path]
        path.insert(0, "." + word)
        place -= 2
    return ["?", *path]
