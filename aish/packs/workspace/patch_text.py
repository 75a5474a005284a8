"""Reads patches, and applies them to texts: unified diffs, and the form that coding models write.

Pure: files are read and written by the pack `edit`. Every line that a hunk keeps or removes has to
be in the file unchanged. The line number of a hunk counts only if its lines are there; otherwise
they have to occur exactly once. The time is linear in patch and file, up to a limit of comparisons.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, NoReturn

from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.core.phrases import first_of, shorten
from aish.core.text import for_line
from aish.packs.pack_error import PackError

LONGEST_PATCH = 2 * 1024 * 1024
MOST_FILES = 1_000
_MOST_ANCHORS = 16
_MOST_COMPARED = 20_000_000
"""Lines that are compared to find the places of hunks."""
_MOST_PLACES = 200
_MOST_LISTED = 20
_LONGEST_SHOWN = 200

_RANGE = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}
_NOTHING = "/dev/null"
_NO_FILE_TIMES = ("1970-01-01 ", "1969-12-31 ")
"""What `diff -N` writes of a file that is not there: the epoch, east and west of Greenwich."""
_GIT = "diff --git "
_EXTENDED = re.compile(
    r"(old mode|new mode|deleted file mode|new file mode|copy from|copy to|rename from|rename to"
    r"|similarity index|dissimilarity index|index) (.*)"
)
_FILES = ("120000", "160000")
"""Modes of links and submodules."""
_BINARY = ("Binary files ", "GIT binary patch")
_SECTION = re.compile(r"\*\*\* (Add|Update|Delete) File: (.*)")
_BEGIN, _END, _END_OF_FILE = "*** Begin Patch", "*** End Patch", "*** End of File"
_MOVE = "*** Move to: "
_BETWEEN = ("Index: ", "====", "diff ", "Only in ")
_FREE = ("```", "From ")
"""Starts of lines after which other text may follow."""

Kind = Literal["create", "change", "delete", "rename", "copy"]
Row = tuple[str, str]
"""A sign, which is a space, `+` or `-`, and the line."""


@slotted
class PatchHunk:
    """Rows to find and to change; `line` is where they begin in the patch.

    `start` is the line of the file that the hunk names. `old_cut` and `new_cut` say that the text
    before or after ends without a line end. `anchors` are lines above it.
    """

    number: int
    line: int = 0
    start: int | None = None
    rows: list[Row] = field(default_factory=list)
    anchors: tuple[str, ...] = ()
    at_end: bool = False
    old_cut: bool = False
    new_cut: bool = False


@frozen
class FilePatch:
    """The change of one file; `path` is its name before, `new_path` the one after."""

    kind: Kind
    path: str
    new_path: str
    line: int
    hunks: Sequence[PatchHunk] = ()
    is_executable: bool = False


@frozen
class Patched:
    text: str
    added: int
    removed: int


def parse_patch(text: str) -> list[FilePatch]:
    """Read a patch of either form.

    Raises:
        PackError: it is neither, or asks for something that is not supported.
    """
    if len(text) > LONGEST_PATCH:
        message = f"`patch` has {len(text):,} characters; {LONGEST_PATCH:,} are the most"
        raise PackError("too_large", message, limit=LONGEST_PATCH)
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if lines and all(line.endswith("\r") for line in lines):
        # The whole patch was sent so, and says nothing about line ends.
        lines = [line[:-1] for line in lines]
    start = 0
    while start < len(lines):
        if lines[start].rstrip() == _BEGIN or _SECTION.match(lines[start]):
            found = _SectionReader(lines).read(start)
            break
        if lines[start].startswith(_GIT) or _is_file_header(lines, start):
            found = _UnifiedReader(lines).read(start)
            break
        if _RANGE.match(lines[start]):
            _PatchReader(lines, start).fail_without_file()
        start += 1
    else:
        found = []
    if not found:
        message = (
            "`patch` has no change in it: neither `--- a/file` and `+++ b/file`, nor "
            f"`{_BEGIN}` and `*** Update File: file`"
        )
        raise PackError("bad_arguments", message)
    if len(found) > MOST_FILES:
        message = f"`patch` changes {len(found):,} files; {MOST_FILES:,} are the most"
        raise PackError("too_large", message, limit=MOST_FILES)
    return found


def _is_file_header(lines: Sequence[str], place: int) -> bool:
    signs = [line[:4] for line in lines[place : place + 2]]
    return signs == ["--- ", "+++ "]


class _PatchReader:
    def __init__(self, lines: Sequence[str], place: int = 0) -> None:
        self._lines = lines
        self._place = place

    def fail_without_file(self) -> NoReturn:
        """Report a hunk that stands below no header."""
        self._fail("above this hunk is no header with the name of its file")

    def _next(self, ahead: int = 0) -> str:
        """The line that is read next, or one after it; empty after the last one."""
        place = self._place + ahead
        return self._lines[place] if place < len(self._lines) else ""

    def _fail(self, message: str, code: str = "bad_arguments", **details: JsonValue) -> NoReturn:
        line = self._place + 1
        raise PackError(code, f"line {line} of the patch: {message}", patch_line=line, **details)

    def _read_header(self, hunk: PatchHunk) -> tuple[int, int] | None:
        """Read the line above a hunk; returns the counts of old and new lines, if it has them."""
        line = self._next()
        self._place += 1
        if (header := _RANGE.match(line)) is not None:
            hunk.start = int(header[1])
            return int(header[2] or 1), int(header[3] or 1)
        anchor = line[2:].strip().removesuffix("@@").strip()
        if anchor.strip("."):
            if len(hunk.anchors) >= _MOST_ANCHORS:
                self._fail(f"the hunk has more than {_MOST_ANCHORS} lines that begin with `@@`")
            hunk.anchors = (*hunk.anchors, anchor)
        return None

    def _read_rows(self, hunk: PatchHunk, counts: tuple[int, int] | None) -> None:
        """Read the lines of a hunk, with the counts of its header.

        With fewer lines the patch may have been cut off. More lines do no harm: what is to be found
        has to be found as a whole.
        """
        hunk.line = self._place + 1
        old, new = counts or (0, 0)
        while self._place < len(self._lines):
            line, sign = self._next(), self._next()[:1]
            is_counted = old > 0 or new > 0
            if sign == "\\" and hunk.rows:
                hunk.old_cut = hunk.old_cut or hunk.rows[-1][0] != "+"
                hunk.new_cut = hunk.new_cut or hunk.rows[-1][0] != "-"
                self._place += 1
                continue
            if not sign and not is_counted:
                blanks = self._count_blanks()
                if not self._continues_after(blanks):
                    break
                hunk.rows += [(" ", "")] * blanks
                self._place += blanks
                continue
            if sign and (sign not in " +-" or self._is_next_file(old, new, counts)):
                break
            if not is_counted and counts and line.rstrip() == "--":
                break
            sign = sign or " "
            hunk.rows.append((sign, line[1:]))
            old -= sign != "+"
            new -= sign != "-"
            self._place += 1
        while (old > 0 or new > 0) and hunk.rows[-1:] == [(" ", "")]:
            # Blank lines after the hunk.
            hunk.rows.pop()
        if not hunk.rows:
            self._fail("the hunk has no lines, which start with a space, `+` or `-`")
        if counts and (old > 0 or new > 0):
            self._fail_short(hunk, counts)

    def _fail_short(self, hunk: PatchHunk, counts: tuple[int, int]) -> NoReturn:
        """Report that a hunk has fewer lines than its header counts."""
        self._place = hunk.line - 2
        old, new = (sum(sign != other for sign, _ in hunk.rows) for other in "+-")
        self._fail(
            f"hunk {hunk.number} has {old} old and {new} new lines, and its header counts "
            f"{counts[0]} and {counts[1]}: add the lines that are missing, or begin the hunk with "
            "`@@` alone",
            hunk=hunk.number,
        )

    def _count_blanks(self) -> int:
        place = self._place
        while place < len(self._lines) and not self._lines[place]:
            place += 1
        return place - self._place

    def _continues_after(self, blanks: int) -> bool:
        """Tell if a hunk has further lines after some blank ones."""
        line, place = self._next(blanks), self._place + blanks
        is_row = line[:1] in {" ", "+", "-"} and line.rstrip() != "--"
        return is_row and not _is_file_header(self._lines, place)

    def _is_next_file(self, old: int, new: int, counts: tuple[int, int] | None) -> bool:
        """Tell `--- a/file` from a removed line that begins with two dashes."""
        if not _is_file_header(self._lines, self._place):
            return False
        is_last = counts is not None and (old, new) == (1, 1)
        return not is_last and (old < 1 or self._next(2).startswith("@@ "))


class _UnifiedReader(_PatchReader):
    """Reads unified diffs, git's too: a header, and hunks with line numbers."""

    def read(self, start: int) -> list[FilePatch]:
        self._place = start
        found: list[FilePatch] = []
        is_free = False
        while self._place < len(self._lines):
            line = self._next()
            if not line:
                self._place += self._count_blanks()
            elif line.startswith(_GIT):
                found.append(self._read_git_file())
                is_free = False
            elif _is_file_header(self._lines, self._place):
                found.append(self._read_file())
                is_free = False
            else:
                is_free = is_free or line.startswith(_FREE) or line.rstrip() == "--"
                self._check_skipped(line, is_free=is_free)
                self._place += 1
        return found

    def _check_skipped(self, line: str, *, is_free: bool) -> None:
        """Check a line that says nothing of a file; what looks like a change never does."""
        if line.startswith("@@@"):
            self._fail("diffs of merges are not supported", "unsupported")
        if _RANGE.match(line):
            self.fail_without_file()
        if is_free or not line.strip() or line.startswith(_BETWEEN):
            if line.rstrip() == _BEGIN or _SECTION.match(line):
                self._fail("it is of another form than the lines before")
        elif line.startswith("*** "):
            self._fail("it is of another form than the lines before")
        else:
            self._fail(f"`{_show(line)}` is neither a header nor a line of a hunk")

    def _read_file(self) -> FilePatch:
        line = self._place + 1
        old, new = self._name(self._next()[4:]), self._name(self._next(1)[4:])
        self._place += 2
        if _NOTHING in {old, new}:
            kind: Kind = "create" if old == _NOTHING else "delete"
            path = new.removeprefix("b/") if old == _NOTHING else old.removeprefix("a/")
            return FilePatch(kind, path, path, line, self._read_hunks_of(kind, path))
        if old.startswith("a/") and new.startswith("b/"):
            old, new = old[2:], new[2:]
        if old != new:
            self._place -= 2
            message = f"`{_show(old)}` and `{_show(new)}` differ; `rename from` and `rename to`"
            self._fail(f"{message} say that a file gets another name")
        return FilePatch("change", old, old, line, self._read_hunks_of("change", old))

    def _read_git_file(self) -> FilePatch:
        line = self._place + 1
        name = self._name_in_header(self._next().removeprefix(_GIT))
        self._place += 1
        facts: dict[str, str] = {}
        while extended := _EXTENDED.match(self._next()):
            facts[extended[1]] = extended[2]
            if extended[2] in _FILES:
                self._fail("links and submodules are not supported", "unsupported")
            self._place += 1
        if self._next().startswith(_BINARY):
            self._fail(f"the change of `{_show(name)}` is binary", "binary")
        kind, path, new_path = self._kind_of(facts, name)
        hunks: list[PatchHunk] = []
        if _is_file_header(self._lines, self._place):
            stated = self._read_file_header(path, new_path) or kind
            if kind not in {"change", stated}:
                self._fail(f"the lines above say `{kind}`, and the names `{stated}`")
            kind = stated
            hunks = self._read_hunks_of(kind, path)
        elif kind == "delete":
            # Of a file that is empty.
            hunks = [PatchHunk(1, line)]
        elif kind == "change":
            self._place = line - 1
            self._fail("it changes no line, and modes are not changed", "unsupported")
        if not path or not new_path:
            self._place = line - 1
            self._fail("the file has no name")
        is_executable = facts.get("new file mode", facts.get("new mode", ""))[-3:-2] == "7"
        return FilePatch(kind, path, new_path, line, hunks, is_executable)

    def _kind_of(self, facts: Mapping[str, str], name: str) -> tuple[Kind, str, str]:
        """Return what happens to a file by the lines below `diff --git`, and its names."""
        if "rename from" in facts:
            to = self._name(facts.get("rename to", ""))
            return "rename", self._name(facts["rename from"]), to
        if "copy from" in facts:
            return "copy", self._name(facts["copy from"]), self._name(facts.get("copy to", ""))
        if "new file mode" in facts:
            return "create", name, name
        return ("delete" if "deleted file mode" in facts else "change"), name, name

    def _read_file_header(self, path: str, new_path: str) -> Kind | None:
        """Check that `---` and `+++` name the same files as the lines above."""
        old, new = self._name(self._next()[4:]), self._name(self._next(1)[4:])
        for told, known in ((old, path), (new, new_path)):
            if told not in {_NOTHING, known} and (told[1:2], told[2:]) != ("/", known):
                self._fail(f"`{_show(told)}` is another file than `{_show(known)}` above")
        self._place += 2
        return "create" if old == _NOTHING else "delete" if new == _NOTHING else None

    def _read_hunks_of(self, kind: Kind, path: str) -> list[PatchHunk]:
        line = self._place + 1
        hunks = self._read_hunks()
        if not hunks and kind == "change":
            if self._next().startswith("@@@"):
                self._fail("diffs of merges are not supported", "unsupported")
            self._fail(f"`{_show(path)}` has no hunk")
        # Without lines to remove, only an empty file is deleted.
        return hunks or ([PatchHunk(1, line)] if kind == "delete" else [])

    def _name_in_header(self, names: str) -> str:
        """The name in `diff --git a/NAME b/NAME`, empty if they are two."""
        middle = len(names) // 2
        old, new = self._name(names[:middle]), self._name(names[middle + 1 :])
        if old != new and old[1:2] == "/" == new[1:2]:
            old, new = old[2:], new[2:]
        return old if old == new else ""

    def _name(self, raw: str) -> str:
        """A file name, without a time behind it, and without the quotes that git writes."""
        name, _, time = raw.rstrip().partition("\t")
        if time.startswith(_NO_FILE_TIMES):
            return _NOTHING
        if len(name) < len('""') or name[0] != '"' or name[-1] != '"':
            return name

        def character(found: re.Match[bytes]) -> bytes:
            sign = found[1]
            is_number = len(sign) > 1 or sign.isdigit()
            return bytes([int(sign, 8) & 255]) if is_number else _ESCAPES.get(sign, sign)

        try:
            return _ESCAPE.sub(character, name[1:-1].encode()).decode()
        except ValueError:
            self._fail("the name of the file is not text")

    def _read_hunks(self) -> list[PatchHunk]:
        found: list[PatchHunk] = []
        while self._next() == "@@" or self._next().startswith("@@ "):
            hunk = PatchHunk(len(found) + 1)
            self._read_rows(hunk, self._read_header(hunk))
            found.append(hunk)
        return found


