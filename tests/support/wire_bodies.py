"""Request bodies for tests: a plain dialect, some turns, and the parsed body."""

import json
from collections.abc import Mapping
from typing import Any

from aish.core.json import JsonValue
from aish.core.messages import History, ToolTurn, Turn
from aish.core.protocols import ModelRequest
from aish.core.tools import Media, Tool, ToolCall, ToolName
from aish.wire.chat.encode import Encoder
from aish.wire.dialect import Dialect

ORIGIN = "https://here.example"
SCHEMA: Mapping[str, JsonValue] = {"type": "object", "properties": {"x": {"type": "integer"}}}
READ = Tool(ToolName("repo", "read"), "repo__read", "Reads", SCHEMA)
PNG = Media("image/png", b"\x89PNG")
URL = "data:image/png;base64,iVBORw=="
CALL = ToolCall("i", "repo__read", '{"x": 1}')


def dialect(**more: Any) -> Dialect:
    """How a plain endpoint is spoken to, but for `more`."""
    plain: dict[str, Any] = {
        "model": "m",
        "params": {},
        "usage": False,
        "json_schema": False,
        "tool_role": True,
        "vision": False,
        "origin": ORIGIN,
    }
    return Dialect(**plain | more)


PLAIN = dialect()


def body(*turns: Turn, dialect: Dialect = PLAIN, **request: Any) -> Any:
    """The parsed body of a request over a history of `turns`."""
    encoded = Encoder(dialect).body(ModelRequest(History(list(turns)), **request))
    return json.loads(encoded)


def messages(*turns: Turn, **more: Any) -> Any:
    """Its messages alone."""
    return body(*turns, dialect=dialect(**more))["messages"]


def result(
    id: str = "i",
    content: str = "one",
    tool: str = "repo__read",
    *media: Media,
    is_error: bool = False,
) -> ToolTurn:
    """The reply to a call."""
    return ToolTurn(id, tool, content, media, is_error=is_error)
