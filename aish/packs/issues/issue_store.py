"""Issues in `.beads/issues.jsonl`, one per line, read and changed without `bd`.

A change touches only its own values: unknown keys, the order of keys and lines, and lines that are
not issues stay as they are, byte by byte.
"""

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise

import anyio.to_thread

from aish.core.events import rfc3339
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.patterns import lazy_pattern
from aish.core.phrases import backticked
from aish.packs.pack_error import PackError
from aish.packs.workspace.atomic_write import LARGEST, put, read_original
from aish.packs.workspace.workspace import Workspace
from aish.packs.workspace.write_lock import folder_locks, lock_files

PATH = ".beads/issues.jsonl"
STATUSES = ("open", "in_progress", "blocked", "deferred", "closed", "pinned", "hooked")
"""What an issue may be set to; a deleted one is a `tombstone`."""
_DELETED = "tombstone"
_USUAL_PRIORITY = 2
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SHORTEST_ID = 4
_CROWDED = 20
_ID = lazy_pattern(r"(.+)-[a-z0-9]+(?:\.[0-9]+)*")
_NOT_IN_ID = lazy_pattern(r"[^a-z0-9_-]+")
_UNWRITABLE = frozenset(
    {"protected", "not_a_file", "not_a_folder", "not_found", "too_large", "changed", "bad_path"}
)
_SPACE = " \t\r"


@frozen
class IssueLine:
    """A line of the file; `issue` is `None` if it is not an issue."""

    text: str
    issue: JsonObject | None

    @property
    def id(self) -> str:
        return text_of(self.issue or {}, "id")


def text_of(issue: JsonObject, key: str, usual: str = "") -> str:
    """Return a text of an issue; empty for any other type."""
    value = issue.get(key)
    return value if isinstance(value, str) and value else usual


def status_of(issue: JsonObject) -> str:
    """Return the status; an issue without one is open."""
    return text_of(issue, "status", "open")


async def read_issues(place: Workspace) -> tuple[list[JsonObject], int]:
    """Return the issues in the order of their lines, and the number of other lines."""
    return await anyio.to_thread.run_sync(_read, place, abandon_on_cancel=True)


async def create_issue(place: Workspace, title: str, description: str, prefix: str) -> JsonObject:
    """Add an issue with a new id at the end of the file."""
    issue: dict[str, JsonValue] = {}

    def add(lines: list[str]) -> list[str] | None:
        known = [line.id for line in map(_line, lines)]
        now = rfc3339(datetime.now(UTC).timestamp())
        issue.update(
            id=_new_id(prefix or _prefix(known, place), set(known)),
            title=title,
            description=description,
            status="open",
            priority=_USUAL_PRIORITY,
            issue_type="task",
            created_at=now,
            updated_at=now,
        )
        return [*lines, json_text(issue)]

    await _change(place, add)
    return issue


async def update_issue(place: Workspace, id: str, status: str) -> JsonObject:
    """Set the status of an issue, and the times that depend on it."""
    if status not in STATUSES:
        raise PackError("bad_arguments", f"`status` is none of {backticked(STATUSES)}")
    changed: dict[str, JsonValue] = {}

    def update(lines: list[str]) -> list[str] | None:
        for index, line in enumerate(map(_line, lines)):
            issue = line.issue
            if issue is None or line.id != id or status_of(issue) == _DELETED:
                continue
            values = {} if text_of(issue, "status") == status else _of_status(issue, status)
            changed.update(
                {key: value for key, value in {**issue, **values}.items() if value is not None}
            )
            if not values:
                return None
            return [*lines[:index], _replace_values(line.text, values), *lines[index + 1 :]]
        raise no_issue(id)

    await _change(place, update)
    return changed


def no_issue(id: str) -> PackError:
    """Return the failure for an unknown id."""
    message = f"there is no issue `{id}`; bd_list shows those there are"
    return PackError("not_found", message, bead_id=id)


def _of_status(issue: JsonObject, status: str) -> dict[str, JsonValue]:
    """Return the changes for a new status; `None` removes a key."""
    now = rfc3339(datetime.now(UTC).timestamp())
    values: dict[str, JsonValue] = {"status": status, "updated_at": now}
    if status == "closed":
        values["closed_at"] = now
    else:
        values |= {key: None for key in ("closed_at", "close_reason") if key in issue}
    return values


async def read_ready_issues(place: Workspace) -> tuple[list[JsonObject], int]:
    """Read the issues that can be worked on."""
    issues, broken = await read_issues(place)
    now = datetime.now(UTC)
    ready = await anyio.to_thread.run_sync(ready_issues, issues, now, abandon_on_cancel=True)
    return ready, broken


def ready_issues(issues: Sequence[JsonObject], now: datetime) -> list[JsonObject]:
    """Return issues that can be worked on: the most urgent first, then the oldest."""
    by_id = {text_of(issue, "id"): issue for issue in issues}
    below: dict[str, list[str]] = defaultdict(list)
    for id, issue in by_id.items():
        for parent in _dependency_ids(issue, "parent-child"):
            below[parent].append(id)
    waiting = [
        id
        for id, issue in by_id.items()
        if status_of(issue) == "blocked" or _is_deferred(issue, now) or _is_held(issue, by_id)
    ]
    stopped = set(waiting)
    while waiting:
        added = set(below[waiting.pop()]) - stopped
        stopped |= added
        waiting += added
    open_issues = [
        issue
        for issue in issues
        if status_of(issue) == "open"
        and issue.get("pinned") is not True
        and issue.get("ephemeral") is not True
        and text_of(issue, "id") not in stopped
    ]
    return sorted(open_issues, key=lambda issue: (_priority(issue), text_of(issue, "created_at")))


