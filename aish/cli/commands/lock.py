"""`aish lock FILE`."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from enum import Enum
from functools import partial
from itertools import compress
from pathlib import Path
from shlex import quote
from typing import Annotated

import anyio

from aish.cli.arguments import ASK_MODELS
from aish.cli.boundary import report, say
from aish.cli.options import (
    OWN_FILE,
    BroadRootOption,
    LockUse,
    Option,
    ProjectFileArgument,
    Report,
    ReportOption,
    SetOption,
)
from aish.cli.pipeline_options import load
from aish.cli.printer import print_json, print_text
from aish.cli.tool_preview import quiet_environment, tools_plan
from aish.config.model import Pipeline
from aish.core.errors import ExitCode, LockDiffersError, UsageError
from aish.core.events import ServedModels, plain
from aish.core.json import JsonObject
from aish.core.phrases import counted, dollars
from aish.engine.plan.lock import (
    difference_lines,
    difference_names,
    is_ignored,
    lock_path,
    read_lock,
    write_lock,
)
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import make_plan
from aish.features.history.run_store import find_run, open_stores
from aish.features.history.summary import require_past
from aish.features.lockfile import Taken, take_lock
from aish.output.status import tokens_text
from aish.policy.lock import Difference, Lock
from aish.system.secrets.secrets import Secrets


class _Way(Enum):
    WRITE = "write"
    CHECK = "--check"
    UPDATE = "--update"
    DIFF = "--diff"


def command(
    file: ProjectFileArgument = OWN_FILE,
    *,
    check: Annotated[
        bool, Option("--check", "Write nothing; exit 7 if something differs.")
    ] = False,
    update: Annotated[bool, Option("--update", "Accept the differences, and print them.")] = False,
    diff: Annotated[
        bool, Option("--diff", "Write nothing; print what `--update` would accept.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        Option("--accept TOOL", "Treat this suspicious `alias__tool` as harmless."),
    ] = None,
    served: Annotated[
        str | None,
        Option(
            "--served [RUN]",
            "Pin the names under which models have answered in this run or cassette; without a"
            " value, ask each model for one token.",
        ),
    ] = None,
    overrides: SetOption = None,
    broad_root: BroadRootOption = False,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Pin tools, servers, models and prompts in a lock file.

    The lock file is next to the pipeline file, or at the path in its `lock:`.

    Example: aish lock pipelines/review.yaml --check
    """
    chosen = list(compress((_Way.CHECK, _Way.UPDATE, _Way.DIFF), (check, update, diff)))
    if len(chosen) > 1:
        raise UsageError(f"`{chosen[0].value}` and `{chosen[1].value}` exclude each other")
    way = chosen[0] if chosen else _Way.WRITE
    pipeline = load(file, overrides, lock=LockUse.NONE)
    path = lock_path(pipeline)
    older = None
    if way is _Way.CHECK or path.exists():
        older = read_lock(path, pipeline.file)
    options = RunOptions(allow_broad_root=broad_root, lock="none", environ=dict(os.environ))
    plan = tools_plan(pipeline, options)
    accepted = accept or []
    if accepted and way in {_Way.CHECK, _Way.DIFF}:
        raise UsageError(f"`--accept` and `{way.value}` exclude each other")
    renew = way in {_Way.UPDATE, _Way.DIFF}
    names = {} if served is None else _served_names(served, pipeline, options)
    around = (plan, older, quiet_environment(plan), accepted)
    taken = anyio.run(partial(take_lock, *around, renew=renew, served=names))
    differs = bool(_differences_to_keep(taken, pipeline))
    writes = way is _Way.UPDATE or (way is _Way.WRITE and older is None)
    writes = writes or (way is _Way.WRITE and bool(accepted or names) and not differs)
    if writes and (taken.differences or older != taken.lock):
        write_lock(path, taken.lock)
    if output_format is Report.JSON:
        print_json(plan.secrets.mask_json(_row(path, taken, older, wrote=writes)))
    else:
        _print(path, taken, older, way, plan.secrets)
    for server in taken.unasked:
        reason = plan.secrets.mask(server.error or "")
        say(f"warning: mcp server `{server.alias}` is missing and was not compared: {reason}")
    for result in taken.unpinned:
        reason = plan.secrets.mask("" if result.error is None else result.error.message)
        say(f"warning: the packages of mcp server `{result.alias}` are not pinned: {reason}")
    if not differs or writes:
        return int(ExitCode.OK)
    return _end(
        path,
        f"aish lock {file}{_served_option(served)} --update",
        _differences_to_keep(taken, pipeline),
        way,
    )


