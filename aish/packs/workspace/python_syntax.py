"""A compile check of Python, for the process that parses untrusted input.

Deeply nested code can crash the interpreter that parses it; only that process would end.
"""

import warnings


def python_problem(code: bytes) -> str:
    """The syntax error of some code; empty if it compiles."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(code, "<file>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"[:300]
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""
