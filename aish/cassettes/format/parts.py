"""The bodies of requests as parts, each of which a file contains once.

Each request of a conversation repeats all those before it, so that a file grows with the square of
its turns. vcrpy has a form for a body in parts, that of an iterator; a part that was written before
is a YAML alias there. A file in which little is repeated has no such body: people review it.
"""

import re
from collections.abc import Iterator

import yaml

TAG = "python/object/apply:builtins.iter"
"""The tag of an iterator, which is a body in parts."""

_REPEATED = 256 * 1024
"""Characters that requests may repeat before their repeated parts become aliases."""

_WORTHWHILE = 1 << 12
_SHORTEST = 256
_END_OF_OBJECT = re.compile(r'\}(?=, ?\{"|\], ?"|\]\}\Z)')
"""Where an object in a list ends: a message, or the description of a tool."""

_TEXT = "tag:yaml.org,2002:str"
_WIDTH = 1 << 30


class Parts:
    """The parts in a file, as far as it was written.

    `by_alias` is the number of characters that its aliases stand for.
    """

    def __init__(self) -> None:
        self.by_alias = 0
        self._repeated = 0
        self._seen: set[int] = set()
        self._names: dict[str, str] = {}

    def lay_out(self, body: object) -> str | None:
        """The next body of the file as a YAML value in parts; nothing if it is written whole."""
        text = _text(body)
        if text is None or len(text) < _WORTHWHILE:
            return None
        parts = list(_cut(text))
        hashes = list(map(hash, parts))
        repeated = sum(
            len(part) for part, key in zip(parts, hashes, strict=True) if key in self._seen
        )
        self._repeated += repeated
        self._seen.update(hashes)
        if self._repeated <= _REPEATED or repeated < _WORTHWHILE:
            return None
        items = ",".join(map(self._item, parts)).lstrip(" ")
        return f"!!{TAG}\n      args: [[{items}]]"

    def _item(self, part: str) -> str:
        if name := self._names.get(part):
            self.by_alias += len(part)
            return f" *{name}"
        name = self._names[part] = f"p{len(self._names) + 1}"
        return f"\n        &{name} {_quote(part)}"


def _text(body: object) -> str | None:
    if isinstance(body, bytes):
        try:
            return body.decode()
        except UnicodeDecodeError:
            return None
    return body if isinstance(body, str) else None


def _cut(text: str) -> Iterator[str]:
    """The parts of a text; equal objects in two texts make equal parts."""
    start = 0
    for match in _END_OF_OBJECT.finditer(text):
        if match.end() - start >= _SHORTEST:
            yield text[start : match.end()]
            start = match.end()
    if start < len(text):
        yield text[start:]


def _quote(text: str) -> str:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    node = yaml.ScalarNode(_TEXT, text, style='"')
    quoted = yaml.serialize(node, Dumper=dumper, allow_unicode=True, width=_WIDTH)
    assert isinstance(quoted, str)
    return quoted.rstrip("\n")
