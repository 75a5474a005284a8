"""The child that checks whether Python code parses: two texts in, two answers out.

Run as a script by `python_code`, without imports of `aish`. Deeply nested code can crash the
interpreter that parses it; only this process would end.
"""

import ast
import json
import sys
import warnings


def syntax_problem(code: bytes) -> str:
    """The syntax error of some code; empty if it parses."""
    try:
        ast.parse(code)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"[:300]
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def main() -> None:
    """Read the length of the first text and both texts, write their syntax errors."""
    warnings.simplefilter("ignore")
    length = int(sys.stdin.buffer.readline())
    before, after = sys.stdin.buffer.read(length), sys.stdin.buffer.read()
    old = syntax_problem(before)
    # Flushed, so that it is known even if the second text crashes this process.
    print(json.dumps(old), flush=True)  # ruff: ignore[print] - stdout is how a child answers
    if not old:
        print(json.dumps(syntax_problem(after)))  # ruff: ignore[print] - as above


if __name__ == "__main__":
    main()
