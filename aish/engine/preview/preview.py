"""The resolved pipeline, as `aish plan` shows it: typed, and as a JSON object."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

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
from aish.core.events import UNCONFINED, KeySurvey, ServerInfo
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.options import option_words
from aish.core.tools import Tool, ToolName
from aish.engine.answer_schema import released_bits
from aish.engine.execution.run import bounds_of, limits_of
from aish.engine.plan.builtin_tools import presumed_tool
from aish.engine.plan.credentials import ResolvedServer, key_rows, model_name, origin
from aish.engine.plan.estimate import inner_context, item_count, most_cost, price_of, requests
from aish.engine.plan.lock import lock_path
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import models_of_packs, needs_of, systems_of, texts
from aish.engine.plan.plan import Plan
from aish.engine.plan.template_context import template_context
from aish.engine.plan.validation.validate import find_held_calls
from aish.engine.preview.tool_listing import ToolListing, ToolView, view
from aish.engine.resources.toolbox import SHELL_RUN, command_arguments
from aish.engine.steps.prompt import visible_tools
from aish.models.dialect_choice import answer_limit
from aish.models.pricing import Listed, Rates, installed_list
from aish.net.oauth.settings import OAuthSettings
from aish.policy.decide import Ruling, decide, tool_name
from aish.policy.rules import LOCAL_COMMAND, Rule, approves_every_command
from aish.templates.render import references, render
from aish.templates.values import is_template

if TYPE_CHECKING:
    from aish.engine.plan.validation.held_calls import HeldCalls
    from aish.net.oauth.login_store import KeptLogin

Context = Mapping[str, JsonValue]
Row = dict[str, JsonValue]


@frozen
class PlannedStep:
    """A step with what is known of it before the run.

    `needs` are the ids of the steps that it waits for, `keys` those of its items if they were
    surveyed, `inner` the steps of its pipeline, `held` the calls that may be held.
    """

    step: Step
    plan: Plan
    context: Context
    tools: tuple[Tool, ...]
    needs: tuple[str, ...]
    keys: KeySurvey | None
    inner: tuple["PlannedStep", ...] = ()
    held: tuple["HeldCalls", ...] = ()

    @property
    def kind(self) -> str:
        kinds = {PromptStep: "prompt", CallStep: "call", RunStep: "run", PipelineStep: "pipeline"}
        return kinds[type(self.step)]

    @property
    def count(self) -> int | None:
        foreach = self.step.flow.foreach
        return None if foreach is None else item_count(foreach, self.context, self.keys)

    @property
    def over(self) -> JsonValue:
        foreach = self.step.flow.foreach
        assert foreach is not None
        return foreach.expression or foreach.glob or self.render(foreach.file)

    def render(self, source: JsonValue) -> JsonValue:
        """`source` rendered, or as written if it depends on an earlier step."""
        return _render(source, self.context)

    def system(self, step: PromptStep) -> str:
        return "\n\n".join(str(self.render(text)) for text in systems_of(step))

    def views(self, step: PromptStep) -> tuple[ToolView, ...]:
        """The tools that the model may call, with the verdict on each."""
        return tuple(view(self.plan.policy, tool) for tool in visible_tools(step, self.tools))

    def tool(self, step: CallStep) -> Tool | None:
        name = tool_name(step.call)
        usual = presumed_tool(name, self.plan.pipeline)
        return next((tool for tool in self.tools if tool.name == name), usual)

    def ruling(self) -> Ruling | None:
        """The verdict on the step's call as far as its arguments are known."""
        step = self.step
        if isinstance(step, CallStep):
            arguments, name = self.render(step.arguments), tool_name(step.call)
            unknown = Tool(name=name, wire=step.call, description="", input_schema={})
            return self._decide(self.tool(step) or unknown, arguments)
        if isinstance(step, RunStep):
            run = self.command(step)
            words = [str(word) for word in run] if isinstance(run, list) else str(run)
            return self._decide(SHELL_RUN, dict(command_arguments(words)))
        return None

    def file(self, step: PipelineStep) -> str:
        return os.path.relpath(step.file, self.plan.pipeline.file.resolve().parent)

    def command(self, step: RunStep) -> JsonValue:
        return self.render(step.run if isinstance(step.run, str) else list(step.run))

    def _decide(self, tool: Tool, arguments: JsonValue) -> Ruling:
        known: JsonObject = arguments if isinstance(arguments, Mapping) else {}
        ruling = decide(self.plan.policy, tool, known, mask=self.plan.secrets.mask)
        if ruling.verdict == "ask" and any(is_template(text) for text in texts(arguments)):
            reason = f"{ruling.reason} (what it waits for may change that)"
            return replace(ruling, reason=reason)
        return ruling


