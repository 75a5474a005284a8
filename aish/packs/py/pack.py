"""The pack `py`: reads and changes Python code by symbol.

The code is parsed in the worker process: `readers` and `code_edits` run there.
"""

from collections.abc import Mapping
from itertools import starmap
from typing import Annotated, Any, Literal

import anyio.to_thread

from aish.core.text import for_line
from aish.packs.framework.pack import (
    CHANGES,
    FILE_CHANGE,
    OUTLINE_ROW,
    PARSE_CODES,
    PATH_CODES,
    READS,
    SIGNATURE_ROW,
    SOURCE_ROW,
    WRITE_CODES,
    ExpectedHash,
    Pack,
    tool,
)
from aish.packs.py.code_path import py_derive_code_path
from aish.packs.py.hierarchy import py_get_hierarchy
from aish.packs.py.python_files import check_is_python
from aish.packs.py.rename import py_rename
from aish.packs.py.usages import py_find_usages
from aish.packs.tool_results import (
    Answer,
    CodeRows,
    code_answer,
    head_that_fits,
    outline,
    pieces_of_code,
)
from aish.packs.workspace.atomic_write import Original
from aish.packs.workspace.confined_path import segments_of
from aish.packs.workspace.file_change import (
    FileChange,
    in_thread,
    read_existing,
    replace_file,
    replace_files,
)
from aish.packs.workspace.file_options import FilesOptions
from aish.packs.workspace.file_text import decode_text
from aish.packs.workspace.workspace import Workspace
from aish.packs.workspace.write_lock import lock_files

PythonPath = Annotated[str, "The Python file, relative to the root folder."]
Name = Annotated[str, "The dotted name, such as `function`, `Class.method` or `outer.inner`."]
Line = Annotated[int | None, "A line of the definition, where several have this name."]
Variable = Annotated[str, "The variable, such as `LIMIT`, or `Class.attribute`."]
AssignmentLine = Annotated[int | None, "A line of the assignment, where there are several."]
Anchor = Annotated[
    Literal["bottom", "top", "before", "after", "start_of", "end_of"],
    "Where it is put, if not at the top or bottom in relation to `anchor_symbol`.",
]
AnchorSymbol = Annotated[
    str | None, "The dotted name that it is put before, after, at the start or the end of."
]

_READ_CODES = (*PATH_CODES, *PARSE_CODES)
_EDIT_CODES = tuple(dict.fromkeys((*WRITE_CODES, *PARSE_CODES)))


@tool(
    READS,
    codes=_READ_CODES,
    result={"path": "string", "skeleton": "string", "broken": "array", "truncated": "boolean"},
)
async def py_get_skeleton(place: Workspace, path: PythonPath) -> Answer:
    """Returns a Python file with the bodies of its functions left out.

    Signatures, docstrings, decorators, imports, and the code of the module and its classes stay.
    """
    data = await _read(place, path, "skeleton")
    text = str(data["skeleton"])
    notes: list[str] = []
    head = head_that_fits(text)
    if len(head) < len(text):
        text = head[: head.rfind("\n") + 1] or head
        data |= {"skeleton": text, "truncated": True}
        notes.append(
            "truncated: true; py_get_code_outline lists the rest, py_get_signature and "
            "py_get_docstring show parts of it"
        )
    return code_answer(text, data, notes)


@tool(
    READS,
    codes=_READ_CODES,
    result={"path": "string", "items": "array", "broken": "array", "truncated": "boolean"},
    rows={"items": OUTLINE_ROW},
)
async def py_get_code_outline(place: Workspace, path: PythonPath) -> Answer:
    """Lists the classes, functions and methods of a Python file with their first and last lines."""
    data = await _read(place, path, "outline")
    return _answer_in_rows(outline(data["items"], "no classes or functions"), data, "items")


@tool(
    READS,
    codes=_READ_CODES,
    result={"path": "string", "definitions": "array"},
    rows={"definitions": SOURCE_ROW},
)
async def py_get_definition(
    place: Workspace, path: PythonPath, name: Name, line: Line = None
) -> Answer:
    """Returns the source of a class, function or method, with its decorators."""
    data = await _read(place, path, "definition", name=name, line=line)
    return _pieces(data, "definitions", "source")


@tool(
    READS,
    codes=_READ_CODES,
    result={"path": "string", "signatures": "array"},
    rows={"signatures": SIGNATURE_ROW},
)
async def py_get_signature(
    place: Workspace, path: PythonPath, name: Name, line: Line = None
) -> Answer:
    """Returns the signature of a class, function or method, up to its colon."""
    data = await _read(place, path, "signature", name=name, line=line)
    return _pieces(data, "signatures", "signature")


