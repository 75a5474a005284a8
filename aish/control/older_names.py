"""The method names of clients for older programs, over the older paths.

They return the older words and shapes. New programs use the names of `operations`.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from aish.control.answers import Status
from aish.control.http_exchange import (
    PREFIX,
    SECONDS,
    WAIT_SECONDS,
    RequestSender,
    answer_error,
    decode,
)
from aish.core.errors import UsageError
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.phrases import backticked

_INDICATORS: Final = {
    "thinking_indicator": "thinking",
    "operations_live_indicator": "live",
    "prior_session_indicator": "prior",
}
_RESET: Final = "btn_reset_session"


class OlderNames:
    """The operations of an exchange by their older names."""

    def __init__(self, exchange: RequestSender) -> None:
        self._exchange = exchange

    async def get_status(self) -> JsonObject:
        """Return `{"status": "ok"}` if a run listens."""
        return await self._exchange.get("/status")

    async def get_project(self) -> JsonObject:
        """Return the resolved file: `{"project": …}`."""
        return await self._exchange.get("/api/project")

    async def get_session(self) -> JsonObject:
        """Return the conversations: `{"session": {"entries": […]}}`."""
        return await self._exchange.get("/api/session")

    async def get_performance(self) -> JsonObject:
        """Return figures of the run and its process: `{"performance": …}`."""
        return await self._exchange.get("/api/performance")

    async def get_events(self) -> list[JsonObject]:
        """Return the events since the last call with the same token, or by the same user."""
        events = (await self._exchange.get("/api/events")).get("events")
        if not isinstance(events, list):
            raise answer_error("`events` is missing")
        return events

    async def get_mma_status(self) -> JsonObject:
        """Return the state of the run: `active_tickets`, `tracks`, `pending_approval` and more."""
        return await self._exchange.get("/api/gui/mma_status")

    async def get_value(self, item: str, /) -> JsonValue:
        """Return a value, such as that of `limits.turns`.

        Raises:
            NotFoundError: there is no such value.
        """
        return (await self._exchange.get(f"/api/gui/value/{quote(item, safe='')}")).get("value")

    async def get_text_value(self, item: str, /) -> str | None:
        """Return the value as text; `None` if it is null."""
        value = await self.get_value(item)
        return value if value is None or isinstance(value, str) else json_text(value)

    async def get_indicator_state(self, tag: str, /) -> JsonObject:
        """Return `{"tag": …, "shown": …}` for `thinking`, `live`, `prior` or an older name.

        Raises:
            UsageError: there is no such indicator.
        """
        states = await self._exchange.get("/api/gui/diagnostics")
        is_shown = states.get(_INDICATORS.get(tag, tag))
        if not isinstance(is_shown, bool):
            names = backticked([*_INDICATORS, *_INDICATORS.values()])
            raise UsageError("there is no such indicator", hint=f"indicators: {names}")
        return {"tag": tag, "shown": is_shown}

    async def get_node_status(self, step: str, /) -> str | None:
        """Return the status of a step; `None` if the run has no step of that name."""
        steps = decode(Status, await self._exchange.get(f"{PREFIX}/status")).steps
        return next((row.status for row in steps if row.id == step), None)

    async def post_gui(self, data: JsonObject, /) -> JsonObject:
        """Send an action, with `action`, `item` and `value`.

        Raises:
            RejectedError: there is no such action here.
        """
        return await self._exchange.call("POST", "/api/gui", data)

    async def set_value(self, item: str, value: JsonValue, /) -> JsonObject:
        """Change a value without comparing it first, unlike `change_value`."""
        return await self.post_gui({"action": "set_value", "item": item, "value": value})

    async def push_event(self, name: str, payload: JsonValue = None, /) -> JsonObject:
        """Write an event `control.event` with this name into the journal and the stream."""
        return await self.post_gui({"action": "push_event", "item": name, "value": payload})

    async def click(self, item: str, /) -> JsonObject:
        """Click `btn_reset_session`, the only button."""
        return await self.post_gui({"action": "click", "item": item})

    async def select_tab(self, bar: str, tab: str, /) -> JsonObject:
        """Raise `RejectedError`: a run has no tabs."""
        return await self.post_gui({"action": "select_tab", "item": bar, "value": tab})

    async def select_list_item(self, listbox: str, item: str, /) -> JsonObject:
        """Raise `RejectedError`: a run has no lists."""
        return await self.post_gui({"action": "select_list_item", "item": listbox, "value": item})

    async def reset_session(self) -> JsonObject:
        """Start a new conversation in a shell."""
        return await self.click(_RESET)

    async def request_confirmation(self, tool: str, args: Mapping[str, JsonValue], /) -> JsonValue:
        """Ask whether a tool may be called, and return the response within 60 seconds.

        Raises:
            UnansweredError: nobody responded.
        """
        body: JsonObject = {"type": "tool_approval", "title": tool, "tool": tool, "args": args}
        seconds = WAIT_SECONDS + SECONDS
        return (await self._exchange.call("POST", "/api/ask", body, seconds)).get("response")
