"""The digest that ties an approval to one call (P6)."""

import hashlib
import json

from aish.core.events import Place
from aish.core.json import JsonObject, JsonValue, writable
from aish.core.tools import Tool


def call_digest(run: str, place: Place, tool: Tool, arguments: JsonObject) -> str:
    """SHA-256 over run, step, item, server, tool, its schema and the canonical arguments."""
    subject: JsonObject = {
        "run": run,
        "step": place.step,
        "item": place.item,
        "server": tool.name.server,
        "tool": tool.name.name,
        "schema": tool.input_schema,
        "arguments": arguments,
    }
    return hashlib.sha256(canonical(subject).encode("ascii")).hexdigest()


def canonical(value: JsonValue) -> str:
    """JSON with sorted keys and without spaces, ASCII only, so that equal values are equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=writable)
