"""A configuration of promptfoo: prompts, providers, and tests with variables and assertions."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from aish.cli.importing.documents import LIMIT, read_data
from aish.cli.importing.draft import Draft, Section, as_section, slug
from aish.cli.importing.endpoints import DEFAULT, is_known, model_entry
from aish.cli.importing.servers import literal
from aish.cli.importing.templates import free_names, renamed
from aish.config.documents import UnreadableError, read_text, reason
from aish.config.yaml_tree import ListNode, MappingNode, Node, ScalarNode
from aish.core.errors import Position, UsageError
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue

_MOST_CASES = 1000
_INSTEAD: Final = {
    "tags": "left out: not needed here",
    "outputPath": "`-o FILE` of `aish run`, `--junit FILE` of `aish test`",
    "evaluateOptions": "`concurrency` of a step with `foreach`, `timeout` of a step",
    "commandLineOptions": "options of `aish run` and `aish test`",
    "env": "export the variables before the run",
    "scenarios": "write the cases out under `tests`",
    "transform": "`outputs`, which are templates",
    "nunjucksFilters": "the filters of templates",
    "derivedMetrics": "left out: not needed here",
    "extensions": "left out: pipelines do not run code of other files",
    "redteam": "left out: no pipeline does this",
    "sharing": "left out: nothing is shared",
    "options": "left out: not needed here",
    "metadata": "left out: not needed here",
    "threshold": "every expectation has to hold",
    "provider": "`-m ALIAS`",
    "providers": "`-m ALIAS`",
}
_OF_ASSERTION: Final = {
    "weight": "every expectation has to hold",
    "metric": "left out: not needed here",
    "threshold": "every expectation has to hold",
    "transform": "`outputs`, which are templates",
    "provider": "the judge is a model of the file: `judge: {model: ALIAS, …}`",
    "rubricPrompt": "the judge has words of its own",
}
_PARAMS = frozenset(
    {
        *("temperature", "max_tokens", "max_completion_tokens", "top_p", "top_k", "seed", "stop"),
        *("presence_penalty", "frequency_penalty", "reasoning_effort"),
    }
)
_CODE = ("file://", "exec:", "python:", "http:", "https:", "ws:", "wss:", "package:", "webhook:")
_TYPES_OF_MODEL = frozenset({"chat", "messages", "responses", "completion"})
_NO_CHAT = frozenset({"embedding", "embeddings", "image", "realtime", "assistant", "moderation"})
_CONFIG: Final = {
    "tools": "servers under `mcp.servers`",
    "functions": "servers under `mcp.servers`",
    "response_format": "`output: {schema: …}` of the step",
    "organization": "`headers` of the model",
}
_OF_PROMPT: Final = {"config": "`params` of the step", "function": "write the prompt out"}
_OF_PROVIDER: Final = {"prompts": "a prompt for each model is a step with `model: ALIAS`"}
_ROLES = ("system", "user")
_EXPECTED = re.compile(
    r"(?P<type>(?:not-)?[a-z][a-z-]*)(?:\((?P<threshold>[\d.]+)\))?: ?(?P<value>.*)", re.DOTALL
)


@frozen
class Prompt:
    """One prompt, its variables still named as in the source."""

    id: str
    user: str
    system: str | None
    position: Position
    path: str


@slotted
class Case:
    """One test: values of variables, and what is expected with its place."""

    name: str | None
    values: dict[str, JsonValue]
    checks: list[Section]


def is_configuration(root: Section) -> bool:
    """Whether a mapping looks like a configuration."""
    entries = root.node.entries
    return "prompts" in entries and bool({"providers", "targets", "tests"} & set(entries))


def from_configuration(root: Section) -> dict[str, JsonValue]:
    """The pipeline of a configuration: a step for each prompt, a test for each case."""
    draft = root.draft
    made: dict[str, JsonValue] = {}
    if (description := root.text("description")) is not None:
        made["description"] = description
    prompts = list(_prompts(root))
    cases = _cases(root)
    used = {name for prompt in prompts for name in _names(prompt, draft)}
    inputs = _inputs(used, cases)
    if inputs:
        made["inputs"] = inputs
    models = _models(root)
    if models:
        made["models"] = models
        if len(models) > 1:
            made["model"] = next(iter(models))
    steps = [_step(prompt) for prompt in prompts]
    if len(steps) == 1:
        made |= {key: value for key, value in steps[0].items() if key != "id"}
    elif steps:
        made["steps"] = list(steps)
    else:
        root.wrong("prompts", "there is no prompt that could be imported")
    where = [None] if len(prompts) == 1 else [f"steps.{prompt.id}.text" for prompt in prompts]
    judge = next(iter(models), DEFAULT)
    tests = _tests(cases, inputs, where, judge, draft)
    if tests:
        made["tests"] = tests
    root.leave(_INSTEAD, frozenset({"$schema"}))
    return made


def _prompts(root: Section) -> Iterator[Prompt]:
    taken: set[str] = set()
    for path, node in root.items("prompts"):
        label, raw = None, literal(node)
        if isinstance(node, MappingNode):
            one = Section(node, path, root.draft, set())
            label, raw = one.text("label"), one.text("raw", "id")
            one.leave(
                {"config": "`params` of the step", "function": "write the prompt out"},
                frozenset({"id"}),
            )
        if raw is None:
            root.draft.wrong(node.position, path, "a prompt is expected here: a text, or `raw`")
            continue
        for text in _texts_of_prompt(raw, node.position, path, root.draft):
            id = _free(slug(label or "prompt", "prompt"), taken)
            system, user = _chat(text)
            yield Prompt(id, user, system, node.position, path)


def _texts_of_prompt(raw: str, position: Position, path: str, draft: Draft) -> Iterator[str]:
    if not raw.startswith("file://"):
        if raw.startswith(("exec:", "langfuse://", "portkey://", "helicone://")):
            draft.skip(position, path, "left out: a prompt that stands elsewhere; write it out")
        else:
            yield raw
        return
    name = raw.removeprefix("file://")
    if not name.endswith((".txt", ".md", ".j2", ".json")) or "*" in name:
        draft.skip(position, path, f"left out: `{name}` is not read; write the prompt out")
        return
    text = _read(name, position, path, draft)
    if text is None:
        return
    whole = name.endswith((".json", ".j2"))
    yield from [text] if whole else filter(None, map(str.strip, re.split(r"(?m)^---$", text)))


def _read(name: str, position: Position, path: str, draft: Draft) -> str | None:
    try:
        return read_text(draft.source.parent / name, LIMIT)
    except UnreadableError as error:
        draft.wrong(position, path, f"`{name}` {reason(error)}")
        return None


def _chat(text: str) -> tuple[str | None, str]:
    """The system's part and the user's, where a prompt is a list of these two messages."""
    try:
        data: Any = json.loads(text)
    except ValueError:
        return None, text
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        return None, text
    roles = tuple(one.get("role") for one in data)
    contents = [one.get("content") for one in data]
    if roles not in {_ROLES, _ROLES[1:]} or not all(isinstance(one, str) for one in contents):
        return None, text
    return (contents[0] if len(contents) > 1 else None), contents[-1]


def _free(wanted: str, taken: set[str]) -> str:
    id, number = wanted, 1
    while id in taken:
        number += 1
        id = f"{wanted}-{number}"
    taken.add(id)
    return id


def _names(prompt: Prompt, draft: Draft) -> frozenset[str]:
    try:
        return frozenset().union(*map(free_names, _parts(prompt)))
    except UsageError as error:
        where = f" ({error.where})" if error.where else ""
        message = f"not a template: {error.message}{where}"
        draft.wrong(prompt.position, prompt.path, message, error.hint)
        return frozenset()


def _parts(prompt: Prompt) -> tuple[str, ...]:
    return (prompt.user,) if prompt.system is None else (prompt.system, prompt.user)


def _step(prompt: Prompt) -> dict[str, JsonValue]:
    try:
        names = {name: f"inputs.{name}" for part in _parts(prompt) for name in free_names(part)}
        parts = [renamed(part, names) for part in _parts(prompt)]
    except UsageError:
        return {"id": prompt.id}  # told by `_names`
    step: dict[str, JsonValue] = {"id": prompt.id}
    if prompt.system is not None:
        step["system"] = parts[0]
    return step | {"prompt": parts[-1]}


def _models(root: Section) -> dict[str, JsonValue]:
    made: dict[str, JsonValue] = {}
    taken: set[str] = set()
    key = "targets" if "targets" in root.node.entries else "providers"
    for path, node in root.items(key):
        id, config, label = literal(node), None, None
        if isinstance(node, MappingNode):
            one = Section(node, path, root.draft, set())
            keys = list(node.entries)
            if len(keys) == 1 and ":" in keys[0]:
                ((id, inner),) = node.entries.items()
                one.read.add(id)
                one = as_section(inner, one.place(id), root.draft) or one
            else:
                id = one.text("id")
            label, config = one.text("label"), one.section("config")
            one.leave(
                {"prompts": "a prompt for each model is a step with `model: ALIAS`"},
                frozenset({"id"}),
            )
        if id is None:
            root.draft.wrong(node.position, path, "a provider is expected here: `openai:MODEL`")
            continue
        entry = _model(id, config, node.position, path, root.draft)
        if entry is not None:
            shown = label or id.rpartition(":")[2].rpartition("/")[2]
            made[_free(slug(shown, "model"), taken)] = entry
    return made


def _model(
    id: str, config: Section | None, position: Position, path: str, draft: Draft
) -> dict[str, JsonValue] | None:
    if id.startswith(_CODE) or id in {"echo", "manual-input"}:
        draft.skip(position, path, f"left out: `{id}` is not a chat completions endpoint")
        return None
    provider, _, rest = id.partition(":")
    kind, colon, model = rest.partition(":")
    if kind in _NO_CHAT:
        draft.skip(position, path, f"left out: `{id}` is not a chat completions endpoint")
        return None
    name = model if colon and kind in _TYPES_OF_MODEL else rest
    if not name or (kind in _TYPES_OF_MODEL and not colon):
        draft.wrong(position, path, f"`{id}` does not name a model", "`openai:MODEL`")
        return None
    if config is None:
        return model_entry(provider, name, draft, position, path)
    url = config.text("apiBaseUrl", "baseUrl")
    host = config.text("apiHost")
    url = f"https://{host}/v1" if url is None and host is not None else url
    key = config.text("apiKeyEnvar")
    # With an address and a name for the key, nothing of the provider has to be known.
    entry: dict[str, JsonValue]
    if url is None or (key is None and is_known(provider)):
        entry = model_entry(provider, name, draft, position, path)
    else:
        entry = {"model": name}
    if url is not None:
        entry = {"base_url": url.rstrip("/"), **{k: v for k, v in entry.items() if k != "base_url"}}
    if (key := _key(config, provider, name, draft)) is not None:
        entry["key_env"] = key
    params = {one: config.data(one) for one in config.node.entries if one in _PARAMS}
    if params:
        entry["params"] = params
    config.leave(_CONFIG, frozenset({"apiKey"}))
    return entry


def _key(config: Section, provider: str, model: str, draft: Draft) -> str | None:
    """The variable of a model's key, as named, or in the place of the key that stands there."""
    what = f"the key of the model `{model}`"
    name, key = config.text("apiKeyEnvar"), config.text("apiKey")
    if name is None and key is not None:
        found = re.fullmatch(r"\{\{ *env\.(\w+) *\}\}", key)
        if found is None:
            return draft.moves(key, f"{provider}_API_KEY", model, what)
        name = found[1]
    if name is not None:
        draft.uses(name, what)
    return name


