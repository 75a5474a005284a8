"""The resolved whole, as `aish plan` prints it: a JSON object made of a plan and its tools."""

from aish.core.json import JsonObject, JsonValue
from aish.run.context import template_context
from aish.run.locks.file import lock_path
from aish.run.looking import Look
from aish.run.opening import limits_of, model_name, origin
from aish.run.options import RunOptions
from aish.run.plan import Plan
from aish.run.plan_cost import cost_view, price_view
from aish.run.plan_requests import requests
from aish.run.plan_steps import step_view
from aish.wire.chat_encode import answer_limit


def plan_view(plan: Plan, options: RunOptions, found: Look | None) -> JsonObject:
    """Everything a reviewer wants to know before the run; `found` is `None` offline.

    Without its servers' states where only a lock was looked at.
    """
    pipeline = plan.pipeline
    context = template_context(pipeline, options, {})
    tools = () if found is None else tuple(row.tool for row in found.tools)
    return {
        "pipeline": pipeline.name,
        "file": str(pipeline.file),
        "description": pipeline.description,
        "digest": pipeline.digest,
        "inputs": dict(options.inputs),
        "overrides": list(pipeline.overrides),
        "models": [
            {
                "alias": alias,
                "model": model_name(m.entry),
                "origin": origin(m.entry),
                "price": price_view(plan, alias),
                "max_tokens": answer_limit(m.entry.params),
            }
            for alias, m in plan.models.items()
        ],
        "servers": _servers(plan, found),
        "missing": [
            {
                "variable": one.name,
                "path": one.problem.path,
                "file": one.problem.position.file,
                "line": one.problem.position.line,
                "key": one.key,
            }
            for one in plan.missing
        ],
        "lock": None if plan.lock is None else str(lock_path(pipeline)),
        "rules": [{"list": row.list, "rule": row.rule} for row in plan.policy.infos()],
        "on_denied": pipeline.on_denied or "fail",
        "limits": limits_of(plan),
        "steps": [step_view(step, plan, context, tools, options.surveys) for step in plan.steps],
        "outputs": pipeline.outputs,
        "requests": requests(plan, context, options.surveys),
        "cost_usd": cost_view(plan, context),
    }


def _servers(plan: Plan, found: Look | None) -> list[JsonValue]:
    states = {} if found is None else {info.alias: info for info in found.servers}
    rows: list[JsonValue] = []
    for server in plan.servers:
        entry = server.entry
        info = states.get(entry.alias)
        rows.append(
            {
                "alias": entry.alias,
                "where": entry.url or " ".join(entry.command) or f"pack {', '.join(entry.pack)}",
                "required": entry.required,
                "state": "not asked" if info is None else info.state,
                "tools": None if info is None else info.tools,
                "error": None if info is None else info.error,
            }
        )
    return rows
