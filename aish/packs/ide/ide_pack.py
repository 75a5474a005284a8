"""The pack `ide`: chats, runs as builds, and an overview, for the tools of an editor.

Without a bridge the answers come from this machine: builds are the runs of the project, a plan is
the steps of a run, services are the servers of the file, and chats use the model of the option.
With a bridge, each call is sent to it.
"""

import json
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import anyio.to_thread

from aish.core.errors import UsageError
from aish.core.events import ReasoningDelta, Stamped, TextDelta, ToolOutput, rfc3339, to_object
from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue
from aish.core.text import for_line, for_terminal
from aish.packs.framework.pack import READS_WORLD, Bounds, Marks, Pack, PackContext, tool
from aish.packs.ide.ide_options import IdeOptions
from aish.packs.installed_libraries import is_installed
from aish.packs.model_request import Message, ToolModelRequest, ask_model
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer
from aish.system.task_group import task_group

if TYPE_CHECKING:
    from aish.packs.ide.bridge import Bridge

MOST_CHATS = 32
MOST_MESSAGES = 200
LONGEST_MESSAGE = 100_000
# A call that is cancelled does not wait for what is being read.
_in_thread = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)

_LONGEST_NAME = 200
_MOST_EVENTS = 200
_LISTED_RUNS = 20
_RECENT = 5
_PIECES = (TextDelta, ReasoningDelta, ToolOutput)
_PERIODS = {"1h": 3_600, "24h": 86_400, "7d": 604_800}
_SYSTEM = "You answer the questions of somebody who works on a software project, briefly."
_SPEAKS = Marks(read_only=False, destructive=False, idempotent=False, open_world=True)
SessionId = Annotated[str, "The id that ide_session_create returned."]


@slotted
class Chat:
    """A conversation with the model, one message at a time."""

    id: str
    name: str
    started_at: str
    messages: list[dict[str, JsonValue]] = field(default_factory=list)
    turn: anyio.Lock = field(default_factory=anyio.Lock)

    def row(self) -> dict[str, JsonValue]:
        return {
            "id": self.id,
            "name": self.name,
            "kind": "chat",
            "status": "open",
            "started_at": self.started_at,
        }


@slotted
class IdeState:
    """The chats, and the state of this run from its events."""

    context: PackContext
    options: IdeOptions
    bridge: "Bridge | None"
    chats: dict[str, Chat] = field(default_factory=dict)
    steps: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    servers: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))

    @property
    def folders(self) -> list[Path]:
        """The folders with runs: those of the project, and the one of this run."""
        services = self.context.services
        folders = [] if services.project is None else [services.project / ".aish" / "runs"]
        if services.run_folder is not None:
            folders.append(services.run_folder.parent)
        return list(dict.fromkeys(folders))

    def take(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, _PIECES):
            return
        from aish.packs.ide.past_runs import fold_step

        record = to_object(stamped)
        fold_step(self.steps, record)
        servers = record.get("servers")
        if record["type"] == "run.started" and isinstance(servers, list | tuple):
            for server in servers:
                assert isinstance(server, Mapping), "a server is an object"
                row = {"name": server["alias"], "state": server["state"], "tools": server["tools"]}
                self.servers[str(server["alias"])] = row
        self.events.append(record)


@asynccontextmanager
async def _open(context: PackContext) -> AsyncGenerator[IdeState]:
    options, services = context.options, context.services
    assert isinstance(options, IdeOptions)
    async with task_group() as tasks:
        bridge = None
        if options.bridge is not None:
            if not is_installed("websockets"):
                message = "the bridge of the pack `ide` needs `websockets`, which is not installed"
                raise UsageError(message, hint="pip install 'aish-pipelines[ide]'")
            from aish.packs.ide.bridge import Bridge

            token = services.secrets.get(options.bridge.token_env)
            bridge = Bridge(
                options.bridge, token, services.channels, services.run_secrets, services.run_id
            )
            tasks.start_soon(bridge.run)
        state = IdeState(context, options, bridge)
        for alias in services.servers:
            state.servers[alias] = {"name": alias, "state": "configured", "tools": None}
        for id in services.steps:
            state.steps[id] = {"id": id, "status": "pending", "seconds": None}
        stop = None if services.follow is None else services.follow(state.take)
        try:
            yield state
        finally:
            if stop is not None:
                stop()
            tasks.cancel_scope.cancel()


_SESSION = ("id", "name", "kind", "status", "started_at")


