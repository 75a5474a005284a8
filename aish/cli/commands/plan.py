"""`aish plan FILE`: the plan as text, as JSON, and its steps as a graph in Mermaid (F3).

All untrusted text passes `for_line` (X2).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from aish.cli.boundary import report, say
from aish.cli.options import (
    OWN_FILE,
    AllowOption,
    BroadRootOption,
    DenyOption,
    InputOption,
    InputsOption,
    InputTextOption,
    LockOption,
    LockUse,
    MaxCostOption,
    MaxTurnsOption,
    ModelOption,
    NoKeyCheckOption,
    Option,
    ProjectFileArgument,
    SetOption,
    StrictOption,
    TimeoutOption,
    VerboseOption,
)
from aish.cli.pipeline_options import Given, load, run_options
from aish.cli.printer import print_json, print_text
from aish.cli.problems import ProblemPrinter
from aish.cli.tool_preview import looked_at, notices
from aish.config.inputs import given_inputs
from aish.core.errors import ExitCode, UsageError
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import counted, dollars, shorten, shorten_counted
from aish.core.text import for_line
from aish.engine.plan.order import lacks_stdin
from aish.engine.plan.plan import Plan, make_plan
from aish.engine.plan.validation.validate import exfiltration_check, require_steps
from aish.engine.preview.preview import plan_view
from aish.engine.preview.tool_listing import MANY_TOOLS, Look, look_at_lock
from aish.engine.resources.resources import require_servers

_BRANCH, _LAST, _DOWN, _NOTHING = "├─▶ ", "└─▶ ", "│   ", "    "
# Characters that Mermaid would interpret inside quotes.
_MERMAID = str.maketrans({'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", "\n": " "})
_LONGEST = 60


def graph_lines(steps: Sequence[JsonObject]) -> Iterator[str]:
    """A tree: each step is below the last step that it needs, and names the others."""
    parents = _parents(steps)
    beside = _beside(steps, parents)
    children: dict[str | None, list[JsonObject]] = {}
    for step in steps:
        children.setdefault(parents[str(step["id"])], []).append(step)
    for root in children.get(None, ()):
        yield _label(root)
        yield from _below(str(root["id"]), children, beside, "")


def mermaid_lines(view: JsonObject) -> Iterator[str]:
    """A flowchart that GitHub and others render."""
    yield "flowchart TD"
    yield from _mermaid(_tables(view["steps"]), "", "  ")


def _parents(steps: Sequence[JsonObject]) -> dict[str, str | None]:
    """For each step the needed step with the greatest depth."""
    depth: dict[str, int] = {}
    parents: dict[str, str | None] = {}
    for step in steps:
        needs = [str(need) for need in _rows(step["needs"])]
        deepest = max(needs, key=lambda need: depth[need], default=None)
        parents[str(step["id"])] = deepest
        depth[str(step["id"])] = 0 if deepest is None else depth[deepest] + 1
    return parents


def _beside(steps: Sequence[JsonObject], parents: Mapping[str, str | None]) -> dict[str, list[str]]:
    """The other needs of each step, without those that another of its needs implies."""
    needs = {str(step["id"]): [str(need) for need in _rows(step["needs"])] for step in steps}
    before: dict[str, set[str]] = {}
    for id, own in needs.items():
        before[id] = {*own, *(one for need in own for one in before[need])}
    return {
        id: [
            need
            for need in own
            if need != parents[id] and not any(need in before[other] for other in own)
        ]
        for id, own in needs.items()
    }


def _below(
    id: str,
    children: Mapping[str | None, list[JsonObject]],
    beside: Mapping[str, Sequence[str]],
    indent: str,
) -> Iterator[str]:
    own = children.get(id, [])
    for step in own:
        last = step is own[-1]
        name = str(step["id"])
        also = f"  (and after {', '.join(beside[name])})" if beside[name] else ""
        yield f"{indent}{_LAST if last else _BRANCH}{_label(step)}{also}"
        yield from _below(name, children, beside, indent + (_NOTHING if last else _DOWN))


def _label(step: JsonObject) -> str:
    marks = [str(step["id"])]
    foreach = step.get("foreach")
    if isinstance(foreach, Mapping):
        marks.append(f"for each of {_count(foreach)}")
    if step.get("when") is not None:
        marks.append(f"if {for_line(shorten(str(step['when']), _LONGEST))}")
    return "  ".join(marks)


def _count(foreach: JsonObject) -> str:
    return "items" if foreach["count"] is None else f"{foreach['count']:,} items"


def _mermaid(steps: Sequence[JsonObject], prefix: str, indent: str) -> Iterator[str]:
    for step in steps:
        node = f"{prefix}{step['id']}"
        words = [str(step["id"]), str(step["kind"])]
        foreach = step.get("foreach")
        if isinstance(foreach, Mapping):
            words.append(f"for each of {_count(foreach)}")
        if step.get("when") is not None:
            words.append(f"if {shorten(str(step['when']), _LONGEST)}")
        text = "<br/>".join(for_line(word).translate(_MERMAID) for word in words)
        inner = _tables(step.get("steps"))
        if inner:
            yield f'{indent}subgraph s_{node}["{text}"]'
            yield from _mermaid(inner, f"{node}_in_", f"{indent}  ")
            yield f"{indent}end"
        else:
            yield f'{indent}s_{node}["{text}"]'
    for step in steps:
        for need in _rows(step["needs"]):
            yield f"{indent}s_{prefix}{need} --> s_{prefix}{step['id']}"


_LONG = 400
_MARK = len("auto*")
_BOUNDS = {
    "time": "time",
    "tokens": "tokens",
    "cost_usd": "cost",
    "tool_calls": "tool calls",
    "turns": "turns",
}


def plan_lines(view: JsonObject) -> Iterator[str]:
    """The lines of `aish plan`, for a view made by `engine.preview.preview`."""
    yield f"{view['pipeline']}  {view['file']}"
    if view["description"]:
        yield f"  {for_line(str(view['description']))}"
    yield from _mapping("inputs", view["inputs"])
    if overrides := _rows(view["overrides"]):
        yield "overrides"
        yield from (f"  {for_line(str(row))}" for row in overrides)
    yield from _section("models", view["models"], _model)
    yield from _section("servers", view["servers"], _server)
    yield from _section("not usable, and only packs may ask them", view["unusable"], _unusable)
    yield from _section("not set", view["missing"], _missing)
    if view["lock"] is not None:
        asked = any(row["state"] != "not asked" for row in _tables(view["servers"]))
        yield f"lock  {for_line(str(view['lock']))}" + ("" if asked else ", tools known from it")
    yield from _section("rules", view["rules"], _rule)
    yield f"on_denied  {view['on_denied']}"
    limits = view["limits"]
    if isinstance(limits, Mapping) and limits["time"] is not None:
        yield f"time limit  {limits['time']:g} s"
    if isinstance(limits, Mapping) and (said := _bounds({**limits, "time": None})):
        yield f"limits  {said}"
    steps = _tables(view["steps"])
    if len(steps) > 1:
        yield "graph"
        yield from (f"  {line}" for line in graph_lines(steps))
    yield "steps"
    yield from _steps(steps)
    yield from _mapping("outputs", view["outputs"])
    requests = view["requests"]
    assert isinstance(requests, Mapping)
    # A server that may ask models does so when it is called, which no estimate knows.
    asked = any("asks" in row for row in _tables(view["servers"]))
    more = "; a call of a pack may make more" if asked else ""
    yield f"model requests  {_requests(requests)}{more}"
    cost = view["cost_usd"]
    if requests["at_least"] and isinstance(cost, Mapping) and cost["at_most"] != 0:
        yield f"cost  {_most(cost['at_most'])}"


def _rule(row: JsonObject) -> str:
    note = f" ({row['note']})" if "note" in row else ""
    return f"{row['list']:13} {row['rule']}{note}"


def _tables(rows: JsonValue) -> list[JsonObject]:
    return [row for row in _rows(rows) if isinstance(row, Mapping)]


def _section(title: str, rows: JsonValue, line: Callable[[JsonObject], str]) -> Iterator[str]:
    listed = _tables(rows)
    if listed:
        yield title
        yield from (f"  {for_line(line(row))}" for row in listed)


def _mapping(title: str, value: JsonValue) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        yield title
        yield from (f"  {key}: {for_line(_short(inner))}" for key, inner in value.items())


def _bounds(limits: JsonObject) -> str:
    """The limits that are set."""
    given = ((name, key, limits.get(key)) for key, name in _BOUNDS.items())
    return ", ".join(
        f"{name} {_amount(key, most)}" for name, key, most in given if most is not None
    )


def _amount(key: str, value: JsonValue) -> str:
    assert isinstance(value, int | float)
    if key == "time":
        return f"{value:g} s"
    return dollars(value) if key == "cost_usd" else f"{value:,}"


def _requests(requests: JsonObject) -> str:
    least, most = requests["at_least"], requests["at_most"]
    if isinstance(most, int):
        return f"{least:,} at least, {most:,} at most"
    step = for_line(str(requests["uncounted"]))
    return f"{least:,} at least; the number of items of `{step}` is known only in the run"


def _most(cost: JsonValue) -> str:
    return f"{dollars(cost)} at most" if isinstance(cost, int | float) else "unknown"


def _model(row: JsonObject) -> str:
    most = "" if row["max_tokens"] is None else f"  {row['max_tokens']:,} tokens an answer at most"
    return f"{row['alias']}  {row['model']}  {row['origin']}{_price(row['price'])}{most}"


def _price(price: JsonValue) -> str:
    """The price of tokens; that an embedded model is free is not mentioned."""
    if not isinstance(price, Mapping):
        return "  by the price list" if price else ""
    rates = [dollars(rate) for rate in price.values() if isinstance(rate, int | float)]
    return "  {} in / {} out per million tokens".format(*rates) if any(price.values()) else ""


def _server(row: JsonObject) -> str:
    state = str(row["state"])
    if row["tools"] is not None and row["error"] is None:
        state = f"{state}, {row['tools']} tools"
    if row["error"] is not None:
        state = f"{state}: {row['error']}"
    optional = "" if row["required"] else "  (optional)"
    sandbox = f"  sandbox: {row['sandbox']}" if "sandbox" in row else ""
    options = row.get("options")
    given = f"  ({', '.join(map(str, options))})" if isinstance(options, Sequence) else ""
    models = row.get("asks")
    asks = f"  asks: {', '.join(map(str, models))}" if isinstance(models, Sequence) else ""
    return f"{row['alias']}  {row['where']}{given}  {state}{sandbox}{asks}{optional}"


def _unusable(row: JsonObject) -> str:
    return f"{row['alias']}  {row['why']}"


def _missing(row: JsonObject) -> str:
    what = "key" if row["key"] else "variable"
    return f"{row['variable']}  {what}  {row['path']} ({row['file']}:{row['line']})"


def _steps(steps: Sequence[JsonObject], prefix: str = "") -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        yield from _step(f"{prefix}{number}", step)
        yield from _steps(_tables(step.get("steps")), f"{prefix}{number}.")


def _flow(step: JsonObject) -> Iterator[str]:
    """The conditions that decide whether and how often the step runs."""
    if step.get("when") is not None:
        yield f"     when: {for_line(_short(step['when']))}"
    foreach = step.get("foreach")
    if isinstance(foreach, Mapping):
        count = "" if foreach["count"] is None else f" ({foreach['count']:,} items)"
        said = f"{_short(foreach['over'])}{count}, {foreach['concurrency']} at a time"
        yield f"     foreach: {for_line(said)}"
        yield from _keys(foreach)
    retry = step.get("retry")
    if isinstance(retry, Mapping):
        after = ", ".join(str(word) for word in _rows(retry["on"]))
        yield f"     tried {_times(retry['attempts'])}" + (f", after {after}" if after else "")
    if step.get("timeout") is not None:
        yield f"     timeout: {step['timeout']:g} s each time"
    if step.get("on_error") is not None:
        yield f"     on_error: {step['on_error']}"
    limits = step.get("limits")
    if isinstance(limits, Mapping):
        yield f"     limits: {_bounds(limits)}"


def _keys(foreach: JsonObject) -> Iterator[str]:
    """The keys of items, and how many items may fail."""
    if foreach["key"] is not None:
        yield f"     key: {for_line(_short(foreach['key']))}{_repeated(foreach)}"
    most = foreach["max_failures"]
    if isinstance(most, float):
        yield f"     max_failures: {100 * most:.6g}% of the items"
    elif isinstance(most, int):
        yield f"     max_failures: {most}"


def _repeated(foreach: JsonObject) -> str:
    repeated, policy = foreach["repeated"], foreach["on_duplicate"]
    if not isinstance(repeated, int):
        return "" if policy == "fail" else f" (on_duplicate: {policy})"
    if not repeated:
        return ""
    became = "left out" if policy == "first" else "numbered"
    return f"; {counted(repeated, 'item')} with a duplicate key: {became}"


def _kept_short(step: JsonObject) -> Iterator[str]:
    """The limit on the length of the conversation, and the files that stay current in it."""
    context = step.get("context")
    if isinstance(context, Mapping) and "max_tokens" in context:
        said = f"at most {context['max_tokens']:,} tokens, the last {context['keep']} rounds kept"
        model = context["summary_model"]
        yield f"     context: {said}" + (f", summaries by `{model}`" if model else "")
    if isinstance(context, Mapping) and "files" in context:
        for one in _rows(context["files"]):
            yield f"     file: {for_line(_context_file(one))}"
        limits = (_size(context[key]) for key in ("file_limit", "round_limit"))
        yield f"     refresh: {_REFRESH[str(context['refresh'])].format(*limits)}"


_REFRESH = {
    "diff": "changed lines, at most {} a file and {} a round",
    "whole": "changed files whole, at most {} each and {} a round",
    "name": "names of changed files",
    "off": "off",
}


def _size(size: JsonValue) -> str:
    """A size as the file has it."""
    whole = isinstance(size, int) and size % 1024 == 0
    return f"{size // 1024}KiB" if whole and isinstance(size, int) else f"{size}B"


def _context_file(one: JsonValue) -> str:
    if not isinstance(one, Mapping):
        return str(one)
    if "lines" in one:
        first, last = _rows(one["lines"])
        return f"{one['path']}, {f'line {first}' if first == last else f'lines {first} to {last}'}"
    return f"{one['path']}, {one.get('name', 'skeleton')}"


def _step(number: str, step: JsonObject) -> Iterator[str]:
    needs = _rows(step["needs"])
    after = f"  after {', '.join(str(need) for need in needs)}" if needs else ""
    yield f"  {number}. {step['id']}  {_what(step)}{after}"
    yield from _flow(step)
    for key in ("system", "prompt"):
        text = step.get(key)
        if isinstance(text, str):
            yield f"     {key}: {for_line(_short(text))}"
    yield from _opening(step)
    yield from _kept_short(step)
    if step["kind"] == "pipeline":
        yield f"     inputs: {for_line(_short(step['inputs']))}"
    if step["kind"] == "call":
        yield f"     arguments: {for_line(_short(step['arguments']))}"
    if step["kind"] == "run":
        yield f"     command: {for_line(_short(step['run']))}"
    if "verdict" in step:
        yield f"     {step['verdict']}: {for_line(str(step['reason']))}"
        if "hint" in step:
            yield f"       hint: {for_line(str(step['hint']))}"
    tools = _tables(step.get("tools"))
    marks = [f"{tool['verdict']}{'*' if tool['depends_on_arguments'] else ''}" for tool in tools]
    width = max(_MARK, *map(len, marks)) if marks else _MARK
    for mark, tool in zip(marks, tools, strict=True):
        yield f"     {mark:{width}}  {for_line(str(tool['tool']))}"
    if step.get("schema"):
        yield f"     answers in a JSON schema, requested {_times(step['attempts'])}"


def _opening(step: JsonObject) -> Iterator[str]:
    """The parts of a prompt other than the texts of the file."""
    kept = step.get("prompt")
    if isinstance(kept, Mapping):
        given = f" with {_short(kept['arguments'])}" if kept["arguments"] else ""
        yield for_line(f"     prompt: `{kept['name']}` of the server `{kept['server']}`{given}")
    for one in _rows(step.get("attach")):
        said = _attached(one) if isinstance(one, Mapping) else one
        yield for_line(f"     attach: {_short(said)}")
    if step.get("continues") is not None:
        yield f"     continues: {step['continues']}"


def _attached(one: JsonObject) -> str:
    if "uri" in one:
        return f"{one['uri']} of `{one['server']}`"
    least = f" with a score of {one['threshold']:g} or more" if one["threshold"] else ""
    count = one["top_k"]
    assert isinstance(count, int)
    most = f"up to {counted(count, 'passage')}{least}"
    return f"{most} that `{one['server']}` finds for: {one['query']}"


def _times(attempts: JsonValue) -> str:
    return "once" if attempts == 1 else f"up to {attempts} times"


def _what(step: JsonObject) -> str:
    match step["kind"]:
        case "prompt":
            return f"prompt to `{step['model']}`"
        case "call":
            return f"call {for_line(str(step['call']))}"
        case "pipeline":
            return f"pipeline {for_line(str(step['pipeline']))}"
        case _:
            return "run"


def _short(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shorten_counted(text, _LONG)


def _rows(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


class PlanReport(StrEnum):
    """The output options of a plan."""

    TEXT = "text"
    JSON = "json"
    MERMAID = "mermaid"


def command(
    file: ProjectFileArgument = OWN_FILE,
    *,
    inputs: InputOption = None,
    input_texts: InputTextOption = None,
    inputs_file: InputsOption = None,
    overrides: SetOption = None,
    model: ModelOption = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    broad_root: BroadRootOption = False,
    lock: LockOption = LockUse.ENFORCE,
    timeout: TimeoutOption = None,
    max_cost_usd: MaxCostOption = None,
    max_turns: MaxTurnsOption = None,
    no_key_check: NoKeyCheckOption = False,
    offline: Annotated[
        bool, Option("--offline", help="Do not connect to servers; no key is needed.")
    ] = False,
    strict: StrictOption = False,
    format_: Annotated[PlanReport, Option("--format", help="Output format.")] = PlanReport.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Show what would run and what would be asked.

    Servers are asked for their tools; no model is called. Variables and keys that are not set are
    errors, and `--offline` lists them instead.

    Example: aish plan pipelines/review.yaml --offline
    """
    del verbose
    pipeline = load(file, overrides, strict=strict, lock=lock)
    require_steps(pipeline)
    given = Given(given_inputs(inputs, input_texts), inputs_file, model, broad_root)
    options = run_options(pipeline, given, allow=allow, deny=deny, timeout=timeout, lock=lock)
    if lacks_stdin(pipeline, options.stdin):
        say("note: the file reads `{{ stdin }}`, which is empty here: `aish run` would refuse that")
    options = replace(
        options, max_cost_usd=max_cost_usd, max_turns=max_turns, key_check=not no_key_check
    )
    plan = make_plan(pipeline, options, offline=offline)
    keys: UsageError | None = None
    try:
        if plan.has_keys:
            from aish.engine.execution.item_source import with_surveys

            options = with_surveys(plan, options)
    except UsageError as repeated:
        # The plan is shown even so.
        keys = repeated
    found = look_at_lock(plan, notices(plan.secrets)) if offline else looked_at(plan)
    view = plan.secrets.mask_json(plan_view(plan, options, found))
    assert isinstance(view, Mapping)
    _print(view, format_)
    for step, survey in options.surveys.items():
        if survey.unusable:
            of = f"{survey.unusable:,} of {counted(survey.items, 'item')}"
            say(
                f"warning: step `{step}`: {of} will fail because the key is missing; first "
                f"{survey.odd}"
            )
    leaks = _exfiltration(plan, strict=strict)
    if keys is not None:
        report(keys)
        return int(ExitCode.USAGE)
    if found is None:
        return int(ExitCode.USAGE if leaks and strict else ExitCode.OK)
    for error in found.locked:
        report(error)
        return int(error.exit_code)
    odd = _unmatched(found, strict=strict) + _crowded(view, strict=strict) + leaks
    require_servers(plan, found.servers)
    return int(ExitCode.USAGE if odd and strict else ExitCode.OK)


