"""Results of built-in tools, in the form of an MCP `CallToolResult`.

A result is cut once, at the smaller of the limit of packs and that of the step.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import shorten
from aish.core.text import for_line, for_terminal, safe_utf8, without_markers
from aish.core.tools import RESULT_LIMIT, Media
from aish.packs.pack_error import PackError

TEXT_LIMIT = 50_000
"""Characters of text in one result."""
NOTE_ROOM = 400
"""Bytes that a tool leaves for what it says beside its text: how to go on, for instance."""
LARGEST_IMAGE = 5 * 1024 * 1024
DATA_LIMIT = 1 << 20
"""Characters of one result as JSON: more than the rows of any text that is passed on."""
_LONGEST_SOURCE = 2_000


@frozen
class Answer:
    """The answer of a tool: text for a model and the same as data.

    `source` names what a text from outside comes from: the text is enclosed in marks then.
    `trailer` is text of ours that follows; only there a line may begin like a mark of ours.
    """

    text: str
    data: Mapping[str, JsonValue] = field(default_factory=dict)
    images: tuple[Media, ...] = ()
    source: str = ""
    trailer: str = ""


def room() -> int:
    """Characters that a text may have so that it is cut neither here nor by the step.

    A step counts bytes: text beyond ASCII needs `fits`.
    """
    return min(TEXT_LIMIT, RESULT_LIMIT.get())


def fits(text: str) -> bool:
    """Return true if a text fits whole."""
    return len(text) <= TEXT_LIMIT and _size(text) <= RESULT_LIMIT.get()


def head_that_fits(text: str, left: int = NOTE_ROOM) -> str:
    """The beginning of a text that is passed on whole with `left` more bytes of notes."""
    head = _head(text, left)
    # Lines that imitate a mark get longer.
    added = len(without_markers(head)) - len(head)
    return _head(text, left + added) if added else head


def count_that_fits(rows: Sequence[str], left: int = NOTE_ROOM) -> int:
    """Count the rows, one a line, that fit whole with `left` more bytes of notes."""
    characters, size = TEXT_LIMIT - left, RESULT_LIMIT.get() - left
    for count, row in enumerate(rows):
        characters -= len(row) + 1
        size -= _size(row) + 2
        if characters < 0 or size < 0:
            return count
    return len(rows)


def enclose(source: str, text: str) -> str:
    """A text from outside between marks that name its source; odd characters are escaped."""
    begin, end = _marks(source)
    return f"{begin}{without_markers(for_terminal(text))}{end}"


def success(answer: Answer) -> dict[str, JsonValue]:
    """A result; text and data that are too long are cut even if the tool did not."""
    raw, data = safe_utf8(answer.text), _limit_data(answer.data)
    begin, end = _marks(answer.source) if answer.source else ("", "")
    text = without_markers(for_terminal(raw) if answer.source else raw)
    trailer = f"\n{safe_utf8(answer.trailer)}" if answer.trailer else ""
    whole = f"{begin}{text}{end}{trailer}"
    if not fits(whole):
        # The tools cut at a better place and say how to continue: this is the last resort.
        note = f"\n[truncated: true, {len(whole):,} characters in all; ask for less at a time]"
        trailer = _head(trailer, _size(f"{begin}{end}{note}"))
        whole = f"{begin}{_head(text, _size(f'{begin}{end}{trailer}{note}'))}{end}{trailer}{note}"
        data["truncated"] = True
    text = whole
    content: list[JsonValue] = [{"type": "text", "text": text}]
    content.extend(_image(image) for image in answer.images)
    return {"content": content, "structuredContent": data, "isError": False}


def failure(error: PackError) -> dict[str, JsonValue]:
    """A failure as a result: `ERROR: <message>` and the code in `structuredContent.error`."""
    described: JsonObject = {
        "code": error.code,
        "message": safe_utf8(error.message[:TEXT_LIMIT]),
        "details": _limit_data({key: _encodable(value) for key, value in error.details.items()}),
    }
    text = without_markers(safe_utf8(f"ERROR: {error.message}"))
    if error.trailer:
        text = f"{text}\n{safe_utf8(error.trailer)}"
    return {
        "content": [
            {"type": "text", "text": text if fits(text) else f"{_head(text, len(_CUT))}{_CUT}"}
        ],
        "structuredContent": {"error": described},
        "isError": True,
    }


def _marks(source: str) -> tuple[str, str]:
    name = shorten(for_line(source), _LONGEST_SOURCE)
    return f"[from {name}]\n", f"\n[end of {name}]"


def _limit_data(data: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The data of a result, with `truncated` where something had to be left out."""
    if _json_size(data) <= DATA_LIMIT:
        return dict(data)
    return {**_shrunk_table(data, DATA_LIMIT - _NOTED), "truncated": True}


