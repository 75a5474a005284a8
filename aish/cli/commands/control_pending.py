"""`aish control pending`: serves the questions of paused runs, on a page and by API."""

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import anyio

from aish.cli.boundary import say
from aish.cli.commands.approve import resume_words
from aish.cli.options import Option, PastRunDirOption
from aish.cli.printer import print_text
from aish.core.errors import ExitCode
from aish.core.phrases import counted
from aish.features.control.live_process import live_process
from aish.features.control.paused_runs import PausedQuestion, find_questions, serve_questions
from aish.features.history.run_store import open_stores
from aish.net.listen.addresses import Exposure
from aish.system.clock import SystemClock


def command(
    *,
    listen: Annotated[
        list[str] | None,
        Option(
            "--listen ADDRESS", "unix:PATH or HOST:PORT; may be repeated.  [default: 127.0.0.1:0]"
        ),
    ] = None,
    resume: Annotated[
        bool, Option("--resume", "Then resume the runs whose questions were answered.")
    ] = False,
    run_dir: PastRunDirOption = None,
) -> int:
    """Serve the questions of paused runs until they are answered.

    They are served on a page and over the control API, as by a live run. Prints a link to the page.

    Example: aish control pending --resume
    """
    codes: list[int] = []
    served = 0
    with ExitStack() as stack:
        stores = open_stores(run_dir, stack)
        while questions := find_questions(stores):
            served += len(questions)
            addresses = listen or ("127.0.0.1:0",)
            announce = partial(_announce, questions)
            ended = anyio.run(
                serve_questions, questions, addresses, Exposure(), SystemClock(), announce
            )
            if ended is not ExitCode.OK or not resume:
                return int(ended)
            codes += _resume_each(questions)
    if not served:
        say("no call of a paused run waits for an answer")
    return max(codes, default=int(ExitCode.OK))


def _announce(questions: Sequence[PausedQuestion], address: str, link: str | None) -> None:
    runs = len({paused.question.run for paused in questions})
    what = f"{counted(len(questions), 'question')} of {counted(runs, 'paused run')}"
    say(f"serving {what} at {address}")
    if link is not None:
        print_text(link)
        say("note: the link can be used once, within a minute")


def _resume_each(questions: Sequence[PausedQuestion]) -> Iterator[int]:
    """The exit codes of the runs, resumed one after the other; one that pauses again has none."""
    for id, store in {paused.question.run: paused.store for paused in questions}.items():
        if live_process(store, id)[0]:
            continue  # somebody else has resumed it
        words = resume_words(store, id)
        if "FILE" in words:
            say(f"warning: the file of run {id} is not known: `{shlex.join(words)}` continues it")
            yield int(ExitCode.USAGE)
            continue
        code = subprocess.run([sys.executable, "-m", *words], check=False).returncode
        if code != ExitCode.PAUSED:
            yield code
