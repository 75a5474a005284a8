"""The pack `browser`: ten tools on one page of a headless Chromium.

The browser starts with the first call that needs it and ends with the run. Its connections go
through the guard, and text of pages is enclosed in marks. Calls run one at a time, because they
share the page.
"""

import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
from anyio.abc import TaskGroup, TaskStatus

from aish.core.json import JsonValue
from aish.core.phrases import shorten
from aish.core.text import for_line, for_terminal
from aish.core.tools import CALL_DEADLINE, Media
from aish.packs.browser.browser_options import BrowserOptions
from aish.packs.framework.pack import Bounds, Marks, Older, Pack, PackContext, PackServices, tool
from aish.packs.pack_error import PackError
from aish.packs.tool_results import (
    LARGEST_IMAGE,
    NOTE_ROOM,
    Answer,
    count_that_fits,
    enclose,
    head_that_fits,
)
from aish.system.task_group import task_group

# What speaks to a browser is imported with the first call that needs one.
if TYPE_CHECKING:
    from aish.packs.browser.connection import BrowserConnection
    from aish.packs.browser.page import Page

_MOST_ELEMENTS = 50
_LONGEST_SELECTOR = 2_000
_LONGEST_URL = 8_192
_LONGEST_TEXT = 64 * 1024
_LONGEST_SCRIPT = 256 * 1024
_LARGEST_SIDE = 16_384
_FIELD_SECONDS = 5.0
_SHOT_SECONDS = 20.0
_SHOWN = 300
_SHOWN_TEXT = 1_000
_SHOWN_MESSAGE = 500
_NOT_CONNECTED = "no page is open; browser_navigate opens one"

_CONNECTS = Marks(
    read_only=False, destructive=False, idempotent=True, open_world=True, passing=True
)
_CLOSES = Marks(read_only=False, destructive=False, idempotent=True, open_world=False, passing=True)
_ACTS = Marks(read_only=False, destructive=True, idempotent=False, open_world=True)
_LOOKS = Marks(read_only=True, destructive=False, idempotent=True, open_world=True)
_TAKES = Marks(read_only=False, destructive=False, idempotent=False, open_world=True, passing=True)
_ANSWERS = ("unavailable", "timeout")
Seconds = Annotated[int, Bounds(1, 120)]


class Browser:
    """The state that the tools share: at most one connection, with one page."""

    def __init__(self, options: BrowserOptions, services: PackServices, tasks: TaskGroup) -> None:
        self.options, self.services, self._tasks = options, services, tasks
        self.lock = anyio.Lock(fast_acquire=True)
        self.connection: BrowserConnection | None = None

    @property
    def mask(self) -> Callable[[str], str]:
        return self.services.mask

    def page(self) -> "Page":
        """The page that is open.

        Raises:
            PackError: there is none.
        """
        if self.connection is None:
            raise PackError("unavailable", _NOT_CONNECTED)
        return self.connection.current()

    async def connect(self, debug_url: str, seconds: float) -> "BrowserConnection":
        """Return the connection to the browser at an address, or to our own; open it if needed."""
        from aish.packs.browser.connection import parse_debug_url

        place = parse_debug_url(debug_url, self.options) if debug_url else None
        connection = self.connection
        if connection is not None and connection.is_alive and connection.place == place:
            return connection
        await self.disconnect()
        with anyio.move_on_after(seconds) as limit:
            self.connection = await self._tasks.start(self._live, place)
        if limit.cancelled_caught or self.connection is None:
            raise PackError("timeout", f"the browser is not ready within {seconds:g} seconds")
        return self.connection

    async def disconnect(self) -> bool:
        """Close the browser, or detach from an attached one; return false if there is none."""
        connection, self.connection = self.connection, None
        if connection is None:
            return False
        await connection.close()
        return True

    async def _live(
        self, place: str | None, *, task_status: "TaskStatus[BrowserConnection]"
    ) -> None:
        """Keep one connection open, in its own task, until it is closed or lost."""
        from aish.packs.browser.connection import open_connection

        connection: BrowserConnection | None = None
        try:
            async with open_connection(place, self.options, self.services) as connection:
                task_status.started(connection)
                await connection.until_over()
        finally:
            if connection is not None:
                connection.finish()


