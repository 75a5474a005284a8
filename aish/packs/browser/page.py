"""A page of a browser: its events, and actions on it.

Every call on a page that has crashed, hangs or was closed fails; the next navigation opens a new
page.
"""

import base64
import binascii
import secrets
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import anyio

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.phrases import and_more, shorten
from aish.core.text import for_line
from aish.packs.browser import page_functions
from aish.packs.browser.cdp import (
    BrowserLostError,
    CdpClient,
    CdpError,
    NoReplyError,
    ReplyTooLargeError,
)
from aish.packs.pack_error import PackError

CONSOLE_SIZE: Final = 1_000
"""Console messages that are kept."""
REPLY_SECONDS: Final = 10.0
"""How long a page may take to answer what needs no waiting."""
_PING_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.05
_MOST_NOTES: Final = 50
_MOST_LOADERS: Final = 50
_LONGEST_MESSAGE: Final = 20_000
_SHOWN: Final = 300
_SHOWN_MESSAGE: Final = 2_000
_WORLD: Final = "aish"
_GONE_CONTEXT: Final = (
    "Cannot find context",
    "Execution context was destroyed",
    "Inspected target navigated or closed",
    "No frame for given id found",
    "uniqueContextId not found",
)
_WHY: Final = {
    "missing": "nothing matches `{selector}`",
    "hidden": "what matches `{selector}` is not visible",
    "moving": "what matches `{selector}` does not stand still",
    "disabled": "what matches `{selector}` is disabled",
    "outside": "what matches `{selector}` cannot be scrolled into view",
    "covered": "what matches `{selector}` is covered by `{what}`",
    "fixed": "what matches `{selector}` is `{what}`, which takes no text",
}
_AFTER: Final = "; browser_navigate opens a new page"
CRASHED: Final = "the page has crashed"


@frozen
class ConsoleMessage:
    """A console message, masked."""

    type: str
    text: str
    timestamp: str
    url: str
    line: int


@frozen
class Image:
    data: bytes
    width: int
    height: int


class PageConsole:
    """The last console messages of all pages; `dropped` counts earlier ones."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask = mask
        self.messages: deque[ConsoleMessage] = deque(maxlen=CONSOLE_SIZE)
        self.dropped = 0

    def add(self, type: str, text: str, timestamp: object, place: Mapping[str, Any]) -> None:  # ruff: ignore[builtin-argument-shadowing] - as in the result
        """Keep a message; secrets are masked before it is cut."""
        self.dropped += len(self.messages) == CONSOLE_SIZE
        line, url = place.get("lineNumber"), str(place.get("url") or "")
        self.messages.append(
            ConsoleMessage(
                for_line(str(type)[:_SHOWN]),
                shorten(self._mask(text[:_LONGEST_MESSAGE]), _SHOWN_MESSAGE),
                _iso(timestamp),
                shorten(for_line(self._mask(url[:_LONGEST_MESSAGE])), _SHOWN),
                line + 1 if isinstance(line, int) else 0,
            )
        )

    def clear(self) -> None:
        self.messages.clear()
        self.dropped = 0


class Notes:
    """Notes about what was refused or closed since they were last taken."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask = mask
        self._notes: list[str] = []
        self._more = 0

    def add(self, what: str, said: str = "") -> None:
        """Add a note; `said` is text of a page, which is masked before it is cut."""
        if len(self._notes) >= _MOST_NOTES:
            self._more += 1
            return
        excerpt = shorten(for_line(self._mask(said[:_LONGEST_MESSAGE])), _SHOWN)
        self._notes.append(f"{what}: {excerpt}" if excerpt else what)

    def take(self) -> list[str]:
        """Return and clear the notes."""
        notes = [*self._notes, *([and_more(self._more).strip()] if self._more else [])]
        self._notes, self._more = [], 0
        return notes


