"""The pack `proc`: processes that keep running between calls, until the run ends."""

import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import field, replace
from typing import Annotated

import anyio
from anyio.abc import TaskGroup

from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import CALL_DEADLINE
from aish.packs.command_options import ProcOptions
from aish.packs.commands import COMMAND_CODES, PackCommands, open_commands
from aish.packs.environment_file import refusal_of
from aish.packs.framework.channels import Channels
from aish.packs.framework.pack import READS, Marks, Pack, PackContext, tool
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer, room
from aish.packs.workspace.confined_path import segments_of
from aish.system.platform.opens import enlarge_pipe
from aish.system.process.child import PipeReader, PipeWriter
from aish.system.process.output_ring import OutputRing, Stream
from aish.system.process.supervisor import Supervised
from aish.system.secrets.secrets import Secrets

LONGEST_WAIT = 30
LONGEST_GRACE = 60
INPUT_LIMIT = 64 * 1024
INPUT_SECONDS = 5
_MOST_ENDED = 64
_PIPE_SIZE = 1 << 20
_READ = 1 << 18
_LINGER = 0.5
_GRACE = 1.0
_FOR_KILLING = 2.0
"""Seconds of the call's own time-out that are kept for the end of what ignores SIGTERM."""
# A pipe takes this much whole or not at all, so that what was written is known after a time-out.
_ATOMIC = 4096
_LEFT_FOR_WORDS = 1_000

_STARTS = Marks(read_only=False, destructive=True, idempotent=False, open_world=True)
_SPEAKS = replace(_STARTS, sends=False)
"""Who starts a process has decided where it can send something."""
_ENDS = Marks(read_only=False, destructive=True, idempotent=True, open_world=False)
_ENDED_IN_BUBBLEWRAP = frozenset({128 + signal.SIGTERM, 128 + signal.SIGKILL})
"""What bubblewrap ends with where a signal has ended the command in it."""
ProcessId = Annotated[str, "The id that process_start returned."]
_ENDED = {"id": "string", "status": "string", "exit_code": "integer", "signal": "string"}


@slotted
class Managed:
    """A process of the run, running or ended; `changed` is replaced whenever something happens."""

    id: str
    command: str
    args: tuple[str, ...]
    cwd: str
    supervised: Supervised
    stdin: PipeWriter | None
    started_at: str
    began: float
    ring: OutputRing
    channels: Channels
    told: int = 0
    """The offset up to which followers have the output."""
    ended: float | None = None
    exit_code: int | None = None
    changed: anyio.Event | None = None
    over: anyio.Event = field(default_factory=anyio.Event)
    is_stopped: bool = False
    """Whether a call ends it."""

    @property
    def status(self) -> str:
        """`running` or `exited`."""
        return "running" if self.ended is None else "exited"

    @property
    def signal(self) -> str | None:
        code = self.exit_code
        if code is None or code >= 0:
            return None
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def tell(self) -> None:
        """Wake whoever waits for output or for the end, and tell those who follow it."""
        channel = f"process:{self.id}"
        if not self.channels.is_followed(channel):
            self.told = self.ring.total
        while self.told < self.ring.total:
            new = self.ring.text(self.told, _READ)
            about: JsonObject = {"id": self.id, "output": new.text, "next": new.next}
            self.channels.publish(channel, "output", about)
            self.told = new.next
        if self.changed is not None:
            self.changed.set()
            self.changed = None

    async def change(self) -> None:
        if self.changed is None:
            self.changed = anyio.Event()
        await self.changed.wait()


@slotted
class ProcState:
    """The processes of a run by their ids, in the order in which they were started."""

    commands: PackCommands
    most: int
    tasks: TaskGroup
    secrets: Secrets | None
    channels: Channels
    processes: dict[str, Managed] = field(default_factory=dict)
    starting: int = 0

    def get(self, id: str) -> Managed:
        """The process with an id.

        Raises:
            PackError: there is none.
        """
        process = self.processes.get(id)
        if process is None:
            known = ", ".join(self.processes) or "none was started"
            raise PackError("not_found", f"there is no process `{id}`; there are: {known}", id=id)
        return process


