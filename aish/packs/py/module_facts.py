"""Bindings and calls of a module, to follow names over several files.

Runs in the child that parses. Read from logical lines (`code_text`): no grammar, so that files with
errors and of newer Pythons are read too, and no recursion. A path is a list of a name and what
follows it: `.name` an attribute, `()` a call, `[]` a subscript; it begins with `"` for a string and
with `?` for any other expression. A binding is one of

- `["scope", n]`: the class or function `n` of the module,
- `["import", module, name]`: `name` of a module, or the module where that is empty,
- `["value", path]` and `["type", path]`: what an expression has or an annotation says,
- `["unknown"]`: anything else.
"""

import keyword
import re
from typing import Any

from aish.packs.py.code_text import LineIndex, code_only, decode_module, statements

MOST_SCOPES = 20_000
MOST_CALLS = 2_000
"""Calls of one function that are kept, and ten times as many of a module."""
MOST_BASES = 100
LONGEST_SHOWN = 80
LONGEST_PATH = 32
LONGEST_ANNOTATION = 500
MOST_BINDINGS = 8
"""Bindings of one name in a scope that are kept."""

_TOKEN = re.compile(r"[^\W\d]\w*|\" *\"?|\d[\w.]*|[-+*/%@&|^<>=!:]=|->|\S")
HEADER = re.compile(
    r"(?P<async>async\s+)?(?P<kind>def|class)\s+(?P<name>[^\W\d]\w*)\s*(?P<generic>\[)?"
)
_ALIAS = re.compile(
    r"(?P<name>[^\W\d]\w*)\s*(?::[^=]*)?=\s*(?P<path>[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*)*)$"
)
_COMPOUND = re.compile(
    r"(?:async\s+)?(?:if|elif|else|try|except|finally|with|for|while|def|class|match|case)\b"
)
_OUTER = re.compile(r"(?:global|nonlocal)\s")
_MARKS = frozenset({"staticmethod", "classmethod", "property", "cached_property", "overload"})
_CONSTANTS = frozenset({"None", "True", "False"})
WORDS = frozenset(keyword.kwlist) - _CONSTANTS
_FIRST_LETTERS = frozenset("acdefimtw@")
"""Of the statements that bind names, open blocks or decorate."""
OPENING, CLOSING = frozenset("([{"), frozenset(")]}")

Fact = dict[str, Any]
_Open = tuple[int, int, str, int]
"""The number of a scope, -1 while it is not needed; indentation, name and offset of its header."""
Token = tuple[str, int]
"""The text of a token, and its offset in the statement."""


def facts(*sources: bytes, calls: bool) -> list[Fact]:
    """The scopes of each source, and the imports with a star.

    Without `calls` only what a class hierarchy needs is read: no calls, and no values but names.
    """
    return [ModuleReader(decode_module(source), calls=calls).read() for source in sources]