class Page:
    def __init__(
        self, client: CdpClient, target: str, session: str, console: PageConsole, notes: Notes
    ) -> None:
        self._client, self.target, self.session = client, target, session
        self._console, self._notes = console, notes
        self._binding = f"f{secrets.token_hex(16)}"
        self._frame = target
        self._loading = False
        self._loader = ""
        self._loaded: deque[str] = deque(maxlen=_MOST_LOADERS)
        self._statuses: dict[str, int] = {}
        self._changed = anyio.Event()
        self.dead = ""
        """Why the page cannot be used any more."""
        self._events: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "Page.lifecycleEvent": self._take_lifecycle,
            "Page.frameNavigated": self._take_navigation,
            "Page.frameStartedLoading": self._take_start,
            "Page.frameStoppedLoading": self._take_stop,
            "Page.javascriptDialogOpening": self._take_dialog,
            "Page.windowOpen": self._take_window,
            "Network.responseReceived": self._take_response,
            "Runtime.bindingCalled": self._take_report,
            "Runtime.consoleAPICalled": self._take_console,
            "Runtime.exceptionThrown": self._take_exception,
            "Log.entryAdded": self._take_log,
            "Inspector.targetCrashed": self._take_crash,
        }

    async def prepare(self) -> None:
        report = page_functions.REPORTS % {"binding": self._binding}
        for method, parameters in (
            ("Page.enable", {}),
            ("Inspector.enable", {}),
            ("Page.setLifecycleEventsEnabled", {"enabled": True}),
            ("Runtime.enable", {}),
            ("Log.enable", {}),
            ("Network.enable", {"maxTotalBufferSize": 0, "maxResourceBufferSize": 0}),
            ("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            ("Emulation.setDeviceMetricsOverride", _SCREEN),
            ("Runtime.addBinding", {"name": self._binding}),
            ("Page.addScriptToEvaluateOnNewDocument", {"source": report}),
        ):
            try:
                await self.call(method, parameters)
            except CdpError as error:
                message = f"the browser refuses `{method}`: {for_line(str(error))}"
                raise PackError("unavailable", shorten(message, _SHOWN)) from error

    async def size(self) -> Mapping[str, Any]:
        """Return the rectangle of the document: `x`, `y`, `width`, `height`."""
        try:
            metrics = await self.call("Page.getLayoutMetrics")
        except CdpError as error:
            raise PackError("unavailable", "the page has no size yet") from error
        size = metrics.get("cssContentSize", {})
        return {key: size.get(key, 0) for key in ("x", "y", "width", "height")}

    async def call(
        self,
        method: str,
        parameters: Mapping[str, Any] | None = None,
        seconds: float = REPLY_SECONDS,
    ) -> Mapping[str, Any]:
        """Send a command to this page, and return its result.

        Raises:
            CdpError: the browser refuses it.
            PackError: the page or the browser does not answer.
        """
        if self.dead:
            raise PackError("unavailable", self.dead + _AFTER)
        try:
            return await self._client.call(
                method, parameters, session=self.session, seconds=max(seconds, 0.001)
            )
        except BrowserLostError as error:
            message = f"{error}; browser_navigate starts a new one"
            raise PackError("unavailable", message) from error
        except ReplyTooLargeError as error:
            raise PackError("too_large", "the answer of the page is too large") from error
        except NoReplyError as error:
            if await self.responds():
                message = f"the page did not finish within {seconds:.1f} seconds"
                raise PackError("timeout", message) from error
            raise PackError("unavailable", self.dead + _AFTER) from error
        except CdpError:
            if self.dead:
                raise PackError("unavailable", self.dead + _AFTER) from None
            raise

    def post(self, method: str, parameters: Mapping[str, Any]) -> None:
        """Send a command and ignore its reply."""
        self._client.post(method, parameters, session=self.session)

    async def responds(self) -> bool:
        """Return true if scripts of the page can run; else give up the page."""
        if self.dead:
            return False
        try:
            await self._client.call(
                "Runtime.evaluate",
                {"expression": "1", "returnByValue": True},
                session=self.session,
                seconds=_PING_SECONDS,
            )
        except NoReplyError:
            self.die("the page hangs: it answers nothing")
        except (CdpError, BrowserLostError):
            return self._is_usable()
        return self._is_usable()

    def _is_usable(self) -> bool:
        return not self.dead and self._client.lost is None

    @property
    def has_crashed(self) -> bool:
        return self.dead == CRASHED

    def die(self, why: str) -> None:
        self.dead = self.dead or why
        self._tell()

    def take(self, method: str, given: Mapping[str, Any]) -> None:
        handler = self._events.get(method)
        if handler is not None:
            handler(given)
            self._tell()

    async def navigate(self, url: str, *, waits: bool, seconds: float) -> "Navigated":
        """Navigate to an address, and wait until it is loaded.

        Raises:
            PackError: there is no such page, or it does not answer in time.
        """
        deadline = anyio.current_time() + seconds
        try:
            reply = await self._client.call(
                "Page.navigate", {"url": url}, session=self.session, seconds=seconds
            )
        except BrowserLostError as error:
            message = f"{error}; browser_navigate starts a new one"
            raise PackError("unavailable", message) from error
        except NoReplyError as error:
            self._client.post("Page.stopLoading", session=self.session)
            raise PackError("timeout", f"no answer within {seconds:g} seconds") from error
        except (CdpError, ReplyTooLargeError) as error:
            message = "the browser does not open this address"
            raise PackError("unavailable", self.dead or message) from error
        failure = reply.get("errorText")
        if failure:
            if reply.get("isDownload"):
                raise PackError("blocked", "the address is a download, and downloads are refused")
            raise PackError("unavailable", f"the page cannot be opened: {for_line(str(failure))}")
        loader = str(reply.get("loaderId") or self._loader)
        if waits:
            left = deadline - anyio.current_time()
            await self._until(lambda: loader in self._loaded or self._loader != loader, left)
            await self.settle(deadline)
        status = self._statuses.get(self._loader)
        return Navigated(status, is_loaded=self._loader in self._loaded)

    async def settle(self, deadline: float) -> bool:
        """Wait until a page is loaded; return false after the time limit."""
        return await self._until(lambda: not self._loading, deadline - anyio.current_time())

    async def look(self, function: str, *arguments: JsonValue) -> Mapping[str, Any]:
        """Call a function of `page_functions`, in a world that scripts of the page cannot reach."""
        deadline = anyio.current_time() + REPLY_SECONDS
        while True:
            try:
                return await self._evaluate(function, arguments)
            except CdpError as error:
                left = deadline - anyio.current_time()
                if left <= 0 or not any(words in str(error) for words in _GONE_CONTEXT):
                    message = f"the page cannot be looked at: {for_line(str(error))}"
                    raise PackError("unavailable", shorten(message, _SHOWN)) from error
            # It is on its way to another document.
            await anyio.sleep(_POLL_SECONDS)

    async def find(
        self, function: str, *arguments: JsonValue, seconds: float, selector: str
    ) -> Mapping[str, Any]:
        """Repeat the call until `state` is `ok`."""
        deadline = anyio.current_time() + seconds
        while True:
            result = await self.look(function, selector, *arguments)
            state = result.get("state")
            if state == "ok":
                return result
            if state == "bad":
                raise bad_selector(selector)
            if anyio.current_time() >= deadline:
                what = for_line(str(result.get("what", "")))
                why = _WHY.get(str(state), _WHY["missing"])
                message = why.format(selector=shorten(for_line(selector), _SHOWN), what=what)
                raise PackError("no_match", message)
            await anyio.sleep(_POLL_SECONDS)

    async def click(self, x: float, y: float, deadline: float) -> None:
        """Click at a point of the viewport, and wait for a page that this may open."""
        at = {"x": x, "y": y}
        pressed = {**at, "button": "left", "clickCount": 1}
        await self._input("Input.dispatchMouseEvent", {"type": "mouseMoved", **at})
        await self._input("Input.dispatchMouseEvent", {"type": "mousePressed", **pressed})
        await self._input("Input.dispatchMouseEvent", {"type": "mouseReleased", **pressed})
        await self._after_input(deadline)

    async def insert(self, text: str) -> None:
        if text:
            await self._input("Input.insertText", {"text": text})

    async def press(self, key: Literal["Enter", "End", "Backspace"], deadline: float) -> None:
        event = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        await self._input("Input.dispatchKeyEvent", {"type": "keyDown", **event, **text})
        await self._input("Input.dispatchKeyEvent", {"type": "keyUp", **event})
        if key == "Enter":
            await self._after_input(deadline)

    async def screenshot(
        self, kind: str, clip: Mapping[str, Any] | None, *, seconds: float
    ) -> Image:
        """Take a picture of the viewport, or of a part of the document."""
        parameters: dict[str, Any] = {"format": kind}
        if kind == "jpeg":
            parameters["quality"] = 80
        if clip is not None:
            parameters |= {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True}
        try:
            reply = await self.call("Page.captureScreenshot", parameters, seconds)
            data = base64.b64decode(str(reply.get("data", "")), validate=True)
            width, height = image_size(data)
        except (CdpError, binascii.Error, struct.error, IndexError) as error:
            raise PackError("unavailable", "the browser made no picture of the page") from error
        return Image(data, width, height)

    async def close(self) -> None:
        if self._client.lost is None:
            if self.dead:
                self._client.post("Page.crash", session=self.session)
            self._client.post("Target.closeTarget", {"targetId": self.target})
        self.die("the page was closed")

    async def _evaluate(self, function: str, arguments: tuple[JsonValue, ...]) -> Mapping[str, Any]:
        world = await self.call(
            "Page.createIsolatedWorld", {"frameId": self._frame, "worldName": _WORLD}
        )
        reply = await self.call(
            "Runtime.callFunctionOn",
            {
                "functionDeclaration": function,
                "executionContextId": world.get("executionContextId"),
                "arguments": [{"value": value} for value in arguments],
                "returnByValue": True,
                "awaitPromise": True,
            },
        )
        value = reply.get("result", {}).get("value")
        if "exceptionDetails" in reply or not isinstance(value, dict):
            raise CdpError(exception_text(reply.get("exceptionDetails", {})))
        return value

    async def _input(self, method: str, parameters: Mapping[str, Any]) -> None:
        try:
            await self.call(method, parameters)
        except CdpError as error:
            raise PackError("unavailable", "the page takes no input") from error

    async def _after_input(self, deadline: float) -> None:
        """Wait for the effects of an input: scripts of the page, or another document."""
        try:
            await self.call("Runtime.evaluate", {"expression": _NEXT_TASK, "awaitPromise": True})
        except CdpError:
            # The document is being replaced.
            await anyio.sleep(_POLL_SECONDS)
        await self.settle(deadline)

    def _take_lifecycle(self, parameters: Mapping[str, Any]) -> None:
        if parameters.get("frameId") == self._frame and parameters.get("name") == "load":
            self._loaded.append(str(parameters.get("loaderId")))

    def _take_navigation(self, parameters: Mapping[str, Any]) -> None:
        frame = parameters.get("frame", {})
        if "parentId" not in frame and frame.get("id") == self._frame:
            self._loader = str(frame.get("loaderId", ""))

    def _take_start(self, parameters: Mapping[str, Any]) -> None:
        self._loading = self._loading or parameters.get("frameId") == self._frame

    def _take_stop(self, parameters: Mapping[str, Any]) -> None:
        self._loading = self._loading and parameters.get("frameId") != self._frame

    def _take_response(self, parameters: Mapping[str, Any]) -> None:
        status = parameters.get("response", {}).get("status")
        is_page = parameters.get("type") == "Document" and parameters.get("frameId") == self._frame
        if is_page and isinstance(status, int):
            if len(self._statuses) >= _MOST_LOADERS:
                del self._statuses[next(iter(self._statuses))]
            self._statuses[str(parameters.get("loaderId"))] = status

    def _take_dialog(self, details: Mapping[str, Any]) -> None:
        kind, message = str(details.get("type", "")), str(details.get("message", ""))
        # Who is asked whether to leave a page wants to leave it.
        leaving = kind == "beforeunload"
        parameters = {"accept": leaving}
        self._client.post("Page.handleJavaScriptDialog", parameters, session=self.session)
        if leaving:
            self._notes.add("left a page that asked to stay")
        else:
            self._notes.add(f"dismissed a dialog ({for_line(kind)})", message)

    def _take_window(self, parameters: Mapping[str, Any]) -> None:
        self._notes.add("closed a new window", str(parameters.get("url", "")))

    def _take_report(self, parameters: Mapping[str, Any]) -> None:
        asked = parameters.get("payload")
        if parameters.get("name") == self._binding and asked in page_functions.REPORTED:
            self._notes.add(f"refused a permission: {asked}")

    def _take_console(self, parameters: Mapping[str, Any]) -> None:
        words = [remote_text(one) for one in parameters.get("args", ()) if isinstance(one, dict)]
        frames = parameters.get("stackTrace", {}).get("callFrames") or [{}]
        kind = str(parameters.get("type", ""))
        self._console.add(kind, " ".join(words), parameters.get("timestamp"), frames[0])

    def _take_exception(self, parameters: Mapping[str, Any]) -> None:
        details = parameters.get("exceptionDetails", {})
        self._console.add("error", exception_text(details), parameters.get("timestamp"), details)

    def _take_log(self, parameters: Mapping[str, Any]) -> None:
        entry = parameters.get("entry", {})
        kind, text = str(entry.get("level", "")), str(entry.get("text", ""))
        self._console.add(kind, text, entry.get("timestamp"), entry)

    def _take_crash(self, _: Mapping[str, Any]) -> None:
        self.die(CRASHED)

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        with anyio.move_on_after(max(seconds, 0)):
            while not is_so():
                if self.dead or self._client.lost is not None:
                    return False
                await self._changed.wait()
        return is_so()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def lose(self) -> None:
        """Wake all waiting tasks: the connection is lost."""
        self._tell()


@frozen
class Navigated:
    """The HTTP status, if there is one, and whether the page is completely loaded."""

    status: int | None
    is_loaded: bool


_SCREEN: Final = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
_KEYS: Final = {"Enter": 13, "End": 35, "Backspace": 8}
_NEXT_TASK: Final = "new Promise((done) => setTimeout(done, 0))"


def bad_selector(selector: str) -> PackError:
    excerpt = shorten(for_line(selector), _SHOWN)
    return PackError("bad_arguments", f"`{excerpt}` is not a valid CSS selector")


def remote_text(value: Mapping[str, Any]) -> str:
    if value.get("type") == "string":
        return str(value.get("value", ""))
    if "unserializableValue" in value:
        return str(value["unserializableValue"])
    if "description" in value:
        return str(value["description"])
    return str(value.get("value", value.get("type", ""))).lower()


def exception_text(details: Mapping[str, Any]) -> str:
    exception = details.get("exception")
    text = remote_text(exception) if isinstance(exception, dict) else ""
    return text or str(details.get("text", "")) or "the script failed"


def image_size(data: bytes) -> tuple[int, int]:
    """Read width and height from the bytes of a PNG or a JPEG.

    Raises:
        struct.error: it is neither.
        IndexError: the same.
    """
    if data.startswith(b"\x89PNG"):
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    at = 2
    while data[at + 1] not in _FRAME_HEADERS:
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    height, width = struct.unpack(">HH", data[at + 5 : at + 9])
    return width, height


_FRAME_HEADERS: Final = frozenset({0xC0, 0xC1, 0xC2})


def _iso(timestamp: object) -> str:
    seconds = timestamp / 1000 if isinstance(timestamp, int | float) else time.time()
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return ""
