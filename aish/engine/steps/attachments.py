"""Attachments before a prompt's own text: files of the project, and server resources."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aish.agent.result_limit import describe
from aish.config.model import Attachment
from aish.core.errors import StepFailedError, UsageError
from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.core.sources import NO_SOURCES, Sources
from aish.core.text import for_line, safe_utf8
from aish.core.tools import PDF, PDF_SIGNATURE, Media, MediaKinds, Part, media_kind
from aish.engine.plan.uris import is_uri, matches
from aish.templates.project_file import ProjectFileError, project_file

if TYPE_CHECKING:
    from aish.mcp.client.registry import Registry

_LARGEST = 20 * 1024 * 1024
_LONGEST_NAME = 500
_LONGEST_MIME = 80
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (PDF_SIGNATURE, PDF),
)
# Formats that models know by name; anything else is plain text.
_KINDS = {
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".md": "text/markdown",
    ".xml": "application/xml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}


@frozen
class AttachedText:
    """The start of a user turn: text, and the images and PDFs that it names."""

    text: str
    media: tuple[Media, ...] = ()
    sources: Sources = NO_SOURCES


async def with_server(wanted: Attachment, servers: "Registry | None") -> Attachment:
    """The attachment with the server that has it, if it is no file.

    Raises:
        StepFailedError: which server has it is not clear.
    """
    if wanted.server is not None or servers is None or not is_uri(wanted.ref):
        return wanted
    return replace(wanted, server=await _server_of(wanted.ref, servers))


async def attachment(
    wanted: Attachment,
    servers: "Registry | None",
    folder: Path,
    limit: int,
    *,
    media_kinds: MediaKinds,
) -> AttachedText:
    """A file of `folder`, or a resource, as shown to a model; `wanted.ref` is not a template here.

    Raises:
        StepFailedError: it is missing, cannot be shown, or has more than `limit` bytes of text;
            or which server has it is not clear.
        UnavailableError: its server is unreachable.
    """
    if wanted.server is None and not is_uri(wanted.ref):
        parts: tuple[Part, ...] = (_file(folder, wanted.ref),)
    else:
        parts = await _resource(wanted, servers)
    refuse_long(f"`{wanted.ref}`", (part.text for part in parts if part.text is not None), limit)
    return _format_parts(wanted, parts, media_kinds=media_kinds)


def join_attachments(pieces: Iterable[AttachedText], text: str) -> AttachedText:
    """A user turn: the attachments, then its own text."""
    pieces = tuple(pieces)
    return AttachedText(
        "\n\n".join(part for part in (*(piece.text for piece in pieces), text) if part),
        tuple(media for piece in pieces for media in piece.media),
    )


def refuse_long(what: str, texts: Iterable[str], limit: int) -> None:
    """Refuse long content: what a file or user requests is never truncated silently.

    Raises:
        StepFailedError: the texts have more than `limit` bytes.
    """
    size = sum(len(safe_utf8(text).encode()) for text in texts)
    if size > limit:
        message = f"{what} has {size:,} bytes of text, and `result_limit` is {limit:,}"
        hint = f"shorten it, or write `result_limit: {-(-size // 1024)}KiB`"
        raise StepFailedError(message, hint=hint)


def file_data(folder: Path, name: str) -> bytes:
    """The content of an attached file.

    Raises:
        StepFailedError: it cannot be read, or is outside of `folder`.
    """
    try:
        return project_file(folder, name, _LARGEST)
    except ProjectFileError as error:
        hint = "attachments are files of the pipeline's own folder, or URIs of resources"
        raise StepFailedError(f"the attachment `{name}` {error}", hint=hint) from error


def _file(folder: Path, name: str) -> Part:
    data = file_data(folder, name)
    kind = _media_type(data)
    if kind is not None:
        return Part(name, kind, media=Media(kind, data))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = "attachments are text, PDFs, or images as PNG, JPEG, GIF or WebP"
        message = f"the attachment `{name}` is neither UTF-8 text nor an image or PDF"
        raise StepFailedError(message, hint=hint) from error
    return Part(name, mime_of(name), text=text)


def mime_of(name: str) -> str:
    """The type of a text file, as models know it by name."""
    return _KINDS.get(Path(name).suffix.lower(), "text/plain")


def _media_type(data: bytes) -> str | None:
    """The type of an image or a PDF, by its first bytes and not by its name."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _SIGNATURES if data.startswith(start)), None)


async def _resource(wanted: Attachment, servers: "Registry | None") -> tuple[Part, ...]:
    if servers is None:
        raise StepFailedError(f"no server is declared to read `{wanted.ref}` from")
    server = wanted.server or await _server_of(wanted.ref, servers)
    try:
        parts = await servers.read_resource(server, wanted.ref)
    except UsageError as error:
        raise StepFailedError(error.message, where=error.where, hint=error.hint) from error
    if not parts:
        raise StepFailedError(f"the server `{server}` has no resource `{wanted.ref}`")
    return parts


async def _server_of(uri: str, servers: "Registry") -> str:
    """The server of a resource: one that lists it, whose template it matches, or the only one."""
    able = await servers.aliases_with("resources")
    if not able:
        raise StepFailedError(f"no server offers resources, so none has `{uri}`")
    if len(able) == 1:
        return able[0]
    listed = await servers.resources()
    exact = [one.server for one in listed if not one.template and one.uri == uri]
    fitting = exact or [one.server for one in listed if one.template and matches(one.uri, uri)]
    aliases = tuple(dict.fromkeys(fitting))
    if len(aliases) == 1:
        return aliases[0]
    if aliases:
        message = f"`{uri}` is a resource of several servers: {backticked(aliases)}"
    else:
        known = backticked(able)
        message = f"`{uri}` is listed by none of the servers that have resources: {known}"
    hint = f'name its server: `{{server: {(aliases or able)[0]}, uri: "{uri}"}}`'
    raise StepFailedError(message, hint=hint)


def _format_parts(
    wanted: Attachment, parts: Iterable[Part], *, media_kinds: MediaKinds
) -> AttachedText:
    """Each part between two lines that name its source.

    The server's name for it is shown completely or not at all: a truncated secret in it would not
    be masked.
    """
    blocks: list[str] = []
    media: list[Media] = []
    for part in parts:
        name = for_line(part.uri if len(part.uri) <= _LONGEST_NAME else wanted.ref)
        kind = for_line(part.mime) if len(part.mime) <= _LONGEST_MIME else ""
        body = safe_utf8(part.text or "")
        if part.media is not None:
            is_attached = media_kind(part.media) in media_kinds
            body = describe(part.media, attached=is_attached)
            media += [part.media] if is_attached else []
        head = f"[attached: {name} ({kind})]" if kind else f"[attached: {name}]"
        blocks.append(f"{head}\n{body.removesuffix(chr(10))}\n[end of {name}]")
    return AttachedText("\n\n".join(blocks), tuple(media))
