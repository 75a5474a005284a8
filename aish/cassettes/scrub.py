"""Removes given values from an existing recording (C8).

Everything else is preserved, in files of plain vcrpy too: their own keys, their order, the type of
each value.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from aish.cassettes.format.edits import text_of
from aish.cassettes.format.file import parse
from aish.cassettes.format.interaction import Headers, Interaction
from aish.cassettes.format.layout import END, chunks_text, document
from aish.cassettes.record.redact import redact
from aish.core.frozen import frozen
from aish.system.secrets.secrets import Secrets

_TAG = "<secret:"


@frozen
class Place:
    """The place of a removal, and the number of values removed there."""

    where: str
    count: int


@frozen
class Scrubbed:
    """A file's new content, the places that changed, and those that could not be searched."""

    data: bytes
    places: tuple[Place, ...]
    packed: tuple[str, ...] = ()


def scrubbed(data: bytes, name: str, secrets: Secrets) -> Scrubbed:
    """The content of a file called `name` without the secrets and without sensitive headers.

    Raises:
        CassetteFileError: it is not a readable cassette.
    """
    cassette = parse(data, name, unfinished=True)
    tree = _loaded(data)
    places: list[Place] = []
    for number, old in enumerate(cassette.interactions, 1):
        new = redact(old, secrets)
        row = tree["interactions"][number - 1]
        found = [*_differences(old, new)]
        _put(row, old, new)
        rest, count = _masked(row, secrets)
        tree["interactions"][number - 1] = rest
        found += [("other keys", count)] if count else []
        places += (Place(f"interaction {number}, {where}", count) for where, count in found)
    for key in [key for key in tree if key != "interactions"]:
        tree[key], count = _masked(tree[key], secrets)
        places += [Place(f"`{key}`", count)] if count else []
    packed = tuple(_packed(cassette.interactions))
    if not places:
        return Scrubbed(data, (), packed)
    ended = END if cassette.head is not None and cassette.head.complete else ""
    written = (document(tree) + ended).encode()
    _prove(written, name, secrets)
    return Scrubbed(written, tuple(places), packed)


def _loaded(data: bytes) -> Any:
    """The file as parsed YAML, with every key and type preserved; it was validated before."""
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("ScrubLoader", (base,), {})
    # Written by Python 2.
    loader.add_constructor("tag:yaml.org,2002:python/unicode", loader.construct_scalar)
    return yaml.load(data, Loader=loader)  # ruff: ignore[unsafe-yaml-load] - a safe loader that knows one more name for text


def _packed(interactions: Iterable[Interaction]) -> Iterator[str]:
    """Compressed bodies, which cannot be searched."""
    for number, one in enumerate(interactions, 1):
        for side, held in (("request", one.request), ("response", one.response)):
            named = {name.lower() for name, _ in held.headers}
            if "content-encoding" in named and isinstance(_body(held.body), bytes):
                yield f"interaction {number}, {side} body"


def _differences(old: Interaction, new: Interaction) -> Iterator[tuple[str, int]]:
    """The changes made by `redact`, with counts."""
    asked, clean = old.request, new.request
    answer, made = old.response, new.response
    yield from _text("request uri", asked.uri, clean.uri)
    yield from _headers("request", asked.headers, clean.headers)
    yield from _text("request body", text_of(asked.body), text_of(clean.body))
    yield from _text("response reason", answer.reason, made.reason)
    yield from _headers("response", answer.headers, made.headers)
    yield from _text("response body", text_of(answer.body), text_of(made.body))
    yield from _text("response error", answer.broken or "", made.broken or "")


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
        if isinstance(answer["body"], dict):
            answer["body"]["string"] = _body(new.response.body)
        else:
            answer["body"] = _body(new.response.body)
    if new.response.chunks != old.response.chunks:
        answer["chunks"] = chunks_text(new.response.chunks)


def _put_headers(headers: Any, old: Headers, new: Headers) -> None:
    """Change the values of headers in place: those of one name are adjacent."""
    pairs = zip(old, new, strict=True)
    for name, held in (headers or {}).items():
        if isinstance(held, list):
            headers[name] = [_changed(one, *next(pairs)) for one in held]
        else:
            headers[name] = _changed(held, *next(pairs))


def _changed(held: Any, before: tuple[str, str], after: tuple[str, str]) -> Any:
    return held if before == after else after[1]


def _body(body: bytes) -> str | bytes:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def _masked(value: Any, secrets: Secrets) -> tuple[Any, int]:
    """The value with every text in it masked, and how many texts changed."""
    if isinstance(value, str):
        clean = secrets.mask(value)
        return clean, int(clean != value)
    if isinstance(value, dict):
        pairs = [(key, *_masked(below, secrets)) for key, below in value.items()]
        return {key: made for key, made, _ in pairs}, sum(count for *_, count in pairs)
    if isinstance(value, list):
        rows = [_masked(below, secrets) for below in value]
        return [made for made, _ in rows], sum(count for _, count in rows)
    return value, 0


def _prove(written: bytes, name: str, secrets: Secrets) -> None:
    """Check that the result is still a cassette, and contains nothing left to remove."""
    again = parse(written, name, unfinished=True)
    dirty = [one for one in again.interactions if redact(one, secrets) != one]
    assert not dirty, "a second look found what the first one should have taken out"
