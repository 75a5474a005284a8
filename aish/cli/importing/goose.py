"""A recipe of goose: instructions, prompt, parameters, extensions, settings, response."""

import re
from collections.abc import Callable, Mapping

from aish.cli.importing.draft import ImportDraft, LeftOutError, Section, variable_name
from aish.cli.importing.endpoints import model_entry
from aish.cli.importing.servers import alias_near, as_list, of_goose
from aish.cli.importing.templates import free_names, rename_variables, with_raw
from aish.config.yaml_tree import to_data
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.templates.values import is_template, text_of

Fill = Callable[[str], str]
"""A text with variables in the place of parameters; `LeftOutError` where it has others."""

_NAME = re.compile(r"\{\{-? *(\w+) *-?\}\}")

_REMOTE = frozenset({"streamable_http", "sse"})
_EXTENSION = {
    "inline_python": "left out: a server of your own: pipelines do not run embedded code",
    "frontend": "left out: its tools are those of a desktop program",
    "platform": "left out: it is a part of goose itself",
}
_DEVELOPER = (
    "the packs `fs`, `edit` and `shell` stand in for it, as `{}`; the names of their tools are "
    "others"
)
_TYPES: Mapping[str, Mapping[str, JsonValue]] = {
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "date": {"type": "string"},
    "file": {"type": "string"},
}
_TRUE = {"true": True, "false": False}


def is_recipe(root: Section) -> bool:
    """Return true for a recipe, as the command line or the desktop writes it."""
    entries = root.node.entries
    return "recipe" in entries or (
        "title" in entries and bool({"prompt", "instructions"} & set(entries))
    )


def from_recipe(root: Section) -> dict[str, JsonValue]:
    draft = root.draft
    if "recipe" in root.node.entries:
        inner = root.section("recipe")
        root.leave("goose.desktop")
        if inner is None:
            return {}
        root = inner
    data = _description(root)
    parameters = _parameters(root)
    names = {key: parameter.name for key, parameter in parameters.items()}
    names["recipe_dir"] = f"'{draft.relative_folder(draft.source.parent)}'"
    read, filled = set[str](), set[str]()

    def fill(text: str) -> str:
        return _fill(text, parameters, filled, draft)

    step: dict[str, JsonValue] = {}
    for old, new in (("instructions", "system"), ("prompt", "prompt")):
        if text := root.text(old):
            step[new] = _template(root, old, text, names, read)
    if not step:
        draft.wrong(root.node.position, root.path, "a recipe has `prompt` or `instructions`")
    inputs = {key: parameter.schema for key, parameter in parameters.items() if key in read}
    if "prompt" not in step:
        # In goose a person would type it now.
        inputs["prompt"] = {"type": "string", "description": "What is asked"}
        step["prompt"] = "{{ inputs.prompt }}"
    data |= {"inputs": inputs} if inputs else {}
    data |= _settings(root, fill)
    servers = _extensions(root, fill)
    data |= {"mcp": {"servers": servers}} if servers else {}
    response = root.section("response")
    schema = None if response is None else response.section("json_schema")
    if response is not None:
        response.leave("goose.response")
    step |= ({} if schema is None else {"output": {"schema": to_data(schema.node)}}) | _retry(root)
    for parameter in [parameters[key].section for key in parameters.keys() - read - filled]:
        draft.skip(parameter.node.position, parameter.path, "left out: nothing reads it")
    root.leave("goose")
    return data | step


def _description(root: Section) -> dict[str, JsonValue]:
    data: dict[str, JsonValue] = {}
    for key in ("title", "description"):
        text = root.text(key)
        if text and is_template(text):
            root.skip(key, "left out: a description has no parameters")
        elif text:
            data["description"] = text
    return data


@frozen
class RecipeParameter:
    """A parameter of a recipe: `name` is what a template reads in its place."""

    name: str
    section: Section
    schema: JsonValue


def _parameters(root: Section) -> dict[str, RecipeParameter]:
    parameters: dict[str, RecipeParameter] = {}
    for section in root.sections("parameters"):
        key = section.text("key")
        if key is None:
            root.draft.wrong(section.node.position, section.path, "the parameter has no `key`")
            continue
        # goose reads the file, and what is rendered is what it holds.
        is_file = section.text("input_type") == "file"
        name = f"inputs.{key} | readfile" if is_file else f"inputs.{key}"
        parameters[key] = RecipeParameter(name, section, _input(section, key))
        section.leave("goose.parameter")
    return parameters


def _fill(
    text: str, parameters: Mapping[str, RecipeParameter], filled: set[str], draft: ImportDraft
) -> str:
    """A text in which variables take the place of parameters: a pipeline has no inputs there.

    Raises:
        LeftOutError: another template stands in it.
    """

    def one(match: re.Match[str]) -> str:
        parameter = parameters.get(match[1])
        if match[1] == "recipe_dir":
            return draft.relative_folder(draft.source.parent)
        if parameter is None or "readfile" in parameter.name:
            return match[0]
        filled.add(match[1])
        variable, schema = variable_name(match[1]), parameter.schema
        default = (
            text_of(schema["default"]) if isinstance(schema, dict) and "default" in schema else "}"
        )
        if "}" in default:
            draft.uses(variable, f"the parameter `{match[1]}`")
            return f"${{{variable}}}"
        draft.read.add(variable)
        return f"${{{variable}:-{default}}}"

    filled_text = _NAME.sub(one, text)
    if is_template(filled_text):
        raise LeftOutError("a parameter that no variable can take the place of")
    return filled_text