_CUT = "\n[cut]"
_NOTED = len(', "truncated": true')


def _shrunk(value: JsonValue, most: int) -> JsonValue:
    """The value in about `most` characters of JSON, with its type: texts and lists get shorter."""
    if _json_size(value) <= most:
        return value
    if isinstance(value, str):
        return _shrunk_text(value, most)
    if isinstance(value, Mapping):
        return _shrunk_table(value, most)
    if not isinstance(value, Sequence):
        return value
    items: list[JsonValue] = []
    for item in value:
        most -= _json_size(item) + 2
        if most < 0:
            break
        items.append(item)
    return items


def _shrunk_table(table: Mapping[str, JsonValue], most: int) -> dict[str, JsonValue]:
    """All keys, the longest values cut."""
    sizes = {key: _json_size(value) for key, value in table.items()}
    left = most - sum(_json_size(key) + 4 for key in table)
    result = dict(table)
    for done, key in enumerate(sorted(sizes, key=sizes.__getitem__)):
        result[key] = _shrunk(table[key], max(left // (len(sizes) - done), 0))
        left -= min(sizes[key], _json_size(result[key]))
    return result


def _shrunk_text(text: str, most: int) -> str:
    """The beginning; of an enclosed text the last line too."""
    end = ""
    if text.startswith("[from "):
        last = text.rpartition("\n")[2]
        end = f"\n{last}" if last.startswith("[end of ") else ""
    head = text[: max(most, 0)]
    while head and (size := _json_size(head + end)) > most:
        head = head[: min(len(head) * most // size, len(head) - 1)]
    return head + end


def _json_size(value: JsonValue) -> int:
    return len(json.dumps(value))


def _encodable(value: JsonValue) -> JsonValue:
    """Replace characters that cannot be sent."""
    return safe_utf8(value) if isinstance(value, str) else value


def _head(text: str, left: int) -> str:
    head = text[: max(TEXT_LIMIT - left, 0)]
    most = max(RESULT_LIMIT.get() - left, 0)
    if _size(head) <= most:
        return head
    return head.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _image(image: Media) -> JsonObject:
    import base64

    data = base64.b64encode(image.data).decode("ascii")
    return {"type": "image", "mimeType": image.mime_type, "data": data}


@frozen
class CodeRows:
    """Rows about code, as many as are passed on whole, and their text; `notes` tell of the rest."""

    text: str
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


def outline(items: list[dict[str, Any]], none: str) -> CodeRows:
    """The definitions of a file, indented by their depth, with their lines; `none` for no items."""
    rows = [
        f"{'  ' * item['depth']}{item['kind']} {for_line(item['name'])}  "
        f"{item['start_line']}-{item['end_line']}"
        for item in items
    ]
    count = count_that_fits(rows)
    text = "\n".join(rows[:count]) or none
    if count == len(rows):
        return CodeRows(text, items)
    note = (
        f"truncated: true; {len(rows) - count:,} more from line {items[count]['start_line']} on, "
        "file_read shows them"
    )
    return CodeRows(text, items[:count], (note,))


def pieces_of_code(pieces: list[dict[str, Any]], key: str, comment: str) -> CodeRows:
    """Pieces of code, under `key` of each: several with a comment above that names their lines.

    One alone is shown as it is, so that it can be written back as it is.
    """
    if len(pieces) == 1:
        text = pieces[0][key]
    else:
        blocks = (f"{comment} {_lines(piece)}\n{piece[key].rstrip(_ENDS)}" for piece in pieces)
        text = "\n\n".join(blocks)
    head = head_that_fits(text)
    if head == text:
        return CodeRows(text, pieces)
    left = room()
    rows = []
    for piece in pieces:
        rows.append({**piece, key: piece[key][:left]})
        left -= len(rows[-1][key])
    first = pieces[0]["start_line"]
    note = f"truncated: true; file_read shows all of it, with start_line={first}"
    return CodeRows(head.rstrip(), rows, (note,))


def _lines(piece: Mapping[str, Any]) -> str:
    first, last = piece["start_line"], piece.get("end_line")
    return f"line {first}" if last is None else f"lines {first}-{last}"


def code_answer(text: str, data: dict[str, Any], notes: Sequence[str] = ()) -> Answer:
    """The result of a tool that reads code, with notes below the text."""
    remarks = [*notes]
    if broken := data.get("broken"):
        remarks.append(f"does not parse at line {', '.join(map(str, broken[:_MOST_BROKEN]))}")
    return Answer("\n".join([text, *(f"[{note}]" for note in remarks)]), data)


_MOST_BROKEN = 20
_ENDS = "\r\n"
