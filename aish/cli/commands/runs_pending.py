"""`aish runs pending`: the tool calls that wait for an answer, as a table and as JSON.

Names of tools, steps and items are untrusted text.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.options import Argument, PastRunDirOption, Report, ReportOption
from aish.cli.printer import print_json, print_text, table_lines
from aish.core.events import plain, rfc3339
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.features.approvals.answer import LEAST_DIGITS
from aish.features.approvals.hub_questions import hub_ids
from aish.features.approvals.pending import (
    RunQuestions,
    find_asking,
    hubs_with_questions,
    open_hub_stores,
    read_run,
    runs_with_questions,
)
from aish.features.approvals.questions import ApprovalQuestion
from aish.features.history.run_store import newest_first, open_stores, sessions_elsewhere
from aish.journal.batches import RecordedBatch

_HEAD = ("run", "call", "where", "tool", "asked (UTC)", "open until (UTC)")
_BATCH_HEAD = ("run", "batch", "model", "requests", "submitted (UTC)", "ends by (UTC)")
_LEFT_OUT_FIRST = ("asked (UTC)", "where", "open until (UTC)")
_LONGEST_NAME = 39
_SECONDS = len("2026-11-21T19:01:38")


def table(questions: Sequence[ApprovalQuestion], width: int | None = None) -> Iterator[str]:
    rows = (_cells(question, questions) for question in questions)
    return table_lines(_HEAD, rows, width, left_out_first=_LEFT_OUT_FIRST)


def _cells(question: ApprovalQuestion, questions: Sequence[ApprovalQuestion]) -> tuple[str, ...]:
    others = [one.id for one in questions if one.run == question.run and one.id != question.id]
    # The shortest beginning that names the question.
    size = LEAST_DIGITS
    while any(id.startswith(question.id[:size]) for id in others):
        size += 1
    return (
        question.run,
        question.id[:size],
        _name(" · ".join(part for part in (question.step, question.item) if part)),
        _name(question.tool),
        _time(question.asked),
        "" if question.expires is None else _time(question.expires),
    )


def _name(text: str) -> str:
    return shorten(for_line(text), _LONGEST_NAME)


def _time(time: str) -> str:
    return for_line(time[:_SECONDS].replace("T", " "))


def _find_questions(
    run_dir: Path | None, run: str | None, now: float, stack: ExitStack
) -> Iterator[RunQuestions]:
    if run is None:
        yield from runs_with_questions(open_stores(run_dir, stack), now)
        yield from hubs_with_questions(open_hub_stores(run_dir, stack), now)
        return
    store, id = find_asking(run_dir, run, stack)
    yield read_run(store, id, now)


def _batch_lines(groups: Sequence[RunQuestions], width: int | None) -> Iterator[str]:
    rows = (
        (
            group.id,
            _name(batch.id or "(unknown)"),
            _name(batch.model),
            f"{len(batch.requests):,}",
            _time(rfc3339(batch.began)),
            "" if batch.ends is None else _time(batch.ends),
        )
        for group in groups
        for batch in group.batches
    )
    yield from table_lines(_BATCH_HEAD, rows, width, left_out_first=("submitted (UTC)", "model"))


def _batch_json(run: str, batch: RecordedBatch) -> JsonValue:
    return {
        "run": run,
        "model": batch.model,
        "batch": batch.number,
        "id": batch.id,
        "requests": batch.size,
        "left": len(batch.requests),
        "submitted": rfc3339(batch.began),
        "ends": batch.ends,
    }


def command(
    run: Annotated[
        str | None,
        Argument(
            "[RUN]",
            "Only this run or server: its id, or its end; `latest`: the newest run or only server.",
            completes="run_ids",
        ),
    ] = None,
    *,
    run_dir: PastRunDirOption = None,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """List the tool calls that wait for an answer, and open batches.

    Example: aish runs pending
    """
    now = time.time()
    with ExitStack() as stack:
        groups = list(_find_questions(run_dir, run, now, stack))
        stores = open_stores(run_dir, stack)
        hint = None if run_dir else sessions_elsewhere(stores)
        if not (hint or newest_first(stores) or any(map(hub_ids, open_hub_stores(run_dir, stack)))):
            hint = "there is no run or server here, and `--run-dir DIR` looks into another folder"
    questions = [question for group in groups for question in group.questions]
    pending = sorted((one for one in questions if one.is_open), key=lambda question: question.asked)
    if output_format is Report.JSON:
        decided = [question for question in questions if not question.is_open]
        batches = [_batch_json(one.id, batch) for one in groups for batch in one.batches]
        lists: JsonObject = {"pending": plain(tuple(pending)), "decided": plain(tuple(decided))}
        print_json({"v": 1, **lists, "batches": batches})
    elif pending or any(group.batches for group in groups):
        width = get_terminal_size().columns if sys.stdout.isatty() else None
        if pending:
            print_text("\n".join(table(pending, width)))
            say("hint: `aish approve RUN CALL` shows a call and asks about it")
        if any(group.batches for group in groups):
            print_text("\n".join(_batch_lines(groups, width)))
            say("hint: `aish run FILE --resume RUN` collects what has ended")
    else:
        say("no call waits for an answer" + (f"; {hint}" if hint else ""))
    for group in groups:
        if group.problem is not None:
            say(f"warning: {group.problem}")
    return 0