def _is_held(issue: JsonObject, by_id: Mapping[str, JsonObject]) -> bool:
    """Return true if a blocking issue is neither closed nor pinned."""
    blocking = (by_id.get(id) for id in _dependency_ids(issue, "blocks"))
    return any(blocker is not None and not _is_settled(blocker) for blocker in blocking)


def _is_settled(issue: JsonObject) -> bool:
    return status_of(issue) in {"closed", "pinned"} or issue.get("pinned") is True


def _is_deferred(issue: JsonObject, now: datetime) -> bool:
    if status_of(issue) == "deferred":
        return True
    until = text_of(issue, "defer_until")
    try:
        moment = datetime.fromisoformat(until)
    except ValueError:
        return False
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) > now


def _dependency_ids(issue: JsonObject, kind: str) -> Iterator[str]:
    """Yield the ids that an issue depends on in this way."""
    listed = issue.get("dependencies")
    for dependency in listed if isinstance(listed, list) else ():
        if isinstance(dependency, dict) and text_of(dependency, "type", "blocks") == kind:
            yield text_of(dependency, "depends_on_id")


def _priority(issue: JsonObject) -> int:
    value = issue.get("priority")
    return value if isinstance(value, int) else _USUAL_PRIORITY


def _read(place: Workspace) -> tuple[list[JsonObject], int]:
    try:
        with place.folder.file(PATH) as descriptor:
            size = os.fstat(descriptor).st_size
            content = _content(descriptor) if size <= LARGEST else b""
    except PackError as error:
        if error.code == "not_found":
            return [], 0
        raise PackError("unreadable", error.message) from None
    except OSError as error:
        why = (error.strerror or "input or output error").lower()
        raise PackError("unreadable", f"`{PATH}` cannot be read: {why}") from None
    if size > LARGEST:
        message = f"`{PATH}` has more than {LARGEST // (1 << 20)} MiB"
        raise PackError("unreadable", message)
    lines = [_line(text) for text in _texts(content)]
    issues = [line.issue for line in lines if line.issue is not None]
    broken = sum(line.issue is None and bool(line.text.strip()) for line in lines)
    return [issue for issue in issues if status_of(issue) != _DELETED], broken


def _content(descriptor: int) -> bytes:
    pieces: list[bytes] = []
    left = LARGEST
    while left > 0 and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _texts(content: bytes) -> list[str]:
    """Return the lines without their ends; bytes that are not UTF-8 are kept."""
    text = content.decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else lines


def _line(text: str) -> IssueLine:
    try:
        value = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        value = None
    is_issue = isinstance(value, dict) and text_of(value, "id")
    return IssueLine(text, value if is_issue else None)


async def _change(place: Workspace, edit: Callable[[list[str]], list[str] | None]) -> None:
    """Replace the lines by the result of `edit`, under a lock against other writers."""
    try:
        async with lock_files(place, PATH):
            await anyio.to_thread.run_sync(partial(_change_now, place, edit))
    except PackError as error:
        if error.code in _UNWRITABLE and "bead_id" not in error.details:
            raise PackError("unwritable", error.message) from None
        raise


def _change_now(place: Workspace, edit: Callable[[list[str]], list[str] | None]) -> None:
    with place.folder.place_of(PATH) as (folder, name), folder_locks([folder], PATH):
        original = read_original(folder, name, PATH)
        lines = edit(_texts(original.content if original else b""))
        if lines is not None:
            text = "".join(f"{line}\n" for line in lines)
            data = text.encode("utf-8", "surrogateescape")
            put(folder, name, PATH, data, original, is_locked=True)


def _prefix(known: Sequence[str], place: Workspace) -> str:
    """Return the most common prefix of ids, or else the name of the root."""
    prefixes = Counter(match[1] for id in known if (match := _ID.fullmatch(id)))
    if prefixes:
        return prefixes.most_common(1)[0][0]
    return _NOT_IN_ID.sub("-", place.root.name.lower()).strip("-_") or "bd"


def _new_id(prefix: str, known: set[str]) -> str:
    """Return a short random id that is free; longer if many are taken."""
    source = random.SystemRandom()
    for tries in range(1_000):
        length = _SHORTEST_ID + tries // _CROWDED
        id = f"{prefix}-{''.join(source.choices(_DIGITS, k=length))}"
        if id not in known:
            return id
    raise AssertionError("ids of 50 digits are not all taken")


@frozen
class _Member:
    """A key of an object, from the start of the key to the end of its value."""

    key: str
    start: int
    value: int
    end: int


def _replace_values(text: str, values: Mapping[str, JsonValue]) -> str:
    """Return the text of an object with new values; `None` removes a key, new ones are last."""
    members = list(_members(text))
    places = {member.key: number for number, member in enumerate(members)}
    before = [text[: members[0].start]]
    before += [text[member.end : two.start] for member, two in pairwise(members)]
    pieces: list[str] = []
    for number, member in enumerate(members):
        if member.key in values and values[member.key] is None:
            continue
        pieces.append(before[number] if pieces else before[0])
        if member.key in values and places[member.key] == number:
            pieces += (text[member.start : member.value], json_text(values[member.key]))
        else:
            pieces.append(text[member.start : member.end])
    first = members[0]
    comma = before[1] if len(before) > 1 else ","
    colon = text[_decode(text, first.start)[1] : first.value]
    for key, value in values.items():
        if key not in places and value is not None:
            pieces += (comma, json_text(key), colon, json_text(value))
    return "".join((*pieces, text[members[-1].end :]))


_decode = json.JSONDecoder().raw_decode


def _members(text: str) -> Iterator[_Member]:
    """Yield the members of the object in a text that is known to be one."""
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, behind = _decode(text, at)
        value = _skip(text, _skip(text, behind) + 1)
        _, end = _decode(text, value)
        yield _Member(key, at, value, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