def _cases(root: Section) -> list[Case]:
    common = root.node.entries.get("defaultTest")
    values: dict[str, JsonValue] = {}
    checks: list[Section] = []
    if isinstance(common, ScalarNode):
        root.skip("defaultTest", "write it out in the file")
    elif (section := root.section("defaultTest")) is not None:
        values, checks = _of_case(section)
        section.leave(_INSTEAD)
    made: list[Case] = []
    for path, node in root.items("tests"):
        for place, one in _listed(path, node, root.draft):
            if (section := as_section(one, place, root.draft)) is None:
                continue
            if isinstance(section.node.entries.get("vars"), ScalarNode) and section.text("vars"):
                section.skip("vars", "the case is left out: write its variables out")
                continue
            own, expected = _of_case(section)
            name = section.text("description")
            section.leave(_INSTEAD)
            made += _combined(Case(name, values | own, checks + expected), section)
    if len(made) > _MOST_CASES:
        root.skip("tests", f"the first {_MOST_CASES:,} of {len(made):,} cases were taken")
    return made[:_MOST_CASES]


def _listed(path: str, node: Node, draft: Draft) -> Iterator[tuple[str, Node]]:
    """A case as it stands, or those of the file that is named."""
    name = literal(node)
    if name is None:
        yield path, node
        return
    name = name.removeprefix("file://")
    if name.endswith(".csv") and "*" not in name:
        text = _read(name, node.position, path, draft)
        yield from () if text is None else _of_csv(text, str(draft.source.parent / name))
    elif name.endswith((".yaml", ".yml", ".json")) and "*" not in name:
        inner = read_data(draft.source.parent / name)
        items = inner.items if isinstance(inner, ListNode) else [inner]
        yield from ((f"[{index}]", item) for index, item in enumerate(items))
    else:
        draft.skip(node.position, path, f"left out: `{name}` is not read; write the cases out")


