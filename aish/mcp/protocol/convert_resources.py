"""Resources and prompts of servers as typed values: the place where `Any` is checked.

Lenient in lists, where a malformed row is left out. Strict in contents: what cannot be passed to a
model as intended is a `ValueError` that says why. No I/O.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from aish.core.frozen import slotted
from aish.core.tools import (
    PDF,
    Media,
    Part,
    PromptArgument,
    PromptMessage,
    Resource,
    ServerPromptInfo,
)
from aish.mcp.protocol.convert import MAX_DESCRIPTION, MAX_NAME, Warn, link_line

MAX_URI = 8192
MAX_ARGUMENTS = 100
MAX_PARTS = 100
MAX_MESSAGES = 100
MAX_TEXT = 1024 * 1024
"""Bytes of text in one resource, or in one prompt."""
MAX_MEDIA = 16 * 1024 * 1024
MEDIA = ("image/", "audio/", PDF)
TEXTUAL = frozenset(
    f"application/{kind}"
    for kind in ("json", "xml", "yaml", "x-yaml", "toml", "javascript", "sql", "x-sh", "graphql")
)
SUFFIXES = ("+json", "+xml", "+yaml")


def read_resources(
    page: Any, server: str, warn: Warn, *, template: bool = False
) -> Iterator[Resource]:
    """The rows of one page of `resources/list`, or of `resources/templates/list`."""
    listed, where = ("resourceTemplates", "uriTemplate") if template else ("resources", "uri")
    for row in _rows(page, listed, warn):
        uri = row.get(where)
        if not isinstance(uri, str) or not uri or len(uri) > MAX_URI:
            warn("malformed_resource", f"a resource is left out: its `{where}` is not legal")
            continue
        name = _text(row, "title") or _text(row, "name") or uri
        mime = _text(row, "mimeType")
        yield Resource(server, uri, name, _text(row, "description"), mime, template)


def read_prompts(page: Any, server: str, warn: Warn) -> Iterator[ServerPromptInfo]:
    for row in _rows(page, "prompts", warn):
        name = _text(row, "name")
        if not name or len(name) > MAX_NAME:
            warn("malformed_prompt", "a prompt is left out: its name is not legal")
            continue
        arguments = row.get("arguments")
        rows = arguments[:MAX_ARGUMENTS] if isinstance(arguments, list) else []
        known = tuple(
            PromptArgument(
                _text(one, "name"), _text(one, "description"), one.get("required") is True
            )
            for one in rows
            if isinstance(one, dict) and _text(one, "name")
        )
        about = _text(row, "description") or _text(row, "title")
        yield ServerPromptInfo(server, name, about, known)


def read_contents(result: Any, uri: str) -> tuple[Part, ...]:
    """The parts of a resource that was read.

    Raises:
        ValueError: they cannot be used; the message says why.
    """
    contents = result.get("contents")
    if not isinstance(contents, list):
        raise ValueError("the answer has no list of contents")  # ruff: ignore[type-check-without-type-error] - all malformed input is one kind of error
    _check_count(len(contents), MAX_PARTS, "parts")
    size = Size()
    return tuple(_part(block, uri, size) for block in contents)


def read_messages(result: Any) -> tuple[PromptMessage, ...]:
    """The messages of a prompt.

    Raises:
        ValueError: they cannot be used; the message says why.
    """
    messages = result.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("the answer has no messages")
    _check_count(len(messages), MAX_MESSAGES, "messages")
    size = Size()
    return tuple(_message(message, size) for message in messages)


@slotted
class Size:
    """The size of one answer."""

    text: int = 0
    media: int = 0

    def add_text(self, text: str) -> str:
        self.text += len(text.encode("utf-8", "surrogatepass"))
        if self.text > MAX_TEXT:
            raise ValueError(f"there is more than {MAX_TEXT // 1024} KiB of text in it")
        return text

    def add_media(self, data: bytes) -> bytes:
        self.media += len(data)
        if self.media > MAX_MEDIA:
            raise ValueError(f"there is more than {MAX_MEDIA // 1024 // 1024} MiB of media in it")
        return data


def _rows(page: Any, key: str, warn: Warn) -> Iterator[dict[str, Any]]:
    listed = page.get(key)
    if not isinstance(listed, list):
        if listed not in ({}, None):
            warn("malformed_list", f"its list of `{key}` is not a list")
        return
    for row in listed:
        if isinstance(row, dict):
            yield row
        else:
            warn("malformed_list", f"a row of `{key}` is left out: it is not an object")


def _message(value: Any, size: Size) -> PromptMessage:
    role = value.get("role") if isinstance(value, dict) else None
    if role not in {"user", "assistant"}:
        raise ValueError("a message is neither of the user nor of the assistant")
    content = value.get("content")
    lines: list[str] = []
    media: list[Media] = []
    for block in content if isinstance(content, list) else [content]:
        part = _block(block, size)
        if isinstance(part, Media):
            media.append(part)
        else:
            lines.append(part)
    return PromptMessage(role, "\n".join(lines), tuple(media))


def _block(block: Any, size: Size) -> str | Media:
    if isinstance(block, str):
        return size.add_text(block)
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text" if isinstance(block.get("text"), str):
            return size.add_text(block["text"])
        case "image" | "audio":
            mime = _text(block, "mimeType")
            return _media(mime, _decode_base64(block.get("data")), f"its {kind}", size)
        case "resource":
            part = _part(block.get("resource"), "a resource in it", size)
            return part.text if part.text is not None else part.media or ""
        case "resource_link":
            return size.add_text(link_line(block))
    raise ValueError(f"a message of it has content of unknown type {kind}")


def _part(value: Any, asked: str, size: Size) -> Part:
    if not isinstance(value, dict):
        raise ValueError("a part of it is not an object")  # ruff: ignore[type-check-without-type-error] - as above
    uri, mime = _text(value, "uri") or asked, _text(value, "mimeType")
    text = value.get("text")
    if isinstance(text, str):
        return Part(uri, mime, text=size.add_text(text))
    data = _decode_base64(value.get("blob"))
    if _is_text(mime):
        try:
            content = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(_unfit(f"`{uri}`", mime)) from error
        if mime or "\0" not in content:
            return Part(uri, mime, text=size.add_text(content))
    return Part(uri, mime, media=_media(mime, data, f"`{uri}`", size))


def _media(mime: str, data: bytes, what: str, size: Size) -> Media:
    if not mime.lower().startswith(MEDIA):
        raise ValueError(_unfit(what, mime))
    return Media(mime, size.add_media(data))


def _unfit(what: str, mime: str) -> str:
    kind = f" ({mime})" if mime else ""
    return f"{what} is binary{kind}: only text, images, audio and PDFs can be sent to a model"


def _is_text(mime: str) -> bool:
    """Return true if bytes of this type are text; without a type, they may be."""
    kind = mime.partition(";")[0].strip().lower()
    return not kind or kind.startswith("text/") or kind in TEXTUAL or kind.endswith(SUFFIXES)


def _decode_base64(blob: Any) -> bytes:
    try:
        return base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise ValueError("a part of it is neither text nor base64") from error


def _check_count(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise ValueError(f"it has more than {limit} {what}")


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    return value[:MAX_DESCRIPTION] if isinstance(value, str) else ""
