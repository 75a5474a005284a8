"""Paths under which older programs ask: the same run, in the words and shapes that they know.

They have the guards and scopes of the other paths, and can do no more. Imported at the first
connection.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from aish.core.errors import AishError
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import backticked
from aish.features.control.asks import (
    LONGEST_TEXT,
    LONGEST_TITLE,
    SECONDS,
    AskedQuestion,
    parse_response,
)
from aish.features.control.routes import Api, is_same, name_of
from aish.net.listen.access import Peer
from aish.net.listen.http_error import HttpError, body_error
from aish.net.listen.routes import Route, connection_of, json_body, json_response

_MOST_READERS: Final = 1000
_RESET = "btn_reset_session"
_UPDATED: Final = {"status": "updated"}
_QUEUED: Final = {"status": "queued"}
_TAGS = ("item", "field", "tag")
_DEEPEST = 50


def older_routes(api: Api) -> Sequence[Route]:
    """All of these paths."""
    older = _OlderPaths(api)
    return [
        Route("/status", ("GET",), "", _status, public=True),
        Route("/api/project", ("GET",), "read", older.project),
        Route("/api/project", ("POST",), "write", older.set_project),
        Route("/api/session", ("GET",), "read", older.session),
        Route("/api/session", ("POST",), "write", older.set_session),
        Route("/api/performance", ("GET",), "read", older.performance),
        Route("/api/events", ("GET",), "read", older.events),
        Route("/api/gui/value", ("GET",), "read", older.value),
        Route("/api/gui/value/{tag:path}", ("GET",), "read", older.value),
        Route("/api/gui/mma_status", ("GET",), "read", older.mma_status),
        Route("/api/gui/diagnostics", ("GET",), "read", older.diagnostics),
        Route("/api/gui", ("POST",), "write", older.act),
        Route("/api/ask", ("POST",), "write", older.ask),
        Route("/api/ask/respond", ("POST",), "answer", older.respond),
    ]


class _OlderPaths:
    """The handlers of the older paths."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._state = api.state
        self._cursors: OrderedDict[tuple[str, str], int | None] = OrderedDict()

    async def project(self, _request: Request, _peer: Peer) -> Response:
        """`GET /api/project`: the resolved file, with the values that were changed."""
        return self._mask_response({"project": self._project()})

    async def set_project(self, request: Request, peer: Peer) -> Response:
        """`POST /api/project`: change what differs, if all of that can be changed."""
        body = await json_body(request)
        project = body.get("project") if isinstance(body, Mapping) and len(body) == 1 else None
        if not isinstance(project, Mapping):
            raise body_error("the body is not an object with `project` alone, an object too")
        values = dict(_differences(project, self._project()))
        if other := [path for path in values if path not in self._api.handle.values]:
            paths = [self._api.secrets.mask(path) for path in other[:5]]
            hint = f"what can be changed: {backticked(self._api.handle.values)}"
            raise body_error(f"{backticked(paths)} cannot be changed while the run goes on", hint)
        self._api.set_values(values, name_of(peer))
        return json_response(_UPDATED)

    async def session(self, _request: Request, _peer: Peer) -> Response:
        """`GET /api/session`: the conversation."""
        return json_response({"session": self._state.conversation.plain()})

    async def set_session(self, request: Request, peer: Peer) -> Response:
        """`POST /api/session`: replace the conversation of a shell."""
        entries = _entries(await json_body(request))
        self._api.require_live()
        replace = self._api.handle.replace_conversation
        if replace is None:
            message = "the conversation of a run cannot be replaced, only that of a shell"
            raise HttpError(409, "wrong_subject", message)
        try:
            await replace(entries, name_of(peer))
        except AishError as error:
            raise HttpError(422, "refused", error.message, hint=error.hint) from error
        return json_response(_UPDATED)

    async def performance(self, _request: Request, _peer: Peer) -> Response:
        """`GET /api/performance`: figures of the run and its process."""
        return json_response({"performance": await self._api.figures()})

    async def events(self, _request: Request, peer: Peer) -> Response:
        """`GET /api/events`: what has happened since the last call with this token."""
        reader = (peer.transport, peer.key if peer.uid is None else str(peer.uid))
        try:
            page = await self._api.past.page(self._cursors.get(reader))
        except HttpError as error:
            if error.code != "events_gone":
                raise
            # Its number is kept here, so it could never ask with another one.
            page = await self._api.past.page(None)
        self._cursors[reader] = page.next
        self._cursors.move_to_end(reader)
        if len(self._cursors) > _MOST_READERS:
            self._cursors.popitem(last=False)
        return json_response({"events": page.events})

    async def value(self, request: Request, _peer: Peer) -> Response:
        """`GET /api/gui/value`, `/api/gui/value/TAG`: all values, or one."""
        tag = request.path_params.get("tag")
        if tag is None:
            query = request.query_params
            tag = next((query[name] for name in _TAGS if name in query), None)
        values = self._api.handle.values
        if tag is None:
            return json_response({"value": {path: value.get() for path, value in values.items()}})
        if tag not in values:
            hint = f"values: {backticked(values)}"
            raise HttpError(404, "unknown_value", "there is no such value", hint=hint)
        return json_response({"value": values[tag].get()})

    async def mma_status(self, _request: Request, _peer: Peer) -> Response:
        """`GET /api/gui/mma_status`: the steps of the run, and what they wait for."""
        state = self._state
        running = [step for step in state.steps if step.status == "running"]
        # A tool call is all that a run asks about.
        waits = state.phase == "waiting"
        return json_response(
            {
                "mma_status": state.phase,
                "ai_status": self._ai_status(),
                "active_tier": running[-1].kind if running else None,
                "active_track": state.pipeline,
                "active_tickets": [step.id for step in running],
                "mma_step_mode": False,
                "pending_tool_approval": waits,
                "pending_mma_step_approval": False,
                "pending_mma_spawn_approval": False,
                "pending_approval": waits,
                "pending_spawn": False,
                "tracks": [
                    {"id": step.id, "status": step.status, "done": step.done, "total": step.total}
                    for step in state.steps
                ],
                "proposed_tracks": [],
                "mma_streams": state.under_way.streams(),
            }
        )

    def _ai_status(self) -> str:
        state = self._state
        if state.end is not None:
            return "done" if state.end.code == 0 else f"error: {state.end.name}"
        if state.under_way.thinks:
            return "thinking"
        if state.under_way.calls:
            return "running a tool"
        return "waiting for an answer" if state.phase == "waiting" else "idle"

    async def diagnostics(self, _request: Request, _peer: Peer) -> Response:
        """`GET /api/gui/diagnostics`: whether a model answers, and whether a tool runs."""
        under_way = self._state.under_way
        return json_response(
            {"thinking": under_way.thinks, "live": under_way.calls, "prior": False}
        )

    async def act(self, request: Request, peer: Peer) -> Response:
        """`POST /api/gui`: `set_value`, `push_event`, or `click` on the reset of a session."""
        body, by = await json_body(request), name_of(peer)
        if not isinstance(body, Mapping) or not set(body) <= {"action", "item", "value"}:
            raise body_error("the body is not an object with `action`, `item` and `value`")
        action, item = body.get("action"), body.get("item")
        if not isinstance(item, str):
            raise body_error("`item` is not a text")
        match action:
            case "set_value":
                if item not in self._api.handle.values:
                    hint = f"values: {backticked(self._api.handle.values)}"
                    raise body_error("`item` is not a value that can be changed", hint)
                self._api.set_values({item: body.get("value")}, by)
            case "push_event":
                event = {"command": "event", "name": item, "data": body.get("value")}
                await self._api.obey(event, by)
            case "click" if item == _RESET:
                await self._api.obey({"command": "reset"}, by)
            case "click":
                raise body_error(f"`item` is not `{_RESET}`, the only one that can be clicked")
            case _:
                raise body_error("`action` is one of `set_value`, `push_event`, `click`")
        return json_response(_QUEUED)

    async def ask(self, request: Request, peer: Peer) -> Response:
        """`POST /api/ask`: ask a question with the whole body, and wait for the response."""
        body = await json_body(request)
        named: JsonObject = body if isinstance(body, Mapping) else {}
        title, text = _text(named, "title", LONGEST_TITLE), _text(named, "text", LONGEST_TEXT)
        asked = AskedQuestion(title, text, body, SECONDS)
        by, connection = name_of(peer), connection_of(request.scope)
        _, response = await self._api.asks.ask(asked, by, connection)
        return self._mask_response({"status": "ok", "response": response})

    async def respond(self, request: Request, peer: Peer) -> Response:
        """`POST /api/ask/respond`: respond to an open question."""
        id, response = parse_response(await json_body(request))
        try:
            self._api.asks.respond(id, response, name_of(peer))
        except HttpError as error:
            raise HttpError(404, error.code, error.message) from error
        return json_response({"status": "ok"})

    def _mask_response(self, value: JsonValue) -> Response:
        return json_response(self._api.secrets.mask_json(value))

    def _project(self) -> JsonObject:
        project: JsonObject = self._api.run.project
        for path in self._api.changed:
            project = _with(project, path.split("."), self._api.handle.values[path].get())
        return project