class _SectionReader(_PatchReader):
    """Reads `*** Begin Patch`: a section for each file, and hunks without line numbers."""

    def read(self, start: int) -> list[FilePatch]:
        is_open = self._lines[start].rstrip() == _BEGIN
        self._place = start + is_open
        found: list[FilePatch] = []
        while self._place < len(self._lines):
            line = self._next()
            if line.rstrip() == _END:
                is_open = False
                self._place += 1
                self._check_rest()
            elif section := _SECTION.match(line):
                found.append(self._read_section(section[1], section[2].strip()))
            elif line.strip():
                self._fail(
                    f"`{_show(line)}` is no line of a hunk, which starts with a space, `+` or `-`, "
                    "and no header such as `*** Update File: file`"
                )
            else:
                self._place += 1
        if is_open:
            # Half of a patch is not applied.
            self._fail(f"the patch ends without `{_END}`")
        return found

    def _check_rest(self) -> None:
        while self._place < len(self._lines):
            if self._next().strip() and not self._next().startswith("```"):
                self._fail(f"there is more after `{_END}`")
            self._place += 1

    def _read_section(self, verb: str, path: str) -> FilePatch:
        line = self._place + 1
        if not path:
            self._fail("the file has no name")
        self._place += 1
        if verb == "Delete":
            return FilePatch("delete", path, path, line)
        if verb == "Add":
            hunk = PatchHunk(1, self._place + 1)
            while self._next().startswith("+"):
                hunk.rows.append(("+", self._next()[1:]))
                self._place += 1
            return FilePatch("create", path, path, line, [hunk] if hunk.rows else [])
        new_path = path
        if self._next().startswith(_MOVE):
            new_path = self._next().removeprefix(_MOVE).strip()
            self._place += 1
        hunks = self._read_hunks()
        kind: Kind = "change" if new_path == path else "rename"
        if kind == "change" and not hunks:
            self._fail(f"`{_show(path)}` has no hunk")
        return FilePatch(kind, path, new_path, line, hunks)

    def _read_hunks(self) -> list[PatchHunk]:
        found: list[PatchHunk] = []
        while self._begins_hunk(is_first=not found):
            hunk = PatchHunk(len(found) + 1)
            while self._next().startswith("@@"):
                self._read_header(hunk)
            self._read_rows(hunk, None)
            if self._next().rstrip() == _END_OF_FILE:
                hunk.at_end = True
                self._place += 1
            found.append(hunk)
        return found

    def _begins_hunk(self, *, is_first: bool) -> bool:
        """Tell if a hunk begins; the first one of a file needs no `@@`."""
        blanks = self._count_blanks()
        if self._next(blanks).startswith("@@"):
            self._place += blanks
            return True
        return is_first and self._continues_after(blanks)


