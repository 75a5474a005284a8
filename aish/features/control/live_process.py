"""The process that executes a run or serves, as its files tell."""

import os

from aish.features.approvals.questions import HUB_ID
from aish.features.control.server import control_entries
from aish.features.history.run_store import RunStore
from aish.system.file_lock import is_written
from aish.system.platform.locks import lock_holder


def live_process(store: RunStore, run: str) -> tuple[bool, int | None]:
    """Tell whether a process executes the run or the server, and its id if the system reports it.

    Raises:
        FileNotFoundError: it has no journal.
    """
    if HUB_ID.match(run):
        return bool(control_entries(run, store.path / run)), None
    with os.fdopen(store.open_file(run, "events.jsonl"), "rb") as file:
        return is_written(file.fileno()), lock_holder(file.fileno())
