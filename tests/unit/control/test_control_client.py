"""Clients of the control API before a server whose every answer is given by the test (A5)."""

import gc
import inspect
import signal
import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from control_peer import QUESTION, STATUS, Asked, Peer, event, finished, peer_of
from samples import each_case

from aish.control import (
    ApiError,
    AsyncClient,
    Client,
    ConflictError,
    ConnectionLostError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    NotListeningError,
    RejectedError,
    RunEndedError,
    UnansweredError,
    UnauthorizedError,
    UnexpectedAnswerError,
    WaitTimeoutError,
)
from aish.core.errors import UsageError
from aish.core.json import JsonValue

NO_QUESTIONS = {"v": 1, "pending": [], "decided": []}
Question = Any


def client_of(peer: Peer, **options: Any) -> Client:
    return Client(peer.address, "t" * 40, **{"retry_delay": 0, **options})


def question_of(peer: Peer) -> Question:
    with client_of(peer) as client:
        return client.approval(QUESTION["id"])


@contextmanager
def free_address() -> Generator[str]:
    """An address at which nobody listens: the port is held, so that nobody else gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


class Failing:
    """Hangs up, or says it is busy, so many times; then answers."""

    def __init__(self, times: int, status: int | None = None) -> None:
        self.left = times
        self.status = status

    def __call__(self, asked: Asked) -> None:
        if self.left:
            self.left -= 1
            if self.status is None:
                asked.hang_up()
            else:
                asked.refuse(self.status, "busy")
        elif asked.path.startswith("/api/v1/approvals/"):
            asked.say(QUESTION)
        else:
            asked.say(STATUS)


@pytest.mark.parametrize("number", [None, 502, 503])
def test_a_read_is_tried_again_as_often_as_was_said(number: int | None) -> None:
    with peer_of(Failing(5, number)) as peer, client_of(peer) as client:
        assert client.status().steps[0].total == 1
        assert peer.paths() == ["/api/v1/status"] * 6

    with peer_of(Failing(6, number)) as peer, client_of(peer, max_retries=2) as client:
        with pytest.raises(ConnectionLostError if number is None else ApiError):
            client.status()
        assert len(peer.asked) == 3


@pytest.mark.parametrize("number", [None, 502, 503])
def test_an_answer_is_sent_once_whatever_happens(number: int | None) -> None:
    failing = Failing(0, number)
    with peer_of(failing) as peer, client_of(peer) as client:
        question = question_of(peer)
        failing.left = 1
        with pytest.raises(ConnectionLostError if number is None else ApiError):
            client.approve(question)
        assert len(peer.paths("POST")) == 1


def test_an_answer_is_for_the_call_that_was_read() -> None:
    with peer_of(Failing(0)) as peer, client_of(peer) as client:
        client.approve(question_of(peer), note="seen")
        client.deny(question_of(peer))
        sent = [one.body for one in peer.asked if one.method == "POST"]
        assert sent == [
            {"answer": "approve", "digest": "d" * 64, "note": "seen"},
            {"answer": "deny", "digest": "d" * 64, "note": ""},
        ]
        assert {one.headers["authorization"] for one in peer.asked} == {f"Bearer {'t' * 40}"}
        assert not [path for path in peer.paths() if "t" * 40 in path]


def test_a_refused_connection_is_tried_again_whatever_was_to_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with peer_of(Failing(0)) as peer:
        question = question_of(peer)
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)  # ruff: ignore[shared-clock-mock] - one thread

    with free_address() as address, Client(address, "t" * 40, 2, 0.5) as client:
        for call in (lambda: client.approve(question), client.status, client.stop):
            pauses.clear()
            with pytest.raises(NotListeningError):
                call()
            assert pauses == [0.5, 0.5]


def test_threads_share_a_client_and_its_connections() -> None:
    ports: set[int] = set()

    def answer(asked: Asked) -> None:
        ports.add(asked.handler.client_address[1])
        asked.say(STATUS)

    with (
        peer_of(answer) as peer,
        client_of(peer, max_retries=0) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        states = [one.state for one in pool.map(lambda _: client.status(), range(200))]

    assert states == ["running"] * 200
    assert len(ports) <= 4


def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    has_closed = threading.Event()

    def answer(asked: Asked) -> None:
        asked.say(STATUS)
        asked.handler.wfile.flush()
        asked.handler.connection.shutdown(socket.SHUT_RDWR)
        asked.handler.close_connection = True
        has_closed.set()

    with peer_of(answer) as peer, client_of(peer, max_retries=0) as client:
        for _ in range(3):
            client.stop()  # what changes something is never sent twice
            assert has_closed.wait(60)
            has_closed.clear()


def test_ctrl_c_ends_a_wait_and_the_client_can_be_used_again() -> None:
    held: list[Peer] = []

    def open_stream(asked: Asked) -> None:
        asked.write(":\n\n")
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        held[0].released.wait(60)

    with peer_of(Stream(open_stream)) as peer, client_of(peer) as client:
        held.append(peer)
        with pytest.raises(KeyboardInterrupt):
            client.wait_for_end()
        assert client.status().state == "running"


@each_case(
    "number, kind",
    [
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, GoneError),
        (422, RejectedError),
        (504, UnansweredError),
        (507, ApiError),
    ],
)
def test_each_refusal_is_an_exception_of_its_own(number: int, kind: type[ApiError]) -> None:
    def refuse(asked: Asked) -> None:
        asked.refuse(number, "some_word", "it was\x1b[31m decided", "look\nagain")

    with peer_of(refuse) as peer, client_of(peer) as client, pytest.raises(ApiError) as caught:
        client.status()

    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code) == (number, "some_word")
    assert "\x1b" not in error.message
    assert "\n" not in str(error.hint)
    assert len(peer.asked) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"v": 1}', b'{"error": {"code": 1}}', b'{"v": 1, "v": 1}', b"\xff"],
)
def test_what_is_no_control_api_is_said(body: bytes) -> None:
    def answer(asked: Asked) -> None:
        asked.say_bytes(body, 200 if asked.path.endswith("status") else 500)

    with peer_of(answer) as peer, client_of(peer) as client:
        with pytest.raises(UnexpectedAnswerError, match="not one of the control API"):
            client.status()
        with pytest.raises(ApiError) as caught:
            client.approvals()
        assert caught.value.status == 500


@each_case(
    "address",
    [
        *("", "nowhere", "host:port", "ftp://host", "http://u:p@host", "https://h?token=x"),
        *("https://", "unix:", "127.0.0.1:65536", "http://h:99999", "http://[::1", "http://h:a"),
    ],
)
def test_what_is_no_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        Client(address, "t" * 40)
    assert "token" not in caught.value.message


def test_nobody_at_the_address_is_said_for_ports_sockets_and_folders(tmp_path: Path) -> None:
    with free_address() as address:
        places = [Client(address, "t" * 40, 1, 0), Client(f"unix:{tmp_path}/s", None, 1, 0)]
        for client in (*places, Client.of_run(tmp_path, None, 1, 0)):
            with client:
                for call in (client.status, client.wait_for_end, client.stop):
                    with pytest.raises(NotListeningError):
                        call()
                with pytest.raises(WaitTimeoutError, match=r"nobody listened within 0\.01 s"):
                    client.wait_for_server(timeout=0.01)


@pytest.mark.anyio
async def test_nobody_at_the_address_is_said_to_async_programs_too(tmp_path: Path) -> None:
    with free_address() as address:
        places = [
            AsyncClient(address, "t" * 40, 1, 0),
            AsyncClient(f"unix:{tmp_path}/s", None, 1, 0),
        ]
        for client in (*places, AsyncClient.of_run(tmp_path, None, 1, 0)):
            async with client:
                with pytest.raises(NotListeningError):
                    await client.status()
                with pytest.raises(WaitTimeoutError):
                    await client.wait_for_server(timeout=0.01)
            # A connection that failed leaves no open socket behind, of which Python would warn.
            gc.collect()


class Stream:
    """Gives events from a list, as a real API would after a number, some to each connection."""

    def __init__(self, *parts: Callable[[Asked], None]) -> None:
        self.parts = list(parts)
        self.after: list[str | None] = []

    def __call__(self, asked: Asked) -> None:
        if not asked.path.startswith("/api/v1/events"):
            asked.say(NO_QUESTIONS if asked.path.endswith("approvals") else STATUS)
            return
        self.after.append(asked.headers.get("last-event-id"))
        asked.begin_stream()
        self.parts.pop(0)(asked)


def test_a_type_that_no_event_has_is_not_waited_for() -> None:
    client = Client("127.0.0.1:9")
    with pytest.raises(UsageError, match=r"no event has the type `ask\.received`") as caught:
        client.wait_for_event("ask.received")
    assert caught.value.hint == "did you mean `ask_received`"


def test_a_lost_stream_is_continued_without_a_gap_and_without_repetition() -> None:
    def torn(asked: Asked) -> None:
        asked.write(":\n\n")
        asked.tell(event(1), event(2))
        asked.write('id: 3\ndata: {"v": 1, "se')

    stream = Stream(
        torn,
        lambda asked: asked.tell(event(3), event(4)),
        lambda _: None,
        lambda asked: asked.tell(finished(9)),
    )
    with (
        peer_of(stream) as peer,
        client_of(peer) as client,
        client.follow(after=0, timeout=60) as events,
    ):
        seen = [one["seq"] for one in events]
        assert (seen, events.after) == ([1, 2, 3, 4, 9], 9)
    assert stream.after == ["0", "2", "4", "4"]


def test_a_stream_that_gives_nothing_is_given_up() -> None:
    stream = Stream(*[lambda _: None] * 4)
    with peer_of(stream) as peer, client_of(peer, max_retries=3) as client:
        with pytest.raises(ConnectionLostError, match="ended before the run"):
            client.wait_for_end()
        assert stream.parts == []


def test_a_stream_that_is_refused_says_why() -> None:
    def refuse(asked: Asked) -> None:
        asked.refuse(410, "events_gone", "in the journal only")

    with peer_of(refuse) as peer, client_of(peer) as client:
        with pytest.raises(GoneError, match="in the journal only"):
            client.wait_for_event("notice", after=3)
        assert peer.paths() == ["/api/v1/events?after=3"]


def test_a_question_between_state_and_stream_is_not_missed() -> None:
    asked_for: list[Peer] = []

    def answer(asked: Asked) -> None:
        if asked.path.startswith("/api/v1/events"):
            asked.begin_stream()
            asked_for[0].released.wait(60)
            asked.tell(event(1, "approval.asked", id=QUESTION["id"]), finished(2))
        elif asked.path.endswith("/approvals"):
            # Nothing is open yet; it is asked while this answer is on its way.
            asked.say(NO_QUESTIONS)
            asked_for[0].released.set()
        else:
            asked.say(QUESTION)

    with peer_of(answer) as peer, client_of(peer) as client:
        asked_for.append(peer)
        assert client.wait_for_approval(timeout=60).tool == "box__write"
        assert peer.paths()[:2] == ["/api/v1/events", "/api/v1/approvals"]


def test_what_the_run_did_not_do_before_its_end_is_said() -> None:
    stream = Stream(*[lambda asked: asked.tell(event(1), finished(2))] * 3)
    with peer_of(stream) as peer, client_of(peer) as client:
        with pytest.raises(RunEndedError, match=r"exit 3 \(denied\)") as caught:
            client.wait_for_event("tool.finished")
        assert caught.value.event["seq"] == 2
        with pytest.raises(RunEndedError):
            client.wait_for_approval()
        assert client.wait_for_end().exit.name == "denied"


def test_a_wait_ends_at_its_time_though_the_stream_is_open() -> None:
    held: list[Peer] = []

    def open_stream(asked: Asked) -> None:
        asked.write(":\n\n")
        held[0].released.wait(60)

    with peer_of(Stream(*[open_stream] * 8)) as peer, client_of(peer) as client:
        held.append(peer)
        with pytest.raises(WaitTimeoutError, match=r"no event `notice` within 0\.2 s") as caught:
            client.wait_for_event("notice", timeout=0.2)
        assert isinstance(caught.value, TimeoutError)


def test_an_event_that_has_happened_counts_unless_it_is_to_follow() -> None:
    wrote = [event(1, text="a"), event(2, text="b")]

    def answer(asked: Asked) -> None:
        asked.begin_stream()
        after = int(asked.headers.get("last-event-id") or 0)
        asked.tell(*[one for one in (*wrote, finished(3)) if one["seq"] > after])

    with peer_of(answer) as peer, client_of(peer) as client:
        assert client.wait_for_event("notice")["text"] == "a"
        assert client.wait_for_event("notice", lambda one: one["text"] == "b")["seq"] == 2
        assert client.wait_for_event("notice", after=1)["seq"] == 2
        with pytest.raises(RunEndedError):
            client.wait_for_event("notice", after=2)


class Values:
    """A value that is changed while somebody waits for it: by each event of the stream."""

    def __init__(self, *sets: tuple[JsonValue, JsonValue]) -> None:
        self.events = [event(1, "value.set", path="limits.turns", value=9, was=5)]
        self.events += [event(2, "value.set", path="limits.turns", value=5, was=9)]
        self.later = [
            event(number, "value.set", path="limits.turns", value=value, was=was)
            for number, (was, value) in enumerate(sets, 3)
        ]

    def __call__(self, asked: Asked) -> None:
        match asked.path.split("?")[0]:
            case "/api/v1/values":
                asked.say({"values": {"limits.turns": {"value": 5, "type": "integer"}}})
            case "/api/v1/values/limits.turns" if asked.method == "PUT":
                asked.say({"path": "limits.turns", "value": asked.body["value"], "type": "integer"})
            case "/api/v1/values/limits.turns":
                asked.say({"path": "limits.turns", "value": 5, "type": "integer"})
            case "/api/v1/events" if asked.headers["accept"] == "text/event-stream":
                asked.begin_stream()
                asked.tell(*self.later, finished(99))
            case "/api/v1/events":
                _, _, after = asked.path.partition("after=")
                left = [one for one in self.events if one["seq"] > int(after or 0)]
                asked.say({"events": left, "next": left[-1]["seq"] if left else int(after or 0)})
            case _:
                asked.refuse(404, "unknown_value")


def test_a_value_counts_that_is_set_while_somebody_waits_and_none_of_before() -> None:
    with peer_of(Values((5, 9), (9, 7))) as peer, client_of(peer) as client:
        assert client.values()["limits.turns"].type == "integer"
        assert client.value("limits.turns").value == 5
        assert client.change_value("limits.turns", 6, was=5).value == 6
        assert peer.asked[-1].body == {"value": 6, "was": 5}
        assert client.wait_for_value("limits.turns", 5) == 5
        # It is 7 by then, and was 9 meanwhile.
        assert client.wait_for_value("limits.turns", 9) == 9
        assert client.wait_for_value("limits.turns", lambda value: value == 7) == 7
        with pytest.raises(NotFoundError):
            client.wait_for_value("limits.other", 1)
    with peer_of(Values((5, 8))) as peer, client_of(peer) as client:
        with pytest.raises(RunEndedError):
            client.wait_for_value("limits.turns", 9)
        with pytest.raises(RunEndedError):
            client.wait_for_value("limits.turns", True)


def test_older_names_send_what_the_older_paths_take() -> None:
    def answer(asked: Asked) -> None:
        path = asked.path
        if path == "/api/gui" and str(asked.body["action"]).startswith("select"):
            asked.refuse(422, "invalid_body")
        elif path == "/api/v1/status":
            asked.say(STATUS)
        else:
            found = {"events": [{}], "value": [2], "thinking": True, "live": False, "response": 3}
            asked.say({"status": "queued", **found})

    with peer_of(answer) as peer, client_of(peer) as client:
        for read in ("status", "project", "session", "performance", "mma_status"):
            assert getattr(client, f"get_{read}")()["status"] == "queued"
        assert client.get_events() == [{}]
        assert client.get_value("a/b") == [2]
        assert client.get_text_value("a") == "[2]"
        assert client.get_indicator_state("thinking_indicator")["shown"] is True
        assert client.get_indicator_state("live")["shown"] is False
        with pytest.raises(UsageError, match="no such indicator"):
            client.get_indicator_state("nothing")
        assert (client.get_node_status("main"), client.get_node_status("x")) == ("running", None)
        assert client.request_confirmation("write", {"a": 1}) == 3
        asked = [peer.asked[-1].body]
        client.set_value("limits.turns", 3)
        client.push_event("deployed", [1])
        client.reset_session()
        client.post_gui({"action": "click", "item": "x"})
        for select in (client.select_tab, client.select_list_item):
            with pytest.raises(RejectedError):
                select("a", "b")
        asked += [one.body for one in peer.asked if one.path == "/api/gui"]
        paths = peer.paths("GET")

    assert paths == [
        *("/status", "/api/project", "/api/session", "/api/performance", "/api/gui/mma_status"),
        *("/api/events", "/api/gui/value/a%2Fb", "/api/gui/value/a"),
        *(["/api/gui/diagnostics"] * 3),
        *(["/api/v1/status"] * 2),
    ]
    assert asked == [
        {"type": "tool_approval", "title": "write", "tool": "write", "args": {"a": 1}},
        {"action": "set_value", "item": "limits.turns", "value": 3},
        {"action": "push_event", "item": "deployed", "value": [1]},
        {"action": "click", "item": "btn_reset_session"},
        {"action": "click", "item": "x"},
        {"action": "select_tab", "item": "a", "value": "b"},
        {"action": "select_list_item", "item": "a", "value": "b"},
    ]


def test_both_clients_have_the_same_methods_and_tell_what_they_take() -> None:
    methods = {name for name in dir(Client) if not name.startswith("_")}

    assert methods == {name for name in dir(AsyncClient) if not name.startswith("_")}
    for name in methods:
        blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
        assert blocking.__doc__, name
        taken = [list(inspect.signature(one).parameters) for one in (blocking, awaited)]
        assert taken[0] == taken[1]


@pytest.mark.anyio
async def test_an_async_client_does_the_same_and_can_be_cancelled() -> None:
    held: list[Peer] = []

    def torn(asked: Asked) -> None:
        asked.tell(event(1))

    def open_stream(asked: Asked) -> None:
        asked.tell(event(2, "approval.asked", id="x" * 32))
        held[0].released.wait(60)

    stream = Stream(torn, open_stream, lambda asked: asked.tell(event(3), finished(4)))
    with peer_of(stream) as peer:
        held.append(peer)
        async with AsyncClient(peer.address, "t" * 40, retry_delay=0) as client:
            assert (await client.wait_for_server()).state == "running"
            with anyio.move_on_after(30) as scope:
                async with client.follow() as events:
                    while (await anext(events))["type"] != "approval.asked":
                        pass
                    scope.cancel()
                    await anext(events)
            assert (scope.cancelled_caught, events.after) == (True, 2)
            peer.released.set()
            assert (await client.wait_for_end()).exit.code == 3
    assert stream.after == [None, "1", None]