class ModuleReader:
    """Reads one module, line by line."""

    def __init__(self, text: str, *, calls: bool) -> None:
        self._text = text
        self._lines = LineIndex(text)
        self._calls = calls
        self._stars: list[str] = []
        self._scopes: list[Fact] = [_scope("module", "", -1, 1)]
        # Indices of the scopes that a line may belong to, and the indentation of their headers.
        self._open: list[_Open] = [(0, -1, "", 0)]
        self._decorators: list[tuple[int, str]] = []
        self._end = 0
        self._count = 0

    def read(self) -> Fact:
        """The facts as JSON."""
        for offset, indent, code in statements(code_only(self._text)):
            while len(self._open) > 1 and indent <= self._open[-1][1]:
                self._close()
            self._end = offset + len(code)
            # Most statements are of no use where calls are not wanted.
            if self._calls or code[0] in _FIRST_LETTERS or "=" in code:
                self._read_statement(offset, indent, code)
        while self._open:
            self._close()
        return {"scopes": self._scopes, "stars": self._stars}

    def _close(self) -> None:
        index = self._open.pop()[0]
        if index >= 0:
            self._scopes[index]["end"] = self._lines.number(max(self._end - 1, 0))

    def _read_statement(self, offset: int, indent: int, code: str) -> None:
        """Read a logical line, with what follows a colon or semicolons."""
        if code[0] == "@":
            self._decorators.append((offset, code))
            if self._calls:
                self._read_expressions(offset, tokens_of(code))
            return
        body = 0
        if (header := HEADER.match(code)) is not None and len(self._scopes) < MOST_SCOPES:
            body = self._define(offset, indent, code, header)
        elif _COMPOUND.match(code) and not (code.startswith(("match", "case")) and code[-1] != ":"):
            body = len(code) if code[-1] == ":" else block_start(code)
            if self._calls:
                self._read_clause(offset, tokens_of(code[:body]))
        self._decorators = []
        # Only simple statements may follow on the same line.
        for part in code[body:].split(";") if body < len(code) else ():
            bare = part.lstrip()
            if bare:
                self._read_simple(offset + body + len(part) - len(bare), bare.rstrip())
            body += len(part) + 1

    def _index(self) -> int:
        """The number of the innermost scope; what only a function within it needs is made now."""
        first = len(self._open) - 1
        while self._open[first][0] < 0:
            first -= 1
        for place in range(first + 1, len(self._open)):
            _, indent, name, offset = self._open[place]
            self._open[place] = (len(self._scopes), indent, name, offset)
            self._scopes.append(self._scope("function", name, self._open[place - 1][0], offset))
        return self._open[-1][0]

    def _scope(self, kind: str, name: str, up: int, offset: int) -> Fact:
        above = self._scopes[up]["name"]
        number = self._lines.number(offset)
        return _scope(kind, f"{above}.{name}" if above else name, up, number)

    @property
    def _here(self) -> Fact:
        return self._scopes[self._index()]

    def _bind(self, name: str, binding: list[Any], scope: Fact | None = None) -> None:
        _add(self._here["binds"] if scope is None else scope["binds"], name, binding)

    def _define(self, offset: int, indent: int, code: str, header: re.Match[str]) -> int:
        """Open the scope of a `def` or `class`; returns where its body begins on this line."""
        name, kind = header["name"], "class" if header["kind"] == "class" else "function"
        if kind == "function" and not self._calls:
            # Nearly no class hierarchy goes through it.
            self._open.append((-1, indent, name, offset))
            return len(code) if code[-1] == ":" else block_start(code)
        up = self._index()
        index = len(self._scopes)
        scope = self._scope(kind, name, up, offset)
        if self._decorators:
            scope["start"] = self._lines.number(self._decorators[0][0])
        self._bind(name, ["scope", index])
        self._scopes.append(scope)
        tokens = tokens_of(code)
        match = bracket_ends(tokens)
        place = 2 + (header["async"] is not None)
        if header["generic"] is not None:
            place = match.get(place, place) + 1
        end = body = place
        if place < len(tokens) and tokens[place][0] == "(":
            end = body = match.get(place, len(tokens)) + 1
            inner = tokens[place + 1 : end - 1]
            if kind == "class":
                scope["bases"] = self._read_bases(offset, inner)
            else:
                self._read_parameters(offset, scope, inner)
        if kind == "function":
            if body < len(tokens) and tokens[body][0] == "->":
                while body < len(tokens) and tokens[body][0] != ":":
                    body = match.get(body, body) + 1
                scope["returns"] = self._read_annotation(offset, tokens[end + 1 : body])
            marks = {_decorator(line) for _, line in self._decorators}
            scope["marks"] = sorted(marks & _MARKS)
        if self._calls:
            self._read_expressions(offset, tokens[place:body])
        self._open.append((index, indent, name, offset))
        return tokens[body][1] + 1 if body < len(tokens) else len(code)

    def _read_bases(self, offset: int, tokens: list[Token]) -> list[list[Any]]:
        """The bases of a class: path and text of each."""
        bases = []
        for part in _parts(tokens)[:MOST_BASES]:
            if not part or part[0][0] == "*" or (len(part) > 1 and part[1][0] == "="):
                continue
            path, end = _primary(part, 0, bracket_ends(part))
            if end < len(part):
                path = ["?"]
            last = part[-1]
            excerpt = self._text[offset + part[0][1] : offset + last[1] + len(last[0])]
            excerpt = " ".join(excerpt.split())
            if len(excerpt) > LONGEST_SHOWN:
                excerpt = excerpt[: LONGEST_SHOWN - 1] + "…"
            # The arguments of a generic class change nothing in what it inherits.
            bases.append([[step for step in path if step != "[]"], excerpt])
        return bases

    def _read_parameters(self, offset: int, scope: Fact, tokens: list[Token]) -> None:
        for part in _parts(tokens):
            rest = [word for word in part if word[0] != "*"]
            if [word for word, _ in part] == ["/"]:
                scope["unnamed"] += scope["params"]
            if not rest or not rest[0][0].isidentifier():
                continue
            name = rest[0][0]
            scope["params"].append(name)
            if part[0][0] == "*":
                scope["unnamed"].append(name)
            binding: list[Any] = ["unknown"]
            if [word[0] for word in rest[1:2]] == [":"] and part[0][0] != "*":
                stop = next((n for n, word in enumerate(rest) if word[0] == "="), len(rest))
                path = self._read_annotation(offset, rest[2:stop])
                binding = ["type", path] if path else binding
            self._bind(name, binding, scope)

    def _read_annotation(self, offset: int, tokens: list[Token]) -> list[str] | None:
        """The path of the one class that an annotation names, apart from `None`."""
        if not tokens:
            return None
        last = tokens[-1]
        raw = self._text[offset + tokens[0][1] : offset + last[1] + len(last[0])]
        return annotation_path(raw)

    def _read_simple(self, offset: int, code: str) -> None:
        """A statement without a block."""
        if code.startswith("import") and _starts_word(code, "import"):
            self._read_import(tokens_of(code)[1:])
        elif code.startswith("from") and _starts_word(code, "from"):
            self._read_import_from(tokens_of(code)[1:])
        elif _OUTER.match(code):
            self._here["outer"] += [word for word, _ in tokens_of(code)[1:] if word != ","]
        elif self._calls:
            tokens = tokens_of(code)
            self._read_assignment(offset, tokens)
            self._read_expressions(offset, tokens)
        elif match := _ALIAS.match(code):
            path = [part.strip() for part in match["path"].split(".")]
            if path[0] not in WORDS:
                self._bind(match["name"], ["value", _attribute_path(path)])

    def _read_import(self, tokens: list[Token]) -> None:
        for part in _parts(tokens):
            module, alias = _name_as(part)
            if alias:
                self._bind(alias, ["import", module, ""])
            elif module:
                # `import a.b` binds `a`, and makes `a.b` an attribute of it.
                first = module.partition(".")[0]
                self._bind(first, ["import", first, ""])

    def _read_import_from(self, tokens: list[Token]) -> None:
        words = [word[0] for word in tokens]
        if "import" not in words:
            return
        place = words.index("import")
        module = "".join(words[:place])
        names = [word for word in tokens[place + 1 :] if word[0] not in {"(", ")"}]
        if [word[0] for word in names] == ["*"]:
            self._stars.append(module)
            return
        for part in _parts(names):
            name, alias = _name_as(part)
            if name:
                self._bind(alias or name, ["import", module, name])

    def _read_clause(self, offset: int, tokens: list[Token]) -> None:
        """The header of a block: what `with` and `except` bind, and calls."""
        words = [word[0] for word in tokens]
        if words[0] == "case":
            # The patterns look like calls; a condition does call.
            tokens = tokens[words.index("if") :] if "if" in words else []
        self._read_expressions(offset, tokens)
        match = bracket_ends(tokens)
        if words[0] == "case":
            return
        if "with" in words[:2]:
            for place, word in enumerate(words[:-1]):
                if word == "as" and words[place + 1].isidentifier():
                    path, end = _primary(tokens, _start_of(tokens, place), match)
                    self._bind(words[place + 1], ["value", path] if end == place else ["unknown"])
        elif words[0] == "except" and "as" in words[:-1]:
            place = words.index("as")
            path, end = _primary(tokens, 1, match)
            known = end == place and path[0] != "?"
            self._bind(words[place + 1], ["type", path] if known else ["unknown"])

    def _read_assignment(self, offset: int, tokens: list[Token]) -> None:
        """`name = value`, `name: type = value`, and the same for an attribute of `self`."""
        depth = 0
        signs: list[int] = []
        colon = -1
        for place, (word, _) in enumerate(tokens):
            depth += (word in OPENING) - (word in CLOSING)
            if depth == 0 and word == "=":
                signs.append(place)
            elif depth == 0 and word == ":" and colon < 0 and not signs:
                colon = place
        if not signs and colon < 0:
            return
        stop = signs[-1] if signs else len(tokens)
        if colon >= 0:
            path = self._read_annotation(offset, tokens[colon + 1 : stop])
            self._bind_target(tokens[:colon], ["type", path] if path else ["unknown"])
            return
        value = tokens[stop + 1 :]
        if value and value[0][0] == "await":
            value = value[1:]
        path, end = _primary(value, 0, bracket_ends(value))
        binding = ["value", path] if end == len(value) and path[0] != "?" else ["unknown"]
        begin = 0
        for sign in signs:
            self._bind_target(tokens[begin:sign], binding)
            begin = sign + 1

    def _bind_target(self, tokens: list[Token], binding: list[Any]) -> None:
        words = [word[0] for word in tokens]
        if len(words) == 1 and words[0].isidentifier() and words[0] not in WORDS:
            self._bind(words[0], binding)
        elif words[1:2] == ["."] and words[2:] == words[-1:] and words[2].isidentifier():
            # An attribute of the first parameter of a method is one of the class.
            scope = self._here
            above = self._scopes[scope["up"]]
            if above["kind"] == "class" and scope["params"][:1] == [words[0]]:
                _add(above["attributes"], words[2], [*binding, self._index()])
        else:
            # Of `a, b = …` and `(a, *b) = …` each name; not of `a.b, c[d] = …`.
            for place, word in enumerate(words):
                before, after = words[place - 1 : place], words[place + 1 : place + 2]
                is_name = word.isidentifier() and word not in WORDS
                if is_name and before != ["."] and after not in (["."], ["["], ["("]):
                    self._bind(word, ["unknown"])

    def _read_expressions(self, offset: int, tokens: list[Token]) -> None:
        """Every call in a piece of code, and what loops and `:=` bind."""
        match = bracket_ends(tokens)
        done: set[int] = set()
        for place, (word, start) in enumerate(tokens):
            if place in done:
                continue
            if word == "for":
                self._loop_names(tokens, place + 1)
            elif word == ":=" and place:
                path, _ = _primary(tokens, place + 1, match)
                self._bind(tokens[place - 1][0], ["value", path])
            elif word == "." and place:
                # What stands before it is no name: a string, a bracket, a number.
                before = tokens[place - 1][0][0]
                head = '"' if before == '"' or before.isdigit() else "?"
                self._read_trailers(offset, [head], start, place, tokens, match, done)
            elif word.isidentifier() and word not in WORDS:
                self._read_trailers(offset, [word], start, place + 1, tokens, match, done)
            elif word == "(" and tokens[place - 1 if place else 0][0] in CLOSING:
                self._read_trailers(offset, ["?"], start, place, tokens, match, done)

    def _loop_names(self, tokens: list[Token], place: int) -> None:
        while place < len(tokens) and tokens[place][0] not in {"in", ":", "for"}:
            word = tokens[place][0]
            if word.isidentifier() and word not in WORDS:
                self._bind(word, ["unknown"])
            place += 1

    def _read_trailers(
        self,
        offset: int,
        path: list[str],
        at: int,
        place: int,
        tokens: list[Token],
        match: dict[int, int],
        done: set[int],
    ) -> None:
        """Follow attributes, calls and subscripts; each call is noted with its path."""
        calls = self._here["calls"]
        while place < len(tokens) and len(path) < LONGEST_PATH:
            word = tokens[place][0]
            if word == "." and place + 1 < len(tokens) and tokens[place + 1][0].isidentifier():
                path = [*path, "." + tokens[place + 1][0]]
                at = tokens[place + 1][1]
                done.update((place, place + 1))
                place += 2
            elif word in {"(", "["}:
                done.add(place)
                if word == "(" and len(calls) < MOST_CALLS and self._count < 10 * MOST_CALLS:
                    calls.append([path, self._lines.number(offset + at)])
                    self._count += 1
                path = [*path, "()" if word == "(" else "[]"]
                place = match.get(place, len(tokens)) + 1
            else:
                return


