"""Names, limits and dialect of a model entry, without loading its wire."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from aish.config.model import ModelEntry
from aish.core.json import JsonValue
from aish.core.wires import CHAT, WIRES, Wire
from aish.models import smollm2
from aish.wire.dialect import Dialect

# These require tool-call ids of nine letters and digits.
_SHORT_IDS = frozenset({"api.mistral.ai", "codestral.mistral.ai"})
# The longest answers by parts of names, the first that fits: the price list does not say them.
# `$` is the end of a name.
# Newer models write more than the last row says; a higher limit is for the file to set.
_BOUNDS = (
    ("claude-2", 4096),
    ("claude-v", 4096),
    ("claude-instant", 4096),
    ("claude-3-5", 8192),
    ("claude-3-7", 64_000),
    ("claude-3", 4096),
    ("claude-opus-4-0", 32_000),
    ("claude-opus-4-1", 32_000),
    ("claude-opus-4-2025", 32_000),
    ("claude-opus-4$", 32_000),
    ("claude-", 64_000),
)
_UNKNOWN_BOUND = 4096


def wire_of(entry: ModelEntry) -> Wire:
    return WIRES[entry.api]


def wire_name(entry: ModelEntry) -> str:
    return entry.model or (smollm2.NAME if entry.embedded else entry.alias)


def answer_limit(entry: ModelEntry, params: Mapping[str, JsonValue] | None = None) -> int | None:
    """The most tokens of an answer; `params` are a step's own."""
    wire = wire_of(entry)
    named = wire.answer_limit({**entry.params, **(params or {})})
    return _default_limit(entry) if named is None and wire.needs_bound else named


def _default_limit(entry: ModelEntry) -> int:
    """The limit where the wire wants one and the file says nothing."""
    # Gateways write `claude-opus-4.1` and `claude-opus-4@20250514`.
    name = wire_name(entry).rpartition("/")[2].replace(".", "-").replace("@", "-") + "$"
    return next((most for part, most in _BOUNDS if part in name), _UNKNOWN_BOUND)


def dialect_of(entry: ModelEntry) -> Dialect:
    url = urlsplit(entry.base_url or "")
    # Older journals know only the alias. What one wire or endpoint has said for itself alone is
    # not for another that is given the same alias later.
    apart = "" if entry.api == CHAT else f" {entry.api} {url.scheme}://{url.netloc}"
    return Dialect(
        model=wire_name(entry),
        params=smollm2.params_of(entry),
        usage=entry.usage,
        json_schema=entry.json_schema is not False,
        tool_role=entry.tool_role,
        vision=entry.vision,
        pdf=entry.pdf,
        origin=f"{entry.alias}{apart}",
        short_ids=url.hostname in _SHORT_IDS,
        api=entry.api,
        effort=entry.effort,
        cache=entry.cache,
        answer_tokens=_default_limit(entry),
    )
