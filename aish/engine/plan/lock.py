"""Lock files: location, reading and writing, pins, and descriptions of differences.

Pins record what a pipeline declares and a server offers. Differences contain untrusted text, which
must be escaped line by line when printed. Most runs have no lock, so code needed only for one is
imported lazily.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from json import JSONDecodeError
from pathlib import Path

from aish.config.documents import UnreadableError, parse_json, read_text
from aish.config.model import (
    Attachment,
    ContextFile,
    Pipeline,
    Prompt,
    PromptStep,
    Retrieval,
    ServerEntry,
    ServerPrompt,
    ServerSandbox,
)
from aish.core.errors import Position, Problem, UsageError
from aish.core.json import JsonObject, JsonValue, canonical
from aish.core.options import option_words
from aish.core.phrases import first_of, shorten
from aish.core.text import for_line, suspicious
from aish.core.text_diff import line_changes
from aish.core.tools import Tool, ToolName, definition_of
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.literals import literal_secrets
from aish.packs.catalogue import PACKS, is_builtin
from aish.policy.lock import (
    Difference,
    FieldChange,
    Lock,
    ServerPin,
    ToolPin,
    can_be_kept,
    pin_of,
    tool_from_pin,
)
from aish.system.globs import matches_word
from aish.system.secrets.secrets import Secrets

LIMIT = 16 * 1024 * 1024


class LockFileError(UsageError):
    """An unusable lock file; `problem` has the position in it."""

    code = "lock_file"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message, where=str(problem.position), hint=problem.hint)
        self.problem = problem


def lock_path(pipeline: Pipeline) -> Path:
    """The path of the pipeline's lock: from `lock:`, or next to the file."""
    return pipeline.lock or pipeline.file.with_name(f"{pipeline.file.stem}.lock.json")


def lock_of(pipeline: Pipeline) -> Lock | None:
    """The pipeline's lock; `None` if there is none and the file names none.

    Raises:
        LockFileError: it cannot be used, or the file names a missing one.
    """
    path = lock_path(pipeline)
    if pipeline.lock is None and not path.exists() and not path.is_symlink():
        return None
    return read_lock(path, pipeline.file)


def is_ignored(found: Difference, pipeline: Pipeline) -> bool:
    return f"{found.kind}s" in pipeline.lock_ignore


def read_lock(path: Path, pipeline: Path) -> Lock:
    """The lock in a file.

    Raises:
        LockFileError: there is none.
    """
    from aish.policy.lock import BadLockError, lock_of_data

    try:
        text = read_text(path, LIMIT)
    except UnreadableError as error:
        problem = error.problem
        message, hint = f"the lock file: {problem.message}", problem.hint
        if not path.exists():
            message, hint = "there is no lock file", f"`aish lock {pipeline}` writes it"
        raise LockFileError(_problem(path, message, hint)) from error
    if not text.strip():
        raise LockFileError(_problem(path, "the lock file is empty", _again(pipeline)))
    try:
        return lock_of_data(parse_json(text))
    except BadLockError as error:
        raise LockFileError(_problem(path, str(error), error.hint)) from error
    except JSONDecodeError as error:
        place = Position(str(path), error.lineno, error.colno)
        message = f"the lock file is not JSON: {error.msg}"
        raise LockFileError(Problem(place, "", message, _again(pipeline))) from error
    except ValueError as error:
        message = f"the lock file is not JSON: {error}"
        raise LockFileError(_problem(path, message, _again(pipeline))) from error


def write_lock(path: Path, lock: Lock) -> None:
    """Write the lock atomically, replacing an older one."""
    from aish.policy.lock import lock_text
    from aish.system.files import atomic_write

    data = lock_text(lock).encode()
    if len(data) > LIMIT:
        raise UsageError(
            f"the lock would be larger than {LIMIT // 1024**2} MiB",
            where=str(path),
            hint="leave tools out with `tools` or `exclude` of their server",
        )
    try:
        atomic_write(path, data, shared=True)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _again(pipeline: Path) -> str:
    return f"restore it, or delete it and write a new one with `aish lock {pipeline}`"


def _problem(path: Path, message: str, hint: str | None) -> Problem:
    return Problem(Position(str(path), 1, 1), "", message, hint)


