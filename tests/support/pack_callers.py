"""Several processes that call tools of packs at the same time: see `pack_caller.py`."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).with_name("pack_caller.py"))


def call_together(scenes: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The codes of the calls of each scene; all begin when every process is ready."""
    with ExitStack() as open_:
        processes = [
            open_.enter_context(
                subprocess.Popen(
                    [sys.executable, PROGRAM, json.dumps(scene)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=dict(os.environ),
                )
            )
            for scene in scenes
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        found: list[list[str]] = []
        for process in processes:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0
            found.append(json.loads(output))
    return found
