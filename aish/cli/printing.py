"""JSON on stdout for the commands that look; whatever a stranger wrote, it comes out whole."""

import json
import sys

import typer

from aish.text import safe_utf8


def print_json(value: object) -> None:
    """Print `value`; at a terminal everything beyond ASCII is escaped, so that none steers it."""
    text = json.dumps(value, ensure_ascii=sys.stdout.isatty(), indent=2)
    typer.echo(safe_utf8(text))
