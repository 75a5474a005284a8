"""The settings in force, which a reload replaces all at one instant.

Settings, rules, tools and clients are read from here each time, and never kept.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from aish.config.model import ServeSettings
from aish.core.errors import UsageError
from aish.core.frozen import frozen, slotted
from aish.engine.plan.plan import Plan
from aish.engine.plan.validation.names import SERVED
from aish.serve.offer.served_tools import ServedTools

if TYPE_CHECKING:
    from aish.serve.offer.pipeline_tools import OfferedPipeline

KEPT = ("listen", "state", "audit", "limits", "hosts", "origins", "auth")
"""The settings that hold from the start of the process to its end."""


@frozen
class LoadedFile:
    """A file to serve: its servers and rules, and the pipelines that are tools."""

    plan: Plan
    pipelines: "tuple[OfferedPipeline, ...]" = ()


@frozen
class ActiveConfig:
    """A loaded file: its plan, and the tools that it offers."""

    plan: Plan
    tools: ServedTools

    @property
    def name(self) -> str:
        return self.settings.name or self.plan.pipeline.name

    @property
    def settings(self) -> ServeSettings:
        return self.plan.pipeline.serve


def check_aliases(plan: Plan) -> None:
    """Check that no server has the alias of the pipelines.

    Raises:
        UsageError: one has it.
    """
    if any(server.entry.alias == SERVED for server in plan.servers):
        where = f"mcp server `{SERVED}`"
        hint = "the pipelines of a file have this alias when it is served"
        raise UsageError("this alias cannot be served", where=where, hint=hint)


@slotted
class Active:
    """The configuration in force."""

    now: ActiveConfig


def with_kept_settings(plan: Plan, old: Plan) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan with the settings of the start, and the keys that it would change."""
    was, now = old.pipeline.serve, plan.pipeline.serve
    changed = [f"serve.{name}" for name in KEPT if getattr(was, name) != getattr(now, name)]
    if plan.pipeline.control != old.pipeline.control:
        changed.append("control")
    if plan.models != old.models:
        changed.append("models")
    settings = replace(now, **{name: getattr(was, name) for name in KEPT})
    pipeline = replace(plan.pipeline, serve=settings, control=old.pipeline.control)
    return replace(plan, models=old.models, pipeline=pipeline), tuple(changed)
