"""The resolved pipeline, as `aish plan` prints it: a JSON object of a plan and its tools."""

import os
from collections.abc import Mapping
from types import MappingProxyType

from aish.config.model import (
    Attachment,
    CallStep,
    ContextFile,
    Pipeline,
    PipelineStep,
    Prompt,
    PromptStep,
    Retrieval,
    RunStep,
    ServerEntry,
    ServerPrompt,
    Step,
)
from aish.config.model import Context as Settings
from aish.core.errors import AishError
from aish.core.events import KeySurvey
from aish.core.json import JsonObject, JsonValue
from aish.core.pack_options import option_words
from aish.core.tools import Tool, ToolName
from aish.engine.execution.run import bounds_of, limits_of
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.credentials import model_name, origin
from aish.engine.plan.estimate import cost_view, inner_context, item_count, price_view, requests
from aish.engine.plan.lock import lock_path
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import models_of_packs, needs_of, systems_of, texts
from aish.engine.plan.plan import Plan
from aish.engine.plan.template_context import template_context
from aish.engine.preview.tool_listing import Look, view
from aish.engine.resources.toolbox import SHELL_RUN, command_arguments
from aish.engine.steps.prompt import visible_tools
from aish.policy.decide import decide, tool_name
from aish.policy.rules import LOCAL_COMMAND, Rule, approves_every_command
from aish.templates.render import references, render
from aish.templates.values import is_template
from aish.wire.chat.encode import answer_limit

Context = Mapping[str, JsonValue]
Row = dict[str, JsonValue]


def step_view(
    step: Step,
    plan: Plan,
    context: Context,
    tools: tuple[Tool, ...],
    surveys: Mapping[str, KeySurvey] = MappingProxyType({}),
    within: str = "",
) -> JsonValue:
    """A step as a JSON object; parts that depend on earlier results stay as written.

    `surveys` have the keys of surveyed items, by the ids of the steps; `within` precedes the ids of
    a sub-pipeline's steps.
    """
    known = [other.id for other in plan.steps]
    flow = _flow(step, context, surveys.get(f"{within}{step.id}"))
    common: Row = {"id": step.id, "needs": list(needs_of(step, known)), **flow}
    match step:
        case PromptStep():
            return common | _prompt(step, plan, context, tools)
        case CallStep():
            return common | _call(step, plan, context, tools)
        case RunStep():
            return common | _run(step, plan, context)
        case PipelineStep():
            inner = plan.inner[step.id]
            file = os.path.relpath(step.file, plan.pipeline.file.resolve().parent)
            row: Row = {"kind": "pipeline", "pipeline": file}
            inside = inner_context(step, plan, context)
            below = f"{within}{step.id}/"
            # Its servers are asked at run time.
            row["steps"] = [
                step_view(one, inner, inside, (), surveys, below) for one in inner.steps
            ]
            return common | row | {"inputs": _shown(step.inputs, context)}


def _flow(step: Step, context: Context, keys: KeySurvey | None) -> Row:
    """When and how often the step runs, as far as the file specifies it."""
    flow, foreach = step.flow, step.flow.foreach
    row: Row = {}
    if flow.when is not None:
        row["when"] = flow.when
    if foreach is not None:
        over = foreach.expression or foreach.glob or _shown(foreach.file, context)
        most = foreach.max_failures
        row["foreach"] = {
            "over": over,
            "count": item_count(foreach, context, keys),
            "key": foreach.key,
            "on_duplicate": foreach.on_duplicate if foreach.key is not None else None,
            "repeated": None if keys is None else keys.repeated,
            "unusable": None if keys is None else keys.unusable,
            "concurrency": foreach.concurrency,
            "max_failures": None if most is None else most.count or most.share,
        }
    if flow.retry.attempts > 1:
        row["retry"] = {"attempts": flow.retry.attempts, "on": list(flow.retry.on)}
    if flow.timeout is not None:
        row["timeout"] = flow.timeout
    if flow.on_error != "fail":
        row["on_error"] = flow.on_error
    if bounds := bounds_of(flow.limits):
        row["limits"] = bounds
    return row


