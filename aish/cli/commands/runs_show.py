"""`aish runs show ID`."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from enum import StrEnum
from typing import Annotated

from aish.cli.options import Argument, Option, PastRunDirOption, Report, ReportOption, VerboseOption
from aish.cli.printer import folded, print_text, write_text
from aish.core.errors import UsageError, did_you_mean
from aish.core.events import (
    DecisionLevel,
    RunFinished,
    RunStarted,
    Stamped,
    ToolDecided,
    TurnFinished,
    TurnPurpose,
    TurnStarted,
    rfc3339,
)
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.phrases import backticked, counted
from aish.core.text import for_ci_log, for_line
from aish.engine.run_folder import kept_file
from aish.features.history.messages import Answered, RequestFilter, requests
from aish.features.history.run_store import RunStore, find_run, open_stores
from aish.features.history.summary import calls_of_level, events, require_past
from aish.journal.history import Call, Request
from aish.output.formats.plain import Plain
from aish.output.items.results import open_items_file
from aish.output.result import Fold, result_pieces

_PURPOSES: Mapping[TurnPurpose, str] = {
    "answer": "turn",
    "summary": "summary in turn",
    "sampling": "for a server, in turn",
    "judge": "judge, turn",
}


class CallLevel(StrEnum):
    """The levels of tool calls, as the command line names them."""

    INFO = "info"
    SECURITY = "security"


def command(
    id: Annotated[
        str,
        Argument(
            metavar="ID",
            help="The run: its id, the end of its id, or `latest`.",
            completes="run_ids",
        ),
    ],
    *,
    messages: Annotated[
        bool,
        Option("--messages", help="Show the requests to models, each with its new messages."),
    ] = False,
    step: Annotated[
        str | None, Option("--step", metavar="STEP", help="Only messages of this step.")
    ] = None,
    item: Annotated[
        str | None, Option("--item", metavar="KEY", help="Only messages of this item.")
    ] = None,
    level: Annotated[
        CallLevel | None,
        Option(
            "--level",
            help="List the tool calls of this level: `info` are approved calls of read-only tools,"
            " `security` all others.",
        ),
    ] = None,
    run_dir: PastRunDirOption = None,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Print the log, the result, the messages or the tool calls of a past run, from its journal.

    Example: aish runs show latest --step review --messages
    """
    del verbose
    if not messages and (step is not None or item is not None):
        named = "--step" if step is not None else "--item"
        raise UsageError(f"`{named}` chooses messages", hint="add `--messages`")
    if messages and level is not None:
        raise UsageError("`--level` lists tool calls, `--messages` requests to models: give one")
    with ExitStack() as stack:
        store, found = find_run(open_stores(run_dir, stack), id)
        if level is not None:
            _print_calls(store, found, level.value, format_, stack)
        elif messages:
            _print_messages(store, found, RequestFilter(step, item), format_, stack)
        elif format_ is Report.JSON:
            _print_result(store, found, stack)
        else:
            _print_log(store, found, stack)
    return 0


def _end_after(end: RunFinished | None, stamped: Stamped) -> RunFinished | None:
    """The end of the run after one more event: an answer may follow it, a new part replaces it."""
    if isinstance(stamped.event, RunFinished):
        return stamped.event
    return None if isinstance(stamped.event, RunStarted) else end


def _print_log(store: RunStore, id: str, stack: ExitStack) -> None:
    journal = require_past(store, id, stack)
    log = Plain(sys.stdout)
    end: RunFinished | None = None
    for stamped in events(journal.reading):
        end = _end_after(end, stamped)
        log(stamped)
    if end is not None:
        return
    if (who := journal.writer(end)) is not None:
        print_text(f"still running: {who} writes the journal")
    else:
        print_text("interrupted: the journal has no end")


def _print_result(store: RunStore, id: str, stack: ExitStack) -> None:
    journal = require_past(store, id, stack)
    fold = Fold(id)
    items = stack.enter_context(closing(open_items_file(None)))
    end: RunFinished | None = None
    for stamped in events(journal.reading):
        fold.take(stamped)
        items(stamped)
        end = _end_after(end, stamped)
    if end is None:
        found = fold.so_far(journal.state(end), str(store.path / id))
    else:
        found = fold.result(end)
    for piece in result_pieces(found, items):
        write_text(piece)


def _print_messages(
    store: RunStore, id: str, wanted: RequestFilter, format_: Report, stack: ExitStack
) -> None:
    reading = require_past(store, id, stack).reading
    folder = store.path / id
    found = requests(events(reading), wanted, lambda name: kept_file(folder, name))
    first = next(found, None)
    if first is None:
        raise _nothing_sent(store, id, wanted)
    if format_ is Report.JSON:
        pieces = _json_pieces(id, first, found)
        for piece in pieces:
            write_text(piece)
        return
    print_text("\n".join(_request_lines(*first)))
    for one in found:
        print_text("\n".join(("", *_request_lines(*one))))


def _print_calls(
    store: RunStore, id: str, level: DecisionLevel, format_: Report, stack: ExitStack
) -> None:
    """The calls of one level, as they ended; those without an end come last (K18)."""
    found = calls_of_level(events(require_past(store, id, stack).reading), level)
    if format_ is Report.JSON:
        separator = f'{{"v":1,"run":{json_text(id)},"level":{json_text(level)},"calls":['
        for call, decided in found:
            write_text(f"{separator}{json_text(_call_object(call, decided))}")
            separator = ","
        write_text("]}\n" if separator == "," else f"{separator}]}}\n")
        return
    empty = True
    for call, decided in found:
        empty = False
        print_text("\n".join(_decision_lines(call, decided)))
    if empty:
        print_text(f"no tool calls of level `{level}`")


