"""The pack `metrics`: what it writes, counts and refuses, and what several processes do (K57)."""

import fcntl
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pack_callers import call_together
from pack_scenes import PackScene, opened_packs

from aish.core.events import rfc3339
from aish.packs.metrics_options import MetricsOptions
from aish.system.secrets.secrets import Secrets

DAY = 86_400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def scene(folder: Path) -> Iterator[PackScene]:
    options = {"metrics": MetricsOptions(folder)}
    with opened_packs(["metrics"], None, options) as scene:
        yield scene


def lines(folder: Path) -> list[dict[str, Any]]:
    """All records; a line that is not whole fails."""
    found = []
    for path in sorted((folder / "metrics").iterdir()):
        content = path.read_bytes()
        assert content.endswith(b"\n")
        found += [json.loads(line) for line in content.splitlines()]
    return found


def put(folder: Path, ago: float, *records: dict[str, Any] | str) -> None:
    """Records of some seconds ago, as another process has written them."""
    (folder / "metrics").mkdir(parents=True, exist_ok=True)
    stamp = rfc3339(time.time() - ago)
    with (folder / "metrics" / f"{stamp[:10]}.jsonl").open("a") as file:
        for record in records:
            said = record if isinstance(record, str) else json.dumps({"timestamp": stamp, **record})
            file.write(f"{said}\n")


@pytest.mark.requirement("K57")
def test_a_record_is_a_line_of_its_day_that_only_its_owner_reads(
    scene: PackScene, folder: Path
) -> None:
    before = rfc3339(time.time())
    data = scene.data(
        "metrics_record",
        type="review",
        agent_id="a1",
        repo="shop",
        duration_ms=12.5,
        data={"files": [1, 2], "text": "\ud800 bell \a"},
    )

    (record,) = lines(folder)
    assert data["success"] is True
    assert before <= data["timestamp"] <= rfc3339(time.time())
    assert record == {
        "timestamp": data["timestamp"],
        "type": "review",
        "agent_id": "a1",
        "repo": "shop",
        "duration_ms": 12.5,
        "data": {"files": [1, 2], "text": "\ufffd bell \a"},
    }
    (file,) = (folder / "metrics").iterdir()
    assert file.name == f"{data['timestamp'][:10]}.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_without_a_folder_records_are_in_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with opened_packs(["metrics"], None) as scene:
        assert scene.data("metrics_query")["total"] == 0
        assert not (tmp_path / "state").exists()
        scene.data("metrics_record", type="build")
        assert scene.data("metrics_query")["total"] == 1
    assert len(lines(tmp_path / "state" / "aish")) == 1


def test_secrets_are_masked_before_the_size_is_measured(folder: Path) -> None:
    secrets = Secrets()
    secrets.add("KEY", "s3cret-" + "x" * 9_000)
    options = {"metrics": MetricsOptions(folder)}
    with opened_packs(["metrics"], None, options, run_secrets=secrets) as scene:
        scene.data("metrics_record", type="call", data={"key": "s3cret-" + "x" * 9_000})
    assert lines(folder)[0]["data"] == {"key": "<secret:KEY>"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"type": " "}, "bad_arguments"),
        ({"type": "a", "duration_ms": -1}, "bad_arguments"),
        ({"type": "a", "duration_ms": 10**400}, "bad_arguments"),
        ({"type": "a", "duration_ms": float("nan")}, "bad_arguments"),
        ({"type": "a" * 501}, "too_large"),
        ({"type": "a", "data": {"x": "\u20ac" * 2_730}}, "too_large"),
    ],
    ids=["empty", "negative", "huge", "not-a-number", "long", "large"],
)
def test_what_is_not_a_record_is_refused(
    scene: PackScene, folder: Path, arguments: dict[str, Any], code: str
) -> None:
    assert scene.code("metrics_record", **arguments) == code
    assert not folder.exists()


def test_data_of_exactly_8_kib_is_kept(scene: PackScene, folder: Path) -> None:
    scene.data("metrics_record", type="a", data={"x": "y" * (8192 - 8)})
    assert scene.code("metrics_record", type="a", data={"x": "y" * (8192 - 7)}) == "too_large"
    assert len(lines(folder)) == 1


