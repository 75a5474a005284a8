"""A run in the process of a test, with its control API on a real port, and clients of it.

async with served_run(project, "prompt: hello", uses=endpoint) as run:
    found = await run.get("status")
    await run.ended()
"""

import ctypes
import json
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import httpx
from plain_http import PLAIN
from tcp_relay import tcp_relay

from aish.core.errors import ExitCode
from aish.core.events import Exit, Stamped, to_object
from aish.engine.cancellation import End, Interrupt, borrow_signals
from aish.engine.environment import RunEnvironment
from aish.engine.execution.run import execute
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import load_checked, make_plan
from aish.engine.run_folder import RunsPlace, open_folder
from aish.features.control.run_services import ControlRequest, open_services
from aish.journal.writer import open_journal
from aish.output.event_log import EventLog, Sink
from aish.system.clock import SystemClock
from aish.system.guest import as_guest
from aish.terminal.unattended import Unattended

SCOPES = ("read", "answer", "write")
_PR_SET_CHILD_SUBREAPER = 36


def token_of(*scopes: str) -> str:
    """The token that has just these scopes."""
    return "-".join((*sorted(scopes), "t" * 40))


EACH = (*((one,) for one in SCOPES), SCOPES)
VARIABLES = {f"TOKEN_{number}": token_of(*scopes) for number, scopes in enumerate(EACH)}
CONTROL = {
    "tokens": {
        "-".join(scopes): {"token_env": f"TOKEN_{number}", "scopes": list(scopes)}
        for number, scopes in enumerate(EACH)
    }
}


@dataclass
class ServedRun:
    """A run that listens, what it has told so far, and a client for each token."""

    folder: Path
    stack: AsyncExitStack
    url: str = ""
    host: str = ""
    told: list[Stamped] = field(default_factory=list)
    exit: Exit | None = None
    over: anyio.Event = field(default_factory=anyio.Event)
    changed: anyio.Event = field(default_factory=anyio.Event)
    clients: dict[tuple[str, ...], httpx.AsyncClient] = field(default_factory=dict)

    async def asked(
        self, method: str, path: str, body: Any = None, scopes: tuple[str, ...] = SCOPES
    ) -> httpx.Response:
        """The answer to a request by the token with these scopes."""
        given = {} if body is None else {"json": body}
        where = path if path.startswith("/") else f"/api/v1/{path}"
        return await (await self.client(*scopes)).request(method, where, **given)

    async def get(self, path: str) -> Any:
        """What a path has to say."""
        found = await self.asked("GET", path)
        assert found.status_code == 200, found.text
        return found.json()

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.asked("POST", path, body)

    async def put(self, path: str, value: Any, was: Any) -> httpx.Response:
        return await self.asked("PUT", f"values/{path}", {"value": value, "was": was})

    async def client(self, *scopes: str) -> httpx.AsyncClient:
        """A client with the token that has these scopes; without any, one without a token."""
        if scopes not in self.clients:
            headers = {"Authorization": f"Bearer {token_of(*scopes)}"} if scopes else {}
            headers["Host"] = self.host
            client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60, verify=PLAIN)
            self.clients[scopes] = await self.stack.enter_async_context(client)
        return self.clients[scopes]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a type so far, as the journal has them."""
        found = [to_object(one) for one in self.told]
        return [one for one in found if one["type"] == kind]

    async def until(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """The events of a type, once there are so many."""
        with anyio.fail_after(60):
            while len(found := self.events(kind)) < count:
                self.changed = anyio.Event()
                await self.changed.wait()
        return found

    async def ended(self) -> Exit:
        """The end of the run."""
        with anyio.fail_after(60):
            await self.over.wait()
        assert self.exit is not None
        return self.exit

    @property
    def journal(self) -> list[dict[str, Any]]:
        """What is written of the run."""
        lines = (self.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


@asynccontextmanager
async def served_run(
    project: Path,
    text: str,
    *,
    uses: Any = None,
    model: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
    environ: Mapping[str, str] | None = None,
    addresses: tuple[str, ...] = ("127.0.0.1:0",),
    is_kept: bool = True,
    lingers: bool = False,
) -> AsyncGenerator[ServedRun]:
    """A run of a pipeline; what is left of it at the end of the block is cancelled.

    One that `lingers` is asked about after its end too.
    """
    if uses is not None:
        entry = {"base_url": uses.base_url, "model": "m", "params": {"max_tokens": 100}}
        models = {"m": {**entry, **(model or {})}}
        text = f"models: {json.dumps(models)}\n{dedent(text)}"
    text = f"aish: 1\ncontrol: {json.dumps(CONTROL)}\n{dedent(text)}"
    file = project / "p.yaml"
    file.write_text(text, encoding="utf-8")
    # Before the run becomes the parent of orphans.
    with ExitStack() as stack, as_guest(), tcp_relay() as relay, _orphans_as_before():
        options = options or RunOptions()
        options = replace(options, environ={**(environ or {}), **dict(VARIABLES)})
        plan = make_plan(load_checked(file, ()), options)
        clock = SystemClock()
        place = RunsPlace(project)
        folder = open_folder("p", place, clock.now(), ephemeral=not is_kept, mask=plan.secrets.mask)
        folder.write_plan(plan.pipeline.data)
        asked = ControlRequest(addresses)
        services = open_services(asked, plan, options, folder, clock, None, stack)
        async with AsyncExitStack() as clients:
            run = ServedRun(folder.path or project, clients)
            journal = () if folder.path is None else (open_journal(folder.path),)
            sinks: list[Sink] = [*journal, *services.sinks, _EventList(run)]
            log = EventLog(sinks, clock=clock, secrets=plan.secrets)
            stack.callback(log.close)
            environment = RunEnvironment(
                emit=log.emit,
                approver=Unattended(),
                clock=clock,
                folder=folder,
                environ=options.environ,
                notices=services.notices,
                attach=services.attach,
            )

            async def whole() -> Exit:
                run.exit = await execute(plan, options, environment)
                run.over.set()
                if lingers:
                    await anyio.sleep_forever()
                return run.exit

            async def main() -> None:
                with borrow_signals(_interrupt):
                    await services.during(whole)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(main)
                (said,) = await run.until("notice")
                run.host = said["text"].split()[2].rstrip(",")
                run.url = f"http://127.0.0.1:{relay.port}"
                relay.connect_to(int(run.host.rpartition(":")[2]))
                try:
                    yield run
                finally:
                    tasks.cancel_scope.cancel()


class _EventList:
    """A sink that keeps what is told."""

    name = "the test"
    deltas = True

    def __init__(self, run: ServedRun) -> None:
        self._run = run

    def __call__(self, stamped: Stamped) -> None:
        self._run.told.append(stamped)
        self._run.changed.set()

    def close(self) -> None:
        """Nothing is buffered."""


@contextmanager
def _interrupt(end: End) -> Generator[Interrupt]:
    """What ends the run as a signal does, which the process of the test does not get."""
    seen = Interrupt()

    def arrive(code: ExitCode) -> None:
        if seen.code is None:
            seen.code = code
            end(code)

    seen.arrive = arrive
    yield seen


@contextmanager
def _orphans_as_before() -> Generator[None]:
    """A run that listens becomes the parent of orphans; the process of the test is none."""
    try:
        yield
    finally:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (0, 0, 0, 0)))
