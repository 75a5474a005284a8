"""Reads the files of a pipeline when it is loaded.

`extends` merges files into one tree in which each value keeps its position; prompts and schemas may
be separate files. A file that cannot be read as text is a problem with a position.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import field
from hashlib import sha256
from json import JSONDecodeError
from pathlib import Path

from aish.config.fields import Table
from aish.config.yaml_tree import (
    UNREADABLE,
    BrokenNode,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    at,
    parse_yaml,
    to_data,
)
from aish.core.errors import Position, Problem, UsageError
from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue, strict_json
from aish.system.files import PROJECT_FILE, read_capped

PIPELINE_LIMIT = 5_000_000
REFERENCED_LIMIT = 4 * 1024 * 1024


class UnreadableError(Exception):
    """A file that is not text of an allowed size; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_text(path: Path, limit: int = PIPELINE_LIMIT) -> str:
    """The text of a file.

    Raises:
        UnreadableError: it is missing, a folder, too large, binary, or not UTF-8.
    """
    try:
        data = _bytes(path, limit)
    except FileNotFoundError as error:
        hint = None
        if path == Path(PROJECT_FILE):
            hint = "`aish init` writes one; `aish COMMAND FILE` takes another"
        raise UnreadableError(_problem(path, "no such file", hint)) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableError(_problem(path, f"cannot be read: {reason}")) from error
    except ValueError as error:
        raise UnreadableError(_problem(path, "is not the name of a file")) from error
    except UsageError as error:
        raise UnreadableError(_problem(path, _too_large(limit))) from error
    return as_text(data, str(path), limit)


def reason(error: UnreadableError) -> str:
    """The reason, as the end of a sentence that begins with the file."""
    message = error.problem.message
    return "is not there" if message == "no such file" else message


def _bytes(path: Path, limit: int) -> bytes:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise UnreadableError(_problem(path, "is a folder, not a file"))
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableError(_problem(path, "is not a regular file"))
    if status.st_size > limit:
        raise UnreadableError(_problem(path, _too_large(limit)))
    return read_capped(path, limit)


def as_text(data: bytes, file: str, limit: int = PIPELINE_LIMIT) -> str:
    """Bytes as text, without a BOM.

    Raises:
        UnreadableError: they are too many, binary, or not UTF-8.
    """
    if len(data) > limit:
        raise UnreadableError(Problem(Position(file, 1, 1), "", _too_large(limit)))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unreadable(data, 0, file, "is UTF-16, not UTF-8", "save it as UTF-8")
    nul = data.find(b"\0")
    if nul >= 0:
        raise _unreadable(data, nul, file, "a NUL byte: this is a binary file, not text", None)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        message = f"not UTF-8: byte 0x{data[start]:02x}"
        raise _unreadable(data, start, file, message, "save it as UTF-8") from error
    return text


def _too_large(limit: int) -> str:
    size = f"{limit // 1_000_000} MB" if limit % 1_000_000 == 0 else f"{limit // 1024**2} MiB"
    return f"is larger than {size}"


def _problem(path: Path, message: str, hint: str | None = None) -> Problem:
    return Problem(Position(str(path), 1, 1), "", message, hint)


def _unreadable(
    data: bytes, offset: int, file: str, message: str, hint: str | None
) -> UnreadableError:
    before = data[:offset]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
    return UnreadableError(Problem(Position(file, line, column), "", message, hint))


MAX_FILES = 64


@slotted
class Gathered:
    """The merged tree of a file and its bases, all problems found, and the files read for it."""

    root: MappingNode | None
    problems: list[Problem] = field(default_factory=list)
    files: tuple[str, ...] = ()


def read_with_bases(path: Path) -> Gathered:
    """The tree of `path`, merged with its bases."""
    reader = _Reader()
    try:
        root = reader.read(path, ())
    except UnreadableError as error:
        return Gathered(None, [error.problem])
    return Gathered(root, reader.problems, tuple(reader.known))


def parse_mapping(text: str, file: str) -> tuple[MappingNode | None, list[Problem]]:
    """The mapping in a text, as far as it can be read, and the problems found."""
    parsed = parse_yaml(text, file)
    root = parsed.root
    if isinstance(root, MappingNode):
        return root, list(parsed.problems)
    if parsed.problems:
        return None, list(parsed.problems)
    if root is None or (isinstance(root, ScalarNode) and root.value is None):
        message, hint = "the file is empty", "`aish init` writes a first pipeline"
        return None, [Problem(Position(file, 1, 1), "", message, hint)]
    kind = "a list" if isinstance(root, ListNode) else "a single value"
    message = f"a mapping is expected here, and this is {kind}"
    return None, [Problem(root.position, "", message, "a pipeline begins with `aish: 1`")]