@asynccontextmanager
async def _lifespan(context: PackContext) -> AsyncGenerator[Browser]:
    options = context.options
    assert isinstance(options, BrowserOptions)
    async with task_group() as tasks:
        browser = Browser(options, context.services, tasks)
        try:
            yield browser
        finally:
            with anyio.CancelScope(shield=True):
                await browser.disconnect()
            tasks.cancel_scope.cancel()


def _call_timeout(seconds: float) -> float:
    """Return the time limit of a call, within that of the step."""
    return max(min(seconds, CALL_DEADLINE.get() - anyio.current_time() - 1), 1)


def _check_selector(selector: str, *, needed: bool = True) -> str:
    if (needed and not selector.strip()) or len(selector) > _LONGEST_SELECTOR:
        message = f"`selector` needs 1 to {_LONGEST_SELECTOR:,} characters"
        raise PackError("bad_arguments", message)
    return selector


@tool(
    _CONNECTS,
    result={"browser": "string", "attached": "boolean", "sandboxed": "boolean"},
    codes=("blocked", *_ANSWERS, "not_installed"),
    older={"webview_connect": Older(rename={"timeout": "timeout_seconds"})},
    older_parameters={"timeout": "timeout_seconds"},
)
async def browser_connect(
    browser: Browser, debug_url: str = "", timeout_seconds: Seconds = 30
) -> Answer:
    """Starts a browser, or attaches to one.

    Args:
        debug_url: The debugging address of a running browser on this machine, such as
            `http://127.0.0.1:9222`; empty for a browser of our own.
        timeout_seconds: How long to wait for it.
    """
    async with browser.lock:
        connection = await browser.connect(debug_url, _call_timeout(timeout_seconds))
        data: dict[str, JsonValue] = {
            "browser": connection.version,
            "attached": connection.attached,
            "sandboxed": connection.sandboxed,
        }
    words = [f"{'attached to' if connection.attached else 'started'} {connection.version}"]
    if connection.attached:
        words.append("it has its user's cookies, and its connections do not go through the guard")
    elif not connection.sandboxed:
        words.append("its pages are not in Chromium's sandbox, because this process is root")
    return Answer("; ".join(words), data)


@tool(_CLOSES, result={"closed": "boolean"}, older={"webview_disconnect": Older()})
async def browser_disconnect(browser: Browser) -> Answer:
    """Closes the browser.

    One that is attached goes on running; only our page in it is closed.
    """
    async with browser.lock:
        closed = await browser.disconnect()
    return Answer("closed the browser" if closed else "no browser is open", {"closed": closed})


@tool(
    _CONNECTS,
    result={
        "url": "string",
        "status": "integer",
        "title": "string",
        "loaded": "boolean",
        "notes": "array",
    },
    codes=("blocked", *_ANSWERS, "not_installed"),
    older={"webview_navigate": Older()},
)
async def browser_navigate(
    browser: Browser,
    url: str,
    wait: Literal["load", "none"] = "load",
    timeout_seconds: Seconds = 30,
) -> Answer:
    """Opens a page.

    Connects by itself. An address that answers with an error is a page too: see `status`.

    Args:
        url: The address, which begins with `https://` or `http://`, or `about:blank`.
        wait: `load` waits until all of the page is loaded, `none` for its beginning only.
        timeout_seconds: How long to wait, for the start of the browser too.
    """
    from aish.packs.browser.connection import parse_page_url

    target = parse_page_url(url, _LONGEST_URL)
    async with browser.lock:
        deadline = anyio.current_time() + _call_timeout(timeout_seconds)
        connection = browser.connection
        if connection is None or not connection.is_alive:
            connection = await browser.connect("", deadline - anyio.current_time())
        left = max(deadline - anyio.current_time(), 0.1)
        went = await connection.navigate(target, waits=wait == "load", seconds=left)
        location = await _place(browser, connection.current())
        notes = connection.take_notes()
    if wait == "load" and not went.is_loaded:
        notes.append(f"not all of the page was loaded within {timeout_seconds} seconds")
    data: dict[str, JsonValue] = {
        **location,
        "status": went.status,
        "loaded": went.is_loaded,
        "notes": [*notes],
    }
    lines = [f"title: {location['title']}", f"status: {went.status}" if went.status else ""]
    text = "\n".join([location["url"], *filter(None, lines), *_note_lines(notes)])
    return Answer(text, data, source=location["url"])


