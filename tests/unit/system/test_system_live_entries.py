"""Entries of live processes: what a killed one leaves is taken out by whoever looks next."""

import json
import os
import subprocess
from pathlib import Path

from aish.core.json import JsonObject
from aish.system.process.live_entries import live_entries, own_entry


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
