"""The files of the page: what they hold, and whether their colours can be read (A14, A17)."""

import re
from collections.abc import Iterator
from importlib import resources

import pytest

PAGE = resources.files("aish.features.control.page")
HTML, CSS, JS, SVG = (
    PAGE.joinpath(f"page.{kind}").read_text(encoding="utf-8")
    for kind in ("html", "css", "js", "svg")
)
# Text, and what tells a button or a field from what it stands on (WCAG 2.2, AA).
TEXT, SHAPE = 4.5, 3.0
GROUNDS = ("page", "card", "sunk")


@pytest.mark.requirement("A14")
def test_the_page_is_three_small_files_and_an_icon_that_name_nothing_elsewhere() -> None:
    assert sum(len(text.encode()) for text in (HTML, CSS, JS, SVG)) <= 100_000
    for text in (HTML, CSS, JS, SVG.removeprefix('<svg xmlns="http://www.w3.org/2000/svg"')):
        assert not re.search(r"\b(?:https?:|wss?:|data:\w|blob:|javascript:)|[\"'(]//", text)
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", HTML) == ["page.svg", "page.css", "page.js"]
    assert not re.search(r"url\(|@import|@font-face|expression\(", CSS)
    assert re.findall(r"fetch\(\s*(\S+)", JS) == ["`api/v1/${path}`,"]


def test_no_text_becomes_markup_and_nothing_is_kept_in_the_browser() -> None:
    # All text goes in by `textContent` and `append`.
    ways = (
        r"(?:inner|outer)HTML|insertAdjacentHTML|createContextualFragment|DOMParser|document\.write"
        r"|\beval\b|\bFunction\(|srcdoc|setHTML|parseHTML|createPolicy|\.on[a-z]+\s*=|new Worker"
        r"|import\(|setTimeout\(\s*[\"'`]|setInterval\(\s*[\"'`]"
    )
    kept = r"localStorage|sessionStorage|indexedDB|document\.cookie|caches\b|serviceWorker"
    assert not re.search(f"{ways}|{kept}|WebSocket|XMLHttpRequest|sendBeacon|EventSource", JS)
    assert not re.search(r"<script(?! src)|<style|\son[a-z]+=|style=|<iframe|<img|<base", HTML)
    assert re.findall(r"make\(\s*(?![\"'])\S+", JS) == []


def colours() -> Iterator[dict[str, tuple[int, ...]]]:
    """The palettes: light, then dark over light."""
    found: dict[str, tuple[int, ...]] = {}
    for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL):
        for name, digits in re.findall(r"--([a-z-]+): #([0-9a-f]{6});", block):
            found[name] = tuple(bytes.fromhex(digits))
        yield dict(found)


def luminance(colour: tuple[int, ...]) -> float:
    """As WCAG has it."""
    parts = [one / 255 for one in colour]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_every_colour_of_the_page_can_be_read_on_what_it_stands_on() -> None:
    palettes = list(colours())
    assert len(palettes) == 2
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", CSS)
    checked = 0
    for palette in palettes:
        for selector, body in rules:
            own = re.search(r"background(?:-color)?: var\(--([a-z-]+)\)", body)
            grounds = GROUNDS if own is None else (own[1],)
            pairs = [(name, TEXT) for name in re.findall(r"(?<![-\w])color: var\(--(.*?)\)", body)]
            if own is not None and not pairs and own[1] in {*GROUNDS, "calm-bg"}:
                pairs = [("ink", TEXT)]
            if "button" in selector or "input" in selector:
                edges = re.findall(r"border(?:-color)?: (?:1px solid )?var\(--(edge|bad)\)", body)
                pairs += [(name, SHAPE) for name in edges]
            for name, least in pairs:
                for ground in grounds:
                    found = contrast(palette[name], palette[ground])
                    where = f"{selector.strip()}: {name} on {ground}"
                    assert found >= least, f"{where}: {found:.2f}"
                    checked += 1
        for name in ("link", "go", "bad", "warn", "ok"):  # focus, buttons, marks
            for ground in GROUNDS:
                assert contrast(palette[name], palette[ground]) >= SHAPE, (name, ground)
    assert checked > 60


@pytest.mark.requirement("A17")
def test_targets_are_large_and_narrow_windows_are_meant() -> None:
    for selector in (".button", "summary", "textarea, input"):
        body = re.search(r"\n" + re.escape(selector) + r" \{([^}]*)\}", CSS)
        assert body is not None
        assert "min-height: 44px" in body[1]
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in HTML
    assert "user-scalable" not in HTML
    assert "prefers-color-scheme: dark" in CSS
    assert ":focus-visible" in CSS


@pytest.mark.requirement("A16")
def test_a_card_is_visible_for_half_a_second_before_it_can_be_answered() -> None:
    times = dict(re.findall(r"const ([A-Z_]+) = (\d+);", JS))
    assert times["VISIBLE_MS"] == "500"
    # Every yes goes through the two ways that look at what has been visible.
    assert JS.count("this.answer(") == 2
