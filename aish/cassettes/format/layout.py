"""A cassette as the text of a file: vcrpy's format, formatted for review."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import yaml

from aish.cassettes.format.interaction import Chunk, Headers, Interaction, RecordingMetadata
from aish.cassettes.format.parts import Parts
from aish.core.text import safe_utf8

FORMAT = 1
"""vcrpy's own version."""

END = "...\n"
"""The last line of a complete file: what is cut short lacks it."""

NOTHING = "  []\n"
"""What stands in place of the interactions where there are none."""

# Everything else is escaped within quotes: YAML would read it as another line end, or not at all.
_PLAIN = r"[\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010fffd]*"
_PLAIN_ASCII = re.compile(r"[\t\n\x20-\x7e]*")
_LONG = 80
_WIDTH = 1 << 30
_TAG = "!parts"
_PLACE = f'\n    body: {_TAG} ""\n'


def head_text(head: RecordingMetadata) -> str:
    """The beginning of a file, up to the first interaction."""
    metadata = {
        "complete": head.complete,
        "version": head.version,
        "run": head.run,
        "clock": head.clock,
        "env": dict(head.env),
    }
    return f"{_dump({'metadata': metadata, 'version': FORMAT})}interactions:\n"


def entry(interaction: Interaction, in_parts: str | None = None) -> str:
    """An interaction as an item of the list; `in_parts` is the body of its request (`Parts`)."""
    request, response = interaction.request, interaction.response
    answer: dict[str, Any] = {
        "status": {"code": response.status, "message": response.reason},
        "headers": _group_by_name(response.headers),
        "body": {"string": _body(response.body)},
    }
    if response.chunks:
        answer["chunks"] = chunks_text(response.chunks)
    if response.broken is not None:
        answer["broken"] = response.broken
    asked = {
        "method": request.method,
        "uri": request.uri,
        "headers": _group_by_name(request.headers),
        "body": _body(request.body),
    }
    return _entry({"request": asked, "response": answer}, in_parts)


def _entry(row: Mapping[str, Any], in_parts: str | None) -> str:
    if in_parts is None:
        return _dump([row])
    text = _dump([{**row, "request": {**row["request"], "body": _InParts()}}])
    # No text can look like this: it is indented further than its key.
    before, place, after = text.partition(_PLACE)
    assert place, "the place of a body was not found"
    return f"{before}\n    body: {in_parts}\n{after}"


def whole(head: RecordingMetadata, interactions: Iterable[Interaction]) -> str:
    """A complete file."""
    parts = Parts()
    entries = [entry(one, parts.lay_out(one.request.body)) for one in interactions]
    return "".join((head_text(head), *(entries or [NOTHING]), END))


def document(tree: Mapping[str, Any]) -> str:
    """A file that was read as YAML and changed, formatted as all are."""
    parts = Parts()
    pieces: list[str] = []
    for key, value in tree.items():
        if key == "interactions" and value:
            rows = (_entry(row, parts.lay_out(row["request"].get("body"))) for row in value)
            pieces += (f"{key}:\n", *rows)
        else:
            pieces.append(_dump({key: value}))
    return "".join(pieces)


def chunks_text(chunks: Iterable[Chunk]) -> str:
    """Sizes and times in one line, such as `120@0.013 64@0.02>5`."""
    return " ".join(
        f"{chunk.size}@{round(chunk.seconds, 6)!r}{f'>{chunk.after}' if chunk.after else ''}"
        for chunk in chunks
    )


def _group_by_name(headers: Headers) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, value in headers:
        grouped.setdefault(name, []).append(value)
    return grouped


class _InParts:
    """Stands for a body in parts while the rest is formatted."""


def _body(body: bytes) -> str | bytes:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body


def _dump(value: object) -> str:
    text = yaml.dump(value, Dumper=_dumper(), allow_unicode=True, sort_keys=False, width=_WIDTH)
    assert isinstance(text, str)
    # The emitter ends the document after a text that ends with empty lines; here it continues.
    return text[: -len(END)] if text.endswith(f"\n{END}") else text


@cache
def _plain() -> re.Pattern[str]:
    """Created on first use: that takes milliseconds."""
    return re.compile(_PLAIN)


@cache
def _dumper() -> Any:
    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper: Any = type("CassetteDumper", (base,), {"ignore_aliases": lambda *_: True})
    dumper.add_representer(str, _text)
    dumper.add_representer(_InParts, lambda self, _: self.represent_scalar(_TAG, "", '"'))
    return dumper


def _text(dumper: Any, text: str) -> Any:
    style = None
    text = safe_utf8(text)
    plain = _PLAIN_ASCII if text.isascii() else _plain()
    if not plain.fullmatch(text):
        style = '"'
    elif "\n" in text or len(text) > _LONG:
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
