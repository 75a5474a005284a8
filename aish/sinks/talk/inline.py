"""Text within a paragraph: what it says and how it is set off."""

import re
from collections.abc import Iterator, Mapping, Sequence

from markdown_it.tree import SyntaxTreeNode

from aish.core.text import for_terminal
from aish.sinks.look import Look
from aish.sinks.talk.layout import Run

_CODES: Mapping[str, str] = {"strong": "1", "em": "3", "s": "9", "code_inline": "36"}
_ENCODED = re.compile(r"%3C(secret:[^<>%\s]+)%3E")


def inline_runs(nodes: Sequence[SyntaxTreeNode], look: Look) -> list[Run]:
    """The text of the nodes in runs of one style; without colour some marks stay."""
    return list(_runs(nodes, look, ""))


def _runs(nodes: Sequence[SyntaxTreeNode], look: Look, codes: str) -> Iterator[Run]:
    for node in nodes:
        own = _CODES.get(node.type, "")
        inner = ";".join(filter(None, (codes, own))) if look.color else ""
        match node.type:
            case "softbreak" | "hardbreak":
                yield Run("\n")
            case "code_inline":
                mark = "" if look.color else node.markup
                yield Run(f"{mark}{for_terminal(node.content)}{mark}", inner)
            case "image":
                yield Run(for_terminal(f"[{node.content}] ({_lead(node, 'src')})"), codes)
            case "link":
                said = list(_runs(node.children, look, codes))
                yield from said
                lead = for_terminal(_lead(node, "href"))
                if lead != "".join(run.text for run in said):
                    yield Run(f" ({lead})", codes)
            case _ if node.children:
                yield from _runs(node.children, look, inner)
            case _:
                yield Run(for_terminal(node.content), codes)


def _lead(node: SyntaxTreeNode, name: str) -> str:
    """Where a link leads, with the title that it may have."""
    title = node.attrs.get("title")
    # The parser has made an address of it; the name of a secret is to be read.
    lead = _ENCODED.sub(r"<\1>", str(node.attrs.get(name, "")))
    return f'{lead} "{title}"' if title else lead
