"""What a model can know of files from what it is shown is what is on disk (K82 to K85)."""

import json
import re
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, cast

import anyio
from agent_fakes import Box, Kit
from hypothesis import given
from hypothesis import strategies as st

from aish.agent.file_updates import split_block, with_block
from aish.config.model import Context, ContextFile, Refresh
from aish.core.events import ContextFiles, FileShown, Notice, Place
from aish.engine.resources.resources import RunFiles
from aish.engine.steps.context_files.conversation_files import ConversationFiles

TAG = "0123456789ab"
NAMES = ("a.md", "b.md", "c.md", "sub/d.md")
LINE = st.sampled_from(["one", "two", "", "[end x]", "[aish] y", "-", "@@ z", "é", "\\ No"])
TEXT = st.lists(LINE, max_size=8).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join([*lines, ""])])
)
CHANGES = st.dictionaries(st.sampled_from(NAMES), st.none() | TEXT, max_size=4)
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
_HEAD = re.compile(rf"\[aish {TAG}\] (.+): ([^:]*)")
_SHOWN = re.compile(r"\[attached: (\S+) \(text/markdown\)\]\n(?s:(.*?))\n?\[end of \1\]")


class Reader:
    """A model that reads all it is shown; `None` is a text that it has to read again."""

    def __init__(self, opening: str) -> None:
        self.files: dict[str, str | None] = {}
        self.begin(opening)

    def begin(self, opening: str) -> None:
        """Read what is before a prompt: changes, then files."""
        block, end, files = opening.rpartition(f"\n[end {TAG}]\n\n")
        if end:
            self.read(block + end.rstrip("\n"))
        else:
            block, files = (opening, "") if opening.startswith("[aish files") else ("", opening)
            self.read(block)
        self.files.update({name: unmarked(text) for name, text in _SHOWN.findall(files)})

    def read(self, block: str) -> None:
        lines = block.split("\n")[1:-1]
        at = 0
        while at < len(lines):
            head = _HEAD.fullmatch(lines[at])
            assert head is not None, lines[at]
            end = at + 1
            while end < len(lines) and _HEAD.fullmatch(lines[end]) is None:
                end += 1
            self._one(head[1], head[2], lines[at + 1 : end])
            at = end

    def _one(self, name: str, said: str, body: list[str]) -> None:
        if said == "deleted":
            del self.files[name]
        elif said.endswith("read it again"):
            self.files[name] = None
        elif body and _HUNK.fullmatch(body[0]):
            before = self.files[name]
            assert before is not None, "a change of what was not shown"
            self.files[name] = patched(before, body)
        else:
            self.files[name] = unmarked("\n".join(body))


def patched(before: str, rows: list[str]) -> str:
    """A text after a diff, without the end of its last line."""
    old = before.split("\n") if before else []
    found: list[str] = []
    done = 0
    for row in rows:
        if head := _HUNK.fullmatch(row):
            start = int(head[1]) - (head[2] != "0")
            found += old[done:start]
            done = start
        elif row == "\\ No newline at end of file":
            continue
        else:
            done += row[0] in " -"
            if row[0] in " +":
                found.append(row[1:])
    return "\n".join([*found, *old[done:]])


def unmarked(text: str) -> str:
    return re.sub(r"(?m)^ (?=\[(?:aish|end ))", "", text)


def on_disk(root: Path) -> dict[str, str]:
    """The files without the end of their last line, which is not always to be seen."""
    found = (path for path in root.rglob("*.md"))
    return {
        path.relative_to(root).as_posix(): path.read_text("utf-8").removesuffix("\n")
        for path in found
    }


def change(root: Path, changes: dict[str, str | None]) -> None:
    for name, text in changes.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(text.encode())


def agrees(reader: Reader, root: Path) -> None:
    there = on_disk(root)
    assert reader.files.keys() == there.keys()
    for name, text in reader.files.items():
        assert text in {None, there[name]}, name


@given(
    CHANGES,
    st.lists(CHANGES, max_size=5),
    st.sampled_from(["diff", "whole"]),
    st.sampled_from([8192, 30]),
    st.booleans(),
)
def test_a_reader_of_all_that_is_shown_knows_the_files(
    before: dict[str, str | None],
    rounds: list[dict[str, str | None]],
    refresh: Refresh,
    limit: int,
    restored: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - given by hypothesis
) -> None:
    async def conversation(root: Path) -> None:
        entries = (ContextFile("**/*.md", root, is_glob=True),)
        settings = Context(files=entries, refresh=refresh, file_limit=limit)
        runtime = Kit(Box(())).runtime()

        def opened(earlier: object = None) -> ConversationFiles:
            state = json.loads(json.dumps(earlier)) if earlier is not None else None
            place = Place("work", None, 1)
            run = RunFiles(TAG)
            return ConversationFiles(settings, root, run, runtime, place, earlier=state)

        change(root, before)
        files = opened()
        reader = Reader(await files.opening())
        agrees(reader, root)
        for number, one in enumerate(rounds):
            change(root, one)
            if restored:
                # Another step continues the conversation, in a resumed run too.
                files.close()
                files = opened(files.state())
                reader.begin(await files.opening())
            else:
                block = await files.after_round(Place("work", None, number + 1))
                assert split_block(with_block("reply", block), TAG).block == block
                reader.read(block)
            agrees(reader, root)
        files.close()

    with TemporaryDirectory() as name:
        anyio.run(conversation, Path(name))


def test_a_file_that_becomes_a_link_while_it_is_read_is_left_out_with_a_notice(
    tmp_path: Path,
) -> None:
    change(tmp_path, {"a.md": "one", "sub/d.md": "two"})
    kit = Kit(Box(()))
    entries = (ContextFile("**/*.md", tmp_path, is_glob=True),)
    place = Place("work", None, 1)
    listed: list[str] = []

    def swap(frame: FrameType, event: str, called: Any) -> None:
        """At the second folder the file of the first one is listed, and nothing is read yet."""
        del frame
        if event == "c_call" and called.__name__ == "scandir":
            listed.append(event)
            if len(listed) == 2:
                (tmp_path / "a.md").unlink()
                (tmp_path / "a.md").symlink_to("/etc/hostname")

    async def opening() -> str:
        files = ConversationFiles(
            Context(files=entries), tmp_path, RunFiles(TAG), kit.runtime(), place
        )
        try:
            return await files.opening()
        finally:
            files.close()

    threading.setprofile(swap)
    try:
        text = anyio.run(opening)
    finally:
        threading.setprofile(cast("Any", None))

    assert "[attached: a.md]\n[aish] not shown, left out: `a.md`" in text
    (notice,) = kit.events_of(Notice)
    assert isinstance(notice, Notice)
    assert (notice.place, notice.level, notice.code) == (place, "warning", "file_left_out")
    assert notice.text.startswith("`a.md` of `context.files` is left out: `a.md`")
    (shown,) = kit.events_of(ContextFiles)
    assert isinstance(shown, ContextFiles)
    assert shown.files == (FileShown("sub/d.md", "shown"),)
