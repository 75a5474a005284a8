import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from work import work_of

from aish.core.errors import UsageError
from aish.core.tools import ToolName
from aish.policy.rules import is_exact, matches_tool, split_glob
from aish.system.globs import matches_path, matches_word

ALIAS = st.from_regex(r"[A-Za-z0-9](-?[A-Za-z0-9]){0,6}", fullmatch=True)
TOOL = st.text("ab_*?[.", min_size=1, max_size=8)
SERVER_PATTERN = st.text("ab-*?", min_size=1, max_size=8)
TOOL_PATTERN = st.text("ab_*?", min_size=1, max_size=8)


@pytest.mark.requirement("P1")
@pytest.mark.parametrize(
    ("glob", "name", "matches"),
    [
        ("fs__read", ToolName("fs", "read"), True),
        ("fs__*", ToolName("fs", "read"), True),
        ("fs__*", ToolName("fsevil", "rm"), False),
        ("fs__rm", ToolName("fsevil", "rm"), False),
        ("fs*__*", ToolName("fsevil", "rm"), True),
        ("fs*__x", ToolName("fs", "evil__x"), False),
        ("fs*__x", ToolName("fs-two", "x"), True),
        ("fs__a__b", ToolName("fs", "a__b"), True),
        ("fs__*b", ToolName("fs", "a__b"), True),
        ("*__b", ToolName("fs", "a__b"), False),
        ("*__*", ToolName("fs", "a__b"), True),
        ("*__*delete*", ToolName("fs", "undelete_all"), True),
        ("f?__r??d", ToolName("fs", "read"), True),
        ("FS__read", ToolName("fs", "read"), False),
        ("fs__Read", ToolName("fs", "read"), False),
        ("fs__re", ToolName("fs", "read"), False),
        ("fs__ead", ToolName("fs", "read"), False),
        ("fs__[r]ead", ToolName("fs", "read"), False),
        ("fs__[r]ead", ToolName("fs", "[r]ead"), True),
        ("fs___x", ToolName("fs", "_x"), True),
        ("fs__read", ToolName("fs", "read\n"), False),
    ],
)
def test_server_and_tool_match_separately_and_whole(
    *, glob: str, name: ToolName, matches: bool
) -> None:
    assert matches_tool(glob, name) is matches


@pytest.mark.parametrize("glob", ["read", "fs_read", "*", "", "__read", "fs__", "__"])
def test_a_glob_without_both_parts_is_an_error(glob: str) -> None:
    with pytest.raises(UsageError, match="`__`"):
        split_glob(glob)


@given(server=SERVER_PATTERN, tool=TOOL_PATTERN, alias=ALIAS, name=TOOL)
def test_a_star_never_crosses_the_separator(server: str, tool: str, alias: str, name: str) -> None:
    glob = f"{server}__{tool}"
    left, right = split_glob(glob)
    expected = matches_word(left, alias) and matches_word(right, name)
    assert matches_tool(glob, ToolName(alias, name)) is expected


@given(pattern=st.text("ab*?", max_size=8), word=st.text("ab", max_size=8))
def test_words_match_as_fnmatch_has_it_where_it_knows_only_stars(pattern: str, word: str) -> None:
    assert matches_word(pattern, word) is fnmatch.fnmatchcase(word, pattern)


@given(pattern=st.text("ab/*?", max_size=8), text=st.text("ab/", max_size=8))
def test_paths_match_as_a_regular_expression_would(pattern: str, text: str) -> None:
    expression = ""
    place = 0
    while place < len(pattern):
        segment = place == 0 or pattern[place - 1] == "/"
        if segment and pattern.startswith("**/", place):
            expression, place = expression + "(?:.*/)?", place + 3
        elif pattern.startswith("**", place):
            expression, place = expression + ".*", place + 2
        else:
            part = {"*": "[^/]*", "?": "[^/]"}.get(pattern[place], re.escape(pattern[place]))
            expression, place = expression + part, place + 1
    assert matches_path(pattern, text) is bool(re.fullmatch(expression, text))


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("docs/**", "docs/a/b.md", True),
        ("docs/**", "docs", False),
        ("docs/*", "docs/a.md", True),
        ("docs/*", "docs/a/b.md", False),
        ("docs/*", "docs/a\\b.md", False),
        ("docs/**/*.md", "docs/a.md", True),
        ("docs/**/*.md", "docs/a/b/c.md", True),
        ("docs/**/*.md", "docs/a/b/c.txt", False),
        ("**", "anything/at all", True),
        ("a?c", "a/c", False),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_one_star_stops_at_a_slash_and_two_do_not(
    *, pattern: str, text: str, matches: bool
) -> None:
    assert matches_path(pattern, text) is matches


def test_a_hostile_pattern_costs_little() -> None:
    def ask() -> None:
        assert not matches_word("*a" * 50 + "b", "a" * 2000)
        assert not matches_path("**a" * 20 + "b", "a" * 500)

    work_of(ask, most=2_000_000)


def test_only_a_glob_without_wildcards_is_exact() -> None:
    assert is_exact("fs__rm")
    assert not is_exact("fs__r?")
    assert not is_exact("*__rm")
