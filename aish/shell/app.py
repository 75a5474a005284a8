"""`aish shell` from its options to its exit: shows the prompt first, then prepares the session."""

import gc
from contextlib import ExitStack
from importlib import import_module

import anyio
from anyio import to_thread

from aish.config.model import Pipeline
from aish.core.events import Exit
from aish.engine.plan.options import RunOptions
from aish.shell.cancellation import Interrupts
from aish.shell.input.typeahead import TypeaheadLines
from aish.shell.prepared_session import (
    PreparedSession,
    SessionOptions,
    prepare_session,
    session_plan,
)
from aish.shell.resource_group import background_task
from aish.system.secrets.secrets import Secrets


def run_shell(pipeline: Pipeline, options: RunOptions, wanted: SessionOptions) -> Exit:
    """Run a session on `pipeline`, and any session that `:resume` switches to after it.

    In an unattended session the exit code is the most severe of all sessions.
    """
    plan = session_plan(pipeline, options, Secrets())
    resume, lines = wanted.resume, None
    ends: list[Exit] = []
    while True:
        with ExitStack() as stack:
            prepared = prepare_session(plan, options, wanted, resume, stack, lines)
            # Existing objects are kept for good; the garbage collector handles what the session
            # creates.
            gc.freeze()
            gc.enable()
            end, resume = anyio.run(_session, prepared)
            lines = prepared.lines
        ends.append(end)
        if resume is None:
            # A person has seen how the earlier parts ended.
            if wanted.output.attended or len(ends) == 1:
                return ends[-1]
            from aish.engine.final import weightiest

            return weightiest(ends)


async def _session(prepared: PreparedSession) -> tuple[Exit, str | None]:
    lines = TypeaheadLines(prepared.lines)
    interrupts = Interrupts(
        attended=prepared.output.attended, restore=lines.restore, forget=lines.forget
    )
    with interrupts.handle_signals():
        end, resume = await _hold(prepared, lines, interrupts)
    # A signal ends all sessions, also if it arrived while this one was closing.
    return end, resume if interrupts.code is None else None


async def _hold(
    prepared: PreparedSession, lines: TypeaheadLines, interrupts: Interrupts
) -> tuple[Exit, str | None]:
    if not prepared.output.attended:
        from aish.shell.bootstrap import hold_session

        return await hold_session(prepared, lines, interrupts)
    async with background_task(lines.begin):
        # In a thread, so that keys are echoed during the import.
        await to_thread.run_sync(import_module, "aish.shell.bootstrap")
        from aish.shell.bootstrap import hold_session

        return await hold_session(prepared, lines, interrupts)