@tool(
    _SPEAKS,
    result={"session_id": "string", "reply": "string", "timestamp": "string", "pending": "boolean"},
    codes=("not_found", "unavailable", "limit", "timeout"),
    older_parameters={"sessionId": "session_id"},
)
async def ide_chat_send(state: IdeState, session_id: SessionId, message: str) -> Answer:
    """Sends a message to a chat session.

    The reply is that of the model, which sees the whole chat and has no tools.

    Args:
        message: The text, up to 100,000 characters.
    """
    if not message.strip() or len(message) > LONGEST_MESSAGE:
        problem = f"`message` is empty, or has more than {LONGEST_MESSAGE:,} characters"
        raise PackError("bad_arguments", problem)
    if state.bridge is not None:
        asked = {"session_id": session_id, "message": message}
        return await _ask_bridge(state, ide_chat_send.name, asked)
    chat = _chat(state, session_id)
    async with chat.turn:
        if len(chat.messages) + 2 > MOST_MESSAGES:
            problem = f"the chat has {MOST_MESSAGES} messages, and no more may be added"
            raise PackError("limit", problem)
        history = [Message(*_role_and_text(message)) for message in chat.messages]
        request = ToolModelRequest(
            [*history, Message("user", message)], model=state.options.model or "", system=_SYSTEM
        )
        asked_at = rfc3339(time.time())
        answer = await ask_model(request)
        reply = state.context.services.mask(answer.text)
        _add(state, chat, "user", state.context.services.mask(message), asked_at)
        timestamp = rfc3339(time.time())
        _add(state, chat, "assistant", reply, timestamp)
    data: dict[str, JsonValue] = {
        "session_id": chat.id,
        "reply": reply,
        "timestamp": timestamp,
        "pending": False,
    }
    return Answer(reply, data)


@tool(
    READS_WORLD,
    result={"session_id": "string", "messages": "array", "pending": "boolean"},
    rows={"messages": {"role": "string", "text": "string", "timestamp": "string"}},
    codes=("not_found", "unavailable"),
    older_parameters={"sessionId": "session_id"},
)
async def ide_chat_history(
    state: IdeState, session_id: SessionId, limit: Annotated[int, Bounds(1, MOST_MESSAGES)] = 50
) -> Answer:
    """Messages of a chat session.

    Args:
        limit: The most messages, the last ones.
    """
    if state.bridge is not None:
        asked: JsonObject = {"session_id": session_id, "limit": limit}
        return await _ask_bridge(state, ide_chat_history.name, asked)
    chat = _chat(state, session_id)
    rows: list[JsonValue] = [*chat.messages[-limit:]]
    lines = [f"{message['role']}: {message['text']}" for message in chat.messages[-limit:]]
    data: dict[str, JsonValue] = {"session_id": chat.id, "messages": rows, "pending": False}
    return Answer("\n".join(lines) or "no messages", data)


@tool(
    READS_WORLD,
    result={"sessions": "array", "pending": "boolean"},
    rows={"sessions": dict.fromkeys(_SESSION, "string")},
    codes=("unavailable",),
)
async def ide_session_list(state: IdeState) -> Answer:
    """Chat sessions, and runs."""
    if state.bridge is not None:
        return await _ask_bridge(state, ide_session_list.name, {})
    rows: list[JsonValue] = [chat.row() for chat in state.chats.values()]
    for row in await _in_thread(_builds, state, "", _LISTED_RUNS):
        own = {key: row[key] for key in ("id", "status", "started_at")}
        rows.append({"name": row["pipeline"], "kind": "run", **own})
    lines = [
        f"{row['id']}  {row['kind']}  {row['status']}  {for_line(str(row['name']))}"
        for row in rows
        if isinstance(row, dict)
    ]
    return Answer("\n".join(lines) or "no sessions", {"sessions": rows, "pending": False})


@tool(_SPEAKS, result={"session": "object", "pending": "boolean"}, codes=("limit", "unavailable"))
async def ide_session_create(state: IdeState, name: str) -> Answer:
    """Creates a chat session.

    Args:
        name: What it is called.
    """
    if not name.strip() or len(name) > _LONGEST_NAME:
        message = f"`name` is empty, or has more than {_LONGEST_NAME} characters"
        raise PackError("bad_arguments", message)
    if state.bridge is not None:
        return await _ask_bridge(state, ide_session_create.name, {"name": name})
    if len(state.chats) >= MOST_CHATS:
        raise PackError("limit", f"there are {MOST_CHATS} chats, and no more may be created")
    number = state.context.services.channels.number("chat")
    chat = Chat(f"chat-{number}", for_line(name), rfc3339(time.time()))
    state.chats[chat.id] = chat
    return Answer(f"created {chat.id}", {"session": chat.row(), "pending": False})


