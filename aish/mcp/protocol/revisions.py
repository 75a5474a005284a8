"""The revisions of the protocol, and the keys of `_meta` that the stateless era reserves. Pure."""

from aish.core.json import JsonObject

MODERN = "2026-07-28"
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The revisions of the handshake era, newest first."""
BATCHING = "2025-03-26"
"""The only revision in which several messages may come as an array."""
META = "io.modelcontextprotocol/"
VERSION_KEY = f"{META}protocolVersion"
CAPABILITIES_KEY = f"{META}clientCapabilities"
CLIENT_KEY = f"{META}clientInfo"
SERVER_KEY = f"{META}serverInfo"
SUBSCRIPTION_KEY = f"{META}subscriptionId"
LOG_LEVEL_KEY = f"{META}logLevel"
LOG_LEVELS = (*("debug", "info", "notice", "warning"), *("error", "critical", "alert", "emergency"))
"""The levels of `notifications/message`, the least important one first."""
LIST_CHANGES = {
    "tools": "notifications/tools/list_changed",
    "resources": "notifications/resources/list_changed",
    "prompts": "notifications/prompts/list_changed",
}
"""What says that a list is another one, by the capability that announces it."""
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
RESOURCE_UPDATED = "notifications/resources/updated"
LOG_MESSAGE = "notifications/message"
PAGE_COMPLETED = "notifications/elicitation/complete"
"""What was to be done on a page that a person was asked to open is done (2025-11-25)."""
TRACE_KEYS = ("traceparent", "tracestate", "baggage")
"""The keys of `_meta` that tell which trace a request belongs to; a hub passes them on."""
_LONGEST_TRACE = 8192


def trace_in(meta: JsonObject) -> JsonObject:
    trace = {key: meta[key] for key in TRACE_KEYS if key in meta}
    return {k: v for k, v in trace.items() if isinstance(v, str) and len(v) <= _LONGEST_TRACE}
