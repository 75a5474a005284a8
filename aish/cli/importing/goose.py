"""A recipe of goose: instructions, prompt, parameters, extensions, settings, response."""

import math
from collections.abc import Mapping
from typing import Final

from aish.cli.importing.draft import Section, as_section
from aish.cli.importing.endpoints import model_entry
from aish.cli.importing.servers import alias_near, as_list, of_goose
from aish.cli.importing.templates import free_names, renamed
from aish.config.yaml_tree import to_data
from aish.core.errors import UsageError
from aish.core.json import JsonValue

_INSTEAD: Final = {
    "activities": "left out: they are for the desktop program",
    "sub_recipes": "a step `pipeline: FILE` for each, once it is imported too",
    "author": "left out: not needed here",
    "retry": "`expect` and `retry` of the step",
    "context": "`attach` of the step",
}
_IGNORED = frozenset({"version"})
_DESKTOP = frozenset({"name", "isGlobal", "lastModified", "isArchived"})
_REMOTE = frozenset({"streamable_http", "sse"})
_EXTENSION = {
    "inline_python": "a server of your own: pipelines do not run embedded code",
    "frontend": "left out: its tools are those of a desktop program",
    "platform": "left out: it is a part of goose itself",
}
_TYPES: Mapping[str, Mapping[str, JsonValue]] = {
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "date": {"type": "string"},
    "file": {"type": "string"},
}
_TRUE = {"true": True, "false": False}


def is_recipe(root: Section) -> bool:
    """Whether a mapping looks like a recipe, as the command line or the desktop writes it."""
    entries = root.node.entries
    return "recipe" in entries or (
        "title" in entries and bool({"prompt", "instructions"} & set(entries))
    )


def from_recipe(root: Section) -> dict[str, JsonValue]:
    """The pipeline of a recipe."""
    draft = root.draft
    if "recipe" in root.node.entries:
        inner = root.section("recipe")
        root.leave({}, _DESKTOP)
        if inner is None:
            return {}
        root = inner
    made: dict[str, JsonValue] = {}
    title, description = root.text("title"), root.text("description")
    if description or title:
        made["description"] = description or title
    names, inputs = _parameters(root)
    step: dict[str, JsonValue] = {}
    instructions, prompt = root.text("instructions"), root.text("prompt")
    if not (instructions or prompt):
        draft.wrong(root.node.position, root.path, "a recipe has `prompt` or `instructions`")
    if instructions:
        step["system"] = _template(root, "instructions", instructions, names)
    if prompt:
        step["prompt"] = _template(root, "prompt", prompt, names)
    else:
        # In goose a person would type it now.
        inputs["prompt"] = {"type": "string", "description": "What is asked"}
        step["prompt"] = "{{ inputs.prompt }}"
    if inputs:
        made["inputs"] = inputs
    made |= _settings(root)
    servers = _extensions(root)
    if servers:
        made["mcp"] = {"servers": servers}
    step |= _response(root) | _retry(root)
    root.leave(_INSTEAD, _IGNORED)
    return made | step


def _parameters(root: Section) -> tuple[dict[str, str], dict[str, JsonValue]]:
    """What each name of a template becomes, and the inputs."""
    names = {"recipe_dir": f"'{root.draft.relative_folder(root.draft.source.parent)}'"}
    inputs: dict[str, JsonValue] = {}
    for path, node in root.items("parameters"):
        one = as_section(node, path, root.draft)
        if one is None:
            continue
        key = one.text("key")
        if key is None:
            root.draft.wrong(node.position, path, "the parameter has no `key`")
            continue
        inputs[key] = _input(one, key)
        # goose reads the file, and what is rendered is what it holds.
        is_file = one.text("input_type") == "file"
        names[key] = f"inputs.{key} | readfile" if is_file else f"inputs.{key}"
        one.leave({})
    return names, inputs


def _input(one: Section, key: str) -> JsonValue:
    kind = one.text("input_type") or "string"
    schema: dict[str, JsonValue]
    if kind == "select":
        options = as_list(one.data("options"))
        if not options:
            one.wrong("input_type", f"the parameter `{key}` is a `select` without `options`")
        schema = {"enum": options}
    elif kind in _TYPES:
        schema = dict(_TYPES[kind])
    else:
        hint = f"one of {', '.join(f'`{name}`' for name in (*_TYPES, 'select'))}"
        one.wrong("input_type", f"unknown type of a parameter: `{kind}`", hint)
        return {}
    if (description := one.text("description")) is not None:
        schema["description"] = description
    default, requirement = one.data("default"), one.text("requirement")
    if default is not None and requirement != "required":
        schema["default"] = _default(one, kind, default)
    return schema


