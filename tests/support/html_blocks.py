"""A Markdown page that is all HTML, read as GitHub would: which tags, which text, nothing else."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

from markdown_it import MarkdownIt


@dataclass
class Seen:
    """What stands in a page."""

    tags: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    foreign: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.seen = Seen()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "br":
            self.open.append(tag)
        self.seen.tags.add(tag)
        self.seen.attributes.update(name for name, _ in attrs)
        if tag in {"code", "pre"}:
            self.seen.foreign.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"code", "pre"} & set(self.open):
            self.seen.foreign[-1] += data
        else:
            self.seen.own.append(data)


def read(page: str) -> Seen:
    """What a reader of the page sees; fails where anything in it is Markdown, or is left open."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(page)
    kinds = {token.type for token in tokens}
    assert kinds <= {"html_block"}, kinds
    reader = _Reader()
    reader.feed("".join(token.content for token in tokens))
    reader.close()
    assert reader.open == []
    return reader.seen
