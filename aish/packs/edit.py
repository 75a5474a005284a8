"""The pack `edit`: changes within text files below the root (K6, K8)."""

from dataclasses import replace
from itertools import islice

from aish.packs.framework.pack import CHANGES, FILE_CHANGE, WRITE_CODES, Older, Pack, tool
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer
from aish.packs.workspace.file_change import edit_text
from aish.packs.workspace.file_text import Spelling, check_fits, in_lines_of, plain_text
from aish.packs.workspace.workspace import Workspace

_MOST_LISTED = 20


@tool(
    CHANGES,
    result={**FILE_CHANGE, "replacements": "integer"},
    codes=(*WRITE_CODES, "no_match", "ambiguous"),
    older={"edit_file": Older(rename={"old_string": "old_text", "new_string": "new_text"})},
    older_parameters={"old_string": "old_text", "new_string": "new_text"},
)
async def file_edit(
    place: Workspace,
    path: str,
    old_text: str,
    new_text: str,
    expect_sha256: str | None = None,
    *,
    replace_all: bool = False,
) -> Answer:
    """Replaces a text in a file by another one.

    The old text has to occur exactly once, unless `replace_all` is set.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        old_text: The text to replace, exactly as it stands in the file, spaces included.
        new_text: The text to put in its place.
        expect_sha256: The SHA-256 that the file has to have now; with another one nothing is done.
        replace_all: Whether every occurrence is replaced.
    """
    if not old_text:
        raise PackError("bad_arguments", "`old_text` is empty; file_set_lines puts lines in")
    plain_text(old_text, "old_text")
    plain_text(new_text, "new_text")

    replaced = 0

    def change(text: str, spelling: Spelling) -> str:
        nonlocal replaced
        check_fits(spelling, new_text, path)
        old = in_lines_of(spelling, old_text, text)
        new = in_lines_of(spelling, new_text, text)
        lines = _occurrences(text, old)
        if not lines:
            raise _no_match(text, old, path)
        if len(lines) > 1 and not replace_all:
            raise _ambiguous(lines, path)
        # Overlapping ones are replaced once.
        replaced = text.count(old) if len(lines) > 1 else 1
        return text.replace(old, new)

    answer = await edit_text(place, path, expect_sha256, change)
    return replace(answer, data={**answer.data, "replacements": replaced})


@tool(
    CHANGES,
    result=FILE_CHANGE,
    codes=(*WRITE_CODES, "out_of_range"),
    older={"set_file_slice": Older(rename={"new_content": "content"})},
)
async def file_set_lines(
    place: Workspace,
    path: str,
    start_line: int,
    end_line: int,
    content: str,
    expect_sha256: str | None = None,
) -> Answer:
    """Replaces a range of lines of a file, or puts lines in before one.

    Args:
        place: The root, which no caller names.
        path: The file, relative to the root folder.
        start_line: The first line to replace; 1 is the first line of the file.
        end_line: The last line to replace; `start_line - 1` replaces none and puts lines in.
        content: The new lines; empty takes the old ones out.
        expect_sha256: The SHA-256 that the file has to have now; with another one nothing is done.
    """
    plain_text(content, "content")

    def change(text: str, spelling: Spelling) -> str:
        check_fits(spelling, content, path)
        lines = [line + "\n" for line in text.split("\n")]
        lines[-1] = lines[-1][:-1]
        if not lines[-1]:
            lines.pop()
        if (
            start_line < 1
            or end_line < start_line - 1
            or max(start_line - 1, end_line) > len(lines)
        ):
            message = (
                f"`{path}` has {len(lines)} lines; {start_line} to {end_line} are no range of it"
            )
            raise PackError("out_of_range", message, total_lines=len(lines))
        above, below = "".join(lines[: start_line - 1]), "".join(lines[end_line:])
        new = in_lines_of(spelling, content, text)
        end = "\r\n" if "\r\n" in new else "\n"
        if above and new and not above.endswith("\n"):
            above += end
        if new and not new.endswith("\n") and (below or text.endswith("\n") or not text):
            new += end
        return above + new + below

    return await edit_text(place, path, expect_sha256, change)


def _occurrences(text: str, old: str) -> list[int]:
    """The lines in which it begins, overlapping ones included; a few more than are listed."""
    found: list[int] = []
    line, counted, place = 1, 0, text.find(old)
    while place >= 0 and len(found) <= _MOST_LISTED:
        line += text.count("\n", counted, place)
        counted = place
        found.append(line)
        place = text.find(old, place + 1)
    return found


def _ambiguous(lines: list[int], path: str) -> PackError:
    listed = ", ".join(str(line) for line in lines[:_MOST_LISTED])
    more = " and more" if len(lines) > _MOST_LISTED else ""
    message = (
        f"`old_text` occurs more than once in `{path}`, at lines {listed}{more}; "
        "give more of what is around it, or replace_all=true"
    )
    return PackError("ambiguous", message, path=path, lines=[*lines[:_MOST_LISTED]])


def _no_match(text: str, old: str, path: str) -> PackError:
    """Reports where the first line of the text occurs with other spaces, if it does."""
    first = next((line.strip() for line in old.split("\n") if line.strip()), "")
    alike = (
        number for number, line in enumerate(text.split("\n"), 1) if first and line.strip() == first
    )
    lines = list(islice(alike, _MOST_LISTED))
    hint = f"; its first line stands at line {', '.join(map(str, lines))}" if lines else ""
    message = f"`old_text` does not occur in `{path}`{hint}; file_read shows what does"
    return PackError("no_match", message, path=path, lines=[*lines])


PACK = Pack(tools=(file_edit, file_set_lines))