def _call_object(call: Call, decided: ToolDecided) -> JsonObject:
    ended = call.finished
    return {
        "seq": call.seq,
        "time": rfc3339(call.began),
        "step": call.place.step,
        "item": call.place.item,
        "turn": call.place.turn,
        "call": call.place.call,
        "tool": decided.tool,
        "arguments": decided.arguments,
        "verdict": decided.verdict,
        "rule": decided.rule,
        "digest": decided.digest,
        "kind": None if ended is None else ended.kind,
        "seconds": None if ended is None else ended.seconds,
    }


def _decision_lines(call: Call, decided: ToolDecided) -> Iterator[str]:
    step, item = str(call.place.step), call.place.item
    place = step if item is None else f"{step} · {item}"
    said = f"{rfc3339(call.began)} {place}: {decided.tool} {json_text(decided.arguments)}"
    yield for_ci_log(for_line(said))
    end = "no end" if call.finished is None else call.finished.kind
    yield for_ci_log(f"  {decided.verdict} ({for_line(decided.rule)}): {end}")


def _nothing_sent(store: RunStore, id: str, wanted: RequestFilter) -> UsageError:
    """Why there is nothing to show; names the steps or items that have something."""
    asked: dict[str, None] = {}
    with ExitStack() as stack:
        for stamped in events(require_past(store, id, stack).reading):
            place = stamped.event.place
            if not isinstance(stamped.event, TurnStarted) or place.step is None:
                continue
            if wanted.item is None:
                asked[place.step] = None
            elif place.item is not None and RequestFilter(wanted.step).has(place.step, place.item):
                asked[place.item] = None
    where = str(store.path / id)
    if not asked:
        return UsageError("there are no model requests here", where=where)
    word, name = ("item", wanted.item) if wanted.item is not None else ("step", wanted.step)
    said = f"there are no model requests in the {word} `{name}`"
    hint = did_you_mean(name or "", asked) or f"there are requests in {backticked(asked, 5)}"
    return UsageError(said, where=where, hint=hint)


def _json_pieces(id: str, first: Answered, rest: Iterator[Answered]) -> Iterator[str]:
    """One object, with at most one request in memory at a time."""
    yield f'{{"v":1,"run":{json_text(id)},"requests":[{json_text(_request_object(*first))}'
    for one in rest:
        yield f",{json_text(_request_object(*one))}"
    yield "]}\n"


def _request_object(request: Request, answer: TurnFinished | None) -> JsonObject:
    return {
        "step": request.place.step,
        "item": request.place.item,
        "attempt": request.attempt,
        "turn": request.place.turn,
        "purpose": request.purpose,
        "model": request.model,
        "count": request.count,
        "earlier": request.earlier,
        "rewritten": request.rewritten,
        "messages": list(request.messages),
        "answer": None if answer is None else _answer_object(answer),
    }


def _answer_object(answer: TurnFinished) -> JsonObject:
    calls: list[JsonValue] = [
        {"id": call.id, "name": call.name, "arguments": call.arguments} for call in answer.calls
    ]
    return {"model": answer.model, "finish": answer.finish, "text": answer.text, "calls": calls}


def _request_lines(request: Request, answer: TurnFinished | None) -> Iterator[str]:
    step, item = str(request.place.step), request.place.item
    place = step if item is None else f"{step} · {item}"
    attempt = f" · attempt {request.attempt}" if request.attempt > 1 else ""
    turn = "" if request.place.turn is None else f" {request.place.turn}"
    sent = counted(request.count, "message")
    said = f"{for_line(place)}{attempt} · {_PURPOSES[request.purpose]}{turn}"
    yield for_ci_log(f"{said} · model {for_line(request.model)} · {sent}")
    if request.earlier:
        yield f"  {counted(request.earlier, 'earlier message')}, not part of this step's own"
    if request.rewritten is not None:
        yield f"  all messages again: {for_line(request.rewritten)}"
    for at, message in enumerate(request.messages):
        # It is shown above as the answer to the previous request.
        if at or message.get("role") != "assistant" or request.rewritten is not None:
            yield from _message_lines(message)
    if answer is None:
        yield "  no answer"
        return
    yield for_ci_log(f"  answer of {for_line(answer.model)}: {for_line(answer.finish)}")
    if answer.text:
        yield from folded(answer.text, full=True, indent="    ")
    for call in answer.calls:
        yield from _call_lines(call.id, call.name, call.arguments)


def _message_lines(message: JsonObject) -> Iterator[str]:
    role = str(message.get("role"))
    reply = f" {message.get('tool')} ({message.get('call_id')})" if role == "tool" else ""
    yield for_ci_log(f"  {for_line(role + reply)}")
    text = str(message.get("content" if role == "tool" else "text") or "")
    if text:
        yield from folded(text, full=True, indent="    ")
    count = message.get("characters")
    if isinstance(count, int) and count > len(text):
        yield for_ci_log(f"    … {count:,} characters were in {for_line(str(message.get('file')))}")
    for media in _objects(message, "media"):
        kept = media.get("file") or f"SHA-256 {media.get('sha256')}"
        yield for_ci_log(f"    [{for_line(str(media.get('mime_type')))}, {for_line(str(kept))}]")
    for call in _objects(message, "calls"):
        yield from _call_lines(*(str(call.get(key)) for key in ("id", "name", "arguments")))


def _call_lines(id: str, name: str, arguments: str) -> Iterator[str]:
    yield for_ci_log(f"    → {for_line(name)} {for_line(arguments)} ({for_line(id)})")


def _objects(message: JsonObject, key: str) -> list[JsonObject]:
    found = message.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
