import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.core.errors import UsageError
from aish.core.tools import ToolName
from aish.mcp.protocol.convert import clash, wire_name

TOOLS = st.text(min_size=1, max_size=120)
ALIASES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?", fullmatch=True)


def test_a_legal_name_is_alias_and_tool_joined() -> None:
    assert wire_name(ToolName("repo", "file_read"), 64) == "repo__file_read"


@pytest.mark.parametrize("tool", ["files.read", "läsen", "a b", "x" * 80, "a/b"])
def test_a_name_that_is_not_legal_gets_a_legal_one_with_a_hash(tool: str) -> None:
    name = wire_name(ToolName("repo", tool), 64)
    assert re.fullmatch(r"repo__[a-zA-Z0-9_-]+_[0-9a-f]{8}", name)


def test_shortened_names_are_the_same_in_every_run() -> None:
    assert wire_name(ToolName("repo", "files.read"), 64) == "repo__files_read_e928e4ea"


def test_names_that_look_alike_once_shortened_stay_apart() -> None:
    pairs = [ToolName("a", "x.y"), ToolName("a", "x/y"), ToolName("a", "x_y")]
    assert len({wire_name(pair, 64) for pair in pairs}) == 3


@given(ALIASES, TOOLS, st.integers(24, 128))
@pytest.mark.requirement("W6")
def test_every_name_is_legal_and_fits(alias: str, tool: str, limit: int) -> None:
    name = wire_name(ToolName(alias, tool), limit)
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", name)
    assert len(name) <= limit


def test_a_clash_says_which_tools_and_what_to_do() -> None:
    error = clash("a__x", ToolName("a", "x"), ToolName("b", "x"))
    assert isinstance(error, UsageError)
    assert str(error) == "`a` and `b` both offer a tool that is called `a__x`"
    assert error.hint == "leave one out with `exclude` under `mcp.servers.b`"