def _of_csv(text: str, file: str) -> Iterator[tuple[str, Node]]:
    """The rows of a table: columns are variables, `__expected` what is expected."""
    reader = csv.DictReader(text.splitlines(keepends=True))
    for row in reader:
        position = Position(file, reader.line_num, 1)
        values, case = MappingNode(position), MappingNode(position)
        checks = ListNode(position)
        for column, cell in row.items():
            if column is None or cell is None:
                continue
            if column.startswith("__expected") and cell:
                checks.items.append(_expected(cell, position))
            elif column == "__description":
                case.put("description", ScalarNode(position, cell), position)
            elif column.startswith("__"):
                case.put(column, ScalarNode(position, cell), position)
            else:
                values.put(column, ScalarNode(position, cell), position)
        case.put("vars", values, position)
        case.put("assert", checks, position)
        yield "", case


def _expected(cell: str, position: Position) -> MappingNode:
    made = MappingNode(position)
    found = _EXPECTED.fullmatch(cell)
    kind, value = (found["type"], found["value"]) if found else ("equals", cell)
    if kind.removeprefix("not-") not in {*_SAME, *_REGEXES, *_KINDS, *_JUDGED, "latency"}:
        kind, value = "equals", cell
    made.put("type", ScalarNode(position, kind), position)
    node: Node = ScalarNode(position, value)
    if kind.endswith(("-any", "-all")):
        node = ListNode(position, [ScalarNode(position, one.strip()) for one in value.split(",")])
    made.put("value", node, position)
    return made


