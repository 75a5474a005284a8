"""`aish runs open ID`."""

from contextlib import ExitStack

from aish.cli.boundary import say
from aish.cli.options import PastRunDirOption, RunArgument
from aish.cli.printer import print_text
from aish.core.errors import UsageError
from aish.core.text import for_line
from aish.features.history.run_store import find_run, open_stores
from aish.features.history.summary import events, require_past
from aish.reports.make import PAGE_NAME, ReportFiles, make_reports
from aish.system.browser import open_browser


def command(id: RunArgument = "latest", *, run_dir: PastRunDirOption = None) -> int:
    """Write the HTML page of a past run into its folder, and open it in a browser.

    Prints the path of the page.

    Example: aish runs open latest
    """
    with ExitStack() as stack:
        store, run = find_run(open_stores(run_dir, stack), id)
        journal = require_past(store, run, stack)
        page = store.path / run / PAGE_NAME
        try:
            make_reports(events(journal.reading), run, ReportFiles(html=page, shared=False))
        except OSError as error:
            message = f"cannot write the report: {error.strerror}"
            raise UsageError(message, where=str(error.filename)) from error
    print_text(for_line(str(page)))
    if not open_browser(page.resolve().as_uri()):
        say("note: there is no browser that could open it")
    return 0