@tool(
    READS_WORLD,
    result={"session_id": "string", "status": "string", "steps": "array", "pending": "boolean"},
    rows={"steps": {"id": "string", "status": "string", "seconds": "number"}},
    codes=("not_found", "unavailable"),
    older_parameters={"sessionId": "session_id"},
)
async def ide_plan_status(state: IdeState, session_id: str = "current") -> Answer:
    """Steps of a run and their status; a chat has none.

    Args:
        session_id: The id of a run or chat, or `current` for this run.
    """
    if state.bridge is not None:
        return await _ask_bridge(state, ide_plan_status.name, {"session_id": session_id})
    own = state.context.services.run_id
    if session_id in state.chats:
        status, rows = "open", []
    elif session_id in {"current", own}:
        session_id, status, rows = own or "current", "running", list(state.steps.values())
    else:
        from aish.packs.ide.past_runs import steps_of

        id, folder = await _find_run(state, session_id)
        steps = await _in_thread(steps_of, folder)
        if steps is None:
            raise PackError("unavailable", f"the journal of `{id}` cannot be read")
        session_id, (status, rows) = id, steps
    lines = [f"{row['id']}  {row['status']}" for row in rows]
    data: dict[str, JsonValue] = {
        "session_id": session_id,
        "status": status,
        "steps": [*rows],
        "pending": False,
    }
    return Answer("\n".join([f"{session_id}: {status}", *lines]), data)


@tool(
    READS_WORLD,
    result={"build": "object", "pending": "boolean"},
    codes=("not_found", "unavailable"),
    older_parameters={"buildId": "build_id"},
)
async def ide_build_status(state: IdeState, build_id: str = "latest") -> Answer:
    """Status of a run.

    Args:
        build_id: The id of a run, or `latest`.
    """
    if state.bridge is not None:
        return await _ask_bridge(state, ide_build_status.name, {"build_id": build_id})
    from aish.packs.ide.past_runs import past_run

    id, folder = await _find_run(state, build_id)
    run = await _in_thread(past_run, id, folder)
    if run is None:
        raise PackError("unavailable", f"the journal of `{id}` cannot be read")
    return Answer(_build_line(run.row()), {"build": run.row(), "pending": False})


@tool(
    READS_WORLD,
    result={"builds": "array", "pending": "boolean"},
    rows={
        "builds": {
            "id": "string",
            "pipeline": "string",
            "status": "string",
            "exit_code": "integer",
            "started_at": "string",
            "seconds": "number",
            "cost_usd": "number",
        }
    },
    codes=("unavailable",),
)
async def ide_build_list(
    state: IdeState, repo: str = "", limit: Annotated[int, Bounds(1, 200)] = 20
) -> Answer:
    """Runs, the newest first.

    Args:
        repo: Only those of the pipeline with this name.
        limit: The most runs.
    """
    if state.bridge is not None:
        return await _ask_bridge(state, ide_build_list.name, {"repo": repo, "limit": limit})
    rows: list[JsonValue] = [*await _in_thread(_builds, state, repo, limit)]
    lines = [_build_line(row) for row in rows if isinstance(row, dict)]
    return Answer("\n".join(lines) or "no runs", {"builds": rows, "pending": False})


@tool(
    READS_WORLD,
    result={"build_id": "string", "lines": "array", "pending": "boolean"},
    codes=("not_found", "unavailable"),
    older_parameters={"buildId": "build_id"},
)
async def ide_build_logs(
    state: IdeState, build_id: str = "latest", tail: Annotated[int, Bounds(1, 1_000)] = 100
) -> Answer:
    """Last lines of a run's log.

    Args:
        build_id: The id of a run, or `latest`.
        tail: The most lines.
    """
    if state.bridge is not None:
        return await _ask_bridge(state, ide_build_logs.name, {"build_id": build_id, "tail": tail})
    from aish.packs.ide.past_runs import last_lines

    id, folder = await _find_run(state, build_id)
    lines = await _in_thread(last_lines, folder, tail)
    if lines is None:
        raise PackError("unavailable", f"the journal of `{id}` cannot be read")
    data: dict[str, JsonValue] = {"build_id": id, "lines": [*lines], "pending": False}
    return Answer("\n".join(lines) or "nothing was written yet", data)


