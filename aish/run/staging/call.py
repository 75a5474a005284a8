"""A staged call and what it is bound to. Pure: the file is written and read elsewhere."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from aish.config.pipeline import Pipeline
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import ToolName
from aish.engine.plan.lock.pins import declared
from aish.policy.digest import canonical
from aish.policy.lock import ADDRESS_KEYS, ServerPin
from aish.policy.rules import LOCAL_COMMAND
from aish.system.secrets.secrets import Secrets

_SHORT = 8
_LOCAL = "local"


@frozen
class StagedHead:
    """What a file of staged calls is about: the run, and its pipeline."""

    run: str
    name: str
    file: str
    digest: str


@frozen
class StagedCall:
    """One call as it will be sent, where it came from, and what it was decided by.

    `server` is `None` for a local command. `definition` is the hash of what the server said of the
    tool, `decision` the digest of the call in the run's journal, `digest` is over everything here
    and the head. `id` is the beginning of it.
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
        """A short name for people and command lines."""
        return self.digest[:_SHORT]

    @property
    def home(self) -> str:
        """The steps that lead to its sub-pipeline, as `outer/inner`; empty where it is in none."""
        return (self.step or "").rpartition("/")[0]


def sealed(call: StagedCall, head: StagedHead) -> StagedCall:
    """The call with the digest that it has to have."""
    return replace(call, digest=_digest(call, head))


def is_whole(call: StagedCall, head: StagedHead) -> bool:
    """Whether a call is as it was written, and belongs to this head."""
    return call.digest == _digest(call, head)


def pins_of(pipeline: Pipeline, secrets: Secrets) -> Mapping[str, ServerPin | None]:
    """Where each server of a pipeline is, as a lock has it; local commands have no server."""
    return {**declared(pipeline, secrets).servers, LOCAL_COMMAND.server: None}


def row_of(call: StagedCall) -> JsonObject:
    """The call as the JSON of its file."""
    return {"id": call.id, **_subject(call), "digest": call.digest}


def head_row(head: StagedHead) -> JsonObject:
    """The head as the JSON of its file, without version and calls."""
    pipeline: JsonObject = {"name": head.name, "file": head.file, "digest": head.digest}
    return {"run": head.run, "pipeline": pipeline}


def call_of(row: Mapping[str, JsonValue]) -> StagedCall:
    """The call of a row that fits the schema; whether it is whole is not asked here.

    Raises:
        ValueError: its server has no address.
    """
    server, arguments = row["server"], row["arguments"]
    assert isinstance(server, Mapping)
    assert isinstance(arguments, Mapping)
    return StagedCall(
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