def annotation_path(raw: str) -> list[str] | None:
    """The path of the class in an annotation such as `"Foo"`, `Foo | None`, `Foo[int]`."""
    text = raw.strip()
    if len(text) > LONGEST_ANNOTATION:
        return None
    if text[:1] in {'"', "'"} and text[-1:] == text[:1]:
        text = text[1:-1].strip()
    if match := re.fullmatch(r"(?:[\w.]+\.)?Optional\s*\[(.*)\]", text, re.DOTALL):
        text = match[1]
    choices = [part.strip() for part in text.split("|")]
    choices = [part for part in choices if part != "None"]
    if len(choices) != 1:
        return None
    match = re.fullmatch(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)(?:\[.*\])?", choices[0], re.DOTALL)
    return _attribute_path(match[1].split(".")) if match else None


def _attribute_path(names: list[str]) -> list[str]:
    return [names[0], *("." + name for name in names[1:])]


def _scope(kind: str, name: str, up: int, line: int) -> Fact:
    return {
        "kind": kind,
        "name": name,
        "up": up,
        "line": line,
        "start": line,
        "end": line,
        "binds": {},
        "outer": [],
        "bases": [],
        "attributes": {},
        "calls": [],
        "params": [],
        "unnamed": [],
        "returns": None,
        "marks": [],
    }