def pins_of_file(pipeline: Pipeline, secrets: Secrets) -> Lock:
    """The pins of the declarations in the file; servers without their tools."""
    prompts = {step.id: _prompt(step) for step in pipeline.steps if isinstance(step, PromptStep)}
    return Lock(
        servers={
            alias: _server(entry, secrets, pipeline.file.parent.absolute())
            for alias, entry in pipeline.servers.items()
        },
        models={
            alias: secrets.mask(entry.model or entry.embedded or alias)
            for alias, entry in pipeline.models.items()
        },
        prompts=prompts,
        keys={
            source.place: tuple(map(secrets.mask, source.command))
            for source in pipeline.key_sources()
            if source.command
        },
    )


def with_tools(
    lock: Lock, tools: Iterable[Tool], secrets: Secrets, instructions: Mapping[str, str]
) -> Lock:
    """The same, with the tools that servers offer, and the instructions that are used."""
    pins: dict[str, dict[str, ToolPin]] = {alias: {} for alias in lock.servers}
    for tool in tools:
        pins[tool.name.server][tool.name.name] = pin_now(tool, secrets)
    servers = {
        alias: replace(
            server, tools=pins[alias], instructions=secrets.mask(instructions.get(alias, ""))
        )
        for alias, server in lock.servers.items()
    }
    return replace(lock, servers=servers)


def pin_now(tool: Tool, secrets: Secrets) -> ToolPin:
    """The pin of a tool as its server currently defines it.

    Secrets in it are masked first: so none is written, a new value of one is not a difference, and
    the hash equals that of the cassette.
    """
    definition = secrets.mask_json(definition_of(tool))
    assert isinstance(definition, Mapping)
    pin = pin_of(tool.name.name, definition)
    return pin if can_be_kept(definition) else ToolPin(pin.sha256)


def locked_tools(pipeline: Pipeline, lock: Lock) -> Mapping[ToolName, Tool]:
    tools: dict[ToolName, Tool] = {}
    for alias in known_servers(pipeline, lock):
        entry = pipeline.servers[alias]
        pins = lock.servers[alias]
        for name, pin in pins.tools.items():
            named = ToolName(alias, name)
            tool = tool_from_pin(named, pin, trusted=entry.trust, builtin=is_builtin(entry.pack))
            if tool is not None and is_wanted(entry, name):
                tools[tool.name] = tool
    return tools


def known_servers(pipeline: Pipeline, lock: Lock) -> tuple[str, ...]:
    """The servers of the file whose pins are unchanged."""
    now = pins_of_file(pipeline, literal_secrets(pipeline)).servers
    return tuple(
        alias for alias, pin in lock.servers.items() if alias in now and pin.is_at(now[alias])
    )


def find_locked_tool(name: ToolName, pipeline: Pipeline, lock: Lock) -> Tool | None:
    return locked_tools(pipeline, lock).get(name)


def known_tool(name: ToolName, pipeline: Pipeline, lock: Lock | None) -> Tool | None:
    """A tool as far as it is known without asking its server: from the lock, or built in."""
    locked = None if lock is None else find_locked_tool(name, pipeline, lock)
    return locked or presumed_tool(name, pipeline)


def is_wanted(entry: ServerEntry, name: str) -> bool:
    """Return true if the entry's `tools` and `exclude` admit a tool, as when connecting."""
    is_listed = not entry.tools or any(matches_word(glob, name) for glob in entry.tools)
    return is_listed and not any(matches_word(glob, name) for glob in entry.exclude)


def _server(entry: ServerEntry, secrets: Secrets, folder: Path) -> ServerPin:
    if entry.url is not None:
        return ServerPin("http", (secrets.mask(entry.url),), {})
    if entry.command:
        sandbox = None if entry.sandbox is None else _sandbox(entry.sandbox, folder)
        command = tuple(map(secrets.mask, entry.command))
        return ServerPin("stdio", command, {}, sandbox=sandbox)
    offered = (word for pack in entry.pack if pack not in PACKS for word in _requirement(pack))
    return ServerPin("pack", (*entry.pack, *offered, *option_words(entry.options)), {})


def _sandbox(sandbox: ServerSandbox, folder: Path) -> JsonObject:
    """Describe what a server may use, its paths relative to the file."""
    read, write = (
        sorted(os.path.relpath(path, folder) for path in paths)
        for paths in (sandbox.read, sandbox.write)
    )
    network = sandbox.network if isinstance(sandbox.network, str) else sorted(sandbox.network)
    row: dict[str, JsonValue] = {"read": read, "write": write, "network": network}
    return {**row, "best_effort": True} if sandbox.best_effort else row


