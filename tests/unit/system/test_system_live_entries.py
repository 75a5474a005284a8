"""Entries of live processes: what a killed one leaves is taken out by whoever looks next."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aish.core.json import JsonObject
from aish.system.process.live_entries import live_entries, own_entry


@pytest.mark.linux_forms  # of an older version, which was on Linux only
def test_a_process_that_ended_is_dead_though_nobody_asked_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "entries.json"
    with subprocess.Popen(["sleep", "60"]) as process:
        words = Path(f"/proc/{process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        entry: JsonObject = {"pid": process.pid, "started": int(words[19]), "address": "unix:/a"}
        path.write_text(json.dumps({"v": 1, **entry, "processes": [entry]}))
        gone: list[JsonObject] = []

        assert live_entries(path, gone.append) == [entry]
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert live_entries(path, gone.append) == []

    assert gone == [entry]
    assert not path.exists()


def test_a_reader_takes_out_the_dead_and_keeps_its_own_entry(tmp_path: Path) -> None:
    path, gone = tmp_path / "entries.json", list[JsonObject]()
    dead: JsonObject = {"pid": 1, "started": -1, "address": "unix:/dead"}
    with own_entry(path, {"address": "unix:/own"}, gone.append):
        document = json.loads(path.read_text("ascii"))
        document["processes"].insert(0, dead)
        path.write_text(json.dumps({**document, **dead}))

        (found,) = live_entries(path, gone.append)

        assert json.loads(path.read_text("ascii")) == {"v": 1, **found, "processes": [found]}
        assert found["address"] == "unix:/own"
        assert gone == [dead]
    assert not path.exists()


HOLDS = """
import sys
from pathlib import Path
from aish.system.process.live_entries import own_entry

with own_entry(Path(sys.argv[1]), {"address": sys.argv[2]}, print):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_process_lives_as_long_as_it_holds_its_lock_whatever_its_number_means_here(
    tmp_path: Path,
) -> None:
    path, gone = tmp_path / "entries.json", list[JsonObject]()
    words = [sys.executable, "-c", HOLDS, str(path)]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen([*words, "unix:/a"], stdin=pipe, stdout=pipe) as killed,
        subprocess.Popen([*words, "unix:/b"], stdin=pipe, stdout=pipe) as ended,
    ):
        for process in (killed, ended):
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
        text = path.read_text("ascii")
        # As another container sees them: nobody has these numbers, or somebody else.
        path.write_text(
            text.replace(f'"pid":{killed.pid}', '"pid":1').replace('"started":', '"s":')
        )

        both = {str(entry["address"]) for entry in live_entries(path, gone.append)}
        killed.kill()
        killed.wait()
        left = [entry["address"] for entry in live_entries(path, gone.append)]
        ended.communicate(b"")

        assert both == {"unix:/a", "unix:/b"}
        assert left == ["unix:/b"]
        assert [entry["address"] for entry in gone] == ["unix:/a"]
        assert list(tmp_path.iterdir()) == []
