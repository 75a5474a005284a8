"""A small model in a child process: llama.cpp's server on a free loopback port.

It receives few tools: those that the prompt names, else the first.
"""

import json
import os
import re
import secrets
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import anyio

from aish.config.model import ModelEntry
from aish.core.errors import UnavailableError
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.messages import StreamNotice, UserTurn
from aish.core.protocols import ModelRequest
from aish.core.text import for_line
from aish.core.tools import Tool
from aish.models import smollm2
from aish.system.process.child import Child, child_environment, start_child
from aish.system.process.reaper import Reaper

READY_SECONDS = 60.0
CONTEXT_TOKENS = 8192
_GRACE = 2.0
_LAST_WORDS_SECONDS = 10.0
_MAGIC = b"GGUF"
_ANSWER_CAP = 64 * 1024
_SERVER = Path(__file__).with_name("embedded_server.py")
_INSTALL = "pip install 'aish-pipelines[local]'"


@frozen
class Embedded:
    """A running model; `entry` is the file's, with `base_url` filled in."""

    base_url: str
    key: str
    entry: ModelEntry
    pid: int


@asynccontextmanager
async def start_embedded(
    entry: ModelEntry, *, reaper: Reaper | None, folder: Path | None
) -> AsyncGenerator[Embedded]:
    """Start the model of an `embedded` entry, and stop it at the end.

    The output of llama.cpp is written to `model-ALIAS.log` in `folder`, if there is one.

    Raises:
        UnavailableError: a dependency is missing, or the model file is invalid.
    """
    where = f"model `{entry.alias}`"
    path = model_file(entry)
    if find_spec("xllamacpp") is None:
        raise UnavailableError("llama.cpp is not installed", where=where, hint=_INSTALL)
    key = secrets.token_urlsafe(24)
    log = folder / f"model-{entry.alias}.log" if folder is not None else None
    try:
        # If a library waits by spinning, a busy machine is ten times slower.
        quiet: dict[str, str | None] = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
        variables: dict[str, str | None] = {"PYTHONPATH": None, "LD_LIBRARY_PATH": None}
        child = await start_child(
            # -P: do not import from the current folder.
            [sys.executable, "-P", str(_SERVER)],
            cwd="/",
            env=child_environment(quiet | variables, os.environ),
            reaper=reaper,
            stderr_to=log,
        )
    except OSError as error:
        raise UnavailableError(f"cannot start a process: {error}", where=where) from error
    try:
        address = await _address(child, entry, path, key, log)
        base_url = f"{address}/v1"
        yield Embedded(base_url, key, replace(entry, base_url=base_url), child.pid)
    finally:
        await child.stop(_GRACE)


def model_file(entry: ModelEntry) -> Path:
    """The `.gguf` file that `embedded` names.

    Raises:
        UnavailableError: it is missing, or is not a model file.
    """
    where = f"model `{entry.alias}`"
    if entry.embedded == smollm2.NAME:
        # The file inside the package, which is located without importing it
        spec = find_spec(smollm2.PACKAGE)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in sorted(Path(folder).glob("*.gguf")):
                return path
        raise UnavailableError(
            f"the model file of `{smollm2.NAME}` is not installed",
            where=where,
            hint=f"{_INSTALL} && {smollm2.INSTALL}",
        )
    path = Path(entry.embedded or "")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UnavailableError(f"cannot read the model file `{path}`: {why}", where=where) from None
    if magic != _MAGIC:
        raise UnavailableError(
            f"`{path}` is not a GGUF file",
            where=where,
            hint="`embedded` takes `smollm2`, or the path of a `.gguf`",
        )
    return path


async def _address(child: Child, entry: ModelEntry, path: Path, key: str, log: Path | None) -> str:
    """Send the child its settings and wait for its address."""
    ours = entry.embedded == smollm2.NAME
    settings: dict[str, JsonValue] = {
        "path": str(path),
        "model": entry.model or smollm2.NAME,
        "key": key,
        "context": CONTEXT_TOKENS,
        "seed": 1,
        "template": smollm2.TEMPLATE.read_text(encoding="utf-8") if ours else None,
    }
    answer = bytearray()
    with anyio.move_on_after(READY_SECONDS) as patience:
        with suppress(BrokenPipeError):
            await child.write(json.dumps(settings).encode() + b"\n")
        while not answer.endswith(b"\n") and len(answer) < _ANSWER_CAP:
            if not (chunk := await child.read()):
                break
            answer += chunk
    if patience.cancelled_caught:
        raise _start_error(child, entry, log, f"it was not ready within {READY_SECONDS:g} s")
    if not answer:
        raise _start_error(child, entry, log, "its process ended")
    reply = json.loads(answer)
    if "address" not in reply:
        # The error messages of llama.cpp are written before the child ends.
        with anyio.move_on_after(_LAST_WORDS_SECONDS):
            await child.wait()
        raise _start_error(child, entry, log, str(reply.get("error")))
    return str(reply["address"])


def _start_error(child: Child, entry: ModelEntry, log: Path | None, why: str) -> UnavailableError:
    """The error with the first error message of llama.cpp."""
    errors = [line for line in child.stderr_excerpt.splitlines() if " E " in line[:24]]
    first = f": {errors[0].split(' E ', 1)[1].strip()}" if errors else ""
    return UnavailableError(
        f"the embedded model did not start: {why}{first}",
        where=f"model `{entry.alias}`",
        hint=f"the whole log is in `{log}`" if log is not None else None,
    )


_WORD = re.compile(r"[A-Za-z0-9_-]+")


def fewer_tools(request: ModelRequest, most: int) -> tuple[Tool, ...]:
    """A limited number of the tools of a request."""
    turns = reversed(request.history.turns)
    prompt = next((turn.text for turn in turns if isinstance(turn, UserTurn)), "")
    words = {*_WORD.findall(prompt), request.tool_choice}
    named = [tool for tool in request.tools if {tool.wire, str(tool.name), tool.name.name} & words]
    return tuple((named or request.tools)[:most])


def notice_of(alias: str, tools: Sequence[Tool], shown: Sequence[Tool]) -> StreamNotice:
    """The notice that not all of the tools are sent, and what to do about it."""
    names = ", ".join(f"`{for_line(str(tool.name))}`" for tool in shown)
    message = f"{len(tools):,} tools are too many for `{alias}`, which gets {names}"
    return StreamNotice("fewer_tools", f"{message}; name those it needs under `tools:`")