@tool(
    READS,
    codes=_READ_CODES,
    result={
        "path": "string",
        "docstring": "string",
        "start_line": "integer",
        "end_line": "integer",
    },
)
async def py_get_docstring(
    place: Workspace, path: PythonPath, name: str = "", line: Line = None
) -> Answer:
    """Returns the docstring of a Python module, class, function or method.

    Args:
        name: The dotted name of a class, function or method; empty for the module.
    """
    data = await _read(place, path, "docstring", name=name, line=line)
    text = data["docstring"]
    return code_answer("there is no docstring" if text is None else text, data)


@tool(
    READS,
    codes=_READ_CODES,
    result={
        "path": "string",
        "name": "string",
        "bases": "array",
        "docstring": "string",
        "methods": "array",
        "attributes": "array",
    },
    rows={
        "methods": {
            "name": "string",
            "kind": "string",
            "signature": "string",
            "start_line": "integer",
        },
        "attributes": {"name": "string", "source": "string", "start_line": "integer"},
    },
)
async def py_get_class_summary(
    place: Workspace, path: PythonPath, name: str, line: int | None = None
) -> Answer:
    """Describes a class: its bases, docstring, attributes and the signatures of its methods.

    Properties, setters, class methods and static methods are named as such.

    Args:
        name: The dotted name of the class.
        line: A line of the class, where several have this name.
    """
    data = await _read(place, path, "class_summary", name=name, line=line)
    bases = f"({', '.join(data['bases'])})" if data["bases"] else ""
    rows = [f"class {data['name']}{bases}"]
    if data["docstring"]:
        rows += [f"    {text}".rstrip() for text in data["docstring"].split("\n")]
    for part, key in (("attributes", "source"), ("methods", "signature")):
        if data[part]:
            rows += ["", f"{part}:"]
        for row in data[part]:
            kind = row.get("kind", "method")
            mark = "" if kind == "method" else f"{kind}: "
            rows.append(f"    {row['start_line']}: {mark}{row[key]}")
    return code_answer("\n".join(rows), data)


@tool(
    READS,
    codes=_READ_CODES,
    result={"path": "string", "declarations": "array"},
    rows={"declarations": SOURCE_ROW},
)
async def py_get_var_declaration(
    place: Workspace, path: PythonPath, name: Variable, line: AssignmentLine = None
) -> Answer:
    """Returns the assignments of a variable of a Python module or class."""
    data = await _read(place, path, "declaration", name=name, line=line)
    return _pieces(data, "declarations", "source")


@tool(
    READS,
    codes=_READ_CODES,
    result={"path": "string", "modules": "array", "items": "array"},
    rows={
        "items": {
            "module": "string",
            "name": "string",
            "alias": "string",
            "line": "integer",
            "level": "integer",
            "kind": "string",
        }
    },
)
async def py_get_imports(place: Workspace, path: PythonPath) -> Answer:
    """Lists what a Python file imports, within functions and conditions too."""
    data = await _read(place, path, "imports")
    rows = []
    for item in data["items"]:
        alias = f" as {item['alias']}" if item["alias"] else ""
        module = "." * item["level"] + item["module"]
        what = f"from {module} import {item['name']}" if item["name"] else f"import {module}"
        rows.append(f"{item['line']}: {what}{alias}")
    return code_answer("\n".join(rows) or "no imports", data)


@tool(
    READS,
    codes=(*PATH_CODES, "unsupported", "too_large", "too_slow"),
    result={"path": "string", "ok": "boolean", "errors": "array", "grammar": "string"},
    rows={"errors": {"line": "integer", "column": "integer", "message": "string"}},
)
async def py_check_syntax(place: Workspace, path: PythonPath) -> Answer:
    """Checks whether a Python file has syntax errors, without running it."""
    data = await _read(place, path, "syntax")
    newer = data.pop("newer")
    rows = [f"{error['line']}:{error['column']}: {error['message']}" for error in data["errors"]]
    rows.append(f"{'no' if data['ok'] else 'has'} syntax errors ({data['grammar']})")
    if newer:
        rows.append("tree-sitter reads it: it may be for another version of Python")
    return code_answer("\n".join(rows), data)


@tool(
    CHANGES,
    codes=(*_EDIT_CODES, "bad_content"),
    result=FILE_CHANGE,
    older_parameters={"new_content": "content"},
)
async def py_update_definition(
    place: Workspace,
    path: PythonPath,
    name: Name,
    content: str,
    line: Line = None,
    expect_sha256: ExpectedHash = None,
) -> Answer:
    """Replaces a class, function or method by a new definition of the same name.

    Content without decorators keeps the old ones. It is indented like the place it gets.

    Args:
        content: The whole new definition.
    """
    options: dict[str, Any] = {"name": name, "line": line, "content": content}
    return await _edit(place, path, expect_sha256, "update_definition", options)


