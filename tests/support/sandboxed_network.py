"""A command under bubblewrap whose network reaches listed destinations only, through our relay."""

import os
import shutil
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from aish.core.frozen import frozen
from aish.net.address_guard import Resolve, system_addresses
from aish.net.destinations import RESOLV_CONF, SandboxNetwork, parse_destination, resolve_network
from aish.net.sandbox_relay import Refusal, SandboxRelay
from aish.system.process.child import CommandResult, follow
from aish.system.process.supervisor import Command, Supervised, Supervisor

SECONDS = 60.0


@frozen
class Sandbox:
    """A command that runs in the network `network`, and what it asked for in vain."""

    process: Supervised
    network: SandboxNetwork
    refused: list[tuple[str, Refusal]]
    told: anyio.Event
    """There is one."""


def bubblewrap_words(folder: Path, network: SandboxNetwork) -> list[str]:
    """The words of bubblewrap for such a network; else nothing is confined."""
    program = shutil.which("bwrap")
    assert program is not None
    words = [program, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for name, text in (("hosts", network.hosts), ("resolv.conf", RESOLV_CONF)):
        (folder / name).write_text(text, "ascii")
        words += ["--ro-bind", str(folder / name), str(Path("/etc", name).resolve())]
    return [*words, "--unshare-pid", "--unshare-net", "--die-with-parent", "--cap-drop", "ALL"]


@asynccontextmanager
async def sandbox_of(
    argv: Sequence[str],
    folder: Path,
    *listed: str,
    streams: tuple[int, int, int],
    resolve: Resolve = system_addresses,
    supervisor: Supervisor | None = None,
) -> AsyncGenerator[Sandbox]:
    """Start a command; its relay is served until the end of the block."""
    network = await resolve_network([parse_destination(text) for text in listed], resolve)
    words = [*bubblewrap_words(folder, network), "--", *argv]
    env = {"PATH": os.environ["PATH"]}
    async with AsyncExitStack() as stack:
        place = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, place)
        if supervisor is None:
            supervisor = Supervisor()
            stack.callback(supervisor.close)
        command = Command(words, env, wrapped=True, sockets=network.sockets)
        process = await supervisor.start(command, folder=place, streams=streams)
        stack.push_async_callback(process.stop, 0)
        refused: list[tuple[str, Refusal]] = []
        told = anyio.Event()

        def on_refused(name: str, why: Refusal) -> None:
            refused.append((name, why))
            told.set()

        relay = SandboxRelay(network, process.sockets, on_refused, resolve=resolve)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(relay.serve)
        yield Sandbox(process, network, refused, told)


async def result_in_sandbox(
    code: str, folder: Path, *listed: str, resolve: Resolve = system_addresses
) -> tuple[CommandResult, list[tuple[str, Refusal]]]:
    """The result of a Python program in such a sandbox, and what it asked for in vain."""
    argv = [sys.executable, "-I", "-S", "-c", code]
    return await command_in_sandbox(argv, folder, *listed, resolve=resolve)


async def command_in_sandbox(
    argv: Sequence[str], folder: Path, *listed: str, resolve: Resolve = system_addresses
) -> tuple[CommandResult, list[tuple[str, Refusal]]]:
    async with AsyncExitStack() as stack:
        refused: list[tuple[str, Refusal]] = []

        async def start(streams: tuple[int, int, int]) -> Supervised:
            nonlocal refused
            sandbox = await stack.enter_async_context(
                sandbox_of(argv, folder, *listed, streams=streams, resolve=resolve)
            )
            refused = sandbox.refused
            return sandbox.process

        result = await follow(start, timeout=SECONDS, limit_bytes=1_000_000)
        return result, refused
