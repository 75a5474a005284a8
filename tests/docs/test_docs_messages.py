"""The messages that troubleshooting lists are ones the program has."""

import ast
import re
from functools import cache

from docs_pages import ROOT

_SPAN = re.compile(r"(`+)(.+?)\1(?!`)")
_SHORTEST = 4


def test_every_message_listed_is_one_of_the_program() -> None:
    page = (ROOT / "docs" / "reference" / "troubleshooting.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    missing = [piece for row in rows for piece in _pieces(row) if piece not in _all_texts()]

    assert rows
    assert not missing, "\n".join(missing)


def _pieces(row: str) -> list[str]:
    """What stands between the `…` of the messages in a row's first cell."""
    cell = row.removeprefix("| ").partition(" | ")[0]
    spans = [found[2].strip() for found in _SPAN.finditer(cell)]
    pieces = [piece.strip() for span in spans for piece in re.split(r"…|\d+\w*", span)]
    return [piece for piece in pieces if len(piece.strip("`: ")) >= _SHORTEST]


@cache
def _all_texts() -> str:
    """Every text in the source, adjacent ones joined as the interpreter does."""
    texts: list[str] = []
    for path in sorted((ROOT / "aish").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(p.value) if isinstance(p, ast.Constant) else "\0" for p in node.values]
                texts.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)
