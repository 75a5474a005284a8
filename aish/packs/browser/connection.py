"""The connection to one browser, started or attached to, with its one page.

This decides about everything outside of the page: windows that pages open are closed, downloads and
permissions refused. A page that no longer works is replaced.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import anyio
from anyio.abc import TaskGroup

from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.packs.browser import page_functions
from aish.packs.browser.browser_options import BrowserOptions
from aish.packs.browser.cdp import (
    NO_MESSAGE,
    BrowserLostError,
    CdpChannel,
    CdpClient,
    CdpError,
    NoReplyError,
    ReplyTooLargeError,
    connect_websocket,
)
from aish.packs.browser.chromium import Chromium, own_chromium
from aish.packs.browser.page import CRASHED, REPLY_SECONDS, Navigated, Notes, Page, PageConsole
from aish.packs.browser.page_functions import PERMISSIONS
from aish.packs.framework.pack import PackServices
from aish.packs.pack_error import PackError
from aish.system.task_group import task_group

if TYPE_CHECKING:
    from aish.net.guarded_proxy import GuardedProxy, RefusedRequest

_FIRST_ERROR: Final = 400
_DEBUG_SECONDS: Final = 5.0
_SHOWN: Final = 200
_LAST_WORDS_SECONDS: Final = 0.5
_NO_PAGE: Final = "the page was closed; browser_navigate opens a new one"


def parse_page_url(text: str, most: int) -> str:
    """Parse the address of a page: `http:`, `https:` or `about:blank`."""
    url = text.strip()
    if url == "about:blank":
        return url
    if not url or len(url) > most:
        raise PackError("bad_arguments", f"`url` needs 1 to {most:,} characters")
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise PackError("bad_arguments", "the URL is not valid") from error
    if parts.scheme and parts.scheme not in {"http", "https"}:
        scheme = shorten(for_line(parts.scheme), _SHOWN)
        message = f"`{scheme}:` is blocked: only `http:`, `https:` and `about:blank` are permitted"
        raise PackError("blocked", message)
    if not parts.scheme or not host or any(ord(letter) < ord("!") for letter in url):
        message = "the URL does not begin with `https://` or `http://` and a host"
        raise PackError("bad_arguments", message)
    if parts.username is not None or parts.password is not None:
        raise PackError("blocked", "a URL with a user or a password is blocked")
    return url


def parse_debug_url(text: str, options: BrowserOptions) -> str:
    """Parse the address of a browser on this machine, with its host as a number."""
    if not options.attach:
        message = "attaching is blocked: the browser has its user's cookies"
        raise PackError("blocked", f"{message} (the option `attach: true` permits it)")
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise PackError("bad_arguments", "the debugging address is not valid") from error
    if parts.scheme not in {"http", "ws"} or not host or not port:
        message = "a debugging address is `http://127.0.0.1:PORT` or `ws://127.0.0.1:PORT/devtools/browser/ID`"
        raise PackError("bad_arguments", message)
    number = "127.0.0.1" if host == "localhost" else host
    try:
        is_local = ip_address(number).is_loopback
    except ValueError:
        is_local = False
    if not is_local or parts.username is not None:
        raise PackError("blocked", "a browser is attached to on this machine only: `127.0.0.1`")
    if parts.scheme == "ws" and not parts.path.startswith(_BROWSER_PATH):
        raise PackError("bad_arguments", f"the path of the address begins with `{_BROWSER_PATH}`")
    netloc = f"[{number}]:{port}" if ":" in number else f"{number}:{port}"
    return urlunsplit((parts.scheme, netloc, parts.path if parts.scheme == "ws" else "", "", ""))


_BROWSER_PATH: Final = "/devtools/browser/"


class BrowserConnection:
    """A browser, and its page for the tools."""

    def __init__(
        self,
        wire: CdpChannel,
        tasks: TaskGroup,
        services: PackServices,
        place: str | None,
        proxy: "GuardedProxy | None",
    ) -> None:
        self._client = CdpClient(wire, tasks, self._take)
        self._mask = services.mask
        self._over = anyio.Event()
        self._closed = anyio.Event()
        self._page: Page | None = None
        self._proxy = proxy
        self._noted = 0
        self._is_creating = False
        self.place = place
        self.sandboxed: bool | None = None
        self.version = ""
        self.console = PageConsole(services.mask)
        self.notes = Notes(services.mask)

    @property
    def attached(self) -> bool:
        """True if another program started the browser."""
        return self.place is not None

    @property
    def is_alive(self) -> bool:
        return self._client.lost is None

    def current(self) -> Page:
        if self._page is None:
            raise PackError("unavailable", _NO_PAGE)
        return self._page

    async def usable(self) -> Page:
        """Return a page that responds: the current one, or a new one."""
        page = self._page
        if page is not None and await page.responds():
            return page
        if page is not None:
            await page.close()
        return await self._new_page()

    async def navigate(self, url: str, *, waits: bool, seconds: float) -> Navigated:
        """Open an address in a working page.

        Raises:
            PackError: there is no such page, it does not answer in time, or the guard refuses it.
        """
        has_crashed = self._page is not None and self._page.has_crashed
        count = self._count_refusals()
        try:
            went = await self._navigate(url, waits=waits, seconds=seconds)
        except PackError as error:
            refused = self._refusals_after(count)
            if error.code != "unavailable":
                raise
            if refused:
                raise _refusal(refused[-1]) from error
            if not has_crashed or not self.is_alive:
                raise
            # A new page can get a process that ended with the page before: the browser learns of
            # each of them in its own time.
            went = await self._navigate(url, waits=waits, seconds=seconds)
        # To a request over plain HTTP the guard answers itself.
        destination = await self._page_destination()
        for refused_one in self._refusals_after(count):
            if str(refused_one.destination) == destination and (went.status or 0) >= _FIRST_ERROR:
                raise _refusal(refused_one)
        return went

    async def _navigate(self, url: str, *, waits: bool, seconds: float) -> Navigated:
        page = await self.usable()
        return await page.navigate(url, waits=waits, seconds=seconds)

    def take_notes(self) -> list[str]:
        """Return and clear the notes about refused or closed things, also those of the guard."""
        refused = self._refusals_after(self._noted)
        self._noted = self._count_refusals()
        for message in dict.fromkeys(one.message for one in refused if one.code == "blocked"):
            self.notes.add("refused by the guard", message)
        return self.notes.take()

    def _count_refusals(self) -> int:
        return 0 if self._proxy is None else self._proxy.refused

    def _refusals_after(self, number: int) -> "tuple[RefusedRequest, ...]":
        return () if self._proxy is None else self._proxy.refusals(number)

    async def _page_destination(self) -> str:
        from aish.net.guarded_client import destination_of_url

        state = await self.current().look(page_functions.PAGE)
        try:
            return str(destination_of_url(str(state.get("url", ""))))
        except ValueError:
            return ""

    async def run(self) -> None:
        """Read messages of the browser until the connection ends."""
        await self._client.run()
        if self._page is not None:
            self._page.lose()
        self._over.set()

    async def open(self, chromium: Chromium | None) -> None:
        """Set up the browser, and open the first page."""
        try:
            await self._open()
        except PackError as error:
            if chromium is None or (self.is_alive and self.version):
                raise
            with anyio.move_on_after(_LAST_WORDS_SECONDS):
                await chromium.child.wait_until_gone()
            parts = [self._start_failure(chromium), chromium.words(self._mask)]
            raise PackError("unavailable", ": ".join(filter(None, parts))) from error

    def _start_failure(self, chromium: Chromium) -> str:
        """Return the reason why our own browser cannot be used."""
        if self.version:
            return "Chromium ended while it was started"
        path = shorten(for_line(chromium.path), _SHOWN)
        if self.is_alive:
            return f"`{path}` is no Chromium, or hangs: it did not speak the DevTools protocol"
        if str(self._client.lost) == NO_MESSAGE:
            return f"`{path}` is no Chromium: it did not speak the DevTools protocol"
        what = "it ended without speaking the DevTools protocol"
        return f"`{path}` is no Chromium, or cannot run here: {what}"

    async def _open(self) -> None:
        version = await self._call("Browser.getVersion")
        self.version = shorten(for_line(str(version.get("product", ""))), _SHOWN)
        if not self.attached:
            await self._refuse_everything()
        await self._call("Target.setDiscoverTargets", {"discover": True})
        await self._new_page()

    async def until_over(self) -> None:
        """Wait until the connection is closed or lost."""
        await self._over.wait()

    async def close(self) -> None:
        """Close the connection, and wait until the browser has ended."""
        if self.attached and self._page is not None:
            with anyio.move_on_after(1), suppress(PackError):
                await self._call("Target.closeTarget", {"targetId": self._page.target})
        self._over.set()
        await self._closed.wait()

    def finish(self) -> None:
        """Wake tasks that wait in `close`."""
        self._closed.set()

    async def _refuse_everything(self) -> None:
        """Refuse downloads and permissions in a browser of our own."""
        await self._call("Browser.setDownloadBehavior", {"behavior": "deny", "eventsEnabled": True})
        for name in PERMISSIONS:
            # Browsers know different ones, and say so of those that they do not know.
            parameters = {"permission": {"name": name}, "setting": "denied"}
            self._client.post("Browser.setPermission", parameters)

    async def _new_page(self) -> Page:
        self._is_creating = True
        try:
            result = await self._call("Target.createTarget", {"url": "about:blank"})
        finally:
            self._is_creating = False
        target = str(result.get("targetId", ""))
        joined = await self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(
            self._client, target, str(joined.get("sessionId", "")), self.console, self.notes
        )
        self._page = page
        await page.prepare()
        return page

    async def _call(
        self, method: str, parameters: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        try:
            return await self._client.call(method, parameters, seconds=REPLY_SECONDS)
        except BrowserLostError as error:
            raise PackError("unavailable", str(error)) from error
        except (NoReplyError, ReplyTooLargeError) as error:
            message = f"the browser did not answer `{method}`"
            raise PackError("unavailable", message) from error
        except CdpError as error:
            message = f"the browser refuses `{method}`: {for_line(str(error))}"
            raise PackError("unavailable", shorten(message, _SHOWN)) from error

    def _take(self, session: str, method: str, parameters: Mapping[str, Any]) -> None:
        """Handle an event without waiting."""
        page = self._page
        match method:
            case "Target.targetCreated":
                self._take_target(parameters.get("targetInfo", {}))
            case "Target.targetDestroyed" | "Target.targetCrashed":
                if page is not None and parameters.get("targetId") == page.target:
                    page.die(CRASHED if method.endswith("Crashed") else "the page was closed")
            case "Target.detachedFromTarget":
                if page is not None and parameters.get("sessionId") == page.session:
                    page.die("the page was closed")
            case "Browser.downloadWillBegin":
                self.notes.add("refused a download", str(parameters.get("url", "")))
            case _:
                if page is not None and session == page.session:
                    page.take(method, parameters)

    def _take_target(self, info: Mapping[str, Any]) -> None:
        """Close a window that a page has opened; of an attached browser, only our page's."""
        opener = info.get("openerId")
        is_window = info.get("type") == "page"
        if is_window and (self._is_ours(opener) if self.attached else self._is_foreign(opener)):
            self._client.post("Target.closeTarget", {"targetId": info.get("targetId")})

    def _is_foreign(self, opener: object) -> bool:
        """Return true if a window is not ours; ours have no opener."""
        return opener is not None or not self._is_creating

    def _is_ours(self, target: object) -> bool:
        return self._page is not None and target == self._page.target


