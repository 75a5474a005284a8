"""Checks that vcrpy's own reader reads a cassette as ours does.

For `aish cassette check`: importing vcrpy takes longer than replaying a run.
"""

from pathlib import Path
from typing import Any

import yaml
from vcr.serialize import deserialize
from vcr.serializers import yamlserializer
from vcr.util import read_body

from aish.cassettes.format.interaction import Cassette


def difference(path: Path, ours: Cassette) -> str | None:
    """Return what vcrpy reads from a file that we have read as `ours`, if that differs."""
    try:
        requests, responses, *_ = deserialize(path.read_text(encoding="utf-8"), yamlserializer)
        bodies = [_bytes(read_body(asked)) for asked in requests]
    except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        return f"vcrpy cannot read it: {type(error).__name__}: {error}"
    if len(requests) != len(ours.interactions):
        return f"vcrpy reads {len(requests)} exchanges where there are {len(ours.interactions)}"
    rows = zip(requests, bodies, responses, ours.interactions, strict=True)
    for number, (asked, body, answer, one) in enumerate(rows, 1):
        theirs = (asked.method, asked.uri, body, _bytes(answer["body"]["string"]))
        if theirs != (one.request.method, one.request.uri, one.request.body, one.response.body):
            return f"vcrpy reads exchange {number} as something else"
    return None


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body or b"")
