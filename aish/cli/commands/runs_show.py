"""`aish runs show ID`."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from enum import StrEnum
from typing import Annotated

from aish.cli.options import Option, PastRunDirOption, Report, ReportOption, RunArgument
from aish.cli.printer import lines_to_show, print_text, write_text
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
    plain,
    rfc3339,
)
from aish.core.json import JsonObject, JsonValue, json_text, objects_in
from aish.core.phrases import backticked, counted
from aish.core.text import for_ci_log, for_line
from aish.engine.run_folder import read_kept
from aish.features.history.messages import RequestFilter, requests
from aish.features.history.run_store import RunStore, find_run, open_stores
from aish.features.history.summary import calls_of_level, events, require_past
from aish.journal.history import CallRecord, SentRequest
from aish.output.formats.plain import Plain
from aish.output.items.results import open_items_file
from aish.output.result import ResultFold, result_pieces
from aish.output.status import flow_text

_PURPOSES: Mapping[TurnPurpose, str] = {
    "answer": "turn",
    "summary": "summary in turn",
    "sampling": "for a server, in turn",
    "judge": "judge, turn",
}


class CallLevel(StrEnum):
    INFO = "info"
    SECURITY = "security"


def command(
    id: RunArgument,
    *,
    messages: Annotated[
        bool, Option("--messages", "Show the requests to models, each with its new messages.")
    ] = False,
    step: Annotated[str | None, Option("--step STEP", "Only messages of this step.")] = None,
    item: Annotated[str | None, Option("--item KEY", "Only messages of this item.")] = None,
    level: Annotated[
        CallLevel | None,
        Option(
            "--level",
            "List the tool calls of this level: `info` are approved calls of read-only tools,"
            " `security` all others.",
        ),
    ] = None,
    run_dir: PastRunDirOption = None,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Print the log, the result, the messages or the tool calls of a past run, from its journal.

    Example: aish runs show latest --step review --messages
    """
    if not messages and (step is not None or item is not None):
        named = "--step" if step is not None else "--item"
        raise UsageError(f"`{named}` chooses messages", hint="add `--messages`")
    if messages and level is not None:
        raise UsageError("`--level` lists tool calls, `--messages` requests to models: give one")
    with ExitStack() as stack:
        store, run_id = find_run(open_stores(run_dir, stack), id)
        if level is not None:
            _print_calls(store, run_id, level.value, output_format, stack)
        elif messages:
            _print_messages(store, run_id, RequestFilter(step, item), output_format, stack)
        elif output_format is Report.JSON:
            _print_result(store, run_id, stack)
        else:
            _print_log(store, run_id, stack)
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
    fold = ResultFold(id)
    items = stack.enter_context(closing(open_items_file(None)))
    end: RunFinished | None = None
    for stamped in events(journal.reading):
        fold.take(stamped)
        items(stamped)
        end = _end_after(end, stamped)
    if end is None:
        result = fold.so_far(journal.state(end), str(store.path / id))
    else:
        result = fold.result(end)
    for piece in result_pieces(result, items):
        write_text(piece)


def _print_messages(
    store: RunStore, id: str, scope: RequestFilter, output_format: Report, stack: ExitStack
) -> None:
    reading = require_past(store, id, stack).reading
    folder = store.path / id
    pairs = requests(events(reading), scope, lambda name: read_kept(folder, name))
    first = next(pairs, None)
    if first is None:
        raise _no_requests(store, id, scope)
    if output_format is Report.JSON:
        # At most one request is in memory at a time.
        begin = f'{{"v":1,"run":{json_text(id)},"requests":['
        write_text(f"{begin}{json_text(_request_object(*first))}")
        for request in pairs:
            write_text(f",{json_text(_request_object(*request))}")
        write_text("]}\n")
        return
    print_text("\n".join(_request_lines(*first)))
    for exchange in pairs:
        print_text("\n".join(("", *_request_lines(*exchange))))


