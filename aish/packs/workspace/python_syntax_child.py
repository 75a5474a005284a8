"""The child that says whether Python code parses: two texts in, two answers out.

Run as a script by `python_code`, with nothing of ours to import. Code that is nested deep enough
ends the interpreter that parses it, and this one may end.
"""

import ast
import json
import sys
import warnings


def syntax_problem(code: bytes) -> str:
    """What is wrong with some code; empty where it parses."""
    try:
        ast.parse(code)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"[:300]
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def main() -> None:
    """Read the length of the first text and both texts, write what is wrong with them."""
    warnings.simplefilter("ignore")
    length = int(sys.stdin.buffer.readline())
    before, after = sys.stdin.buffer.read(length), sys.stdin.buffer.read()
    old = syntax_problem(before)
    # Flushed, so that it is known even where the second text ends this process.
    print(json.dumps(old), flush=True)  # ruff: ignore[print] - stdout is how a child answers
    if not old:
        print(json.dumps(syntax_problem(after)))  # ruff: ignore[print] - as above


if __name__ == "__main__":
    main()
