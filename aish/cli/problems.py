"""Problems of files for people: position, message, the line itself, hint."""

import re
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path

from aish.config.fields import is_variable_name
from aish.core.errors import Problem
from aish.core.frozen import slotted
from aish.core.text import for_line

_BREAK = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")
_KEY = re.compile(r"[\w-]+(?=[\"']?\s*:)")
_OPTION = re.compile(r"(?<=[?&])[\w-]+(?==)|(?<=--)[\w-]+(?=[\"']?\s*[=, ])")
_NAMED = re.compile(r"_env[\"']?\s*:\s*[\"']?([^\s\"',}]+)")
# YAML reads it as one word, which is not the name that belongs there.
_NO_GAP = re.compile(r"_env:[^\s]")
_SEPARATORS = re.compile(r"[\s\"'{}\[\],:]+")
_VARIABLE = re.compile(r"[\"']?([A-Za-z_][A-Za-z0-9_]*)(?=[\s\"',}\]]|$)")
_USER = re.compile(r"://[^/\s\"'@]*@")
# Keys of pipeline files that sound like credentials and hold none.
_OURS = frozenset({"key", "first_token"})
# What a misspelt key may have been meant to be.
_CREDENTIALS = (
    *("api_key", "auth_env", "auth_token", "authorization", "key_env", "password", "secret"),
    *("token", "token_env"),
)
_WIDEST = 100
_BEFORE = 60
_LONG_HINT = 200


@slotted
class ProblemPrinter:
    """Prints problems by `line`; each file is read once, and a long hint is printed once."""

    line: Callable[[str], None]
    hints: set[str] = field(default_factory=set)
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def say(self, problem: Problem, level: str) -> None:
        self.line(f"{level}: {problem}")
        for line in self._source(problem):
            self.line(line)
        if problem.hint:
            first, *others = self._once(problem.hint).split("\n")
            self.line(f"  hint: {first}")
            for line in others:
                self.line(f"    {line}")

    def _once(self, hint: str) -> str:
        if hint in self.hints and len(hint) > _LONG_HINT:
            return f"{hint.partition(':')[0]}: as listed above"
        self.hints.add(hint)
        return hint

    def _source(self, problem: Problem) -> Iterator[str]:
        """The line of a problem, with a caret below the position."""
        place = problem.position
        if (place.line, place.column) == (1, 1) and not problem.path:
            return  # about the file as a whole
        if place.file not in self.files:
            self.files[place.file] = _read(Path(place.file))
        lines = self.files[place.file]
        if place.line > len(lines):
            return
        line, before = lines[place.line - 1].rstrip(), place.column - 1
        is_name = not is_variable_name(problem.path) or _names_variable(line[before:])
        if before >= len(line) or not is_name or _may_hold_credential(line):
            return
        start = 0 if len(line) <= _WIDEST else max(0, before - _BEFORE)
        cut = line[start : start + _WIDEST]
        more = "…" if start + len(cut) < len(line) else ""
        excerpt = f"{'…' if start else ''}{for_line(cut)}{more}"
        indent = len(for_line(line[start:before])) + bool(start)
        number = str(place.line)
        yield f"  {number} | {excerpt}"
        yield f"  {' ' * len(number)} | {' ' * indent}^"


def _read(path: Path) -> tuple[str, ...]:
    """The lines of a file, counted as in YAML; empty for what is not a file, such as `--set`."""
    from aish.config.documents import UnreadableError, read_text

    try:
        return tuple(_BREAK.split(read_text(path)))
    except UnreadableError:
        return ()


def _names_variable(text: str) -> bool:
    from aish.system.secrets.secrets import resembles_key

    match = _VARIABLE.match(text)
    return match is not None and not resembles_key(match[1])


def _may_hold_credential(line: str) -> bool:
    """Return true if something in a line must not be logged."""
    from aish.system.secrets.literal_keys import begins_like_key, literal_keys
    from aish.system.secrets.secrets import names_credential, resembles_key

    return bool(
        _USER.search(line)
        or any(map(_may_name_credential, _KEY.findall(line)))
        or any(map(names_credential, _OPTION.findall(line)))
        or any(resembles_key(name) for name in _NAMED.findall(line))
        or _NO_GAP.search(line)
        or any(map(begins_like_key, _SEPARATORS.split(line)))
        or any(True for _ in literal_keys({"command": line}))
    )


def _may_name_credential(key: str) -> bool:
    from difflib import get_close_matches

    from aish.config.file_schema import all_keys
    from aish.system.secrets.secrets import names_credential

    if key in all_keys():
        return key not in _OURS and names_credential(key)
    return names_credential(key) or bool(get_close_matches(key.lower(), _CREDENTIALS, 1, 0.75))
