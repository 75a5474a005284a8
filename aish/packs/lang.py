"""The pack `lang`: the language of a file."""

import os

import anyio.to_thread

from aish.core.json import JsonValue
from aish.core.text import for_line
from aish.packs.framework.pack import READS, Pack, tool
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer
from aish.packs.workspace.confined_path import segments_of
from aish.packs.workspace.file_options import FilesOptions
from aish.packs.workspace.languages import FIRST_LINE, LANGUAGES, language_of
from aish.packs.workspace.workspace import Workspace


@tool(READS, codes=("bad_path",), result={"path": "string", "language": "string", "by": "string"})
async def lang_detect(place: Workspace | None, path: str) -> Answer:
    """Tells which language a file is written in.

    Its name decides, or the `#!` line of a file that is there; else it is `plaintext`.

    Args:
        path: The file, relative to the root folder; it need not exist.
    """
    is_within = _is_within(path)
    language, by = language_of(path, None)
    if by == "default" and place is not None and is_within:
        language, by = language_of(path, await _first_line(place, path))
    text = f"`{for_line(path)}` is {language} (by {by.replace('_', ' ')})"
    return Answer(text, {"path": path, "language": language, "by": by})


@tool(
    READS,
    result={"languages": "array"},
    rows={
        "languages": {"id": "string", "name": "string", "extensions": "array", "filenames": "array"}
    },
)
async def lang_list(place: Workspace | None) -> Answer:
    """Lists the languages that are known, with their file extensions and file names."""
    del place
    await anyio.lowlevel.checkpoint()
    rows: list[JsonValue] = []
    lines: list[str] = []
    for language in LANGUAGES:
        extensions, filenames = list(language.extensions), list(language.filenames)
        rows.append({
            "id": language.id,
            "name": language.name,
            "extensions": [*extensions],
            "filenames": [*filenames],
        })  # fmt: skip
        lines.append(f"{language.id}: {language.name}: {' '.join([*extensions, *filenames])}")
    return Answer("\n".join(lines), {"languages": rows})


def _is_within(path: str) -> bool:
    """Return true if a path is readable; one outside of the root still has a name."""
    try:
        segments = segments_of(path)
    except PackError as error:
        if error.code != "outside":
            raise
        segments = ()
    if not path.strip("/."):
        raise PackError("bad_path", f"`{path}` names no file", path=path)
    return bool(segments)


async def _first_line(place: Workspace, path: str) -> bytes | None:
    def work() -> bytes | None:
        try:
            with place.folder.file(path) as descriptor:
                return os.read(descriptor, FIRST_LINE)
        except (PackError, OSError):
            return None

    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


PACK = Pack(tools=(lang_detect, lang_list), root="optional", options=FilesOptions)
