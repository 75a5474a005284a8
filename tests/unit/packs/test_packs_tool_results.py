"""The last resort for results that are too long: what is cut, and what is not (K7, K14)."""

import json
from typing import Any

import pytest

from aish.core.tools import RESULT_LIMIT
from aish.packs.pack_error import PackError
from aish.packs.tool_results import DATA_LIMIT, TEXT_LIMIT, Answer, failure, success


def text_of(result: Any) -> str:
    return str(result["content"][0]["text"])


@pytest.mark.parametrize("limit", [1 << 30, 4_000])
@pytest.mark.parametrize("character", ["x", "€", "\x1b", "[aish]\n"])
@pytest.mark.parametrize("trailer", ["", "[a note of ours]", "long " * 20_000])
def test_a_text_from_outside_keeps_its_last_mark_when_it_is_cut(
    limit: int, character: str, trailer: str
) -> None:
    answer = Answer(character * 60_000, source="http://somewhere.invalid/ä", trailer=trailer)
    token = RESULT_LIMIT.set(limit)
    try:
        result = success(answer)
    finally:
        RESULT_LIMIT.reset(token)
    text = text_of(result)
    lines = text.splitlines()
    assert len(text) <= TEXT_LIMIT
    assert len(text.encode()) <= limit
    assert lines[0] == "[from http://somewhere.invalid/ä]"
    end = lines.index("[end of http://somewhere.invalid/ä]")
    assert not any(line.startswith(("[aish", "[end")) for line in lines[1:end])
    assert lines[-1].startswith("[truncated: true, ")
    if trailer.startswith("["):
        assert lines[end + 1] == trailer
    assert result["structuredContent"] == {"truncated": True}


def test_a_source_of_any_length_leaves_room_for_the_text() -> None:
    text = text_of(success(Answer("text " * 20_000, source="u" * 60_000)))
    first, *_, last, _ = text.splitlines()
    assert last == first.replace("[from ", "[end of ", 1)
    assert len(text) <= TEXT_LIMIT
    assert "text text" in text


def test_data_is_limited_like_text_and_keeps_its_types() -> None:
    rows = [{"path": f"p{n}", "line": n} for n in range(100_000)]
    enclosed = f"[from x]\n{'€' * 500_000}\n[end of x]"
    data: dict[str, Any] = {
        "rows": rows,
        "content": enclosed,
        "sha256": "0" * 64,
        "nested": {"a": "b" * 1_000_000},
    }
    result: Any = success(Answer("short", {**data, "count": 100_000, "truncated": False}))
    found = result["structuredContent"]
    assert len(json.dumps(found)) <= DATA_LIMIT
    assert found["truncated"] is True
    assert (found["sha256"], found["count"]) == ("0" * 64, 100_000)
    assert found["rows"] == rows[: len(found["rows"])]
    assert len(found["rows"]) > 1_000
    assert found["content"].startswith("[from x]\n€€€")
    assert found["content"].endswith("€\n[end of x]")
    assert set(found["nested"]["a"]) == {"b"}
    assert text_of(result) == "short"


def test_data_that_fits_stays_as_it_is() -> None:
    data: dict[str, Any] = {"content": "x" * TEXT_LIMIT, "rows": [1, 2]}
    assert success(Answer("short", data))["structuredContent"] == data


def test_what_an_error_tells_is_limited_too() -> None:
    result: Any = failure(PackError("failed", "m" * 3_000_000, path="p" * 3_000_000, line=3))
    error = result["structuredContent"]["error"]
    assert len(json.dumps(result)) <= DATA_LIMIT + 3 * TEXT_LIMIT
    assert error["details"]["line"] == 3
    assert error["details"]["truncated"] is True
