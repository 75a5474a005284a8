"""How a model entry wants to be spoken to, and what it is called there."""

from urllib.parse import urlsplit

from aish.config.models import ModelEntry
from aish.models import smollm2
from aish.wire.chat_encode import Dialect

# These take tool-call ids of nine letters and digits only (quirk 42).
_SHORT_IDS = frozenset({"api.mistral.ai", "codestral.mistral.ai"})


def wire_name(entry: ModelEntry) -> str:
    """What a model is called in requests to it."""
    return entry.model or (smollm2.NAME if entry.embedded else entry.alias)


def dialect_of(entry: ModelEntry) -> Dialect:
    """What the encoder has to know of an entry."""
    params = {**smollm2.PARAMS, **entry.params} if entry.embedded else entry.params
    return Dialect(
        model=wire_name(entry),
        params=params,
        usage=entry.usage,
        json_schema=entry.json_schema is not False,
        tool_role=entry.tool_role,
        vision=entry.vision,
        # As `Finish.model`, which the loop writes into the turns.
        origin=entry.alias,
        short_ids=urlsplit(entry.base_url or "").hostname in _SHORT_IDS,
    )
