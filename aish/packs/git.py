"""The pack `git`: reads a repository and runs nothing of it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aish.core.json import JsonValue
from aish.core.text import for_line
from aish.packs.framework.pack import READS_BELOW, Older, Pack, tool
from aish.packs.installed_libraries import child_command
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer, head_that_fits
from aish.packs.workspace.confined_path import not_found, segments_of
from aish.packs.workspace.file_options import FilesOptions
from aish.packs.workspace.workspace import Workspace
from aish.system.process.child import child_environment, run_command

SECONDS = 20.0
MOST_COMMITS = 200
MOST_CONTEXT = 100
_CHILD = Path(__file__).with_name("git_child.py")
_OUTPUT_LIMIT = 8 << 20


@tool(
    READS_BELOW,
    result={
        "text": "string",
        "branch": "string",
        "staged": "array",
        "unstaged": "array",
        "truncated": "boolean",
    },
    rows={
        "staged": {"status": "string", "path": "string"},
        "unstaged": {"status": "string", "path": "string"},
    },
    codes=("refused", "too_slow"),
)
async def git_status(place: Workspace) -> Answer:
    """Tells the branch and which files are staged, changed or untracked."""
    answer = await _query(place, ask="status")
    rows = [f"branch: {for_line(answer['branch']) or 'none, HEAD is detached'}"]
    listed: dict[str, JsonValue] = {"branch": for_line(answer["branch"])}
    for kind in ("staged", "unstaged"):
        changes = [(mark, path) for mark, path in answer[kind] if not _is_denied(place, path)]
        rows += [f"{kind}: {mark} {for_line(path)}" for mark, path in changes]
        listed[kind] = [{"status": mark, "path": for_line(path)} for mark, path in changes]
    return _fit_answer(rows, listed, "look at parts of it with git_diff and path")


@tool(
    READS_BELOW,
    result={"text": "string", "truncated": "boolean"},
    codes=("refused", "too_slow", "not_found", "bad_path", "outside"),
    older={"get_git_diff": Older(rename={"base_rev": "revision", "head_rev": "to"})},
)
async def git_diff(
    place: Workspace,
    path: str = "",
    revision: str = "",
    to: str = "",
    *,
    staged: bool = False,
    context: int = 3,
) -> Answer:
    """Shows changes as a unified diff: of working files that are not staged yet, by default.

    Args:
        path: Only this file or folder, relative to the root folder.
        revision: The commit to compare from, instead of what is staged.
        to: The commit to compare with, instead of the working files; from HEAD without `revision`.
        staged: Compare with what is staged, and not with the working files.
        context: How many unchanged lines are shown around a change.
    """
    if to and staged:
        raise PackError("bad_arguments", "`to` and `staged` exclude each other")
    answer = await _query(
        place,
        ask="diff",
        path=_path(place, path),
        revision=revision,
        to=to,
        staged=staged,
        context=min(max(context, 0), MOST_CONTEXT),
    )
    return _fit_answer(_patches(place, answer) or ["no changes"], {}, "name one file with path")


@tool(
    READS_BELOW,
    result={"text": "string", "commits": "array", "truncated": "boolean"},
    rows={"commits": {"id": "string", "time": "integer"}},
    codes=("refused", "too_slow", "not_found", "bad_path", "outside"),
)
async def git_log(
    place: Workspace, path: str = "", revision: str = "HEAD", count: int = 20
) -> Answer:
    """Lists commits, the newest first.

    Args:
        path: Only commits that changed this file or folder.
        revision: The commit to begin with.
        count: How many to list.
    """
    most = min(max(count, 1), MOST_COMMITS)
    answer = await _query(place, ask="log", path=_path(place, path), revision=revision, count=most)
    commits = answer["commits"][:most]
    rows = [_commit_row(commit) for commit in commits]
    listed: list[JsonValue] = [{"id": commit["id"], "time": commit["time"]} for commit in commits]
    more = len(answer["commits"]) > most
    if more:
        rows.append(f"[truncated: true; go on with revision={answer['commits'][most]['id']}]")
    return _fit_answer(rows or ["no commits"], {"commits": listed}, "a smaller count", more=more)


@tool(
    READS_BELOW,
    result={"text": "string", "id": "string", "path": "string", "truncated": "boolean"},
    codes=("refused", "too_slow", "not_found", "bad_path", "outside"),
)
async def git_show(place: Workspace, revision: str = "HEAD", path: str = "") -> Answer:
    """Shows a commit and what it changed, or a file as it was in that commit.

    Args:
        revision: The commit, by its id, branch, tag or as in `HEAD~1`.
        path: The file to show as it was, relative to the root folder.
    """
    file = _path(place, path)
    answer = await _query(place, ask="show", revision=revision, path=file)
    if file:
        return _fit_answer([answer["content"]], {"path": path}, "file_read reads parts of files")
    commit = answer["commit"]
    rows = [_commit_row(commit), commit["message"], *_patches(place, answer)]
    return _fit_answer(rows, {"id": commit["id"]}, "name one file with path")


async def _query(place: Workspace, **question: JsonValue) -> dict[str, Any]:
    """Ask the child, and return its answer.

    Raises:
        PackError: it refused, or timed out.
    """
    result = await run_command(
        child_command(str(_CHILD)),
        cwd=place.root,
        env=child_environment({"HOME": None}, {}),
        timeout=SECONDS,
        limit_bytes=_OUTPUT_LIMIT,
        input=json.dumps(question).encode(),
        reaper=place.reaper,
    )
    if result.timed_out:
        raise PackError("too_slow", f"the repository took more than {SECONDS:.0f} seconds to read")
    if result.exit_code != 0 or result.truncated:
        raise PackError("failed", "the repository could not be read")
    answer: dict[str, Any] = json.loads(result.stdout)
    if "refused" in answer:
        raise PackError("refused", answer["refused"])
    return answer


def _path(place: Workspace, path: str) -> str:
    """Return a path below the root as git names it; hidden paths are reported as not found."""
    segments = segments_of(path)
    if segments and place.folder.hides(segments):
        raise not_found(path)
    return "/".join(segments)


def _is_denied(place: Workspace, path: str) -> bool:
    return place.folder.hides(tuple(part for part in path.split("/") if part))


def _patches(place: Workspace, answer: dict[str, Any]) -> list[str]:
    return [
        f"{for_line(new)}\n{patch}"
        for old, new, patch in answer["files"]
        if not _is_denied(place, old) and not _is_denied(place, new)
    ]


def _commit_row(commit: dict[str, Any]) -> str:
    try:
        day = datetime.fromtimestamp(commit["time"], UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        day = "no date"
    subject = commit["message"].strip().partition("\n")[0][:200]
    return f"{commit['id'][:12]} {day} {for_line(commit['author'])}: {for_line(subject)}"


def _fit_answer(
    rows: list[str], data: dict[str, JsonValue], how: str, *, more: bool = False
) -> Answer:
    text = "\n".join(rows)
    head = head_that_fits(text)
    truncated = len(head) < len(text)
    if truncated:
        text = f"{head}\n[truncated: true; {how}]"
        # Lists may be as long as the text would have been.
        data = {name: value for name, value in data.items() if not isinstance(value, list)}
    return Answer(text, {"text": text, **data, "truncated": truncated or more})


PACK = Pack(tools=(git_status, git_diff, git_log, git_show), reads="files", options=FilesOptions)