@tool(
    CHANGES,
    codes=(*_EDIT_CODES, "bad_content"),
    result=FILE_CHANGE,
    older_parameters={"new_signature": "signature"},
)
async def py_set_signature(
    place: Workspace,
    path: PythonPath,
    name: Name,
    signature: str,
    line: Line = None,
    expect_sha256: ExpectedHash = None,
) -> Answer:
    """Replaces the signature of a function, method or class; body and decorators stay.

    Args:
        signature: The new signature with the same name, such as `def function(a, b=1) -> int`.
    """
    options: dict[str, Any] = {"name": name, "line": line, "content": signature}
    return await _edit(place, path, expect_sha256, "set_signature", options)


@tool(
    CHANGES,
    codes=(*_EDIT_CODES, "bad_content"),
    result=FILE_CHANGE,
    older_parameters={"new_declaration": "declaration"},
)
async def py_set_var_declaration(
    place: Workspace,
    path: PythonPath,
    name: Variable,
    declaration: str,
    line: AssignmentLine = None,
    expect_sha256: ExpectedHash = None,
) -> Answer:
    """Replaces the assignment of a variable of a Python module or class.

    Args:
        declaration: The new assignment, such as `LIMIT: int = 20`.
    """
    options: dict[str, Any] = {"name": name, "line": line, "content": declaration}
    return await _edit(place, path, expect_sha256, "set_declaration", options)


@tool(
    CHANGES,
    codes=(*_EDIT_CODES, "bad_content", "exists"),
    result=FILE_CHANGE,
    older_parameters={"new_content": "content"},
)
async def py_add_def(
    place: Workspace,
    path: PythonPath,
    name: str,
    content: str,
    anchor_type: Anchor = "bottom",
    anchor_symbol: AnchorSymbol = None,
    expect_sha256: ExpectedHash = None,
) -> Answer:
    """Adds a class, function or method to a Python file.

    `top` is after the imports, `bottom` at the end of the file, but before a last
    `if __name__ == "__main__":`. A name such as `Class.method` goes to the top or bottom of the
    class.

    Args:
        name: The name of what is added, which must be new.
        content: The whole definition. It is indented like the place it gets.
    """
    options: dict[str, Any] = {
        "name": name,
        "content": content,
        "anchor_type": anchor_type,
        "anchor_symbol": anchor_symbol,
    }
    return await _edit(place, path, expect_sha256, "add_definition", options)


@tool(CHANGES, codes=_EDIT_CODES, result=FILE_CHANGE)
async def py_remove_def(
    place: Workspace,
    path: PythonPath,
    name: Name,
    line: Line = None,
    expect_sha256: ExpectedHash = None,
) -> Answer:
    """Removes a class, function or method and the comments directly above it."""
    options: dict[str, Any] = {"name": name, "line": line}
    return await _edit(place, path, expect_sha256, "remove_definition", options)


@tool(
    CHANGES,
    codes=(*_EDIT_CODES, "exists"),
    result={
        "path": "string",
        "new_path": "string",
        "diffs": "object",
        "sha256": "object",
        "unbound": "array",
        "still_used": "array",
    },
    older_parameters={"src_path": "path", "dest_path": "new_path", "dest_name": "new_name"},
)
async def py_move_def(  # ruff: ignore[too-many-arguments] - the catalogue's
    place: Workspace,
    path: str,
    new_path: str,
    name: Name,
    new_name: str | None = None,
    anchor_type: Anchor = "bottom",
    anchor_symbol: AnchorSymbol = None,
    line: Line = None,
    expect_sha256: str | None = None,
) -> Answer:
    """Moves a class, function or method to another place or another Python file.

    Nothing else is changed: neither imports nor uses of it. `unbound` in the result has the names
    that it uses and that the other file does not have, `still_used` the lines of the first file
    that have its old name.

    Args:
        path: The Python file that has it, relative to the root folder.
        new_path: The Python file that gets it, which has to be there; the same for another place.
        new_name: The name that it gets, without dots.
        expect_sha256: The SHA-256 that the first file has to have now; with another one nothing is
            done.
    """
    paths = [path] if segments_of(path) == segments_of(new_path) else [path, new_path]
    async with lock_files(place, *paths):
        originals = [await in_thread(lambda: read_existing(place, path, expect_sha256))]
        if len(paths) > 1:
            originals.append(await in_thread(lambda: read_existing(place, new_path, None)))
        for file_path, original in zip(paths, originals, strict=True):
            check_is_python(file_path, original.content)
        result = await place.worker.run(
            "aish.packs.py.code_edits:move_definition",
            *(original.content for original in originals),
            path=path,
            new_path=new_path,
            name=name,
            line=line,
            new_name=new_name,
            anchor_type=anchor_type,
            anchor_symbol=anchor_symbol,
        )
        changes = list(starmap(_change, zip(paths, originals, result["changes"], strict=True)))
        # The other file first: if it all ends in between, the definition is there twice.
        await in_thread(lambda: replace_files(place, changes[::-1]))
        diffs = await in_thread(lambda: {change.path: change.diff for change in changes})
    text = f"moved `{for_line(name)}` from `{for_line(path)}` to `{for_line(new_path)}`\n"
    text += "".join(diff.text for diff in diffs.values())
    if any(diff.truncated for diff in diffs.values()):
        text += "[truncated: true; the change is longer than shown, file_read shows the files]\n"
    if result["unbound"]:
        text += f"`{for_line(new_path)}` does not bind: {', '.join(result['unbound'])}\n"
    if result["still_used"]:
        rows = "\n".join(map(for_line, result["still_used"]))
        text += f"`{for_line(path)}` still uses `{for_line(name)}`:\n{rows}"
    return Answer(
        text,
        {
            "path": path,
            "new_path": new_path,
            "diffs": {path: diff.text for path, diff in diffs.items()},
            "sha256": {change.path: change.sha256 for change in changes},
            "unbound": result["unbound"],
            "still_used": result["still_used"],
        },
    )


