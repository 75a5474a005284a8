"""An `mcpServers` block of another program as a pipeline file (F8).

Values under `env` and `headers` become `${NAME}`: what stands in such files in plain text is often
a secret, and must not be copied into a second file.
"""

import json
import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from aish.errors import UsageError
from aish.system.files import read_capped
from aish.vocab.json import JsonValue

_LIMIT = 1024 * 1024
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}")


def pipeline_from_mcp_json(path: Path) -> str:
    """The text of a pipeline that declares the servers of `path`.

    Raises:
        UsageError: the file cannot be read or holds no `mcpServers`.
    """
    try:
        data = json.loads(read_capped(path, _LIMIT))
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror or error}", where=str(path)) from error
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where=str(path)) from error
    servers = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(servers, dict) or not servers:
        raise UsageError(
            "no `mcpServers` in it", where=str(path), hint='expected {"mcpServers": {NAME: {…}}}'
        )
    entries: dict[str, JsonValue] = {}
    for name, entry in servers.items():
        alias = _alias(str(name), entries)
        if not isinstance(entry, dict):
            raise UsageError(f"the server `{name}` is not an object", where=str(path))
        entries[alias] = _entry(str(name), alias, entry, path)
    return _as_yaml(entries, path)


def _alias(name: str, taken: Mapping[str, JsonValue]) -> str:
    """A legal alias (M4) near `name`."""
    tame = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]+", "-", name)).strip("_-") or "server"
    alias, number = tame, 2
    while alias in taken or alias == "shell":
        alias, number = f"{tame}-{number}", number + 1
    return alias


def _entry(name: str, alias: str, entry: Mapping[str, JsonValue], path: Path) -> JsonValue:
    if isinstance(entry.get("url"), str):
        made: dict[str, JsonValue] = {"url": entry["url"]}
        headers = entry.get("headers")
        if isinstance(headers, Mapping) and headers:
            made["headers"] = {k: _reference(v, f"{alias}_{k}") for k, v in headers.items()}
        return made
    command = entry.get("command")
    if not isinstance(command, str):
        raise UsageError(f"the server `{name}` has neither `url` nor `command`", where=str(path))
    args = entry.get("args")
    words = [str(word) for word in args] if isinstance(args, list) else []
    made = {"command": [command, *words]}
    env = entry.get("env")
    if isinstance(env, Mapping) and env:
        made["env"] = {k: _reference(v, k) for k, v in env.items()}
    return made


def _reference(value: JsonValue, name: str) -> str:
    """`value` if it is a reference already, else a reference to a variable named after it."""
    if isinstance(value, str) and _REFERENCE.search(value):
        return value
    return "${" + re.sub(r"[^A-Za-z0-9]+", "_", name).upper().strip("_") + "}"


def _as_yaml(servers: Mapping[str, JsonValue], path: Path) -> str:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # typed as None
    out = StringIO()
    yaml.dump(
        {
            "aish": 1,
            "name": re.sub(r"[^a-z0-9-]+", "-", path.stem.lower()).strip("-") or "imported",
            "models": {"local": {"embedded": "smollm2"}},
            "mcp": {"servers": dict(servers), "auto_approve": []},
            "steps": [{"id": "ask", "prompt": "Say which tools you have."}],
        },
        out,
    )
    return (
        f"# Made from {path.name}. Nothing is approved yet: `aish tools FILE` lists the tools,\n"
        "# and each glob under `auto_approve` lets some run unasked.\n" + out.getvalue()
    )
