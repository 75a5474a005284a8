"""The tools of the pack `c`: files in, results out.

`c_symbols` parses code in the child process; this module reads, writes and cuts.
"""

from typing import Annotated, Any, Literal

import anyio.to_thread

from aish.packs.c.c_options import COptions
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
    FilePath,
    Older,
    Pack,
    tool,
)
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer, code_answer, count_that_fits, outline, pieces_of_code
from aish.packs.workspace.file_change import change_of_text, finish, in_thread, read_existing
from aish.packs.workspace.file_text import check_fits, decode_text, in_lines_of, plain_text
from aish.packs.workspace.languages import language_of
from aish.packs.workspace.workspace import Workspace
from aish.packs.workspace.write_lock import lock_files

Language = Annotated[
    Literal["auto", "c", "cpp"], "`c`, `cpp`, or `auto` for what the name of the file says."
]
Name = Annotated[
    str,
    "The name, such as `f`, `ns::f`, `Class::method` or `operator==`; outer scopes may be "
    "left out.",
]
Line = Annotated[int | None, "A line of the definition, where several have this name."]

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
async def c_get_skeleton(place: Workspace, path: FilePath, language: Language = "auto") -> Answer:
    """Returns a C or C++ file with the bodies of its functions left out.

    Signatures, types, comments and directives stay, long initializers and macros are left out.
    """
    answer = await _ask_parser(place, path, language, "skeleton")
    lines = str(answer["skeleton"]).split("\n")
    count = count_that_fits(lines)
    text = "\n".join(lines[:count])
    notes = []
    if count < len(lines):
        notes.append(
            f"truncated: true, {count:,} of {len(lines):,} lines; c_get_code_outline is shorter"
        )
    data = {
        "path": path,
        "language": answer["language"],
        "skeleton": text,
        "broken": answer["broken"],
        "truncated": count < len(lines),
    }
    return code_answer(text, data, notes)


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
async def c_get_code_outline(
    place: Workspace, path: FilePath, language: Language = "auto"
) -> Answer:
    """Lists the types and functions of a C or C++ file with their first and last lines."""
    answer = await _ask_parser(place, path, language, "outline")
    listing = outline(answer["items"], "no types or functions")
    data = {
        "path": path,
        "language": answer["language"],
        "items": listing.rows,
        "broken": answer["broken"],
        "truncated": bool(listing.notes),
    }
    return code_answer(listing.text, data, listing.notes)


@tool(
    READS,
    codes=_READS,
    result={"path": "string", "language": "string", "definitions": "array"},
    rows={"definitions": SOURCE_ROW},
    older=_older("get_definition"),
)
async def c_get_definition(
    place: Workspace, path: FilePath, name: Name, language: Language = "auto", line: Line = None
) -> Answer:
    """Returns the source of a type, function or method of a C or C++ file.

    Of several with that name all are returned; a declaration only where there is no definition.
    """
    answer = await _ask_parser(place, path, language, "definitions", name=name, line=line)
    return _pieces(path, answer, "definitions", "source")


@tool(
    READS,
    codes=_READS,
    result={"path": "string", "language": "string", "signatures": "array"},
    rows={"signatures": SIGNATURE_ROW},
    older=_older("get_signature"),
)
async def c_get_signature(
    place: Workspace, path: FilePath, name: Name, language: Language = "auto", line: Line = None
) -> Answer:
    """Returns the declaration of a type, function or method of a C or C++ file up to its body."""
    answer = await _ask_parser(place, path, language, "signatures", name=name, line=line)
    return _pieces(path, answer, "signatures", "signature")


@tool(
    CHANGES,
    codes=tuple(dict.fromkeys((*WRITE_CODES, *PARSE_CODES, "bad_content"))),
    result=FILE_CHANGE,
    older=_older("update_definition", new_content="content"),
    older_parameters={"new_content": "content"},
)
async def c_update_definition(
    place: Workspace,
    path: FilePath,
    name: Name,
    content: str,
    language: Language = "auto",
    line: Line = None,
    expect_sha256: ExpectedHash = None,
) -> Answer:
    """Replaces the definition of a type, function or method of a C or C++ file.

    Nothing is written if the file would have more syntax errors than before.

    Args:
        content: The whole new definition; it is indented like the place that it takes.
    """
    plain_text(content, "content")
    grammar = _grammar(path, language)
    async with lock_files(place, path):
        original = await in_thread(lambda: read_existing(place, path, expect_sha256))
        before, spelling = decode_text(original.content, path)
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
        change = change_of_text(path, original, before, after, spelling)
        return await finish(place, change)


async def _ask_parser(
    place: Workspace, path: str, language: Language, function: str, **options: Any
) -> dict[str, Any]:
    grammar = _grammar(path, language)
    source = await anyio.to_thread.run_sync(lambda: _source(place, path), abandon_on_cancel=True)
    answer: dict[str, Any] = await place.worker.run(
        f"{_SYMBOLS}:{function}", source, language=grammar, macros=list(place.macros), **options
    )
    return answer


def _source(place: Workspace, path: str) -> bytes:
    """Return the text of a file as UTF-8; invalid bytes are kept."""
    data = place.read_source(path)
    try:
        text, _ = decode_text(data, path)
    except PackError as error:
        raise PackError("unsupported", error.message, path=path) from None
    return text.encode("utf-8", "surrogateescape")


def _grammar(path: str, language: Language) -> str:
    if language != "auto":
        return language
    guess, _ = language_of(path, None)
    if guess == "c":
        return "c" if path.endswith(".c") else "either"
    if guess == "cpp":
        return "cpp"
    message = f"`{path}` is {guess} by its name; language=c or language=cpp reads it all the same"
    raise PackError("unsupported", message, path=path, language=guess)


def _pieces(path: str, answer: dict[str, Any], rows: str, key: str) -> Answer:
    shown = pieces_of_code(answer[rows], key, "//")
    data: dict[str, Any] = {"path": path, "language": answer["language"], rows: shown.rows}
    return code_answer(shown.text, data | ({"truncated": True} if shown.notes else {}), shown.notes)


PACK = Pack(
    tools=(
        c_get_skeleton,
        c_get_code_outline,
        c_get_definition,
        c_get_signature,
        c_update_definition,
    ),
    reads="files",
    options=COptions,
)
