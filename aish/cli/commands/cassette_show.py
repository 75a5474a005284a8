"""`aish cassette show PATH`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from aish.cassettes.format.file import load
from aish.cassettes.format.interaction import Cassette
from aish.cassettes.inspect.conversation import Part, conversation
from aish.cli.conversation_text import head_lines, part_lines
from aish.cli.options import CassetteArgument, Option, Report, ReportOption, VerboseOption
from aish.cli.printing import print_json, print_text
from aish.core.json import JsonObject
from aish.features.recording.recorded_answer import read_answer


def command(
    path: CassetteArgument,
    *,
    full: Annotated[bool, Option("--full", help="Show long texts in full.")] = False,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Print a cassette as the conversation that it is.

    Nothing is replayed.

    Example: aish cassette show tests/cassettes/quickstart.yaml
    """
    del verbose
    cassette = load(path, unfinished=True)
    parts = conversation(cassette.interactions, read_answer)
    if format_ is Report.JSON:
        print_json(_document(path, cassette, parts))
        return 0
    lines = list(head_lines(str(path), cassette.head, len(cassette.interactions)))
    for part in parts:
        lines += ("", *part_lines(part, full=full))
    print_text("\n".join(lines))
    return 0


def _document(path: Path, cassette: Cassette, parts: tuple[Part, ...]) -> JsonObject:
    return {
        "cassette": str(path),
        "head": None if cassette.head is None else asdict(cassette.head),
        "parts": [{"kind": _KINDS[type(part).__name__], **asdict(part)} for part in parts],
    }


_KINDS = {
    "ModelTurn": "model",
    "ServerExchange": "mcp",
    "Handshake": "session",
    "LocalCommand": "run",
    "OtherExchange": "other",
}
