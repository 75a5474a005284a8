"""Workflow commands of our own: `::error …::…` and `::add-mask::…` (B11, B13).

A stranger's text in them is data and stays data: what ends a line, a property or a command is
written as the runner's parser reads it.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from typing import TextIO

from aish.core.events import AnnotationLevel
from aish.core.frozen import frozen
from aish.core.text import for_terminal
from aish.system.secrets.secrets import Secrets

_LONGEST = 4000


@frozen
class Spot:
    """A place in a file of the repository; lines and columns count from 1."""

    file: str
    line: int | None = None
    column: int | None = None
    end_line: int | None = None


def annotation(level: AnnotationLevel, title: str, message: str, spot: Spot | None) -> str:
    """A line that makes the runner show `message` beside the place it is about."""
    properties = {"title": title}
    if spot is not None:
        numbers = {"line": spot.line, "endLine": spot.end_line, "col": spot.column}
        known = {name: str(number) for name, number in numbers.items() if number is not None}
        properties = {"file": spot.file, **known, **properties}
    told = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {told}::{_data(_shown(message))}"


def in_github(environ: Mapping[str, str]) -> bool:
    """Whether this is a step of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def mask_commands(secrets: Secrets) -> Iterator[str]:
    """The lines that make the runner mask each secret in whatever the job prints."""
    return (f"::add-mask::{_data(value)}" for value in secrets.plain())


def goes_to_the_runner(stream: TextIO) -> bool:
    """Whether a stream is a pipe of its own, as the runner gives each of a step's two.

    A file would keep what is written to it, and so would whatever reads `2>&1 |`.
    """
    try:
        status = os.fstat(stream.fileno())
        other = os.fstat(1)
    except (OSError, ValueError):
        return False
    same = (status.st_dev, status.st_ino) == (other.st_dev, other.st_ino)
    return stat.S_ISFIFO(status.st_mode) and not same


def _shown(text: str) -> str:
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return for_terminal(cut)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(_shown(text)).replace(":", "%3A").replace(",", "%2C")
