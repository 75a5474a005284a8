"""`:export`: the session as a pipeline that CI can run (S7)."""

from aish.errors import UsageError
from aish.shell.command import Command
from aish.shell.session import Session


async def _export(session: Session, rest: str) -> None:
    raise UsageError("later")


EXPORT = Command(
    "export",
    "FILE",
    "writes the session as a pipeline with a cassette and its narrowest rules",
    _export,
    completes="path",
)
