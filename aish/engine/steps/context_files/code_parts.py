"""Definitions and skeletons of files, by the readers of the packs `py` and `c`.

They parse untrusted text, so they run in the worker process of the run.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from aish.config.model import ContextFile
from aish.core.frozen import frozen
from aish.engine.plan.validation.context_files import language_of
from aish.engine.steps.context_files.slices import LineSpan
from aish.packs.catalogue import PACKS
from aish.packs.installed_libraries import is_installed
from aish.packs.pack_error import PackError
from aish.packs.parse_worker import ParseWorker


@frozen
class CodePart:
    """The text of a part, and its lines."""

    text: str
    span: LineSpan


async def code_part(worker: ParseWorker, entry: ContextFile, data: bytes, text: str) -> CodePart:
    """The definitions of `entry.name` in a file, or the file's skeleton.

    Raises:
        PackError: there is no such definition, or the file cannot be parsed.
    """
    path = PurePosixPath(entry.path)
    kind = language_of(entry.path)
    assert kind, "validation knows the languages"
    options: dict[str, Any]
    if kind == "python":
        pack, module, call = "py", "aish.packs.py.readers", "definition"
        options = {"path": str(path)}
    else:
        pack, module, call = "c", "aish.packs.c.c_symbols", "definitions"
        options = {"language": kind}
        data = text.encode("utf-8", "replace")
    if not is_installed(*PACKS[pack].needs):
        grammars = {"py": "grammar of Python", "c": "grammars of C"}[pack]
        message = f"`context.files` needs the {grammars}: pip install 'aish-pipelines[{pack}]'"
        raise PackError("not_installed", message)
    if entry.name is None:
        result = await worker.run(f"{module}:skeleton", data, **options)
        return CodePart(str(result["skeleton"]), LineSpan(1, 1))
    options |= {"name": entry.name, "line": None}
    result = await worker.run(f"{module}:{call}", data, **options)
    return _join(result["definitions"])


def _join(rows: list[Mapping[str, Any]]) -> CodePart:
    """All definitions of the name: overloads, setters, branches of `#ifdef`."""
    text = "\n\n".join(str(row["source"]).removesuffix("\n") for row in rows)
    lines = [(int(row["start_line"]), int(row["end_line"])) for row in rows]
    return CodePart(
        text, LineSpan(min(first for first, _ in lines), max(last for _, last in lines) + 1)
    )
