"""`:export`: the session as a pipeline that CI can run."""

import os
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.shell.command import ShellCommand
from aish.shell.session import ShellSession


async def _export(session: ShellSession, rest: str) -> None:
    # Imports for recording and testing, which few sessions need.
    from aish.shell.export.write import export

    if not rest:
        raise UsageError("`:export FILE` is the form", hint="for example `:export triage.yaml`")
    path = Path(os.path.expanduser(rest))  # ruff: ignore[os-path-expanduser, blocking-path-method-in-async-function] - looked up at once
    if path.suffix not in {".yaml", ".yml"}:
        named = path.with_suffix(".yaml") if path.name not in {"", ".."} else "session.yaml"
        raise UsageError("a pipeline file ends in `.yaml`", hint=f"`:export {named}`")
    done = await export(session, path)
    for note in done.notes:
        session.show(for_line(f"note: {note}"))
    session.show(
        for_line(
            f"{done.file} has {counted(done.steps, 'question')} and {counted(done.rules, 'rule')};"
            f" its cassette is {done.cassette}, and `aish test {done.file}` accepts it"
        )
    )


EXPORT = ShellCommand(
    "export FILE",
    "writes the session as a pipeline with a cassette and its narrowest rules",
    _export,
    details="Each question is a step that continues the conversation, each local command whose\n"
    "output went along is a `run` step, and the rules approve the calls that were made and no\n"
    "others. It is replayed and tested before the file is written.",
    completes="path",
)
