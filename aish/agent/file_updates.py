"""The form in which changes of files are shown to a model, and who supplies them.

A block is at the end of a round's last reply. Its lines of our own contain the tag of the run,
which is random: no text from outside can imitate them.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.core.text import for_line


class FileUpdates(Protocol):
    """The files of one conversation: `engine.steps.context_files.conversation_files`."""

    async def after_round(self, place: Place) -> str:
        """The block for the changes since the last request; empty if there are none.

        Raises:
            CassetteMissError: in a replay.
        """


def announcement(tag: str) -> str:
    """The line after the files of a prompt."""
    return (
        f"[aish] changes to these files will be shown between `[aish files updated {tag}]`"
        f" and `[end {tag}]`"
    )


def head_of(tag: str, label: str, said: str) -> str:
    """The line before a file in a block: its name, and what has happened to it."""
    return f"[aish {tag}] {for_line(label)}: {said}"


def block_of(tag: str, rows: Iterable[str]) -> str:
    return "\n".join([f"[aish files updated {tag}]", *rows, f"[end {tag}]"])


def with_block(content: str, block: str) -> str:
    """A reply with a block at its end."""
    return f"{content.removesuffix(chr(10))}\n{block}" if block else content


@frozen
class SplitReply:
    """A reply in two parts; `labels` are the files that the block shows."""

    content: str
    block: str = ""
    labels: tuple[str, ...] = ()


def split_block(text: str, tag: str) -> SplitReply:
    """The reply, and the block at its end if it has one."""
    if not tag or not text.endswith(f"\n[end {tag}]"):
        return SplitReply(text)
    content, between, block = text.rpartition(f"\n[aish files updated {tag}]\n")
    if not between:
        return SplitReply(text)
    heads = re.findall(rf"^\[aish {re.escape(tag)}\] (.+): [^:\n]*$", block, re.MULTILINE)
    return SplitReply(content, between[1:] + block, tuple(heads))


def find_superseded(blocks: Sequence[SplitReply]) -> frozenset[int]:
    """The places of blocks whose files are all shown in later ones."""
    later: set[str] = set()
    indexes: set[int] = set()
    for at in range(len(blocks) - 1, -1, -1):
        labels = blocks[at].labels
        if labels and later.issuperset(labels):
            indexes.add(at)
        later.update(labels)
    return frozenset(indexes)


_SHOWN = 8


def omission_note(labels: Sequence[str]) -> str:
    """The replacement of a block whose files have changed again since."""
    return f"[aish] earlier changes left out: {backticked(labels, _SHOWN)}"


def note_of_omitted_rounds(labels: Sequence[str]) -> str:
    """The note on files whose changes were in rounds that were removed."""
    named = backticked(labels, _SHOWN)
    return f"[aish] changed since they were shown above, read them again: {named}"