@tool(CHANGES, codes=(*WRITE_CODES, "out_of_range", "unsupported"), result=FILE_CHANGE)
async def py_region_wrap(
    place: Workspace,
    path: PythonPath,
    start_line: int,
    end_line: int,
    region_name: str,
    expect_sha256: ExpectedHash = None,
) -> Answer:
    """Puts the comments `# region NAME` and `# endregion NAME` around lines of a Python file.

    Args:
        start_line: The first line of the region; 1 is the first line of the file.
        end_line: The last line of the region.
        region_name: The name of the region.
    """
    options: dict[str, Any] = {
        "start_line": start_line,
        "end_line": end_line,
        "region_name": region_name,
    }
    return await _edit(place, path, expect_sha256, "wrap_region", options)


async def _read(place: Workspace, path: str, function: str, **options: Any) -> dict[str, Any]:
    content = await anyio.to_thread.run_sync(place.read_source, path, abandon_on_cancel=True)
    check_is_python(path, content)
    data = await place.worker.run(
        f"aish.packs.py.readers:{function}", content, path=path, **options
    )
    return {"path": path, **data}


async def _edit(
    place: Workspace, path: str, expected: str | None, function: str, options: Mapping[str, Any]
) -> Answer:
    """Change a file by a function of `code_edits`; no other change comes in between."""
    async with lock_files(place, path):
        original = await in_thread(lambda: read_existing(place, path, expected))
        check_is_python(path, original.content)
        part = await place.worker.run(
            f"aish.packs.py.code_edits:{function}", original.content, path=path, **options
        )
        return await replace_file(place, _change(path, original, part))


def _change(path: str, original: Original, part: dict[str, Any]) -> FileChange:
    """The new content of a file, of which the worker returns only the changed part."""
    old = original.content
    new = old[: part["before"]] + part["new"].encode("latin-1") + old[len(old) - part["after"] :]
    if part["texts"]:
        before, after = (text.replace("\r\n", "\n") for text in part["texts"])
        return FileChange(path, original, new, before, after, part["encoding"])
    before, _ = decode_text(old, path)
    after, spelling = decode_text(new, path)
    return FileChange(path, original, new, before, after, spelling.name)


def _pieces(data: dict[str, Any], rows: str, key: str) -> Answer:
    return _answer_in_rows(pieces_of_code(data[rows], key, "#"), data, rows)


def _answer_in_rows(listing: CodeRows, data: dict[str, Any], rows: str) -> Answer:
    data[rows] = listing.rows
    if listing.notes:
        data["truncated"] = True
    return code_answer(listing.text, data, listing.notes)


PACK = Pack(
    tools=(
        py_get_skeleton,
        py_get_code_outline,
        py_get_definition,
        py_get_signature,
        py_get_docstring,
        py_get_class_summary,
        py_get_var_declaration,
        py_get_imports,
        py_check_syntax,
        py_find_usages,
        py_get_hierarchy,
        py_derive_code_path,
        py_update_definition,
        py_set_signature,
        py_set_var_declaration,
        py_add_def,
        py_remove_def,
        py_move_def,
        py_rename,
        py_region_wrap,
    ),
    reads="files",
    options=FilesOptions,
)