@asynccontextmanager
async def open_connection(
    place: str | None, options: BrowserOptions, services: PackServices
) -> AsyncGenerator[BrowserConnection]:
    """Open a browser, our own or one at an address; at the end it is closed or detached from."""
    if place is not None:
        seconds = _DEBUG_SECONDS
        try:
            wire = await connect_websocket(await _websocket_of(place), seconds)
        except BrowserLostError as error:
            message = f"no browser can be attached to at `{place}`: {error}"
            raise PackError("unavailable", message) from error
        try:
            async with _run_connection(wire, services, place) as connection:
                yield connection
        finally:
            with anyio.CancelScope(shield=True):
                await wire.aclose()
        return
    from aish.net.guarded_client import destination_of
    from aish.net.guarded_proxy import open_guarded_proxy
    from aish.packs.browser.confinement import PREFERENCES, confinement_flags

    allow = [destination_of(text) for text in options.allow]
    async with (
        open_guarded_proxy(allow=allow) as proxy,
        own_chromium(
            options.program,
            services.environ,
            services.reaper,
            confinement_flags(proxy.address),
            PREFERENCES,
        ) as chromium,
    ):
        # Its processes are of the session that it was started in.
        proxy.admit(chromium.child.pid)
        async with _run_connection(chromium.wire, services, None, chromium, proxy) as connection:
            yield connection


