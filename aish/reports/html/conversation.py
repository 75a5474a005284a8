"""What happened in a unit, as HTML: turns, tool calls, retries, expectations, the end."""

from collections.abc import Iterator, Mapping

from aish.core.events import (
    REFUSED,
    ExpectChecked,
    Fallback,
    MessagePurpose,
    Notice,
    Retry,
    TextWithdrawn,
    TurnPurpose,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.text import for_line
from aish.journal.history import Aside, Call, Entry, Sent, Turn, Unit
from aish.output.status import answered_text, asked_text, call_status
from aish.reports.figures import tokens_text, took_text
from aish.reports.markup import NOTHING, Markup, block, joined, pre, tag
from aish.reports.outcome import reason_of

_SHORT = 8
_LINE = 90
_PURPOSES: Mapping[TurnPurpose, str] = {
    "answer": "Turn",
    "summary": "Summary in turn",
    "sampling": "For a server, in turn",
    "judge": "Judge",
}
_RECEIVERS: Mapping[MessagePurpose, str] = {
    "summary": "sent for a summary",
    "sampling": "sent for a server",
    "judge": "sent to a judge",
}


@frozen
class Room:
    """The maximum number of characters of a text, and of a part of a conversation."""

    text: int = 100_000
    part: int = 20_000
    entries: int = 500


def unit_body(unit: Unit, room: Room, *, conversation: bool = True) -> Markup:
    """Everything about a unit below its heading."""
    return joined(
        [
            _trouble(unit),
            _answer(unit, room),
            _checks(unit),
            _said(unit, room) if conversation else NOTHING,
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
        tag("p", f"hint: {reason.hint}", class_="hint") if reason.hint else None,
        class_="note quiet" if quiet else "note bad",
    )


def _answer(unit: Unit, room: Room) -> Markup:
    end = unit.finished
    if end is None:
        return NOTHING
    if end.output is not None and not isinstance(end.output, str) and _same(end.text, end.output):
        return joined([tag("h4", "Answer"), block(_pretty(end.output), room.text, class_="json")])
    parts = []
    if end.text:
        parts += [tag("h4", "Answer"), block(end.text, room.text, class_="answer")]
    if end.output is not None and not _same(end.text, end.output):
        parts += [tag("h4", "Output"), block(_pretty(end.output), room.text, class_="json")]
    return joined(parts)


def _same(text: str | None, output: JsonValue) -> bool:
    """Whether the text is the same as the output."""
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
    return joined(
        [tag("h4", "Expectations"), tag("ul", *map(_check, unit.checks), class_="checks")]
    )


def _check(check: ExpectChecked) -> Markup:
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
        pre(rest, *map(_diff_line, rest.split("\n")), class_="diff") if rest else None,
    )


def _diff_line(line: str) -> Markup:
    sign = line.lstrip()[:1]
    kind = {"+": "ins", "-": "del"}.get(sign, "span")
    return tag(kind, f"{line}\n")


def _said(unit: Unit, room: Room) -> Markup:
    entries = unit.entries
    if not entries:
        return NOTHING
    answer = unit.finished.text if unit.finished is not None else None
    shown = [_entry(entry, unit, room, answer) for entry in entries[: room.entries]]
    left = len(entries) - len(shown)
    more = tag("p", f"… and {left:,} more entries, left out here", class_="cut") if left else None
    return joined([tag("h4", "Conversation"), tag("ol", *shown, class_="talk"), more])


def _entry(entry: Entry, unit: Unit, room: Room, answer: str | None) -> Markup:
    match entry:
        case Turn():
            return _turn(entry, unit, room, answer)
        case Call():
            return _call(entry, room)
        case Sent():
            return _sent(entry, room)
        case Aside(event=event):
            word, said = _aside(event)
            return tag(
                "li", tag("strong", word, class_="code"), " ", for_line(said), class_="aside"
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


def _turn(turn: Turn, unit: Unit, room: Room, answer: str | None) -> Markup:
    said = turn.said
    number = said.place.turn
    facts = [said.model, said.finish, tokens_text(said.usage), took_text(said.seconds)]
    if said.first_token_seconds is not None:
        facts.append(f"first token after {took_text(said.first_token_seconds)}")
    head = tag(
        "p",
        tag("strong", _PURPOSES[said.purpose], "" if number is None else f" {number}"),
        tag("span", " · ".join(facts), class_="facts"),
        class_="head",
    )
    if not said.text:
        return tag("li", head, class_="turn")
    if said.text == answer and turn is unit.entries[-1]:
        return tag("li", head, tag("p", "the answer above", class_="quiet"), class_="turn")
    return tag("li", head, block(said.text, room.part), class_="turn")


def _sent(sent: Sent, room: Room) -> Markup:
    """Messages as they were sent; long ones are collapsed."""
    to = _RECEIVERS.get(sent.purpose)
    anew = "all messages before are replaced" if sent.anew is not None else None
    head = [one for one in (anew, sent.anew, to) if one]
    parts = [tag("p", tag("span", " · ".join(head), class_="facts"), class_="head")] if head else []
    return tag("li", *parts, *(_message(one, room) for one in sent.messages), class_="sent")


def _message(message: JsonObject, room: Room) -> Markup:
    role = str(message.get("role"))
    text = str(message.get("content" if role == "tool" else "text") or "")
    head = [tag("strong", role.capitalize())]
    if role == "tool":
        head.append(tag("code", str(message.get("tool"))))
    head += [
        tag("span", f"{one.get('mime_type')}, SHA-256 {one.get('sha256')}", class_="facts")
        for one in _objects(message.get("media"))
    ]
    calls = [f"{one.get('name')} {one.get('arguments')}" for one in _objects(message.get("calls"))]
    shown = block("\n".join([*([text] if text else []), *calls]), room.part)
    file, count = message.get("file"), message.get("characters")
    if isinstance(file, str):
        kept = tag("p", f"the whole message, {count:,} characters: {file}", class_="cut")
        shown = joined([shown, kept])
    lines = text.count("\n") + 1
    if lines > _SHORT or len(text) > _SHORT * 100:
        size = f"{lines:,} lines, {len(text):,} characters"
        shown = tag("details", tag("summary", size), shown)
    return joined([tag("p", *head, class_="head"), shown])


def _objects(value: JsonValue) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _call(call: Call, room: Room) -> Markup:
    return tag(
        "li",
        tag("p", tag("code", call.tool), *_verdict(call), *_outcome(call), class_="head"),
        _question(call),
        _arguments(call, room),
        _result(call, room),
        class_="call",
    )


def _verdict(call: Call) -> Iterator[Markup]:
    decided = call.decided
    if decided is None:
        return
    refused = decided.verdict in REFUSED
    yield tag("span", decided.verdict, class_=f"chip {'denied' if refused else 'plain'}")
    yield tag("span", decided.level, class_="chip plain")
    yield tag("span", f"by {decided.rule}", class_="facts")


def _question(call: Call) -> Markup:
    """Who was asked about the call, and the answer."""
    question = call.question
    if question is None:
        return NOTHING
    asked, answered = question.asked, question.answered
    said = asked_text(asked) if answered is None else answered_text(answered, asked.tool)
    return tag("p", for_line(said), class_="quiet")


def _outcome(call: Call) -> Iterator[Markup]:
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


def _arguments(call: Call, room: Room) -> Markup:
    value = call.arguments
    if value is None or value == {}:
        return NOTHING
    text = value if isinstance(value, str) else _pretty(value)
    return block(text, room.part, class_="json", aria_label="arguments")


def _result(call: Call, room: Room) -> Markup:
    finished = call.finished
    if finished is None:
        return NOTHING
    kept = tag("p", f"the whole result: {finished.full}", class_="cut") if finished.full else None
    if not finished.content:
        return joined([tag("p", "an empty result", class_="quiet"), kept])
    shown = block(finished.content, room.part, aria_label="result")
    lines = finished.content.count("\n") + 1
    if lines <= _SHORT and len(finished.content) <= _SHORT * 100:
        return joined([shown, kept])
    size = f"Result: {lines:,} lines, {len(finished.content):,} characters"
    return tag("details", tag("summary", size), shown, kept)
