"""Calls of clients that a rule stages, stored in `serve.state` for review.

`aish apply` shows and executes them, each once. Their digests include the pipeline file, so each
version of the file has a queue of its own. A call that was applied may be staged again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from aish.core.errors import UsageError
from aish.core.events import NOWHERE, Notice, Stamped, ToolDecided
from aish.core.json import JsonObject
from aish.core.protocols import Emit
from aish.core.tools import Tool
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder
from aish.system.file_lock import BeingWrittenError

if TYPE_CHECKING:
    # Most files stage nothing.
    from aish.features.staging.queue import StagingQueue

_DIGITS = 12


class HubStaging:
    """Stores staged calls: a `policy.gate.Staging` for the lifetime of the server.

    `plan` returns the plan of the file in force. Of several processes that share the `folder`, one
    has the queue of a file, and each of the others a queue of its own.
    """

    def __init__(self, plan: Callable[[], Plan], folder: RunFolder, pid: int) -> None:
        self.plan = plan
        self.notify: Emit = lambda _: None
        """Hears what the person who runs the server is to know."""
        self._folder = folder
        self._pid = pid
        self._queue: StagingQueue | None = None
        self._of: Plan | None = None
        self._told: set[Path] = set()

    def refusal(self, tool: Tool, arguments: JsonObject) -> str | None:
        try:
            return self._open_queue().refusal(tool, arguments)
        except UsageError as error:
            return f"it cannot be put down for review: {error.message}"

    def definition(self, tool: Tool) -> str:
        return self._open_queue().definition(tool)

    def holds(self, digest: str) -> bool:
        return self._queue is not None and self._queue.holds(digest)

    def put_down(self, stamped: Stamped) -> None:
        """Store a staged call; a failure is a notice, and the call is not stored.

        Secrets are not masked: a call with a secret is refused.
        """
        from aish.features.staging.log import log_path, states_in

        decided = stamped.event
        assert isinstance(decided, ToolDecided)
        try:
            queue = self._open_queue()
            if queue.path is not None and queue.holds(decided.digest):
                # It may be staged again if the earlier one was applied.
                queue.release(decided.digest, states_in(log_path(queue.path)))
            queue(stamped)
        except (OSError, UsageError) as error:
            text = f"a call could not be put down for review: {error}"
            self.notify(Notice(decided.place, "error", "not_staged", text))
            return
        if queue.path is not None and queue.path not in self._told:
            self._told.add(queue.path)
            text = f"a call waits for review: `aish apply {queue.shown} --dry-run` shows it"
            self.notify(Notice(NOWHERE, "info", "staged", text))

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def _open_queue(self) -> "StagingQueue":
        """Return the queue of the file in force.

        Raises:
            UsageError: it cannot be written.
        """
        plan = self.plan()
        if self._queue is not None and self._of is plan:
            return self._queue
        from aish.features.staging.queue import open_queue

        assert self._folder.path is not None, "a server has a state folder"
        name = f"staged-{plan.pipeline.digest[:_DIGITS]}"
        self.close()
        self._queue = None
        try:
            path = self._folder.path / f"{name}.json"
            self._queue = open_queue(plan, self._folder, path)
        except BeingWrittenError:
            path = self._folder.path / f"{name}-{self._pid}.json"
            self._queue = open_queue(plan, self._folder, path)
        self._of = plan
        return self._queue
