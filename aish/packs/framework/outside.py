"""Packs of other distributions: checked when loaded, opened with the services they ask for.

They are declared like built-in packs. Their marks are claims, like those of a server, and their
errors are failures of their server.
"""

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from aish.core.errors import did_you_mean
from aish.core.options import marked_options
from aish.core.patterns import lazy_pattern
from aish.core.phrases import backticked
from aish.packs.framework.pack import Pack, PackServices, PackTool
from aish.system.foreign_output import own_output
from aish.system.pack_index import (
    PackLoadError,
    find_offered_pack,
    load_offered_pack,
    options_class,
)
from aish.system.schema.metaschema import check_schema

if TYPE_CHECKING:
    from aish.packs.workspace.workspace import Workspace

_TOOL_NAME = lazy_pattern(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST_NAME = 60
SERVICES = (
    *("mask", "notice", "options", "project", "root", "run_folder", "run_id", "secrets"),
    "workspace",
)
"""What the lifespan of such a pack may name as a parameter."""


@cache
def load_pack(name: str) -> Pack:
    """Load a pack that a distribution offers.

    Raises:
        PackLoadError: it cannot be loaded, or its declaration is not valid.
        UsageError: two distributions offer it.
    """
    loaded = load_offered_pack(name)
    if not isinstance(loaded, Pack):
        raise pack_error(name, f"is declared as {type(loaded).__name__}, and not as a `Pack`")
    options_class(name)
    try:
        problem = _declaration_problem(loaded)
    except Exception as error:  # ruff: ignore[blind-except] - code of others may raise anything
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise pack_error(name, f"is not declared as it should be: {problem}")
    return loaded


def _declaration_problem(pack: Pack) -> str:
    names = [tool.name for tool in pack.tools]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        return f"two tools are named `{twice}`"
    for tool in pack.tools:
        if problem := _tool_problem(tool):
            return f"the tool `{tool.name}` {problem}"
    for name in signature(pack.lifespan).parameters if pack.lifespan else ():
        if name not in SERVICES:
            hint = did_you_mean(name, SERVICES) or f"known are {backticked(SERVICES)}"
            return f"its lifespan has the parameter `{name}`: {hint}"
    return ""


def _tool_problem(tool: PackTool) -> str:
    if not _TOOL_NAME.fullmatch(tool.name) or len(tool.name) > _LONGEST_NAME:
        return "is not named like `group_verb`, in lower case"
    if tool.older or tool.older_parameters:
        return "has older names, which only built-in tools can have"
    for key, schema in (("input", tool.input_schema), ("output", tool.output_schema)):
        if problems := check_schema(json.loads(json.dumps(schema, allow_nan=False))):
            return f"has an invalid {key} schema: {problems[0]}"
    return ""


def call_lifespan(
    name: str, lifespan: Any, services: PackServices, workspace: "Workspace | None", options: Any
) -> AbstractAsyncContextManager[Any]:
    """Call the lifespan of a pack with the services that its parameters name."""

    def notice(text: str) -> None:
        with own_output():
            services.notice("pack", f"pack `{name}`: {text}")

    named = marked_options({} if options is None else {name: options}, "variable")
    known: Mapping[str, Any] = {
        "mask": services.mask,
        "notice": notice,
        "options": options,
        "project": services.project,
        "root": None if workspace is None else workspace.root,
        "run_folder": services.run_folder,
        "run_id": services.run_id,
        "secrets": {
            variable: services.secrets[variable]
            for _, variable in named
            if variable in services.secrets
        },
        "workspace": workspace,
    }
    context: AbstractAsyncContextManager[Any] = lifespan(
        **{parameter: known[parameter] for parameter in signature(lifespan).parameters}
    )
    return context


def pack_error(name: str, what: str, hint: str | None = None) -> PackLoadError:
    """Return the error for an invalid pack."""
    offer = find_offered_pack(name)
    assert offer is not None, "it was loaded"
    return offer.error(what, hint)
