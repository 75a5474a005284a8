"""`run.started`: what a run is made of, said before anything else."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from urllib.parse import urlsplit

from aish import __version__
from aish.config.environment import variables
from aish.config.models import ModelEntry
from aish.config.steps import Limits, LoopLimits
from aish.core.events import ModelInfo, RunStarted, ServerInfo
from aish.core.json import JsonValue
from aish.run.options import RunOptions
from aish.run.plan import Plan
from aish.run.resuming.fingerprint import fingerprint
from aish.run.surroundings import Surroundings


def run_started(
    plan: Plan, options: RunOptions, servers: tuple[ServerInfo, ...], around: Surroundings
) -> RunStarted:
    """The head of the event stream."""
    return RunStarted(
        aish=__version__,
        pipeline=plan.pipeline.name,
        digest=plan.pipeline.digest,
        models=tuple(_models(plan)),
        servers=servers,
        rules=plan.policy.infos(),
        limits=limits_of(plan),
        inputs=dict(options.inputs),
        overrides=plan.pipeline.overrides,
        folder=around.folder.shown,
        resumed_from=None if around.carried is None else around.carried.run,
        # A run that leaves nothing behind is not gone on with.
        fingerprint={} if around.folder.path is None else fingerprint(plan, options),
        shard=options.shard,
        cassette=None if around.tape is None else around.tape.info,
    )


def _models(plan: Plan, prefix: str = "") -> Iterator[ModelInfo]:
    """Every model; those of sub-pipelines as `step/alias`, like their servers."""
    for alias, resolved in plan.models.items():
        yield ModelInfo(prefix + alias, model_name(resolved.entry), origin(resolved.entry))
    for id, inner in plan.inner.items():
        yield from _models(inner, f"{prefix}{id}/")


def model_name(entry: ModelEntry) -> str:
    """What the endpoint calls the model."""
    return entry.model or entry.embedded or entry.alias


def origin(entry: ModelEntry) -> str:
    """Scheme, host and port, or `embedded`; nothing that could carry a credential.

    Of an address that is not known, only which variable it waits for.
    """
    if entry.base_url is None or entry.embedded is not None:
        return "embedded"
    for name, default in variables(entry.base_url):
        if default is None:
            return f"${{{name}}}"
    parts = urlsplit(entry.base_url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}"


def limits_of(plan: Plan) -> Mapping[str, JsonValue]:
    """The bounds of the run and of its steps' loops."""
    return {"time": None, **bounds_of(plan.limits), "steps": dict(_loops(plan))}


def _loops(plan: Plan, prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    """The bounds of each step; those of sub-pipelines as `step/step`."""
    for step in plan.steps:
        limits: LoopLimits = step.limits
        loop = {
            "max_tool_depth": limits.max_tool_depth,
            "max_calls_per_turn": limits.max_calls_per_turn,
            "result_limit": limits.result_limit,
        }
        yield prefix + step.id, {**loop, **bounds_of(step.flow.limits)}
        if step.id in plan.inner:
            yield from _loops(plan.inner[step.id], f"{prefix}{step.id}/")


def bounds_of(limits: Limits) -> Mapping[str, JsonValue]:
    """The limits that are set (B8)."""
    given = ((field.name, getattr(limits, field.name)) for field in fields(limits))
    return {name: value for name, value in given if value is not None}