def tokens_of(code: str) -> list[Token]:
    return [(match[0], match.start()) for match in _TOKEN.finditer(code)]


def bracket_ends(tokens: list[Token]) -> dict[int, int]:
    """For each opening bracket the place of its end."""
    ends: dict[int, int] = {}
    waiting: list[int] = []
    for place, (word, _) in enumerate(tokens):
        if word in OPENING:
            waiting.append(place)
        elif word in CLOSING and waiting:
            ends[waiting.pop()] = place
    return ends


def _parts(tokens: list[Token]) -> list[list[Token]]:
    """Tokens between the commas outside of brackets."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for word in tokens:
        depth += (word[0] in OPENING) - (word[0] in CLOSING)
        if word[0] == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _primary(tokens: list[Token], place: int, match: dict[int, int]) -> tuple[list[str], int]:
    """The path of the name, attributes, calls and subscripts at a place, and where it ends."""
    if place >= len(tokens):
        return ["?"], place
    word = tokens[place][0]
    if word.startswith('"') or word[0].isdigit():
        path = ['"']
    elif word.isidentifier() and word not in WORDS:
        path = [word]
    else:
        return ["?"], place
    place += 1
    while place < len(tokens) and len(path) < LONGEST_PATH:
        word = tokens[place][0]
        if word == "." and place + 1 < len(tokens):
            path.append("." + tokens[place + 1][0])
            place += 2
        elif word in {"(", "["}:
            path.append("()" if word == "(" else "[]")
            place = match.get(place, len(tokens)) + 1
        else:
            break
    return path, place


def _start_of(tokens: list[Token], place: int) -> int:
    """Find the start of the `with` item whose `as` is at a place."""
    depth = 0
    while place > 0:
        word = tokens[place - 1][0]
        depth += (word in CLOSING) - (word in OPENING)
        if depth < 0 or (depth == 0 and word in {",", "with", "as"}):
            break
        place -= 1
    return place


def block_start(code: str) -> int:
    """Find the start of a block on the line of its header, after the colon."""
    depth = 0
    lambdas = 0
    for word, start in tokens_of(code):
        depth += (word in OPENING) - (word in CLOSING)
        if depth == 0 and word == "lambda":
            lambdas += 1
        elif depth == 0 and word == ":":
            if not lambdas:
                return start + 1
            lambdas -= 1
    return len(code)


def _decorator(code: str) -> str:
    return code[1:].partition("(")[0].rpartition(".")[2].strip()


def _name_as(tokens: list[Token]) -> tuple[str, str]:
    """The dotted name of an import, and what it is bound to if that is another name."""
    words = [word[0] for word in tokens]
    if "as" in words[:-1]:
        place = words.index("as")
        return "".join(words[:place]), words[place + 1]
    return "".join(words), ""


def _starts_word(code: str, word: str) -> bool:
    after = code[len(word) : len(word) + 1]
    return not (after.isalnum() or after in {"_", "=", ""})


def _add(bindings: dict[str, list[list[Any]]], name: str, binding: list[Any]) -> None:
    known = bindings.setdefault(name, [])
    if binding not in known and len(known) < MOST_BINDINGS:
        known.append(binding)
