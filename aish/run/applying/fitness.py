"""Whether staged calls still mean what was reviewed: the same servers, the same tools (B16, P8).

Asked of the file before a server is started, and of the servers before a call is made.
"""

from collections.abc import Iterable, Iterator, Mapping

from aish.config.pipeline import Pipeline
from aish.core.errors import ExitCode, LockDiffersError
from aish.core.frozen import frozen
from aish.core.tools import Tool
from aish.engine.plan.lock.diff import summary
from aish.engine.plan.lock.file import lock_of
from aish.engine.plan.lock.pins import known_tool, locked_tool_named, pin_now
from aish.policy.decide import forbidden
from aish.policy.lock import address_difference
from aish.policy.rules import Policy
from aish.run.staging.call import StagedCall, pins_of
from aish.system.secrets.secrets import Secrets

_AGAIN = "run the pipeline again, so that what is called now is staged and reviewed"


@frozen
class Against:
    """Something that stands against a call, and how `aish apply` ends by it."""

    text: str
    code: ExitCode


def address_problem(call: StagedCall, pipeline: Pipeline | None, secrets: Secrets) -> str | None:
    """In what a call's server is another than it was staged for."""
    if pipeline is None:
        return f"the step `{call.home}` does not run a sub-pipeline any more"
    now = pins_of(pipeline, secrets)
    alias = call.name.server
    if alias not in now:
        return f"there is no server `{alias}` in {pipeline.file}"
    there = now[alias]
    if call.server is None or there is None:
        return None if call.server is there else f"`{alias}` is not what it was"
    if call.server.is_at(there):
        return None
    return summary(address_difference(alias, call.server, there)).replace(
        "as it was locked", "the one that the call was staged for"
    )


def require_addresses(
    calls: Iterable[StagedCall], homes: Mapping[str, Pipeline], secrets: Secrets
) -> None:
    """Refuse calls whose server is another now, before any is started.

    Raises:
        LockDiffersError: names the call and the difference.
    """
    for call in calls:
        if problem := address_problem(call, homes.get(call.home), secrets):
            raise _differs(call, problem)


def require_definition(call: StagedCall, tool: Tool | None, secrets: Secrets) -> Tool:
    """The tool of a call, if its server says of it what it said when the call was staged.

    Raises:
        LockDiffersError: it does not, or has no such tool.
    """
    if tool is None:
        raise _differs(call, f"no server offers the tool `{call.name}`")
    if pin_now(tool, secrets).sha256 != call.definition:
        said = f"the tool `{call.name}` is not described as it was when the call was staged"
        raise _differs(call, said)
    return tool


def expected_problems(
    call: StagedCall, pipeline: Pipeline | None, policy: Policy, secrets: Secrets
) -> Iterator[Against]:
    """What stands against a call as far as no server is asked."""
    problem = address_problem(call, pipeline, secrets)
    if pipeline is None or problem:
        yield Against(problem or "", ExitCode.LOCK)
        return
    lock = lock_of(pipeline)
    tool = known_tool(call.name, pipeline, lock)
    locked = None if lock is None else locked_tool_named(call.name, pipeline, lock)
    if locked is not None and pin_now(locked, secrets).sha256 != call.definition:
        said = f"the lock has `{call.name}` otherwise than the call was staged with"
        yield Against(said, ExitCode.LOCK)
    unknown = Tool(name=call.name, wire=str(call.name), description="", input_schema={})
    if ruling := forbidden(policy, tool or unknown, call.arguments):
        yield Against(f"denied: {ruling.reason}", ExitCode.DENIED)


def _differs(call: StagedCall, problem: str) -> LockDiffersError:
    return LockDiffersError(problem, where=f"staged call `{call.id}`", hint=_AGAIN)
