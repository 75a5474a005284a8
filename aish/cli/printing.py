"""What commands print to stdout; whatever a stranger wrote, it steers no terminal and no runner."""

import sys

from aish.core.json import JsonValue, json_text
from aish.core.text import for_ci_log, safe_utf8


def print_json(value: JsonValue) -> None:
    """Print `value`; it comes out whole."""
    write_text(f"{json_text(value, indent=2)}\n")


def print_text(text: str) -> None:
    """Print whole lines (X2, B13)."""
    write_text(f"{for_ci_log(text)}\n")


def write_text(text: str) -> None:
    """Write to stdout at once, as UTF-8 whatever the locale says."""
    sys.stdout.flush()
    sys.stdout.buffer.write(safe_utf8(text).encode())
    sys.stdout.buffer.flush()
