"""The fields of a cassette's file.

YAML as strings, lists and tables: parsed quickly, and only what a cassette needs.

Nothing is guessed: a scalar is text, whatever it looks like, and the reader of a field interprets
it. Only `null` is nothing and `!!binary` is bytes; any other tag is rejected. Built from libyaml's
events without recursion, in an eighth of the time of a usual load.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import starmap

import yaml
from yaml import events

from aish.cassettes.format.interaction import (
    LARGEST,
    VERSION,
    Cassette,
    CassetteFileError,
    Chunk,
    Headers,
    Interaction,
    RecordingMetadata,
    Request,
    Response,
)
from aish.cassettes.format.layout import FORMAT
from aish.cassettes.format.parts import TAG
from aish.core.text import for_line

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BINARY = "tag:yaml.org,2002:binary"
_PYTHON = "tag:yaml.org,2002:python/"
TEXTS = (f"{_PYTHON}str", f"{_PYTHON}unicode")
TUPLE = f"{_PYTHON}tuple"
_IN_PARTS = f"tag:yaml.org,2002:{TAG}"
BODIES = (f"{_PYTHON}object/new:_io.BytesIO", _IN_PARTS)
"""A file or an iterator as a body, of which only the content is read, and no code is run."""
_KNOWN_TAGS = {None, "!", "tag:yaml.org,2002:str", *TEXTS, TUPLE}
_NULLS = {"", "~", "null", "Null", "NULL"}
_DEEPEST = 16
_MOST_BY_ALIAS = 16 * 1024 * 1024


class LineTable(dict[str, "Tree"]):  # ruff: ignore[subclass-builtin] - a class of `collections` doubles the load time
    """A mapping, and the line on which it begins."""

    __slots__ = ("line",)

    def __init__(self, line: int, pairs: Iterable[tuple[str, "Tree"]] = ()) -> None:
        super().__init__(pairs)
        self.line = line


Tree = None | str | bytes | list["Tree"] | LineTable


def read_tree(data: bytes, name: str) -> tuple[Tree, bool]:
    """The one document in `data`, and whether it ends with an explicit `...`.

    Raises:
        CassetteFileError: it is not YAML, or of an unsupported kind; `name` is the file.
    """
    parser = _LOADER(data)
    builder = _Builder(name, len(data))
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
    """Assembles events; `path` holds the open containers, with the pending keys."""

    def __init__(self, name: str, size: int) -> None:
        self.root: Tree = None
        self._name = name
        self._documents = 0
        self._open: list[list[Tree] | LineTable] = []
        self._keys: list[str | None] = []
        self._anchors: dict[str, Tree] = {}
        self._pending: list[tuple[events.NodeEvent, int]] = []
        self._weights: dict[str, int] = {}
        self._by_alias = self._elsewhere = 0
        self._whole = size

    def feed(self, event: events.Event) -> None:
        """Process the next event."""
        kind = type(event)
        if kind is events.ScalarEvent:
            plain = event.tag is None and event.anchor is None and event.value not in _NULLS
            self._put(event.value if plain else self._scalar(event), event)
        elif kind is events.MappingStartEvent:
            self._begin(LineTable(event.start_mark.line + 1), event)
        elif kind is events.SequenceStartEvent:
            self._begin([], event)
        elif kind in {events.MappingEndEvent, events.SequenceEndEvent}:
            self._end(event)
        elif kind is events.AliasEvent:
            self._alias(event)
        elif kind is events.DocumentStartEvent:
            self._documents += 1
            if self._documents > 1:
                raise self._wrong(event, "there is a second document")

    def _alias(self, event: events.AliasEvent) -> None:
        if event.anchor not in self._anchors:
            raise self._wrong(event, f"`*{event.anchor}` refers to nothing before it")
        node, weight = self._anchors[event.anchor], self._weights[event.anchor]
        self._by_alias += weight
        # The parts of a body are in a list in the list of arguments.
        in_parts = [begin.tag for begin, _ in self._pending[-3:-2]] == [_IN_PARTS]
        if in_parts and isinstance(node, str):
            self._whole += len(node)
        else:
            self._elsewhere += weight
        if self._whole > LARGEST or self._elsewhere > _MOST_BY_ALIAS:
            raise self._wrong(event, "its aliases stand for too much")
        self._put(node, event)

    def _begin(self, node: list[Tree] | LineTable, event: events.NodeEvent) -> None:
        if event.tag not in BODIES or not isinstance(node, LineTable):
            self._check_tag(event)
        if len(self._open) >= _DEEPEST:
            raise self._wrong(event, "it is nested too deeply")
        self._open.append(node)
        self._keys.append(None)
        self._pending.append((event, event.start_mark.index + self._by_alias))

    def _end(self, event: events.Event) -> None:
        node: Tree = self._open.pop()
        self._keys.pop()
        begin, weighed = self._pending.pop()
        anchor = begin.anchor
        if begin.tag in BODIES and isinstance(node, LineTable):
            node = content_of_body(node)
            if node is None:
                raise self._wrong(begin, "its body is not a list of texts")
        # Only now: nothing may contain itself.
        if anchor is not None:
            self._anchors[anchor] = node
            # Its length, including its expanded aliases; at least 1.
            self._weights[anchor] = event.end_mark.index + self._by_alias - weighed + 1
        self._put(node, event)

    def _put(self, value: Tree, event: events.Event) -> None:
        if not self._open:
            self.root = value
            return
        holder = self._open[-1]
        if isinstance(holder, list):
            holder.append(value)
            return
        key = self._keys[-1]
        if key is None and isinstance(value, bytes):
            value = value.decode("latin-1")
        if key is not None:
            holder[key] = value
            self._keys[-1] = None
        elif not isinstance(value, str):
            raise self._wrong(event, "a key is not text")
        elif value in holder:
            raise self._wrong(event, f"duplicate key `{value[:40]}`")
        else:
            self._keys[-1] = value

    def _scalar(self, event: events.ScalarEvent) -> str | bytes | None:
        value: str = event.value
        result: str | bytes | None = value
        if event.tag == _BINARY:
            try:
                result = base64.b64decode("".join(value.split()), validate=True)
            except (binascii.Error, ValueError):
                raise self._wrong(event, "binary data is not valid base64") from None
        else:
            self._check_tag(event)
            if event.tag is None and event.implicit[0] and value in _NULLS:
                result = None
        if event.anchor is not None:
            self._anchors[event.anchor] = result
            self._weights[event.anchor] = event.end_mark.index - event.start_mark.index + 1
        return result

    def _check_tag(self, event: events.NodeEvent) -> None:
        if event.tag not in _KNOWN_TAGS:
            raise self._wrong(event, f"the tag `{event.tag[:60]}` is not allowed in a cassette")

    def _wrong(self, event: events.Event, what: str) -> CassetteFileError:
        return CassetteFileError(what, where=f"{self._name}:{event.start_mark.line + 1}")


def content_of_body(held: Mapping[str, object]) -> bytes | None:
    """The content of a body with one of the tags `BODIES`; nothing if it is not text or bytes."""
    args = held.get("args") or held.get("state")
    first = args[0] if isinstance(args, list | tuple) and args else b""
    pieces = first if isinstance(first, list) else [first]
    known = [
        piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
        for piece in pieces
        if isinstance(piece, str | bytes)
    ]
    is_known = len(known) == len(pieces) and held.keys() <= {"args", "state"}
    return b"".join(known) if is_known else None


def _not_yaml(error: yaml.YAMLError, name: str) -> CassetteFileError:
    mark = getattr(error, "problem_mark", None)
    why = getattr(error, "problem", None) or getattr(error, "reason", None) or "not valid YAML"
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    hint = "the file may be cut short or edited by hand"
    return CassetteFileError(f"this is not a cassette: {why}", where=where, hint=hint)


MOST = 100_000
_AGAIN = "record it again"
# The first key of what other programs record.
_OTHERS = {
    "request": "vcrpy before 1.0",
    "http_interactions": "VCR for Ruby or by betamax",
    "log": "a browser",
}


def read_cassette(data: bytes, name: str, *, unfinished: bool) -> Cassette:
    """The cassette in the content of a file called `name`.

    Raises:
        CassetteFileError: it is incomplete, of another version, or no cassette at all.
    """
    root, ended = _json_tree(data) or read_tree(data, name)
    if root is None:
        raise CassetteFileError("the cassette is empty", where=name, hint=_AGAIN)
    if isinstance(root, LineTable) and "aish" in root:
        raise CassetteFileError("this is a pipeline, not a cassette", where=name)
    if not isinstance(root, LineTable) or "interactions" not in root:
        row = root[0] if isinstance(root, list) and root else root
        maker = next(
            (_OTHERS[key] for key in _OTHERS if isinstance(row, LineTable) and key in row), ""
        )
        hint = f"it was recorded by {maker}; those of vcrpy 1.0 and later can be read"
        message = "this is not a cassette: it has no `interactions`"
        raise CassetteFileError(message, where=name, hint=hint if maker else None)
    head = _head(root.get("metadata"), name, unfinished=unfinished)
    if root.get("version", None if head else str(FORMAT)) != str(FORMAT):
        raise _other_version(root.get("version"), FORMAT, name)
    if head and not (ended or unfinished):
        raise CassetteFileError(
            "the cassette is cut short: its last line is missing", where=name, hint=_AGAIN
        )
    rows = root["interactions"]
    if not isinstance(rows, list) or len(rows) > MOST:
        message = f"`interactions` is not a list of at most {MOST}"
        raise CassetteFileError(message, where=name)
    return Cassette(head, tuple(_Row(row, n, name).read() for n, row in enumerate(rows, 1)))


def _json_tree(data: bytes) -> tuple[Tree, bool] | None:
    """The tree of vcrpy's JSON, whose escapes of surrogates are not YAML."""
    if not data.lstrip().startswith(b"{"):
        return None
    try:
        root = json.loads(
            data, object_pairs_hook=partial(LineTable, 1), parse_int=str, parse_float=str
        )
    except (ValueError, RecursionError):
        return None
    return root, True


