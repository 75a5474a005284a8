"""The tools of the pack `c` (K39 to K42): files in, results out.

Code is parsed in the child process, by `c_symbols`; this module reads, writes and cuts.
"""

import os
from collections.abc import Sequence
from typing import Any, Literal

import anyio.to_thread

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
    Older,
    Pack,
    tool,
)
from aish.packs.pack_error import PackError
from aish.packs.parse_worker import LARGEST_SOURCE
from aish.packs.tool_results import (
    Answer,
    count_that_fits,
    does_not_parse,
    outline,
    pieces_of_code,
)
from aish.packs.workspace.confined_path import not_found
from aish.packs.workspace.file_change import Draft, finish, in_thread, read
from aish.packs.workspace.file_text import check_fits, decoded, in_lines_of, plain_text
from aish.packs.workspace.languages import language_of
from aish.packs.workspace.workspace import Workspace
from aish.packs.workspace.write_lock import writing

Language = Literal["auto", "c", "cpp"]

_SYMBOLS = "aish.packs.c.c_symbols"
_READS = (*PATH_CODES, *PARSE_CODES)


def _older(name: str, **rename: str) -> dict[str, Older]:
    return {
        f"ts_{language}_{name}": Older(rename=rename, set={"language": language})
        for language in ("c", "cpp")
    }


@tool(
    READS,
    codes=_READS,
    result={
        "path": "string",
        "language": "string",
        "skeleton": "string",
        "broken": "array",
        "truncated": "boolean",
    },
    older=_older("get_skeleton"),
)
async def c_get_skeleton(place: Workspace, path: str, language: Language = "auto") -> Answer:
    """Returns a C or C++ file with the bodies of its functions left out.

    Signatures, types, comments and directives stay, long initializers and macros are left out.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        language: `c`, `cpp`, or `auto` for what the name of the file says.
    """
    found = await _parsed(place, path, language, "skeleton")
    lines = str(found["skeleton"]).split("\n")
    count = count_that_fits(lines)
    text = "\n".join(lines[:count])
    notes = []
    if count < len(lines):
        notes.append(
            f"truncated: true, {count:,} of {len(lines):,} lines; c_get_code_outline is shorter"
        )
    data = {
        "path": path,
        "language": found["language"],
        "skeleton": text,
        "broken": found["broken"],
        "truncated": count < len(lines),
    }
    return _answer(text, data, notes)


@tool(
    READS,
    codes=_READS,
    result={
        "path": "string",
        "language": "string",
        "items": "array",
        "broken": "array",
        "truncated": "boolean",
    },
    rows={"items": OUTLINE_ROW},
    older=_older("get_code_outline"),
)
async def c_get_code_outline(place: Workspace, path: str, language: Language = "auto") -> Answer:
    """Lists the types and functions of a C or C++ file with their first and last lines.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        language: `c`, `cpp`, or `auto` for what the name of the file says.
    """
    found = await _parsed(place, path, language, "outline")
    shown = outline(found["items"], "no types or functions")
    data = {
        "path": path,
        "language": found["language"],
        "items": shown.rows,
        "broken": found["broken"],
        "truncated": bool(shown.notes),
    }
    return _answer(shown.text, data, shown.notes)


@tool(
    READS,
    codes=_READS,
    result={"path": "string", "language": "string", "definitions": "array"},
    rows={"definitions": SOURCE_ROW},
    older=_older("get_definition"),
)
async def c_get_definition(
    place: Workspace, path: str, name: str, language: Language = "auto", line: int | None = None
) -> Answer:
    """Returns the source of a type, function or method of a C or C++ file.

    Of several with that name all are returned; a declaration only where there is no definition.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        name: The name, such as `f`, `ns::f`, `Class::method` or `operator==`; outer scopes may be
            left out.
        language: `c`, `cpp`, or `auto` for what the name of the file says.
        line: A line of the definition, where several have this name.
    """
    found = await _parsed(place, path, language, "definitions", name=name, line=line)
    return _pieces(path, found, "definitions", "source")


@tool(
    READS,
    codes=_READS,
    result={"path": "string", "language": "string", "signatures": "array"},
    rows={"signatures": SIGNATURE_ROW},
    older=_older("get_signature"),
)
async def c_get_signature(
    place: Workspace, path: str, name: str, language: Language = "auto", line: int | None = None
) -> Answer:
    """Returns the declaration of a type, function or method of a C or C++ file up to its body.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        name: The name, such as `f`, `ns::f`, `Class::method` or `operator==`; outer scopes may be
            left out.
        language: `c`, `cpp`, or `auto` for what the name of the file says.
        line: A line of the definition, where several have this name.
    """
    found = await _parsed(place, path, language, "signatures", name=name, line=line)
    return _pieces(path, found, "signatures", "signature")


