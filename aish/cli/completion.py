"""Shell completion beside commands and options: runs, models, tools (of a file).

Nothing is contacted or printed: what cannot be read has no completions. Imported when something is
completed.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import typer

from aish.cli.options import OWN_FILE
from aish.config.loader import read_pipeline
from aish.config.model import Pipeline
from aish.core.errors import AishError
from aish.core.json import JsonObject
from aish.engine.plan.lock import is_wanted, lock_of, locked_tools
from aish.features.approvals.pending import find_asking, questions_of
from aish.features.history.run_store import newest_first, open_project, open_stores
from aish.packs.catalogue import tools_of

_MOST = 50


def run_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The runs of this project, the newest first, and `latest`; sessions for `aish shell`."""
    value = ctx.params.get("run_dir")
    run_dir = Path(value) if isinstance(value, (str, Path)) else None
    with ExitStack() as stack, suppress(AishError, OSError):
        if ctx.info_name == "shell" and run_dir is None:
            stores = [stack.enter_context(open_project(Path(), "sessions"))]
        else:
            stores = list(open_stores(run_dir, stack))
        ids = ["latest", *(id for id, _ in newest_first(stores))]
        return [id for id in ids if id.startswith(incomplete)][:_MOST]
    return []


def question_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    value, run = ctx.params.get("run_dir"), ctx.params.get("run")
    folder = Path(value) if isinstance(value, (str, Path)) else None
    if not isinstance(run, str):
        return []
    with ExitStack() as stack, suppress(AishError, OSError):
        store, id = find_asking(folder, run, stack)
        return [
            (question.id, question.tool)
            for question in questions_of(store, id, time.time())
            if question.is_open and question.id.startswith(incomplete)
        ]
    return []


def model_aliases(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    pipeline = _pipeline(ctx)
    models = {} if pipeline is None else pipeline.models
    return [
        (alias, entry.model or entry.embedded or "")
        for alias, entry in models.items()
        if alias.startswith(incomplete)
    ]


def vendor_names(_: typer.Context, incomplete: str) -> list[str]:
    from aish.cli.commands.init import vendors

    return [name for name in vendors() if name.startswith(incomplete)]


def tool_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tools of the file as `alias__tool`, as far as known without contacting a server."""
    return [name for name in _tools(ctx) if name.startswith(incomplete)]


def argument_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The arguments of the tool on the command line as `name=`, as far as the lock has them."""
    pipeline, name = _pipeline(ctx), ctx.params.get("tool")
    properties = _lock_schemas(pipeline).get(str(name), {}).get("properties")
    names = properties if isinstance(properties, Mapping) else ()
    return [f"{key}=" for key in names if f"{key}=".startswith(incomplete)]


def tool_globs(ctx: typer.Context, incomplete: str) -> list[str]:
    """The same and, for rules, patterns for all tools of a server."""
    pipeline = _pipeline(ctx)
    servers = () if pipeline is None else pipeline.servers
    globs = (*(f"{alias}__*" for alias in servers), "shell__run")
    return [*tool_names(ctx, incomplete), *(glob for glob in globs if glob.startswith(incomplete))]


def _tools(ctx: typer.Context) -> Iterator[str]:
    pipeline = _pipeline(ctx)
    if pipeline is None:
        return
    locked = _lock_schemas(pipeline)
    yield from sorted(locked)
    for alias, entry in pipeline.servers.items():
        names = [name for name, _ in tools_of(entry.pack) if is_wanted(entry, name)]
        yield from (f"{alias}__{name}" for name in names if f"{alias}__{name}" not in locked)
        if not names and not any(name.startswith(f"{alias}__") for name in locked):
            # Only its server knows them, and is not contacted.
            yield f"{alias}__"


def _lock_schemas(pipeline: Pipeline | None) -> Mapping[str, JsonObject]:
    with suppress(AishError):
        if pipeline is not None and (lock := lock_of(pipeline)) is not None:
            tools = locked_tools(pipeline, lock).values()
            return {str(tool.name): tool.input_schema for tool in tools}
    return {}


def _pipeline(ctx: typer.Context) -> Pipeline | None:
    """The pipeline file on the command line, if it can be read."""
    value = ctx.params.get("file")
    file = value if isinstance(value, (str, Path)) and Path(value) != OWN_FILE else _file_on_line()
    with suppress(AishError, OSError):
        return read_pipeline(Path(file)).pipeline
    return None


def _file_on_line() -> str | Path:
    """The same from the raw line: after an option without its value nothing is parsed."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    names = (word.strip("'\"") for word in line.split())
    return next((name for name in names if name.endswith((".yaml", ".yml"))), OWN_FILE)