@tool(
    _ACTS,
    result={"url": "string", "notes": "array"},
    codes=("no_match", *_ANSWERS),
    older={"webview_click": Older()},
)
async def browser_click(browser: Browser, selector: str, timeout_seconds: Seconds = 5) -> Answer:
    """Clicks the first matching element.

    Waits until it is visible and does not move, then for the page that the click leads to.

    Args:
        selector: A CSS selector.
        timeout_seconds: How long to wait.
    """
    from aish.packs.browser import page_functions

    _check_selector(selector)
    async with browser.lock:
        page = browser.page()
        seconds = _call_timeout(timeout_seconds)
        deadline = anyio.current_time() + seconds
        at = await page.find(page_functions.CLICK, selector=selector, seconds=seconds)
        await page.click(at["x"], at["y"], deadline)
        location = await _place(browser, page)
        notes = _notes(browser)
    data: dict[str, JsonValue] = {"url": location["url"], "notes": [*notes]}
    clicked = f"clicked `{shorten(for_line(selector), _SHOWN)}`"
    text = "\n".join([clicked, f"the page is {location['url']}", *_note_lines(notes)])
    return Answer(text, data, source=location["url"])


@tool(
    _ACTS,
    result={"value": "string", "notes": "array"},
    codes=("no_match", *_ANSWERS),
    older={"webview_type": Older()},
)
async def browser_type(
    browser: Browser, selector: str, text: str, *, clear: bool = False, submit: bool = False
) -> Answer:
    """Types at the end of a field.

    Args:
        selector: A CSS selector; the first match is typed into.
        text: What to type.
        clear: Whether to empty the field first.
        submit: Whether to press Enter afterwards.
    """
    from aish.packs.browser import page_functions

    _check_selector(selector)
    if len(text) > _LONGEST_TEXT:
        raise PackError("bad_arguments", f"`text` has more than {_LONGEST_TEXT:,} characters")
    async with browser.lock:
        page = browser.page()
        seconds = _call_timeout(_FIELD_SECONDS)
        deadline = anyio.current_time() + seconds
        field = await page.find(page_functions.FOCUS, clear, selector=selector, seconds=seconds)
        if field.get("end"):
            await page.press("End", deadline)
        if clear and not text:
            await page.press("Backspace", deadline)
        await page.insert(text)
        value = str((await page.look(page_functions.VALUE, selector)).get("value", ""))
        if submit:
            await page.press("Enter", deadline)
        place = await _place(browser, page)
        notes = _notes(browser)
    value = for_terminal(browser.mask(value))
    excerpt = shorten(value, _SHOWN_TEXT)
    data: dict[str, JsonValue] = {"value": value, "notes": [*notes]}
    lines = [f"the field has: {excerpt}", *_note_lines(notes)]
    return Answer("\n".join(lines), data, source=place["url"])