def _input(section: Section, key: str) -> JsonValue:
    kind = section.text("input_type") or "string"
    schema: dict[str, JsonValue]
    if kind == "select":
        options = as_list(section.data("options"))
        if not options:
            section.wrong("input_type", f"the parameter `{key}` is a `select` without `options`")
        schema = {"enum": options}
    elif kind in _TYPES:
        schema = dict(_TYPES[kind])
    else:
        hint = f"one of {', '.join(f'`{name}`' for name in (*_TYPES, 'select'))}"
        section.wrong("input_type", f"unknown type of a parameter: `{kind}`", hint)
        return {}
    if (description := section.text("description")) is not None:
        schema["description"] = description
    default, requirement = section.data("default"), section.text("requirement")
    if default is not None and requirement != "required":
        schema["default"] = _default(section, kind, default)
    elif default is not None:
        section.skip("default", "left out: a required parameter has none")
    if requirement == "user_prompt":
        section.skip("requirement", "nobody is asked: `-i NAME=VALUE` gives it")
    return schema


def _default(section: Section, kind: str, default: JsonValue) -> JsonValue:
    """A default of the type that the input has: in a recipe it is a text."""
    if not isinstance(default, str):
        return default
    if kind == "boolean" and default.lower() in _TRUE:
        return _TRUE[default.lower()]
    if kind == "number":
        try:
            number = float(default)
            return int(number) if number == int(number) else number
        except (ValueError, OverflowError):
            section.wrong("default", f"`{default}` is not a number")
            return None
    return default


def _template(root: Section, key: str, text: str, names: Mapping[str, str], read: set[str]) -> str:
    try:
        text = with_raw(text)
        read |= free_names(text)
        result = rename_variables(text, names)
        unknown = sorted(free_names(result) - {"inputs"})
    except UsageError as error:
        where = f" ({error.where})" if error.where else ""
        root.wrong(key, f"not a template: {error.message}{where}", error.hint)
        return text
    for name in unknown:
        root.wrong(key, f"`{name}` is not among the `parameters`", "name it there")
    return result


def _settings(root: Section, fill: Fill) -> dict[str, JsonValue]:
    settings = root.section("settings")
    if settings is None:
        return {}
    data: dict[str, JsonValue] = {}
    provider, model = settings.text("goose_provider"), settings.text("goose_model")
    with root.draft.catch_left_out(settings.position("goose_model"), settings.place("goose_model")):
        provider, model = provider and fill(provider), model and fill(model)
    temperature, turns = settings.number("temperature"), settings.number("max_turns")
    if model is not None:
        where = "goose_provider" if provider else "goose_model"
        position, path = settings.position(where), settings.place(where)
        entry = model_entry(provider or "openai", model, root.draft, position, path)
        if temperature is not None:
            entry["params"] = {"temperature": temperature}
        data["models"] = {"main": entry}
    elif provider is not None:
        settings.skip("goose_provider", "left out: a model under `models`")
    elif temperature is not None:
        data["params"] = {"temperature": temperature}
    if turns is not None and turns >= 1:
        data["limits"] = {"turns": int(turns)}
    settings.leave("goose.settings")
    return data


def _extensions(root: Section, fill: Fill) -> dict[str, JsonValue]:
    servers: dict[str, JsonValue] = {}
    for section in root.sections("extensions"):
        position, path = section.node.position, section.path
        name, kind = section.text("name") or "server", section.text("type") or "stdio"
        alias = alias_near(name, servers)
        if section.flag("enabled") is False:
            root.draft.skip(position, path, "left out: it is switched off")
        elif kind == "stdio" or kind in _REMOTE:
            with root.draft.catch_left_out(position, path):
                if (entry := of_goose(section, alias, name, fill)) is not None:
                    servers[alias] = entry
        elif kind in {"builtin", "platform"} and name == "developer":
            root.draft.skip(position, path, _DEVELOPER.format(alias))
            section.leave("goose.extension")
            servers[alias] = {"pack": ["fs", "edit", "shell"], "root": "."}
        elif kind == "builtin":
            root.draft.skip(position, path, f"left out: `{name}` is a part of goose itself")
        elif kind in _EXTENSION:
            root.draft.skip(position, path, _EXTENSION[kind])
        else:
            section.wrong("type", f"unknown type of an extension: `{kind}`")
    return servers


def _retry(root: Section) -> dict[str, JsonValue]:
    """Attempts map; what goose checks between them is a shell command."""
    retry = root.section("retry")
    if retry is None:
        return {}
    most = retry.number("max_retries")
    retry.leave("goose.retry")
    return {} if most is None or most < 1 else {"retry": {"attempts": int(most) + 1}}
