"""Prints each file of `aish/` with the first sentence of its docstring.

python docs/list_files.py [WORD]
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the files whose path or sentence contains the word, or all."""
    word = sys.argv[1].lower() if sys.argv[1:] else ""
    for path in sorted((ROOT / "aish").rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        sentence = " ".join(re.split(r"(?<=\.)\s|\n\n", text, maxsplit=1)[0].split())
        line = f"{path.relative_to(ROOT).as_posix()}: {sentence}"
        if word in line.lower():
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
