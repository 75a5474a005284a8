"""From a file of another program to the text of a pipeline, and what a person has to know."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from aish.cli.importing.documents import read_document
from aish.cli.importing.draft import ImportDraft, Section, SkippedPart, slug
from aish.cli.importing.endpoints import default_models
from aish.cli.importing.goose import from_recipe, is_recipe
from aish.cli.importing.promptfoo import from_configuration, is_configuration
from aish.cli.importing.servers import of_codex, of_json
from aish.config.yaml_tree import MappingNode, in_file_order
from aish.core.errors import PipelineError, Position, Problem
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.phrases import first_of
from aish.core.text import for_line
from aish.output.formats.text import yaml_text

_ORDER = (
    *("description", "inputs", "env", "secrets", "models", "model", "mcp", "steps"),
    *("system", "prompt", "params", "output", "retry", "limits", "tests"),
)
_STEP = ("system", "prompt", "params", "output", "retry")
_AFTER = ("limits", "tests")
_ASK: Final = "Say which tools you have."
_HINT = (
    "`mcpServers` of .mcp.json, `servers` of .vscode/mcp.json, `[mcp_servers.NAME]` of Codex, a "
    "recipe of goose, or a configuration of promptfoo"
)
_LISTS = {
    "mcpServers": "`mcpServers`",
    "amp.mcpServers": "`amp.mcpServers`",
    "servers": "VS Code's `servers`",
    "context_servers": "Zed's `context_servers`",
    "mcp": "`mcp`",
}
_CODEX_MODELS = "left out: a model under `models`: `base_url`, `model`, `key_env`"


@frozen
class Imported:
    """A pipeline made of another program's file.

    `exports` says of each variable what belongs into it, `approved` which calls need no question.
    """

    text: str
    kind: str
    exports: Mapping[str, str]
    skipped: tuple[SkippedPart, ...]
    approved: tuple[str, ...]
    servers: tuple[str, ...]


def import_pipeline(source: Path, target: Path, name: str, head: str) -> Imported:
    """The pipeline that a file comes to, to be written to `target` under a `head` of comments.

    Raises:
        PipelineError: the file cannot be read, or is none that can be imported; says where.
    """
    root = read_document(source)
    # Read twice: the name of a credential must be none that the source reads further down.
    first, _, _ = _make_draft(root, ImportDraft(source, target))
    draft, kind, data = _make_draft(root, ImportDraft(source, target, frozenset(first.read)))
    approved = tuple(dict.fromkeys(draft.approved))
    servers = _servers(data, approved)
    if draft.secrets:
        data["secrets"] = list(draft.secrets)
    if "prompt" not in data and "steps" not in data:
        data["inputs"] = {"prompt": {"type": "string", "default": _ASK}}
        data["prompt"] = "{{ inputs.prompt }}"
    exports = _exports(source, draft)
    text = f"{head}{''.join(_comments(source, exports))}{_body(data, name)}"
    return Imported(text, kind, exports, draft.lines_of_skipped(), approved, servers)


def _make_draft(
    root: MappingNode, draft: ImportDraft
) -> tuple[ImportDraft, str, dict[str, JsonValue]]:
    """Return `draft` filled, what the file is, and the pipeline's keys, a model among them.

    Raises:
        PipelineError: all that is wrong with the file.
    """
    kind, data = _read(Section(root, "", draft))
    if draft.problems:
        raise PipelineError(in_file_order(draft.problems, str(draft.source)))
    if "models" not in data:
        data["models"] = default_models(draft)
    return draft, kind, data


def _exports(source: Path, draft: ImportDraft) -> dict[str, str]:
    """Map each variable to its uses and to where its value stands."""
    exports: dict[str, str] = {}
    for variable, uses in draft.exports.items():
        exports[variable] = "; ".join(dict.fromkeys(uses))
        if variable in draft.literals:
            exports[variable] += f"; its value is in {source.name}"
        if variable in draft.described:
            exports[variable] = f"{draft.described[variable]}: {exports[variable]}"
    return exports


def _servers(data: Mapping[str, JsonValue], approved: tuple[str, ...]) -> tuple[str, ...]:
    """The aliases; and what needs no question, put into the file."""
    mcp = data.get("mcp")
    servers = mcp.get("servers") if isinstance(mcp, dict) else None
    if not isinstance(mcp, dict) or not isinstance(servers, Mapping):
        return ()
    mcp["auto_approve"] = list(approved)
    return tuple(servers)


def _read(root: Section) -> tuple[str, dict[str, JsonValue]]:
    """Return the kind of the file, and the keys of the pipeline that it becomes."""
    source = root.draft.source
    entries = root.node.entries
    inner = entries.get("mcp")
    if isinstance(inner, MappingNode) and "servers" in inner.entries and "aish" not in entries:
        # Settings of VS Code, which have the list in a mapping of its own.
        root.read.add("mcp")
        _leave(root)
        return _read(Section(inner, "mcp", root.draft))
    for key, kind in _LISTS.items():
        if key in entries and "aish" not in entries:
            servers = of_json(root, key, _base(source, root.draft.target))
            _leave(root)
            return kind, {"mcp": {"servers": servers}}
    if "mcp_servers" in entries:
        servers = of_codex(root, _base(source, root.draft.target))
        models = _codex_models(root)
        _leave(root)
        return "Codex's `mcp_servers`", {"mcp": {"servers": servers}} | models
    if is_recipe(root):
        return "a recipe of goose", from_recipe(root)
    if is_configuration(root):
        return "a configuration of promptfoo", from_configuration(root)
    keys = ", ".join(f"`{for_line(key)}`" for key in list(entries)[:5]) or "nothing"
    message = f"this file cannot be imported: it has {keys}"
    raise PipelineError((Problem(Position(str(source), 1, 1), "", message, _HINT),))


def _base(source: Path, target: Path) -> Path | None:
    """The folder in which the other program starts its servers; `None` where nobody can tell.

    That of a person's own file is wherever the program was started.
    """
    folder = source.resolve().parent
    if folder.name == "settings" and folder.parent.name.startswith("."):
        folder = folder.parent
    hidden = folder.name.startswith(".")
    folder = folder.parent if hidden else folder
    if folder == Path.home().resolve():
        return None
    is_projects = hidden or source.name in {".mcp.json", "opencode.json"}
    is_above = target.resolve().parent.is_relative_to(folder)
    return folder if is_projects or is_above else None


def _codex_models(root: Section) -> dict[str, JsonValue]:
    """The model, where its provider is one that the file describes and that speaks chat."""
    model, provider = root.text("model"), root.text("model_provider")
    providers = root.section("model_providers") if provider is not None else None
    section = None if providers is None or provider is None else providers.section(provider)
    if section is None:
        for key in ("model", "model_provider", "model_providers"):
            if key in root.node.entries:
                root.skip(key, _CODEX_MODELS)
        return {}
    assert providers is not None
    for key in providers.node.entries:
        if key != provider:
            providers.skip(key, _CODEX_MODELS)
    url, key_env = section.text("base_url"), section.text("env_key")
    if section.text("wire_api") not in {None, "chat"}:
        section.skip("wire_api", "a chat completions endpoint")
    section.leave("codex.provider")
    if model is None or url is None:
        root.skip("model_providers", _CODEX_MODELS)
        return {}
    entry: dict[str, JsonValue] = {"base_url": url.rstrip("/"), "model": model}
    if key_env is not None:
        root.draft.uses(key_env, f"the key of the model `{model}`")
        entry["key_env"] = key_env
    return {"models": {"main": entry}}


def _leave(root: Section) -> None:
    """The rest of a list of servers: settings of the other program, told in one line."""
    rest = [key for key in root.node.entries if key not in root.read | root.told]
    if rest:
        keys = first_of(rest, 4)
        root.draft.skip(root.position(rest[0]), keys, "left out: settings of the other program")


def _comments(source: Path, exports: Mapping[str, str]) -> Iterator[str]:
    yield f"# Made from {for_line(source.name)} by `aish init --from`.\n"
    if exports:
        yield "# Export before a run:\n"
        yield from (f"#   {name}: {for_line(what)}\n" for name, what in exports.items())


def _body(data: Mapping[str, JsonValue], name: str) -> str:
    head = yaml_text({"aish": 1, "name": name})
    if "description" in data:
        head += yaml_text({"description": data["description"]})
    order = [key for key in _ORDER if key in data]
    step = [key for key in order if key in _STEP]
    before = [key for key in order if key not in {"description", *_STEP, *_AFTER}]
    groups = [*([key] for key in before), step, *([key] for key in order if key in _AFTER)]
    blocks = ["".join(yaml_text({key: data[key]}) for key in group) for group in groups if group]
    return "\n".join((head, *blocks))


def pipeline_name(target: Path, source: Path | None = None) -> str:
    """The name that a pipeline has from its file; from its source's, where that says nothing."""
    if source is not None and target.name == "aish.yaml":
        return slug(source.stem, "imported")
    return slug(target.stem, "pipeline")
