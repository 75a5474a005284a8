"""The names that older programs call a client by, over the paths that they know (A4, A5).

They answer in the words and shapes of then. New programs use the names of `operations`.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from aish.control.operations import (
    SECONDS,
    WAIT_SECONDS,
    Program,
    Retries,
    changed,
    found,
    status,
    unexpected,
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


def get_status(retries: Retries, /) -> Program[JsonObject]:
    """`{"status": "ok"}`, if somebody listens."""
    return found(retries, "/status")


def get_project(retries: Retries, /) -> Program[JsonObject]:
    """The resolved file: `{"project": …}`."""
    return found(retries, "/api/project")


def get_session(retries: Retries, /) -> Program[JsonObject]:
    """The conversations: `{"session": {"entries": […]}}`."""
    return found(retries, "/api/session")


def get_performance(retries: Retries, /) -> Program[JsonObject]:
    """Figures of the run and its process: `{"performance": …}`."""
    return found(retries, "/api/performance")


def get_events(retries: Retries, /) -> Program[list[JsonObject]]:
    """The events since the last call with the same token, or by the same user."""
    events = (yield from found(retries, "/api/events")).get("events")
    if not isinstance(events, list):
        raise unexpected("`events` is missing")
    return events


def get_mma_status(retries: Retries, /) -> Program[JsonObject]:
    """What is under way: `active_tickets`, `tracks`, `pending_approval` and more."""
    return found(retries, "/api/gui/mma_status")


def get_value(retries: Retries, item: str, /) -> Program[JsonValue]:
    """A value, such as that of `limits.turns`.

    Raises:
        NotFoundError: there is no such value.
    """
    return (yield from found(retries, f"/api/gui/value/{quote(item, safe='')}")).get("value")


def get_text_value(retries: Retries, item: str, /) -> Program[str | None]:
    """The same as text; `None` where it is null."""
    value = yield from get_value(retries, item)
    return value if value is None or isinstance(value, str) else json_text(value)


def get_indicator_state(retries: Retries, tag: str, /) -> Program[JsonObject]:
    """`{"tag": …, "shown": …}` for `thinking`, `live` and `prior`, and their older names.

    Raises:
        UsageError: there is no such indicator.
    """
    states = yield from found(retries, "/api/gui/diagnostics")
    shown = states.get(_INDICATORS.get(tag, tag))
    if not isinstance(shown, bool):
        names = backticked([*_INDICATORS, *_INDICATORS.values()])
        raise UsageError("there is no such indicator", hint=f"indicators: {names}")
    return {"tag": tag, "shown": shown}


def get_node_status(retries: Retries, step: str, /) -> Program[str | None]:
    """The status of a step; `None` if the run has none of that name."""
    steps = (yield from status(retries)).steps
    return next((one.status for one in steps if one.id == step), None)


def post_gui(retries: Retries, data: JsonObject, /) -> Program[JsonObject]:
    """Send an action, with `action`, `item` and `value`.

    Raises:
        RejectedError: there is no such action here.
    """
    return changed(retries, "POST", "/api/gui", data)


def set_value(retries: Retries, item: str, value: JsonValue, /) -> Program[JsonObject]:
    """Change a value, whatever it was; `change_value` compares first."""
    return post_gui(retries, {"action": "set_value", "item": item, "value": value})


def push_event(retries: Retries, name: str, payload: JsonValue = None, /) -> Program[JsonObject]:
    """Write an event `control.event` with this name into the journal and the stream."""
    return post_gui(retries, {"action": "push_event", "item": name, "value": payload})


def click(retries: Retries, item: str, /) -> Program[JsonObject]:
    """Click `btn_reset_session`, which is all that there is to click."""
    return post_gui(retries, {"action": "click", "item": item})


def select_tab(retries: Retries, bar: str, tab: str, /) -> Program[JsonObject]:
    """Always a `RejectedError`: a run has no tabs."""
    return post_gui(retries, {"action": "select_tab", "item": bar, "value": tab})


def select_list_item(retries: Retries, listbox: str, item: str, /) -> Program[JsonObject]:
    """Always a `RejectedError`: a run has no lists."""
    return post_gui(retries, {"action": "select_list_item", "item": listbox, "value": item})


def reset_session(retries: Retries, /) -> Program[JsonObject]:
    """Begin the conversation of a shell anew."""
    return click(retries, _RESET)


def request_confirmation(
    retries: Retries, tool: str, args: Mapping[str, JsonValue], /
) -> Program[JsonValue]:
    """Ask whether a tool may be called, and return what is responded within 60 seconds.

    Raises:
        UnansweredError: nobody responded.
    """
    body: JsonObject = {"type": "tool_approval", "title": tool, "tool": tool, "args": args}
    seconds = WAIT_SECONDS + SECONDS
    return (yield from changed(retries, "POST", "/api/ask", body, seconds)).get("response")
