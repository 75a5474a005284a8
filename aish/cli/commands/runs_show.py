"""`aish runs show ID`."""

import sys
from contextlib import ExitStack, closing, suppress
from typing import Annotated

import typer

from aish.cli.options import PastRunDirOption, Report, ReportOption, VerboseOption
from aish.run.past.shelf import Shelf, open_shelves
from aish.run.past.telling import events, find, open_past
from aish.sinks.items.file import open_items_file
from aish.sinks.plain import Plain
from aish.sinks.result import Fold, result_pieces
from aish.vocab.events import RunFinished


def command(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="The run: its id, the end of its id, or `latest`.")
    ],
    *,
    run_dir: PastRunDirOption = None,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Print the log or the result of a past run, from its journal.

    Example: aish runs show latest
    """
    del verbose
    # The parser would end with 1 for a reader that wanted no more (`| head`).
    with suppress(BrokenPipeError), ExitStack() as stack:
        shelf, found = find(open_shelves(run_dir, stack), id)
        if format_ is Report.JSON:
            _print_result(shelf, found, stack)
        else:
            _print_log(shelf, found, stack)
    return 0


def _print_log(shelf: Shelf, id: str, stack: ExitStack) -> None:
    journal = open_past(shelf, id, stack)
    log = Plain(sys.stdout)
    end: RunFinished | None = None
    for stamped in events(journal.reading):
        end = stamped.event if isinstance(stamped.event, RunFinished) else None
        log(stamped)
    if end is not None:
        return
    if (who := journal.writer(end)) is not None:
        typer.echo(f"still running: {who} writes the journal")
    else:
        typer.echo("interrupted: the journal has no end")


def _print_result(shelf: Shelf, id: str, stack: ExitStack) -> None:
    journal = open_past(shelf, id, stack)
    fold = Fold(id)
    items = stack.enter_context(closing(open_items_file(None)))
    end: RunFinished | None = None
    for stamped in events(journal.reading):
        fold.take(stamped)
        items(stamped)
        end = stamped.event if isinstance(stamped.event, RunFinished) else None
    if end is None:
        found = fold.so_far(journal.state(end), str(shelf.path / id))
    else:
        found = fold.result(end)
    for piece in result_pieces(found, items):
        typer.echo(piece, nl=False)
