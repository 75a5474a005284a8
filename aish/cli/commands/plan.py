"""`aish plan FILE`: the plan as text, as JSON, and its steps as a graph in Mermaid.

Secrets are masked before a text is cut, and all untrusted text passes `for_line`.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from aish.agent.compaction import BYTES_PER_TOKEN, weigh_rest
from aish.cli.boundary import report, say
from aish.cli.options import (
    OWN_FILE,
    InputOptions,
    MaxCostOption,
    MaxTurnsOption,
    NoKeyCheckOption,
    Option,
    ProjectFileArgument,
    RuleOptions,
    StrictOption,
    TimeoutOption,
)
from aish.cli.pipeline_options import load, run_options, seconds_of
from aish.cli.printer import print_json, print_text
from aish.cli.problems import ProblemPrinter
from aish.cli.tool_preview import look_at_tools, notices, report_shadows
from aish.config.model import (
    BATCH,
    CallStep,
    Context,
    ContextFile,
    Foreach,
    Pipeline,
    PipelineStep,
    Prompt,
    PromptStep,
    Retrieval,
    RunStep,
)
from aish.core.errors import ExitCode, UsageError
from aish.core.json import JsonValue
from aish.core.phrases import counted, dollars, first_of, shorten, shorten_counted
from aish.core.text import for_line
from aish.engine.answer_schema import released_bits
from aish.engine.execution.run import bounds_of
from aish.engine.plan.credentials import key_lines, model_name, origin
from aish.engine.plan.estimate import most_cost, price_of, requests
from aish.engine.plan.lock import lock_path
from aish.engine.plan.order import lacks_stdin
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.plan.validation.validate import held_check, require_steps
from aish.engine.preview.preview import (
    PlannedServer,
    PlannedStep,
    Preview,
    note_on,
    preview_json,
    preview_of,
)
from aish.engine.preview.tool_listing import MANY_TOOLS, ToolListing, look_at_lock
from aish.engine.resources.resources import require_servers
from aish.engine.steps.prompt import visible_tools
from aish.features.launch import with_key_surveys
from aish.models.dialect_choice import answer_limit
from aish.models.pricing import (
    Listed,
    Rates,
    batch_share,
    installed_list,
)

_BRANCH, _LAST, _DOWN, _NOTHING = "├─▶ ", "└─▶ ", "│   ", "    "
# Characters that Mermaid would interpret inside quotes.
_MERMAID = str.maketrans({'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", "\n": " "})
_LONGEST = 60
_LONG = 400
_MARK = len("auto*")
_DAY = 24 * 60 * 60
_BOUNDS = {
    "time": "time",
    "tokens": "tokens",
    "cost_usd": "cost",
    "tool_calls": "tool calls",
    "turns": "turns",
}
_REFRESH = {
    "diff": "changed lines, at most {} a file and {} a round",
    "whole": "changed files whole, at most {} each and {} a round",
    "name": "names of changed files",
    "off": "off",
}


def graph_lines(steps: Sequence[PlannedStep], text: "PlanText") -> Iterator[str]:
    """A tree: each step is below the last step that it needs, and names the others."""
    parents = _parents(steps)
    beside = _beside(steps, parents)
    children: dict[str | None, list[PlannedStep]] = {}
    for planned in steps:
        children.setdefault(parents[planned.step.id], []).append(planned)

    def below(parent: str, indent: str) -> Iterator[str]:
        own = children.get(parent, [])
        for planned in own:
            last, id = planned is own[-1], planned.step.id
            also = f"  (and after {text.mask(', '.join(beside[id]))})" if beside[id] else ""
            yield f"{indent}{_LAST if last else _BRANCH}{'  '.join(text.marks(planned))}{also}"
            yield from below(id, indent + (_NOTHING if last else _DOWN))

    for root in children.get(None, ()):
        yield "  ".join(text.marks(root))
        yield from below(root.step.id, "")


def mermaid_lines(
    steps: Sequence[PlannedStep], text: "PlanText", prefix: str = "", indent: str = "  "
) -> Iterator[str]:
    """The lines of a flowchart that GitHub and others render."""
    for planned in steps:
        node = text.mask(f"{prefix}{planned.step.id}")
        id, *marks = text.marks(planned)
        words = (id, planned.kind, *marks)
        label = "<br/>".join(for_line(word).translate(_MERMAID) for word in words)
        if planned.inner:
            yield f'{indent}subgraph s_{node}["{label}"]'
            yield from mermaid_lines(planned.inner, text, f"{node}_in_", f"{indent}  ")
            yield f"{indent}end"
        else:
            yield f'{indent}s_{node}["{label}"]'
    for planned in steps:
        for need in planned.needs:
            yield text.mask(f"{indent}s_{prefix}{need} --> s_{prefix}{planned.step.id}")


def _parents(steps: Sequence[PlannedStep]) -> dict[str, str | None]:
    """For each step the needed step with the greatest depth."""
    depth: dict[str, int] = {}
    parents: dict[str, str | None] = {}
    for planned in steps:
        deepest = max(planned.needs, key=lambda need: depth[need], default=None)
        parents[planned.step.id] = deepest
        depth[planned.step.id] = 0 if deepest is None else depth[deepest] + 1
    return parents


def _beside(
    steps: Sequence[PlannedStep], parents: Mapping[str, str | None]
) -> dict[str, list[str]]:
    """The other needs of each step, without those that another of its needs implies."""
    needs = {planned.step.id: planned.needs for planned in steps}
    before: dict[str, set[str]] = {}
    for id, own in needs.items():
        before[id] = {*own, *(step for need in own for step in before[need])}
    return {
        id: [
            need
            for need in own
            if need != parents[id] and not any(need in before[other] for other in own)
        ]
        for id, own in needs.items()
    }


def _price_list(now: float) -> Iterator[str]:
    """The line about the price list and its age, at least."""
    if (prices := installed_list()) is not None:
        days = int(max(0.0, now - prices.installed) // _DAY)
        age = f"installed {counted(days, 'day')} ago" if days else "installed today"
        yield f"price list  {prices.name} {prices.version}, {age}"


def _tokens(pipeline: Pipeline) -> Iterator[str]:
    """The tokens of an issuer that let clients of `aish serve` in, and what they are good for."""
    auth = pipeline.serve.auth
    if auth is None:
        return
    yield f"issuer {auth.issuer}  for {', '.join(auth.audience)}"
    for client in pipeline.serve.scoped:
        scopes = f"scopes {', '.join(client.scopes)}" if client.scopes else "any scopes"
        yield f"{client.name}  {scopes}  {', '.join(client.tools) or 'all tools'}"


class PlanText:
    """The lines of `aish plan`."""

    def __init__(self, preview: Preview) -> None:
        self._preview = preview
        self._plan = preview.plan
        self.mask = preview.plan.secrets.mask

    def lines(self) -> Iterator[str]:
        preview, plan = self._preview, self._plan
        pipeline = plan.pipeline
        yield self.mask(f"{pipeline.name}  {pipeline.file}")
        if pipeline.description:
            yield f"  {self._line(pipeline.description)}"
        yield from self._mapping("inputs", preview.options.inputs)
        yield from self._section("overrides", pipeline.overrides)
        yield from self._section("models", (self._model(alias) for alias in plan.models))
        if any(isinstance(price_of(plan, alias), Listed) for alias in plan.models):
            yield from _price_list(time.time())
        yield from self._section("servers", map(_server, preview.servers))
        yield from self._section("tokens of clients", _tokens(pipeline))
        yield from self._section("keys", key_lines(plan.key_sources))
        unusable = (f"{alias}  {why}" for alias, why in plan.unusable.items())
        yield from self._section("not usable, and only packs may ask them", unusable)
        missing = (
            f"{variable.name}  {'key' if variable.key else 'variable'}  {variable.problem.path} "
            f"({variable.problem.position.file}:{variable.problem.position.line})"
            for variable in plan.missing
        )
        yield from self._section("not set", missing)
        if plan.lock is not None:
            asked = any(server.state != "not asked" for server in preview.servers)
            known = "" if asked else ", tools known from it"
            yield f"lock  {self._line(str(lock_path(pipeline)))}{known}"
        notes = ((rule, note_on(rule, pipeline)) for rule in plan.policy.all())
        rules = (f"{r.list:13} {r.text}" + (f" ({note})" if note else "") for r, note in notes)
        yield from self._section("rules", rules)
        yield f"on_denied  {pipeline.on_denied or 'fail'}"
        bounds = bounds_of(plan.limits)
        if (seconds := plan.limits.time) is not None:
            yield f"time limit  {seconds:g} s"
        if bounds_text := _bounds({**bounds, "time": None}):
            yield f"limits  {bounds_text}"
        if len(preview.steps) > 1:
            yield "graph"
            yield from (f"  {line}" for line in graph_lines(preview.steps, self))
        yield "steps"
        yield from self._steps(preview.steps)
        yield from self._mapping("outputs", pipeline.outputs)
        yield from self._costs()

    def marks(self, planned: PlannedStep) -> Iterator[str]:
        """The id of a step, and what decides whether and how often it runs."""
        flow, count = planned.step.flow, planned.count
        yield self.mask(planned.step.id)
        if flow.foreach is not None:
            yield "for each of items" if count is None else f"for each of {count:,} items"
        if flow.when is not None:
            yield f"if {for_line(shorten(self.mask(flow.when), _LONGEST))}"

    def _line(self, text: str) -> str:
        return for_line(self.mask(text))

    def _short(self, value: JsonValue) -> str:
        masked = self._plan.secrets.mask_json(value)
        text = masked if isinstance(masked, str) else json.dumps(masked, ensure_ascii=False)
        return for_line(shorten_counted(text, _LONG))

    def _section(self, title: str, rows: Iterable[str]) -> Iterator[str]:
        listed = [f"  {self._line(row)}" for row in rows]
        if listed:
            yield from (title, *listed)

    def _mapping(self, title: str, value: JsonValue) -> Iterator[str]:
        if isinstance(value, Mapping) and value:
            yield title
            yield from (f"  {self.mask(key)}: {self._short(inner)}" for key, inner in value.items())

    def _model(self, alias: str) -> str:
        entry, price = self._plan.models[alias].entry, price_of(self._plan, alias)
        price_text = "  by the price list" if price is not None else ""
        if isinstance(price, Rates):
            # That an embedded model is free is not mentioned.
            rates = f"{dollars(price.input)} in / {dollars(price.output)} out"
            own = ((price.cached_input, "cached"), (price.cache_write, "to the cache"))
            rates += "".join(f" / {dollars(p)} {what}" for p, what in own if p is not None)
            price_text = "" if price.is_free else f"  {rates} per million tokens"
        most = answer_limit(entry)
        longest = "" if most is None else f"  {most:,} tokens an answer at most"
        in_batches = entry.delivery == BATCH
        batches = f"  in batches, for {batch_share(entry):.4g} of the price" if in_batches else ""
        return f"{alias}  {model_name(entry)}  {origin(entry)}{price_text}{longest}{batches}"

    def _costs(self) -> Iterator[str]:
        preview, plan = self._preview, self._plan
        counts = requests(plan, preview.context, preview.options.surveys)
        # A server that may ask models does so when it is called, which no estimate knows.
        more = "; a call of a pack may make more" if any(s.asks for s in preview.servers) else ""
        most = f"{counts.most:,} at most" if counts.most is not None else ""
        step = self._line(str(counts.uncounted))
        unknown = f"; the number of items of `{step}` is known only in the run"
        yield f"model requests  {counts.least:,} at least{f', {most}' if most else unknown}{more}"
        cost = most_cost(plan, preview.context)
        if counts.least and cost != 0:
            yield f"cost  {'unknown' if cost is None else f'{dollars(cost)} at most'}"

    def _steps(self, steps: Sequence[PlannedStep], prefix: str = "") -> Iterator[str]:
        for number, planned in enumerate(steps, 1):
            after = f"  after {', '.join(planned.needs)}" if planned.needs else ""
            head = f"{planned.step.id}  {_kind(planned)}{after}"
            yield f"  {prefix}{number}. {self._line(head)}"
            yield from (f"     {line}" for line in self._flow(planned))
            yield from (f"     {line}" for line in self._content(planned))
            yield from self._steps(planned.inner, f"{prefix}{number}.")

    def _flow(self, planned: PlannedStep) -> Iterator[str]:
        """The conditions that decide whether and how often the step runs."""
        flow = planned.step.flow
        if flow.when is not None:
            yield f"when: {self._short(flow.when)}"
        if flow.foreach is not None:
            count = "" if planned.count is None else f" ({planned.count:,} items)"
            width = f"{planned.plan.width(planned.step):,} at a time"
            yield f"foreach: {self._short(planned.over)}{count}, {width}"
            yield from self._keys(planned, flow.foreach)
        if flow.retry.attempts > 1:
            after = f", after {', '.join(flow.retry.on)}" if flow.retry.on else ""
            yield f"tried {_times(flow.retry.attempts)}{after}"
        if flow.timeout is not None:
            yield f"timeout: {flow.timeout:g} s each time"
        if flow.on_error != "fail":
            yield f"on_error: {flow.on_error}"
        if bounds := bounds_of(flow.limits):
            yield f"limits: {_bounds(bounds)}"

    def _keys(self, planned: PlannedStep, foreach: Foreach) -> Iterator[str]:
        """The keys of items, and how many items may fail."""
        if foreach.key is not None:
            note, survey = "", planned.keys
            if survey is None and foreach.on_duplicate != "fail":
                note = f" (on_duplicate: {foreach.on_duplicate})"
            elif survey is not None and survey.repeated:
                became = "left out" if foreach.on_duplicate == "first" else "numbered"
                note = f"; {counted(survey.repeated, 'item')} with a duplicate key: {became}"
            yield f"key: {self._short(foreach.key)}{note}"
        most = foreach.max_failures
        if most is not None and most.count:
            yield f"max_failures: {most.count}"
        elif most is not None and most.share is not None:
            yield f"max_failures: {100 * most.share:.6g}% of the items"

    def _content(self, planned: PlannedStep) -> Iterator[str]:
        """Yield what the step sends, and the verdict on it."""
        match planned.step:
            case PromptStep() as step:
                yield from self._prompt(planned, step)
            case PipelineStep(inputs=inputs):
                yield f"inputs: {self._short(planned.render(inputs))}"
            case CallStep(arguments=arguments):
                yield f"arguments: {self._short(planned.render(arguments))}"
            case RunStep() as step:
                yield f"command: {self._short(planned.command(step))}"
        if (ruling := planned.ruling()) is not None:
            yield f"{ruling.verdict}: {self._line(ruling.reason)}"
            if ruling.hint is not None:
                yield f"  hint: {self._line(ruling.hint)}"
        for held in planned.held:
            tools = first_of(held.tools, 3)
            yield self._line(f"may be held by {held.rule} ({held.then}): {tools}: {held.why}")

    def _prompt(self, planned: PlannedStep, step: PromptStep) -> Iterator[str]:
        if system := planned.system(step):
            yield f"system: {self._short(system)}"
        if isinstance(step.prompt, Prompt):
            yield f"prompt: {self._short(planned.render(step.prompt.user))}"
        else:
            arguments = self._short(planned.render(dict(step.prompt.arguments)))
            arguments_text = f" with {arguments}" if step.prompt.arguments else ""
            named = f"`{step.prompt.name}` of the server `{step.prompt.server}`"
            yield f"prompt: {self._line(named)}{arguments_text}"
        for source in step.attach:
            if isinstance(source, Retrieval):
                least = f" with a score of {source.threshold:g} or more" if source.threshold else ""
                most = f"up to {counted(source.top_k, 'passage')}{least}"
                query = planned.render(source.query)
                what: JsonValue = f"{most} that `{source.server}` finds for: {query}"
            else:
                what = planned.render(source.ref)
                what = what if source.server is None else f"{what} of `{source.server}`"
            yield f"attach: {self._short(what)}"
        if step.continues is not None:
            yield f"continues: {self.mask(step.continues)}"
        yield from self._context_lines(step.context)
        views = planned.views(step)
        marks = [f"{tool.verdict}{'*' if tool.conditional else ''}" for tool in views]
        width = max(_MARK, *map(len, marks)) if marks else _MARK
        for mark, tool in zip(marks, views, strict=True):
            yield f"{mark:{width}}  {self._line(str(tool.tool.name))}"
        if step.output is not None and step.output.schema:
            yield f"answers in a JSON schema, requested {_times(step.output.attempts)}"
            if bits := released_bits(step):
                labels = " or ".join(step.output.release)
                yield f"release: {counted(bits, 'bit')}, which are not {labels} any more"

    def _context_lines(self, context: Context) -> Iterator[str]:
        if context.max_tokens is not None:
            bound = f"at most {context.max_tokens:,} tokens, the last {context.keep} rounds kept"
            model = context.summary_model
            yield f"context: {bound}" + (f", summaries by `{self.mask(model)}`" if model else "")
        if context.files:
            yield from (f"file: {self._line(_context_file(file))}" for file in context.files)
            limits = (_size(size) for size in (context.file_limit, context.round_limit))
            yield f"refresh: {_REFRESH[context.refresh].format(*limits)}"


def _server(row: PlannedServer) -> str:
    state = row.state if row.error is None else f"{row.state}: {row.error}"
    if row.tools is not None and row.error is None:
        state = f"{state}, {row.tools} tools"
    options = f"  ({', '.join(row.options)})" if row.options else ""
    sandbox = f"  sandbox: {row.sandbox}" if row.sandbox else ""
    asks = f"  asks: {', '.join(row.asks)}" if row.asks else ""
    login = f"  login: {row.login}" if row.login else ""
    optional = "" if row.required else "  (optional)"
    return f"{row.alias}  {row.where}{options}  {state}{sandbox}{asks}{login}{optional}"


def _bounds(limits: Mapping[str, JsonValue]) -> str:
    given = ((name, key, limits.get(key)) for key, name in _BOUNDS.items())
    return ", ".join(
        f"{name} {_amount(key, most)}" for name, key, most in given if isinstance(most, int | float)
    )


def _amount(key: str, most: float) -> str:
    if key == "time":
        return f"{most:g} s"
    return dollars(most) if key == "cost_usd" else f"{most:,}"


def _size(size: int) -> str:
    return f"{size}B" if size % 1024 else f"{size // 1024}KiB"


def _context_file(file: ContextFile) -> str:
    if file.lines is not None:
        first, last = file.lines
        return f"{file.path}, {f'line {first}' if first == last else f'lines {first} to {last}'}"
    part = file.name or ("skeleton" if file.skeleton else "")
    return f"{file.path}, {part}" if part else file.path


def _times(attempts: int) -> str:
    return "once" if attempts == 1 else f"up to {attempts} times"


def _kind(planned: PlannedStep) -> str:
    match planned.step:
        case PromptStep() as step:
            return f"prompt to `{planned.plan.model_of(step)}`"
        case CallStep(call=call):
            return f"call {call}"
        case PipelineStep() as step:
            return f"pipeline {planned.file(step)}"
        case RunStep():
            return "run"


class PlanReport(StrEnum):
    TEXT = "text"
    JSON = "json"
    MERMAID = "mermaid"


def command(
    file: ProjectFileArgument = OWN_FILE,
    *,
    inputs: InputOptions,
    rules: RuleOptions,
    timeout: TimeoutOption = None,
    max_cost_usd: MaxCostOption = None,
    max_turns: MaxTurnsOption = None,
    no_key_check: NoKeyCheckOption = False,
    offline: Annotated[
        bool, Option("--offline", "Do not connect to servers; no key is needed.")
    ] = False,
    strict: StrictOption = False,
    output_format: Annotated[PlanReport, Option("--format", "Output format.")] = PlanReport.TEXT,
) -> int:
    """Show what would run and what would be asked.

    Asks servers for their tools, and calls no model. Variables and keys that are not set are
    errors; `--offline` lists them instead.

    Example: aish plan pipelines/review.yaml --offline
    """
    pipeline = load(file, inputs.overrides, strict=strict, lock=rules.lock)
    require_steps(pipeline)
    options = run_options(pipeline, inputs, rules)
    if lacks_stdin(pipeline, options.stdin):
        say("note: the file reads `{{ stdin }}`, which is empty here: `aish run` would refuse that")
    options = replace(
        options,
        timeout=seconds_of(timeout),
        max_cost_usd=max_cost_usd,
        max_turns=max_turns,
        key_check=not no_key_check,
    )
    plan = make_plan(pipeline, options, offline=offline)
    keys: UsageError | None = None
    try:
        options = with_key_surveys(plan, options)
    except UsageError as repeated:
        # The plan is shown even so.
        keys = repeated
    tools = look_at_lock(plan, notices(plan.secrets)) if offline else look_at_tools(plan)
    preview = preview_of(plan, options, tools)
    _print(preview, output_format)
    for step, survey in options.surveys.items():
        if survey.unusable:
            of = f"{survey.unusable:,} of {counted(survey.items, 'item')}"
            say(
                f"warning: step `{step}`: {of} will fail because the key is missing; first "
                f"{survey.odd}"
            )
    report_shadows(pipeline)
    leaks = _report_leaks(preview, strict=strict) + _report_open_logins(plan, strict=strict)
    if keys is not None:
        report(keys)
        return int(ExitCode.USAGE)
    if tools is None:
        return int(ExitCode.USAGE if leaks and strict else ExitCode.OK)
    for error in tools.locked:
        report(error)
        return int(error.exit_code)
    odd = (
        _report_unmatched(tools, strict=strict)
        + _report_crowded(plan, tools, strict=strict)
        + leaks
    )
    require_servers(plan, tools.servers)
    return int(ExitCode.USAGE if odd and strict else ExitCode.OK)


def _print(preview: Preview, output_format: PlanReport) -> None:
    text = PlanText(preview)
    match output_format:
        case PlanReport.JSON:
            print_json(preview.plan.secrets.mask_json(preview_json(preview)))
        case PlanReport.MERMAID:
            print_text("\n".join(("flowchart TD", *mermaid_lines(preview.steps, text))))
        case PlanReport.TEXT:
            print_text("\n".join(text.lines()))


def _report_unmatched(view: ToolListing, *, strict: bool) -> int:
    """A rule that matches no known tool: a warning, an error with `--strict`."""
    for rule in view.unmatched:
        level = "error" if strict else "warning"
        say(f"{level}: {rule.path}: the rule `{rule.tool}` matches no known tool")
    return len(view.unmatched)


def _report_leaks(preview: Preview, *, strict: bool) -> int:
    """Calls that may send data out without approval: warnings, errors with `--strict`."""
    printer = ProblemPrinter(say)
    problems = held_check(preview.warned)
    for problem in problems:
        printer.say(problem, "error" if strict else "warning")
    return len(problems)


def _report_open_logins(plan: Plan, *, strict: bool) -> int:
    """Logins whose secret goes to whomever the server names: warnings, errors with `--strict`."""
    open_logins = [
        f"mcp.servers.{alias}.oauth"
        for alias, entry in plan.pipeline.servers.items()
        if entry.oauth is not None
        # A person sees where they log in, a secret does not.
        and (not entry.oauth.login or entry.oauth.client_secret_env)
        and (entry.oauth.issuer or entry.oauth.token_url) is None
    ]
    for path in open_logins:
        level = "error" if strict else "warning"
        say(f"{level}: {path}: the authorization server that the server names gets the secret")
        say("  hint: `issuer` names the only one that may have it")
    inner = (_report_open_logins(one, strict=strict) for one in plan.inner.values())
    return len(open_logins) + sum(inner)


def _report_crowded(plan: Plan, view: ToolListing, *, strict: bool) -> int:
    """Requests with more tools than endpoints or the context accept, as far as that is known."""
    crowded = 0
    for step in plan.steps:
        if not isinstance(step, PromptStep):
            continue
        tools = visible_tools(step, tuple(row.tool for row in view.tools))
        size, most = weigh_rest(tools, None) // BYTES_PER_TOKEN, step.context.max_tokens
        if len(tools) > MANY_TOOLS:
            size_text = f"{len(tools):,} tools; many endpoints accept {MANY_TOOLS} at most"
        elif most is not None and size > most:
            size_text = f"{counted(len(tools), 'tool')} of about {size:,} tokens"
            size_text += f", and `context.max_tokens` is {most:,}"
        else:
            continue
        crowded += 1
        say(f"{'error' if strict else 'warning'}: step `{step.id}`: its requests have {size_text}")
        say("  hint: name those it needs under `tools:` of the step, or of the server")
    return crowded
