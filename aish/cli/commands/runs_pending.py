"""`aish runs pending`: the tool calls that wait for an answer, as a table and as JSON.

Names of tools, steps and items are untrusted text (X2, X3).
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.options import Argument, PastRunDirOption, Report, ReportOption, VerboseOption
from aish.cli.printer import print_json, print_text, table_lines
from aish.core.events import plain
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.features.approvals.answer import LEAST_DIGITS
from aish.features.approvals.pending import (
    RunQuestions,
    find_asking,
    open_hub_stores,
    pending_hubs,
    pending_runs,
    questions_of,
)
from aish.features.approvals.questions import ApprovalQuestion
from aish.features.history.run_store import open_stores, sessions_elsewhere

_HEAD = ("run", "call", "where", "tool", "asked (UTC)", "open until (UTC)")
_LEFT_OUT_FIRST = ("asked (UTC)", "where", "open until (UTC)")
_LONGEST_NAME = 39
_SECONDS = len("2026-11-21T19:01:38")


def table(questions: Sequence[ApprovalQuestion], width: int | None = None) -> Iterator[str]:
    """A line for each open question, below a header."""
    rows = (_cells(one, questions) for one in questions)
    return table_lines(_HEAD, rows, width, left_out_first=_LEFT_OUT_FIRST)


def _cells(question: ApprovalQuestion, questions: Sequence[ApprovalQuestion]) -> tuple[str, ...]:
    return (
        question.run,
        _short_id(question, questions),
        _name(" · ".join(part for part in (question.step, question.item) if part)),
        _name(question.tool),
        _time(question.asked),
        "" if question.expires is None else _time(question.expires),
    )


def _short_id(question: ApprovalQuestion, questions: Sequence[ApprovalQuestion]) -> str:
    """The shortest beginning of the id that names the question."""
    others = [one.id for one in questions if one.run == question.run and one.id != question.id]
    size = LEAST_DIGITS
    while any(id.startswith(question.id[:size]) for id in others):
        size += 1
    return question.id[:size]


def _name(text: str) -> str:
    return shorten(for_line(text), _LONGEST_NAME)


def _time(time: str) -> str:
    return for_line(time[:_SECONDS].replace("T", " "))


def _found(
    run_dir: Path | None, run: str | None, now: float, stack: ExitStack
) -> Iterator[RunQuestions]:
    if run is None:
        yield from pending_runs(open_stores(run_dir, stack), now)
        yield from pending_hubs(open_hub_stores(run_dir, stack), now)
        return
    store, id = find_asking(run_dir, run, stack)
    yield RunQuestions(store, id, questions_of(store, id, now))


def command(
    run: Annotated[
        str | None,
        Argument(
            metavar="[RUN]",
            help="Only this run or server: its id, the end of its id, or `latest`.",
            completes="run_ids",
        ),
    ] = None,
    *,
    run_dir: PastRunDirOption = None,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """List the tool calls that wait for an answer.

    Example: aish runs pending
    """
    del verbose
    now = time.time()
    with ExitStack() as stack:
        found = list(_found(run_dir, run, now, stack))
        hint = None if run_dir else sessions_elsewhere(open_stores(run_dir, stack))
    questions = [one for each in found for one in each.questions]
    pending = sorted((one for one in questions if one.is_open), key=lambda one: one.asked)
    if format_ is Report.JSON:
        decided = [one for one in questions if not one.is_open]
        print_json({"v": 1, "pending": plain(tuple(pending)), "decided": plain(tuple(decided))})
    elif pending:
        width = get_terminal_size().columns if sys.stdout.isatty() else None
        print_text("\n".join(table(pending, width)))
        say("hint: `aish approve RUN CALL` shows a call and asks about it")
    else:
        say("no call waits for an answer" + (f"; {hint}" if hint else ""))
    for each in found:
        if each.problem is not None:
            say(f"warning: {each.problem}")
    return 0
