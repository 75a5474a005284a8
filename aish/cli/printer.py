"""Output of commands on stdout; untrusted text cannot control terminal or CI runner.

Also: long texts shortened for reading, and secrets registered with GitHub's runner before anything
else is printed.
"""

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TextIO

from aish.cli.boundary import lose_output, say
from aish.core.json import JsonValue, json_text
from aish.core.text import for_ci_log, safe_utf8
from aish.system.secrets.secrets import Secrets


def print_json(value: JsonValue) -> None:
    write_text(f"{json_text(value, indent=2)}\n")


def print_text(text: str) -> None:
    """Print whole lines."""
    write_text(f"{for_ci_log(text)}\n")


def write_text(text: str) -> None:
    """Write to stdout at once, as UTF-8 regardless of the locale."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(safe_utf8(text).encode())
        sys.stdout.buffer.flush()
    except OSError as error:
        lose_output(error)


def write_line(out: TextIO, text: str) -> None:
    """Write to stdout or stderr at once; ignore it if that is impossible."""
    try:
        out.write(text)
        out.flush()
    except OSError as error:
        if out is not sys.stderr:
            lose_output(error)


def table_lines(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int | None = None,
    *,
    right: Collection[str] = (),
    left_out_first: Sequence[str] = (),
) -> Iterator[str]:
    """A line for each row, below a header; a narrow screen omits some columns.

    The columns in `right` are aligned to the right.
    """
    columns = {
        name: (name, *column) for name, column in zip(head, zip(*rows, strict=True), strict=True)
    }
    widths = {name: max(map(len, column)) for name, column in columns.items()}
    for name in left_out_first:
        if width is not None and sum(widths.values()) + 2 * (len(widths) - 1) > width:
            del columns[name], widths[name]
    for row in zip(*columns.values(), strict=True):
        cells = (
            cell.rjust(widths[name]) if name in right else cell.ljust(widths[name])
            for name, cell in zip(columns, row, strict=True)
        )
        yield for_ci_log("  ".join(cells).rstrip())


_LINES = 12
_LETTERS = 2_000


def lines_to_show(text: str, *, full: bool, indent: str = "  ") -> Iterator[str]:
    """The lines of untrusted text, sanitized; with `full` all of them."""
    text = text.removesuffix("\n")
    part = text if full else _start_of(text)
    for line in part.split("\n"):
        yield for_ci_log(f"{indent}{line}").rstrip()
    if len(part) < len(text):
        yield f"{indent}… {_rest_text(text[len(part) :])}; `--full` shows all"


def _start_of(text: str) -> str:
    lines = text[: _LETTERS + 1].split("\n")
    if len(lines) > _LINES:
        return "\n".join(lines[:_LINES])
    return text[:_LETTERS]


def _rest_text(rest: str) -> str:
    lines = rest.strip("\n").count("\n") + 1
    letters = f"{len(rest)} more characters"
    return f"{letters} in {lines} lines" if lines > 1 else letters


def register_masks(secrets: Secrets, *, quiet: bool = False) -> None:
    """In GitHub Actions, let the runner mask the secrets in all output of the job.

    Our own output has none of them; this is for all other steps. If stderr may be captured by
    anything besides the runner, nothing is registered: a mask contains the secret itself.
    """
    if os.environ.get("GITHUB_ACTIONS") != "true" or not secrets:
        return
    from aish.reports.github.commands import goes_to_the_runner, mask_commands

    if not goes_to_the_runner(sys.stderr):
        if not quiet:
            say("warning: stderr is redirected, so GitHub is not told what to mask")
        return
    # A runner that has closed the output reads nothing more.
    with suppress(OSError):
        sys.stderr.write("".join(f"{line}\n" for line in mask_commands(secrets)))
        sys.stderr.flush()