def _default(one: Section, kind: str, default: JsonValue) -> JsonValue:
    """A default of the type that the input has: in a recipe it is a text."""
    if not isinstance(default, str):
        return default
    if kind == "boolean" and default.lower() in _TRUE:
        return _TRUE[default.lower()]
    if kind == "number":
        try:
            number = float(default)
        except ValueError:
            one.wrong("default", f"`{default}` is not a number")
            return None
        if not math.isfinite(number):
            one.wrong("default", f"`{default}` is not a number")
            return None
        return int(number) if number.is_integer() else number
    return default


def _template(root: Section, key: str, text: str, names: Mapping[str, str]) -> str:
    try:
        made = renamed(text, names)
        unknown = sorted(free_names(made) - {"inputs"})
    except UsageError as error:
        where = f" ({error.where})" if error.where else ""
        root.wrong(key, f"not a template: {error.message}{where}", error.hint)
        return text
    for name in unknown:
        root.wrong(key, f"`{name}` is not among the `parameters`", "name it there")
    return made


def _settings(root: Section) -> dict[str, JsonValue]:
    settings = root.section("settings")
    if settings is None:
        return {}
    made: dict[str, JsonValue] = {}
    provider, model = settings.text("goose_provider"), settings.text("goose_model")
    temperature, turns = settings.number("temperature"), settings.number("max_turns")
    if model is not None:
        where = "goose_provider" if provider else "goose_model"
        entry = model_entry(
            provider or "openai",
            model,
            root.draft,
            settings.position(where),
            settings.place(where),
        )
        if temperature is not None:
            entry["params"] = {"temperature": temperature}
        made["models"] = {"main": entry}
    elif provider is not None:
        settings.skip("goose_provider", "a model under `models`")
    elif temperature is not None:
        settings.skip("temperature", "`params: {temperature: …}` of the model")
    if turns is not None and turns >= 1:
        made["limits"] = {"turns": int(turns)}
    settings.leave({})
    return made


def _extensions(root: Section) -> dict[str, JsonValue]:
    made: dict[str, JsonValue] = {}
    for path, node in root.items("extensions"):
        one = as_section(node, path, root.draft)
        if one is None:
            continue
        name, kind = one.text("name") or "server", one.text("type") or "stdio"
        alias = alias_near(name, made)
        if one.flag("enabled") is False:
            root.draft.skip(node.position, path, "left out: it is switched off")
        elif kind == "stdio" or kind in _REMOTE:
            entry = of_goose(one, alias, name)
            if entry is not None:
                made[alias] = entry
        elif kind in {"builtin", "platform"} and name == "developer":
            root.draft.skip(
                node.position,
                path,
                f"the packs `fs`, `edit` and `shell` stand in for it, as `{alias}`; the names of "
                "their tools are others",
            )
            made[alias] = {"pack": ["fs", "edit", "shell"], "root": "."}
        elif kind == "builtin":
            root.draft.skip(node.position, path, f"left out: `{name}` is a part of goose itself")
        elif kind in _EXTENSION:
            root.draft.skip(node.position, path, _EXTENSION[kind])
        else:
            one.wrong("type", f"unknown type of an extension: `{kind}`")
    return made


def _response(root: Section) -> dict[str, JsonValue]:
    response = root.section("response")
    schema = None if response is None else response.section("json_schema")
    if response is not None:
        response.leave({})
    return {} if schema is None else {"output": {"schema": to_data(schema.node)}}


def _retry(root: Section) -> dict[str, JsonValue]:
    """Attempts map; what goose checks between them is a shell command."""
    retry = root.section("retry")
    if retry is None:
        return {}
    most = retry.number("max_retries")
    instead = "`expect` of the step, or a step `run: …` after it"
    retry.leave(dict.fromkeys(("checks", "on_failure"), instead))
    return {} if most is None or most < 1 else {"retry": {"attempts": int(most) + 1}}
