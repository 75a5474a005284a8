"""The pack `web`: `web_search` and `web_fetch`.

Requests go to public addresses and to those that the options name. Pages are parsed in the process
that may be killed, and what they say is enclosed in marks.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.patterns import lazy_pattern
from aish.core.phrases import shorten
from aish.core.text import for_line, safe_utf8
from aish.core.text_diff import equal_start
from aish.packs.framework.pack import READS_WORLD, Older, Pack, PackContext, tool
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer, enclose, fits, room
from aish.packs.web.web_options import SearchBackend, WebOptions

# httpx is imported when a tool is called: listing tools, and a replay, do without.
if TYPE_CHECKING:
    import ssl

    from aish.net.address_guard import Destination, Resolve
    from aish.net.guarded_client import Fetched, GuardedClient
    from aish.packs.parse_worker import ParseWorker
    from aish.packs.web.search_backends import WebSearch

_FETCHES = replace(READS_WORLD, sends=True)
"""The address that it reads can carry anything to anybody."""
_FIRST_ERROR = 300
_MOST_RESULTS = 20
_LONGEST_QUERY = 500
_SNIFFED = 1024
_LONGEST_SECRET = 8_192
_SHOWN = 200
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TYPES = lazy_pattern(r"text/[^/]+|application/(?:[^/]+\+)?(?:json|xml)|application/x-ndjson")
_XML = lazy_pattern(r".*[/+]xml")
_HTML_BEGINS = (b"<!doctype html", b"<html", b"<head", b"<body", b"<!--")
_ACCEPT = (
    "text/html, application/xhtml+xml, application/xml;q=0.9, application/json;q=0.9, */*;q=0.5"
)


@frozen
class Web:
    pages: "GuardedClient"
    search: "WebSearch"
    worker: "ParseWorker"
    mask: Callable[[str], str]
    seconds: float


@asynccontextmanager
async def open_web(
    options: WebOptions,
    worker: "ParseWorker",
    *,
    keys: Mapping[str, str],
    mask: Callable[[str], str] = str,
    resolve: "Resolve | None" = None,
    tls: "ssl.SSLContext | None" = None,
    addresses: Mapping[str, str] | None = None,
    seconds: float = 15.0,
) -> AsyncGenerator[Web]:
    """The pack's state; nothing is connected to before a tool is called.

    `keys` are by the variable that an option names. `resolve`, `tls` and `addresses` replace the
    look-up, the certificates and the addresses of public search services.
    """
    from aish.net.address_guard import system_addresses
    from aish.net.guarded_client import GuardedClient, destination_of, destination_of_url
    from aish.packs.web.search_backends import ADDRESSES, WebSearch

    allow = [_destination("allow", text, destination_of) for text in options.allow]
    named = [
        _destination("search", backend.url, destination_of_url)
        for backend in options.search
        if backend.kind == "searxng"
    ]
    look_up = resolve or system_addresses
    try:
        pages = GuardedClient(allow=allow, hosts=options.hosts, resolve=look_up, tls=tls)
    except ValueError as error:
        raise UsageError(f"`hosts` of the pack `web`: {error}") from None
    # What is configured is permitted by that; a service that nobody has named is not.
    hosts = () if options.search else options.hosts
    searches = GuardedClient(allow=[*allow, *named], hosts=hosts, resolve=look_up, tls=tls)
    backends = options.search or (SearchBackend("duckduckgo"),)
    search = WebSearch(searches, worker, backends, keys, mask, addresses or ADDRESSES, seconds)
    try:
        yield Web(pages, search, worker, mask, seconds)
    finally:
        await pages.aclose()
        await searches.aclose()


def _destination(option: str, text: str, read: "Callable[[str], Destination]") -> "Destination":
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"`{option}` of the pack `web`: `{text}`: {error}") from None


@asynccontextmanager
async def _lifespan(context: PackContext) -> AsyncGenerator[Web]:
    services = context.services
    async with open_web(
        context.options, services.worker, keys=services.secrets, mask=services.mask
    ) as web:
        yield web


@tool(
    READS_WORLD,
    codes=("unavailable", "timeout", "http_status"),
    result={"results": "array", "backend": "string"},
    rows={"results": {"title": "string", "url": "string", "snippet": "string"}},
)
async def web_search(
    web: Web,
    query: str,
    count: int = 5,
    backend: Literal["auto", "duckduckgo", "searxng", "brave"] = "auto",
) -> Answer:
    """Searches the web.

    Args:
        query: What to search for, in words.
        count: Most results to return, 1 to 20.
        backend: Which search service to use; `auto` is the first configured one that answers.
    """
    if not query.strip() or len(query) > _LONGEST_QUERY:
        raise PackError("bad_arguments", f"`query` needs 1 to {_LONGEST_QUERY} characters")
    if not 1 <= count <= _MOST_RESULTS:
        raise PackError("bad_arguments", f"`count` needs to be 1 to {_MOST_RESULTS}")
    used, found = await web.search.results(safe_utf8(query).strip(), count, backend)
    lines = [
        f"{number}. {one.title}\n   {one.url}" + (f"\n   {one.snippet}" if one.snippet else "")
        for number, one in enumerate(found, 1)
    ]
    rows: list[JsonValue] = [
        {"title": result.title, "url": result.url, "snippet": result.snippet} for result in found
    ]
    while lines and not fits(enclose(used.kind, "\n".join(lines))):
        del lines[-1], rows[-1]
    text = "\n".join(lines) or "no results"
    return Answer(text, {"results": rows, "backend": used.kind}, source=used.kind)


@tool(
    _FETCHES,
    codes=(
        *("blocked", "unavailable", "timeout", "http_status", "unsupported", "too_large"),
        "too_slow",
    ),
    result={
        "url": "string",
        "final_url": "string",
        "status": "integer",
        "content_type": "string",
        "title": "string",
        "content": "string",
        "total_chars": "integer",
        "truncated": "boolean",
        "degraded": "string",
    },
    older={"fetch_url": Older()},
)
async def web_fetch(
    web: Web,
    url: str,
    format: Literal["markdown", "text", "html"] = "markdown",  # ruff: ignore[builtin-argument-shadowing] - the parameter's name in calls
    start: int = 0,
    max_chars: int = 20000,
) -> Answer:
    """Fetches a page as Markdown or text.

    Args:
        url: The address, which begins with `https://` or `http://`.
        format: `markdown` keeps links and structure, `html` is the page as it was sent.
        start: Which character of the page to begin with, to read on where it was cut.
        max_chars: Most characters to return.
    """
    from aish.net.guarded_client import GuardedRequestError

    if start < 0 or max_chars < 1:
        raise PackError("bad_arguments", "`start` is 0 or more, `max_chars` 1 or more")
    accept = f"text/markdown, {_ACCEPT}" if format == "markdown" else _ACCEPT
    try:
        response = await web.pages.get(
            url, headers={"accept": accept}, seconds=web.seconds, is_wanted=_is_text
        )
    except GuardedRequestError as error:
        raise PackError(error.code, web.mask(error.message)) from error
    final = shorten(for_line(response.url), 2 * _SHOWN)
    if response.status >= _FIRST_ERROR:
        message = f"`{final}` answers {response.status} {response.reason}".rstrip()
        raise PackError("http_status", message, status=response.status, final_url=response.url)
    page = await _page(web, response, format)
    whole = page["content"].replace("\r\n", "\n").replace("\r", "\n")
    title = for_line(web.mask(page["title"]))
    data: dict[str, JsonValue] = {
        "url": for_line(url),
        "final_url": for_line(response.url),
        "status": response.status,
        "content_type": shorten(for_line(response.headers.get("content-type", "")), _SHOWN),
        "title": title,
        "total_chars": len(whole),
    }
    if page["degraded"]:
        data["degraded"] = page["degraded"]
    lead = f"{title}\n\n" if title and not start else ""

    def answer(size: int) -> Answer:
        end = min(start + size, len(whole))
        piece = _mask_piece(whole, start, end, web.mask)
        notes = [f"[degraded: {page['degraded']}]"] if page["degraded"] else []
        if end < len(whole):
            more = f"continue with start={end}" if end > start else "there is no room for it"
            notes.append(f"[truncated: true; {more}; {len(whole):,} characters in all]")
        elif end <= start:
            notes.append(_why_empty(start, len(whole)))
        return Answer(
            lead + piece,
            {**data, "content": enclose(final, piece), "truncated": end < len(whole)},
            source=final,
            trailer="\n".join(notes),
        )

    def is_too_long(size: int) -> bool:
        candidate = answer(size)
        return not fits(f"{enclose(candidate.source, candidate.text)}\n{candidate.trailer}")

    most = min(max_chars, room(), max(len(whole) - start, 0))
    if is_too_long(most):
        # Escapes and characters of several bytes count: there is no other way to know.
        most = max(bisect_left(range(most), True, key=is_too_long) - 1, 0)
    return answer(most)


def _mask_piece(whole: str, start: int, end: int, mask: Callable[[str], str]) -> str:
    """A piece of a text without secrets, also without parts of those that it cuts.

    Only the surroundings are searched: a page may have ten million characters.
    """
    before = whole[max(start - _LONGEST_SECRET, 0) : start]
    after = whole[end : end + _LONGEST_SECRET]
    piece = whole[start:end]
    around = f"{before}{piece}{after}"
    masked = mask(around)
    if masked == around:
        return piece
    rest = masked[equal_start(masked, mask(before)) :]
    return rest[: len(rest) - equal_start(rest[::-1], mask(after)[::-1])]


def _why_empty(start: int, total: int) -> str:
    if total:
        return f"[`start` {start:,} is behind the end: {total:,} characters in all]"
    return "[the page has no text; a page that scripts write needs a browser]"


def _is_text(content_type: str) -> bool:
    """Return true if bodies of a type are read; without one, bytes decide."""
    kind = _media_type(content_type)
    return not kind or _TYPES.fullmatch(kind) is not None


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


async def _page(web: Web, found: "Fetched", format: str) -> Mapping[str, str]:  # ruff: ignore[builtin-argument-shadowing] - as of the tool
    """Title and content of a page, and why it is not what was asked for.

    Raises:
        PackError: it is no text, or cannot be parsed.
    """
    from aish.packs.web.charset import decode_body
    from aish.packs.web.html_page import title_of

    content_type = found.headers.get("content-type", "")
    kind = _media_type(content_type)
    if not kind and b"\0" in found.body[:_SNIFFED]:
        raise PackError("unsupported", "the answer has no content type and is not text")
    start = found.body[:_SNIFFED].lstrip().lower()
    is_html = kind in _HTML or (not kind and start.startswith(_HTML_BEGINS))
    is_markup = is_html or _XML.fullmatch(kind) is not None
    text = decode_body(found.body, content_type, is_markup=is_markup)
    if not is_html:
        return {"title": "", "content": text, "degraded": ""}
    if format == "html":
        return {"title": title_of(text), "content": text, "degraded": ""}
    source = text.encode()
    try:
        if format == "text":
            page: Mapping[str, str] = await web.worker.run("aish.packs.web.html_page:text", source)
        else:
            page = await web.worker.run("aish.packs.web.html_page:markdown", source, url=found.url)
    except PackError as error:
        message = f"{error.message}; `format: html` gives the page as it was sent"
        raise PackError(error.code, message, **error.details) from error
    return page


PACK = Pack(tools=(web_search, web_fetch), root="none", lifespan=_lifespan, options=WebOptions)
