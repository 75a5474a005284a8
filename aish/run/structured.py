"""Answers that have to fit a JSON Schema, in their simple form (`output.schema`)."""

import json
import re

from aish.config.documents import parse_json
from aish.vocab.json import JsonObject, JsonValue

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


def instruction(schema: JsonObject) -> str:
    """What a model is told where its endpoint takes no `response_format`."""
    text = json.dumps(schema, ensure_ascii=False)
    return (
        "Answer with one JSON value and nothing else: no explanation, no code fence. "
        f"It must fit this JSON Schema:\n{text}"
    )


def parse_answer(text: str) -> JsonValue:
    """The JSON value that `text` holds, a code fence around it allowed.

    Raises:
        ValueError: it is not JSON; says where it stops being so.
    """
    fenced = _FENCE.match(text)
    return parse_json(fenced.group(1) if fenced else text)
