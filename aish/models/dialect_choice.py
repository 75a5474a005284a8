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


def wire_of(entry: ModelEntry) -> Wire:
    return WIRES[entry.api]


def wire_name(entry: ModelEntry) -> str:
    return entry.model or (smollm2.NAME if entry.embedded else entry.alias)


def answer_limit(entry: ModelEntry, params: Mapping[str, JsonValue] | None = None) -> int | None:
    """The most tokens of an answer; `params` are a step's own."""
    return wire_of(entry).answer_limit({**entry.params, **(params or {})})


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
        origin=f"{entry.alias}{apart}",
        short_ids=url.hostname in _SHORT_IDS,
        api=entry.api,
    )