def _prompt(step: PromptStep, plan: Plan, context: Context, tools: tuple[Tool, ...]) -> Row:
    return {
        "kind": "prompt",
        "model": plan.model_of(step),
        "system": "\n\n".join(str(_shown(text, context)) for text in systems_of(step)) or None,
        "prompt": _prompt_shown(step.prompt, context),
        **_attached(step, context),
        "tool_choice": step.tool_choice,
        "tools": [
            {
                "tool": str(row.tool.name),
                "verdict": row.verdict,
                "rule": row.rule,
                "depends_on_arguments": row.conditional,
            }
            for row in (view(plan.policy, tool) for tool in visible_tools(step, tools))
        ],
        "schema": step.output.schema if step.output else None,
        "attempts": step.output.attempts if step.output else 1,
        **_kept_short(step.context),
    }


def _prompt_shown(prompt: Prompt | ServerPrompt, context: Context) -> JsonValue:
    """The user prompt as far as known; for a server's prompt, its name."""
    if isinstance(prompt, Prompt):
        return _shown(prompt.user, context)
    arguments = _shown(dict(prompt.arguments), context)
    return {"server": prompt.server, "name": prompt.name, "arguments": arguments}


def _attached(step: PromptStep, context: Context) -> Row:
    """The attachments before the prompt, if any."""
    row: Row = {}
    if step.continues is not None:
        row["continues"] = step.continues
    if step.attach:
        row["attach"] = [_attachment(one, context) for one in step.attach]
    return row


def _attachment(one: Attachment | Retrieval, context: Context) -> JsonValue:
    if isinstance(one, Retrieval):
        row: Row = {"server": one.server, "query": _shown(one.query, context)}
        named: Row = {} if one.collection is None else {"collection": one.collection}
        return {**row, "top_k": one.top_k, "threshold": one.threshold, **named}
    ref = _shown(one.ref, context)
    return ref if one.server is None else {"server": one.server, "uri": ref}


def _kept_short(settings: Settings) -> Row:
    """The limit on the conversation's length (L19), and its files (K82), if there are any."""
    row: Row = {}
    if settings.max_tokens is not None:
        row = {
            "max_tokens": settings.max_tokens,
            "keep": settings.keep,
            "summary_model": settings.summary_model,
        }
    if settings.files:
        row |= {
            "files": [_context_file(one) for one in settings.files],
            "refresh": settings.refresh,
            "file_limit": settings.file_limit,
            "round_limit": settings.round_limit,
        }
    return {"context": row} if row else {}


def _context_file(entry: ContextFile) -> JsonValue:
    """An entry of `context.files` as it is written."""
    if entry.lines is not None:
        return {"path": entry.path, "lines": list(entry.lines)}
    if entry.name is not None:
        return {"path": entry.path, "name": entry.name}
    return {"path": entry.path, "show": "skeleton"} if entry.skeleton else entry.path


def _call(step: CallStep, plan: Plan, context: Context, tools: tuple[Tool, ...]) -> Row:
    name = tool_name(step.call)
    known = next((tool for tool in tools if tool.name == name), presumed_tool(name, plan.pipeline))
    arguments = _shown(step.arguments, context)
    subject = known or Tool(name=name, wire=step.call, description="", input_schema={})
    return {
        "kind": "call",
        "call": step.call,
        "arguments": arguments,
        "known": known is not None,
    } | _verdict(plan, subject, arguments)


def _run(step: RunStep, plan: Plan, context: Context) -> Row:
    run = _shown(step.run if isinstance(step.run, str) else list(step.run), context)
    shown = run if isinstance(run, str) else [str(word) for word in _items(run)]
    arguments = dict(command_arguments(shown))
    return {"kind": "run", "run": run, "call": str(LOCAL_COMMAND)} | _verdict(
        plan, SHELL_RUN, arguments
    )


