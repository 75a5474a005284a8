"""A scene with tool servers, recorded into a file and played again from it."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from cassette_exchanges import HEAD
from mcp_dynamic_registry import dynamic_registry
from mcp_scenes import play, registry
from waits import waits_of

from aish.cassettes.format.file import load
from aish.cassettes.format.interaction import Interaction
from aish.cassettes.format.path_placeholders import NOWHERE
from aish.cassettes.record.file_writer import Recording
from aish.cassettes.record.recorder import CassetteRecorder, Kind, RecorderRules, Way
from aish.cassettes.replay.matching import Matching
from aish.core.events import ServerInfo
from aish.core.protocols import Progress
from aish.mcp.recorded.cassette_adapter import RunCassetteAdapter
from aish.mcp.transports.settings import ServerConnection
from aish.system.clock import SystemClock
from aish.system.offline import offline
from aish.system.secrets.secrets import Secrets

HANGS = 120.0
"""Seconds of the loop's clock, which is put forward, until a scene is taken for one that hangs."""
_PICTURE = "iVBORw0KGgo*"
"""How a PNG begins: to who looks for secrets it is random."""

Act = Callable[[Any], Awaitable[Any]]
"""Takes a `Scene`; with `live=True`, a `DynamicScene`."""


@dataclass(frozen=True)
class Seen:
    """What a run saw of its servers; `value` is what the act returned."""

    value: Any
    tools: tuple[Any, ...]
    servers: tuple[ServerInfo, ...]
    notices: tuple[tuple[str, str, str], ...]
    progress: tuple[Progress, ...]


class RecordedScene:
    """A cassette in a folder; what is recorded can be played, more than once.

    `meanwhile` is a function that runs beside a scene: it may put the clock of the loop forward.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "servers.yaml"
        self.leftovers: Sequence[Interaction] = ()
        self.waits: list[float] = []
        """The waits of the last run that ran out, in seconds."""

    @property
    def waited(self) -> float:
        """The longest of the waits."""
        return max(self.waits, default=0.0)

    @property
    def interactions(self) -> Sequence[Interaction]:
        return load(self.path).interactions

    def record(self, act: Act, *connections: ServerConnection, **options: Any) -> Seen:
        """Run with live servers, and keep it all."""
        return self._write("record", (), act, connections, options)

    def extend(self, act: Act, *connections: ServerConnection, **options: Any) -> Seen:
        """Run with what is recorded, and live where nothing is."""
        return self._write("extend", self.interactions, act, connections, options)

    def replay(
        self, act: Act, *connections: ServerConnection, whole: bool = True, **options: Any
    ) -> Seen:
        """Run again, with nothing in reach; `whole` says that nothing may be left over."""
        paced, lenient = options.pop("paced", False), options.pop("lenient", False)
        recorder = _recorder("replay", self.interactions, paced=paced, lenient=lenient)
        with offline() as trips:
            seen, self.waits = _run(recorder, act, connections, options)
        assert trips == []
        assert [miss.message for miss in recorder.missed] == []
        self.leftovers = [one for _, one in recorder.leftovers()]
        if whole:
            assert [one.request for one in self.leftovers] == []
        return seen

    def _write(
        self,
        way: Way,
        held: Sequence[Interaction],
        act: Act,
        connections: Sequence[ServerConnection],
        options: dict[str, Any],
    ) -> Seen:
        with ExitStack() as stack:
            recorder = _recorder(way, held, stack.enter_context(Recording(self.path, HEAD)))
            seen, self.waits = _run(recorder, act, connections, options)
            recorder.finish(HEAD)
        return seen


def _recorder(
    way: Way,
    held: Sequence[Interaction],
    recording: Recording | None = None,
    *,
    paced: bool = False,
    lenient: bool = False,
) -> CassetteRecorder:
    ways: dict[Kind, Way] = dict.fromkeys(("model", "mcp", "exec"), way)
    return CassetteRecorder(
        RecorderRules(ways, (_PICTURE,), paced=paced, lenient=lenient),
        held,
        Matching(),
        places=NOWHERE,
        secrets=Secrets(),
        monotonic=SystemClock().monotonic,
        recording=recording,
    )


def _run(
    recorder: CassetteRecorder,
    act: Act,
    connections: Sequence[ServerConnection],
    options: dict[str, Any],
) -> tuple[Seen, list[float]]:
    opened: Any = dynamic_registry if options.pop("live", False) else registry
    meanwhile = options.pop("meanwhile", None)

    async def scene() -> Seen:
        async with opened(*connections, adapter=RunCassetteAdapter(recorder), **options) as s:
            value = await act(s)
            return Seen(
                value,
                s.registry.listed(),
                # What is played in a server's stead may have another address.
                tuple(replace(one, address="") for one in s.registry.servers),
                tuple(s.notices.said),
                tuple(s.progress),
            )

    async def both() -> Seen:
        seen: list[Seen] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(meanwhile)
            seen.append(await scene())
        return seen[0]

    run = scene if meanwhile is None else both
    found: tuple[Seen, list[float]] = play(run, seconds=HANGS, run=waits_of)
    return found