def _of_case(section: Section) -> tuple[dict[str, JsonValue], list[Section]]:
    values: dict[str, JsonValue] = {}
    if isinstance(section.node.entries.get("vars"), ScalarNode):
        section.skip("vars", "write the variables out")
    elif (given := section.section("vars")) is not None:
        for name in given.node.entries:
            value = given.data(name)
            if isinstance(value, str) and value.startswith("file://"):
                text = _read(
                    value.removeprefix("file://"),
                    given.position(name),
                    given.place(name),
                    section.draft,
                )
                value = "" if text is None else text
            values[name] = value
    checks: list[Section] = []
    for path, node in section.items("assert"):
        if (check := as_section(node, path, section.draft)) is not None:
            checks.append(check)
    return values, checks


def _combined(case: Case, section: Section) -> Iterator[Case]:
    """A case for each combination, where a variable has a list of values."""
    lists = {name: value for name, value in case.values.items() if isinstance(value, list)}
    if not lists:
        yield case
        return
    count = 1
    for value in lists.values():
        count *= max(1, len(value))
    if count > _MOST_CASES:
        section.skip("vars", f"left out: {count:,} combinations; write those out that matter")
        return
    for chosen in product(*lists.values()):
        one = dict(zip(lists, chosen, strict=True))
        name = case.name and f"{case.name} ({', '.join(map(str, chosen))})"
        yield Case(name, case.values | one, case.checks)


def _inputs(used: set[str], cases: Sequence[Case]) -> dict[str, JsonValue]:
    """What templates read, with the type that all cases agree on.

    What a case does not give is empty in the other program, and so it is here.
    """
    made: dict[str, JsonValue] = {}
    for name in sorted(used):
        given = [case.values[name] for case in cases if name in case.values]
        is_optional = len(given) < len(cases)
        kinds = {_kind(value) for value in given} | (
            {"string"} if is_optional or not given else set()
        )
        made[name] = {
            **({"type": next(iter(kinds))} if len(kinds) == 1 else {}),
            **({"default": ""} if is_optional else {}),
        }
    return made


def _kind(value: JsonValue) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case Mapping():
            return "object"
        case list():
            return "array"
        case None:
            return "null"
        case _:
            return "string"


