"""The lock of a run: admitted tools, and differences from the pins.

One `LockWatch` checks everything that lists or calls tools. A difference is reported at once, and
excluded for the rest of the run, whatever the server sends later.
"""

from typing import TYPE_CHECKING

from aish.core.errors import AishError, LockDiffersError
from aish.core.events import NOWHERE, Level, Notice
from aish.core.messages import Served
from aish.core.protocols import Emit
from aish.core.tools import Tool, ToolName
from aish.engine.plan.lock import (
    difference_names,
    is_ignored,
    lock_path,
    pin_now,
    pins_of_file,
    summary,
)
from aish.engine.plan.plan import Plan
from aish.policy.lock import (
    Difference,
    Lock,
    address_differences,
    instructions_difference,
    served_difference,
    stale_differences,
    tool_difference,
)

if TYPE_CHECKING:
    from aish.mcp.client.registry import Registry


class LockWatch:
    """Compares what servers offer with the lock, from the beginning to the end of a run."""

    def __init__(self, plan: Plan, lock: Lock, emit: Emit) -> None:
        self._pinned = lock
        self._now = pins_of_file(plan.pipeline, plan.secrets)
        self._secrets = plan.secrets
        self._path = lock_path(plan.pipeline)
        self._pipeline = plan.pipeline
        self._enforced = plan.lock_mode == "enforce"
        self._emit = emit
        self._offering: Registry | None = None
        self._models = plan.models if plan.steps else self._now.models if plan.models else ()
        self._servers: dict[str, Difference] = {}
        self._asked: list[Difference] = []
        self._served: list[Difference] = []
        self._tools: dict[ToolName, Difference] = {}
        self._good: dict[ToolName, Tool] = {}

    def begin(self) -> None:
        """Report differences in the file itself, before any server is started.

        Raises:
            LockDiffersError: a server, a model or a prompt differs from its pin, and that
                is enforced.
        """
        for difference in address_differences(self._pinned, self._now):
            self._servers[difference.name] = difference
            self._say(difference)
        for found in stale_differences(self._pinned, self._now):
            if not self._matters(found):
                self._notice("info", "lock_stale", found)
            elif is_ignored(found, self._pipeline):
                self._notice("warning", "lock_differs", found)
            else:
                self._asked.append(found)
                self._say(found)
        self.require()

    def hold(self, offering: "Registry") -> None:
        """Compare what servers offer with the pins; `look_again` repeats that."""
        self._offering = offering
        for alias, text in offering.instructions().items():
            pin = self._pinned.servers.get(alias)
            difference = instructions_difference(alias, pin, self._secrets.mask(text))
            if difference is not None and alias not in self._servers:
                self._servers[alias] = difference
                self._say(difference)
        offering.hold_to(self.look_again, self.offers)
        self.look_again()
        here = {ToolName(tool.name.server, tool.name.name) for tool in offering.listed()}
        up = {server.alias for server in offering.servers if server.state == "ready"}
        for alias, server in self._pinned.servers.items():
            for name in sorted(server.tools) if alias in up - self._servers.keys() else ():
                if ToolName(alias, name) not in here:
                    gone = Difference("tool", f"{alias}__{name}", "removed")
                    self._notice("info", "lock_tool_gone", gone)

    def look_again(self) -> None:
        """Compare once more, after servers said that their tools changed."""
        for tool in self._offering.listed() if self._offering else ():
            self.offers(tool)

    def offers(self, tool: Tool) -> bool:
        """Return true if a tool matches its pin, and always did in this run."""
        if self._good.get(tool.name) is not tool and not self._is_out(tool.name):
            self._compare(tool)
        return not self._is_out(tool.name)

    def check_served(self, alias: str, served: Served | None) -> AishError | None:
        """Compare what answered under an alias with its pins; return the error that ends the run.

        A difference is reported once.
        """
        pins, name = self._pinned.served.get(alias), None if served is None else served.model
        difference = None if pins is None else served_difference(alias, pins, (name,))
        if difference is None:
            return None
        ignored = is_ignored(difference, self._pipeline)
        if difference not in self._served:
            self._served.append(difference)
            if ignored:
                self._notice("warning", "lock_differs", difference)
            else:
                self._asked.append(difference)
                self._say(difference)
        return None if ignored else self.error()

    def exclusion_reason(self, name: ToolName) -> str | None:
        """Why a tool may not be called, if so, after comparing its current definition."""
        tool = self._offering.by_name(name) if self._offering else None
        if tool is not None:
            self.offers(tool)
        if name.server in self._servers:
            return "its server differs from the locked one"
        found = self._tools.get(name)
        if found is None:
            return None
        return (
            "it is not in the lock" if found.change == "added" else "it changed since it was locked"
        )

    def error(self) -> AishError | None:
        """The error that ends the run with 7: the differences, if the lock is enforced."""
        differences = self.differences
        if not differences or not self._enforced:
            return None
        verb = "differs" if len(differences) == 1 else "differ"
        return self.refusal(f"{difference_names(differences)} {verb} from the lock")

    def exclusions(self) -> tuple[str, ...]:
        return tuple(summary(one) for one in (*self._servers.values(), *self._tools.values()))

    def refusal(self, message: str) -> LockDiffersError:
        """An error about this lock, with what to do."""
        served = " --served RUN" if self._served else ""
        hint = f"`aish lock {self._pipeline.file}{served} --diff` shows how, `--update` accepts it"
        without = "; `--lock warn` continues with a warning" if self._enforced else ""
        return LockDiffersError(message, where=str(self._path), hint=hint + without)

    def require(self) -> None:
        """Refuse to continue with differences.

        Raises:
            LockDiffersError: something differs, and the lock is enforced.
        """
        error = self.error()
        if error is not None:
            raise error

    @property
    def differences(self) -> tuple[Difference, ...]:
        """All differences, in the order in which they were found.

        Servers and tools are excluded; models and prompts are used unless that is enforced.
        """
        return (*self._servers.values(), *self._asked, *self._tools.values())

    def _matters(self, found: Difference) -> bool:
        """Return true if a prompt, a command for a key or a model that may be asked differs."""
        if found.change == "removed":
            return False
        return found.kind in {"prompt", "key"} or (
            found.kind == "model" and found.name in self._models
        )

    def _is_out(self, name: ToolName) -> bool:
        return name.server in self._servers or name in self._tools

    def _compare(self, tool: Tool) -> None:
        server, own = tool.name.server, tool.name.name
        pinned = self._pinned.servers.get(server)
        now = pin_now(tool, self._secrets)
        # A server that is not in the file was connected by the user in this session.
        before = None if pinned is None else pinned.tools.get(own)
        difference = None if pinned is None else tool_difference(server, own, before, now)
        if difference is None:
            self._good[tool.name] = tool
            return
        self._tools[tool.name] = difference
        self._say(difference)

    def _say(self, difference: Difference) -> None:
        self._notice("error" if self._enforced else "warning", "lock_differs", difference)

    def _notice(self, level: Level, code: str, difference: Difference) -> None:
        self._emit(Notice(NOWHERE, level, code, f"{self._path.name}: {summary(difference)}"))


def start_watch(plan: Plan, lock: Lock, emit: Emit) -> LockWatch:
    """The `LockWatch` of a plan's lock.

    Raises:
        LockDiffersError: a server, a model or a prompt is not the one that was pinned, and that is
            enforced.
    """
    watch = LockWatch(plan, lock, emit)
    watch.begin()
    return watch
