"""Secrets made known to GitHub's runner, before anything else is printed (B13)."""

import os
import sys
from contextlib import suppress

from aish.cli.boundary import say
from aish.system.secrets.secrets import Secrets


def register_masks(secrets: Secrets, *, quiet: bool = False) -> None:
    """In GitHub Actions, let the runner mask the secrets in whatever the job prints.

    What we print ourselves has none of them in it; this is for all other steps. Where stderr may
    be kept by something besides the runner nothing is registered: a mask is the secret itself.
    """
    if os.environ.get("GITHUB_ACTIONS") != "true" or not secrets:
        return
    from aish.reports.github.commands import goes_to_the_runner, mask_commands

    if not goes_to_the_runner(sys.stderr):
        if not quiet:
            say("warning: stderr is redirected, so GitHub is not told what to mask")
        return
    # A runner that has gone reads nothing more.
    with suppress(OSError):
        sys.stderr.write("".join(f"{line}\n" for line in mask_commands(secrets)))
        sys.stderr.flush()
