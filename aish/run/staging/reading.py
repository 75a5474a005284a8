"""A file of staged calls, read back: nothing in it is taken on trust (B16)."""

import json
from collections.abc import Mapping
from functools import cache
from json import JSONDecodeError
from pathlib import Path

from aish.config.documents import parse_json
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.run.staging.call import StagedCall, StagedHead, call_of, is_whole
from aish.system.files import read_capped

LIMIT = 256 * 1024 * 1024
VERSION = 1
VERSION_KEY = "aish_staged"
SCHEMA = "staged.schema.json"
_MENDED = "the run that wrote it was cut off: `aish run FILE --resume` mends it, and goes on"
_WHOLE = "calls may be taken out whole, or left out with `--skip ID`; none may be changed"


@frozen
class Staged:
    """The calls of a run, in the order in which they were asked for."""

    head: StagedHead
    calls: tuple[StagedCall, ...]


class StagedError(UsageError):
    """A file of staged calls that cannot be used."""

    code = "staged"


def read_staged(path: Path) -> Staged:
    """The staged calls in a file.

    Raises:
        StagedError: it cannot be read, is another version's, or a call was changed.
    """
    try:
        text = read_capped(path, LIMIT).decode()
        return staged_of(parse_json(text))
    except OSError as error:
        raise StagedError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except JSONDecodeError as error:
        hint = _MENDED if VERSION_KEY in text[:40] else None
        raise StagedError(f"not JSON: {error}", where=str(path), hint=hint) from error
    except StagedError as error:
        raise StagedError(error.message, where=str(path), hint=error.hint) from error
    except (ValueError, UsageError) as error:
        raise StagedError(f"cannot be read: {error}", where=str(path)) from error


def staged_of(data: JsonValue) -> Staged:
    """The calls that a file's JSON holds.

    Raises:
        StagedError: it is another version's, is not as the schema says, or a digest is not right.
    """
    if not isinstance(data, Mapping) or VERSION_KEY not in data:
        said = f"this is no file of staged calls: `{VERSION_KEY}` is missing"
        raise StagedError(said, hint="a run with rules under `mcp.stage` writes it")
    if data[VERSION_KEY] is True or data[VERSION_KEY] != VERSION:
        said = f"this is of version {data[VERSION_KEY]}; this aish reads version {VERSION}"
        raise StagedError(said, hint="use the aish that wrote it")
    rows = data.get("calls")
    listed = rows if isinstance(rows, list) else []
    _fits(_schemas()[0], {**data, "calls": [] if rows is listed else rows}, "the file")
    pipeline = data["pipeline"]
    assert isinstance(pipeline, Mapping)
    head = StagedHead(
        run=str(data["run"]),
        name=str(pipeline["name"]),
        file=str(pipeline["file"]),
        digest=str(pipeline["digest"]),
    )
    return Staged(head, _calls(listed, head))


def _calls(rows: list[JsonValue], head: StagedHead) -> tuple[StagedCall, ...]:
    calls: list[StagedCall] = []
    seen: set[str] = set()
    for number, row in enumerate(rows, 1):
        calls.append(checked_call(row, head, f"call {number}"))
        id = calls[-1].id
        if id in seen:
            raise StagedError(f"call {number}: the call `{id}` is there twice", hint=_WHOLE)
        seen.add(id)
    return tuple(calls)


def checked_call(row: JsonValue, head: StagedHead, place: str) -> StagedCall:
    """One call of a file.

    Raises:
        StagedError: it is not as it was written, or was written for another run.
    """
    _fits(_schemas()[1], row, place)
    assert isinstance(row, Mapping)
    try:
        call = call_of(row)
    except ValueError as error:
        raise StagedError(f"{place}: {error}", hint=_WHOLE) from error
    if not is_whole(call, head) or row["id"] != call.id:
        said = f"{place} (`{row['id']}`) is not as it was staged: its digest does not fit"
        raise StagedError(said, hint=_WHOLE)
    return call


@cache
def _schemas() -> tuple[JsonObject, JsonObject]:
    """The schema of the file, and that of one call: a file may have more than one check can see."""
    from aish.system.paths import schema_text

    whole: JsonObject = json.loads(schema_text(SCHEMA))
    return whole, {"$ref": "#/$defs/call", "$defs": whole["$defs"]}


def _fits(schema: JsonObject, value: JsonValue, place: str) -> None:
    from aish.system.schema.check import check

    if problems := check(schema, value):
        raise StagedError(f"{place}: {problems[0]}", hint=_WHOLE)
