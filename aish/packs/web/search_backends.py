"""Search services: one request each, and the parsing of their answers.

An unreadable answer is `unavailable`: an empty list means that the service has found nothing.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

from aish.core.frozen import frozen
from aish.core.json import strict_json
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.net.guarded_client import Fetched, GuardedClient, GuardedRequestError
from aish.packs.pack_error import PackError
from aish.packs.parse_worker import ParseWorker
from aish.packs.web.web_options import SearchBackend

ADDRESSES: Mapping[str, str] = {
    "duckduckgo": "https://html.duckduckgo.com/html/",
    "brave": "https://api.search.brave.com/res/v1/web/search",
}
_LARGEST = 2 * 1024 * 1024
_MOST_ROWS = 200
_FIRST_ERROR = 300
_FORBIDDEN = 403
_LONGEST = {"title": 200, "url": 2_000, "snippet": 500}


@frozen
class SearchResult:
    """A result, safe to be shown: fields of one line."""

    title: str
    url: str
    snippet: str


@frozen
class WebSearch:
    """A search service. `backends` are tried in their order; `keys` are by variable.

    `seconds` are for all of them together.
    """

    client: GuardedClient
    worker: ParseWorker
    backends: Sequence[SearchBackend]
    keys: Mapping[str, str]
    mask: Callable[[str], str]
    addresses: Mapping[str, str]
    seconds: float

    async def results(
        self, query: str, count: int, kind: str
    ) -> tuple[SearchBackend, list[SearchResult]]:
        """Search with the first backend that answers; `auto` is any kind."""
        tried = [backend for backend in self.backends if kind in {"auto", backend.kind}]
        if not tried:
            raise PackError("unavailable", f"the search backend `{kind}` is not configured")
        began = time.monotonic()
        failures: list[PackError] = []
        for left, backend in zip(range(len(tried), 0, -1), tried, strict=True):
            # Half of the time that is left, so that there is some for the next.
            seconds = (self.seconds - (time.monotonic() - began)) / min(left, 2)
            try:
                rows = await _ASK[backend.kind](self, backend, query, count, seconds)
            except PackError as error:
                failures.append(error)
            else:
                return backend, self._clean_rows(rows)[:count]
        if len(failures) == 1:
            raise failures[0]
        reasons = "; ".join(error.message for error in failures)
        raise PackError("unavailable", f"no search backend answers: {reasons}")

    async def ask(
        self, backend: SearchBackend, url: str, headers: Mapping[str, str], seconds: float
    ) -> Fetched:
        """The answer of a service.

        Raises:
            PackError: there is none.
        """
        try:
            found = await self.client.get(url, headers=headers, seconds=seconds, same_origin=True)
        except GuardedRequestError as error:
            code = "timeout" if error.code == "timeout" else "unavailable"
            message = self.mask(f"{backend.kind}: {error.message}")
            raise PackError(code, message) from error
        if found.status >= _FIRST_ERROR:
            hint = ""
            if backend.kind == "searxng" and found.status == _FORBIDDEN:
                hint = " (is `json` one of `search.formats` in its settings?)"
            message = f"{backend.kind} answers {found.status} {found.reason}".rstrip() + hint
            raise PackError("http_status", message, status=found.status)
        if len(found.body) > _LARGEST:
            raise _unreadable(backend)
        return found

    def _clean_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[SearchResult]:
        results: list[SearchResult] = []
        for row in rows[:_MOST_ROWS]:
            words = {
                name: shorten(for_line(self.mask(" ".join(row[name].split()))), most)
                for name, most in _LONGEST.items()
                if isinstance(row.get(name), str)
            }
            if words.get("title") and _is_web(words.get("url", "")):
                results.append(SearchResult(words["title"], words["url"], words.get("snippet", "")))
        return results


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc)


async def _duckduckgo(
    search: WebSearch, backend: SearchBackend, query: str, _count: int, seconds: float
) -> Sequence[Mapping[str, Any]]:
    url = f"{search.addresses['duckduckgo']}?{urlencode({'q': query})}"
    response = await search.ask(backend, url, {"accept": "text/html"}, seconds)
    try:
        page = await search.worker.run(
            "aish.packs.web.html_page:duckduckgo", response.body.decode("utf-8", "replace").encode()
        )
    except PackError as error:
        raise _unreadable(backend) from error
    if not page["is_readable"]:
        raise _unreadable(backend)
    rows: Sequence[Mapping[str, Any]] = page["results"]
    return rows


async def _searxng(
    search: WebSearch, backend: SearchBackend, query: str, _count: int, seconds: float
) -> Sequence[Mapping[str, Any]]:
    url = f"{backend.url.rstrip('/')}/search?{urlencode({'q': query, 'format': 'json'})}"
    response = await search.ask(backend, url, {"accept": "application/json"}, seconds)
    rows = _rows(backend, response, ("results",))
    if rows is None:
        raise _unreadable(backend)
    if not rows and _object(backend, response).get("unresponsive_engines"):
        # All that it asks have failed.
        raise PackError("unavailable", "searxng has no answer from any of its search engines")
    return [{**row, "snippet": row.get("content")} for row in rows]


async def _brave(
    search: WebSearch, backend: SearchBackend, query: str, count: int, seconds: float
) -> Sequence[Mapping[str, Any]]:
    key = search.keys.get(backend.key_env)
    if not key:
        message = f"brave: the environment variable `{backend.key_env}` is not set"
        raise PackError("unavailable", message)
    words = {"q": query, "count": count, "text_decorations": "false", "result_filter": "web"}
    url = f"{search.addresses['brave']}?{urlencode(words)}"
    headers = {"accept": "application/json", "x-subscription-token": key}
    response = await search.ask(backend, url, headers, seconds)
    rows = _rows(backend, response, ("web", "results"))
    if rows is None:
        if _object(backend, response).get("type") != "search":
            raise _unreadable(backend)
        # Without results the key is missing.
        return []
    # Imported here: its table of entities is large, and most runs do not search.
    from html import unescape

    return [
        {
            "title": unescape(str(row.get("title") or "")),
            "url": row.get("url"),
            "snippet": unescape(str(row.get("description") or "")),
        }
        for row in rows
    ]


_Ask = Callable[[WebSearch, SearchBackend, str, int, float], Awaitable[Sequence[Mapping[str, Any]]]]
_ASK: Mapping[str, _Ask] = {"duckduckgo": _duckduckgo, "searxng": _searxng, "brave": _brave}


def _object(backend: SearchBackend, response: Fetched) -> Mapping[str, Any]:
    try:
        value = strict_json(response.body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _unreadable(backend) from error
    if not isinstance(value, dict):
        raise _unreadable(backend)
    return value


def _rows(
    backend: SearchBackend, response: Fetched, path: Sequence[str]
) -> list[Mapping[str, Any]] | None:
    """The objects of the list at that path; `None` if there is no list."""
    value: Any = _object(backend, response)
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, list):
        return None
    return [row for row in value if isinstance(row, dict)]


def _unreadable(backend: SearchBackend) -> PackError:
    message = f"the page that {backend.kind} answers with cannot be read as search results"
    return PackError("unavailable", message)
