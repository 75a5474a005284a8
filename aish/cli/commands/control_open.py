"""`aish control open RUN`: prints a link to the page of a live run (A2)."""

import os
from contextlib import ExitStack
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.options import Argument, Option, PastRunDirOption, VerboseOption
from aish.cli.printer import print_text
from aish.core.errors import UsageError
from aish.features.approvals.pending import find_asking
from aish.features.control.live_run import link_to_page


def command(
    run: Annotated[
        str,
        Argument(
            metavar="RUN",
            help="The run or server: its id, the end of its id, or `latest`.",
            completes="run_ids",
        ),
    ] = "latest",
    *,
    token_env: Annotated[
        str | None,
        Option(
            "--token-env",
            metavar="NAME",
            help="The environment variable with a token of `control.tokens`, if the file has any.",
        ),
    ] = None,
    run_dir: PastRunDirOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Print a link to the page of a live run.

    The run has to listen on a port: `aish run FILE --control 127.0.0.1:0`.

    Example: aish control open latest
    """
    del verbose
    token = None
    if token_env is not None:
        token = os.environ.get(token_env)
        if not token:
            raise UsageError(f"`{token_env}` is not set", where="--token-env")
    with ExitStack() as stack:
        store, id = find_asking(run_dir, run, stack)
        link = link_to_page(store, id, token)
    print_text(link)
    say("note: the link can be used once, within a minute")
    return 0