@tool(
    _LOOKS,
    result={
        "url": "string",
        "title": "string",
        "found": "boolean",
        "count": "integer",
        "elements": "array",
        "text": "string",
        "truncated": "boolean",
    },
    rows={
        "elements": {
            "tag": "string",
            "attributes": "object",
            "text": "string",
            "box": "object",
            "visible": "boolean",
        }
    },
    codes=_ANSWERS,
    older={"webview_query": Older()},
)
async def browser_query(browser: Browser, selector: str = "", *, all: bool = False) -> Answer:  # ruff: ignore[builtin-argument-shadowing] - the parameter's name in calls
    """Matching elements, or the page's text.

    Args:
        selector: A CSS selector; empty for the visible text of the page.
        all: Whether to return up to 50 matches, and not only the first.
    """
    from aish.packs.browser import page_functions
    from aish.packs.browser.page import bad_selector

    _check_selector(selector, needed=False)
    async with browser.lock:
        page = browser.page()
        most = _MOST_ELEMENTS if all else 1
        result = await page.look(page_functions.QUERY, selector, most)
    if result.get("state") == "bad":
        raise bad_selector(selector)
    location = _url_and_title(browser, result)
    if not selector.strip():
        return _page_text(browser, result, location)
    return _elements(browser, result, location)


def _page_text(browser: Browser, result: Mapping[str, Any], location: Mapping[str, str]) -> Answer:
    whole = for_terminal(browser.mask(str(result.get("text", ""))))
    text = head_that_fits(whole, NOTE_ROOM + 2 * len(enclose(location["url"], "")))
    cut = len(text) < len(whole)
    note = f"[truncated: true; {len(whole):,} characters in all; a selector shows less]"
    data: dict[str, JsonValue] = {
        **location,
        "found": bool(whole),
        "count": 0,
        "elements": [],
        "text": enclose(location["url"], text),
        "truncated": cut,
    }
    return Answer(text or "(no text)", data, source=location["url"], trailer=note if cut else "")


def _elements(browser: Browser, result: Mapping[str, Any], location: Mapping[str, str]) -> Answer:
    rows = [_row(browser, element) for element in result.get("elements", ())]
    count = int(result.get("count", 0))
    lines = [_row_line(row) for row in rows]
    fitting = count_that_fits(lines, NOTE_ROOM + 2 * len(enclose(location["url"], "")))
    cut = fitting < len(rows)
    data: dict[str, JsonValue] = {
        **location,
        "found": count > 0,
        "count": count,
        "elements": [*rows[:fitting]],
        "text": "",
        "truncated": cut,
    }
    left = count - fitting
    notes = [f"[{left:,} more match]"] if left > 0 else []
    text = "\n".join(lines[:fitting]) or "nothing matches"
    return Answer(text, data, source=location["url"], trailer="\n".join(notes))


def _row(browser: Browser, element: Mapping[str, Any]) -> dict[str, JsonValue]:
    def clean(value: object, most: int) -> str:
        return for_terminal(shorten(browser.mask(str(value)), most))

    attributes: dict[str, JsonValue] = {
        clean(name, _SHOWN): clean(value, _SHOWN)
        for name, value in element.get("attributes", {}).items()
    }
    box: dict[str, JsonValue] = {
        key: round(value, 2) if isinstance(value, int | float) else None
        for key, value in element.get("box", {}).items()
    }
    return {
        "tag": clean(element.get("tag", ""), _SHOWN),
        "attributes": attributes,
        "text": clean(element.get("text", ""), _SHOWN_TEXT),
        "box": box,
        "visible": bool(element.get("visible")),
    }


def _row_line(row: Mapping[str, Any]) -> str:
    words = [row["tag"], *(f'{key}="{value}"' for key, value in row["attributes"].items())]
    text = " ".join(row["text"].split())
    hidden = "" if row["visible"] else " (not visible)"
    return f"<{' '.join(words)}>{hidden} {text}".rstrip().replace("\n", " ")


