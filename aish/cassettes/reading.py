"""What a cassette's file means, field by field (C1, C11); its YAML is `tree`'s."""

import math
import re
from itertools import starmap

from aish.cassettes.errors import CassetteFileError
from aish.cassettes.interaction import (
    VERSION,
    Cassette,
    Chunk,
    Head,
    Headers,
    Interaction,
    Request,
    Response,
)
from aish.cassettes.layout import FORMAT
from aish.cassettes.tree import Table, Tree, read_tree
from aish.core.text import for_line

MOST = 100_000
_AGAIN = "record it again"


def read_cassette(data: bytes, name: str, *, unfinished: bool) -> Cassette:
    """The cassette in the content of a file called `name`.

    Raises:
        CassetteFileError: it is incomplete, of another version, or no cassette at all.
    """
    root, ended = read_tree(data, name)
    if root is None:
        raise CassetteFileError("the cassette is empty", where=name, hint=_AGAIN)
    if isinstance(root, Table) and "aish" in root:
        raise CassetteFileError("this is a pipeline, not a cassette", where=name)
    if not isinstance(root, Table) or "interactions" not in root:
        raise CassetteFileError("this is no cassette: it has no `interactions`", where=name)
    if root.get("version") != str(FORMAT):
        raise _other_version(root.get("version"), FORMAT, name)
    head = _head(root.get("metadata"), name, unfinished=unfinished)
    if head and not (ended or unfinished):
        raise CassetteFileError(
            "the cassette is cut short: its last line is missing", where=name, hint=_AGAIN
        )
    rows = root["interactions"]
    if not isinstance(rows, list) or len(rows) > MOST:
        said = f"`interactions` is no list of at most {MOST}"
        raise CassetteFileError(said, where=name)
    return Cassette(head, tuple(_Row(row, n, name).read() for n, row in enumerate(rows, 1)))


def _head(metadata: Tree, name: str, *, unfinished: bool) -> Head | None:
    """What aish wrote; nothing where another program did."""
    if not isinstance(metadata, Table) or "complete" not in metadata:
        return None
    version = metadata.get("version")
    if version != str(VERSION):
        raise _other_version(version, VERSION, name)
    complete = metadata["complete"] == "true"
    if not (complete or unfinished):
        said = "the recording was interrupted and is not complete"
        raise CassetteFileError(said, where=name, hint=_AGAIN)
    env = metadata.get("env")
    run, clock = metadata.get("run"), metadata.get("clock")
    if not (isinstance(run, str) and isinstance(clock, str) and isinstance(env, Table)):
        raise CassetteFileError("`metadata` needs `run`, `clock` and `env`", where=name)
    values = {key: value for key, value in env.items() if isinstance(value, str)}
    if len(values) < len(env):
        raise CassetteFileError("a value of `metadata.env` is no text", where=name)
    return Head(complete, run, clock, values)


def _other_version(found: Tree, known: int, name: str) -> CassetteFileError:
    shown = for_line(found[:20]) if isinstance(found, str) else "none"
    said = f"the cassette is of version {shown}, and this program reads version {known}"
    return CassetteFileError(said, where=name, hint=_AGAIN)


def _chunk(size: str, time: str) -> Chunk:
    """The piece `size@time`, or `size@seconds>number`.

    Raises:
        ValueError: it is none.
    """
    seconds, _, after = time.partition(">")
    return Chunk(int(size), float(seconds), int(after) if after else 0)


class _Row:
    """Reads one interaction, and says where it is wrong."""

    def __init__(self, row: Tree, number: int, name: str) -> None:
        self._row = row
        self._where = f"{name}:{row.line}" if isinstance(row, Table) else name
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

    def _response(self, answer: Table) -> Response:
        status = self._table(answer, "status")
        code = self._text(status.get("code"), "status.code")
        if not re.fullmatch(r"[1-9]\d\d", code):
            raise self._wrong("its `status.code` is no status")
        held = answer.get("body")
        body = held.get("string") if isinstance(held, Table) else held
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
            raise self._wrong("its `chunks` are no list of `size@seconds`")
        whole = sum(chunk.size for chunk in chunks)
        if whole != length:
            said = f"its `chunks` add up to {whole} bytes, and its body has {length}"
            raise self._wrong(said, hint="without `chunks` the body comes in one piece")
        return chunks

    def _headers(self, value: Tree, what: str) -> Headers:
        if value is None:
            return ()
        if not isinstance(value, Table):
            raise self._wrong(f"its `{what}` is no mapping")
        pairs: list[tuple[str, str]] = []
        for name, values in value.items():
            for one in values if isinstance(values, list) else [values]:
                if not isinstance(one, str):
                    raise self._wrong(
                        f"its `{what}` holds a `{for_line(name[:40])}` that is no text"
                    )
                pairs.append((name, one))
        return tuple(pairs)

    def _bytes(self, value: Tree, what: str) -> bytes:
        if value is None or isinstance(value, bytes):
            return value or b""
        return self._text(value, what).encode("utf-8", "surrogatepass")

    def _text(self, value: Tree, what: str) -> str:
        if isinstance(value, str):
            return value
        raise self._wrong(f"its `{what}` is no text")

    def _table(self, holder: Tree, key: str) -> Table:
        found = holder.get(key) if isinstance(holder, Table) else None
        if isinstance(found, Table):
            return found
        raise self._wrong(f"it has no `{key}`")

    def _wrong(self, what: str, *, hint: str | None = None) -> CassetteFileError:
        said = f"interaction {self._number} cannot be used: {what}"
        return CassetteFileError(said, where=self._where, hint=hint)
