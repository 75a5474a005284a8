"""Options of built-in packs, as declared under `mcp.servers.ALIAS.options` (K12)."""

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Literal

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern

Sandbox = Literal["auto", "bubblewrap", "landlock", "off", "required"]
EmbeddingsProvider = Literal["bundled", "openai", "ollama", "none"]
COLLECTION_NAME = lazy_pattern(r"[a-z0-9][a-z0-9_-]{0,63}")
"""The name of a collection of the pack `rag`, which is that of its file too."""


@frozen
class FilesOptions:
    """`deny_names` are globs of names that are hidden beside those of the built-in list (K5)."""

    deny_names: tuple[str, ...] = ()


@frozen
class COptions:
    """`macros` are words that a parser may ignore, beside the usual ones (K41).

    One that ends in `()` is ignored with its arguments, one that ends in `:` with the colon.
    """

    macros: tuple[str, ...] = ()
    deny_names: tuple[str, ...] = ()


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
class ModelConsent:
    """Which models of the file the packs of a server may ask (K13).

    `named` are the aliases in its options, `every` adds all others. `unnamed` permits requests that
    name no model: that of the step answers them, or the default one of the file.
    """

    named: tuple[str, ...] = ()
    every: bool = False
    unnamed: bool = False

    @property
    def given(self) -> bool:
        """Whether they may ask at all."""
        return bool(self.named) or self.every or self.unnamed

    def permits(self, alias: str) -> bool:
        """Whether a request may name this model; an empty `alias` is a request without one."""
        return self.unnamed if not alias else self.every or alias in self.named


@frozen
class MetricsOptions:
    """Events are in a folder `metrics` of the absolute `folder`, else of the state folder (K57)."""

    folder: Path | None = None


@frozen
class IssuesOptions:
    """`prefix` begins the ids of new issues; empty for that of the issues there are (K79)."""

    prefix: str = ""


@frozen
class Embeddings:
    """What makes vectors of texts; `base_url` and `key_env` are for an endpoint (K61)."""

    provider: EmbeddingsProvider = "bundled"
    base_url: str = ""
    model: str = ""
    key_env: str = ""


@frozen
class RagOptions:
    """`store` is an absolute folder; without it that is `.aish/rag` in the root (K60).

    `collection` is what a call without one means.
    """

    store: Path | None = None
    collection: str = "default"
    embeddings: Embeddings = Embeddings()
    deny_names: tuple[str, ...] = ()


@frozen
class WsOptions:
    """Of the hub of events (K75): `origins` are the pages that may connect, exactly as written.

    `token_env` names the variable that has the token of its clients.
    """

    allow_remote: bool = False
    origins: tuple[str, ...] = ()
    token_env: str = ""


@frozen
class BridgeOptions:
    """A WebSocket that answers in the place of the pack `ide` (K78); times in seconds.

    `token_env` names the variable that has the token for it. A lost connection is opened again
    after `reconnect`, then after twice as long each time, up to `most`.
    """

    url: str
    token_env: str = ""
    reconnect: float = 2.0
    most: float = 30.0


@frozen
class IdeOptions:
    """`model` is the alias that chats are had with (K77)."""

    model: str | None = None
    bridge: BridgeOptions | None = None


@frozen
class InfluxOptions:
    """A database whose points `ml_status` shows; `token_env` names a variable (K68)."""

    url: str
    database: str
    token_env: str = ""


@frozen
class MlOptions:
    """`judge` is the alias of the model that scores by the absolute `rubric` file (K66)."""

    judge: str | None = None
    rubric: Path | None = None
    influx: InfluxOptions | None = None


@frozen
class BrowserOptions:
    """`program` is the browser, a name in PATH or a path; empty for the usual names (K69).

    `allow` are addresses `host:port` that pages may reach although they are not public (K71).
    `attach` permits to attach to a running browser, which has its user's cookies (K70).
    """

    program: str = ""
    allow: tuple[str, ...] = ()
    attach: bool = False


@frozen
class PackOptions:
    """The options of all packs of a server; a field is named as its pack."""

    fs: FilesOptions = FilesOptions()
    edit: FilesOptions = FilesOptions()
    git: FilesOptions = FilesOptions()
    lang: FilesOptions = FilesOptions()
    py: FilesOptions = FilesOptions()
    c: COptions = COptions()
    web: WebOptions = WebOptions()
    shell: ShellOptions = ShellOptions()
    proc: ProcOptions = ProcOptions()
    metrics: MetricsOptions = MetricsOptions()
    issues: IssuesOptions = IssuesOptions()
    rag: RagOptions = RagOptions()
    ws: WsOptions = WsOptions()
    ide: IdeOptions = IdeOptions()
    ml: MlOptions = MlOptions()
    browser: BrowserOptions = BrowserOptions()

    @property
    def deny_names(self) -> tuple[str, ...]:
        """The names that are hidden from all packs of the server: it has one root."""
        packs = (self.fs, self.edit, self.git, self.lang, self.py, self.c, self.rag)
        return tuple(dict.fromkeys(glob for one in packs for glob in one.deny_names))

    @property
    def environment_files(self) -> Mapping[str, Path]:
        """The files that packs take the environment of commands from, by pack (K48)."""
        named = {"shell": self.shell.env_file, "proc": self.proc.env_file}
        return {pack: path for pack, path in named.items() if path is not None}

    @property
    def models(self) -> Mapping[str, str]:
        """The aliases of models that options name, by option (K13)."""
        named = {
            "shell.explain": self.shell.explain,
            "ml.judge": self.ml.judge,
            "ide.model": self.ide.model,
        }
        return {option: alias for option, alias in named.items() if alias is not None}

    def model_consent(self, packs: Collection[str], *, sampling: bool = False) -> ModelConsent:
        """What a server of these packs may ask; `sampling` is that of its entry (K13)."""
        return ModelConsent(
            named=tuple(dict.fromkeys(self.models.values())),
            every="ml" in packs,
            unnamed=sampling or not _ASKING_PACKS.isdisjoint(packs),
        )


_ASKING_PACKS = frozenset({"ml", "ide"})
"""Packs whose whole purpose is to ask models: naming one is the consent."""


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
    if isinstance(value, Embeddings | BridgeOptions | InfluxOptions):
        given = {one.name: getattr(value, one.name) for one in fields(value)}
        return json.dumps({key: word for key, word in given.items() if word}, ensure_ascii=False)
    return value if isinstance(value, str) else json.dumps(value)


def _backend(value: object) -> object:
    if isinstance(value, SearchBackend):
        address = value.url or value.key_env
        return {value.kind: address} if address else value.kind
    return value