@tool(
    _TAKES,
    result={"messages": "array", "dropped": "integer"},
    rows={
        "messages": {
            "type": "string",
            "text": "string",
            "timestamp": "string",
            "url": "string",
            "line": "integer",
        }
    },
    codes=("unavailable",),
    older={"webview_console": Older()},
)
async def browser_console(browser: Browser, *, clear: bool = False) -> Answer:
    """Console messages of the page.

    The last 1,000, of the pages before it too; also what it threw, and what the browser reports.

    Args:
        clear: Whether to forget them afterwards.
    """
    async with browser.lock:
        if browser.connection is None:
            raise PackError("unavailable", _NOT_CONNECTED)
        console = browser.connection.console
        messages, dropped = tuple(console.messages), console.dropped
        if clear:
            console.clear()
    rows: list[JsonValue] = [
        {
            "type": message.type,
            "text": for_terminal(message.text),
            "timestamp": message.timestamp,
            "url": message.url,
            "line": message.line,
        }
        for message in messages
    ]
    lines = [
        f"{message.type}: {shorten(for_line(message.text), _SHOWN_MESSAGE)}"
        + (f"  ({message.url}:{message.line})" if message.url else "")
        for message in messages
    ]
    # The last ones matter most.
    fitting = count_that_fits(lines[::-1], NOTE_ROOM)
    left = len(lines) - fitting
    notes = [f"[{left:,} earlier messages are only in the data]"] if left else []
    notes += [f"[{dropped:,} earlier messages were dropped]"] if dropped else []
    text = "\n".join(lines[left:]) or "no messages"
    data: dict[str, JsonValue] = {"messages": rows, "dropped": dropped}
    return Answer(text, data, source="the console", trailer="\n".join(notes))


@tool(
    _ACTS,
    result={"success": "boolean", "result": "any", "error": "string"},
    codes=(*_ANSWERS, "too_large"),
    older={"webview_eval": Older()},
)
async def browser_eval(browser: Browser, script: str, timeout_seconds: Seconds = 10) -> Answer:
    """Evaluates JavaScript in the page.

    Returns the value of the last expression, of a promise what it resolves to. What the script
    throws is `error`.

    Args:
        script: The code, which runs as a script of the page.
        timeout_seconds: How long it may take.
    """
    from aish.packs.browser.evaluation import evaluate

    if len(script) > _LONGEST_SCRIPT:
        raise PackError("bad_arguments", f"`script` has more than {_LONGEST_SCRIPT:,} characters")
    async with browser.lock:
        page = browser.page()
        done = await evaluate(page, script, _call_timeout(timeout_seconds))
        location = await _place(browser, page)
    if done.error is not None:
        error = for_terminal(shorten(browser.mask(done.error), _SHOWN_TEXT))
        failed: dict[str, JsonValue] = {"success": False, "result": None, "error": error}
        return Answer(f"the script failed: {error}", failed, source=location["url"])
    text = for_terminal(browser.mask(done.text))
    head = head_that_fits(text, NOTE_ROOM + 2 * len(enclose(location["url"], "")))
    note = f"[truncated: true; {len(text):,} characters in all]" if len(head) < len(text) else ""
    try:
        result = _mask_value(done.value, browser.mask)
    except RecursionError:
        result = text  # nested without end
    data: dict[str, JsonValue] = {"success": True, "result": result, "error": None}
    return Answer(head, data, source=location["url"], trailer=note)


def _mask_value(value: JsonValue, mask: Callable[[str], str]) -> JsonValue:
    """Return the value with masked secrets, and without control characters in its texts."""
    if isinstance(value, str):
        return for_terminal(mask(value))
    if isinstance(value, Mapping):
        return {for_terminal(mask(key)): _mask_value(item, mask) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_value(item, mask) for item in value]
    return value