def _tests(
    cases: Sequence[Case],
    inputs: Mapping[str, JsonValue],
    where: Sequence[str | None],
    judge: str,
    draft: Draft,
) -> list[JsonValue]:
    made: list[JsonValue] = []
    taken: set[str] = set()
    stem = slug(draft.target.stem, "case")
    for number, case in enumerate(cases, 1):
        expect = [
            found
            for check in case.checks
            for path in (where[:1] if check.data("type") == "latency" else where)
            for found in _expectations(check, path, case.values, judge)
        ]
        test: dict[str, JsonValue] = {"name": _free(case.name or f"case {number}", taken)}
        given = {name: value for name, value in case.values.items() if name in inputs}
        if given:
            test["inputs"] = given
        test["cassette"] = f"cassettes/{stem}-{number}.yaml"
        if expect:
            test["expect"] = expect
        made.append(test)
    told: set[int] = set()
    for case in cases:
        for check in case.checks:
            if id(check.node) not in told:
                told.add(id(check.node))
                check.leave(_OF_ASSERTION)
    return made


def _expectations(
    check: Section, path: str | None, values: Mapping[str, JsonValue], judge: str
) -> list[JsonValue]:
    """What an assertion is here; one that is nothing is told once."""
    kind = check.text("type") or ""
    value = _filled(check.data("value"), values)
    texts = [str(one) for one in (value if isinstance(value, list) else [value]) if one is not None]
    if value is None and kind not in {"latency", "cost"}:
        texts = []
    found = _of_texts(kind, texts, path)
    if found is None and kind == "latency":
        most = check.number("threshold")
        found = [] if most is None else [{"max_seconds": most / 1000}]
    if found is None and kind in _JUDGED and texts:
        rubric: dict[str, JsonValue] = {"model": judge, "rubric": texts[0]}
        found = [{"judge": rubric if path is None else {**rubric, "path": path}}]
    if found is None:
        _not_mapped(check, kind)
        return []
    return found


def _not_mapped(check: Section, kind: str) -> None:
    instead = _KINDS.get(kind.removeprefix("not-"), "no expectation is like it")
    place = check.place("type")
    if not any(
        one.path == place and one.position == check.position("type") for one in check.draft.skipped
    ):
        check.draft.skip(check.position("type"), place, f"`{kind}`: {instead}")
    check.read.update(check.node.entries)


_KINDS: Final = {
    "javascript": "`expression: …`",
    "python": "`expression: …`",
    "is-json": "`output: {schema: …}` of the step, which checks every answer",
    "contains-json": "`output: {schema: …}` of the step, which checks every answer",
    "cost": "`max_cost_usd`, once the model has a `price`",
    "similar": "`judge`",
    "factuality": "`judge`",
    "answer-relevance": "`judge`",
    "g-eval": "`judge`",
}


def _of_texts(kind: str, texts: Sequence[str], path: str | None) -> list[JsonValue] | None:
    """Assertions about the text; `None` where it is another one, or cannot be said."""
    if not texts:
        return None
    if kind in _SAME:
        return [_about(_SAME[kind], "value", text, path) for text in texts]
    if kind not in _REGEXES:
        return None
    regexes = _REGEXES[kind](texts)
    if not all(map(_is_regex, regexes)):
        return None
    return [_about("matches", "regex", regex, path) for regex in regexes]


def _either(texts: Sequence[str]) -> str:
    return "|".join(map(re.escape, texts))


_JUDGED: Final = frozenset({"llm-rubric", "model-graded-closedqa"})
_SAME: Final = {
    "contains": "contains",
    "contains-all": "contains",
    "not-contains": "not_contains",
    "equals": "equals",
}
_REGEXES: Final[Mapping[str, Callable[[Sequence[str]], list[str]]]] = {
    "regex": list,
    "not-regex": lambda texts: [rf"(?s)\A(?!.*(?:{text}))" for text in texts],
    "icontains": lambda texts: [f"(?i){re.escape(text)}" for text in texts],
    "icontains-all": lambda texts: [f"(?i){re.escape(text)}" for text in texts],
    "contains-any": lambda texts: [_either(texts)],
    "icontains-any": lambda texts: [f"(?i){_either(texts)}"],
    "not-icontains": lambda texts: [rf"(?is)\A(?!.*(?:{_either(texts)}))"],
    "starts-with": lambda texts: [rf"\A{re.escape(text)}" for text in texts],
}


def _is_regex(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _about(kind: str, key: str, value: str, path: str | None) -> JsonValue:
    return {kind: value} if path is None else {kind: {"path": path, key: value}}


def _filled(value: JsonValue, values: Mapping[str, JsonValue]) -> JsonValue:
    """A value with the variables of its case in it."""
    if isinstance(value, list):
        return [_filled(one, values) for one in value]
    if not isinstance(value, str):
        return value

    def one(found: re.Match[str]) -> str:
        return str(values[found[1]]) if found[1] in values else found[0]

    return re.sub(r"\{\{ *(\w+) *\}\}", one, value)