def planned_steps(
    plan: Plan,
    context: Context,
    tools: tuple[Tool, ...],
    surveys: Mapping[str, KeySurvey],
    held: Sequence["HeldCalls"],
    within: str = "",
) -> Iterator[PlannedStep]:
    """The steps of a plan; `within` precedes the ids of a sub-pipeline's steps in `surveys`."""
    known = [step.id for step in plan.steps]
    held_here: defaultdict[str, list[HeldCalls]] = defaultdict(list)
    for one in held:
        if one.pipeline.file == plan.pipeline.file:
            held_here[one.step].append(one)
    for step in plan.steps:
        inner: tuple[PlannedStep, ...] = ()
        if isinstance(step, PipelineStep):
            # Its servers are asked at run time.
            inside, below = inner_context(step, plan, context), f"{within}{step.id}/"
            inner = tuple(planned_steps(plan.inner[step.id], inside, (), surveys, held, below))
        keys, own = surveys.get(f"{within}{step.id}"), tuple(held_here[step.id])
        yield PlannedStep(step, plan, context, tools, needs_of(step, known), keys, inner, own)


def _step_json(planned: PlannedStep) -> JsonValue:
    step = planned.step
    row: Row = {"id": step.id, "needs": list(planned.needs), **_flow(planned), "kind": planned.kind}
    match step:
        case PromptStep():
            return row | _prompt(planned, step)
        case CallStep():
            row |= {"call": step.call, "arguments": planned.render(step.arguments)}
            row |= {"known": planned.tool(step) is not None}
        case RunStep():
            row |= {"run": planned.command(step), "call": str(LOCAL_COMMAND)}
        case PipelineStep():
            inner = [_step_json(one) for one in planned.inner]
            row |= {"pipeline": planned.file(step), "steps": inner}
            row |= {"inputs": planned.render(step.inputs)}
    if (ruling := planned.ruling()) is not None:
        row |= {"verdict": ruling.verdict, "rule": ruling.rule, "reason": ruling.reason}
        row |= {} if ruling.hint is None else {"hint": ruling.hint}
    return row


