"""YAML as strings, lists and tables: read quickly, and only what a cassette needs (C11, X10).

Nothing is guessed: a scalar is text, whatever it looks like, and the reader of a field says what
it means. Only `null` is nothing and `!!binary` is bytes; any other tag is refused. Built from
libyaml's events, which take no recursion, an eighth of the time of a usual load.
"""

import base64
import binascii

import yaml
from yaml import events

from aish.cassettes.errors import CassetteFileError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BINARY = "tag:yaml.org,2002:binary"
_TEXT = {None, "!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:python/unicode"}
_NULLS = {"", "~", "null", "Null", "NULL"}
_DEEPEST = 16
_MOST_BY_ALIAS = 16 * 1024 * 1024


class Table(dict[str, "Tree"]):  # ruff: ignore[subclass-builtin] - `UserDict` doubles the load time
    """A mapping, and the line on which it begins."""

    __slots__ = ("line",)

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


Tree = None | str | bytes | list["Tree"] | Table


def read_tree(data: bytes, name: str) -> tuple[Tree, bool]:
    """The one document in `data`, and whether it ends with an explicit `...`.

    Raises:
        CassetteFileError: it is no YAML, or of a kind that no cassette needs; `name` is the file.
    """
    parser = _LOADER(data)
    builder = _Builder(name)
    ended = False
    try:
        while (event := parser.get_event()) is not None:
            if isinstance(event, events.DocumentEndEvent):
                ended = bool(event.explicit)
            builder.feed(event)
    except yaml.YAMLError as error:
        raise _not_yaml(error, name) from None
    finally:
        parser.dispose()
    return builder.root, ended


class _Builder:
    """Puts events together; `path` holds the containers that are open, with the pending keys."""

    def __init__(self, name: str) -> None:
        self.root: Tree = None
        self._name = name
        self._documents = 0
        self._open: list[list[Tree] | Table] = []
        self._keys: list[str | None] = []
        self._anchors: dict[str, Tree] = {}
        self._pending: list[tuple[str | None, int]] = []
        self._weights: dict[str, int] = {}
        self._by_alias = 0

    def feed(self, event: events.Event) -> None:
        """Take the next event."""
        kind = type(event)
        if kind is events.ScalarEvent:
            plain = event.tag is None and event.anchor is None and event.value not in _NULLS
            self._put(event.value if plain else self._scalar(event), event)
        elif kind is events.MappingStartEvent:
            self._begin(Table(event.start_mark.line + 1), event)
        elif kind is events.SequenceStartEvent:
            self._begin([], event)
        elif kind in {events.MappingEndEvent, events.SequenceEndEvent}:
            self._end(event)
        elif kind is events.AliasEvent:
            if event.anchor not in self._anchors:
                raise self._wrong(event, f"`*{event.anchor}` refers to nothing before it")
            self._by_alias += self._weights[event.anchor]
            if self._by_alias > _MOST_BY_ALIAS:
                raise self._wrong(event, "its aliases stand for too much")
            self._put(self._anchors[event.anchor], event)
        elif kind is events.DocumentStartEvent:
            self._documents += 1
            if self._documents > 1:
                raise self._wrong(event, "there is a second document")

    def _begin(self, made: list[Tree] | Table, event: events.NodeEvent) -> None:
        self._check_tag(event)
        if len(self._open) >= _DEEPEST:
            raise self._wrong(event, "it is nested too deeply")
        self._open.append(made)
        self._keys.append(None)
        self._pending.append((event.anchor, event.start_mark.index + self._by_alias))

    def _end(self, event: events.Event) -> None:
        made = self._open.pop()
        self._keys.pop()
        anchor, weighed = self._pending.pop()
        # Only now: nothing may hold itself.
        if anchor is not None:
            self._anchors[anchor] = made
            # Its length, with what its own aliases stand for; at least 1.
            self._weights[anchor] = event.end_mark.index + self._by_alias - weighed + 1
        self._put(made, event)

    def _put(self, value: Tree, event: events.Event) -> None:
        if not self._open:
            self.root = value
            return
        holder = self._open[-1]
        if isinstance(holder, list):
            holder.append(value)
            return
        key = self._keys[-1]
        if key is not None:
            holder[key] = value
            self._keys[-1] = None
        elif not isinstance(value, str):
            raise self._wrong(event, "a key is no text")
        elif value in holder:
            raise self._wrong(event, f"the key `{value[:40]}` stands twice")
        else:
            self._keys[-1] = value

    def _scalar(self, event: events.ScalarEvent) -> str | bytes | None:
        value: str = event.value
        result: str | bytes | None = value
        if event.tag == _BINARY:
            try:
                result = base64.b64decode("".join(value.split()), validate=True)
            except (binascii.Error, ValueError):
                raise self._wrong(event, "what is marked as binary is no base64") from None
        else:
            self._check_tag(event)
            if event.tag is None and event.implicit[0] and value in _NULLS:
                result = None
        if event.anchor is not None:
            self._anchors[event.anchor] = result
            self._weights[event.anchor] = event.end_mark.index - event.start_mark.index + 1
        return result

    def _check_tag(self, event: events.NodeEvent) -> None:
        if event.tag not in _TEXT:
            raise self._wrong(event, f"the tag `{event.tag[:60]}` has no place in a cassette")

    def _wrong(self, event: events.Event, what: str) -> CassetteFileError:
        return CassetteFileError(what, where=f"{self._name}:{event.start_mark.line + 1}")


def _not_yaml(error: yaml.YAMLError, name: str) -> CassetteFileError:
    mark = getattr(error, "problem_mark", None)
    why = getattr(error, "problem", None) or getattr(error, "reason", None) or "no valid YAML"
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    hint = "the file may be cut short or edited by hand"
    return CassetteFileError(f"this is no cassette: {why}", where=where, hint=hint)