@tool(
    READS_WORLD,
    result={
        "repos": "array",
        "services": "array",
        "active_sessions": "integer",
        "recent_builds": "array",
        "bridge_online": "boolean",
    },
    rows={
        "repos": {"path": "string", "branch": "string"},
        "services": {"name": "string", "state": "string", "tools": "integer"},
        "recent_builds": {"id": "string", "status": "string"},
    },
)
async def ide_dashboard_overview(state: IdeState) -> Answer:
    """Overview of repositories, servers, sessions and runs.

    While a bridge is down, it is that of this machine.
    """
    if state.bridge is not None and state.bridge.is_online:
        try:
            answer = await state.bridge.ask(ide_dashboard_overview.name, {})
        except PackError:
            answer = None  # what is known here is the answer then
        if answer is not None:
            data = {**_fit_to_schema(ide_dashboard_overview.name, answer), "bridge_online": True}
            return _from_bridge(state, data)
    data = await _in_thread(_overview, state)
    values = {key: value for key, value in data.items() if key != "bridge_online"}
    return Answer("\n".join(f"{key}: {json.dumps(value)}" for key, value in values.items()), data)


@tool(
    READS_WORLD,
    result={"events": "array", "pending": "boolean"},
    rows={"events": {"time": "string", "run": "string", "type": "string", "text": "string"}},
    codes=("unavailable",),
)
async def ide_dashboard_activity(
    state: IdeState, limit: Annotated[int, Bounds(1, _MOST_EVENTS)] = 20
) -> Answer:
    """Recent events.

    Args:
        limit: The most events, the newest first.
    """
    if state.bridge is not None:
        return await _ask_bridge(state, ide_dashboard_activity.name, {"limit": limit})
    rows: list[JsonValue] = [*await _in_thread(_activity, state, limit)]
    lines = [
        f"{row['time']}  {row['run']}  {row['type']}  {row['text']}".rstrip()
        for row in rows
        if isinstance(row, dict)
    ]
    return Answer("\n".join(lines) or "no events", {"events": rows, "pending": False})


@tool(
    READS_WORLD,
    result={"period": "string", "metrics": "object", "pending": "boolean"},
    codes=("unavailable",),
)
async def ide_dashboard_metrics(
    state: IdeState, period: Literal["24h", "1h", "7d"] = "24h"
) -> Answer:
    """Runs, tokens, cost and durations of a period.

    Args:
        period: How far back.
    """
    if state.bridge is not None:
        return await _ask_bridge(state, ide_dashboard_metrics.name, {"period": period})
    from aish.packs.ide.past_runs import metrics_since

    since = time.time() - _PERIODS[period]
    metrics = await _in_thread(metrics_since, state.folders, since)
    data: dict[str, JsonValue] = {"period": period, "metrics": metrics, "pending": False}
    return Answer("\n".join(f"{key}: {value}" for key, value in metrics.items()), data)


def _chat(state: IdeState, id: str) -> Chat:
    chat = state.chats.get(id)
    if chat is None:
        raise PackError("not_found", f"there is no chat `{for_line(id[:_LONGEST_NAME])}`")
    return chat


def _role_and_text(message: Mapping[str, JsonValue]) -> tuple[Literal["user", "assistant"], str]:
    return "user" if message["role"] == "user" else "assistant", str(message["text"])


def _add(state: IdeState, chat: Chat, role: str, text: str, timestamp: str) -> None:
    row: dict[str, JsonValue] = {"role": role, "text": text, "timestamp": timestamp}
    chat.messages.append(row)
    state.context.services.channels.publish(f"chat:{chat.id}", "message", row)


async def _find_run(state: IdeState, id: str) -> tuple[str, Path]:
    """Find the run with this id, or the newest."""
    from aish.packs.ide.past_runs import LATEST, run_ids

    runs = await _in_thread(run_ids, state.folders)
    for run_id, folder in runs:
        if id in {LATEST, run_id}:
            return run_id, folder
    raise PackError("not_found", f"there is no run `{for_line(id[:_LONGEST_NAME])}`")