def apply_hunks(text: str, patch: FilePatch, *, keep_ends: bool = False) -> Patched:
    """The text after a patch; `keep_ends` if its lines may end with a carriage return.

    Raises:
        PackError: a hunk does not fit, or fits at several places.
    """
    file = _TextLines(text, patch.path)
    added = removed = 0
    for hunk in patch.hunks:
        rows = hunk.rows
        if not keep_ends:
            rows = [(sign, line.removesuffix("\r")) for sign, line in rows]
        file.apply(hunk, rows)
        added += sum(sign == "+" for sign, _ in rows)
        removed += sum(sign == "-" for sign, _ in rows)
    return Patched(file.result(), added, removed)


class _TextLines:
    """The lines of a text, and those of the new one as far as hunks were applied."""

    def __init__(self, text: str, path: str) -> None:
        self._path = path
        self._lines = text.split("\n")
        self._is_ended = not self._lines[-1]
        if self._is_ended:
            self._lines.pop()
        self._done = 0
        self._new: list[str] = []
        self._places: dict[str, list[int]] = {}
        self._bare: dict[str, list[int]] = {}
        self._left = _MOST_COMPARED

    def result(self) -> str:
        lines = [*self._new, *self._lines[self._done :]]
        return "\n".join(lines) + ("\n" if self._is_ended and lines else "")

    def apply(self, hunk: PatchHunk, rows: Sequence[Row]) -> None:
        old = [line for sign, line in rows if sign != "+"]
        place = self._find(hunk, rows, old)
        end = place + len(old)
        if hunk.old_cut or hunk.new_cut:
            if end < len(self._lines) or (old and hunk.old_cut == self._is_ended):
                wanted = "without" if hunk.old_cut else "with"
                message = f"the file does not end there {wanted} a line end"
                raise self._error("no_match", hunk, message, line=end)
            self._is_ended = not hunk.new_cut
        elif not self._lines:
            self._is_ended = True
        self._new += self._lines[self._done : place]
        self._new += [line for sign, line in rows if sign != "-"]
        self._done = end

    def _find(self, hunk: PatchHunk, rows: Sequence[Row], old: list[str]) -> int:
        """The place of the lines of a hunk, counted from 0."""
        if not old:
            if hunk.at_end or not self._lines:
                return len(self._lines)
            message = "it has no line of the file, so that its place is not certain"
            raise self._error("no_match", hunk, message)
        stated = -1 if hunk.start is None else hunk.start - 1
        if stated >= self._done and self._lines[stated : stated + len(old)] == old:
            return stated
        places = self._all_places(hunk, old)
        for anchor in hunk.anchors:
            if not self._anchor_places(anchor):
                message = f"there is no line `{_show(anchor)}` below the hunks before it"
                raise self._error("no_match", hunk, message, expected=anchor)
        if len(places) > 1 and hunk.anchors:
            places = self._below_anchors(hunk, places)
        if not places:
            raise self._no_match(hunk, rows, old)
        if len(places) > 1:
            numbers = [place + 1 for place in places[:_MOST_LISTED]]
            listed = first_of([*map(str, numbers)], _MOST_LISTED)
            more = " and more" if len(places) > _MOST_LISTED else ""
            message = f"its lines occur at lines {listed}{more}; give more lines around the change"
            raise self._error("ambiguous", hunk, message, lines=[*numbers])
        return places[0]

    def _all_places(self, hunk: PatchHunk, old: list[str]) -> list[int]:
        """The places of some lines after the hunks before, at most a few more than are listed."""
        if not self._places:
            for number, line in enumerate(self._lines):
                self._places.setdefault(line, []).append(number)
        if hunk.at_end:
            place = len(self._lines) - len(old)
            return [place] if place >= self._done and self._lines[place:] == old else []
        # The rarest of the lines has the fewest places to look at.
        known = [self._places.get(line, []) for line in old]
        ahead = min(range(len(old)), key=lambda number: len(known[number]))
        found: list[int] = []
        rarest = known[ahead]
        for number in range(bisect_left(rarest, self._done + ahead), len(rarest)):
            place = rarest[number] - ahead
            self._spend(hunk, len(old))
            if self._lines[place : place + len(old)] == old:
                found.append(place)
                if len(found) > _MOST_PLACES:
                    break
        return found

    def _spend(self, hunk: PatchHunk, lines: int) -> None:
        self._left -= lines
        if self._left < 0:
            message = "too many places would have to be compared; give the line numbers"
            raise self._error("too_slow", hunk, message)

    def _below_anchors(self, hunk: PatchHunk, places: list[int]) -> list[int]:
        """Keep the places whose outer lines, by indentation, are the anchors; else all below."""
        inner = [place for place in places if {*hunk.anchors} <= self._outer_lines(hunk, place)]
        if inner:
            return inner
        above = self._anchor_places(hunk.anchors[-1])
        return [place for place in places if len(above) == 1 and place >= above[0]] or places

    def _anchor_places(self, anchor: str) -> list[int]:
        """The first two lines after the hunks before that are an anchor, but for their indent."""
        if not self._bare:
            for number, line in enumerate(self._lines):
                self._bare.setdefault(line.strip(), []).append(number)
        known = self._bare.get(anchor, [])
        first = bisect_left(known, self._done)
        return known[first : first + 2]

    def _outer_lines(self, hunk: PatchHunk, place: int) -> set[str]:
        found: set[str] = set()
        while place < len(self._lines) and not self._lines[place].strip():
            place += 1
        indent = len(self._lines[place]) - len(self._lines[place].lstrip()) + 1
        for number in range(place, -1, -1):
            line = self._lines[number]
            bare = line.strip()
            if bare and len(line) - len(line.lstrip()) < indent:
                indent = len(line) - len(line.lstrip())
                found.add(bare)
            self._spend(hunk, 1)
            if not indent:
                break
        return found

    def _no_match(self, hunk: PatchHunk, rows: Sequence[Row], old: list[str]) -> PackError:
        """Report the first line that differs, where most of the lines fit."""
        lead = next((number for number, line in enumerate(old) if line.strip()), 0)
        starts = [number - lead for number in self._places.get(old[lead], [])[:_MOST_LISTED]]
        if hunk.start:
            starts.append(hunk.start - 1)
        starts = [start for start in starts if 0 <= start < len(self._lines)]
        if not starts:
            message = f"there is no line `{_show(old[lead])}` in the file"
            return self._error("no_match", hunk, message, expected=_show(old[lead]))
        fitting = {start: self._count_fitting(start, old) for start in starts}
        start = max(starts, key=lambda each: (fitting[each], each == (hunk.start or 0) - 1))
        count = fitting[start]
        if count == len(old):
            message = f"its lines are at line {start + 1}, above those of the hunk before it"
            return self._error("no_match", hunk, message, line=start + 1)
        kept = [number for number, (sign, _) in enumerate(rows) if sign != "+"]
        place = start + count
        actual = self._lines[place] if place < len(self._lines) else None
        shown = "the end of the file" if actual is None else f"`{_show(actual)}`"
        is_spaced = actual is not None and actual.split() == old[count].split()
        message = (
            f"line {place + 1} is {shown}, and line {hunk.line + kept[count]} of the patch has "
            f"`{_show(old[count])}`{' (only the spaces differ)' if is_spaced else ''}"
        )
        details: dict[str, JsonValue] = {"line": place + 1, "expected": _show(old[count])}
        details["actual"] = None if actual is None else _show(actual)
        return self._error("no_match", hunk, message, **details)

    def _count_fitting(self, start: int, old: Sequence[str]) -> int:
        """Count the lines that fit at a place before the first one that does not."""
        there = self._lines[start : start + len(old)]
        pairs = enumerate(zip(there, old, strict=False))
        return next((number for number, (line, expected) in pairs if line != expected), len(there))

    def _error(self, code: str, hunk: PatchHunk, message: str, **details: JsonValue) -> PackError:
        where = f"hunk {hunk.number} of `{self._path}` (line {hunk.line} of the patch)"
        details |= {"path": self._path, "hunk": hunk.number, "patch_line": hunk.line}
        return PackError(code, f"{where} does not fit: {message}", **details)


def _show(line: str) -> str:
    return shorten(for_line(line), _LONGEST_SHOWN)