@asynccontextmanager
async def _open(context: PackContext) -> AsyncGenerator[ProcState]:
    options = context.options
    assert isinstance(options, ProcOptions)
    async with open_commands(context, options) as commands:
        services = context.services
        state = ProcState(
            commands, options.most, services.tasks, services.run_secrets, services.channels
        )
        try:
            yield state
        finally:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as ending:
                    for process in state.processes.values():
                        ending.start_soon(_stop, process, _GRACE)


@tool(
    _STARTS,
    result={
        "id": "string",
        "pid": "integer",
        "command": "string",
        "args": "array",
        "cwd": "string",
        "started_at": "string",
        "sandbox": "string",
    },
    codes=(*COMMAND_CODES, "limit"),
    older_parameters={"dir": "cwd"},
)
async def process_start(
    state: ProcState,
    command: str,
    args: list[str] | None = None,
    cwd: str = ".",
    env: list[str] | None = None,
) -> Answer:
    """Starts a background process.

    No shell reads the command. The process runs until it ends, is stopped, or the run ends.

    Args:
        command: The program: a name in PATH, or a path.
        args: Its arguments.
        cwd: The folder below the root in which it runs.
        env: Variables for it, each as `NAME=value`.
    """
    argv = (command, *(args or ()))
    if not command.strip() or any("\0" in word for word in argv):
        raise PackError("bad_arguments", "`command` is empty, or a word has a NUL in it")
    extra = _variables(env or ())
    running = sum(process.ended is None for process in state.processes.values())
    if running + state.starting >= state.most:
        message = f"{state.most} processes are running, and no more may; stop one first"
        raise PackError("limit", message)
    state.starting += 1
    try:
        process = await _start_process(state, argv, cwd, extra)
    finally:
        state.starting -= 1
    data: dict[str, JsonValue] = {
        "id": process.id,
        "pid": process.supervised.pid,
        "command": command,
        "args": list(process.args),
        "cwd": process.cwd,
        "started_at": process.started_at,
        "sandbox": await state.commands.sandbox(),
    }
    text = (
        f"started {process.id} (pid {process.supervised.pid}); process_output shows what it prints"
    )
    return Answer(text, data)


@tool(_ENDS, result=_ENDED, codes=("not_found",))
async def process_stop(state: ProcState, id: ProcessId, grace_seconds: int = 5) -> Answer:
    """Stops a process tree: SIGTERM, then SIGKILL.

    It is no failure if the process has ended already.

    Args:
        grace_seconds: After how many seconds the rest is killed, up to 60.
    """
    process = state.get(id)
    left = CALL_DEADLINE.get() - anyio.current_time() - _FOR_KILLING
    await _stop(process, min(max(grace_seconds, 0), LONGEST_GRACE, max(left, 0)))
    return _end_answer(process)


@tool(_ENDS, result=_ENDED, codes=("not_found",))
async def process_kill(state: ProcState, id: ProcessId) -> Answer:
    """Kills a process tree.

    It is no failure if the process has ended already.
    """
    process = state.get(id)
    await _stop(process, 0)
    return _end_answer(process)


@tool(
    READS,
    result={"processes": "array", "total": "integer"},
    rows={
        "processes": {
            "id": "string",
            "command": "string",
            "args": "array",
            "cwd": "string",
            "status": "string",
            "pid": "integer",
            "exit_code": "integer",
            "started_at": "string",
            "seconds": "number",
        }
    },
)
async def process_list(state: ProcState, running_only: bool = False) -> Answer:  # ruff: ignore[unused-async, boolean-type-hint-positional-argument, boolean-default-value-positional-argument] - a tool's signature is its schema
    """Lists the processes of this run.

    Args:
        running_only: Whether processes that have ended are left out.
    """
    listed = [one for one in state.processes.values() if one.ended is None or not running_only]
    rows: list[JsonValue] = [_row(process) for process in listed]
    lines = [_line(process) for process in listed]
    none = "no process is running" if running_only else "no process was started"
    return Answer("\n".join(lines) or none, {"processes": rows, "total": len(rows)})


