"""A unit as HTML: turns, tool calls, retries, expectations, the end."""

from collections.abc import Iterator, Mapping
from hashlib import sha256

from aish.core.events import (
    REFUSED,
    AnswerPurpose,
    ExpectChecked,
    Fallback,
    MessagePurpose,
    Notice,
    Place,
    QuoteEvidence,
    Retry,
    TextWithdrawn,
)
from aish.core.frozen import frozen, replace
from aish.core.json import JsonObject, JsonValue, json_text, objects_in
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.journal.history import Aside, CallRecord, Entry, Sent, TurnRecord, Unit
from aish.output.status import answer_text, call_status, flow_text, question_text
from aish.reports.figures import tokens_text, took_text
from aish.reports.markup import NOTHING, Markup, block, concat, pre, tag
from aish.reports.outcome import reason_of

_CallId = tuple[int | None, str | None]
"""The turn of a call and its id."""
_SHORT = 8
_LINE = 90
_PURPOSES: Mapping[AnswerPurpose, str] = {
    "answer": "Turn",
    "summary": "Summary in turn",
    "sampling": "For a server, in turn",
    "judge": "Judge",
    "paused": "Part of a paused turn:",
}
_RECEIVERS: Mapping[MessagePurpose, str] = {
    "summary": "sent for a summary",
    "sampling": "sent for a server",
    "judge": "sent to a judge",
}


@frozen
class Room:
    text: int = 100_000
    part: int = 20_000
    entries: int = 500


def unit_body(unit: Unit, room: Room, *, conversation: bool = True) -> Markup:
    return concat(
        [
            _trouble(unit),
            _answer(unit, room),
            _checks(unit),
            _answer_part(unit, room) if conversation else NOTHING,
        ]
    )


def _trouble(unit: Unit) -> Markup:
    reason = reason_of(unit)
    if reason is None:
        return NOTHING
    quiet = unit.finished is not None and unit.finished.status in {"skipped", "paused"}
    return tag(
        "div",
        tag("strong", reason.code, class_="code"),
        tag("p", reason.message),
        _hint(reason.hint),
        class_="note quiet" if quiet else "note bad",
    )


def _hint(hint: str | None) -> Markup:
    return tag("p", f"hint: {hint}", class_="hint") if hint else NOTHING


def _answer(unit: Unit, room: Room) -> Markup:
    end = unit.finished
    if end is None:
        return NOTHING
    if end.output is not None and not isinstance(end.output, str) and _same(end.text, end.output):
        return concat([tag("h4", "Answer"), block(_pretty(end.output), room.text, class_="json")])
    parts = []
    if end.text:
        parts += [tag("h4", "Answer"), block(end.text, room.text, class_="answer")]
    if end.output is not None and not _same(end.text, end.output):
        parts += [tag("h4", "Output"), block(_pretty(end.output), room.text, class_="json")]
    return concat(parts)


def _same(text: str | None, output: JsonValue) -> bool:
    if isinstance(output, str):
        return output == text
    return text is not None and text.strip() in {
        json_text(output, indent=2),
        json_text(output),
        json_text(output, spaced=True),
    }


def _pretty(value: JsonValue) -> str:
    line = json_text(value, spaced=True)
    return line if len(line) <= _LINE else json_text(value, indent=2)


def _checks(unit: Unit) -> Markup:
    if not unit.checks:
        return NOTHING
    return concat(
        [tag("h4", "Expectations"), tag("ul", *map(_check, unit.checks), class_="checks")]
    )


def _check(check: ExpectChecked) -> Markup:
    """An expectation; each quote of a `quoted` leads to the call that has it."""
    quotes = [_quote(one, check.place) for one in check.evidence or ()]
    first, _, rest = check.message.partition("\n")
    return tag(
        "li",
        tag(
            "span",
            "met" if check.ok else "not met",
            class_=f"chip {'ok' if check.ok else 'failed'}",
        ),
        " ",
        tag("code", check.kind),
        " ",
        first,
        pre(rest, *map(diff_line, rest.split("\n")), class_="diff") if rest else None,
        tag("details", tag("summary", counted(len(quotes), "quote")), tag("ul", *quotes))
        if quotes
        else None,
    )


