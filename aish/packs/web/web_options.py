"""Options of the pack `web`."""

from collections.abc import Iterator, Mapping
from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.options import option
from aish.packs.framework.option_checks import destination_problems, is_plain_address


@frozen
class SearchBackend:
    """A search service: `url` of a SearXNG, `key_env` of Brave."""

    kind: Literal["duckduckgo", "searxng", "brave"]
    url: str = ""
    key_env: str = option("", "variable")

    @classmethod
    def parse(cls, value: JsonValue) -> "SearchBackend":
        """Read `duckduckgo`, `{searxng: URL}` or `{brave: VARIABLE}`.

        Raises:
            ValueError: the URL is not that of a SearXNG.
        """
        if not isinstance(value, Mapping):
            return cls("duckduckgo")
        if "brave" in value:
            return cls("brave", key_env=str(value["brave"]))
        url = str(value["searxng"])
        if not is_plain_address(url):
            raise ValueError(f"`{url}` is not the address of a SearXNG")
        return cls("searxng", url=url)

    def to_json(self) -> JsonValue:
        address = self.url or self.key_env
        return {self.kind: address} if address else self.kind


@frozen
class WebOptions:
    """`allow` are addresses `host:port` that may be dialled although they are not global.

    `hosts` are globs of the hosts that may be asked for; empty for all. What `search` names may be
    asked too; without it that is DuckDuckGo, if `hosts` permit it.
    """

    search: tuple[SearchBackend, ...] = ()
    allow: tuple[str, ...] = option((), "literal")
    hosts: tuple[str, ...] = option((), "literal")

    def problems(self) -> Iterator[tuple[str, str]]:
        return destination_problems(self.allow)