@slotted
class _Reader:
    """Reads each file once, however often it is named."""

    problems: list[Problem] = field(default_factory=list)
    known: dict[str, MappingNode | None] = field(default_factory=dict)

    def read(self, path: Path, above: tuple[str, ...]) -> MappingNode | None:
        """The tree of a file with its bases.

        Raises:
            UnreadableError: `path` cannot be read as text.
        """
        key = _identity(path)
        if key in self.known:
            return self.known[key]
        self.known[key] = None
        root, problems = parse_mapping(read_text(path), str(path))
        self.problems += problems
        if root is not None:
            self.known[key] = self._with_bases(root, path, (*above, key))
        return self.known[key]

    def _with_bases(self, root: MappingNode, path: Path, above: tuple[str, ...]) -> MappingNode:
        whole: MappingNode | None = None
        bases, complete = self._bases(root)
        for named, place in bases:
            base = self._base(path.parent / str(named.value), named, place, above)
            if base is None:
                complete = False
            else:
                whole = base if whole is None else merge(whole, base)
        own = MappingNode(root.position, dict(root.entries), dict(root.keys))
        own.entries.pop("extends", None)
        own.keys.pop("extends", None)
        whole = own if whole is None else merge(whole, own)
        if not complete:
            # A missing value may be in the base that could not be read.
            whole.put(UNREADABLE, BrokenNode(root.position, None), root.position)
        return whole

    def _base(
        self, path: Path, named: ScalarNode, place: str, above: tuple[str, ...]
    ) -> MappingNode | None:
        key = _identity(path)
        if key in above:
            chain = " → ".join(f"`{Path(name).name}`" for name in (*above[above.index(key) :], key))
            self._problem(named, place, f"circular `extends`: {chain}")
            return None
        if len(self.known) >= MAX_FILES:
            self._problem(named, place, f"more than {MAX_FILES} files in one pipeline")
            return None
        try:
            return self.read(path, above)
        except UnreadableError as error:
            if error.problem.position.line > 1 or error.problem.position.column > 1:
                self.problems.append(error.problem)
            else:
                self._problem(named, place, f"the file `{named.value}` {reason(error)}")
            return None

    def _bases(self, root: MappingNode) -> tuple[list[tuple[ScalarNode, str]], bool]:
        """The names under `extends`, with the path of each; and whether all can be read."""
        value = root.entries.get("extends")
        if value is None:
            return [], True
        listed = (
            [(item, at("extends", index)) for index, item in enumerate(value.items)]
            if isinstance(value, ListNode)
            else [(value, "extends")]
        )
        names: list[tuple[ScalarNode, str]] = []
        for node, place in listed:
            if isinstance(node, ScalarNode) and isinstance(node.value, str) and node.value:
                names.append((node, place))
            elif not isinstance(node, BrokenNode):
                self._problem(node, place, "the name of a file is expected here")
        return names, len(names) == len(listed)

    def _problem(self, node: Node, place: str, message: str) -> None:
        self.problems.append(Problem(node.position, place, message))


def merge(below: MappingNode, over: MappingNode) -> MappingNode:
    """Mappings deeply merged; lists and scalars of `over` replace those of `below`."""
    whole = MappingNode(over.position, dict(below.entries), dict(below.keys))
    for key, value in over.entries.items():
        under = below.entries.get(key)
        if isinstance(under, MappingNode) and isinstance(value, MappingNode):
            whole.put(key, merge(under, value), over.keys[key])
        else:
            whole.put(key, value, over.keys[key])
    return whole


def _identity(path: Path) -> str:
    """An identity that all names of one file share."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return str(path)


MAX_DEPTH = 64


@slotted
class Documents:
    """Reads each file on demand and remembers its contents for the digest, and where it is."""

    hashes: dict[str, str] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)

    def text(self, table: Table, key: str) -> str:
        """The text of the file an entry names; empty where it cannot be read."""
        path = table.absolute(key)
        assert path is not None
        self.files[_identity(path)] = None
        try:
            text = read_text(path, REFERENCED_LIMIT)
        except UnreadableError as error:
            table.problem(key, f"the file `{table.text(key)}` {reason(error)}")
            return ""
        self.hashes[str(table.text(key))] = sha256(text.encode()).hexdigest()
        return text

    def schema(self, table: Table, key: str) -> JsonObject:
        """The JSON Schema given at an entry, or in the file it names."""
        name = table.text(key)
        if name is None:
            return table.mapping(key)
        text = self.text(table, key)
        if not text.strip():
            if str(name) in self.hashes:
                table.problem(key, f"the file `{name}` is empty")
            return {}
        try:
            return as_object(text, name)
        except ValueError as error:
            table.problem(key, f"the file `{name}` does not contain a JSON Schema: {error}")
            return {}


def as_object(text: str, name: str) -> JsonObject:
    """A JSON object, or a YAML mapping.

    Raises:
        ValueError: it is neither.
    """
    value = parse_document(text, name)
    if not isinstance(value, Mapping):
        raise ValueError("a mapping is expected")  # ruff: ignore[type-check-without-type-error] - wrong text, not a wrong call
    return value


def parse_document(text: str, name: str) -> JsonValue:
    """Text that looks like JSON (also indented by tabs) as JSON, else as a YAML mapping.

    Raises:
        ValueError: it is neither.
    """
    if text.lstrip()[:1] in {"{", "["}:
        try:
            return parse_json(text)
        except JSONDecodeError as error:
            if name.endswith(".json"):
                reason = f"line {error.lineno}, column {error.colno}: {error.msg}"
                raise ValueError(reason) from error
    root, problems = parse_mapping(text, name)
    if problems:
        problem = problems[0]
        place = f"line {problem.position.line}, column {problem.position.column}"
        raise ValueError(f"{place}: {problem.message}")
    assert root is not None
    return to_data(root)


def parse_json(text: str) -> JsonValue:
    """Strict JSON: no duplicate keys, no `NaN`, bounded numbers and depth.

    Raises:
        ValueError: it is not such JSON.
    """
    try:
        value = strict_json(text)
        if _depth(value) <= MAX_DEPTH:
            return value
    except RecursionError:
        pass
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def _depth(value: JsonValue) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0
