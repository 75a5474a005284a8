"""Fields we do not know, kept as they came and merged over the chunks of a stream (quirk 60)."""

from typing import Any


def merge_field(fields: dict[str, Any], name: str, value: Any) -> None:
    """Add what a chunk says of a field to what the chunks before said.

    Objects merge, lists and texts go on where they stopped (a text that only repeats adds
    nothing), anything else is replaced. What is empty has nothing to give back.
    """
    if value is None or value in ("", [], {}):
        return
    known = fields.get(name)
    if isinstance(known, dict) and isinstance(value, dict):
        for inner, part in value.items():
            merge_field(known, inner, part)
    elif isinstance(known, list) and isinstance(value, list):
        known.extend(value)
    elif isinstance(known, str) and isinstance(value, str):
        fields[name] = known if known == value else known + value
    else:
        fields[name] = value