@tool(
    READS,
    result={
        "id": "string",
        "output": "string",
        "next": "integer",
        "dropped": "integer",
        "status": "string",
        "exit_code": "integer",
        "found": "boolean",
    },
    codes=("not_found",),
)
async def process_output(
    state: ProcState,
    id: ProcessId,
    since: int = 0,
    tail: int | None = None,
    wait_seconds: int = 0,
    wait_for: str = "",
) -> Answer:
    """Output of a process from an offset on.

    The last mebibyte is kept. Lines `[stderr]` and `[stdout]` say where the stream changes.

    Args:
        since: The offset in bytes: 0, or `next` of an earlier result.
        tail: Only so many last lines of it.
        wait_seconds: How long to wait for new output, or for `wait_for`, up to 30.
        wait_for: An exact text to wait for; looked for from `since` on.
    """
    process = state.get(id)
    since = max(since, 0)
    left = CALL_DEADLINE.get() - anyio.current_time()
    with anyio.move_on_after(min(max(wait_seconds, 0), LONGEST_WAIT, max(left - 1, 0))):
        while not _is_awaited(process, since, wait_for) and process.ended is None:
            await process.change()
    ring = process.ring
    start = since if tail is None else ring.line_start(tail, since)
    shown = ring.text(start, max(room() - _LEFT_FOR_WORDS, _LEFT_FOR_WORDS))
    found = _is_awaited(process, since, wait_for) if wait_for else None
    dropped = ring.text(since, 0).dropped
    data: dict[str, JsonValue] = {
        "id": process.id,
        "output": shown.text,
        "next": shown.next,
        "dropped": dropped,
        "status": process.status,
        "exit_code": process.exit_code,
        "found": found,
    }
    words = [f"[{process.id}: {_state_of(process)}; next: {shown.next}]"]
    if dropped:
        words.append(f"[{dropped:,} bytes after offset {since} are gone]")
    if shown.next < ring.total:
        words.append(f"[{ring.total - shown.next:,} bytes more: continue with since={shown.next}]")
    if found is not None:
        words.append(f"[`wait_for` was {'' if found else 'not '}found]")
    return Answer("\n".join([*([shown.text.rstrip("\n")] if shown.text else []), *words]), data)


@tool(
    _SPEAKS,
    result={"id": "string", "written": "integer", "closed": "boolean"},
    codes=("not_found", "timeout"),
)
async def process_input(
    state: ProcState,
    id: ProcessId,
    input: str = "",  # ruff: ignore[builtin-argument-shadowing] - the parameter of the tool
    close: bool = False,  # ruff: ignore[boolean-type-hint-positional-argument, boolean-default-value-positional-argument] - a tool's signature is its schema
) -> Answer:
    """Writes to a process's standard input.

    No newline is added.

    Args:
        input: The text, up to 64 KiB.
        close: Whether the input ends after it.
    """
    process = state.get(id)
    data = input.encode("utf-8", "surrogatepass")
    if len(data) > INPUT_LIMIT:
        raise PackError("bad_arguments", f"`input` has more than {INPUT_LIMIT:,} bytes")
    if data and process.stdin is None:
        raise PackError("failed", f"the standard input of `{id}` is closed")
    written = 0
    try:
        with anyio.fail_after(INPUT_SECONDS):
            while written < len(data) and process.stdin is not None:
                piece = data[written : written + _ATOMIC]
                await process.stdin.write(piece)
                written += len(piece)
    except TimeoutError:
        message = f"`{id}` did not read: {written:,} of {len(data):,} bytes were written"
        raise PackError("timeout", message, written=written) from None
    except BrokenPipeError:
        _close_input(process)
        message = f"`{id}` does not read any more: {written:,} of {len(data):,} bytes were written"
        raise PackError("failed", message, written=written) from None
    if close:
        _close_input(process)
    closed = process.stdin is None
    text = f"wrote {written:,} bytes" + (", and the input is closed" if closed else "")
    return Answer(text, {"id": id, "written": written, "closed": closed})


