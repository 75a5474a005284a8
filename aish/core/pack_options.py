"""Options of built-in packs, as declared under `mcp.servers.ALIAS.options` (K12)."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Literal

from aish.core.frozen import frozen

Sandbox = Literal["auto", "bubblewrap", "landlock", "off", "required"]


@frozen
class COptions:
    """`macros` are words that a parser may ignore, beside the usual ones (K41).

    One that ends in `()` is ignored with its arguments, one that ends in `:` with the colon.
    """

    macros: tuple[str, ...] = ()


@frozen
class SearchBackend:
    """A search service: `url` of a SearXNG, `key_env` of Brave (K46)."""

    kind: Literal["duckduckgo", "searxng", "brave"]
    url: str = ""
    key_env: str = ""


@frozen
class WebOptions:
    """`allow` are addresses `host:port` that may be dialled although they are not global (K43).

    `hosts` are globs of the hosts that may be asked for; empty for all. What `search` names may be
    asked too; without it that is DuckDuckGo, if `hosts` permit it.
    """

    search: tuple[SearchBackend, ...] = ()
    allow: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


@frozen
class ShellOptions:
    """`env_file` is absolute (K48), `explain` the alias of a model (K51)."""

    env_file: Path | None = None
    explain: str | None = None
    sandbox: Sandbox = "auto"
    network: bool = True
    keep_scripts: bool = False


@frozen
class ProcOptions:
    """`most` is the number of processes that may run at the same time (K54)."""

    env_file: Path | None = None
    sandbox: Sandbox = "auto"
    network: bool = True
    most: int = 16


@frozen
class PackOptions:
    """The options of all packs of a server; a field is named as its pack."""

    c: COptions = COptions()
    web: WebOptions = WebOptions()
    shell: ShellOptions = ShellOptions()
    proc: ProcOptions = ProcOptions()

    @property
    def environment_files(self) -> Mapping[str, Path]:
        """The files that packs take the environment of commands from, by pack (K48)."""
        named = {"shell": self.shell.env_file, "proc": self.proc.env_file}
        return {pack: path for pack, path in named.items() if path is not None}


def option_words(options: PackOptions) -> tuple[str, ...]:
    """What differs from the defaults, as `shell.network=false`: pinned like an argv (P8).

    Files are named without their folders, which differ from machine to machine.
    """
    default = PackOptions()
    words: list[str] = []
    for pack in fields(PackOptions):
        given, usual = getattr(options, pack.name), getattr(default, pack.name)
        for option in fields(given) if given != usual else ():
            value = getattr(given, option.name)
            if value != getattr(usual, option.name):
                words.append(f"{pack.name}.{option.name}={_word(value)}")
    return tuple(words)


def _word(value: object) -> str:
    if isinstance(value, Path):
        return value.name
    if isinstance(value, tuple):
        return json.dumps([_backend(one) for one in value], ensure_ascii=False)
    return value if isinstance(value, str) else json.dumps(value)


def _backend(value: object) -> object:
    if isinstance(value, SearchBackend):
        address = value.url or value.key_env
        return {value.kind: address} if address else value.kind
    return value
