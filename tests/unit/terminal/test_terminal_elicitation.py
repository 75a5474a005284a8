from collections.abc import Iterator
from functools import partial

import pytest
from syrupy.assertion import SnapshotAssertion
from terminal_person import PersonAtTerminal, person_at_terminal

from aish.core.json import JsonObject
from aish.terminal.elicitation import BEGIN, SEND, TerminalElicitor

FORM: JsonObject = {
    "mode": "form",
    "message": "Please say who you are\nand what you like",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Your name", "minLength": 2},
            "email": {"type": "string", "format": "email", "description": "to write to"},
            "age": {"type": "integer", "minimum": 18},
            "ok": {"type": "boolean", "default": True},
            "colour": {"type": "string", "enum": ["red", "green"], "enumNames": ["Rot", "Grün"]},
            "many": {"type": "array", "items": {"anyOf": [{"const": "a"}, {"const": "b"}]}},
        },
        "required": ["name", "age"],
    },
}


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Iterator[PersonAtTerminal]:
    monkeypatch.setenv("TERM", "dumb")
    with person_at_terminal() as found:
        yield found


def asked(
    person: PersonAtTerminal, params: JsonObject, *lines: tuple[str, str], server: str = "docs"
) -> JsonObject:
    return person.talk(partial(TerminalElicitor(person.turns), server, params), *lines)


def form(**properties: JsonObject) -> JsonObject:
    schema: JsonObject = {"properties": properties, "required": list(properties)}
    return {"message": "m", "requestedSchema": schema}


GIVEN = (
    (BEGIN, "y\n"),
    ("\n>", "\n"),
    ("\n>", "x\n"),
    ("\n>", "Ada\n"),
    ("\n>", "nowhere\n"),
    ("\n>", "ada@example.org\n"),
    ("\n>", "17\n"),
    ("\n>", "eighteen\n"),
    ("\n>", "36\n"),
    ("\n>", "\n"),
    ("\n>", "blue\n"),
    ("\n>", "2\n"),
    ("\n>", "b, 1\n"),
)


def test_a_form_is_filled_in_field_by_field_and_shown_before_it_is_sent(
    person: PersonAtTerminal, snapshot: SnapshotAssertion
) -> None:
    found = asked(person, FORM, *GIVEN, (SEND, "y\n"))
    assert found == {
        "action": "accept",
        "content": {
            "name": "Ada",
            "email": "ada@example.org",
            "age": 36,
            "ok": True,
            "colour": "green",
            "many": ["b", "a"],
        },
    }
    assert person.seen == snapshot


def test_an_answer_may_be_changed_before_it_is_sent_or_not_sent_at_all(
    person: PersonAtTerminal,
) -> None:
    name = form(name={"type": "string"})
    again = ((BEGIN, "y\n"), ("\n>", "Ada\n"), (SEND, "e\n"))
    kept = asked(person, name, *again, ("\n>", "\n"), (SEND, "y\n"))
    assert kept == {"action": "accept", "content": {"name": "Ada"}}
    changed = asked(person, name, *again, ("\n>", "Bob\n"), (SEND, "\n"))
    assert changed == {"action": "decline"}


@pytest.mark.parametrize(
    ("lines", "action"),
    [
        (((BEGIN, "\n"),), "decline"),
        (((BEGIN, "n\n"),), "decline"),
        (((BEGIN, "\x04"),), "cancel"),
        (((BEGIN, "\x03"),), "cancel"),
        (((BEGIN, "y\n"), ("\n>", "\x04")), "cancel"),
        (((BEGIN, "y\n"), ("\n>", "abc\x03")), "cancel"),
        (((BEGIN, "y\n"), ("\n>", "abc\n"), (SEND, "\x03")), "cancel"),
        (((BEGIN, "y\n"), ("\n>", "abc\n"), (SEND, "n\n")), "decline"),
    ],
)
def test_a_person_can_decline_and_cancel_at_any_place(
    person: PersonAtTerminal, lines: tuple[tuple[str, str], ...], action: str
) -> None:
    assert asked(person, form(name={"type": "string"}), *lines) == {"action": action}


def test_a_page_is_named_and_never_opened(person: PersonAtTerminal) -> None:
    url = "https://user@evil.example/\x1b[2Jlogin?x=" + "y" * 200
    found = asked(person, {"mode": "url", "message": "Sign in", "url": url, "elicitationId": "1"})
    assert found == {"action": "decline"}
    person.talk(partial(person.hears, "yyyyy\n"))
    assert "  server: docs\n    host: evil.example\n  │ Sign in\n" in person.seen
    assert "\x1b" not in person.seen


