"""JSON on stdout for the commands that look; whatever a stranger wrote, it comes out whole."""

import typer

from aish.sinks.json_text import json_text
from aish.vocab.json import JsonValue


def print_json(value: JsonValue) -> None:
    """Print `value`, in a form that steers no terminal and no CI runner."""
    typer.echo(json_text(value, indent=2))
