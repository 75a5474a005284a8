"""The pack `issues`: the work list of a project, in `.beads/`.

The program `bd` is used if it is installed; otherwise the tools read and write `issues.jsonl`. Text
of issues is enclosed in marks.
"""

import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import counted, shorten
from aish.core.text import for_line, safe_utf8
from aish.packs.framework.pack import READS, Marks, Pack, PackContext, tool
from aish.packs.issues.issue_options import IssuesOptions
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer, count_that_fits
from aish.packs.workspace.workspace import Workspace

SECONDS = 20.0
MOST_ISSUES = 1_000
LONGEST_TITLE = 500
LONGEST_DESCRIPTION = 65_536
FOLDER = ".beads"
_OUTPUT_LIMIT = 16 << 20
_SHOWN = 300
_HOOKS = ("on_create", "on_update", "on_close")
_SERVERS = ("server", "proxied-server")
_LARGEST_METADATA = 1 << 16
_CREATES = Marks(read_only=False, destructive=False, idempotent=False, open_world=False)
_UPDATES = Marks(read_only=False, destructive=True, idempotent=True, open_world=False)
_ROW = {
    "id": "string",
    "title": "string",
    "status": "string",
    "priority": "integer",
    "issue_type": "string",
}
_TIMES = ("created_at", "updated_at", "closed_at", "close_reason")


@frozen
class Issues:
    """The root, the prefix of new ids, and the environment of aish."""

    place: Workspace
    prefix: str
    environ: Mapping[str, str]


@frozen
class _Backend:
    """The source of issues: `bd`; without it `has_database` says that the file is out of date."""

    program: str | None
    has_database: bool

    @property
    def name(self) -> str:
        return "jsonl" if self.program is None else "bd"

    @property
    def source(self) -> str:
        """The source of issues, as named in the marks."""
        return f"{FOLDER}/issues.jsonl" if self.program is None else "bd"

    @property
    def is_stale(self) -> bool:
        return self.program is None and self.has_database


@asynccontextmanager
async def _open(context: PackContext) -> AsyncGenerator[Issues]:
    assert context.workspace is not None, "a pack that needs a root has one"
    yield Issues(context.workspace, context.options.prefix, context.services.environ)


@tool(
    READS,
    result={"issues": "array", "backend": "string", "stale": "boolean", "truncated": "boolean"},
    rows={"issues": _ROW},
    codes=("unavailable", "unreadable", "too_slow"),
)
async def bd_list(issues: Issues, status: str = "", limit: int = 200) -> Answer:
    """Lists issues, closed ones too.

    Args:
        status: Only those with this status, such as `open`, `in_progress` or `closed`.
        limit: Most issues to return, up to 1,000.
    """
    from aish.packs.issues.issue_store import read_issues, status_of

    backend = _backend(issues)
    most = min(max(limit, 1), MOST_ISSUES)
    if backend.program is None:
        records, broken = await read_issues(issues.place)
        listed = [issue for issue in records if not status or status_of(issue) == status]
    else:
        # The status is the value of one word: no text can become an option.
        words = [f"--status={safe_utf8(status)}"] if status else []
        words += ["--all", f"--limit={most + 1}"]
        listed, broken = _issues_in_answer(await _ask_bd(issues, backend, "list", words)), 0
    return _list_answer(backend, listed, broken, most)


@tool(
    READS,
    result={"issues": "array", "backend": "string", "stale": "boolean"},
    rows={"issues": _ROW},
    codes=("unavailable", "unreadable", "too_slow"),
)
async def bd_ready(issues: Issues) -> Answer:
    """Lists open issues that nothing blocks, the most urgent first."""
    from aish.packs.issues.issue_store import read_ready_issues

    backend = _backend(issues)
    if backend.program is None:
        listed, broken = await read_ready_issues(issues.place)
    else:
        words = [f"--limit={MOST_ISSUES + 1}"]
        listed, broken = _issues_in_answer(await _ask_bd(issues, backend, "ready", words)), 0
    answer = _list_answer(backend, listed, broken, MOST_ISSUES)
    data = {key: value for key, value in answer.data.items() if key != "truncated"}
    return Answer(answer.text, data, source=answer.source, trailer=answer.trailer)