def test_a_strangers_words_never_begin_a_line(person: PersonAtTerminal) -> None:
    evil = "x\n  server: good\nanswer it? [y/N] y\x1b[2J\u202e" + " " * 200 + "send this?"
    params: JsonObject = {
        "message": evil,
        "requestedSchema": {
            "properties": {
                evil: {
                    "type": "string",
                    "title": evil,
                    "description": evil,
                    "oneOf": [{"const": evil, "title": evil}],
                    "default": evil,
                }
            }
        },
    }
    lines = ((f"\n{BEGIN}", "y\n"), ("\n> ", "\n"), (f"\n{SEND}", "n\n"))
    assert asked(person, params, *lines, server="evil") == {"action": "decline"}
    assert not set(person.seen) & set("\x1b\u202e")
    rows = person.seen.split("\n")
    assert [row for row in rows if row.startswith("  server")] == ["  server: evil"]
    assert all(len(row) < 80 for row in rows)


@pytest.mark.parametrize(
    "params",
    [
        {"message": "m"},
        {"message": "m", "mode": "hologram", "requestedSchema": {}},
        {"message": "m", "requestedSchema": {"properties": {"a": {"type": "object"}}}},
        {"message": "m", "requestedSchema": {"properties": {"a": {"type": "array"}}}},
        {"message": "m", "requestedSchema": {"properties": {"a": {}}}},
        {"message": "m", "requestedSchema": {"properties": {"a": True}}},
        {"message": "m", "requestedSchema": {"properties": [], "required": ["a"]}},
        {"message": "m", "requestedSchema": {"properties": {}, "required": ["a"]}},
        {"message": "m", "requestedSchema": {"properties": {}, "required": [["a"], {}]}},
        {
            "message": "m",
            "requestedSchema": {"properties": {str(n): {"type": "string"} for n in range(99)}},
        },
    ],
)
def test_what_cannot_be_typed_in_a_line_is_declined(
    person: PersonAtTerminal, params: JsonObject
) -> None:
    assert asked(person, params) == {"action": "decline"}


@pytest.mark.parametrize(
    ("schema", "typed", "refused", "value"),
    [
        ({"type": "number", "maximum": 2}, "1.5", ["2.5", "NaN", "1e999", "true"], 1.5),
        ({"type": "number", "exclusiveMinimum": 1}, "2", ["1"], 2),
        ({"type": "integer"}, "12345678901234567890123", ["1.5", "x"], 12345678901234567890123),
        ({"type": "boolean"}, "n", ["maybe"], False),
        ({"type": "string", "maxLength": 3}, " a ", ["abcd"], " a "),
        ({"type": "string", "format": "uri"}, "https://h/x", ["no uri", "x"], "https://h/x"),
        ({"type": "string", "format": "date"}, "2026-11-21", ["21.11.2026"], "2026-11-21"),
        (
            {"type": "string", "format": "date-time"},
            "2026-11-21T10:00:00Z",
            ["2026-11-21", "2026-11-21T10:00:00"],
            "2026-11-21T10:00:00Z",
        ),
        ({"type": "string", "pattern": "^[a-c]+$"}, "abc", ["abd"], "abc"),
        ({"type": "string", "enum": ["2", "1"]}, "2", ["3"], "2"),
        (
            {"type": "array", "maxItems": 1, "items": {"type": "string", "enum": ["a", "b"]}},
            "2",
            ["a, b", "c"],
            ["b"],
        ),
        ({"type": "integer", "default": "no"}, "1", [""], 1),
    ],
)
def test_only_what_fits_is_taken(
    person: PersonAtTerminal,
    schema: JsonObject,
    typed: str,
    refused: list[str],
    value: object,
) -> None:
    lines = [("\n>", f"{one}\n") for one in (*refused, typed)]
    found = asked(person, form(f=schema), (BEGIN, "y\n"), *lines, (SEND, "y\n"))
    assert found == {"action": "accept", "content": {"f": value}}


def test_a_pattern_that_could_run_for_ever_is_left_to_the_server(person: PersonAtTerminal) -> None:
    params = form(f={"type": "string", "pattern": "^(a+)+$"})
    text = "a" * 40 + "!"
    found = asked(person, params, (BEGIN, "y\n"), ("\n>", f"{text}\n"), (SEND, "y\n"))
    assert found == {"action": "accept", "content": {"f": text}}


def test_a_form_says_how_to_give_it_up_before_and_after_a_value_that_does_not_fit(
    person: PersonAtTerminal,
) -> None:
    lines = ((BEGIN, "y\n"), ("what is wanted: y or n; Ctrl-C gives up\n>", "\x03"))
    again = (lines[0], ("\n>", "maybe\n"), lines[1])
    assert asked(person, form(sure={"type": "boolean"}), *again) == {"action": "cancel"}
    assert "you have confirmed it;" in person.seen
    assert person.seen.split(BEGIN)[0].rstrip().endswith("Ctrl-C gives up")