def _quote(quote: QuoteEvidence, place: Place) -> Markup:
    where = quote.file or quote.source or ""
    where += f":{quote.line}" if where and quote.line is not None else ""
    found = " ".join(part for part in (quote.tool, where) if part)
    here = replace(place, turn=quote.turn, call=quote.call)
    is_linked = quote.call is not None and quote.step == place.step
    return tag(
        "li",
        tag("span", quote.state, class_=f"chip {'ok' if quote.state == 'found' else 'failed'}"),
        " ",
        tag("code", quote.path),
        " ",
        quote.quote,
        " ",
        tag("a", found, href=f"#{_anchor(here)}") if is_linked else tag("span", found),
        tag("p", quote.around, class_="quiet") if quote.around else None,
        *(tag("p", f"left out: {text}", class_="quiet") for text in quote.left_out),
    )


def _anchor(place: Place) -> str:
    """The id of a call on its page."""
    key = json_text([place.step, place.item, place.turn, place.call])
    return f"call-{sha256(key.encode('utf-8', 'replace')).hexdigest()[:12]}"


def _quoted_calls(unit: Unit) -> frozenset[_CallId]:
    quotes = (quote for check in unit.checks for quote in check.evidence or ())
    return frozenset((quote.turn, quote.call) for quote in quotes if quote.step == unit.step)


def diff_line(line: str) -> Markup:
    sign = line.lstrip()[:1]
    kind = {"+": "ins", "-": "del"}.get(sign, "span")
    return tag(kind, f"{line}\n")


def _answer_part(unit: Unit, room: Room) -> Markup:
    entries = unit.entries
    if not entries:
        return NOTHING
    answer = unit.finished.text if unit.finished is not None else None
    quoted = _quoted_calls(unit)
    items = [_entry(entry, unit, room, answer, quoted) for entry in entries[: room.entries]]
    left = len(entries) - len(items)
    more = tag("p", f"… and {left:,} more entries, left out here", class_="cut") if left else None
    return concat([tag("h4", "Conversation"), tag("ol", *items, class_="talk"), more])


def _entry(
    entry: Entry, unit: Unit, room: Room, answer: str | None, quoted: frozenset[_CallId]
) -> Markup:
    match entry:
        case TurnRecord():
            return _turn(entry, unit, room, answer)
        case CallRecord(place=place):
            return tag(
                "li",
                tag(
                    "p", tag("code", entry.tool), *_verdict(entry), *_outcome(entry), class_="head"
                ),
                _question(entry),
                _causes(entry),
                _arguments(entry, room),
                _result(entry, room),
                NOTHING if entry.decided is None else _hint(entry.decided.hint),
                class_="call",
                id=_anchor(place) if (place.turn, place.call) in quoted else None,
            )
        case Sent():
            return _messages(entry, room)
        case Aside(event=event):
            word, text = _aside(event)
            return tag(
                "li", tag("strong", word, class_="code"), " ", for_line(text), class_="aside"
            )


def _aside(event: Retry | Fallback | Notice | TextWithdrawn) -> tuple[str, str]:
    match event:
        case Retry(endpoint=endpoint, attempt=attempt, delay=delay, reason=reason):
            return "retry", f"{endpoint}: attempt {attempt}, after {took_text(delay)}: {reason}"
        case Fallback(source=source, target=target, reason=reason):
            return "fallback", f"{source} → {target}: {reason}"
        case TextWithdrawn():
            return "withdrawn", "the answer so far is withdrawn"
        case Notice(level=level, code=code, text=text):
            return f"{level}: {code}", text


def _turn(turn: TurnRecord, unit: Unit, room: Room, answer: str | None) -> Markup:
    end = turn.said
    number = end.place.turn
    facts = [end.model, end.finish, tokens_text(end.usage), took_text(end.seconds)]
    if end.first_token_seconds is not None:
        facts.append(f"first token after {took_text(end.first_token_seconds)}")
    head = tag(
        "p",
        tag("strong", _PURPOSES[end.purpose], "" if number is None else f" {number}"),
        tag("span", " · ".join(facts), class_="facts"),
        class_="head",
    )
    if not end.text:
        return tag("li", head, class_="turn")
    if end.text == answer and turn is unit.entries[-1]:
        return tag("li", head, tag("p", "the answer above", class_="quiet"), class_="turn")
    return tag("li", head, block(end.text, room.part), class_="turn")