@tool(
    _CREATES,
    result={"id": "string", "issue": "object", "backend": "string"},
    codes=("unavailable", "unwritable", "not_installed", "too_slow"),
)
async def bd_create(issues: Issues, title: str, description: str = "") -> Answer:
    """Creates an open issue.

    Args:
        title: What is to be done, in up to 500 characters.
        description: More about it.
    """
    from aish.packs.issues.issue_store import create_issue

    title, description = safe_utf8(title).strip(), safe_utf8(description)
    if not title or len(title) > LONGEST_TITLE:
        raise PackError("bad_arguments", f"`title` needs 1 to {LONGEST_TITLE} characters")
    if len(description.encode()) > LONGEST_DESCRIPTION:
        message = f"`description` is longer than {LONGEST_DESCRIPTION:,} bytes"
        raise PackError("bad_arguments", message)
    if "\0" in title + description:
        raise PackError("bad_arguments", "`title` or `description` has a NUL in it")
    backend = _writable(issues)
    if backend.program is None:
        issue: JsonObject = await create_issue(issues.place, title, description, issues.prefix)
    else:
        words = [f"--description={description}"] if description else []
        answer = await _ask_bd(issues, backend, "create", [*words, "--", title])
        issue = next(iter(_issues_in_answer(answer)), {})
    return _change_answer(backend, issue, "created")


@tool(
    _UPDATES,
    result={"id": "string", "issue": "object", "backend": "string"},
    codes=("not_found", "unavailable", "unwritable", "not_installed", "too_slow"),
    older_parameters={"id": "bead_id"},
)
async def bd_update(issues: Issues, bead_id: str, status: str) -> Answer:
    """Changes the status of an issue.

    Args:
        bead_id: The id of the issue, as in `app-a1b2`.
        status: Such as `open`, `in_progress`, `blocked`, `deferred` or `closed`.
    """
    from aish.packs.issues.issue_store import no_issue, update_issue

    id, status = safe_utf8(bead_id).strip(), safe_utf8(status).strip()
    if not id or not status or "\0" in id + status:
        raise PackError("bad_arguments", "`bead_id` or `status` is empty, or has a NUL in it")
    backend = _writable(issues)
    if backend.program is None:
        return _change_answer(backend, await update_issue(issues.place, id, status), "updated")
    try:
        answer = await _ask_bd(issues, backend, "update", [f"--status={status}", "--", id])
    except PackError as error:
        message = error.message.lower()
        if error.code == "unavailable" and ("not found" in message or "no issue found" in message):
            raise no_issue(for_line(shorten(id, _SHOWN))) from None
        raise
    rows = _issues_in_answer(answer)
    if not rows:
        raise no_issue(for_line(shorten(id, _SHOWN)))
    return _change_answer(backend, rows[0], "updated")


def _backend(issues: Issues) -> _Backend:
    if _kind(issues, FOLDER) != "folder":
        raise PackError("unavailable", "no active workspace to run beads tools.")
    if _kind(issues, f"{FOLDER}/redirect") is not None:
        message = f"`{FOLDER}/redirect` leads to issues of another folder, which is not followed"
        raise PackError("unavailable", message)
    return _Backend(_program(issues), _has_database(issues))


def _writable(issues: Issues) -> _Backend:
    backend = _backend(issues)
    if backend.is_stale:
        message = (
            "the issues are in a database that only `bd` writes, and `bd` is not installed; "
            "github.com/steveyegge/beads tells how to install it"
        )
        raise PackError("not_installed", message)
    if backend.program is not None:
        for name in _HOOKS:
            path = f"{FOLDER}/hooks/{name}"
            if _kind(issues, path) is not None:
                message = f"`bd` would run `{path}`, and programs of the root are not run"
                raise PackError("unavailable", message)
    return backend


def _kind(issues: Issues, path: str) -> str | None:
    try:
        return issues.place.folder.kind(path)
    except PackError as error:
        raise PackError("unavailable", error.message) from None


def _program(issues: Issues) -> str | None:
    """Find the program `bd` in PATH; never one below the root, or found through it."""
    from shutil import which

    path = issues.environ.get("PATH", os.defpath)
    folders = [folder for folder in path.split(os.pathsep) if folder.startswith("/")]
    program = which("bd", path=os.pathsep.join(folders)) if folders else None
    if program is None or Path(program).resolve().is_relative_to(issues.place.root):
        return None
    return None if Path(program).is_relative_to(issues.place.root) else program


def _has_database(issues: Issues) -> bool:
    """Return true if a database holds the issues, and the file is only an export."""
    if any(_kind(issues, f"{FOLDER}/{name}") == "folder" for name in ("embeddeddolt", "dolt")):
        return True
    try:
        with issues.place.folder.file(f"{FOLDER}/metadata.json") as descriptor:
            metadata = json.loads(os.read(descriptor, _LARGEST_METADATA))
    except (PackError, ValueError, RecursionError):
        return False
    if not isinstance(metadata, dict):
        return False
    return metadata.get("dolt_mode") in _SERVERS or metadata.get("backend") == "postgres"


