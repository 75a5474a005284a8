"""Options of the pack `rag`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from aish.core.frozen import frozen
from aish.core.options import option
from aish.core.patterns import lazy_pattern
from aish.packs.framework.option_checks import is_plain_address

COLLECTION_NAME = lazy_pattern(r"[a-z0-9][a-z0-9_-]{0,63}")
"""The name of a collection of passages, which is that of its file too."""


@frozen
class Embeddings:
    """Model for vectors of texts; `base_url` and `key_env` are for an endpoint."""

    provider: Literal["bundled", "openai", "ollama", "none"] = "bundled"
    base_url: str = option("", "literal")
    model: str = option("", "literal")
    key_env: str = option("", "variable")

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.provider in {"openai", "ollama"}:
            if not self.model:
                yield "provider", f"`provider: {self.provider}` needs a `model`"
        else:
            for key in ("base_url", "model", "key_env"):
                if getattr(self, key):
                    yield key, f"`provider: {self.provider}` takes no `{key}`"
        if self.base_url and not is_plain_address(self.base_url):
            yield "base_url", f"`{self.base_url}` is not the address of an endpoint"


@frozen
class RagOptions:
    """`store` is an absolute folder; without it that is `.aish/rag` in the root.

    `collection` is what a call without one means.
    """

    store: Path | None = option(None, "literal")
    collection: str = option("default", "literal")
    embeddings: Embeddings = Embeddings()
    deny_names: tuple[str, ...] = ()