def _print(view: JsonObject, format_: PlanReport) -> None:
    if format_ is PlanReport.JSON:
        print_json(view)
    else:
        lines = mermaid_lines if format_ is PlanReport.MERMAID else plan_lines
        print_text("\n".join(lines(view)))


def _unmatched(found: Look, *, strict: bool) -> int:
    """A rule that matches no known tool: a warning, an error with `--strict` (P1)."""
    for rule in found.unmatched:
        level = "error" if strict else "warning"
        say(f"{level}: {rule.path}: the rule `{rule.tool}` matches no known tool")
    return len(found.unmatched)


def _exfiltration(plan: Plan, *, strict: bool) -> int:
    """Rules by which data may leak, here and in sub-pipelines: warnings, errors with `--strict`."""
    printer = ProblemPrinter(say)
    found = exfiltration_check(plan.pipeline, plan.policy)
    for problem in found:
        printer.say(problem, "error" if strict else "warning")
    return len(found) + sum(_exfiltration(inner, strict=strict) for inner in plan.inner.values())


def _crowded(view: JsonObject, *, strict: bool) -> int:
    """Requests with more tools than endpoints accept, as far as that is known."""
    steps = view["steps"]
    assert isinstance(steps, Sequence)
    crowded = 0
    for step in steps:
        assert isinstance(step, Mapping)
        tools = step.get("tools")
        if isinstance(tools, Sequence) and len(tools) > MANY_TOOLS:
            crowded += 1
            said = f"step `{step['id']}`: its requests have {len(tools):,} tools"
            level = "error" if strict else "warning"
            say(f"{level}: {said}; many endpoints accept {MANY_TOOLS} at most")
            say("  hint: name those it needs under `tools:` of the step, or of the server")
    return crowded
