"""The file of staged calls: whole after every call, and not to be changed unseen (B16, X9)."""

import errno
import json
import os
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from staged_calls import HEAD, HTTP, STDIO, a_call

from aish.core.errors import UsageError
from aish.core.tools import ToolName
from aish.features.staging.file import (
    StagedCall,
    StagedError,
    StagedFile,
    StagedHead,
    is_whole,
    open_staged,
    parse_staged,
    read_staged,
    row_of,
)
from aish.system.files import schema_text


def written(path: Path, *calls: StagedCall) -> list[StagedCall]:
    file = open_staged(path, HEAD)
    for call in calls:
        file.add(call)
    file.close()
    return list(calls)


def test_the_file_is_whole_after_every_call(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    file = open_staged(path, HEAD)
    calls: list[StagedCall] = []
    assert read_staged(path).calls == ()
    for call in (a_call(1), a_call(2, server=HTTP), a_call(3, server=STDIO, item="k\u202e\n")):
        file.add(call)
        calls.append(call)
        found = read_staged(path)
        assert (found.head, list(found.calls)) == (HEAD, calls)
    file.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "\u202e" not in path.read_text(encoding="utf-8")


def test_the_file_fits_its_published_schema(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    local = a_call(2, server=None, name=ToolName("shell", "run"), step=None)
    written(path, a_call(1), local, a_call(3, server=HTTP), a_call(4, server=STDIO))
    schema = json.loads(schema_text("staged.schema.json"))
    Draft202012Validator(schema).validate(json.loads(path.read_bytes()))


def test_a_run_that_goes_on_adds_to_its_file(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    first = written(path, a_call(1))
    second = written(path, a_call(2))
    assert list(read_staged(path).calls) == first + second


@pytest.mark.parametrize("lost", range(2, 240, 7))
def test_a_file_that_was_cut_off_keeps_its_whole_calls(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "staged.json"
    written(path, a_call(1), a_call(2))
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(StagedError) as refused:
        read_staged(path)
    assert refused.value.hint is not None
    assert "--resume" in refused.value.hint
    with closing(open_staged(path, HEAD)) as staged:
        kept = staged.calls
    assert kept == (a_call(1), a_call(2))[: len(kept)]
    assert len(kept) >= 1
    assert read_staged(path).calls == kept


def test_the_calls_of_another_run_are_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    other = StagedHead("20261121T153101Z-notes-0000", "notes", "notes.yaml", "0" * 64)
    open_staged(path, other).close()
    written(path, a_call(1))
    with pytest.raises(UsageError, match="staged calls of the run `20261121T153101Z-notes-9kq2`"):
        open_staged(path, other)
    assert list(read_staged(path).calls) == [a_call(1)]


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n", encoding="utf-8")
    with pytest.raises(StagedError, match="file of another run"):
        open_staged(path, HEAD)
    assert path.read_text(encoding="utf-8") == "mine\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    target = tmp_path / "target"
    target.write_text("", encoding="utf-8")
    path.symlink_to(target)
    with pytest.raises(UsageError, match="is a link"):
        open_staged(path, HEAD)
    assert not target.read_bytes()


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    file = open_staged(path, HEAD)
    with pytest.raises(UsageError, match="is being written by process"):
        open_staged(path, HEAD)
    file.close()


def test_what_a_full_disk_does_not_take_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "staged.json"
    file = StagedFile(path, HEAD, (a_call(1),))
    whole = os.pwrite
    # A disk that takes ten bytes of a call and all that is shorter.
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, at: whole(fd, data if len(data) < 10 else data[:10], at)
    )
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.add(a_call(2))
    monkeypatch.undo()
    assert list(read_staged(path).calls) == [a_call(1)]
    file.add(a_call(3))
    file.close()
    assert list(read_staged(path).calls) == [a_call(1), a_call(3)]


def test_calls_may_be_taken_out_and_put_into_another_order(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    written(path, a_call(1), a_call(2), a_call(3))
    data = json.loads(path.read_bytes())
    data["calls"] = [data["calls"][2], data["calls"][0]]
    assert list(parse_staged(data).calls) == [a_call(3), a_call(1)]


@pytest.mark.parametrize(
    "change",
    [
        {"arguments": {"path": "/etc/passwd"}},
        {"tool": "file_delete"},
        {"server": {"alias": "repo", "transport": "pack", "pack": ["shell"]}},
        {"server": {"alias": "repo", "transport": "http", "url": "https://evil.example/mcp"}},
        {"server": {"alias": "repo", "transport": "stdio"}},
        {"step": "other"},
        {"item": "x"},
        {"definition": "e" * 64},
        {"rule": "*__*"},
        {"time": "2026-11-21T15:31:01.251Z"},
        {"decision": "f" * 64},
        {"digest": "f" * 64},
        {"id": "ffffffff"},
        {"id": 5},
        {"more": True},
        {"arguments": None},
    ],
    ids=str,
)
def test_a_call_that_was_changed_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "staged.json"
    written(path, a_call(1))
    data = json.loads(path.read_bytes())
    data["calls"][0] |= change
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(StagedError) as refused:
        read_staged(path)
    assert refused.value.where == str(path)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": "20261121T153101Z-notes-0000"}, "its digest does not match"),
        ({"pipeline": {"name": "notes", "file": "x.yaml", "digest": "0" * 64}}, "digest does not"),
        ({"aish_staged": 2}, "this is of version 2"),
        ({"aish_staged": True}, "this is of version True"),
        ({"calls": {}}, "calls"),
        ({"extra": 1}, "extra"),
    ],
    ids=str,
)
def test_a_head_that_was_changed_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "staged.json"
    written(path, a_call(1))
    with pytest.raises(StagedError, match=said):
        parse_staged({**json.loads(path.read_bytes()), **change})


def test_a_call_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    written(path, a_call(1))
    data = json.loads(path.read_bytes())
    with pytest.raises(StagedError, match="appears twice"):
        parse_staged({**data, "calls": data["calls"] * 2})


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "{", '{"aish_staged":1', "\udcff"])
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "staged.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(StagedError):
        read_staged(path)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StagedError, match="No such file"):
        read_staged(tmp_path / "staged.json")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON, max_size=4))
def test_whatever_is_staged_comes_back_as_it_was(arguments: dict[str, Any]) -> None:
    call = a_call(1, arguments or {"x": 1})
    (back,) = parse_staged(
        {
            "aish_staged": 1,
            "run": HEAD.run,
            "pipeline": {"name": HEAD.name, "file": HEAD.file, "digest": HEAD.digest},
            "calls": [json.loads(json.dumps(row_of(call)))],
        }
    ).calls
    assert back == call
    assert is_whole(back, HEAD)
