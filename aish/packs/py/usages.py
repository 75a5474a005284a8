"""`py_find_usages`: where a name is used, in a file or below a folder (K36)."""

from typing import Annotated, Literal

import anyio

from aish.core.json import JsonValue
from aish.core.normal_form import compatible_form
from aish.core.text import for_line
from aish.packs.framework.pack import PARSE_CODES, PATH_CODES, READS, Bounds, tool
from aish.packs.installed_libraries import is_installed
from aish.packs.pack_error import PackError
from aish.packs.py.python_files import (
    SECONDS,
    PythonFile,
    PythonFiles,
    ask_child,
    batches,
    fitting,
    read_python_files,
)
from aish.packs.tool_results import Answer
from aish.packs.workspace.workspace import Workspace

MOST_HITS = 5_000
_HIT = {"path": "string", "line": "integer", "column": "integer", "text": "string"}


@tool(
    READS,
    codes=(*PATH_CODES, *PARSE_CODES, "not_installed"),
    result={"hits": "array", "files": "integer", "skipped": "integer", "truncated": "boolean"},
    rows={"hits": _HIT},
)
async def py_find_usages(
    place: Workspace,
    path: str,
    name: str,
    line: int | None = None,
    mode: Literal["identifier", "text", "semantic"] = "identifier",
    limit: Annotated[int, Bounds(1, MOST_HITS)] = 200,
) -> Answer:
    """Finds where a name is used in Python code: each place with path, line, column and the line.

    `identifier` finds the name, or dotted names such as `os.path`, wherever it is a token: not in
    strings and comments, but in the fields of f-strings. `text` finds an exact text anywhere.
    `semantic` finds what means the same as the first definition of the name: it follows imports
    and types, and leaves out other things of that name.

    Args:
        place: the root folder
        path: the file or folder to look in, from the root folder; what `.gitignore` files exclude
            is left out
        name: the name; for `semantic` dotted as in `Class.method`
        line: for `semantic` a line of the definition, where the file has several
        mode: how to look
        limit: the most places to return, up to 5,000
    """
    if mode == "text":
        if not name:
            raise PackError("bad_arguments", "`name` is empty")
    elif not all(part.isidentifier() for part in name.split(".")):
        message = "`name` is not a Python name; the mode `text` looks for any text"
        raise PackError("bad_arguments", message)
    if mode == "semantic" and not is_installed("jedi"):
        raise PackError(
            "not_installed",
            "the mode `semantic` needs `jedi`, which is not installed: "
            "pip install 'aish-pipelines[semantic]'",
        )
    deadline = anyio.current_time() + SECONDS
    found = await read_python_files(place, path)
    if mode == "semantic":
        hits, is_cut = await _semantic(place, found, name, line, limit, deadline)
    else:
        hits, is_cut = await _literal(place, found, name, mode, limit, deadline)
    return _answer(found, hits, name, is_cut=is_cut)


Hits = list[tuple[str, list[int | str]]]


async def _literal(
    place: Workspace, found: PythonFiles, name: str, mode: str, limit: int, deadline: float
) -> tuple[Hits, bool]:
    """The places of a name or a text in order, and whether there may be more."""
    candidates = await anyio.to_thread.run_sync(_containing, found.files, name, mode)
    hits: Hits = []
    for batch in batches(candidates):
        rows = await ask_child(
            place,
            "aish.packs.py.code_text:usages",
            found,
            batch,
            deadline,
            name=name,
            mode=mode,
            # One more tells whether there are more.
            limit=limit + 1 - len(hits),
        )
        for file, places in rows:
            hits.extend((file.path, each) for each in places)
        if len(hits) > limit:
            return hits[:limit], True
        if found.stopped:
            break
    return hits, bool(found.stopped)


def _containing(files: list[PythonFile], name: str, mode: str) -> list[PythonFile]:
    """The files whose bytes have the name: nearly all others need not be parsed."""
    if not name.isascii():
        return [file for file in files if not file.data.isascii()]
    parts = [name.encode()] if mode == "text" else [part.encode() for part in name.split(".")]
    if b"\n" in parts[0]:
        return files
    return [
        file
        for file in files
        if all(part in file.data for part in parts)
        or (mode != "text" and not file.data.isascii() and _has_another_form(file.data, name))
    ]


def _has_another_form(data: bytes, name: str) -> bool:
    """Tell if the name is there in letters that Python takes for the same, such as wide ones."""
    return name.rpartition(".")[2] in compatible_form(data.decode("utf-8", "ignore"))


async def _semantic(
    place: Workspace,
    found: PythonFiles,
    name: str,
    line: int | None,
    limit: int,
    deadline: float,
) -> tuple[Hits, bool]:
    """What jedi says that the first definition of the name is used by."""
    left = max(deadline - anyio.current_time(), 1.0)
    # It ends by itself shortly before it would be killed, with what it has found.
    most_seconds = max(left - 2.0, 0.5)
    paths: list[JsonValue] = [file.path for file in found.files]
    answer = await place.worker.run(
        "aish.packs.py.jedi_usages:references",
        *(file.data for file in found.files),
        seconds=left,
        takes_long=True,
        paths=paths,
        name=name,
        line=line,
        limit=limit,
        most_seconds=most_seconds,
    )
    hits: Hits = [(row[0], row[1:]) for row in answer["hits"]]
    if not answer["in_time"]:
        found.stopped = found.stopped or f"after {most_seconds:.0f} seconds"
    return hits, bool(found.stopped) or answer["more"]


def _answer(found: PythonFiles, hits: Hits, name: str, *, is_cut: bool) -> Answer:
    lines = [f"{for_line(path)}:{line}:{column}: {text}" for path, (line, column, text) in hits]
    shown = fitting(lines)
    is_cut = is_cut or shown < len(lines)
    rows: list[JsonValue] = [
        {"path": path, "line": line, "column": column, "text": text}
        for path, (line, column, text) in hits[:shown]
    ]
    lines = lines[:shown] or [f"no usages of `{for_line(name)}` in {len(found.files)} files"]
    notes = [found.note] if found.note else []
    if found.stopped:
        notes.append("name a smaller `path`")
    elif is_cut:
        notes.append(f"cut after {shown} places; name a smaller `path`, or a larger `limit`")
    if notes:
        lines.append(f"[{'truncated: true; ' if is_cut else ''}{'; '.join(notes)}]")
    data: dict[str, JsonValue] = {
        "hits": rows,
        "files": len(found.files),
        "skipped": found.skipped,
        "truncated": is_cut,
    }
    return Answer("\n".join(lines), data)