def _served_names(
    source: str, pipeline: Pipeline, options: RunOptions
) -> Mapping[str, tuple[str, ...]]:
    """The names under which models have answered: in a run, in a cassette, or asked for now."""
    names = {}
    for one in _served_models(source, pipeline, options):
        if None in one.models:
            say(f"warning: an answer of model `{one.alias}` names no model")
        if one.alias in pipeline.models and one.names:
            names[one.alias] = one.names
    if not names:
        message = "no answer there names a model of this file"
        raise UsageError(message, where=f"--served {source}")
    return names


def _served_models(
    source: str, pipeline: Pipeline, options: RunOptions
) -> tuple[ServedModels, ...]:
    from aish.features import served_models

    if source == ASK_MODELS:
        plan = make_plan(pipeline, options)
        asked = anyio.run(served_models.ask_models, plan, quiet_environment(plan))
        many = counted(len(asked.served), "model")
        tokens = tokens_text(asked.usage, asked.cost_usd) or "tokens unknown"
        cost = "unknown" if asked.cost_usd is None else dollars(asked.cost_usd)
        say(f"asked {many} for one token each: {tokens}, cost {cost}")
        return asked.served
    if Path(source).is_file():
        from aish.features.recording.session import CassetteChoice, load_session

        session = load_session(CassetteChoice(Path(source)))
        assert session.cassette is not None, "it is replayed"
        plan = make_plan(pipeline, options, session=session)
        return served_models.names_in_cassette(plan, session.cassette)
    with ExitStack() as stack:
        store, id = find_run(open_stores(None, stack), source)
        return served_models.names_in_run(require_past(store, id, stack).reading, pipeline)


def _differences_to_keep(taken: Taken, pipeline: Pipeline) -> tuple[Difference, ...]:
    return tuple(found for found in taken.differences if not is_ignored(found, pipeline))


def _print(path: Path, taken: Taken, older: Lock | None, way: _Way, secrets: Secrets) -> None:
    if older is None and way is not _Way.DIFF:
        _print_new(path, taken)
        return
    for difference in taken.differences:
        lines = (secrets.mask(line) for line in difference_lines(difference))
        print_text("\n".join(lines))
    if not taken.differences and older is not None and older != taken.lock:
        what = "tools" if older.served == taken.lock.served else "names of models"
        say(f"{path}: written, with the accepted {what}")
    elif not taken.differences and way is not _Way.DIFF:
        print_text(f"{path}: nothing differs")
    elif way is _Way.UPDATE:
        say(f"{path}: written, {counted(len(taken.differences), 'difference')} accepted")


def _print_new(path: Path, taken: Taken) -> None:
    servers = taken.lock.servers
    tools = sum(len(server.tools) for server in servers.values())
    names = sum(map(len, taken.lock.served.values()))
    parts = (
        f"{counted(tools, 'tool')} of {counted(len(servers), 'server')}",
        counted(len(taken.lock.models), "model"),
        counted(len(taken.lock.prompts), "prompt"),
        *([f"{counted(names, 'name')} of models"] if names else ()),
    )
    print_text(f"{path}: {', '.join(parts)}")
    for found in taken.differences:
        alias, _, name = found.name.partition("__")
        if found.kind == "tool" and not servers[alias].tools[name].accepted:
            signs = [line for line in difference_lines(found) if line.startswith("  suspicious: ")]
            for sign in signs:
                say(f"warning: `{found.name}` is {sign.strip()}")


def _row(path: Path, taken: Taken, older: Lock | None, *, wrote: bool) -> JsonObject:
    return {
        "lock": str(path),
        "written": wrote and (bool(taken.differences) or older != taken.lock),
        "same": not taken.differences,
        "differences": [plain(difference) for difference in taken.differences],
        "not_compared": [server.alias for server in taken.unasked],
    }


def _served_option(served: str | None) -> str:
    if served is None:
        return ""
    return " --served" if served == ASK_MODELS else f" --served {quote(served)}"


def _end(path: Path, update: str, differences: tuple[Difference, ...], way: _Way) -> int:
    if way is not _Way.DIFF:
        count = len(differences)
        verb = "differs" if count == 1 else "differ"
        report(
            LockDiffersError(
                f"{difference_names(differences)} {verb} from the lock",
                where=str(path),
                hint=f"`{update}` accepts the changes, after a review",
            )
        )
    return int(ExitCode.LOCK)