def _flow(planned: PlannedStep) -> Row:
    """Return when and how often the step runs as far as the file says it, and what is held."""
    flow, foreach, keys = planned.step.flow, planned.step.flow.foreach, planned.keys
    row: Row = {}
    if flow.when is not None:
        row["when"] = flow.when
    if foreach is not None:
        most = foreach.max_failures
        row["foreach"] = {
            "over": planned.over,
            "count": planned.count,
            "key": foreach.key,
            "on_duplicate": foreach.on_duplicate if foreach.key is not None else None,
            "repeated": None if keys is None else keys.repeated,
            "unusable": None if keys is None else keys.unusable,
            "concurrency": planned.plan.width(planned.step),
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
    if planned.held:
        row["held"] = [
            {
                "tools": list(held.tools),
                "rule": held.rule,
                "then": held.then,
                "sources": list(held.sources),
                "why": held.why,
            }
            for held in planned.held
        ]
    return row


def _prompt(planned: PlannedStep, step: PromptStep) -> Row:
    return {
        "model": planned.plan.model_of(step),
        "system": planned.system(step) or None,
        "prompt": _prompt_json(planned, step.prompt),
        **({} if step.continues is None else {"continues": step.continues}),
        **({"attach": [_attachment(planned, one) for one in step.attach]} if step.attach else {}),
        "tool_choice": step.tool_choice,
        "tools": [
            {
                "tool": str(row.tool.name),
                "verdict": row.verdict,
                "rule": row.rule,
                "depends_on_arguments": row.conditional,
            }
            for row in planned.views(step)
        ],
        "schema": step.output.schema if step.output else None,
        "attempts": step.output.attempts if step.output else 1,
        **_release(step),
        **_context_json(step.context),
    }


def _release(step: PromptStep) -> Row:
    """The labels that the step's output loses, and how much it can say."""
    if step.output is None or not step.output.release:
        return {}
    return {"release": {"labels": list(step.output.release), "bits": released_bits(step)}}


def _prompt_json(planned: PlannedStep, prompt: Prompt | ServerPrompt) -> JsonValue:
    """The user prompt as far as known; for a server's prompt, its name."""
    if isinstance(prompt, Prompt):
        return planned.render(prompt.user)
    arguments = planned.render(dict(prompt.arguments))
    return {"server": prompt.server, "name": prompt.name, "arguments": arguments}


def _attachment(planned: PlannedStep, attachment: Attachment | Retrieval) -> JsonValue:
    if isinstance(attachment, Retrieval):
        row: Row = {"server": attachment.server, "query": planned.render(attachment.query)}
        named: Row = {} if attachment.collection is None else {"collection": attachment.collection}
        return {**row, "top_k": attachment.top_k, "threshold": attachment.threshold, **named}
    ref = planned.render(attachment.ref)
    return ref if attachment.server is None else {"server": attachment.server, "uri": ref}


def _context_json(settings: Settings) -> Row:
    """The limit on the conversation's length, and its files, if there are any."""
    row: Row = {}
    if settings.max_tokens is not None:
        row = {
            "max_tokens": settings.max_tokens,
            "keep": settings.keep,
            "summary_model": settings.summary_model,
        }
    if settings.files:
        row |= {
            "files": [_context_file(file) for file in settings.files],
            "refresh": settings.refresh,
            "file_limit": settings.file_limit,
            "round_limit": settings.round_limit,
        }
    return {"context": row} if row else {}


def _context_file(entry: ContextFile) -> JsonValue:
    if entry.lines is not None:
        return {"path": entry.path, "lines": list(entry.lines)}
    if entry.name is not None:
        return {"path": entry.path, "name": entry.name}
    return {"path": entry.path, "show": "skeleton"} if entry.skeleton else entry.path


def _render(source: JsonValue, context: Context) -> JsonValue:
    if isinstance(source, str):
        if any(name.startswith("steps") for name in references(source)):
            return source
        try:
            return render(source, context)
        except AishError:
            return source
    if isinstance(source, Mapping):
        return {key: _render(value, context) for key, value in source.items()}
    if isinstance(source, (list, tuple)):
        return [_render(value, context) for value in source]
    return source


@frozen
class PlannedServer:
    """A server with its state, if it was asked; `sandbox` is its own, or that of its commands.

    `options` are those that differ from the defaults, `asks` the models that its packs may ask,
    `login` says who issues its token, if somebody does.
    """

    alias: str
    where: str
    required: bool | None
    state: str
    tools: int | None
    error: str | None
    options: tuple[str, ...]
    asks: tuple[str, ...]
    sandbox: str
    login: str


@frozen
class Preview:
    """Everything a reviewer needs before the run; `warned` are calls that send without approval."""

    plan: Plan
    options: RunOptions
    context: Context
    servers: tuple[PlannedServer, ...]
    steps: tuple[PlannedStep, ...]
    warned: "tuple[HeldCalls, ...]"


def preview_of(plan: Plan, options: RunOptions, found: ToolListing | None) -> Preview:
    """The preview of a plan; `found` is `None` offline, and without servers if a lock was read."""
    context = template_context(plan.pipeline, options, {})
    tools = () if found is None else tuple(row.tool for row in found.tools)
    calls = find_held_calls(plan.pipeline, plan.policy, locked=plan.lock is not None)
    held = tuple(one for one in calls if one.then != "warn")
    warned = tuple(one for one in calls if one.then == "warn")
    steps = tuple(planned_steps(plan, context, tools, options.surveys, held))
    return Preview(plan, options, context, tuple(_servers(plan, found)), steps, warned)


def preview_json(preview: Preview) -> JsonObject:
    plan, options = preview.plan, preview.options
    pipeline, counted = plan.pipeline, requests(plan, preview.context, options.surveys)
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
                "price": _price(plan, alias),
                "max_tokens": answer_limit(m.entry),
            }
            for alias, m in plan.models.items()
        ],
        **_price_list(plan),
        "unusable": [{"alias": alias, "why": why} for alias, why in plan.unusable.items()],
        **({"keys": key_rows(plan.key_sources)} if plan.key_sources else {}),
        "servers": [_server_json(server) for server in preview.servers],
        **_auth(pipeline),
        "missing": [
            {
                "variable": variable.name,
                "path": variable.problem.path,
                "file": variable.problem.position.file,
                "line": variable.problem.position.line,
                "key": variable.key,
            }
            for variable in plan.missing
        ],
        "lock": None if plan.lock is None else str(lock_path(pipeline)),
        "rules": [
            {"list": rule.list, "rule": rule.text}
            | ({"note": _EVERY_COMMAND} if note_on(rule, pipeline) else {})
            for rule in plan.policy.all()
        ],
        "on_denied": pipeline.on_denied or "fail",
        "limits": limits_of(plan),
        "steps": [_step_json(step) for step in preview.steps],
        "outputs": pipeline.outputs,
        "requests": {"at_least": counted.least, "at_most": counted.most}
        | ({"uncounted": counted.uncounted} if counted.most is None else {}),
        "cost_usd": {"at_most": most_cost(plan, preview.context)},
    }