def _builds(state: IdeState, pipeline: str, limit: int) -> list[dict[str, JsonValue]]:
    from aish.packs.ide.past_runs import MOST_RUNS, past_run, run_ids

    rows: list[dict[str, JsonValue]] = []
    for id, folder in run_ids(state.folders)[:MOST_RUNS]:
        if len(rows) == limit:
            break
        run = past_run(id, folder)
        if run is not None and pipeline in {"", run.pipeline}:
            rows.append(run.row())
    return rows


def _build_line(row: Mapping[str, JsonValue]) -> str:
    return f"{row['id']}  {row['status']}  {for_line(str(row['pipeline']))}"


def _overview(state: IdeState) -> dict[str, JsonValue]:
    from aish.packs.ide.past_runs import branch_of

    project = state.context.services.project
    branch = None if project is None else branch_of(project.absolute())
    repos: list[JsonValue] = []
    if project is not None and branch is not None:
        path = os.path.relpath(branch[0], project.absolute())
        repos.append({"path": path, "branch": for_line(branch[1])})
    recent = _builds(state, "", _RECENT)
    return {
        "repos": repos,
        "services": [*state.servers.values()],
        "active_sessions": len(state.chats),
        "recent_builds": [{"id": row["id"], "status": row["status"]} for row in recent],
        "bridge_online": state.bridge is not None and state.bridge.is_online,
    }


def _activity(state: IdeState, limit: int) -> list[dict[str, JsonValue]]:
    """Return the events of this run, then the beginnings and ends of others; the newest first."""
    from aish.packs.ide.past_runs import event_text, past_run, run_ids

    own = state.context.services.run_id
    rows = [_event_row(own, record, event_text(record)) for record in reversed(state.events)]
    for id, folder in run_ids(state.folders):
        if len(rows) >= limit:
            break
        run = None if id == own else past_run(id, folder)
        records = () if run is None else (run.finished, run.started)
        rows += [_event_row(id, record, event_text(record)) for record in records if record]
    return rows[:limit]


def _event_row(run: str, record: Mapping[str, Any], text: str) -> dict[str, JsonValue]:
    return {"time": record.get("time"), "run": run, "type": record.get("type"), "text": text}


async def _ask_bridge(state: IdeState, name: str, asked: JsonObject) -> Answer:
    assert state.bridge is not None, "it is asked whether there is one"
    answer = await state.bridge.ask(name, asked)
    if answer is None:
        message = "sent to the bridge, which has not answered; its answer may come later"
        return Answer(message, {"pending": True})
    return _from_bridge(state, {**_fit_to_schema(name, answer), "pending": False})


def _from_bridge(state: IdeState, data: dict[str, JsonValue]) -> Answer:
    assert state.options.bridge is not None, "it has answered"
    data = {key: _escape(value) for key, value in data.items()}
    text = data.get("reply")
    output = text if isinstance(text, str) else json.dumps(data, ensure_ascii=False, indent=1)
    return Answer(output, data, source=state.options.bridge.url.partition("?")[0])


def _escape(value: JsonValue) -> JsonValue:
    """Return a value with its texts escaped, as in texts for models."""
    if isinstance(value, str):
        return for_terminal(value)
    if isinstance(value, Mapping):
        return {for_line(key): _escape(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_escape(item) for item in value]
    return value


_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def _fit_to_schema(name: str, answer: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Keep the fields of the bridge's answer that fit the tool's schema."""
    tool = next(candidate for candidate in PACK.tools if candidate.name == name)
    properties = tool.output_schema["properties"]
    assert isinstance(properties, Mapping), "a schema of an object"
    values: dict[str, JsonValue] = {}
    for key, value in answer.items():
        schema = properties.get(key)
        if not isinstance(schema, Mapping) or not isinstance(schema["type"], list):
            continue
        kind = str(schema["type"][0])
        is_bool = isinstance(value, bool) and kind != "boolean"
        if value is not None and (is_bool or not isinstance(value, _KINDS[kind])):
            raise PackError("unavailable", f"the bridge answered with a `{key}` that is no {kind}")
        is_table = isinstance(value, list) and "items" in schema
        values[key] = (
            [row for row in value if isinstance(row, dict)]
            if is_table and isinstance(value, list)
            else value
        )
    return values


PACK = Pack(
    tools=(
        ide_chat_send,
        ide_chat_history,
        ide_session_list,
        ide_session_create,
        ide_plan_status,
        ide_build_status,
        ide_build_list,
        ide_build_logs,
        ide_dashboard_overview,
        ide_dashboard_activity,
        ide_dashboard_metrics,
    ),
    root="none",
    lifespan=_open,
    options=IdeOptions,
)
