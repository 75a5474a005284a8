"""One round of tool calls: in which order they run, and one reply to each (L16).

Whatever happens, `replies` has exactly one legal turn per call.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import anyio

from aish.agent import wording
from aish.agent.dispatch import Approved, dispatch, no_more, propose, refuse
from aish.agent.runtime import AgentRuntime, UsedCall
from aish.agent.tool_calls import Wanted
from aish.core.errors import BudgetError
from aish.core.events import Place
from aish.core.messages import ToolTurn
from aish.core.protocols import Sampler
from aish.core.tools import ResultKind
from aish.policy.gate import THE_LOCK

MAX_PARALLEL = 8


class Round:
    """The calls of one assistant turn on their way to their replies.

    `denied` is the first call that was denied where that ends the run (P3), `over` the limit that
    did not allow for one of them (B8).
    """

    def __init__(
        self,
        wanted: Sequence[Wanted],
        place: Place,
        runtime: AgentRuntime,
        sampler: Sampler | None = None,
        *,
        sees_images: bool = False,
    ) -> None:
        self._wanted = wanted
        self._places = [Place(place.step, place.item, place.turn, one.call.id) for one in wanted]
        self._runtime = runtime
        self._sampler = sampler
        self._sees_images = sees_images
        self._begun: set[int] = set()
        self._used: list[UsedCall | None] = [None] * len(wanted)
        self.denied: UsedCall | None = None
        self.over: BudgetError | None = None

    @property
    def used(self) -> tuple[UsedCall, ...]:
        """The calls that have ended, in the model's order."""
        return tuple(used for used in self._used if used is not None)

    def replies(self) -> Iterator[ToolTurn]:
        """One reply per call, in the model's order; to be added whatever became of the round."""
        for index, (wanted, used) in enumerate(zip(self._wanted, self._used, strict=True)):
            if used is not None:
                yield ToolTurn(wanted.call.id, wanted.tool_name, used.content, used.media)
                continue
            begun = index in self._begun
            reply = wording.INTERRUPTED if begun else wording.NOT_RUN_INTERRUPTED
            yield ToolTurn(wanted.call.id, wanted.tool_name, reply)

    @property
    def ended(self) -> frozenset[str]:
        """The ids of the calls whose end was told."""
        pairs = zip(self._wanted, self._used, strict=True)
        return frozenset(wanted.call.id for wanted, used in pairs if used is not None)

    def refuse_all(self, reply: str) -> None:
        """Answer every call with `reply`, and make none."""
        for index in range(len(self._wanted)):
            self._refuse(index, "denied", reply)

    async def run(self) -> None:
        """Make the calls: neighbours that may run beside others together, any other alone."""
        for _, group in groupby(range(len(self._wanted)), self._group_key):
            await self._run_group(list(group))

    def _group_key(self, index: int) -> int:
        """The same for neighbours that may run together: -1, else a number of its own."""
        wanted = self._wanted[index]
        alone = (
            wanted.tool is not None
            and wanted.arguments is not None
            and not self._runtime.gate.policy.is_parallel(wanted.tool)
        )
        return index if alone else -1

    async def _run_group(self, group: Sequence[int]) -> None:
        # Decisions are made one after the other, so that a person is asked one thing at a time.
        approved: list[tuple[int, Approved]] = []
        for index in group:
            ready = await self._propose(index)
            if ready is not None:
                approved.append((index, ready))
        if len(approved) == 1:
            await self._dispatch(*approved[0])
        elif approved:
            await self._dispatch_together(approved)

    async def _propose(self, index: int) -> Approved | None:
        wanted = self._wanted[index]
        if self.denied is not None:
            self._refuse(index, "denied", wording.NOT_RUN_AFTER_DENIAL)
            return None
        if self.over is not None:
            self._refuse(index, "denied", wording.NO_MORE_CALLS)
            return None
        if wanted.tool is None or wanted.arguments is None:
            self._refuse(index, "bad_arguments", wanted.refusal())
            return None
        ready = await propose(wanted.tool, wanted.arguments, self._runtime, self._places[index])
        if isinstance(ready, Approved):
            return ready
        self._used[index] = ready
        # What the lock denies is not what the file's rules deny: the run says how it ends.
        ours = ready.rule != THE_LOCK
        if ready.kind == "denied" and ours and self._runtime.on_denied == "fail":
            self.denied = ready
        return None

    async def _dispatch(self, index: int, approved: Approved) -> None:
        self._begun.add(index)
        try:
            self._used[index] = await dispatch(
                approved, self._runtime, self._sampler, sees_images=self._sees_images
            )
        except BudgetError as error:
            self.over = self.over or error
            self._used[index] = no_more(approved, self._runtime)

    async def _dispatch_together(self, approved: Sequence[tuple[int, Approved]]) -> None:
        slots = anyio.Semaphore(MAX_PARALLEL)

        async def one(index: int, ready: Approved) -> None:
            async with slots:
                await self._dispatch(index, ready)

        try:
            async with anyio.create_task_group() as tasks:
                for index, ready in approved:
                    tasks.start_soon(one, index, ready)
        except ExceptionGroup as group:
            # A call's failure is a result: what comes here is a bug or a broken sink, and its
            # own class says which exit code it has.
            raise _first(group) from group

    def _refuse(self, index: int, kind: ResultKind, reply: str) -> None:
        wanted = self._wanted[index]
        self._used[index] = refuse(
            wanted.tool_name,
            wanted.asked.arguments if wanted.arguments is None else wanted.arguments,
            kind,
            reply,
            self._runtime,
            self._places[index],
        )


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