@asynccontextmanager
async def _run_connection(
    wire: CdpChannel,
    services: PackServices,
    place: str | None,
    chromium: Chromium | None = None,
    proxy: "GuardedProxy | None" = None,
) -> AsyncGenerator[BrowserConnection]:
    async with task_group() as tasks:
        connection = BrowserConnection(wire, tasks, services, place, proxy)
        connection.sandboxed = None if chromium is None else chromium.sandboxed
        tasks.start_soon(connection.run)
        try:
            await connection.open(chromium)
            yield connection
        finally:
            tasks.cancel_scope.cancel()


def _refusal(refusal: "RefusedRequest") -> PackError:
    code = refusal.code if refusal.code in {"blocked", "timeout"} else "unavailable"
    return PackError(code, refusal.message)


async def _websocket_of(place: str) -> str:
    if place.startswith("ws:"):
        return place
    from aish.net.guarded_client import GuardedClient, GuardedRequestError, destination_of

    netloc = urlsplit(place).netloc
    client = GuardedClient(allow=[destination_of(netloc)])
    try:
        response = await client.get(
            f"{place}/json/version", headers={}, seconds=_DEBUG_SECONDS, same_origin=True
        )
        url = json.loads(response.body)["webSocketDebuggerUrl"]
        path = urlsplit(url).path
    except (GuardedRequestError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"no browser can be attached to at `{place}`"
        raise PackError("unavailable", message) from error
    finally:
        await client.aclose()
    if not path.startswith(_BROWSER_PATH):
        raise PackError("unavailable", f"no browser can be attached to at `{place}`")
    return f"ws://{netloc}{path}"
