"""Texts that show files to a model: before a prompt, and when they have changed."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from aish.agent.file_updates import block_of, head_of
from aish.config.model import Context, Refresh
from aish.core.frozen import frozen
from aish.core.phrases import counted
from aish.core.text import for_line, safe_utf8, without_markers
from aish.core.text_diff import diff_rows
from aish.engine.steps.attachments import mime_of

Mask = Callable[[str], str]
Kind = Literal["added", "changed", "deleted", "lost", "found"]
_AROUND = 3
_COMPARED = 1000
"""Changed lines that are compared one by one; more are shown as taken out and put in."""
AGAIN = "changed, read it again"


@frozen
class PartChange:
    """A change of a file or of a part of one.

    `before` is the text that the model has, `None` if it has none; `after` the present one, `None`
    if there is none that can be shown, and `why` says why. `place` says where a part is now,
    `old_line` and `new_line` number its first line.
    """

    label: str
    kind: Kind
    before: str | None = None
    after: str | None = None
    why: str = ""
    place: str = ""
    old_line: int = 1
    new_line: int = 1


@frozen
class Update:
    """A block, and the names of the files whose present text the model has got by it."""

    block: str
    known: frozenset[str]


def format_file(name: str, path: str, text: str) -> str:
    """A file before a prompt, between two lines that name it, as an attachment is."""
    body = without_markers(safe_utf8(text)).removesuffix("\n")
    title = for_line(name)
    return f"[attached: {title} ({mime_of(path)})]\n{body}\n[end of {title}]"


def format_without_content(name: str, why: str, size: int) -> str:
    """Format a file whose content cannot be shown."""
    title = for_line(name)
    return f"[attached: {title}]\n[aish] not shown, {why} ({size:,} bytes)\n[end of {title}]"


def update_of(
    changes: Sequence[PartChange],
    more: Iterable[tuple[str, int]],
    tag: str,
    settings: Context,
    mask: Mask,
) -> Update:
    """The block of a round's changes; `more` are globs with more files than are followed.

    Texts are measured with their secrets masked, as a replay has them.
    """
    rows: list[str] = []
    known: set[str] = set()
    left, refresh = settings.round_limit, settings.refresh
    for done, change in enumerate(changes):
        head, body = _piece(change, tag, refresh)
        has_text = change.after is not None and (refresh != "name" or change.kind == "found")
        size = len(mask(body).encode())
        if body and (size > settings.file_limit or size + len(head.encode()) > left):
            head, body, size, has_text = head_of(tag, change.label, AGAIN), "", 0, False
        left -= size + len(head.encode())
        if left < 0:
            rest = counted(len(changes) - done, "more file")
            rows.append(f"[aish {tag}] {rest} changed, read them again")
            break
        rows += [head, *([body] if body else [])]
        if has_text:
            known.add(change.label)
    for pattern, count in more:
        note = f"matches {counted(count, 'more file')}, which are not followed"
        rows.append(head_of(tag, pattern, note))
    return Update(block_of(tag, rows) if rows else "", frozenset(known))


def _piece(change: PartChange, tag: str, refresh: Refresh) -> tuple[str, str]:
    """The line about a change, and what it shows of it."""
    now = f", now {change.place}" if change.place else ""
    match change.kind:
        case "deleted" | "lost":
            return head_of(tag, change.label, change.kind), ""
        case "found":
            return head_of(tag, change.label, f"found again{now}"), ""
        case _ if change.after is None:
            return head_of(tag, change.label, f"{change.kind}, {change.why}"), ""
        case _:
            head = head_of(tag, change.label, f"{change.kind}{now}")
            return head, "" if refresh == "name" else _body(change, change.after, refresh)


def _body(change: PartChange, after: str, refresh: Refresh) -> str:
    if refresh == "diff" and change.before is not None:
        rows = diff_rows(
            safe_utf8(change.before),
            safe_utf8(after),
            _AROUND,
            _COMPARED,
            change.old_line,
            change.new_line,
        )
        text = "\n".join(rows)
    else:
        text = safe_utf8(after).removesuffix("\n")
    return without_markers(text)