def _variables(env: Sequence[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for entry in env:
        name, equals, value = entry.partition("=")
        if not equals or "\0" in value:
            raise PackError("bad_arguments", f"`{name}` in `env` is not `NAME=value`")
        if refusal := refusal_of(name):
            raise PackError("bad_arguments", f"`env`: {refusal}")
        variables[name] = value
    return variables


async def _start_process(
    state: ProcState, argv: tuple[str, ...], cwd: str, extra: dict[str, str]
) -> Managed:
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        ends: list[tuple[int, int]] = []
        for reverse in (True, False, False):
            reading, writing = os.pipe()
            mine, other = (writing, reading) if reverse else (reading, writing)
            ours.callback(os.close, mine)
            theirs.callback(os.close, other)
            ends.append((mine, other))
        (stdin, child_in), (out, child_out), (err, child_err) = ends
        supervised = await state.commands.start(argv, cwd, (child_in, child_out, child_err), extra)
        ours.pop_all()
    process = Managed(
        id=f"p{state.channels.number('process')}",
        command=argv[0],
        args=argv[1:],
        cwd="/".join(segments_of(cwd)) or ".",
        supervised=supervised,
        stdin=PipeWriter(stdin),
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        began=time.monotonic(),
        ring=OutputRing(secrets=state.secrets),
        channels=state.channels,
    )
    state.processes[process.id] = process
    _forget_oldest(state)
    state.tasks.start_soon(_live, state.commands, process, _reader(out), _reader(err))
    return process


def _reader(descriptor: int) -> PipeReader:
    enlarge_pipe(descriptor, _PIPE_SIZE)
    return PipeReader(descriptor)


async def _live(commands: PackCommands, process: Managed, out: PipeReader, err: PipeReader) -> None:
    """Keep the output of a process until it ends, then end what it left behind."""
    code = -int(signal.SIGKILL)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_gather, process, "stdout", out)
            tasks.start_soon(_gather, process, "stderr", err)
            code = await process.supervised.wait()
            if (
                process.is_stopped
                and commands.kind == "bubblewrap"
                and code in _ENDED_IN_BUBBLEWRAP
            ):
                code = 128 - code
            with anyio.move_on_after(_LINGER):  # its last words
                await process.supervised.wait_until_gone()
            await process.supervised.stop(0)
            with anyio.move_on_after(_LINGER):
                while not (out.at_end and err.at_end):
                    await process.change()
            tasks.cancel_scope.cancel()
    finally:
        await process.supervised.stop(_GRACE)  # after a cancellation; else it has ended
        out.close()
        err.close()
        _close_input(process)
        process.exit_code, process.ended = code, time.monotonic()
        process.over.set()
        process.tell()
        process.channels.publish(f"process:{process.id}", "exited", _end_row(process))
        await commands.find_created_files(process.supervised)


async def _gather(process: Managed, stream: Stream, reader: PipeReader) -> None:
    while chunk := await reader.read(_READ):
        process.ring.add(stream, chunk)
        process.tell()
    process.ring.end(stream)
    process.tell()


async def _stop(process: Managed, grace: float) -> None:
    if process.ended is None:
        process.is_stopped = True
        await process.supervised.stop(grace)
        await process.over.wait()


def _close_input(process: Managed) -> None:
    stdin, process.stdin = process.stdin, None
    if stdin is not None:
        stdin.close()


def _forget_oldest(state: ProcState) -> None:
    ended = [process.id for process in state.processes.values() if process.ended is not None]
    for id in ended[: max(len(ended) - _MOST_ENDED, 0)]:
        del state.processes[id]


def _is_awaited(process: Managed, since: int, wait_for: str) -> bool:
    if wait_for:
        return process.ring.has(wait_for.encode("utf-8", "surrogatepass"), since)
    return process.ring.total > since


def _state_of(process: Managed) -> str:
    if process.ended is None:
        return "running"
    return f"ended by {process.signal}" if process.signal else f"exit code {process.exit_code}"


def _end_row(process: Managed) -> JsonObject:
    return {
        "id": process.id,
        "status": process.status,
        "exit_code": process.exit_code,
        "signal": process.signal,
    }


def _end_answer(process: Managed) -> Answer:
    return Answer(f"{process.id}: {_state_of(process)}", _end_row(process))


def _row(process: Managed) -> JsonValue:
    until = time.monotonic() if process.ended is None else process.ended
    return {
        "id": process.id,
        "command": process.command,
        "args": list(process.args),
        "cwd": process.cwd,
        "status": process.status,
        "pid": process.supervised.pid,
        "exit_code": process.exit_code,
        "started_at": process.started_at,
        "seconds": round(until - process.began, 3),
    }


def _line(process: Managed) -> str:
    words = " ".join((process.command, *process.args))
    return f"{process.id}  {_state_of(process)}  {words}"


PACK = Pack(
    tools=(process_start, process_stop, process_kill, process_list, process_output, process_input),
    root="needed",
    lifespan=_open,
    options=ProcOptions,
)
