"""What a small model is shown of many tools: those that the prompt names, else the first few (L11).

Which tools may be called is decided elsewhere, and stays as it is.
"""

import re
from collections.abc import Sequence

from aish.core.deltas import StreamNotice
from aish.core.messages import UserTurn
from aish.core.protocols import ModelRequest
from aish.core.text import for_line
from aish.core.tools import Tool

_WORD = re.compile(r"[A-Za-z0-9_-]+")


def fewer_tools(request: ModelRequest, most: int) -> tuple[Tool, ...]:
    """At most so many of the tools of a request."""
    turns = reversed(request.history.turns)
    prompt = next((turn.text for turn in turns if isinstance(turn, UserTurn)), "")
    words = {*_WORD.findall(prompt), request.tool_choice}
    named = [tool for tool in request.tools if {tool.wire, str(tool.name), tool.name.name} & words]
    return tuple((named or request.tools)[:most])


def notice_of(alias: str, tools: Sequence[Tool], shown: Sequence[Tool]) -> StreamNotice:
    """That not all of the tools are shown, and what to do about it."""
    names = ", ".join(f"`{for_line(str(tool.name))}`" for tool in shown)
    said = f"{len(tools):,} tools are too many for `{alias}`, which is shown {names}"
    return StreamNotice("fewer_tools", f"{said}; name those it needs under `tools:`")