def _head(metadata: Tree, name: str, *, unfinished: bool) -> RecordingMetadata | None:
    """The head written by aish; nothing if another program wrote the file."""
    if not isinstance(metadata, LineTable) or "complete" not in metadata:
        return None
    version = metadata.get("version")
    if version != str(VERSION):
        raise _other_version(version, VERSION, name)
    complete = metadata["complete"] == "true"
    if not (complete or unfinished):
        message = "the recording was interrupted and is not complete"
        raise CassetteFileError(message, where=name, hint=_AGAIN)
    env = metadata.get("env")
    run, clock = metadata.get("run"), metadata.get("clock")
    if not (isinstance(run, str) and isinstance(clock, str) and isinstance(env, LineTable)):
        raise CassetteFileError("`metadata` needs `run`, `clock` and `env`", where=name)
    values = {key: value for key, value in env.items() if isinstance(value, str)}
    if len(values) < len(env):
        raise CassetteFileError("a value of `metadata.env` is not text", where=name)
    return RecordingMetadata(complete, run, clock, values)


def _other_version(found: Tree, known: int, name: str) -> CassetteFileError:
    version = for_line(found[:20]) if isinstance(found, str) else "none"
    message = f"the cassette is of version {version}, and this program reads version {known}"
    return CassetteFileError(message, where=name, hint=_AGAIN)


