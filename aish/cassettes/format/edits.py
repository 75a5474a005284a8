"""Changes to a body in chunks: the text changes, the chunk boundaries move along.

Positions are counted in characters of the body's text. Bytes that are not UTF-8 are preserved.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from aish.cassettes.format.interaction import Chunk, Headers, Response
from aish.core.frozen import frozen
from aish.core.json import JsonObject


@frozen
class Edit:
    """The characters from `start` to `end` are replaced by `text`."""

    start: int
    end: int
    text: str


def text_of(body: bytes) -> str:
    """The body as text; bytes that are not UTF-8 become lone surrogates."""
    return body.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """The reverse of `text_of`."""
    return text.encode("utf-8", "surrogateescape")


def json_bytes(value: JsonObject) -> bytes:
    """A body with an object; not ASCII only, so that people can read it."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # A lone surrogate cannot be encoded in UTF-8.
        return json.dumps(value).encode()


def apply_to_response(response: Response, edits: Iterable[Edit]) -> Response:
    """The response with all edits applied to its body.

    A replacement that spans several chunks is put whole into the first of them.
    """
    edit_list = list(edits)
    if not edit_list:
        return response
    body, moves = _splice(text_of(response.body), edit_list)
    return replace(
        response,
        body=body,
        headers=_with_length(response.headers, len(body)),
        chunks=_move_chunks(response.chunks, moves),
    )


_Move = tuple[int, int, int]
"""Where an edit began and ended in the old bytes, and how many bytes it has now."""


def _splice(text: str, edits: Sequence[Edit]) -> tuple[bytes, list[_Move]]:
    pieces: list[bytes] = []
    moves: list[_Move] = []
    place = offset = 0
    for edit in edits:
        before, gone = bytes_of(text[place : edit.start]), bytes_of(text[edit.start : edit.end])
        new = bytes_of(edit.text)
        pieces += (before, new)
        begin = offset + len(before)
        offset = begin + len(gone)
        moves.append((begin, offset, len(new)))
        place = edit.end
    pieces.append(bytes_of(text[place:]))
    return b"".join(pieces), moves


def _move_chunks(chunks: tuple[Chunk, ...], moves: Sequence[_Move]) -> tuple[Chunk, ...]:
    cuts = [0]
    old = shift = 0
    waiting = iter(moves)
    move = next(waiting, None)
    for chunk in chunks:
        old += chunk.size
        while move and move[1] <= old:
            shift += move[2] - (move[1] - move[0])
            move = next(waiting, None)
        inside = move is not None and move[0] < old
        cuts.append(move[0] + shift + move[2] if move and inside else old + shift)
    sizes = [after - before for before, after in pairwise(cuts)]
    pairs = zip(chunks, sizes, strict=True)
    return tuple(replace(chunk, size=size) for chunk, size in pairs if size)


def _with_length(headers: Headers, length: int) -> Headers:
    return tuple(
        (name, str(length) if name.lower() == "content-length" else value)
        for name, value in headers
    )
