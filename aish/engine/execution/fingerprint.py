"""Fingerprint of a run: a short hash for each part that decides its results.

A run may be resumed if all of these are unchanged. Not included is what may change: limits, speed,
reporting, credentials, and what only tests read.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from aish.config.model import Foreach, PromptStep, Retrieval
from aish.core.errors import AishError
from aish.core.json import JsonObject, JsonValue, canonical
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import needs_of, texts
from aish.engine.plan.plan import Plan
from aish.engine.plan.template_context import template_context
from aish.engine.plan.uris import is_uri
from aish.system.computation import ComputationStoppedError
from aish.templates.render import render

_SIZE = 16
_BLOCK = 1 << 20
# If a signal or the time limit stops a template, the run ends at its next await.
_NOT_RENDERED = (AishError, ComputationStoppedError)

_BOUNDS = frozenset({"limits", "max_tool_depth", "max_calls_per_turn"})
_PACE = frozenset({"concurrency", "max_failures", "retry", "timeout", "on_error"})
_ACCESS = frozenset(
    {
        *("key_env", "key_command", "key_file", "key_ttl", "headers", "proxy", "verify_tls"),
        *("auth_env", "auth_token", "auth_command", "auth_file", "auth_ttl", "header_commands"),
        "oauth",
    }
)
_TESTS = frozenset({"tests", "policy_tests", "cassette"})
_WORDS = frozenset(
    {"aish", "name", "description", "extends", "secrets", "shell", "stdin", "control"}
)
# These are hashed part by part.
_PARTS = frozenset({"inputs", "env", "models", "mcp", "prompts", "steps", "lock"})

_OF_TOP = _BOUNDS | _PACE | _TESTS | _WORDS | _PARTS | {"on_wait"}
_OF_STEP = _BOUNDS | _PACE | {"id"}
_OF_MODEL = _PACE | _ACCESS | {"price", "usage"}
_OF_SERVER = _PACE | _ACCESS | {"required", "protocol"}
# `parallel` and `idempotent` say which calls may be repeated: adding one is a way to resume.
_OF_MCP = _BOUNDS | {"servers", "parallel", "idempotent"}


def fingerprint(plan: Plan, options: RunOptions) -> dict[str, str]:
    """A hash for each part: `steps.notes.prompt`, `inputs.since`, `file rows.csv`, `--model`.

    Secrets are removed first, so that no hash reveals one.
    """
    hashes = dict(_parts(plan, options))
    hashes.update(_files(plan, options))
    return hashes


def _parts(plan: Plan, options: RunOptions) -> Iterator[tuple[str, str]]:
    mask = plan.secrets.mask_json
    for path, value in (*_of_file(plan), *_option_parts(plan, options), *_of_inner(plan)):
        yield path, hash_value(mask(value))


def _of_inner(plan: Plan, above: str = "") -> Iterator[tuple[str, JsonValue]]:
    """The fingerprint of sub-pipelines: `notes/steps.draft.prompt` in the one that `notes` runs."""
    for id, inner in plan.inner.items():
        prefix = f"{above}{id}/"
        for path, value in _of_file(inner):
            yield f"{prefix}{path}", value
        for name in inner.pipeline.env:
            yield f"{prefix}env.{name}", inner.variables.get(name)
        for name, digest in _named_files(inner):
            yield f"file {name} ({prefix[:-1]})", digest
        yield from _of_inner(inner, prefix)


def hash_value(value: JsonValue) -> str:
    """The hash of a value; equal values have equal hashes."""
    return sha256(canonical(value).encode("ascii")).hexdigest()[:_SIZE]


def _of_file(plan: Plan) -> Iterator[tuple[str, JsonValue]]:
    """The parts of the merged file, with their paths; steps by their ids."""
    data = plan.pipeline.data
    yield from _entries(data, "", _OF_TOP)
    models, mcp = _table_at(data, "models"), _table_at(data, "mcp")
    for alias in plan.models:
        yield from _entries(_table_at(models, alias), f"models.{alias}.", _OF_MODEL)
    yield from _entries(mcp, "mcp.", _OF_MCP)
    servers = _table_at(mcp, "servers")
    for alias in servers:
        yield from _entries(_table_at(servers, alias), f"mcp.servers.{alias}.", _OF_SERVER)
    prompts = _table_at(data, "prompts")
    used = {step.prompt_name for step in plan.steps if isinstance(step, PromptStep)}
    yield from ((f"prompts.{name}", prompts[name]) for name in prompts if name in used)
    steps = data.get("steps")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, Mapping):
            yield from _entries(step, f"steps.{step.get('id')}.", _OF_STEP)


def _option_parts(plan: Plan, options: RunOptions) -> Iterator[tuple[str, JsonValue]]:
    """Parts that are not in the file."""
    for name, value in options.inputs.items():
        yield f"inputs.{name}", value
    for name in plan.pipeline.env:
        yield f"env.{name}", plan.variables.get(name)
    if options.stdin:
        yield "stdin", options.stdin
    if options.model is not None:
        yield "--model", options.model
    if options.delivery is not None:
        yield f"--delivery {options.delivery}", True
    if options.allow:
        yield "--allow", sorted(options.allow)
    if options.deny:
        yield "--deny", sorted(options.deny)
    if options.shard is not None:
        yield "--shard", f"{options.shard.index}/{options.shard.of}"
    if plan.lock is not None:
        yield "lock", _lock(plan)


def _lock(plan: Plan) -> JsonValue:
    lock = plan.lock
    assert lock is not None
    pins: dict[str, JsonValue] = {
        alias: {name: tool.sha256 for name, tool in server.tools.items()}
        for alias, server in lock.servers.items()
    }
    return {"tools": pins, "models": dict(lock.models), "prompts": dict(lock.prompts)}


def _entries(
    table: JsonObject, path: str, left_out: frozenset[str]
) -> Iterator[tuple[str, JsonValue]]:
    for key, value in table.items():
        if key == "output" and isinstance(value, Mapping):
            # The number of attempts for an answer is a limit.
            yield f"{path}{key}", {name: value[name] for name in value if name != "attempts"}
        elif key not in left_out:
            yield f"{path}{key}", value


def _table_at(table: JsonObject, key: str) -> JsonObject:
    value = table.get(key)
    return value if isinstance(value, Mapping) else {}


def _files(plan: Plan, options: RunOptions) -> Iterator[tuple[str, str]]:
    """The content of the files that the pipeline reads, attaches, and iterates over."""
    for name, digest in _named_files(plan):
        yield f"file {name}", digest[:_SIZE]
    context = template_context(plan.pipeline, options, {}, plan.variables)
    for step in plan.steps:
        source = step.flow.foreach
        if source is not None:
            # A template that reads a step's result cannot be rendered yet: its items are compared
            # individually.
            with suppress(*_NOT_RENDERED):
                yield from _items(source, context)
        if isinstance(step, PromptStep) and step.attach:
            yield from _file_hashes(step, plan, context)


def _file_hashes(
    step: PromptStep, plan: Plan, context: Mapping[str, JsonValue]
) -> Iterator[tuple[str, str]]:
    """Attached files, except those of steps with needs, whose needs may have written them."""
    if needs_of(step, [one.id for one in plan.steps]):
        return
    from aish.engine.steps.attachments import file_data

    for attachment in step.attach:
        if isinstance(attachment, Retrieval):
            continue
        with suppress(*_NOT_RENDERED):
            name = render(attachment.ref, context)
            if attachment.server is None and not is_uri(name):
                data = file_data(plan.pipeline.file.parent, name)
                yield f"file {name}", sha256(data).hexdigest()[:_SIZE]


def _named_files(plan: Plan) -> Iterator[tuple[str, str]]:
    """The prompt and schema files that the pipeline names, except those read only by tests."""
    pipeline = plan.pipeline
    named = set(texts({key: pipeline.data.get(key) for key in pipeline.data if key not in _TESTS}))
    yield from ((name, digest) for name, digest in pipeline.files.items() if name in named)


def _items(source: Foreach, context: Mapping[str, JsonValue]) -> Iterator[tuple[str, str]]:
    if source.file is not None:
        name = render(source.file, context)
        yield f"file {name}", _content(source.folder / name)
    elif source.glob is not None:
        from aish.items.globbing import files_of

        pattern = render(source.glob, context)
        yield f"files {pattern}", hash_value(files_of(pattern, source.folder))


def _content(path: Path) -> str:
    digest = sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except (OSError, ValueError):
        return "missing"
    return digest.hexdigest()[:_SIZE]