@tool(
    CHANGES,
    codes=tuple(dict.fromkeys((*WRITE_CODES, *PARSE_CODES, "bad_content"))),
    result=FILE_CHANGE,
    older=_older("update_definition", new_content="content"),
    older_parameters={"new_content": "content"},
)
async def c_update_definition(
    place: Workspace,
    path: str,
    name: str,
    content: str,
    language: Language = "auto",
    line: int | None = None,
    expect_sha256: str | None = None,
) -> Answer:
    """Replaces the definition of a type, function or method of a C or C++ file.

    Nothing is written if the file would have more syntax errors than before.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        name: The name, such as `f`, `ns::f`, `Class::method` or `operator==`; outer scopes may be
            left out.
        content: The whole new definition; it is indented like the place that it takes.
        language: `c`, `cpp`, or `auto` for what the name of the file says.
        line: A line of the definition, where several have this name.
        expect_sha256: The SHA-256 that the file has to have now; with another one nothing is done.
    """
    plain_text(content, "content")
    grammar = _grammar(path, language)
    async with writing(place, path):
        original = await in_thread(lambda: read(place, path, expect_sha256))
        if original is None:
            raise not_found(path)
        before, spelling = decoded(original.content, path)
        check_fits(spelling, content, path)
        source = before.encode("utf-8", "surrogateescape")
        splice = await place.worker.run(
            f"{_SYMBOLS}:update",
            source,
            in_lines_of(spelling, content, before).encode(),
            name=name,
            line=line,
            language=grammar,
            macros=list(place.macros),
        )
        new = str(splice["content"]).encode("utf-8", "surrogateescape")
        edited = source[: splice["start"]] + new + source[splice["end"] :]
        after = edited.decode("utf-8", "surrogateescape")
        return await finish(place, path, Draft(original, before, after, spelling))


async def _parsed(
    place: Workspace, path: str, language: Language, function: str, **options: Any
) -> dict[str, Any]:
    """What a function of `c_symbols` says of a file."""
    grammar = _grammar(path, language)
    source = await anyio.to_thread.run_sync(lambda: _source(place, path), abandon_on_cancel=True)
    found: dict[str, Any] = await place.worker.run(
        f"{_SYMBOLS}:{function}",
        source,
        language=grammar,
        macros=list(place.macros),
        **options,
    )
    return found


def _source(place: Workspace, path: str) -> bytes:
    """The text of a file in UTF-8; bytes that are none are kept."""
    with place.folder.file(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > LARGEST_SOURCE:
            message = f"`{path}` has {size:,} bytes; {LARGEST_SOURCE:,} are the most to be parsed"
            raise PackError("too_large", message, path=path, limit=LARGEST_SOURCE)
        with os.fdopen(os.dup(descriptor), "rb") as stream:
            data = stream.read(LARGEST_SOURCE + 1)
    try:
        text, _ = decoded(data, path)
    except PackError as error:
        raise PackError("unsupported", error.message, path=path) from None
    return text.encode("utf-8", "surrogateescape")


def _grammar(path: str, language: Language) -> str:
    """The grammar for a file (K39).

    Raises:
        PackError: its name is not one of C or C++.
    """
    if language != "auto":
        return language
    found, _ = language_of(path, None)
    if found == "c":
        return "c" if path.endswith(".c") else "either"
    if found == "cpp":
        return "cpp"
    message = f"`{path}` is {found} by its name; language=c or language=cpp reads it all the same"
    raise PackError("unsupported", message, path=path, language=found)


def _pieces(path: str, found: dict[str, Any], rows: str, key: str) -> Answer:
    shown = pieces_of_code(found[rows], key, "//")
    data: dict[str, Any] = {"path": path, "language": found["language"], rows: shown.rows}
    return _answer(shown.text, data | ({"truncated": True} if shown.notes else {}), shown.notes)


def _answer(text: str, data: dict[str, Any], notes: Sequence[str]) -> Answer:
    """The result of a reader, with notes below the text."""
    told = [*notes, *does_not_parse(data.get("broken", ()))]
    return Answer("\n".join([text, *(f"[{note}]" for note in told)]), data)


PACK = Pack(
    tools=(
        c_get_skeleton,
        c_get_code_outline,
        c_get_definition,
        c_get_signature,
        c_update_definition,
    )
)