def _items(value: JsonValue) -> list[JsonValue]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _verdict(plan: Plan, tool: Tool, arguments: JsonValue) -> Row:
    """The verdict on the call as far as its arguments are known."""
    known: JsonObject = arguments if isinstance(arguments, Mapping) else {}
    ruling = decide(plan.policy, tool, known, mask=plan.secrets.mask)
    waits = ruling.verdict == "ask" and any(is_template(text) for text in texts(arguments))
    reason = f"{ruling.reason} (what it waits for may change that)" if waits else ruling.reason
    hint = {} if ruling.hint is None else {"hint": ruling.hint}
    return {"verdict": ruling.verdict, "rule": ruling.rule, "reason": reason, **hint}


def _shown(source: JsonValue, context: Context) -> JsonValue:
    """`source` rendered, or as written if it depends on an earlier step."""
    if isinstance(source, str):
        if any(name.startswith("steps") for name in references(source)):
            return source
        try:
            return render(source, context)
        except AishError:
            return source
    if isinstance(source, Mapping):
        return {key: _shown(value, context) for key, value in source.items()}
    if isinstance(source, (list, tuple)):
        return [_shown(value, context) for value in source]
    return source


def plan_view(plan: Plan, options: RunOptions, found: Look | None) -> JsonObject:
    """Everything a reviewer needs before the run; `found` is `None` offline.

    Server states are omitted if only a lock was read.
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
        "unusable": [{"alias": alias, "why": why} for alias, why in plan.unusable.items()],
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
        "rules": [_rule(rule, pipeline) for rule in plan.policy.all()],
        "on_denied": pipeline.on_denied or "fail",
        "limits": limits_of(plan),
        "steps": [step_view(step, plan, context, tools, options.surveys) for step in plan.steps],
        "outputs": pipeline.outputs,
        "requests": requests(plan, context, options.surveys),
        "cost_usd": cost_view(plan, context),
    }


def _rule(rule: Rule, pipeline: Pipeline) -> Row:
    """A rule; with a note where it approves more than its short text says (K47)."""
    row: Row = {"list": rule.list, "rule": rule.text}
    tool = presumed_tool(ToolName(rule.server, rule.tool), pipeline)
    if rule.list == "auto_approve" and tool is not None and approves_every_command(rule, tool):
        row["note"] = "approves every command, folder, shell and variable"
    return row


def _servers(plan: Plan, found: Look | None) -> list[JsonValue]:
    states = {} if found is None else {info.alias: info for info in found.servers}
    rows: list[JsonValue] = []
    pipeline = plan.pipeline
    for server in plan.servers:
        entry = server.entry
        info = states.get(entry.alias)
        more: Row = {}
        if options := option_words(entry.options):
            more["options"] = options
        if asked := tuple(models_of_packs((entry,), pipeline.models, plan.default_model)):
            more["asks"] = tuple(dict.fromkeys(asked))
        if info is not None and info.state == "ready" and (sandbox := _sandboxes(entry)):
            more["sandbox"] = sandbox
        rows.append(
            {
                "alias": entry.alias,
                "where": entry.url or " ".join(entry.command) or f"pack {', '.join(entry.pack)}",
                "required": entry.required,
                "state": "not asked" if info is None else info.state,
                "tools": None if info is None else info.tools,
                "error": None if info is None else info.error,
                **more,
            }
        )
    return rows


def _sandboxes(entry: ServerEntry) -> str:
    """What commands of a server's packs are confined by on this machine, tried (K53)."""
    shell, proc = entry.options.shell, entry.options.proc
    given = [(shell.sandbox, shell.network)] if "shell" in entry.pack else []
    given += [(proc.sandbox, proc.network)] if "proc" in entry.pack else []
    if not given:
        return ""
    from aish.system.process.sandbox import choose_sandbox

    root = None if entry.root is None else entry.root.resolve()
    found = {choose_sandbox(one, os.environ, root, network=network) for one, network in given}
    return ", ".join(sorted(found))
