"""A configuration of promptfoo: prompts, providers, and tests with variables and assertions."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from glob import glob
from itertools import product
from pathlib import Path
from typing import Any, Final

from aish.cli.importing.documents import LIMIT, read_data
from aish.cli.importing.draft import ImportDraft, LeftOutError, Section, as_section, as_text, slug
from aish.cli.importing.endpoints import DEFAULT, is_known, model_entry
from aish.cli.importing.keys import EXACT, PARAMS, TABLES, UNKNOWN
from aish.cli.importing.servers import literal
from aish.cli.importing.templates import rename_variables, verbatim
from aish.config.documents import UnreadableError, read_text, reason
from aish.config.yaml_tree import ListNode, MappingNode, Node, ScalarNode, parse_yaml, to_data
from aish.core.errors import AishError, Position, UsageError
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonValue
from aish.templates.render import references, render

_MOST_CASES = 1000
_LEAD = "the case is left out: "
_ELSEWHERE = ("exec:", "langfuse://", "portkey://", "helicone://")
# What is a path there, and which of them are programs.
_PATH = re.compile(r"file://.*|.*[*/\\].*|.*\.(?:..|...|jsonl|yaml)(?::\w+)?")
_PROGRAM = re.compile(r".*\.(?:[cm]?[jt]s|py|rb|sh|bash|exe|bat|cmd|ps1|pl)(?::[\w.]+)?")
_DATA = frozenset({".json", ".yaml", ".yml"})
_NO_TEXT = frozenset(
    {
        *(".pdf", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".svg", ".mp3", ".wav"),
        *(".ogg", ".m4a", ".mp4", ".webm", ".mov", ".xlsx", ".xls", ".docx"),
    }
)
_NO_CHAT = re.compile(
    r"(?:file://|exec:|python:|golang:|ruby:|https?:|wss?:|package:|webhook:|promptfoo:|browser:"
    r"|mcp:|sequence:).*|https?|browser|websocket|echo|llama|sequence|mcp|manual-input"
    r"|[\w-]+:(?:embeddings?|image|live|realtime|assistant|moderation|completion|agents|codex-sdk"
    r"|codex-app-server|claude-agent-sdk|claude-code|chatkit|transcription|video|speech"
    r"|text-generation|text-classification|token-classification|feature-extraction)(?::.*)?",
    re.DOTALL,
)
_TYPES_OF_MODEL = frozenset({"chat", "messages", "responses"})
_NO_NAME = re.compile(r"[0-9a-f]{20,}|[\d.]+b?|latest|")
_ENV = re.compile(r"\{\{-? *env\.(\w+) *-?\}\}")
_PAIRS = re.compile(r"\{%-?\s*for\s+\w+\s*,\s*\w+\s+in\s+[\w.]+\s*-?%\}")
_EXPECTED = re.compile(
    r"(?P<type>(?:not-)?[a-z][a-z0-9:-]*?)(?:\((?P<threshold>\d+(?:\.\d+)?)\))?(?::(?P<value>.*))?",
    re.DOTALL,
)
_SPELLED = {"grade": "llm-rubric", "fn": "javascript", "eval": "javascript"}


@frozen
class PromptfooPrompt:
    """A prompt, its variables still named as in the source, each with what it becomes."""

    id: str
    user: str
    system: str | None
    names: Mapping[str, str]


@slotted
class PromptfooCase:
    """A test: values of variables, and what is expected with its place."""

    name: str | None
    values: dict[str, JsonValue]
    checks: list[Section]


def is_configuration(root: Section) -> bool:
    entries = root.node.entries
    return "prompts" in entries and bool({"providers", "targets", "tests"} & set(entries))


def from_configuration(root: Section) -> dict[str, JsonValue]:
    """The pipeline of a configuration: a step for each prompt, a test for each case."""
    draft = root.draft
    _resolve(root.node, root.node)
    data: dict[str, JsonValue] = {}
    if (description := root.text("description")) is not None:
        data["description"] = description
    prompts = list(_prompts(root))
    if not prompts:
        draft.refuse_empty(root.position("prompts"), "prompts", "prompt")
    cases = _cases(root)
    names = {new for prompt in prompts for new in prompt.names.values()}
    env = {name.removeprefix("env.") for name in names if name.startswith("env.")}
    for name in sorted(env):
        draft.uses(name, "a variable that a prompt reads")
    read = {name.removeprefix("inputs.") for name in names if not name.startswith("env.")}
    inputs = _inputs(read, cases)
    data |= {"inputs": inputs} if inputs else {}
    data |= {"env": sorted(env)} if env else {}
    models = _models(root)
    data |= {"models": models} if models else {}
    data |= {"model": next(iter(models))} if len(models) > 1 else {}
    if len(prompts) > 1:
        data["steps"] = [{"id": prompt.id, **_step(prompt)} for prompt in prompts]
    elif prompts:
        data |= _step(prompts[0])
    where = [None] if len(prompts) == 1 else [f"steps.{prompt.id}.text" for prompt in prompts]
    judge = next(iter(models), DEFAULT)
    if tests := _tests(cases, inputs, where, judge, draft):
        data["tests"] = tests
    root.leave("promptfoo")
    return data


def _resolve(node: Node, root: MappingNode) -> None:
    """Put what `$ref: "#/…"` names in its place."""
    inner = node.entries if isinstance(node, MappingNode) else {}
    if isinstance(node, ListNode):
        inner = {str(index): item for index, item in enumerate(node.items)}
    for key, entry in inner.items():
        named = entry.entries.get("$ref") if isinstance(entry, MappingNode) else None
        reference = None if named is None else literal(named)
        target: Node | None = root
        for part in (reference or "").removeprefix("#/").split("/"):
            target = target.entries.get(part) if isinstance(target, MappingNode) else None
        if reference is None or target is None:
            _resolve(entry, root)
        elif isinstance(node, MappingNode):
            node.entries[key] = target
        elif isinstance(node, ListNode):
            node.items[int(key)] = target


def _prompts(root: Section) -> Iterator[PromptfooPrompt]:
    taken: set[str] = set()
    for path, node in root.items("prompts"):
        label, raws = None, [literal(node)]
        if isinstance(node, MappingNode):
            section = Section(node, path, root.draft)
            label, raws = section.text("label"), [section.text("raw", "id")]
            if raws == [None] and path == "prompts":
                raws = list(node.entries)  # files with their labels, as it was once written
            elif section.leave("promptfoo.prompt"):
                continue
        if None in raws:
            message = "a prompt is expected here: a text, or `raw`"
            root.draft.wrong(node.position, path, message)
        for raw in filter(None, raws):
            texts: list[str] = []
            with root.draft.catch_left_out(node.position, path):
                texts += _texts(raw, node.position, path, root.draft)
            for text in texts:
                with root.draft.catch_left_out(node.position, path):
                    system, user = _chat(text)
                    names = _names(user) | _names(system or "")
                    id = _free(slug(label or "prompt", "prompt"), taken)
                    yield PromptfooPrompt(id, user, system, names)


def _texts(raw: str, position: Position, path: str, draft: ImportDraft) -> Iterator[str]:
    if raw.startswith(_ELSEWHERE):
        raise LeftOutError("a prompt that stands elsewhere; write it out")
    if not _PATH.fullmatch(raw):
        yield raw
        return
    name = raw.removeprefix("file://")
    if _PROGRAM.fullmatch(name):
        raise LeftOutError("a prompt that code makes; write it out")
    files = _files(name, draft)
    if not files and name == raw and re.search(r"[\s{]", raw):
        draft.skip(position, path, "taken as the text of a prompt: there is no such file")
        yield raw
        return
    for file in files or [draft.source.parent / name]:
        yield from _parts(file)


def _parts(file: Path) -> Iterator[str]:
    kind = file.suffix.lower()
    text = _read(file)
    if kind == ".txt":
        yield from filter(None, map(str.strip, re.split(r"(?m)^[ \t]*---[ \t]*\r?$", text)))
    elif kind == ".jsonl":
        yield from filter(None, map(str.strip, text.splitlines()))
    elif kind in {".yaml", ".yml"}:
        if not isinstance(data := to_data(read_data(file)), list):
            raise LeftOutError("a file that holds no chat")
        yield json.dumps(data, ensure_ascii=False)
    elif kind in {".json", ".md", ".markdown", ".j2"}:
        yield text
    else:
        raise LeftOutError(f"a prompt in a file `{kind}`; write it out")


def _read(file: Path) -> str:
    """The text of a file; `LeftOutError` where there is none."""
    try:
        return read_text(file, LIMIT)
    except UnreadableError as error:
        raise LeftOutError(f"`{file.name}` {reason(error)}") from error


def _files(name: str, draft: ImportDraft) -> list[Path]:
    folder = draft.source.parent
    try:
        name = f"{name}/*" if (folder / name).is_dir() else name
        names = glob(name, root_dir=folder, recursive=True)  # ruff: ignore[glob] - `Path.glob` takes no absolute pattern
        return [folder / file for file in sorted(names) if (folder / file).is_file()]
    except OSError:
        return []  # a long text is not a path


def _chat(text: str) -> tuple[str | None, str]:
    """The system's part and the user's of a text, or of a list of these two messages."""
    data: Any = None
    is_data = text.lstrip().startswith(("{", "["))
    if text.lstrip().startswith("- role:"):
        parsed = parse_yaml(text, "").root
        is_data, data = True, None if parsed is None else to_data(parsed)
    elif is_data:
        try:
            data = json.loads(text)
        except ValueError:
            is_data = re.search(r"""["']role["']\s*:""", text) is not None
    if not is_data:
        return None, text
    messages = data if isinstance(data, list) else []
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    contents = [_content(one.get("content")) if isinstance(one, dict) else None for one in messages]
    if roles not in (["system", "user"], ["user"]) or None in contents:
        raise LeftOutError("a chat other than a text of the system and one of the user")
    return (contents[0] if len(contents) > 1 else None), contents[-1] or ""


def _content(content: Any) -> str | None:
    """The text of a message; `None` where it has parts that are no text."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text") if content[0].get("type") == "text" else None
    return content if isinstance(content, str) else None


def _free(base: str, taken: set[str]) -> str:
    id, number = base, 1
    while id in taken:
        number += 1
        id = f"{base}-{number}"
    taken.add(id)
    return id


def _names(text: str) -> dict[str, str]:
    """Map each name that a template reads to its name here."""
    try:
        paths = references(text)
    except UsageError as error:
        where = f" ({error.where})" if error.where else ""
        raise LeftOutError(f"not a template: {error.message}{where}") from error
    renames: dict[str, str] = {}
    for path in paths:
        name, _, rest = path.partition(".")
        if name == "_conversation" or (name == "env" and not rest) or path.endswith(".length"):
            raise LeftOutError(f"not a template here: it reads `{path}`")
        renames[name if name != "env" else path] = path if name == "env" else f"inputs.{name}"
    if _PAIRS.search(text):
        raise LeftOutError("not a template here: a loop over keys and values needs `.items()`")
    return renames


def _step(prompt: PromptfooPrompt) -> dict[str, JsonValue]:
    user: dict[str, JsonValue] = {"prompt": rename_variables(prompt.user, prompt.names)}
    if prompt.system is None:
        return user
    return {"system": rename_variables(prompt.system, prompt.names), **user}


def _models(root: Section) -> dict[str, JsonValue]:
    models: dict[str, JsonValue] = {}
    taken: set[str] = set()
    key = "targets" if "targets" in root.node.entries else "providers"
    items = root.items(key)
    for path, node in items:
        id, config, label = literal(node), None, None
        if isinstance(node, MappingNode):
            section = Section(node, path, root.draft)
            keys = list(node.entries)
            if len(keys) == 1 and keys[0] not in TABLES["promptfoo.provider"]:
                ((id, inner),) = node.entries.items()
                section = as_section(inner, section.place(id), root.draft) or section
                label = section.text("id")  # its name in reports there
            id = id or section.text("id")
            label, config = section.text("label") or label, section.section("config")
            if id is not None and section.leave("promptfoo.provider"):
                continue
        if id is None:
            root.draft.wrong(node.position, path, "a provider is expected here: `openai:MODEL`")
            continue
        with root.draft.catch_left_out(node.position, path):
            entry = _model(id, config, node.position, path, root.draft)
            names = [part for part in re.split(r"[:/]", id) if not _NO_NAME.fullmatch(part)]
            models[_free(slug(label or (names or [id])[-1], "model"), taken)] = entry
    if len(models) > 1:
        root.skip(key, "each case asks the first model; `-m ALIAS` takes another")
    elif items and not models:
        root.skip(key, "no model is left: the one that `MODEL_URL` names answers")
    return models


def _model(
    id: str, config: Section | None, position: Position, path: str, draft: ImportDraft
) -> dict[str, JsonValue]:
    if _NO_CHAT.fullmatch(id):
        raise LeftOutError(f"`{id}` is not a chat completions endpoint")
    provider, _, rest = id.partition(":")
    kind, colon, model = rest.partition(":")
    name = model if colon and kind in _TYPES_OF_MODEL else rest
    if not name or (kind in _TYPES_OF_MODEL and not colon):
        raise LeftOutError(f"`{id}` does not name a model, as `openai:MODEL` does")
    name = _with_variables(name, f"the model of `{provider}`", draft)
    if kind in _TYPES_OF_MODEL - {"chat"} and colon:
        draft.skip(position, path, f"`{provider}:{kind}` is asked by chat completions")
    if config is None:
        return model_entry(provider, name, draft, position, path)
    url, key = _address(config, provider, name), config.text("apiKeyEnvar")
    # With an address and a name for the key, nothing of the provider has to be known.
    entry: dict[str, JsonValue] = {"model": name}
    if url is None or (key is None and is_known(provider)):
        entry = model_entry(provider, name, draft, position, path)
    if url is not None:
        entry = {"base_url": url, **{k: v for k, v in entry.items() if k != "base_url"}}
    if (variable := _key(config, provider, name, draft)) is not None:
        entry["key_env"] = variable
    params = {key: config.data(key) for key in config.node.entries if key in PARAMS.split()}
    for key in [key for key, value in params.items() if "{{" in str(value)]:
        config.skip(key, "left out: a parameter that a template makes")
        del params[key]
    entry |= {"params": params} if params else {}
    config.leave("promptfoo.config")
    return entry


def _address(config: Section, provider: str, model: str) -> str | None:
    url, host = config.text("apiBaseUrl", "baseUrl"), config.text("apiHost")
    if url is None and host is not None and provider == "openai":
        url = f"https://{host}/v1"
    elif host is not None:
        config.skip("apiHost", "left out: a chat completions endpoint in `apiBaseUrl`")
    return url and _with_variables(url.rstrip("/"), f"the endpoint of `{model}`", config.draft)


def _with_variables(text: str, what: str, draft: ImportDraft) -> str:
    """A text of a provider, its variables of the environment as ours."""
    for match in _ENV.finditer(text):
        draft.uses(match[1], what)
    result = _ENV.sub(r"${\1}", text)
    if "{{" in result or "{%" in result:
        raise LeftOutError("a provider that a template makes")
    return result


def _key(config: Section, provider: str, model: str, draft: ImportDraft) -> str | None:
    """The variable of a model's key, as named, or in the place of the key that stands there."""
    what = f"the key of the model `{model}`"
    name, key = config.text("apiKeyEnvar"), config.text("apiKey")
    if name is None and key is not None:
        match = _ENV.fullmatch(key)
        if match is None:
            return draft.moves(key, f"{provider}_API_KEY", model, what)
        name = match[1]
    if name is not None:
        draft.uses(name, what)
    return name


def _cases(root: Section) -> list[PromptfooCase]:
    """The cases, each with what is common to all of them."""
    common = None
    if isinstance(root.node.entries.get("defaultTest"), ScalarNode):
        root.skip("defaultTest", "left out: write it out in the file")
    elif (section := root.section("defaultTest")) is not None:
        common = _case(section, {}, root.draft)
        if common is None:
            return []
    values, checks = (common.values, common.checks) if common else ({}, [])
    if (values or checks) and not {"tests", "scenarios"} & set(root.node.entries):
        return list(_combine(PromptfooCase(None, values, checks), root))
    cases: list[PromptfooCase] = []
    for path, node in root.items("tests"):
        for place, entry in _list_cases(path, node, root.draft):
            if (section := as_section(entry, place, root.draft)) is None:
                continue
            if (case := _case(section, values, root.draft)) is not None:
                cases += _combine(
                    PromptfooCase(case.name, case.values, checks + case.checks), section
                )
    if len(cases) > _MOST_CASES:
        root.skip("tests", f"the first {_MOST_CASES:,} of {len(cases):,} cases were taken")
    return cases[:_MOST_CASES]


def _list_cases(path: str, node: Node, draft: ImportDraft) -> Iterator[tuple[str, Node]]:
    """A case as it stands, or those of the file that is named."""
    name = literal(node)
    if name is None:
        yield path, node
        return
    name = name.removeprefix("file://")
    files = _files(name, draft)
    if not files or any(file.suffix not in {*_DATA, ".csv", ".jsonl"} for file in files):
        draft.skip(node.position, path, f"left out: `{name}` is not read; write the cases out")
    for file in files:
        if file.suffix == ".csv":
            with draft.catch_left_out(node.position, path):
                yield from _of_csv(file, draft)
        elif file.suffix in {*_DATA, ".jsonl"}:
            inner = read_data(file)
            for index, item in enumerate(inner.items if isinstance(inner, ListNode) else [inner]):
                yield f"[{index}]", _of_row(item) if _is_row(item) else item


def _is_row(node: Node) -> bool:
    return isinstance(node, MappingNode) and not {"vars", "assert"} & set(node.entries)


def _of_csv(file: Path, draft: ImportDraft) -> Iterator[tuple[str, Node]]:
    reader = csv.DictReader(io.StringIO(_read(file), newline=""))
    try:
        rows = [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise LeftOutError(f"`{file.name}` is not a table: {error}") from error
    for line, cells in rows:
        position = Position(str(file), line, 1)
        if None in cells or None in cells.values():
            draft.skip(position, "", "left out: a row with another number of cells than the header")
            continue
        row = MappingNode(position)
        for column, cell in cells.items():
            row.put(column, ScalarNode(position, cell), position)
        yield "", _of_row(row)


def _of_row(row: Node) -> MappingNode:
    """The case of a row: columns are variables, `__expected` what is expected."""
    assert isinstance(row, MappingNode)
    position = row.position
    values, case, checks = MappingNode(position), MappingNode(position), ListNode(position)
    for column, cell in row.entries.items():
        text = literal(cell) or ""
        if column.startswith("__expected"):
            if text.strip():
                checks.items.append(_parse_expected(text.strip(), position))
        elif column == "__description":
            case.put("description", cell, position)
        elif column.startswith("__"):
            case.put(column, cell, position)
        else:
            values.put(column, cell, position)
    case.put("vars", values, position)
    case.put("assert", checks, position)
    return case


def _parse_expected(cell: str, position: Position) -> MappingNode:
    """The assertion that a cell spells: `TYPE`, `TYPE: VALUE`, `TYPE(THRESHOLD): VALUE`."""
    match = _EXPECTED.fullmatch(cell)
    kind = _SPELLED.get(match["type"], match["type"]) if match else ""
    value = ((match and match["value"]) or "").strip()
    if cell.startswith("file://") and _PROGRAM.fullmatch(cell):
        kind = "python" if ".py" in cell else "javascript"
    elif kind.removeprefix("not-") not in TABLES["promptfoo.type"]:
        kind, value = "equals", cell
    node = MappingNode(position)
    node.put("type", ScalarNode(position, kind), position)
    if value:
        node.put("value", ScalarNode(position, value), position)
    if match and match["threshold"] and kind != "equals":
        node.put("threshold", ScalarNode(position, float(match["threshold"])), position)
    return node


def _case(
    section: Section, common: Mapping[str, JsonValue], draft: ImportDraft
) -> PromptfooCase | None:
    """A case of its own; `None` if it is left out, which is reported."""
    values = dict(common)
    if isinstance(section.node.entries.get("vars"), ScalarNode | ListNode):
        section.skip("vars", "the case is left out: write its variables out")
        return None
    if (section_vars := section.section("vars")) is not None:
        for name in section_vars.node.entries:
            with draft.catch_left_out(section_vars.position(name), section_vars.place(name), _LEAD):
                values[name] = _load_files(section_vars.data(name), draft)
                section_vars.told.add(name)
        if section_vars.told != set(section_vars.node.entries):
            return None
    checks = [check for check in section.sections("assert") if _is_kept(check)]
    options = section.section("options")
    is_out = options is not None and options.leave("promptfoo.options")
    section.read.add("description")
    if section.leave("promptfoo.case") or is_out:
        return None
    return PromptfooCase(section.text("description"), values, checks)


def _load_files(value: JsonValue, draft: ImportDraft) -> JsonValue:
    """The value of a variable, with the contents of files that it names."""
    if isinstance(value, list):
        items: list[JsonValue] = []
        for item in value:
            loaded = _load_files(item, draft)
            items += loaded if isinstance(loaded, list) and isinstance(item, str) else [loaded]
        return items
    if isinstance(value, Mapping):
        return {key: _load_files(one, draft) for key, one in value.items()}
    if isinstance(value, float):
        return _number(value)
    if not isinstance(value, str) or not value.startswith("file://"):
        return "" if value is None else value
    name = value.removeprefix("file://")
    if _PROGRAM.fullmatch(name) or Path(name).suffix.lower() in _NO_TEXT:
        raise LeftOutError(f"the value of a variable is made by `{Path(name).suffix}`")
    texts: list[JsonValue] = []
    for file in _files(name, draft) or [draft.source.parent / name]:
        text = _read(file).strip()
        if file.suffix in _DATA - {".json"}:
            data = to_data(read_data(file))
            text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        texts.append(text)
    return texts if len(texts) > 1 else texts[0]


def _number(value: float) -> int | float:
    """A number as the other program writes it: without a fraction that is zero."""
    return int(value) if value.is_integer() else value


def _fill(value: JsonValue, values: Mapping[str, JsonValue]) -> JsonValue:
    """A value with the variables of its case in it; one that is not given is empty there."""
    if isinstance(value, list):
        return [_fill(item, values) for item in value]
    if not isinstance(value, str) or not ("{{" in value or "{%" in value):
        return value
    names = _names(value)
    if any(new.startswith("env.") for new in names.values()):
        raise LeftOutError("not a template here: it reads the environment")
    try:
        return render(value, {**dict.fromkeys(names, ""), **values})
    except AishError as error:
        raise LeftOutError(f"not a template here: {error.message.splitlines()[0]}") from error


def _combine(case: PromptfooCase, section: Section) -> Iterator[PromptfooCase]:
    """A case for each combination, where a variable has a list of values."""
    lists = {name: value for name, value in case.values.items() if isinstance(value, list)}
    count = 1
    for value in lists.values():
        count *= len(value)
    if count > _MOST_CASES or not count:
        section.skip("vars", f"left out: {count:,} combinations; write those out that matter")
        return
    for chosen in product(*lists.values()):
        values = case.values | dict(zip(lists, chosen, strict=True))
        name = case.name and f"{case.name} ({', '.join(map(str, chosen))})" if lists else case.name
        with section.draft.catch_left_out(section.position("vars"), section.place("vars"), _LEAD):
            filled = {key: _fill(value, values) for key, value in values.items()}
            yield PromptfooCase(name, filled, case.checks)


def _inputs(used: set[str], cases: Sequence[PromptfooCase]) -> dict[str, JsonValue]:
    """Return the inputs that templates read, with the type that all cases agree on.

    What a case does not give is empty in the other program, and so it is here.
    """
    inputs: dict[str, JsonValue] = {}
    for name in sorted(used):
        values = [case.values[name] for case in cases if name in case.values]
        is_optional = len(values) < len(cases)
        kinds = {_kind(value) for value in values} | (
            {"string"} if is_optional or not values else set()
        )
        inputs[name] = {
            **({"type": next(iter(kinds))} if len(kinds) == 1 else {}),
            **({"default": ""} if is_optional else {}),
        }
    return inputs


def _kind(value: JsonValue) -> str:
    kinds = {bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}
    return kinds.get(type(value), "string")


def _tests(
    cases: Sequence[PromptfooCase],
    inputs: Mapping[str, JsonValue],
    where: Sequence[str | None],
    judge: str,
    draft: ImportDraft,
) -> list[JsonValue]:
    tests: list[JsonValue] = []
    taken: set[str] = set()
    stem = slug(draft.target.stem, "case")
    for number, case in enumerate(cases, 1):
        expect: list[JsonValue] = []
        for check in case.checks:
            lead = f"`{check.text('type')}`: left out: "
            with draft.catch_left_out(check.position("value"), check.place("value"), lead):
                expect += _expectations(check, where, case.values, judge)
        test: dict[str, JsonValue] = {"name": _free(case.name or f"case {number}", taken)}
        values = {name: value for name, value in case.values.items() if name in inputs}
        if values:
            test["inputs"] = values
        test["cassette"] = f"cassettes/{stem}-{number}.yaml"
        if expect:
            test["expect"] = expect
        tests.append(test)
    return tests


def _is_kept(check: Section) -> bool:
    """True unless an assertion is left out; says so, and what is otherwise here."""
    kind = check.text("type") or ""
    instead = TABLES["promptfoo.type"].get(kind.removeprefix("not-"), UNKNOWN)
    if kind in {"not-llm-rubric", "not-latency", "not-model-graded-closedqa"}:
        instead = "left out: no expectation is like it"
    check.read.add("value")
    if instead.startswith("left out"):
        check.skip("type", f"`{kind}`: {instead}")
        return False
    if kind == "latency":
        check.told.add("threshold")
    if check.data("weight") == 0:
        check.skip("weight", "left out: an assertion that counts for nothing")
        return False
    if check.leave("promptfoo.assertion"):
        return False
    if instead != EXACT:
        check.skip("type", f"`{kind}`: {instead}")
    return True


def _expectations(
    check: Section, where: Sequence[str | None], values: Mapping[str, JsonValue], judge: str
) -> list[JsonValue]:
    """Return the expectations of an assertion, for each text that it is about."""
    kind = check.text("type") or ""
    if kind == "latency":
        most = check.number("threshold")
        if most is None:
            raise LeftOutError("it has no `threshold`")
        return [{"max_seconds": most / 1000}]
    value = check.data("value")
    if isinstance(value, str) and value.startswith("file://"):
        name = value.removeprefix("file://")
        file = check.draft.source.parent / name
        if _PROGRAM.fullmatch(name) or file.suffix not in {*_DATA, ".txt", ".md"}:
            raise LeftOutError("the value is made by a file that is not read")
        value = to_data(read_data(file)) if file.suffix in _DATA else _read(file).strip()
    value = _fill(value, values)
    if isinstance(value, Mapping | list) and kind == "equals":
        data = {"const": _verbatim(value)}
        return [{"schema": {"path": path or "text", "schema": data}} for path in where]
    if isinstance(value, str) and kind.endswith(("-all", "-any")):
        if '"' in value:
            raise LeftOutError("quotes in a list of values")
        value = [part.strip() for part in value.split(",")]
    is_list = isinstance(value, list) and kind.endswith(("-all", "-any"))
    texts = [_text(item) for item in (value if is_list and isinstance(value, list) else [value])]
    return [expectation for path in where for expectation in _of_texts(kind, texts, path, judge)]


def _text(value: JsonValue) -> str:
    """A value as the other program looks for it in an answer."""
    if not isinstance(value, bool | int | float | str) or not str(value):
        raise LeftOutError("the value is missing, or is data")
    return as_text(_number(value) if isinstance(value, float) else value)


def _verbatim(value: JsonValue) -> JsonValue:
    """Data that is the same once its texts are rendered as templates."""
    if isinstance(value, str):
        return verbatim(value)
    if isinstance(value, list):
        return [_verbatim(item) for item in value]
    return {k: _verbatim(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _of_texts(kind: str, texts: Sequence[str], path: str | None, judge: str) -> Iterator[JsonValue]:
    if kind in {"llm-rubric", "model-graded-closedqa"}:
        rubric: dict[str, JsonValue] = {"model": judge, "rubric": verbatim(texts[0])}
        yield {"judge": rubric if path is None else {**rubric, "path": path}}
        return
    base = kind.removeprefix("not-")
    is_none = base != kind
    if base in {"contains", "contains-all"} and not is_none:
        yield from (_about("contains", "value", text, path) for text in texts)
    elif kind in {"not-contains", "not-contains-any"}:
        yield from (_about("not_contains", "value", text, path) for text in texts)
    elif kind == "equals":
        yield _about("equals", "value", texts[0], path)
    else:
        regex = _REGEXES[base](texts)
        regex = rf"(?s)\A(?!.*(?:{regex}))" if is_none else regex
        try:
            re.compile(regex)
        except re.error as error:
            raise LeftOutError(f"not a regular expression of Python: {error}") from error
        yield _about("matches", "regex", regex, path)


def _either(texts: Sequence[str]) -> str:
    return "|".join(map(re.escape, texts))


def _each(texts: Sequence[str]) -> str:
    return r"\A" + "".join(rf"(?=[\s\S]*?{re.escape(text)})" for text in texts)


_REGEXES: Final[Mapping[str, Callable[[Sequence[str]], str]]] = {
    "regex": lambda texts: re.sub(r"(?<!\\)\(\?<(?![=!])", "(?P<", texts[0]),
    "contains-any": _either,
    "contains-all": _each,
    "icontains": lambda texts: f"(?i:{_either(texts)})",
    "icontains-any": lambda texts: f"(?i:{_either(texts)})",
    "icontains-all": lambda texts: f"(?i:{_each(texts)})",
    "starts-with": lambda texts: rf"\A{re.escape(texts[0])}",
    "equals": lambda texts: rf"\A{re.escape(texts[0])}\Z",
}


def _about(kind: str, key: str, value: str, path: str | None) -> JsonValue:
    text = verbatim(value)
    return {kind: text} if path is None else {kind: {"path": path, key: text}}
