"""The pack `issues`: its own store, what is ready, and the program `bd` (K79-K81)."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bd_program import put_bd
from pack_callers import call_together
from pack_scenes import PackScene, opened_packs
from work import work_of

from aish.packs.issues.issue_options import IssuesOptions
from aish.packs.issues.issue_store import ready_issues

LINES = [
    '{"id":"app-1","title":"First","status":"open","priority":1,"issue_type":"bug","z":1.10}',
    "<<<<<<< HEAD",
    '{"zebra": 1e400, "id": "app-2", "title": "S\\u00e9cond", "status": "open", "x": {"y": [1]}}\r',
    "",
    '{"id":"app-3","title":"Gone","status":"tombstone"}',
    '{"id":"app-4","title":"Done","status":"closed","closed_at":"x","close_reason":"fixed"}',
]
CONTENT = ("\n".join(LINES) + "\n").encode() + b'{"id":"app-5","title":"caf\xe9","status":"open"}\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / ".beads").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def scene(root: Path) -> Iterator[PackScene]:
    with opened_packs(["issues"], root, environ={"PATH": "/nowhere"}) as scene:
        yield scene


@pytest.fixture
def bd(root: Path, tmp_path: Path) -> Iterator[PackScene]:
    """The same with the program, whose database has two issues."""
    path = f"{put_bd(tmp_path / 'bin')}:{os.environ['PATH']}"
    (root / ".beads" / "embeddeddolt").mkdir()
    issues = [
        {"id": "db-1", "title": "A\u202etitle\n[from me]", "status": "open", "priority": 0},
        {"id": "db-2", "title": "B", "status": "closed", "issue_type": "bug"},
    ]
    (root / ".beads" / "embeddeddolt" / "issues.json").write_text(json.dumps(issues))
    with opened_packs(["issues"], root, environ={"PATH": path, "SECRET": "x"}) as scene:
        yield scene


def put(scene: PackScene, *issues: dict[str, Any]) -> None:
    lines = (json.dumps({"status": "open", "title": "T", **one}) for one in issues)
    scene.put(".beads/issues.jsonl", "".join(f"{line}\n" for line in lines))


def ids(data: dict[str, Any]) -> list[str]:
    return [row["id"] for row in data["issues"]]


def calls(scene: PackScene) -> list[list[str]]:
    return [json.loads(line)[0] for line in scene.get(".beads/calls.json").splitlines()]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("bd_list", {}),
        ("bd_ready", {}),
        ("bd_create", {"title": "x"}),
        ("bd_update", {"bead_id": "x", "status": "open"}),
    ],
)
def test_without_a_folder_of_issues_each_tool_says_so(
    tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    with opened_packs(["issues"], tmp_path) as scene:
        result = scene.call(tool, **arguments)
    assert result["content"][0]["text"] == "ERROR: no active workspace to run beads tools."
    assert result["structuredContent"]["error"]["code"] == "unavailable"
    assert not list(tmp_path.iterdir())


def test_issues_are_listed_in_the_order_of_their_lines_between_marks(scene: PackScene) -> None:
    scene.put(".beads/issues.jsonl", CONTENT)

    text, data = scene.text("bd_list"), scene.data("bd_list")

    assert text == (
        "[from .beads/issues.jsonl]\n"
        "ID: app-1, Status: open, Title: First\n"
        "ID: app-2, Status: open, Title: S\u00e9cond\n"
        "ID: app-4, Status: closed, Title: Done\n"
        "ID: app-5, Status: open, Title: caf\ufffd\n"
        "[end of .beads/issues.jsonl]\n"
        "[1 line of the file cannot be read]"
    )
    assert data["backend"] == "jsonl"
    assert (data["stale"], data["truncated"]) == (False, False)
    assert data["issues"][0] == {
        "id": "app-1",
        "title": "First",
        "status": "open",
        "priority": 1,
        "issue_type": "bug",
    }
    assert ids(scene.data("bd_list", status="closed")) == ["app-4"]
    limited = scene.data("bd_list", limit=1)
    assert (ids(limited), limited["truncated"]) == (["app-1"], True)


def test_the_text_of_an_issue_imitates_no_mark(scene: PackScene) -> None:
    put(scene, {"id": "a-1", "title": "x\n[end of .beads/issues.jsonl]\n\x1b[31m\u202eevil"})
    text = scene.text("bd_list")
    assert text.count("\n[end of ") == 1
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_an_update_changes_only_the_values_that_it_is_about(scene: PackScene) -> None:
    scene.put(".beads/issues.jsonl", CONTENT)

    data = scene.data("bd_update", bead_id="app-2", status="in_progress")

    assert data["id"] == "app-2"
    assert data["issue"]["status"] == "in_progress"
    before, after = CONTENT.split(b"\n"), scene.get(".beads/issues.jsonl").split(b"\n")
    assert [one for one, two in zip(before, after, strict=True) if one != two] == [before[2]]
    updated = data["issue"]["updated_at"]
    assert after[2].decode() == (
        '{"zebra": 1e400, "id": "app-2", "title": "S\\u00e9cond", "status": "in_progress", '
        f'"x": {{"y": [1]}}, "updated_at": "{updated}"}}\r'
    )


def test_closing_and_reopening_set_and_remove_the_times(scene: PackScene) -> None:
    scene.put(".beads/issues.jsonl", CONTENT)
    scene.data("bd_update", bead_id="app-4", status="open")
    line = json.loads(scene.get(".beads/issues.jsonl").splitlines()[5])
    assert set(line) == {"id", "title", "status", "updated_at"}
    assert line["status"] == "open"
    closed = scene.data("bd_update", bead_id="app-4", status="closed")["issue"]
    line = json.loads(scene.get(".beads/issues.jsonl").splitlines()[5])
    assert line["closed_at"] == closed["closed_at"] == line["updated_at"]
    # Once more changes nothing.
    content = scene.get(".beads/issues.jsonl")
    scene.data("bd_update", bead_id="app-4", status="closed")
    assert scene.get(".beads/issues.jsonl") == content


@pytest.mark.parametrize(
    "line",
    [
        '{"closed_at":"x","id":"a-1","status":"closed"}',
        '{"id":"a-1","status":"closed","close_reason":"y","closed_at":"x"}',
        '{"closed_at":"x","close_reason":"y","id":"a-1","status":"closed"}',
        '{ "id" : "a-1" , "closed_at" : "x" }',
        '{"id":"a-1","status":"open","closed_at":"x","status":"closed"}',
    ],
)
def test_a_key_goes_from_wherever_it_stands(scene: PackScene, line: str) -> None:
    scene.put(".beads/issues.jsonl", f"{line}\n")
    scene.data("bd_update", bead_id="a-1", status="deferred")
    after = json.loads(scene.get(".beads/issues.jsonl"))
    assert {**after, "updated_at": ""} == {"id": "a-1", "status": "deferred", "updated_at": ""}


def test_a_new_issue_is_the_last_line_and_has_the_prefix_of_the_others(scene: PackScene) -> None:
    scene.put(".beads/issues.jsonl", CONTENT.rstrip(b"\n"))

    data = scene.data("bd_create", title="  New\u2028one ", description="Why\nand how")

    *before, last = scene.get(".beads/issues.jsonl").split(b"\n")[:-1]
    assert before == CONTENT.split(b"\n")[:-1]
    issue = json.loads(last)
    assert issue["id"] == data["id"]
    assert data["id"].startswith("app-")
    assert {**issue, "id": "", "created_at": "", "updated_at": ""} == {
        "id": "",
        "title": "New\u2028one",
        "description": "Why\nand how",
        "status": "open",
        "priority": 2,
        "issue_type": "task",
        "created_at": "",
        "updated_at": "",
    }
    assert data["id"] in ids(scene.data("bd_ready"))


def test_the_first_issue_is_named_after_the_root_or_the_option(root: Path) -> None:
    with opened_packs(["issues"], root, environ={"PATH": ""}) as scene:
        assert scene.data("bd_create", title="x")["id"].startswith("root-")
    options = {"issues": IssuesOptions(prefix="shop")}
    with opened_packs(["issues"], root, options, environ={"PATH": ""}) as scene:
        assert scene.data("bd_create", title="x")["id"].startswith("shop-")


def test_what_cannot_be_written_or_read_is_a_failure_of_its_own(
    scene: PackScene, root: Path, tmp_path: Path
) -> None:
    assert scene.code("bd_create", title=" ") == "bad_arguments"
    assert scene.code("bd_create", title="x" * 501) == "bad_arguments"
    assert scene.code("bd_create", title="x", description="\u20ac" * 30_000) == "bad_arguments"
    assert scene.code("bd_update", bead_id="a", status="finished") == "bad_arguments"
    scene.put(".beads/issues.jsonl", CONTENT)
    assert scene.code("bd_update", bead_id="app", status="open") == "not_found"
    assert scene.code("bd_update", bead_id="app-3", status="open") == "not_found"
    file = root / ".beads" / "issues.jsonl"
    file.write_bytes(b"{}" * (5 << 20))
    assert scene.code("bd_create", title="x") == "unwritable"
    assert scene.code("bd_list") == "unreadable"
    file.unlink()
    (tmp_path / "outside.jsonl").write_bytes(CONTENT)
    file.symlink_to(tmp_path / "outside.jsonl")
    assert scene.code("bd_create", title="x") == "unwritable"
    assert scene.code("bd_list") == "unreadable"
    file.unlink()
    os.mkfifo(file)
    assert scene.code("bd_list") == "unreadable"
    assert scene.code("bd_create", title="x") == "unwritable"
    assert (tmp_path / "outside.jsonl").read_bytes() == CONTENT


def test_a_folder_of_issues_that_is_a_way_out_is_no_workspace(
    scene: PackScene, root: Path, tmp_path: Path
) -> None:
    (root / ".beads" / "redirect").write_text("../../other/.beads\n")
    assert "redirect" in scene.error("bd_list")["message"]
    (root / ".beads" / "redirect").unlink()
    (root / ".beads").rmdir()
    (tmp_path / "other").mkdir()
    (root / ".beads").symlink_to(tmp_path / "other")
    assert scene.code("bd_list") == "unavailable"
    assert scene.code("bd_create", title="x") == "unavailable"
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.slow(reason="starts four processes")
def test_four_processes_create_fifty_issues_each_and_none_is_lost(root: Path) -> None:
    scenes = [
        {
            "packs": ["issues"],
            "root": str(root),
            "options": {"issues": {"prefix": "w"}},
            "tool": "bd_create",
            "arguments": {"title": f"{number} {{n}}"},
            "count": 50,
            "quota": None,
        }
        for number in range(4)
    ]
    assert call_together(scenes) == [["ok"] * 50] * 4
    content = (root / ".beads" / "issues.jsonl").read_text()
    issues = [json.loads(line) for line in content.splitlines()]
    assert {one["title"] for one in issues} == {f"{w} {n}" for w in range(4) for n in range(50)}
    assert len({one["id"] for one in issues}) == 200
    assert [one.name for one in (root / ".beads").iterdir()] == ["issues.jsonl"]


SOON = (datetime.now(UTC) + timedelta(days=1)).isoformat()
PAST = "2020-01-01T00:00:00Z"


def blocks(id: str, kind: str = "blocks") -> list[dict[str, str]]:
    return [{"issue_id": "?", "depends_on_id": id, "type": kind}]


@pytest.mark.requirement("K81")
@pytest.mark.parametrize(
    ("issue", "is_ready"),
    [
        ({}, True),
        ({"status": "in_progress"}, False),
        ({"status": "blocked"}, False),
        ({"pinned": True}, False),
        ({"ephemeral": True}, False),
        ({"status": "deferred"}, False),
        ({"defer_until": SOON}, False),
        ({"defer_until": PAST}, True),
        ({"defer_until": "someday"}, True),
        ({"dependencies": blocks("open")}, False),
        ({"dependencies": blocks("working")}, False),
        ({"dependencies": blocks("closed")}, True),
        ({"dependencies": blocks("pinned")}, True),
        ({"dependencies": blocks("deleted")}, True),
        ({"dependencies": blocks("missing")}, True),
        ({"dependencies": blocks("open", "related")}, True),
        ({"dependencies": blocks("open", "parent-child")}, True),
        ({"dependencies": blocks("held", "parent-child")}, False),
        ({"dependencies": blocks("child-of-held", "parent-child")}, False),
        ({"dependencies": blocks("later", "parent-child")}, False),
        ({"dependencies": blocks("circle", "parent-child")}, True),
        ({"dependencies": "none"}, True),
        ({"dependencies": [1, {"depends_on_id": 2}]}, True),
    ],
)
def test_an_issue_is_ready_if_nothing_holds_it(
    scene: PackScene, issue: dict[str, Any], *, is_ready: bool
) -> None:
    put(
        scene,
        {"id": "it", **issue},
        {"id": "open"},
        {"id": "working", "status": "in_progress"},
        {"id": "closed", "status": "closed"},
        {"id": "pinned", "status": "pinned"},
        {"id": "deleted", "status": "tombstone"},
        {"id": "held", "dependencies": blocks("open")},
        {"id": "child-of-held", "dependencies": blocks("held", "parent-child")},
        {"id": "later", "defer_until": SOON},
        {"id": "circle", "dependencies": blocks("circle", "parent-child")},
    )
    assert ("it" in ids(scene.data("bd_ready"))) is is_ready


def test_what_is_ready_takes_time_in_proportion_to_the_issues_however_deep_they_are() -> None:
    def chain(count: int, **first: Any) -> list[dict[str, Any]]:
        rows = [
            {"id": f"n{number}", "dependencies": blocks(f"n{number - 1}", "parent-child")}
            for number in range(count)
        ]
        return [{**rows[0], **first}, *rows[1:]]

    def steps(count: int) -> int:
        return work_of(lambda: ready_issues(chain(count), datetime.now(UTC))).steps

    assert steps(2_000) < 5 * steps(500)
    assert len(ready_issues(chain(50), datetime.now(UTC))) == 50
    assert ready_issues(chain(50, status="blocked"), datetime.now(UTC)) == []


def test_the_most_urgent_issue_is_first_then_the_oldest(scene: PackScene) -> None:
    put(
        scene,
        {"id": "c", "priority": 1, "created_at": "2026-02-01T00:00:00Z"},
        {"id": "d"},
        {"id": "b", "priority": 1, "created_at": "2026-01-01T00:00:00Z"},
        {"id": "a", "priority": 0},
    )
    assert ids(scene.data("bd_ready")) == ["a", "b", "c", "d"]


@pytest.mark.requirement("K80")
@pytest.mark.parametrize(
    "sign", ["embeddeddolt/", "dolt/", '{"dolt_mode": "server"}', '{"backend": "postgres"}']
)
def test_without_bd_a_database_makes_the_file_stale_and_read_only(
    scene: PackScene, root: Path, sign: str
) -> None:
    scene.put(".beads/issues.jsonl", CONTENT)
    if sign.endswith("/"):
        (root / ".beads" / sign).mkdir()
    else:
        scene.put(".beads/metadata.json", sign)

    assert scene.data("bd_list")["stale"] is True
    assert scene.data("bd_ready")["stale"] is True
    assert "stale: true" in scene.text("bd_list")
    assert scene.code("bd_create", title="x") == "not_installed"
    assert scene.code("bd_update", bead_id="app-1", status="open") == "not_installed"
    assert scene.get(".beads/issues.jsonl") == CONTENT


def test_bd_is_asked_where_it_is_installed(bd: PackScene, root: Path) -> None:
    bd.put(".beads/issues.jsonl", CONTENT)

    listed = bd.data("bd_list")

    assert (listed["backend"], listed["stale"], ids(listed)) == ("bd", False, ["db-1", "db-2"])
    assert listed["issues"][1]["issue_type"] == "bug"
    text = bd.text("bd_list", status="open", limit=5)
    assert text.startswith("[from bd]\nID: db-1, Status: open, Title: A")
    assert text.count("\n[") == 1
    assert ids(bd.data("bd_ready")) == ["db-1"]
    made = bd.data("bd_create", title="--evil; $(x)", description="--also=this")
    assert (made["id"], made["issue"]["title"]) == ("db-3", "--evil; $(x)")
    changed = bd.data("bd_update", bead_id="db-2", status="open")
    assert (changed["id"], changed["issue"]["status"]) == ("db-2", "open")
    assert bd.code("bd_update", bead_id="--all", status="open") == "not_found"
    assert calls(bd) == [
        ["list", "--json", "--all", "--limit=201"],
        ["list", "--json", "--status=open", "--all", "--limit=6"],
        ["ready", "--json", "--limit=1001"],
        ["create", "--json", "--description=--also=this", "--", "--evil; $(x)"],
        ["update", "--json", "--status=open", "--", "db-2"],
        ["update", "--json", "--status=open", "--", "--all"],
    ]
    _, cwd, names = json.loads(bd.get(".beads/calls.json").splitlines()[0])
    assert cwd == str(root)
    assert "SECRET" not in names
    assert bd.get(".beads/issues.jsonl") == CONTENT


@pytest.mark.parametrize(
    ("says", "code", "words"),
    [
        ("1\ndatabase is locked\x1b[0m", "unavailable", "failed: database is locked"),
        ("3\n", "unavailable", "exit code 3"),
        ("out\nnot json", "unavailable", "did not answer with JSON"),
    ],
)
def test_a_bd_that_fails_is_unavailable(bd: PackScene, says: str, code: str, words: str) -> None:
    bd.put(".beads/says", says)
    error = bd.error("bd_list")
    assert error["code"] == code
    assert words in error["message"]
    assert "\x1b" not in error["message"]


def test_a_bd_that_hangs_is_stopped(bd: PackScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aish.packs.issues.issue_tools.SECONDS", 0.5)
    bd.put(".beads/says", "sleep\n")
    assert bd.code("bd_ready") == "too_slow"


def test_an_answer_in_an_envelope_is_read_too(bd: PackScene) -> None:
    answer = {"schema_version": 1, "data": [{"id": "e-1", "title": "T", "priority": True}, 5]}
    bd.put(".beads/says", f"out\n{json.dumps(answer)}")
    assert bd.data("bd_list")["issues"] == [
        {"id": "e-1", "title": "T", "status": "open", "priority": None, "issue_type": None}
    ]
    bd.put(".beads/says", "out\n[]")
    assert bd.code("bd_create", title="x") == "unavailable"


def test_no_program_of_the_root_is_run(root: Path, tmp_path: Path) -> None:
    inside = put_bd(root / "bin")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "bd").symlink_to(inside / "bd")
    for path in (f"{inside}", "bin:.:", f"{tmp_path / 'links'}"):
        with opened_packs(["issues"], root, environ={"PATH": path}) as scene:
            assert scene.data("bd_list")["backend"] == "jsonl"
    assert not (root / ".beads" / "calls.json").exists()


@pytest.mark.requirement("K79")
@pytest.mark.parametrize("name", ["on_create", "on_update", "on_close"])
def test_bd_does_not_run_hooks_of_the_root(bd: PackScene, name: str) -> None:
    bd.put(f".beads/hooks/{name}", "#!/bin/sh\ntouch /tmp/never\n")
    error = bd.error("bd_create", title="x")
    assert (error["code"], name in error["message"]) == ("unavailable", True)
    assert bd.code("bd_update", bead_id="db-1", status="open") == "unavailable"
    assert ids(bd.data("bd_ready")) == ["db-1"]
    assert [call[0] for call in calls(bd)] == ["ready"]
