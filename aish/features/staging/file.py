"""The file of staged calls: rewritten after every call, validated when read."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from json import JSONDecodeError
from pathlib import Path

from aish.config.documents import parse_json
from aish.config.model import Pipeline
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, canonical, json_text
from aish.core.tools import ToolName
from aish.engine.plan.lock import pins_of_file
from aish.policy.lock import ADDRESS_KEYS, ServerPin
from aish.policy.rules import LOCAL_COMMAND
from aish.system.file_lock import take
from aish.system.files import atomic_write, open_update, read_capped
from aish.system.platform.syncs import data_sync
from aish.system.secrets.secrets import Secrets

_SHORT = 8
_LOCAL = "local"


@frozen
class StagedHead:
    """The subject of a file of staged calls: the run, and its pipeline."""

    run: str
    name: str
    file: str
    digest: str


@frozen
class StagedCall:
    """A call as it will be sent, with its origin and the rule that staged it.

    `server` is `None` for a local command. `definition` is the hash of the server's definition of
    the tool, `decision` the digest of the call in the run's journal, `digest` covers everything
    here and the head. `id` is a prefix of it.
    """

    time: str
    step: str | None
    item: str | None
    name: ToolName
    server: ServerPin | None
    arguments: JsonObject
    definition: str
    rule: str
    decision: str
    digest: str = ""

    @property
    def id(self) -> str:
        return self.digest[:_SHORT]

    @property
    def home(self) -> str:
        """The steps that lead to its sub-pipeline, as `outer/inner`; empty at the top level."""
        return (self.step or "").rpartition("/")[0]


def with_digest(call: StagedCall, head: StagedHead) -> StagedCall:
    return replace(call, digest=_digest(call, head))


def is_whole(call: StagedCall, head: StagedHead) -> bool:
    return call.digest == _digest(call, head)


def pins_of(pipeline: Pipeline, secrets: Secrets) -> Mapping[str, ServerPin | None]:
    """The address of each server of a pipeline, as in a lock; local commands have no server."""
    return {**pins_of_file(pipeline, secrets).servers, LOCAL_COMMAND.server: None}


def row_of(call: StagedCall) -> JsonObject:
    return {"id": call.id, **_subject(call), "digest": call.digest}


def head_row(head: StagedHead) -> JsonObject:
    pipeline: JsonObject = {"name": head.name, "file": head.file, "digest": head.digest}
    return {"run": head.run, "pipeline": pipeline}


def _digest(call: StagedCall, head: StagedHead) -> str:
    subject = canonical({**head_row(head), "call": _subject(call)})
    return hashlib.sha256(subject.encode("ascii")).hexdigest()


def _subject(call: StagedCall) -> JsonObject:
    return {
        "time": call.time,
        "step": call.step,
        "item": call.item,
        "server": _server(call),
        "tool": call.name.name,
        "arguments": call.arguments,
        "definition": call.definition,
        "rule": call.rule,
        "decision": call.decision,
    }


def _server(call: StagedCall) -> JsonObject:
    pin = call.server
    if pin is None:
        return {"alias": call.name.server, "transport": _LOCAL}
    address: JsonValue = pin.address[0] if pin.transport == "http" else list(pin.address)
    row: JsonObject = {"alias": call.name.server, "transport": pin.transport}
    return {**row, ADDRESS_KEYS[pin.transport]: address}


def _pin(row: Mapping[str, JsonValue]) -> ServerPin | None:
    for transport, key in ADDRESS_KEYS.items():
        if row["transport"] == transport:
            return ServerPin(transport, _address(row, key), {})
    return None


def _address(row: Mapping[str, JsonValue], key: str) -> tuple[str, ...]:
    address = row.get(key)
    if isinstance(address, str):
        return (address,)
    if not isinstance(address, list):
        raise ValueError(f"the server has no `{key}`")  # ruff: ignore[type-check-without-type-error] - of a file's content, not of a caller's mistake
    return tuple(map(str, address))


def _text(value: JsonValue) -> str | None:
    return None if value is None else str(value)


LIMIT = 256 * 1024 * 1024
VERSION = 1
VERSION_KEY = "aish_staged"
SCHEMA = "staged.schema.json"
_MENDED = "the run that wrote it was cut off: `aish run FILE --resume` repairs and continues it"
_WHOLE = "calls may be taken out whole, or left out with `--skip ID`; none may be changed"


@frozen
class Staged:
    """The calls of a run, in the order of the requests."""

    head: StagedHead
    calls: tuple[StagedCall, ...]


class StagedError(UsageError):
    """An unusable file of staged calls."""

    code = "staged"


def read_staged(path: Path) -> Staged:
    """The staged calls in a file.

    Raises:
        StagedError: it cannot be read, is another version's, or a call was changed.
    """
    try:
        text = read_capped(path, LIMIT).decode()
        return parse_staged(parse_json(text))
    except OSError as error:
        raise StagedError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except JSONDecodeError as error:
        hint = _MENDED if VERSION_KEY in text[:40] else None
        raise StagedError(f"not JSON: {error}", where=str(path), hint=hint) from error
    except StagedError as error:
        raise StagedError(error.message, where=str(path), hint=error.hint) from error
    except (ValueError, UsageError) as error:
        raise StagedError(f"cannot be read: {error}", where=str(path)) from error


def parse_staged(data: JsonValue) -> Staged:
    """The calls that a file's JSON holds.

    Raises:
        StagedError: it has another version, violates the schema, or a digest is wrong.
    """
    if not isinstance(data, Mapping) or VERSION_KEY not in data:
        message = f"this is not a file of staged calls: `{VERSION_KEY}` is missing"
        raise StagedError(message, hint="a run with rules under `mcp.stage` writes it")
    if data[VERSION_KEY] is True or data[VERSION_KEY] != VERSION:
        message = f"this is of version {data[VERSION_KEY]}; this aish reads version {VERSION}"
        raise StagedError(message, hint="use the aish that wrote it")
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
    ids: set[str] = set()
    for number, row in enumerate(rows, 1):
        calls.append(parse_call(row, head, f"call {number}"))
        id = calls[-1].id
        if id in ids:
            raise StagedError(f"call {number}: the call `{id}` appears twice", hint=_WHOLE)
        ids.add(id)
    return tuple(calls)


def parse_call(row: JsonValue, head: StagedHead, place: str) -> StagedCall:
    """Read a call of a file.

    Raises:
        StagedError: it was changed, or belongs to another run.
    """
    _fits(_schemas()[1], row, place)
    assert isinstance(row, Mapping)
    try:
        # The call of a row that matches the schema; its digest is not checked here
        server, arguments = row["server"], row["arguments"]
        assert isinstance(server, Mapping)
        assert isinstance(arguments, Mapping)
        call = StagedCall(
            time=str(row["time"]),
            step=_text(row["step"]),
            item=_text(row["item"]),
            name=ToolName(str(server["alias"]), str(row["tool"])),
            server=_pin(server),
            arguments=arguments,
            definition=str(row["definition"]),
            rule=str(row["rule"]),
            decision=str(row["decision"]),
            digest=str(row["digest"]),
        )
    except ValueError as error:
        raise StagedError(f"{place}: {error}", hint=_WHOLE) from error
    if not is_whole(call, head) or row["id"] != call.id:
        message = f"{place} (`{row['id']}`) was changed after staging: its digest does not match"
        raise StagedError(message, hint=_WHOLE)
    return call


@cache
def _schemas() -> tuple[JsonObject, JsonObject]:
    """The schema of the file, and that of one call: a file may be too large for one check."""
    from aish.system.files import schema_text

    whole: JsonObject = json.loads(schema_text(SCHEMA))
    return whole, {"$ref": "#/$defs/call", "$defs": whole["$defs"]}


def _fits(schema: JsonObject, value: JsonValue, place: str) -> None:
    from aish.system.schema.check import check

    if problems := check(schema, value):
        raise StagedError(f"{place}: {problems[0]}", hint=_WHOLE)


_END = b"\n]}\n"


class StagedFile:
    """An open file of staged calls, locked by this process."""

    def __init__(self, path: Path, head: StagedHead, calls: tuple[StagedCall, ...]) -> None:
        self._path = path
        self._head = head
        self._calls = list(calls)
        self._descriptor = -1
        self._write_all()

    @property
    def calls(self) -> tuple[StagedCall, ...]:
        return tuple(self._calls)

    def add(self, call: StagedCall) -> None:
        """Add a call; synced to disk on return.

        Raises:
            OSError: it could not be written, and the file is unchanged.
        """
        line = (b",\n" if self._calls else b"\n") + _line(call)
        data = line + _END
        written = os.pwrite(self._descriptor, data, self._offset)
        if written < len(data):
            os.ftruncate(self._descriptor, self._offset)
            os.pwrite(self._descriptor, _END, self._offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data_sync()(self._descriptor)
        self._offset += len(line)
        self._calls.append(call)

    def forget(self, gone: frozenset[str]) -> None:
        self._calls = [call for call in self._calls if call.digest not in gone]
        self._write_all()

    def close(self) -> None:
        os.close(self._descriptor)

    def _write_all(self) -> None:
        text = b",\n".join(map(_line, self._calls))
        head = _head_line(self._head)
        atomic_write(self._path, head + (b"\n" + text if text else b"") + _END)
        descriptor = open_update(self._path)
        try:
            take(descriptor, self._path)
        except UsageError:
            os.close(descriptor)
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._offset = len(head) + (1 + len(text) if text else 0)


def open_staged(path: Path, head: StagedHead) -> StagedFile:
    """The file for a run's staged calls; an existing one of the same run is continued.

    Raises:
        UsageError: calls of another run are in it, or it cannot be written.
    """
    try:
        calls = tuple(_earlier(path, head))
        return StagedFile(path, head, calls)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _earlier(path: Path, head: StagedHead) -> Iterator[StagedCall]:
    if not path.exists():
        return
    descriptor = open_update(path)
    try:
        take(descriptor, path)
    finally:
        os.close(descriptor)
    try:
        staged = read_staged(path)
    except StagedError:
        yield from _complete_calls(path, head)
        return
    if staged.head.run == head.run:
        yield from staged.calls
    elif staged.calls:
        raise UsageError(
            f"the staged calls of the run `{staged.head.run}` are in it",
            where=str(path),
            hint="apply them and move the file, or name another one",
        )


def _complete_calls(path: Path, head: StagedHead) -> Iterator[StagedCall]:
    """The complete calls of a file of this run whose last one was truncated."""
    first, *lines = read_capped(path, LIMIT).splitlines()
    if first + b"\n" != _head_line(head) + b"\n":
        raise StagedError("a file of another run is there", where=str(path))
    for line in lines:
        try:
            row = parse_json(line.removesuffix(b",").decode())
            call = parse_call(row, head, "a call")
        except (ValueError, StagedError):
            return
        yield call


def _head_line(head: StagedHead) -> bytes:
    opened = json_text({VERSION_KEY: VERSION, **head_row(head), "calls": []})
    return opened.removesuffix("]}").encode()


def _line(call: StagedCall) -> bytes:
    return json_text(row_of(call)).encode()