async def _status(_request: Request, _peer: Peer) -> Response:  # ruff: ignore[unused-async] - awaited
    return json_response({"status": "ok"})


def _with(project: JsonObject, path: Sequence[str], value: JsonValue) -> JsonObject:
    """The project with another value at a path."""
    key, *rest = path
    if not rest:
        return {**project, key: value}
    inner = project.get(key)
    return {**project, key: _with(inner if isinstance(inner, Mapping) else {}, rest, value)}


def _differences(
    given_values: JsonObject, project: JsonObject, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, JsonValue]]:
    """The paths at which a project is to be another one, each with what it is to be."""
    for key, value in given_values.items():
        path, now = f"{prefix}{key}", project.get(key)
        if isinstance(value, Mapping) and (now is None or isinstance(now, Mapping)) and value:
            if depth == _DEEPEST:
                raise body_error("`project` is nested too deeply")
            yield from _differences(value, now or {}, f"{path}.", depth + 1)
        elif key not in project or not _is_equal(value, now):
            yield path, value


def _is_equal(value: JsonValue, other: JsonValue) -> bool:
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(_is_equal(value[k], other[k]) for k in value)
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_is_equal, value, other))
    return is_same(value, other)


def _entries(body: JsonValue) -> Sequence[JsonObject]:
    """The entries of a conversation in a body: `{"session": {"entries": […]}}`, or the inner one.

    Raises:
        HttpError: it has none.
    """
    session = body.get("session", body) if isinstance(body, Mapping) else None
    entries = session.get("entries") if isinstance(session, Mapping) else None
    if not isinstance(entries, list | tuple):
        raise body_error("the body is not an object with `session`, and a list of `entries` in it")
    found: list[JsonObject] = []
    for entry in entries:
        has_texts = isinstance(entry, Mapping) and all(
            isinstance(entry.get(key), str) for key in ("role", "text")
        )
        if not isinstance(entry, Mapping) or not has_texts:
            raise body_error("an entry is not an object with the texts `role` and `text`")
        found.append(entry)
    return found


def _text(body: JsonObject, key: str, longest: int) -> str:
    """A text of a question, if it has a usable one; the whole body is its `data` anyway."""
    value = body.get(key)
    return value if isinstance(value, str) and len(value) <= longest else ""
