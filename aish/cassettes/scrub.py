"""Removes given values from an existing recording.

Everything else is preserved, in files of plain vcrpy too: their own keys, their order, the type of
each value.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from aish.cassettes.format.edits import text_of
from aish.cassettes.format.file import parse
from aish.cassettes.format.file_reader import BODIES, TEXTS, TUPLE, content_of_body
from aish.cassettes.format.interaction import CassetteFileError, Headers, Interaction
from aish.cassettes.format.layout import END, chunks_text, document
from aish.cassettes.record.redact import redact
from aish.core.frozen import frozen
from aish.system.secrets.secrets import Secrets

_TAG = "<secret:"


@frozen
class ScrubbedPlace:
    """The place of a removal, and the number of values removed there."""

    where: str
    count: int


@frozen
class Scrubbed:
    """A file's new content, the places that changed, and those that could not be searched."""

    data: bytes
    places: tuple[ScrubbedPlace, ...]
    packed: tuple[str, ...] = ()


def scrub_content(data: bytes, name: str, secrets: Secrets) -> Scrubbed:
    """The content of a file called `name` without the secrets and without sensitive headers.

    Raises:
        CassetteFileError: it is not a readable cassette.
    """
    if data.lstrip().startswith(b"{"):
        raise CassetteFileError("only a recording in YAML can be rewritten", where=name)
    cassette = parse(data, name, unfinished=True)
    tree = _load(data, name)
    places: list[ScrubbedPlace] = []
    for number, old in enumerate(cassette.interactions, 1):
        new = redact(old, secrets)
        row = tree["interactions"][number - 1]
        differences = [*_differences(old, new)]
        _put(row, old, new)
        rest, count = _mask_texts(row, secrets)
        tree["interactions"][number - 1] = rest
        differences += [("other keys", count)] if count else []
        places += (
            ScrubbedPlace(f"interaction {number}, {where}", count) for where, count in differences
        )
    for key in [key for key in tree if key != "interactions"]:
        tree[key], count = _mask_texts(tree[key], secrets)
        places += [ScrubbedPlace(f"`{key}`", count)] if count else []
    packed = tuple(_compressed_bodies(cassette.interactions))
    if not places:
        return Scrubbed(data, (), packed)
    ended = END if cassette.head is not None and cassette.head.complete else ""
    written = (document(tree) + ended).encode()
    _prove(written, name, secrets)
    return Scrubbed(written, tuple(places), packed)


def _load(data: bytes, name: str) -> Any:
    """The file as parsed YAML, with every key and type preserved; it was validated before.

    Raises:
        CassetteFileError: PyYAML refuses it, as it does two anchors of one name.
    """
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("ScrubLoader", (base,), {})
    for tag in TEXTS:
        loader.add_constructor(tag, loader.construct_scalar)
    loader.add_constructor(TUPLE, loader.construct_sequence)
    for tag in BODIES:
        loader.add_constructor(tag, _content)
    try:
        return yaml.load(data, Loader=loader)  # ruff: ignore[unsafe-yaml-load] - a safe loader that knows the tags of bodies
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = name if mark is None else f"{name}:{mark.line + 1}"
        message = "it cannot be rewritten: strict readers of YAML refuse it"
        hint = "if a merge kept two anchors of one name, record it again"
        raise CassetteFileError(message, where=where, hint=hint) from error


def _content(loader: Any, node: Any) -> str | bytes:
    return _body(content_of_body(loader.construct_mapping(node, deep=True)) or b"")


def _compressed_bodies(interactions: Iterable[Interaction]) -> Iterator[str]:
    """Compressed bodies, which cannot be searched."""
    for number, interaction in enumerate(interactions, 1):
        for side, held in (("request", interaction.request), ("response", interaction.response)):
            named = {name.lower() for name, _ in held.headers}
            if "content-encoding" in named and isinstance(_body(held.body), bytes):
                yield f"interaction {number}, {side} body"


def _differences(old: Interaction, new: Interaction) -> Iterator[tuple[str, int]]:
    """The changes made by `redact`, with counts."""
    asked, clean = old.request, new.request
    answer, new_answer = old.response, new.response
    yield from _text("request uri", asked.uri, clean.uri)
    yield from _headers("request", asked.headers, clean.headers)
    yield from _text("request body", text_of(asked.body), text_of(clean.body))
    yield from _text("response reason", answer.reason, new_answer.reason)
    yield from _headers("response", answer.headers, new_answer.headers)
    yield from _text("response body", text_of(answer.body), text_of(new_answer.body))
    yield from _text("response error", answer.broken or "", new_answer.broken or "")


def _headers(side: str, old: Headers, new: Headers) -> Iterator[tuple[str, int]]:
    for (name, before), (_, after) in zip(old, new, strict=True):
        if name.lower() != "content-length":
            yield from _text(f"{side} header `{name}`", before, after)


def _text(where: str, old: str, new: str) -> Iterator[tuple[str, int]]:
    if old != new:
        yield where, max(1, new.count(_TAG) - old.count(_TAG))


def _put(row: Any, old: Interaction, new: Interaction) -> None:
    """Apply the changes of `redact`; the rest of the row is preserved."""
    asked, answer = row["request"], row["response"]
    if new.request.uri != old.request.uri:
        asked["uri"] = new.request.uri
    if new.request.body != old.request.body:
        asked["body"] = _body(new.request.body)
    _put_headers(asked.get("headers"), old.request.headers, new.request.headers)
    _put_headers(answer.get("headers"), old.response.headers, new.response.headers)
    if new.response.reason != old.response.reason:
        answer["status"]["message"] = new.response.reason
    if new.response.broken != old.response.broken:
        answer["broken"] = new.response.broken
    if new.response.body != old.response.body:
        key = "body" if "body" in answer else "content"
        if isinstance(answer[key], dict):
            answer[key]["string"] = _body(new.response.body)
        else:
            answer[key] = _body(new.response.body)
    if new.response.chunks != old.response.chunks:
        answer["chunks"] = chunks_text(new.response.chunks)


def _put_headers(headers: Any, old: Headers, new: Headers) -> None:
    """Change the values of headers in place: those of one name are adjacent."""
    pairs = zip(old, new, strict=True)
    for name, held in (headers or {}).items():
        if isinstance(held, list):
            headers[name] = [_choose_value(header, *next(pairs)) for header in held]
        else:
            headers[name] = _choose_value(held, *next(pairs))


def _choose_value(held: Any, before: tuple[str, str], after: tuple[str, str]) -> Any:
    return held if before == after else after[1]


def _body(body: bytes) -> str | bytes:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def _mask_texts(value: Any, secrets: Secrets) -> tuple[Any, int]:
    """The value with every text in it masked, and how many texts changed."""
    if isinstance(value, str):
        clean = secrets.mask(value)
        return clean, int(clean != value)
    if isinstance(value, dict):
        pairs = [(key, *_mask_texts(below, secrets)) for key, below in value.items()]
        return {key: copy for key, copy, _ in pairs}, sum(count for *_, count in pairs)
    if isinstance(value, list):
        rows = [_mask_texts(below, secrets) for below in value]
        return [copy for copy, _ in rows], sum(count for _, count in rows)
    return value, 0


def _prove(written: bytes, name: str, secrets: Secrets) -> None:
    """Check that the result is still a cassette, and contains nothing left to remove."""
    again = parse(written, name, unfinished=True)
    dirty = [one for one in again.interactions if redact(one, secrets) != one]
    assert not dirty, "a second look found what the first one should have taken out"