def _messages(sent: Sent, room: Room) -> Markup:
    """Messages as they were sent; long ones are collapsed."""
    to = _RECEIVERS.get(sent.purpose)
    anew = "all messages before are replaced" if sent.anew is not None else None
    head = [part for part in (anew, sent.anew, to) if part]
    parts = [tag("p", tag("span", " · ".join(head), class_="facts"), class_="head")] if head else []
    return tag("li", *parts, *(_message(message, room) for message in sent.messages), class_="sent")


def _message(message: JsonObject, room: Room) -> Markup:
    role = str(message.get("role"))
    text = str(message.get("content" if role == "tool" else "text") or "")
    head = [tag("strong", role.capitalize())]
    if role == "tool":
        head.append(tag("code", str(message.get("tool"))))
    head += [
        tag("span", f"{medium.get('mime_type')}, SHA-256 {medium.get('sha256')}", class_="facts")
        for medium in objects_in(message.get("media"))
    ]
    calls = [
        f"{call.get('name')} {call.get('arguments')}" for call in objects_in(message.get("calls"))
    ]
    content = block("\n".join([*([text] if text else []), *calls]), room.part)
    file, count = message.get("file"), message.get("characters")
    if isinstance(file, str):
        note = tag("p", f"the whole message, {count:,} characters: {file}", class_="cut")
        content = concat([content, note])
    lines = text.count("\n") + 1
    if lines > _SHORT or len(text) > _SHORT * 100:
        size = f"{lines:,} lines, {len(text):,} characters"
        content = tag("details", tag("summary", size), content)
    return concat([tag("p", *head, class_="head"), content])


def _verdict(call: CallRecord) -> Iterator[Markup]:
    decided = call.decided
    if decided is None:
        return
    refused = decided.verdict in REFUSED
    yield tag("span", decided.verdict, class_=f"chip {'denied' if refused else 'plain'}")
    yield tag("span", decided.level, class_="chip plain")
    yield tag("span", f"by {decided.rule}", class_="facts")


def _question(call: CallRecord) -> Markup:
    question = call.question
    if question is None:
        return NOTHING
    asked, answered = question.asked, question.answered
    text = question_text(asked) if answered is None else answer_text(answered, asked.tool)
    return tag("p", for_line(text), class_="quiet")


def _causes(call: CallRecord) -> Markup:
    flow = None if call.decided is None else call.decided.flow
    return NOTHING if flow is None else tag("p", for_line(flow_text(flow)), class_="quiet")


def _outcome(call: CallRecord) -> Iterator[Markup]:
    finished = call.finished
    if call.waits:
        yield tag("span", "waits", class_="chip paused")
        return
    if finished is None:
        yield tag("span", "no result", class_="chip cut_off")
        return
    status = call_status(finished)
    if status not in {"ok", "denied"}:
        yield tag("span", status, class_="chip error")
    if finished.kind != "denied":
        yield tag("span", took_text(finished.seconds), class_="facts")


def _arguments(call: CallRecord, room: Room) -> Markup:
    value = call.arguments
    if value is None or value == {}:
        return NOTHING
    text = value if isinstance(value, str) else _pretty(value)
    return block(text, room.part, class_="json", aria_label="arguments")


def _result(call: CallRecord, room: Room) -> Markup:
    finished = call.finished
    if finished is None:
        return NOTHING
    note = tag("p", f"the whole result: {finished.full}", class_="cut") if finished.full else None
    if not finished.content:
        return concat([tag("p", "an empty result", class_="quiet"), note])
    content = block(finished.content, room.part, aria_label="result")
    lines = finished.content.count("\n") + 1
    if lines <= _SHORT and len(finished.content) <= _SHORT * 100:
        return concat([content, note])
    size = f"Result: {lines:,} lines, {len(finished.content):,} characters"
    return tag("details", tag("summary", size), content, note)
