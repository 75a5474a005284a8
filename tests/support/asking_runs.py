"""Runs with questions about their tool calls, as their journals have them."""

import os
from pathlib import Path
from typing import Any

from scripted_events import run_finished, run_started

from aish.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    Exit,
    Place,
    RunFinished,
    Stamped,
    rfc3339,
)
from aish.journal.writer import open_journal

RUN = "20261121T190138Z-release-32be"
OTHER_RUN = "20261121T190139Z-release-99zz"
NOW = 4_000_000_000.0
"""In the future: what a test asks is open until somebody has answered."""
ID = "3f9a1c22" + "0" * 24
DIGEST = "a1b2c3d4e5f60718" * 4


def asked(id: str = ID, **changes: Any) -> ApprovalAsked:
    """A question of the step `write`."""
    given: dict[str, Any] = {
        "place": Place("write", None, 1, "call-1"),
        "id": id,
        "tool": "repo__file_write",
        "server": "repo",
        "name": "file_write",
        "arguments": {"path": "TITLE.md", "content": "# aish\n"},
        "digest": DIGEST,
        "reason": "no rule approves repo__file_write",
        "expires": rfc3339(NOW),
    }
    return ApprovalAsked(**given | changes)


def answered(id: str = ID, answer: Any = "approve", **changes: Any) -> ApprovalAnswered:
    """The answer of somebody at the page."""
    given: dict[str, Any] = {
        "place": Place("write", None, 1, "call-1"),
        "id": id,
        "answer": answer,
        "by": "ada",
        "way": "page",
        "note": "looks right",
    }
    return ApprovalAnswered(**given | changes)


def finished(status: Any = "paused", waiting: int | None = None) -> RunFinished:
    """The end of a part of a run: with a question still open, or for good."""
    if waiting is None:
        waiting = int(status in {"paused", "interrupted"})
    codes = {"ok": 0, "failed": 1, "denied": 3, "budget": 4, "paused": 8, "interrupted": 143}
    code = Exit(codes[status], status, retryable=False, reason="")
    return run_finished(status=status, exit=code, waiting=waiting)


def kept_run(store: Path, id: str, *events: Event) -> Path:
    """The folder of a run whose journal has these events after `run.started`."""
    folder = store / id
    folder.mkdir(mode=0o700, parents=True)
    journal = open_journal(folder)
    for seq, event in enumerate((run_started(pipeline="release"), *events), 1):
        journal(Stamped(seq, NOW - 1_000_000 + seq, event))
    journal.close()
    return folder


def tear(folder: Path, tail: bytes = b'{"v":1,"seq":9,"time":"2026-') -> None:
    """Let the journal end in half a record, as after a crash."""
    with (folder / "events.jsonl").open("ab") as file:
        file.write(tail)
        os.fsync(file.fileno())
