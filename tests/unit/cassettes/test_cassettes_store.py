import json
from dataclasses import replace

import pytest
from cassette_exchanges import answer, chat, exchange, message, streamed
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from aish.cassettes.format.interaction import CassetteMissError, Interaction, Request
from aish.cassettes.replay.matching import Matching
from aish.cassettes.replay.store import Store
from aish.core.errors import ExitCode

RULES = Matching()


def miss(store: Store, request: Request) -> str:
    with pytest.raises(CassetteMissError) as caught:
        store.take(request)
    assert caught.value.exit_code == ExitCode.CASSETTE
    return caught.value.message


def test_what_nobody_asked_for_is_left_over() -> None:
    store = Store([exchange("one"), exchange("two"), exchange("three")], RULES)

    store.take(chat("Be brief", "two"))

    assert [number for number, _ in store.leftovers] == [1, 3]
    assert store.holds(chat("Be brief", "one"))
    assert not store.holds(chat("Be brief", "two"))


def test_what_was_just_recorded_is_no_answer_and_no_leftover() -> None:
    store = Store([], RULES)

    store.add(exchange("one"), used=True)

    assert store.leftovers == ()
    assert store.interactions == (exchange("one"),)
    assert not store.holds(chat("Be brief", "one"))


@pytest.mark.parametrize("recorded_id", [3, "3"])
def test_an_answer_has_the_id_of_the_request_it_is_played_to(recorded_id: object) -> None:
    said = {"jsonrpc": "2.0", "id": recorded_id, "result": {"content": [], "id": 3}}
    store = Store([Interaction(message(3), answer(json.dumps(said)))], RULES)

    played = json.loads(store.take(message(17)).body)

    assert played == {**said, "id": 17 if recorded_id == 3 else "17"}


def test_progress_has_the_token_of_the_request_it_is_played_to() -> None:
    progress: dict[str, object] = {"jsonrpc": "2.0", "method": "notifications/progress"}
    asked = {"jsonrpc": "2.0", "id": 3, "method": "sampling/createMessage", "params": {}}
    lines: list[dict[str, object]] = [
        {**progress, "params": {"progressToken": "t3", "progress": 1}},
        {**progress, "params": {"progressToken": "other", "progress": 1}},
        asked,
        {"jsonrpc": "2.0", "id": 3, "result": {"text": "ä"}},
    ]
    events = [f"data: {json.dumps(line)}\r\n\r\n".encode() for line in lines]
    store = Store([Interaction(message(3, token="t3"), streamed(events))], RULES)

    played = store.take(message(1000, token="t1000"))

    heard = [json.loads(piece.removeprefix(b"data: ")) for piece, _ in played.pieces()]
    assert heard[0]["params"]["progressToken"] == "t1000"
    assert heard[1:3] == lines[1:3]
    assert heard[3] == {**lines[3], "id": 1000}
    assert [time for _, time in played.pieces()] == [0.01, 0.02, 0.03, 0.04]


def test_a_changed_line_of_a_prompt_is_shown(snapshot: SnapshotAssertion) -> None:
    poem = [f"line {n}" for n in range(1, 30)]
    changed = [*poem[:13], "another line", *poem[14:]]
    store = Store([exchange("short"), exchange("\n".join(poem))], RULES)

    assert miss(store, chat("Be brief", "\n".join(changed))) == snapshot


def test_a_miss_names_a_command_by_its_step_and_a_message_by_its_method() -> None:
    command = Request("EXEC", "exec://count", body=b'{"argv": ["wc", "-l"]}')
    other = replace(command, body=b'{"argv": ["wc", "-w"]}')
    call = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo"}}'
    message = Request("POST", "mcp+stdio://files", body=call)

    assert miss(Store([Interaction(command, answer(b""))], RULES), other).splitlines() == [
        "no recording matches the command of step `count`",
        "nearest: interaction 1 of 1, not used yet",
        "argv, item 2:",
        "  - -l",
        "  + -w",
    ]
    assert miss(Store([exchange()], RULES), message) == (
        "no recording matches `tools/call echo` to `mcp+stdio://files`\n"
        "no message to a server is recorded, only requests"
    )


def test_other_differences_are_shown(snapshot: SnapshotAssertion) -> None:
    asked = chat("Be brief", "Hello", "and more", temperature=0.5, uri="http://other:1/v1/chat")
    long = chat("Be brief", "x" * 500 + "the end")

    assert miss(Store([exchange()], RULES), asked) == snapshot(name="fields")
    assert miss(Store([exchange("x" * 500 + "the stop")], RULES), long) == snapshot(name="long")
    assert miss(Store([], RULES), long) == snapshot(name="empty")


def test_the_nearest_recording_is_the_one_with_most_in_common() -> None:
    store = Store([exchange("a" * 50 + str(n) + "b" * 50) for n in range(9)], RULES)

    assert "nearest: interaction 1 of 9" in miss(store, chat("Be brief", "a" * 50 + "b" * 50))
    store.take(store.interactions[4].request)
    assert "interaction 7 of 9" in miss(store, chat("Be brief", "a" * 50 + "6b" + "b" * 50))


def test_nothing_of_a_stranger_reaches_the_terminal_in_a_miss() -> None:
    said = miss(Store([exchange("\x1b[31mred")], RULES), chat("Be brief", "\x1b]0;title\x07\n"))

    assert "\x1b" not in said
    assert "\x07" not in said


def test_many_differences_are_cut_short() -> None:
    old = Request("POST", "exec://s", body=json.dumps({str(n): n for n in range(99)}).encode())
    new = Request("POST", "exec://s", body=json.dumps({str(n): -1 for n in range(99)}).encode())

    said = miss(Store([Interaction(old, answer(""))], RULES), new)

    assert said.endswith("… and more")
    assert len(said.splitlines()) < 20


def test_a_request_that_is_spelled_in_another_way_is_the_same_request() -> None:
    def spelled(text: bytes) -> Request:
        return Request("POST", "http://host/v1", body=text)

    first, second = spelled(b'{"a": 1, "b": 2}'), spelled(b'{"a": 1, "b": 3}')
    store = Store([Interaction(one, answer(one.body)) for one in (first, second, first)], RULES)

    assert store.take(spelled(b'{"b":2,"a":1}')).body == first.body
    assert store.take(second).body == second.body
    assert store.take(first).body == first.body
    assert store.leftovers == ()
    assert not store.holds(spelled(b'{"b":3,"a":1}'))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30))
def test_whatever_way_requests_are_spelled_each_recording_is_used_once(
    asked: list[tuple[str, bool]],
) -> None:
    def spelled(name: str, *, spaced: bool) -> Request:
        body = json.dumps({"n": name}, separators=(", ", ": ") if spaced else (",", ":"))
        return Request("POST", "http://host/v1", body=body.encode())

    held = [
        Interaction(spelled(name, spaced=True), answer(str(n)))
        for n, name in enumerate("abcabcaab")
    ]
    store = Store(held, RULES)
    played: list[str] = []
    for name, spaced in asked:
        if store.holds(spelled(name, spaced=spaced)):
            played.append(store.take(spelled(name, spaced=spaced)).body.decode())

    expected = {
        name: [str(n) for n, one in enumerate("abcabcaab") if one == name] for name in "abc"
    }
    taken = {name: [n for n in played if n in expected[name]] for name in "abc"}
    assert all(taken[name] == expected[name][: len(taken[name])] for name in "abc")
    assert len(store.leftovers) == len(held) - len(played)
