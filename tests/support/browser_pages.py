"""The page of a run in a real Chromium, and what must never happen in it.

Every page is watched: errors of its script, reports of its content security policy, requests to
anywhere but its own server, and what a foreign text would have to become to be markup.
"""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from e2e_project import REPO, Project

WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 360, "height": 640}
_MORNING = "2026-01-01T06:00:00Z"
NOON = "2026-01-01T12:00:00Z"
"""Where the clock of a page stands that `still` was asked of; the server's is another."""
ELEMENTS = """
    html head meta title link script body header main section div h1 h2 h3 p span small form label
    input button dl dt dd article pre details summary textarea ul li progress kbd noscript code
"""
"""All that the page consists of."""
# What Chromium logs of a server that is not there, and of answers that are errors.
_EXPECTED = "Failed to load resource"
_WATCH = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => {
      window.violations.push(`${event.violatedDirective} ${event.blockedURI}`);
    });
"""
_SCREENSHOTS = os.environ.get("AISH_SCREENSHOTS")


def chromium() -> str:
    """The browser's program; a test of the page fails where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    raise AssertionError("Chromium is not here: `apt-get install chromium`")


@contextmanager
def open_browser() -> Generator[Any]:
    """A Chromium without windows."""
    from playwright.sync_api import sync_playwright

    # Whoever is root has no sandbox to lose: pages are those of our own server.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """A page of its own profile, and what was seen in it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, link: str) -> None:
        """Go where a person would."""
        self.page.goto(link)

    def has(self, text: str, where: str = "body") -> None:
        """Wait until a text is shown."""
        self.page.locator(where).filter(has_text=text).first.wait_for(timeout=30_000)

    def button(self, name: str, index: int = 0) -> Any:
        """A button of a question; the questions are counted from above."""
        cards = self.page.locator("article.question")
        return cards.nth(index).get_by_role("button", name=name, exact=True)

    def is_enabled(self, name: str, index: int = 0) -> bool:
        enabled: bool = self.button(name, index).is_enabled()
        return enabled

    def until_enabled(self, name: str, index: int = 0) -> None:
        """Look at a question until it can be answered; the clock of the page goes on by itself."""
        self.show_end(index)
        self.page.wait_for_function(
            "([name, index]) => [...document.querySelectorAll('article.question')[index]"
            ".querySelectorAll('button')].some((one) => one.textContent === name && !one.disabled)",
            arg=[name, index],
        )

    def show_end(self, index: int = 0) -> None:
        """Scroll to the end of a question."""
        card = self.page.locator("article.question").nth(index)
        card.evaluate("(card) => card.scrollIntoView({ block: 'end' })")

    def seen(self, index: int = 0) -> None:
        """Wait until the browser has told the page that a card is visible.

        It does so with the frame after the next; no time passes for the page by that.
        """
        self.page.locator("article.question").nth(index).wait_for(timeout=30_000)
        self.show_end(index)
        self.page.evaluate(
            """(index) => new Promise((done) => {
              const target = document.querySelectorAll("article.question")[index]
                .querySelector(".actions");
              const watch = new IntersectionObserver(() => { watch.disconnect(); done(); });
              watch.observe(target);
            })""",
            index,
        )

    def width(self) -> int:
        """How wide the document is."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth")
        return found

    def check(self) -> None:
        """Nothing has happened that must not."""
        assert self.errors == []
        assert self.page.evaluate("window.violations") == []
        home = urlsplit(self.page.url).netloc
        assert {urlsplit(url).netloc for url in self.requests} == {home}
        names = self.page.evaluate(
            "[...document.querySelectorAll('*')].map((one) => one.localName)"
        )
        assert set(names) <= set(ELEMENTS.split())
        scripts = self.page.evaluate("[...document.scripts].map((one) => one.getAttribute('src'))")
        assert scripts == ["page.js"]
        assert self.page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]
        assert self.page.context.cookies() == []

    def keep(self, name: str, *, whole: bool = True) -> None:
        """Keep a picture, if somebody wants to look at it (`AISH_SCREENSHOTS=FOLDER`)."""
        if _SCREENSHOTS is not None:
            self.page.screenshot(path=Path(_SCREENSHOTS) / f"{name}.png", full_page=whole)


@contextmanager
def open_tab(
    browser: Any, *, still: bool = False, narrow: bool = False, dark: bool = False
) -> Generator[Tab]:
    """A tab that is watched to its end; in a `still` one no time passes unless it is told to."""
    context = browser.new_context(
        viewport=NARROW if narrow else WIDE, color_scheme="dark" if dark else "light"
    )
    try:
        tab = Tab(context.new_page())
        tab.page.set_default_timeout(30_000)
        tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
        tab.page.on("console", lambda message: _note(tab, message))
        tab.page.on("request", lambda request: tab.requests.append(request.url))
        tab.page.add_init_script(_WATCH)
        if still:
            # It runs between the two calls, and cannot be paused at a time that has passed.
            tab.page.clock.install(time=_MORNING)
            tab.page.clock.pause_at(NOON)
        yield tab
        tab.check()
    finally:
        context.close()


def _note(tab: Tab, message: Any) -> None:
    if message.type in {"error", "warning"} and not message.text.startswith(_EXPECTED):
        tab.errors.append(message.text)


AXE = REPO / "node_modules" / "axe-core" / "axe.min.js"


def violations(page: Any) -> list[str]:
    """What axe finds in a page whose details are all open: the rule, and the element."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    return [f"{rule['id']}: {one['html']}" for rule in found for one in rule["nodes"]]


def link_of(project: Project, *arguments: str) -> str:
    """A link to the page of the newest run."""
    done = project.aish("control", "open", *(arguments or ("latest",)))
    assert done.code == 0, done.stderr
    return done.stdout.strip()
