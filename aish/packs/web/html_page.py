"""HTML as Markdown, plain text and search results: run in the process that parses.

Imports the standard library only; `html_to_markdown` where it is needed and installed. Scripts are
not run, frames not loaded, and a `refresh` not followed: nothing here opens anything.
"""

import re
from html import unescape
from html.parser import HTMLParser
from urllib.parse import parse_qs, urljoin, urlsplit

INSTALL = "pip install 'aish-pipelines[web]'"
_TITLE = re.compile(r"<title(?:\s[^<>]{0,200})?>([^<]{0,1000})", re.IGNORECASE)
_TITLE_WITHIN = 65_536
_LONGEST_TITLE = 300

_HIDDEN = frozenset({"script", "style", "template", "title"})
_PARAGRAPHS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "details", "dl", "fieldset", "figure"),
        *("footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr", "main"),
        *("nav", "ol", "p", "pre", "section", "table", "ul"),
    }
)
_LINES = frozenset(
    {
        *("body", "br", "caption", "center", "dd", "dir", "div", "dt", "figcaption", "head"),
        *("html", "legend", "li", "menu", "optgroup", "option", "summary", "tbody", "tfoot"),
        *("thead", "tr"),
    }
)
_CELLS = frozenset({"td", "th"})
_SPACES = re.compile(r"[ \t\n\r\f]+")


def markdown(source: bytes, *, url: str) -> dict[str, str]:
    """A page as Markdown, its links as whole addresses; `degraded` says why it is only text."""
    page = source.decode("utf-8")
    try:
        import html_to_markdown as library
    except ImportError:
        return _fallback_page(page, f"plain text, as html-to-markdown is not installed ({INSTALL})")
    options = library.ConversionOptions(
        base_url=url,
        # Padded columns would repeat the widest cell in every row.
        compact_tables=True,
        extract_metadata=False,
        infer_dimensions=False,
        inline_data_media=library.InlineDataMedia.ALT_TEXT_ONLY,
        # What looks like navigation may be the index that a reader wants.
        preprocessing=library.PreprocessingOptions(
            enabled=True, remove_navigation=False, remove_forms=False
        ),
    )
    try:
        converted = library.convert(page, options)
    except Exception as error:  # ruff: ignore[blind-except] - the library's, for any kind of page
        return _fallback_page(
            page, f"plain text, as it is not possible as Markdown: {type(error).__name__}"
        )
    if any(str(warning.kind) == _TOO_DEEP for warning in converted.warnings):
        return _fallback_page(page, "plain text, as it is nested too deeply for Markdown")
    return {"title": title_of(page), "content": (converted.content or "").strip(), "degraded": ""}


_TOO_DEEP = "depth_limit_exceeded"


def text(source: bytes) -> dict[str, str]:
    return _fallback_page(source.decode("utf-8"), "")


def title_of(page: str) -> str:
    """The title of a page, on one line; empty if it has none near its beginning."""
    match = _TITLE.search(page, 0, _TITLE_WITHIN)
    words = unescape(match[1]).split() if match else []
    return " ".join(words)[:_LONGEST_TITLE]


def _fallback_page(page: str, why: str) -> dict[str, str]:
    parser = _VisibleText()
    parser.feed(page)
    parser.close()
    return {"title": title_of(page), "content": parser.text(), "degraded": why}


class _VisibleText(HTMLParser):
    """The visible text, as lines and paragraphs."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._pieces: list[str] = []
        # Line ends that come before the next word, and whether a space does.
        self._ends = 0
        self._space = ""
        self._hidden: list[str] = []
        self._preformatted = 0

    def text(self) -> str:
        return "".join(self._pieces).strip("\n")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
        self._preformatted += tag == "pre"
        self._separate(tag)
        if tag == "li":
            self._add("- ")
        elif tag == "img":
            self._add_words(f" {dict(attrs).get('alt') or ''} ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """`<br/>` and its like: in HTML the slash means nothing."""
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            while self._hidden.pop() != tag:
                pass
        if tag == "pre" and self._preformatted:
            self._preformatted -= 1
        self._separate(tag)

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if self._preformatted:
            self._add(data)
        else:
            self._add_words(data)

    def _separate(self, tag: str) -> None:
        if tag in _CELLS:
            self._space = "\t"
        elif tag in _PARAGRAPHS or tag in _LINES:
            self._ends = max(self._ends, 2 if tag in _PARAGRAPHS else 1)

    def _add_words(self, data: str) -> None:
        words = _SPACES.sub(" ", data)
        if words.startswith(" "):
            self._space = self._space or " "
        if stripped := words.strip(" "):
            self._add(stripped)
            self._space = " " if words.endswith(" ") else ""

    def _add(self, words: str) -> None:
        if self._pieces:
            self._pieces.append("\n" * self._ends or self._space)
        self._ends, self._space = 0, ""
        self._pieces.append(words)


def duckduckgo(source: bytes) -> dict[str, object]:
    """The results on DuckDuckGo's page without scripts.

    `is_readable` is false for a page that is neither results nor says that there are none, such as
    the question whether a human asks.
    """
    parser = _DuckDuckGo()
    parser.feed(source.decode("utf-8"))
    parser.close()
    results = [
        {name: " ".join("".join(pieces).split()) for name, pieces in row.items()}
        for row in parser.rows
    ]
    rows = [row for row in results if row["url"] and row["title"]]
    return {"results": rows, "is_readable": bool(rows) or parser.says_none}


class _DuckDuckGo(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[dict[str, list[str]]] = []
        self.says_none = False
        self._is_advertisement = False
        self._into: list[str] | None = None
        self._until = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        classes = (attributes.get("class") or "").split()
        if "result" in classes:
            self._is_advertisement = "result--ad" in classes
        if "no-results" in classes or "result--no-result" in classes:
            self.says_none = True
        if self._is_advertisement:
            return
        if tag == "a" and "result__a" in classes:
            row: dict[str, list[str]] = {
                "title": [],
                "url": [_target(attributes.get("href") or "")],
                "snippet": [],
            }
            self.rows.append(row)
            self._into, self._until = row["title"], tag
        elif "result__snippet" in classes and self.rows:
            self._into, self._until = self.rows[-1]["snippet"], tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._until:
            self._into, self._until = None, ""

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into.append(data)


def _target(href: str) -> str:
    """The target of a link of DuckDuckGo: its own redirects name that in `uddg`."""
    try:
        url = urljoin("https://duckduckgo.com/", href)
        if f".{urlsplit(url).hostname}".endswith(".duckduckgo.com"):
            url = parse_qs(urlsplit(url).query, max_num_fields=20).get("uddg", [""])[0]
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in {"http", "https"} and parts.netloc else ""
