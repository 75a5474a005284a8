"""The shapes of the control API's answers, as JSON Schemas: no key more, none less."""

from collections.abc import Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator

TEXT: Final = {"type": "string"}
WHOLE: Final = {"type": "integer"}
NUMBER: Final = {"type": "number"}
FLAG: Final = {"type": "boolean"}
ID: Final = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
TIME: Final = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
ANY: Final[Mapping[str, Any]] = {}


def maybe(schema: Any) -> Any:
    """Or `null`."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(**keys: Any) -> Any:
    """An object with just these keys."""
    return {
        "type": "object",
        "properties": keys,
        "required": list(keys),
        "additionalProperties": False,
    }


def many(schema: Any) -> Any:
    """A list."""
    return {"type": "array", "items": schema}


def named(schema: Any) -> Any:
    """An object with any keys."""
    return {"type": "object", "additionalProperties": schema}


COUNTS = ("input", "output", "cached", "reasoning", "cache_written")
USAGE = record(**dict.fromkeys(COUNTS, maybe(WHOLE)))
STATUS = record(
    v={"const": 1},
    run=TEXT,
    pipeline=TEXT,
    state={"enum": ["running", "waiting", "paused", "finished"]},
    exit=maybe(record(code=WHOLE, name=TEXT, retryable=FLAG, reason=TEXT, hint=maybe(TEXT))),
    seconds=NUMBER,
    tokens=maybe(USAGE),
    cost_usd=maybe(NUMBER),
    steps=many(record(id=TEXT, status=TEXT, done=WHOLE, total=maybe(WHOLE))),
    pending=many(ID),
)
ENTRY = record(
    role={"enum": ["system", "user", "assistant", "tool"]},
    text=TEXT,
    calls=many(record(id=TEXT, name=TEXT, arguments=TEXT)),
    time=TIME,
    step=maybe(TEXT),
    item=maybe(TEXT),
    tool=maybe(TEXT),
    characters=WHOLE,
)
SESSION = record(entries=many(ENTRY), left_out=WHOLE)
DURATION = maybe(record(p50=NUMBER, p95=NUMBER, max=NUMBER))
PERFORMANCE = record(
    uptime_seconds=NUMBER,
    loop_lag_ms=record(now=NUMBER),
    cpu_percent=NUMBER,
    rss_mb=NUMBER,
    threads=WHOLE,
    descriptors=WHOLE,
    children=WHOLE,
    queue_wait_ms={"type": "null"},
    tools=named(record(calls=WHOLE, errors=WHOLE, duration_ms=DURATION)),
    models=named(
        record(
            answers=WHOLE,
            input_tokens=WHOLE,
            output_tokens=WHOLE,
            duration_ms=DURATION,
            first_token_ms=DURATION,
        )
    ),
)
EVENT = {
    "type": "object",
    "required": ["v", "seq", "time", "type"],
    "properties": {"seq": WHOLE, "time": TIME, "type": TEXT, "crc": False},
}
EVENTS = record(events=many(EVENT), next=WHOLE)
VALUE = record(value=ANY, type={"enum": ["integer", "number", "string"]})
VALUES = record(values=named(VALUE))
ONE_VALUE = record(path=TEXT, **VALUE["properties"])
QUESTION = record(
    **dict.fromkeys(("run", "step", "item", "server", "tool", "digest", "reason", "always"), ANY),
    id=ID,
    arguments=ANY,
    asked=TIME,
    expires=maybe(TIME),
    state={"enum": ["open", "approved", "denied", "expired", "withdrawn"]},
    caller_waiting=FLAG,
    answer=maybe(record(by=TEXT, way=TEXT, note=TEXT, time=TIME)),
)
APPROVALS = record(v={"const": 1}, pending=many(QUESTION), decided=many(QUESTION))
COMMAND = record(command=TEXT)
ASKED = record(request_id=ID, response=ANY)
RESPONDED = record(request_id=ID)
ERROR = record(error=record(code=TEXT, message=TEXT, hint=maybe(TEXT)))
OK = record(status={"const": "ok"})
MMA_STATUS = record(
    mma_status={"enum": ["running", "waiting", "paused", "finished"]},
    ai_status=TEXT,
    active_tier=maybe({"enum": ["prompt", "call", "run", "pipeline"]}),
    active_track=TEXT,
    active_tickets=many(TEXT),
    mma_step_mode={"const": False},
    pending_tool_approval=FLAG,
    pending_mma_step_approval={"const": False},
    pending_mma_spawn_approval={"const": False},
    pending_approval=FLAG,
    pending_spawn={"const": False},
    tracks=many(record(id=TEXT, status=TEXT, done=WHOLE, total=maybe(WHOLE))),
    proposed_tracks={"const": []},
    mma_streams=named(TEXT),
)
READS: Final[Mapping[str, Any]] = {
    "/api/v1/status": STATUS,
    "/api/v1/session": SESSION,
    "/api/v1/performance": PERFORMANCE,
    "/api/v1/events": EVENTS,
    "/api/v1/values": VALUES,
    "/api/v1/values/concurrency": ONE_VALUE,
    "/api/v1/approvals": APPROVALS,
    "/api/project": record(project=named(ANY)),
    "/api/session": record(session=SESSION),
    "/api/performance": record(performance=PERFORMANCE),
    "/api/events": record(events=many(EVENT)),
    "/api/gui/value": record(value=named(ANY)),
    "/api/gui/value/concurrency": record(value=WHOLE),
    "/api/gui/mma_status": MMA_STATUS,
    "/api/gui/diagnostics": record(thinking=FLAG, live=FLAG, prior={"const": False}),
}
"""What the paths answer that change nothing."""


def check(value: Any, schema: Any) -> None:
    """Check the shape of an answer."""
    problems = [f"{error.json_path}: {error.message}" for error in _validator(schema, value)]
    assert problems == []


def _validator(schema: Any, value: Any) -> Any:
    return Draft202012Validator(schema).iter_errors(value)