@tool(
    _LOOKS,
    result={"format": "string", "width": "integer", "height": "integer", "bytes": "integer"},
    codes=("no_match", *_ANSWERS, "too_large"),
    older={"webview_screenshot": Older()},
)
async def browser_screenshot(
    browser: Browser,
    format: Literal["png", "jpeg"] = "png",  # ruff: ignore[builtin-argument-shadowing] - the parameter's name in calls
    selector: str = "",
    *,
    full_page: bool = False,
) -> Answer:
    """Screenshot of the page.

    Args:
        format: `jpeg` is smaller for photographs.
        selector: A CSS selector; the first match alone is shown. Empty for the viewport.
        full_page: Whether to show all of the page, and not only the viewport.
    """
    from aish.packs.browser import page_functions

    _check_selector(selector, needed=False)
    if selector.strip() and full_page:
        raise PackError("bad_arguments", "`selector` and `full_page` exclude each other")
    async with browser.lock:
        page = browser.page()
        clip: Mapping[str, Any] | None = None
        if selector.strip():
            area = await page.find(page_functions.PLACE, selector=selector, seconds=0)
            clip = {key: area[key] for key in ("x", "y", "width", "height")}
        elif full_page:
            clip = await page.size()
        if clip is not None and max(clip["width"], clip["height"]) > _LARGEST_SIDE:
            message = (
                f"it is {math.ceil(clip['width']):,} by {math.ceil(clip['height']):,} pixels, "
                f"and a side may have {_LARGEST_SIDE:,}; choose a part of it with `selector`"
            )
            raise PackError("too_large", message)
        image = await page.screenshot(format, clip, seconds=_call_timeout(_SHOT_SECONDS))
    if len(image.data) > LARGEST_IMAGE:
        message = f"the picture has {len(image.data):,} bytes, and {LARGEST_IMAGE:,} are allowed"
        raise PackError("too_large", f"{message}; try `format: jpeg`, or a part with `selector`")
    data: dict[str, JsonValue] = {
        "format": format,
        "width": image.width,
        "height": image.height,
        "bytes": len(image.data),
    }
    text = f"{format}, {image.width} by {image.height} pixels, {len(image.data):,} bytes"
    return Answer(text, data, images=(Media(f"image/{format}", image.data),))


@tool(
    _LOOKS,
    result={"found": "boolean", "seconds": "number"},
    codes=_ANSWERS,
    older={"webview_wait": Older(rename={"timeout": "timeout_seconds"})},
    older_parameters={"timeout": "timeout_seconds"},
)
async def browser_wait(
    browser: Browser,
    selector: str,
    state: Literal["visible", "present", "gone"] = "visible",
    timeout_seconds: Seconds = 10,
) -> Answer:
    """Waits for an element.

    If the time is over first, `found` is false.

    Args:
        selector: A CSS selector.
        state: `visible`: a match can be seen; `present`: there is a match; `gone`: no match can
            be seen.
        timeout_seconds: How long to wait.
    """
    from aish.packs.browser import page_functions
    from aish.packs.browser.page import bad_selector

    _check_selector(selector)
    async with browser.lock:
        page = browser.page()
        began = time.monotonic()
        deadline = anyio.current_time() + _call_timeout(timeout_seconds)
        while True:
            element = await page.look(page_functions.LOOK, selector)
            if element.get("state") == "bad":
                raise bad_selector(selector)
            found = bool(element["present" if state == "present" else "visible"])
            is_so = found is not (state == "gone")
            if is_so or anyio.current_time() >= deadline:
                break
            await anyio.sleep(_POLL_SECONDS)
    seconds = round(time.monotonic() - began, 3)
    condition = f"`{shorten(for_line(selector), _SHOWN)}` is {'' if is_so else 'not '}{state}"
    return Answer(f"{condition} after {seconds:.1f} seconds", {"found": is_so, "seconds": seconds})


_POLL_SECONDS = 0.05


async def _place(browser: Browser, page: "Page") -> dict[str, str]:
    from aish.packs.browser import page_functions

    return _url_and_title(browser, await page.look(page_functions.PAGE))


def _url_and_title(browser: Browser, result: Mapping[str, Any]) -> dict[str, str]:
    url, title = (for_line(browser.mask(str(result.get(key, "")))) for key in ("url", "title"))
    return {"url": shorten(url, 2_000), "title": shorten(title, _SHOWN)}


def _notes(browser: Browser) -> list[str]:
    return browser.connection.take_notes() if browser.connection is not None else []


def _note_lines(notes: list[str]) -> list[str]:
    return [f"note: {note}" for note in notes]


PACK = Pack(
    tools=(
        browser_connect,
        browser_disconnect,
        browser_navigate,
        browser_click,
        browser_type,
        browser_query,
        browser_console,
        browser_eval,
        browser_screenshot,
        browser_wait,
    ),
    root="none",
    lifespan=_lifespan,
    options=BrowserOptions,
)
