"""Local commands through a cassette: the command and its result.

Imported only by runs that have a cassette.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

import anyio

from aish.cassettes.format.edits import json_bytes
from aish.cassettes.format.interaction import CassetteMissError, Request, Response
from aish.cassettes.record.recorder import LEFT, CassetteRecorder
from aish.core.json import JsonObject
from aish.core.tools import ToolResult
from aish.engine.resources.toolbox import exit_result, not_started
from aish.system.process.child import CUT_OFF, CommandResult

_VERB = "EXEC"


async def record_or_replay(
    recorder: CassetteRecorder,
    step: str,
    arguments: JsonObject,
    run: Callable[[JsonObject], Awaitable[ToolResult]],
) -> ToolResult:
    """The result of a command, recorded or replayed; `run` executes it.

    Raises:
        CassetteMissError: the cassette does not hold this command.
    """
    request = Request(_VERB, f"exec://{step}", body=json_bytes(arguments))
    try:
        held = recorder.recorded("exec", request)
    except CassetteMissError:
        if not recorder.rules.lenient:
            raise
        return not_started("the cassette has no such call")
    if held is not None:
        return await _play(held, paced=recorder.rules.paced)
    take = recorder.begin("exec", request)
    if take is None:
        return await run(arguments)
    try:
        result = await run(arguments)
    except BaseException:
        for cut_off in CUT_OFF.get() or ():
            take.chunk(json_bytes(_output_so_far(cut_off)))
        take.end(broken=LEFT)
        raise
    take.chunk(json_bytes(_result_to_json(result)))
    take.end()
    return result


def _output_so_far(result: CommandResult) -> JsonObject:
    """The output of a command until it was ended."""
    out, err = (text.decode("utf-8", "replace") for text in (result.stdout, result.stderr))
    return {"exit_code": result.exit_code, "stdout": out, "stderr": err}


def _result_to_json(result: ToolResult) -> JsonObject:
    """All parts of a result."""
    if isinstance(result.structured, Mapping):
        return result.structured
    return {"error": result.content}


async def _play(held: Response, *, paced: bool) -> ToolResult:
    if held.broken == LEFT:
        await _never(held)
    if paced and held.chunks:
        await anyio.sleep(held.chunks[-1].seconds)
    try:
        body = json.loads(held.body)
        if "error" in body:
            return not_started(str(body["error"]))
        return exit_result(int(body["exit_code"]), str(body["stdout"]), str(body["stderr"]))
    except (ValueError, TypeError, LookupError):
        return not_started("the cassette has no answer to this")


async def _never(held: Response) -> NoReturn:
    """The recorded run was ended here, and so is this one: by its limit, or by the user.

    The output until then is stored as for a real command.
    """
    try:
        await anyio.sleep_forever()
    finally:
        left = CUT_OFF.get()
        if left is not None and held.body:
            left.append(_cut_off(held.body))
    raise AssertionError("nothing wakes it")


def _cut_off(body: bytes) -> CommandResult:
    try:
        found = json.loads(body)
        out, err = (str(found[name]).encode("utf-8", "replace") for name in ("stdout", "stderr"))
        return CommandResult(int(found["exit_code"]), out, err, timed_out=True)
    except (ValueError, TypeError, LookupError):
        return CommandResult(-1, b"", b"", timed_out=True)