def _auth(pipeline: Pipeline) -> JsonObject:
    """The tokens of an issuer that let clients of `aish serve` in, if the file names one."""
    auth = pipeline.serve.auth
    if auth is None:
        return {}
    clients: list[JsonValue] = [
        {"name": client.name, "scopes": list(client.scopes or ()), "tools": list(client.tools)}
        for client in pipeline.serve.scoped
    ]
    about = {"issuer": auth.issuer, "audience": list(auth.audience), "clients": clients}
    return {"auth": about}


def _price(plan: Plan, alias: str) -> JsonValue:
    price = price_of(plan, alias)
    if isinstance(price, Rates):
        own = {"cached_input": price.cached_input, "cache_write": price.cache_write}
        given = {name: part for name, part in own.items() if part is not None}
        return {"input": price.input, "output": price.output, **given}
    return None if price is None else "listed"


def _price_list(plan: Plan) -> JsonObject:
    if not any(isinstance(price_of(plan, alias), Listed) for alias in plan.models):
        return {}
    prices = installed_list()
    if prices is None:
        return {}
    installed = time.strftime("%Y-%m-%d", time.gmtime(prices.installed))
    return {"price_list": {"name": prices.name, "version": prices.version, "installed": installed}}


_EVERY_COMMAND = "approves every command, folder, shell and variable"


def note_on(rule: Rule, pipeline: Pipeline) -> str:
    tool = presumed_tool(ToolName(rule.server, rule.tool), pipeline)
    if rule.list != "auto_approve" or tool is None or not approves_every_command(rule, tool):
        return ""
    return _EVERY_COMMAND


def _server_json(server: PlannedServer) -> Row:
    keys = {"alias", "where", "required", "state", "tools", "error"}
    return {name: value for name, value in asdict(server).items() if name in keys or value}


def _servers(plan: Plan, look: ToolListing | None) -> Iterator[PlannedServer]:
    states = {} if look is None else {info.alias: info for info in look.servers}
    for server in plan.servers:
        entry, info = server.entry, states.get(server.entry.alias)
        asks = models_of_packs((entry,), plan.pipeline.models, plan.default_model)
        is_ready = info is not None and info.state == "ready"
        yield PlannedServer(
            alias=entry.alias,
            where=entry.url or " ".join(entry.command) or f"pack {', '.join(entry.pack)}",
            required=entry.required,
            state="not asked" if info is None else info.state,
            tools=None if info is None else info.tools,
            error=None if info is None else info.error,
            options=option_words(entry.options),
            asks=tuple(dict.fromkeys(asks)),
            sandbox=_sandbox(entry, info, is_ready=is_ready),
            login="" if entry.oauth is None else describe_login(entry.oauth, server),
        )


def describe_login(oauth: OAuthSettings, server: ResolvedServer) -> str:
    """Return who issues the token of a server, for whom, and by what; nobody is asked."""
    issuer = oauth.token_url or oauth.issuer
    source = f"`{issuer}`" if issuer else "the authorization server that it names"
    if oauth.login:
        kept = kept_login(server)
        if kept is None:
            return f"OAuth, the login of a person at {source}: nobody is logged in"
        return f"OAuth, the login of a person at `{kept.issuer}`"
    proof = oauth.client_secret_env or oauth.private_key_file
    return f"OAuth, a token of {source} for the client `{oauth.client_id}`, by `{proof}`"


def kept_login(server: ResolvedServer) -> "KeptLogin | None":
    """The login of a person that a run would use, without the secrets that a keyring has."""
    from aish.net.oauth.login_store import LoginStore

    if server.login is None or server.entry.url is None:
        return None
    return LoginStore(server.entry.url, server.login.settings).look()


def _sandbox(entry: ServerEntry, info: ServerInfo | None, *, is_ready: bool) -> str:
    """Describe what a child process may use: as it was started, or else as the file says."""
    if not entry.command:
        return _sandboxes(entry) if is_ready else ""
    if info is not None:
        return info.sandbox
    if entry.sandbox is None:
        return UNCONFINED
    from aish.mcp.transports.confined import describe_sandbox

    return describe_sandbox(entry.sandbox)


def _sandboxes(entry: ServerEntry) -> str:
    """Return the sandboxes of a server's packs on this machine, tried."""
    packs = [pack for pack in ("shell", "proc") if pack in entry.pack]
    if not packs:
        return ""
    from aish.packs.command_options import ShellOptions
    from aish.system.process.sandbox import choose_sandbox

    root = None if entry.root is None else entry.root.resolve()
    options = [entry.options.get(pack) or ShellOptions() for pack in packs]
    sandboxes = {choose_sandbox(o.sandbox, os.environ, root, network=o.network) for o in options}
    return ", ".join(sorted(sandboxes))