def test_nothing_is_written_through_a_link(scene: PackScene, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    folder.mkdir()
    (folder / "metrics").symlink_to(tmp_path)
    assert scene.code("metrics_record", type="a") == "unwritable"
    (folder / "metrics").unlink()
    (folder / "metrics").mkdir()
    for day in {rfc3339(time.time() + ahead)[:10] for ahead in (0, 3600)}:  # at midnight too
        (folder / "metrics" / f"{day}.jsonl").symlink_to(other)
    error = scene.error("metrics_record", type="a")
    assert error["code"] == "unwritable"
    assert str(folder) not in error["message"]
    assert not other.exists()
    other.write_text("{}\n")
    assert scene.code("metrics_query") == "unreadable"


def test_a_part_of_a_line_that_a_killed_process_left_damages_no_other(
    scene: PackScene, folder: Path
) -> None:
    scene.data("metrics_record", type="a")
    (file,) = (folder / "metrics").iterdir()
    with file.open("a") as torn:
        torn.write('{"timestamp": "2')
    scene.data("metrics_record", type="b")
    found = scene.data("metrics_query")
    assert (found["total"], found["skipped"]) == (2, 1)


@pytest.mark.linux_forms
def test_a_file_that_stays_locked_is_unwritable_and_says_by_whom(
    scene: PackScene, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aish.packs.metrics._LOCK_SECONDS", 0.05)
    # The second event is of the day of the first one, at midnight too.
    now = rfc3339(time.time())
    monkeypatch.setattr("aish.packs.metrics.rfc3339", lambda _seconds: now)
    scene.data("metrics_record", type="a")
    (file,) = (folder / "metrics").iterdir()
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        error = scene.error("metrics_record", type="b")
        assert scene.code("metrics_query") == "unreadable"
    assert error["code"] == "unwritable"
    assert f"process {os.getpid()}" in error["message"]
    assert scene.data("metrics_query")["total"] == 1


def test_counts_are_sorted_by_count_then_by_name(scene: PackScene, folder: Path) -> None:
    put(folder, 40 * DAY, {"type": "old"})
    put(folder, 3 * DAY, {"type": "build", "repo": "shop"}, {"type": "test", "repo": "app"})
    put(folder, 60, *({"type": "build", "agent_id": f"a{n % 2}"} for n in range(12)))

    found = scene.data("metrics_query")

    assert found["total"] == 14
    assert found["by_type"] == [{"name": "build", "count": 13}, {"name": "test", "count": 1}]
    assert found["by_repo"] == [{"name": "app", "count": 1}, {"name": "shop", "count": 1}]
    assert found["by_agent"] == [{"name": "a0", "count": 6}, {"name": "a1", "count": 6}]
    assert [row["agent_id"] for row in found["recent"]] == ["a1", "a0"] * 5
    assert scene.data("metrics_query", since="30m")["total"] == 12
    assert scene.data("metrics_query", since="24h")["total"] == 12
    assert scene.data("metrics_query", since="400d")["total"] == 15
    assert scene.data("metrics_query", type="build", repo="shop")["total"] == 1
    assert scene.data("metrics_query", agent_id="a1", type="test")["total"] == 0


@pytest.mark.parametrize("since", ["", "7", "0d", "401d", "1w", "1d2h", "-1d", "9" * 30 + "d"])
def test_since_is_a_number_of_minutes_hours_or_days(scene: PackScene, since: str) -> None:
    assert scene.code("metrics_query", since=since) == "bad_arguments"


@pytest.mark.requirement("K58")
def test_lines_that_are_no_records_are_skipped_and_counted(scene: PackScene, folder: Path) -> None:
    odd: list[dict[str, Any] | str] = [
        *("{", "[]", "1", "", "\x00", "x" * 100_000, "[" * 50_000),
        {"type": 1},
        {"type": "a", "timestamp": "yesterday"},
        {"type": "a", "timestamp": "9999-99-99T99:99:99.999Z extra"},
    ]
    put(folder, 10, {"type": "a"}, *odd, {"type": "b", "repo": 5, "data": [], "duration_ms": True})
    (folder / "metrics" / "notes.txt").write_text("x\n")

    found = scene.data("metrics_query")

    assert (found["total"], found["skipped"]) == (2, len(odd))
    assert found["recent"][0] == {
        "type": "b",
        "timestamp": found["recent"][0]["timestamp"],
        "agent_id": None,
        "repo": None,
        "duration_ms": None,
        "data": None,
    }
    assert "skipped 10 lines" in scene.text("metrics_query")


def test_a_long_answer_is_cut_and_says_so(scene: PackScene, folder: Path) -> None:
    put(folder, 10, *({"type": f"t{n}", "data": {"x": "y" * 8_000}} for n in range(150)))

    found = scene.data("metrics_query")

    assert found["total"] == 150
    assert len(found["by_type"]) == 100
    assert found["truncated"] is True
    assert "truncated: true" in scene.text("metrics_query")


SCENE = {"packs": ["metrics"], "root": None, "tool": "metrics_record", "count": 300}


@pytest.mark.slow(reason="starts four processes")
def test_four_processes_write_300_records_each_and_none_is_torn(folder: Path) -> None:
    scenes = [
        {
            **SCENE,
            "options": {"metrics": {"folder": str(folder)}},
            "arguments": {"type": "t{n}", "agent_id": str(number), "data": {"x": "y" * 600}},
            "quota": None,
        }
        for number in range(4)
    ]
    assert call_together(scenes) == [["ok"] * 300] * 4
    found = lines(folder)
    assert Counter(record["agent_id"] for record in found) == dict.fromkeys("0123", 300)
    assert len({(record["agent_id"], record["type"]) for record in found}) == 1200


@pytest.mark.slow(reason="starts processes")
def test_at_a_quota_no_record_is_torn_and_what_was_acknowledged_is_there(folder: Path) -> None:
    scenes = [
        {
            **SCENE,
            "options": {"metrics": {"folder": str(folder)}},
            "arguments": {"type": "t{n}", "agent_id": str(number), "data": {"x": "y" * size}},
            "quota": 100_001,
        }
        for number, size in enumerate((10, 200, 900, 5_000))
    ]
    codes = call_together(scenes)
    assert {code for each in codes for code in each} == {"ok", "unwritable"}
    found = Counter(record["agent_id"] for record in lines(folder))
    assert [found[str(number)] for number in range(4)] == [each.count("ok") for each in codes]