async def _ask_bd(issues: Issues, backend: _Backend, verb: str, words: Sequence[str]) -> Any:
    """Run `bd` and return its answer, as JSON; `None` if it prints nothing.

    Raises:
        PackError: it cannot be run, fails, or takes too long.
    """
    from aish.system.process.child import child_environment, run_command

    assert backend.program is not None, "only asked where there is one"
    extra = {
        "HOME": None,
        "BEADS_DIR": str(issues.place.root / FOLDER),
        # Nothing of it goes on behind the call.
        "BEADS_NO_DAEMON": "1",
        "BEADS_DOLT_AUTO_START": "0",
        "BD_NON_INTERACTIVE": "1",
        "NO_COLOR": "1",
    }
    try:
        result = await run_command(
            [backend.program, verb, "--json", *words],
            cwd=issues.place.root,
            env=child_environment(extra, issues.environ),
            timeout=SECONDS,
            limit_bytes=_OUTPUT_LIMIT,
            reaper=issues.place.reaper,
        )
    except OSError as error:
        why = (error.strerror or "it cannot be started").lower()
        raise PackError("unavailable", f"`bd` cannot be run: {why}") from None
    if result.timed_out:
        raise PackError("too_slow", f"`bd {verb}` took more than {SECONDS:.0f} seconds")
    output = result.stderr.decode("utf-8", "replace").strip()
    if result.exit_code != 0 or result.truncated:
        output = output or result.stdout[:_SHOWN].decode("utf-8", "replace").strip()
        excerpt = for_line(shorten(output, _SHOWN)) or f"exit code {result.exit_code}"
        raise PackError("unavailable", f"`bd {verb}` failed: {excerpt}")
    text = result.stdout.decode("utf-8", "replace").strip()
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        raise PackError("unavailable", f"`bd {verb}` did not answer with JSON") from None


def _issues_in_answer(answer: Any) -> list[JsonObject]:
    """Return the issues in an answer of `bd`: a list, a single one, or either in an envelope."""
    if isinstance(answer, dict) and "id" not in answer:
        answer = answer.get("data", answer.get("issues"))
    rows = answer if isinstance(answer, list) else [answer]
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def _list_answer(backend: _Backend, issues: Sequence[JsonObject], broken: int, most: int) -> Answer:
    rows = [_row(issue) for issue in issues[:most]]
    lines = [_line(row) for row in rows]
    count = count_that_fits(lines)
    is_cut = count < len(issues)
    notes = []
    if is_cut:
        notes.append("[truncated: true; ask for one status, or for fewer]")
    if broken:
        notes.append(f"[{counted(broken, 'line')} of the file cannot be read]")
    if backend.is_stale:
        notes.append("[stale: true; a database has the issues, and `bd` is not installed]")
    listed: list[JsonValue] = [*rows[:count]]
    data: dict[str, JsonValue] = {
        "issues": listed,
        "backend": backend.name,
        "stale": backend.is_stale,
        "truncated": is_cut,
    }
    text = "\n".join(lines[:count]) or "no issues"
    return Answer(text, data, source=backend.source, trailer="\n".join(notes))


def _change_answer(backend: _Backend, issue: JsonObject, how: str) -> Answer:
    """Return an issue after a change.

    Raises:
        PackError: `bd` did not return the issue.
    """
    if not issue.get("id"):
        raise PackError("unavailable", f"`bd` has not named the issue that it {how}")
    row = _row(issue)
    fields: dict[str, JsonValue] = dict(row)
    for key in _TIMES:
        if isinstance(value := issue.get(key), str):
            fields[key] = _clean_line(value, _SHOWN)
    data: dict[str, JsonValue] = {"id": row["id"], "issue": fields, "backend": backend.name}
    return Answer(_line(row), data, source=backend.source, trailer=f"[{how}]")


def _row(issue: JsonObject) -> dict[str, JsonValue]:
    """Return the row of an issue; values of an unexpected type are omitted."""
    row: dict[str, JsonValue] = {}
    for key in _ROW:
        value = issue.get(key)
        if key == "priority":
            row[key] = value if isinstance(value, int) and not isinstance(value, bool) else None
        else:
            row[key] = _clean_line(value, LONGEST_TITLE) if isinstance(value, str) else None
    row["status"] = row["status"] or "open"
    return row


def _clean_line(text: str, most: int) -> str:
    return for_line(safe_utf8(shorten(text, most)))


def _line(row: Mapping[str, JsonValue]) -> str:
    return f"ID: {row['id']}, Status: {row['status']}, Title: {row['title'] or ''}"


PACK = Pack(
    tools=(bd_list, bd_create, bd_update, bd_ready),
    lifespan=_open,
    reads="collected",
    options=IssuesOptions,
)