def _print_calls(
    store: RunStore, id: str, level: DecisionLevel, output_format: Report, stack: ExitStack
) -> None:
    """The calls of one level, as they ended; those without an end come last."""
    calls = calls_of_level(events(require_past(store, id, stack).reading), level)
    if output_format is Report.JSON:
        separator = f'{{"v":1,"run":{json_text(id)},"level":{json_text(level)},"calls":['
        for call, decided in calls:
            write_text(f"{separator}{json_text(_call_object(call, decided))}")
            separator = ","
        write_text("]}\n" if separator == "," else f"{separator}]}}\n")
        return
    empty = True
    for call, decided in calls:
        empty = False
        print_text("\n".join(_decision_lines(call, decided)))
    if empty:
        print_text(f"no tool calls of level `{level}`")


def _call_object(call: CallRecord, decided: ToolDecided) -> JsonObject:
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
        "flow": plain(decided.flow),
        "digest": decided.digest,
        "kind": None if ended is None else ended.kind,
        "seconds": None if ended is None else ended.seconds,
    }


def _decision_lines(call: CallRecord, decided: ToolDecided) -> Iterator[str]:
    step, item = str(call.place.step), call.place.item
    place = step if item is None else f"{step} · {item}"
    call_line = f"{rfc3339(call.began)} {place}: {decided.tool} {json_text(decided.arguments)}"
    yield for_ci_log(for_line(call_line))
    end = "no end" if call.finished is None else call.finished.kind
    yield for_ci_log(f"  {decided.verdict} ({for_line(decided.rule)}): {end}")
    if decided.flow is not None:
        yield for_ci_log(f"  {for_line(flow_text(decided.flow))}")


def _no_requests(store: RunStore, id: str, scope: RequestFilter) -> UsageError:
    """Return the error for nothing to show; it names the steps or items that have something."""
    asked: dict[str, None] = {}
    with ExitStack() as stack:
        for stamped in events(require_past(store, id, stack).reading):
            place = stamped.event.place
            if not isinstance(stamped.event, TurnStarted) or place.step is None:
                continue
            if scope.item is None:
                asked[place.step] = None
            elif place.item is not None and RequestFilter(scope.step).has(place.step, place.item):
                asked[place.item] = None
    where = str(store.path / id)
    if not asked:
        return UsageError("there are no model requests here", where=where)
    word, name = ("item", scope.item) if scope.item is not None else ("step", scope.step)
    message = f"there are no model requests in the {word} `{name}`"
    hint = did_you_mean(name or "", asked) or f"there are requests in {backticked(asked, 5)}"
    return UsageError(message, where=where, hint=hint)


def _request_object(request: SentRequest, answer: TurnFinished | None) -> JsonObject:
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


def _request_lines(request: SentRequest, answer: TurnFinished | None) -> Iterator[str]:
    step, item = str(request.place.step), request.place.item
    place = step if item is None else f"{step} · {item}"
    attempt = f" · attempt {request.attempt}" if request.attempt > 1 else ""
    turn = "" if request.place.turn is None else f" {request.place.turn}"
    sent = counted(request.count, "message")
    head = f"{for_line(place)}{attempt} · {_PURPOSES[request.purpose]}{turn}"
    yield for_ci_log(f"{head} · model {for_line(request.model)} · {sent}")
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
        yield from lines_to_show(answer.text, full=True, indent="    ")
    for call in answer.calls:
        yield from _call_lines(call.id, call.name, call.arguments)


def _message_lines(message: JsonObject) -> Iterator[str]:
    role = str(message.get("role"))
    reply = f" {message.get('tool')} ({message.get('call_id')})" if role == "tool" else ""
    yield for_ci_log(f"  {for_line(role + reply)}")
    text = str(message.get("content" if role == "tool" else "text") or "")
    if text:
        yield from lines_to_show(text, full=True, indent="    ")
    count = message.get("characters")
    if isinstance(count, int) and count > len(text):
        yield for_ci_log(f"    … {count:,} characters were in {for_line(str(message.get('file')))}")
    for media in objects_in(message.get("media")):
        source = media.get("file") or f"SHA-256 {media.get('sha256')}"
        yield for_ci_log(f"    [{for_line(str(media.get('mime_type')))}, {for_line(str(source))}]")
    for call in objects_in(message.get("calls")):
        yield from _call_lines(*(str(call.get(key)) for key in ("id", "name", "arguments")))


def _call_lines(id: str, name: str, arguments: str) -> Iterator[str]:
    yield for_ci_log(f"    → {for_line(name)} {for_line(arguments)} ({for_line(id)})")
