"""`aish cassette show PATH`: the conversation in a cassette.

All untrusted text is sanitized.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, assert_never

from aish.cassettes.format.file import load
from aish.cassettes.format.interaction import RecordingMetadata
from aish.cassettes.inspect.conversation import (
    AnsweredQuestion,
    AskedCall,
    Handshake,
    LocalCommand,
    ModelTurn,
    OtherExchange,
    Part,
    ServerExchange,
    ShownFiles,
    conversation,
)
from aish.cli.options import CassetteArgument, Option, Report, ReportOption
from aish.cli.printer import lines_to_show, print_json, print_text
from aish.core.json import JsonValue
from aish.core.phrases import counted, shorten, shorten_counted
from aish.core.text import for_ci_log, for_line
from aish.features.recording.recorded_answer import read_answer

_SHORT = 400
_BODY = 600
_LONGEST_NAME = 200
_DIGEST = 12


def head_lines(name: str, head: RecordingMetadata | None, count: int) -> Iterator[str]:
    yield for_ci_log(f"cassette {_name(name)}: {counted(count, 'exchange')}")
    if head is None:
        yield "recorded by another program: the run is unknown"
        return
    complete = "complete" if head.complete else "not complete: the run was interrupted"
    clock, run = _name(head.clock), _name(head.run)
    yield for_ci_log(f"recorded {clock} by run {run}, version {head.version}, {complete}")
    for variable, value in head.env.items():
        yield for_ci_log(f"  {_name(variable)}={_clip(value)}")


def part_lines(part: Part, *, full: bool) -> Iterator[str]:
    """Yield the lines of a part, its number on the first."""
    lines = _lines(part, full=full)
    yield for_ci_log(f"{part.number:>3}  {next(lines)}")
    for line in lines:
        yield f"     {line}" if line else ""


def _lines(part: Part, *, full: bool) -> Iterator[str]:
    match part:
        case ModelTurn():
            return _turn(part, full=full)
        case ServerExchange():
            return _exchange(part, full=full)
        case Handshake() | ShownFiles():
            return iter([_summary(part)])
        case LocalCommand():
            return _command(part, full=full)
        case AnsweredQuestion():
            return _question(part, full=full)
        case OtherExchange():
            return _other(part, full=full)
    assert_never(part)


def _summary(part: Handshake | ShownFiles) -> str:
    if isinstance(part, Handshake):
        events = ", ".join(_clip(event) for event in part.events)
        return f"{_name(part.server)} · session: {events}"
    files = ", ".join(f"{_name(path)} {_name(change)}" for path, change in part.files)
    return f"files of {_name(part.step)} · {files or 'none'}"


def _turn(turn: ModelTurn, *, full: bool) -> Iterator[str]:
    after = f", continues {turn.follows}" if turn.follows is not None else ""
    after = f", repeats the request of {turn.again}" if turn.again is not None else after
    after += ", requested by a server" if turn.sampled else ""
    yield f"model {_name(turn.model)} at {_name(turn.endpoint)}{after}"
    if turn.tools and turn.follows is None and turn.again is None:
        yield f"tools: {_clip(', '.join(turn.tools))}"
    for message in turn.news:
        reply = f" to {_clip(message.call)}" if message.call else ""
        yield f"{_name(message.role)}{reply}"
        if message.text:
            yield from lines_to_show(message.text, full=full)
        yield from _calls(message.calls, full=full)
    answer = turn.answer
    parts = [answer.finish] if answer.finish else []
    parts += [_clip(answer.trouble)] if answer.trouble is not None else []
    counts = ((answer.usage.input, "tokens in"), (answer.usage.output, "out"))
    parts += [f"{count} {name}" for count, name in counts if count is not None]
    parts += _seconds(turn.seconds)
    yield f"answer: {', '.join(parts)}"
    if answer.thoughts:
        yield "  thinks"
        yield from lines_to_show(answer.thoughts, full=full, indent="    ")
    if answer.text:
        yield from lines_to_show(answer.text, full=full)
    yield from _calls(answer.calls, full=full)


def _calls(calls: Sequence[AskedCall], *, full: bool) -> Iterator[str]:
    for call in calls:
        named = f" ({_name(call.id)})" if call.id else ""
        yield f"  → {_name(call.name)} {_clip(call.arguments, full=full)}{named}"


def _exchange(part: ServerExchange, *, full: bool) -> Iterator[str]:
    name = f" {_name(part.name)}" if part.name else ""
    arguments = _clip(_json(part.arguments), full=full) if part.arguments not in ({}, "") else ""
    took = f"  ({', '.join(_seconds(part.seconds))})" if part.seconds else ""
    head = f"{_name(part.server)} · {_name(part.method)}{name} {arguments}".rstrip()
    yield f"{head}{took}"
    for event in part.beside:
        yield f"  meanwhile: {_clip(event)}"
    if part.trouble is not None:
        yield f"  {_clip(part.trouble)}"
    if part.failed:
        yield "  failed:"
    if part.text:
        yield from lines_to_show(part.text, full=full)


def _command(part: LocalCommand, *, full: bool) -> Iterator[str]:
    import shlex

    command = part.command if isinstance(part.command, str) else shlex.join(part.command)
    yield f"run {_name(part.step)} · {_clip(command, full=full)}"
    if part.trouble is not None:
        yield f"  {_clip(part.trouble)}"
    if part.exit_code is not None:
        yield f"  exit code {part.exit_code}"
    if part.stdout:
        yield from lines_to_show(part.stdout, full=full)
    if part.stderr:
        yield "  on stderr"
        yield from lines_to_show(part.stderr, full=full, indent="    ")


def _question(part: AnsweredQuestion, *, full: bool) -> Iterator[str]:
    again = "" if part.count == 1 else f", question {part.count}"
    by = f" by {_name(part.by)} ({_name(part.way)})" if part.by else ""
    answer = f"{_name(part.answer) or 'no answer'}{by}"
    call = f"{_name(part.tool)} {_name(part.digest[:_DIGEST])}"
    yield f"approval in {_name(part.step)} · {call}{again}: {answer}"
    if part.note:
        yield from lines_to_show(part.note, full=full)


def _other(part: OtherExchange, *, full: bool) -> Iterator[str]:
    status = f"{part.status} {_name(part.reason)}".rstrip()
    yield f"{_name(part.method)} {_clip(part.uri)} → {status}"
    if part.trouble is not None:
        yield f"  {_clip(part.trouble)}"
    if part.body:
        yield from lines_to_show(part.body if full else part.body[:_BODY], full=full)
    if not full and len(part.body) > _BODY:
        yield f"  … {len(part.body) - _BODY} more characters; `--full` shows all"


def _seconds(seconds: float | None) -> list[str]:
    return [] if seconds is None else [f"{seconds:.2f} s"]


def _json(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _name(text: str) -> str:
    return for_line(shorten(text, _LONGEST_NAME))


def _clip(text: str, *, full: bool = False) -> str:
    return for_line(text if full else shorten_counted(text, _SHORT))


def command(
    path: CassetteArgument,
    *,
    full: Annotated[bool, Option("--full", "Show long texts in full.")] = False,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Print a cassette as a conversation.

    Nothing is replayed.

    Example: aish cassette show tests/cassettes/quickstart.yaml
    """
    cassette = load(path, unfinished=True)
    parts = conversation(cassette.interactions, read_answer)
    if output_format is Report.JSON:
        print_json(
            {
                "cassette": str(path),
                "head": None if cassette.head is None else asdict(cassette.head),
                "parts": [{"kind": _KINDS[type(part).__name__], **asdict(part)} for part in parts],
            }
        )
        return 0
    lines = list(head_lines(str(path), cassette.head, len(cassette.interactions)))
    for part in parts:
        lines += ("", *part_lines(part, full=full))
    print_text("\n".join(lines))
    return 0


_KINDS = {
    "ModelTurn": "model",
    "ServerExchange": "mcp",
    "Handshake": "session",
    "LocalCommand": "run",
    "ShownFiles": "files",
    "AnsweredQuestion": "approval",
    "OtherExchange": "other",
}
