"""`aish control open RUN`: prints a link to the page of a live run."""

import os
from contextlib import ExitStack
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.options import AskingArgument, Option, PastRunDirOption
from aish.cli.printer import print_text
from aish.control.live_run import link_to_page
from aish.core.errors import UsageError
from aish.features.approvals.pending import find_asking


def command(
    run: AskingArgument = "latest",
    *,
    token_env: Annotated[
        str | None,
        Option(
            "--token-env NAME",
            "The environment variable with a token of `control.tokens`, if the file has any.",
        ),
    ] = None,
    run_dir: PastRunDirOption = None,
) -> int:
    """Print a link to the page of a live run.

    The run has to listen on a port: `aish run FILE --control 127.0.0.1:0`.

    Example: aish control open latest
    """
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