def _chunk(size: str, time: str) -> Chunk:
    """The chunk `size@time`, or `size@seconds>number`.

    Raises:
        ValueError: it is none.
    """
    seconds, _, after = time.partition(">")
    return Chunk(int(size), float(seconds), int(after) if after else 0)


class _Row:
    """Reads one interaction, and names the position of an error."""

    def __init__(self, row: Tree, number: int, name: str) -> None:
        self._row = row
        self._where = f"{name}:{row.line}" if isinstance(row, LineTable) else name
        self._number = number

    def read(self) -> Interaction:
        asked, answer = self._table(self._row, "request"), self._table(self._row, "response")
        for key in asked:
            if key not in {"method", "uri", "headers", "body"}:
                raise self._wrong(f"its request has an unknown key `{for_line(key[:40])}`")
        request = Request(
            self._text(asked.get("method"), "request.method"),
            self._text(asked.get("uri"), "request.uri"),
            self._headers(asked.get("headers"), "request.headers"),
            self._bytes(asked.get("body"), "request.body"),
        )
        return Interaction(request, self._response(answer))

    def _response(self, answer: LineTable) -> Response:
        # Recordings of httpx by vcrpy before 5.0 have `status_code` and `content`.
        is_old = "status_code" in answer
        status = LineTable(0) if is_old else self._table(answer, "status")
        code = self._text(answer["status_code"] if is_old else status.get("code"), "status.code")
        if not re.fullmatch(r"[1-9]\d\d", code):
            raise self._wrong("its `status.code` is not an HTTP status")
        key = "content" if is_old else "body"
        if key not in answer:
            raise self._wrong(f"its response has no `{key}`")
        held = answer[key]
        body = held.get("string") if isinstance(held, LineTable) else held
        content = self._bytes(body, "response.body.string")
        broken = answer.get("broken")
        return Response(
            int(code),
            self._text(status.get("message") or "", "status.message"),
            self._headers(answer.get("headers"), "response.headers"),
            content,
            self._chunks(answer.get("chunks"), len(content)),
            None if broken is None else self._text(broken, "response.broken"),
        )

    def _chunks(self, value: Tree, length: int) -> tuple[Chunk, ...]:
        if value is None:
            return ()
        words = [word.split("@") for word in self._text(value, "response.chunks").split()]
        try:
            chunks = tuple(starmap(_chunk, words))
        except (TypeError, ValueError):
            chunks = ()
        if not chunks or not all(one.size > 0 and 0 <= one.seconds < math.inf for one in chunks):
            raise self._wrong("its `chunks` are not a list of `size@seconds`")
        whole = sum(chunk.size for chunk in chunks)
        if whole != length:
            message = f"its `chunks` add up to {whole} bytes, and its body has {length}"
            raise self._wrong(message, hint="without `chunks` the body comes in one piece")
        return chunks

    def _headers(self, value: Tree, what: str) -> Headers:
        if value is None:
            return ()
        if not isinstance(value, LineTable):
            raise self._wrong(f"its `{what}` is not a mapping")
        pairs: list[tuple[str, str]] = []
        for name, values in value.items():
            for item in values if isinstance(values, list) else [values]:
                if isinstance(item, list | LineTable):
                    raise self._wrong(
                        f"its `{what}` holds a `{for_line(name[:40])}` that is not text"
                    )
                pairs.append((name, "" if item is None else self._text(item, what)))
        return tuple(pairs)

    def _bytes(self, value: Tree, what: str) -> bytes:
        if value is None or isinstance(value, bytes):
            return value or b""
        return self._text(value, what).encode("utf-8", "surrogatepass")

    def _text(self, value: Tree, what: str) -> str:
        if isinstance(value, bytes):
            return value.decode("latin-1")
        if isinstance(value, str):
            return value
        raise self._wrong(f"its `{what}` is not text")

    def _table(self, holder: Tree, key: str) -> LineTable:
        table = holder.get(key) if isinstance(holder, LineTable) else None
        if isinstance(table, LineTable):
            return table
        raise self._wrong(f"it has no `{key}`")

    def _wrong(self, what: str, *, hint: str | None = None) -> CassetteFileError:
        message = f"interaction {self._number} cannot be used: {what}"
        return CassetteFileError(message, where=self._where, hint=hint)