def _requirement(pack: str) -> tuple[str, ...]:
    """The distribution that offers a pack, with its version."""
    from aish.system.pack_index import find_offered_pack

    offer = find_offered_pack(pack)
    return () if offer is None else (offer.requirement,)


def _context_file(file: ContextFile) -> JsonValue:
    lines = None if file.lines is None else list(file.lines)
    return ["context", file.path, file.is_glob, lines, file.name, file.skeleton]


def _attachment_pin(entry: Attachment | Retrieval) -> JsonValue:
    if isinstance(entry, Attachment):
        return [entry.ref, entry.server]
    named = [] if entry.collection is None else [entry.collection]
    return ["query", entry.query, entry.server, entry.top_k, entry.threshold, *named]


def _prompt(step: PromptStep) -> str:
    """The hash of everything that a step's author wrote for the model."""
    parts: list[JsonValue]
    match step.prompt:
        case Prompt(user=user, system=system):
            parts = [user, system, step.system]
        case ServerPrompt(server=server, name=name, arguments=arguments):
            parts = [{"server": server, "name": name, "arguments": dict(arguments)}, step.system]
    # A prompt without attachments keeps the hash that it had before `attach` existed.
    parts += [_attachment_pin(attachment) for attachment in step.attach]
    # The same holds for files that stay current.
    parts += [_context_file(file) for file in step.context.files]
    return sha256(canonical(parts).encode("ascii")).hexdigest()


_SHORT = 160
_MOST_NAMES = 5
_KINDS = {
    "server": "server ",
    "model": "model ",
    "prompt": "prompt of step ",
    "tool": "",
    "key": "command for ",
    "package": "packages of ",
}


def summary(found: Difference) -> str:
    """A difference on one line: the changed fields, or the description of a new tool."""
    name = f"{_KINDS[found.kind]}`{found.name}`"
    if found.change == "removed":
        return f"{name} is pinned but missing"
    if found.change == "added":
        description = next((f.after for f in found.fields if f.field == "description"), "")
        return f"{name} is not in the lock" + (f": {_quote(description)}" if description else "")
    if found.kind == "prompt":
        return f"{name} differs from the locked one"
    changes = "; ".join(_change(field) for field in found.fields)
    return f"{name} differs from the lock: {changes}"


def difference_names(found: Sequence[Difference]) -> str:
    return first_of([f"{_KINDS[one.kind]}`{one.name}`" for one in found], _MOST_NAMES)


def difference_lines(found: Difference) -> Iterator[str]:
    """A difference in full: each field with removed and added lines."""
    yield f"{_KINDS[found.kind]}{for_line(found.name)}: {found.change}"
    for field in found.fields:
        if found.kind == "prompt":
            continue
        yield f"  {field.field}"
        yield from (f"    {line}" for line in _field_lines(field))
    new = [field.after for field in found.fields if field.after is not None]
    if found.kind in {"tool", "server", "key"} and (signs := signs_of([found.name, *new])):
        yield f"  suspicious: {', '.join(signs)}"


def signs_of(values: Sequence[JsonValue]) -> tuple[str, ...]:
    """Suspicious features in the texts of these values."""
    from aish.engine.plan.order import texts

    return suspicious("\n".join(text for value in values for text in texts(value)))


def _field_lines(field: FieldChange) -> Iterator[str]:
    if field.before is None or field.after is None:
        sign, value = ("+", field.after) if field.before is None else ("-", field.before)
        yield from (f"{sign} {for_line(line)}" for line in _text(value).split("\n"))
        return
    before, after = _text(field.before), _text(field.after)
    lines = line_changes(before, after)
    if sorted(map(for_line, before.split("\n"))) == sorted(map(for_line, after.split("\n"))):
        # The difference is invisible even with special characters escaped.
        lines = line_changes(json.dumps(before), json.dumps(after))
    for line in lines:
        sign = line[:1]
        yield for_line(line if sign == "@" else f"{sign} {line[1:]}")


def _text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return "\n".join(map(str, value))
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True, default=dict)


def _change(field: FieldChange) -> str:
    if isinstance(field.before, str) and isinstance(field.after, str):
        return f"{field.field} {_quote(field.before)} → {_quote(field.after)}"
    lines = (line for line in _field_lines(field) if not line.startswith(("@", "  ")))
    changed = (f"{line[:2]}{line[2:].strip()}" for line in lines)
    return f"{field.field} {shorten(' '.join(changed), _SHORT)}"


def _quote(value: JsonValue) -> str:
    return json.dumps(shorten(str(value), _SHORT), ensure_ascii=False)
