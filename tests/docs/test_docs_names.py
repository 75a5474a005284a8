"""Pages name no command, option, key of a pipeline or file that is not there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from docs_pages import GENERATED, PAGES, ROOT, blocks
from samples import each_case

from aish.cli.catalogue import COMMANDS

KINDS = frozenset({"start", "jobs", "reference", "why"})
# The last one compares aish with programs that have other options.
LEFT_OUT = (*GENERATED, ROOT / "docs" / "why" / "aish-or.md")
OURS = tuple(page for page in PAGES if page.parent.name in KINDS and page not in LEFT_OUT)
# What templates and expectations read, which has the form of a key.
VALUES = frozenset({"aish", "env", "inputs", "output", "outputs", "params", "steps"})
# A file of an export, and keys of a goose recipe.
NO_KEYS = frozenset({"control.log", "retry.max_retries", "retry.checks"})
# Options of other programs, and those that every command has.
OTHERS = frozenset(
    [
        "--aish",
        "--api-key",
        "--deselect",
        "--install-completion",
        "--lf",
        "--no-sandbox",
        "--show-completion",
        "--tls-ca-file",
    ]
)
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"\baish ((?:[a-z]+)(?: [a-z]+)?)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_KEY = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")
_FILE = re.compile(r"(?:aish|docs/(?:start|jobs|reference|why)|pipelines)/\w[\w./-]+\.\w+")


@each_case("page", OURS)
def test_a_page_names_commands_options_keys_and_files_that_are_there(page: Path) -> None:
    unknown = [
        *_unknown_commands(page),
        *_unknown_options(page),
        *_unknown_keys(page),
        *(text for text in _spans(page) if _FILE.fullmatch(text) and not (ROOT / text).exists()),
    ]

    assert not unknown, unknown


def _unknown_commands(page: Path) -> Iterator[str]:
    names = {f"{entry.group} {entry.name}" if entry.group else entry.name for entry in COMMANDS}
    groups = {entry.group for entry in COMMANDS}
    for text in (*_spans(page), *_command_lines(page)):
        for found in _COMMAND.finditer(text):
            first, _, second = found[1].partition(" ")
            if first not in names and (first not in groups or (second and found[1] not in names)):
                yield found[0]


def _unknown_options(page: Path) -> Iterator[str]:
    known = set(_OPTION.findall((ROOT / "docs/reference/cli.md").read_text("utf-8")))
    for text in (*_spans(page), *_command_lines(page)):
        if text.startswith(("aish ", "--")):
            yield from (one for one in _OPTION.findall(text) if one not in known | OTHERS)


def _unknown_keys(page: Path) -> Iterator[str]:
    """Dotted names that begin with a key of the file, and end with none of any mapping."""
    schema = json.loads((ROOT / "schemas/pipeline.schema.json").read_text("utf-8"))
    keys = set(_properties(schema))
    events = (ROOT / "schemas/events.schema.json").read_text("utf-8")
    for text in _spans(page):
        found = _KEY.fullmatch(text.partition(":")[0])
        if found is None or f'"{found[0]}"' in events or found[0] in NO_KEYS:
            continue
        first, *_, last = found[0].split(".")
        if first in schema["properties"] and first not in VALUES and last not in keys:
            yield found[0]


def _spans(page: Path) -> list[str]:
    return [found[2].strip() for found in _SPAN.finditer(_FENCED.sub("", page.read_text("utf-8")))]


def _command_lines(page: Path) -> Iterator[str]:
    for block in blocks(page):
        yield from (line[2:] for line in block.lines if line.startswith("$ aish "))


def _properties(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node.get("properties", ())
        for inner in node.values():
            yield from _properties(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _properties(inner)
