"""What commands print to stdout; whatever a stranger wrote, it steers no terminal and no runner."""

import typer

from aish.core.json import JsonValue, json_text
from aish.core.text import for_ci_log


def print_json(value: JsonValue) -> None:
    """Print `value`; it comes out whole."""
    typer.echo(json_text(value, indent=2))


def print_text(text: str) -> None:
    """Print whole lines (X2, B13)."""
    typer.echo(for_ci_log(text))
