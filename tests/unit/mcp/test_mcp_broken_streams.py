"""Streams of events that break: each call ends with its answer, or is told as unknown (M2, M8)."""

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import anyio
import pytest
from mcp_emulators import Legacy, McpEndpoint, event, events
from mcp_scenes import http, play, registry
from model_endpoint import CUT, RESET, Break, Gate, Recorded, Reply, json_reply
from waits import MovedClock

from aish.mcp.transports.streamable import UNANSWERED

LOST = f"[aish] tool transport error: {UNANSWERED}"
Faults = list[Callable[[bytes], Reply]]


def answer(request: Recorded) -> dict[str, Any]:
    text = f"answer {request.json['params']['arguments']['a']}"
    found = {"content": [{"type": "text", "text": text}]}
    return {"jsonrpc": "2.0", "id": request.json["id"], "result": found}


class Breaking(Legacy):
    """Breaks the stream of each call as `cuts` say, and has the rest for who asks for it."""

    def __init__(self, first: Callable[[int], Reply], later: Callable[[], Faults]) -> None:
        super().__init__(GET=self.rest, tools__call=self.begin, session="s")
        self.first, self.later = first, later
        self.faults: dict[str, Faults] = {}
        self.answers: dict[str, bytes] = {}
        self.asked: list[str] = []

    def begin(self, request: Recorded) -> Reply:
        number = request.json["params"]["arguments"]["a"]
        self.answers[f"{number}-1"] = event(answer(request), id=f"{number}-2")
        self.faults[f"{number}-1"] = self.later()
        return self.first(number)

    def rest(self, request: Recorded) -> Reply:
        last = request.headers.get("last-event-id")
        if last is None:
            return Reply(status=405, framing="length")
        self.asked.append(last)
        rest = self.answers.get(last, b"")
        waiting = self.faults.get(last)
        return waiting.pop(0)(rest) if waiting else events(rest)


def calls(server: Breaking, count: int) -> list[str]:
    with McpEndpoint(server) as end:

        async def scene() -> list[str]:
            async with registry(http(end.url, protocol="legacy")) as s:
                return [(await s.call("web__add", a=n, b=0)).content for n in range(count)]

        found: list[str] = play(scene)
        return found


def test_a_stream_cut_anywhere_leads_to_the_answer_or_to_an_unknown_outcome() -> None:
    """The cases `suites-mcp-cut-event` and `http-broken-stream-resumed`, at each byte."""
    head = {n: f"id: {n}-1\nretry: 1\ndata: \n\n".encode() for n in range(1000)}
    whole = 95  # about the length of the second event
    ends: tuple[Break | None, ...] = (None, CUT, RESET)
    table = list(product(ends, range(len(head[0]) + whole)))
    random.Random(27).shuffle(table)
    table = table[:150]

    def first(number: int) -> Reply:
        how, at = table[number]
        stream = head[number] + server.answers[f"{number}-1"]
        return events(stream[:at], *([] if how is None else [how]))

    server = Breaking(first, list)
    found = calls(server, len(table))

    for number, (_, at) in enumerate(table):
        if at >= len(head[number]):
            assert found[number] == f"answer {number}", table[number]
        else:
            assert found[number].startswith(LOST), table[number]
    assert all(last.endswith("-1") for last in server.asked), "no event that was cut counts"


FAULTS: Faults = [
    lambda _: json_reply(503, {"error": "down"}),
    lambda _: json_reply(409, {"error": "a stream is open"}),
    lambda _: Reply((RESET,), framing="raw"),
    lambda _: events(b"", CUT),
    lambda _: events(),
    lambda _: events(b": ping\n\n"),
    lambda rest: events(rest[:20], CUT),
    lambda rest: events(rest[: len(rest) // 2]),
    lambda rest: events(*(bytes([one]) for one in rest)),
]


def test_the_rest_of_an_answer_is_asked_for_until_it_comes() -> None:
    random_faults = random.Random(27)

    def later() -> Faults:
        return random_faults.sample(FAULTS, random_faults.randrange(4))

    server = Breaking(lambda n: events(f"id: {n}-1\nretry: 1\ndata: \n\n".encode(), CUT), later)

    assert calls(server, 40) == [f"answer {n}" for n in range(40)]


@pytest.mark.parametrize(
    ("fault", "asked"),
    [
        (lambda _: json_reply(404, {"error": "no such stream"}), 1),
        (lambda _: json_reply(400, {"error": "not here"}), 1),
        (lambda _: Reply(status=405, framing="length"), 1),
        (lambda _: json_reply(200, {}), 1),
        (lambda _: events(), 5),
        (lambda _: json_reply(503, {"error": "down"}), 5),
        (lambda _: Reply((RESET,), framing="raw"), 5),
    ],
)
def test_a_rest_that_never_comes_is_an_unknown_outcome_and_no_second_call(
    fault: Callable[[bytes], Reply], asked: int
) -> None:
    begun = events(b"id: 0-1\nretry: 1\ndata: \n\n", CUT)
    server = Breaking(lambda _: begun, lambda: [fault] * 9)

    (found,) = calls(server, 1)

    assert found.startswith(LOST)
    assert len(server.asked) == asked
    assert len(server.answers) == 1


def test_a_long_answer_may_come_in_as_many_streams_as_it_takes() -> None:
    """A server may end each stream and let itself be asked again (2025-11-25)."""
    count = 12

    def first(number: int) -> Reply:
        rest = server.answers.pop("0-1")
        for n in range(1, count):
            server.answers[f"0-{n}"] = f"id: 0-{n + 1}\ndata: \n\n".encode()
        server.answers[f"0-{count}"] = rest
        return events(f"id: {number}-1\nretry: 1\ndata: \n\n".encode())

    server = Breaking(first, list)

    assert calls(server, 1) == ["answer 0"]
    assert server.asked == [f"0-{n}" for n in range(1, count + 1)]


def test_a_session_goes_on_listening_after_silent_streams() -> None:
    """The case `http-listen-after-silence`."""
    silent, asked, clock = 7, [0], MovedClock()
    late = {"name": "late", "inputSchema": {"type": "object"}}
    change = event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})

    def stream(_: Recorded) -> Reply:
        asked[0] += 1
        if asked[0] > silent:
            return events(change, Gate())
        clock.run_out(min(2.0 ** (asked[0] - 1), 60.0))
        return events()

    server = Legacy(
        session="s",
        GET=stream,
        capabilities={"tools": {"listChanged": True}},
        tools__list=lambda _: {"tools": [late] if asked[0] > silent else []},
    )
    with McpEndpoint(server) as end:

        async def scene() -> list[str]:
            async with registry(http(end.url, protocol="legacy")) as s:
                await s.notices.wait_for("tools_changed")
                return s.names

        found = anyio.run(scene, backend_options={"loop_factory": clock.loop})

    assert found == ["web__late"]
