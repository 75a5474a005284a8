"""Secrets in what a person is asked about (X4).

A mask hides the value. The command, the path and the host stay as they will be sent, also where
they are, or are part of, something that is kept secret: a person has to see what they approve.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aish.core.json import JsonValue
from aish.system.secrets.secrets import Secrets

_HOST_KEYS = frozenset({"host", "hostname", "domain", "server", "address", "origin", "url", "uri"})
_PATH_KEYS = re.compile(
    r"(?:^|_)(?:path|paths|file|files|filename|dir|directory|folder|cwd|root|source|destination)$"
)
_COMMAND_KEYS = frozenset({"argv", "command", "cmd"})
_ORIGIN = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?:[^\s/?#@]*@)?(?P<host>[^\s/?#]*)"
)
_HOST = re.compile(r"(?:[^\s/?#@]*@)?([^\s/?#]+)")
_PROGRAM = re.compile(r"(?:^|[|;&(])\s*(?:[A-Za-z_]\w*=\S*\s+)*([^\s|;&()=]+)")
_PATH_WORD = re.compile(r"""(?:^|[\s"'=<>:])((?:~\w*|\.{1,2}|[A-Za-z]:)?[/\\][^\s"']*)""")

_Span = tuple[int, int]


@dataclass(slots=True)
class Masks:
    """Masks values, and keeps the tags of those that it hid."""

    secrets: Secrets | None
    used: dict[str, None] = field(default_factory=dict)

    def text(self, text: str, key: str = "", *, first: bool = True) -> str:
        """One text; `key` is the name of the argument, `first` its first word or all of it."""
        if not self.secrets:
            return text
        pieces: list[str] = []
        end = 0
        shown: list[_Span] | None = None
        for start, stop, tag in self.secrets.spans(text):
            shown = _shown(text, key, first=first) if shown is None else shown
            for one, other in _without((start, stop), shown):
                self.used[tag] = None
                pieces += (text[end:one], tag)
                end = other
        return "".join((*pieces, text[end:]))

    def json(self, value: JsonValue, key: str = "", *, first: bool = True) -> JsonValue:
        """Everything in a value, keys and numbers too."""
        if not self.secrets or value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value, key, first=first)
        if isinstance(value, Mapping):
            found: dict[str, JsonValue] = {}
            for name, one in value.items():
                shown = self.text(name)
                while shown in found:
                    # Two names that are hidden alike are still two.
                    shown += "'"
                found[shown] = self.json(one, name)
            return found
        if isinstance(value, Sequence):
            return [self.json(one, key, first=not number) for number, one in enumerate(value)]
        number = str(value)
        hidden = self.text(number)
        return value if hidden == number else hidden


def _without(span: _Span, shown: Sequence[_Span]) -> Iterator[_Span]:
    """What is left of a span without what has to be shown."""
    at, end = span
    for start, stop in sorted(shown):
        if at < min(start, end):
            yield at, min(start, end)
        at = max(at, min(stop, end))
    if at < end:
        yield at, end


def _shown(text: str, key: str, *, first: bool) -> list[_Span]:
    """What is not hidden of a text: command, path, host."""
    name = key.lower()
    if _PATH_KEYS.search(name):
        return [(0, len(text))]
    origins = [(one.span("scheme"), one.span("host")) for one in _ORIGIN.finditer(text)]
    found = [span for origin in origins for span in origin]
    if name in _COMMAND_KEYS:
        found += [one.span(1) for one in _PATH_WORD.finditer(text)]
        found += [one.span(1) for one in _PROGRAM.finditer(text)] if first else []
    if name in _HOST_KEYS and not origins and (host := _HOST.match(text)):
        found.append(host.span(1))
    return found
