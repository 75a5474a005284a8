import json
from dataclasses import replace

import pytest
from cassette_exchanges import HEAD, answer, streamed
from recorded_runs import (
    ASKED,
    FILES,
    asks,
    called,
    calls,
    command,
    ended,
    event,
    read,
    rpc,
    run_of,
    says,
    session,
)
from samples import each_case
from syrupy.assertion import SnapshotAssertion
from work import work_of

from aish.cassettes.format.interaction import Interaction, Request, Response
from aish.cassettes.inspect.conversation import (
    Handshake,
    LocalCommand,
    ModelTurn,
    OtherExchange,
    Part,
    ServerExchange,
    conversation,
)
from aish.cli.commands.cassette_show import head_lines, part_lines
from aish.core.events import NOWHERE, Asked, TurnFinished
from aish.core.messages import Usage
from aish.features.recording.compare import TrajectoryCollector, trajectory_of, trajectory_of_models
from aish.features.recording.recorded_answer import read_answer

SYSTEM, USER = ASKED


def parts_of(*interactions: Interaction) -> list[Part]:
    return list(conversation(interactions, read_answer))


def turns_of(*interactions: Interaction) -> list[ModelTurn]:
    return [part for part in parts_of(*interactions) if isinstance(part, ModelTurn)]


def shown(*interactions: Interaction, full: bool = False) -> str:
    parts = parts_of(*interactions)
    return "\n".join(line for part in parts for line in part_lines(part, full=full))


def test_a_run_reads_as_a_conversation(snapshot: SnapshotAssertion) -> None:
    run = [*run_of(), command("list", ["ls", "-l", "a b"], "a.txt\n", code=1)]

    assert "\n".join(head_lines("run.yaml", HEAD, len(run))) == snapshot(name="head")
    assert shown(*run) == snapshot(name="parts")


def test_of_each_request_only_what_is_new_is_told() -> None:
    first, second = turns_of(*run_of())

    assert [message.role for message in first.news] == ["system", "user"]
    assert [(message.role, message.text) for message in second.news] == [("tool", "one\ntwo")]
    assert (first.follows, second.follows) == (None, 4)


def test_streams_are_put_together_with_their_calls_and_tokens() -> None:
    first, second = turns_of(*run_of())

    assert [(call.name, call.arguments) for call in first.answer.calls] == [
        ("files__read", '{"path": "a.txt"}')
    ]
    assert second.answer.text == "It says one and two"
    assert second.answer.usage == Usage(input=20, output=5)
    assert second.answer.finish == "stop"


def test_conversations_that_run_beside_each_other_are_kept_apart() -> None:
    other = {"role": "user", "content": "Something else"}
    one = Interaction(asks(USER), calls("c", "files__read", "{}"))
    two = Interaction(asks(other), says("fine"))
    three = Interaction(asks(USER, called("c", "files__read", "{}")), says("done"))

    turns = turns_of(one, two, three)

    assert [turn.follows for turn in turns] == [None, None, 1]
    assert turns[2].news == ()


@each_case(
    "response, trouble",
    [
        (
            Response(503, "Busy", (), b'{"error": {"message": "try later"}}'),
            "HTTP 503 Busy: try later",
        ),
        (Response(502, "Bad Gateway", (), b"<html>"), "HTTP 502 Bad Gateway: <html>"),
        (
            replace(streamed([event({"delta": {"content": "Ha"}})]), broken="left"),
            "left before the end",
        ),
        (
            replace(streamed([event({"delta": {"content": "Ha"}})]), broken="ReadError: reset"),
            "broken off: ReadError: reset",
        ),
        (streamed([event({"delta": {"content": "Ha"}})]), "the stream ended before the answer did"),
        (answer("nonsense"), "not a chat completion: nonsense"),
        (Response(), "the answer is empty"),
        (answer("[" * 60), "the answer ended inside its JSON"),
    ],
)
def test_an_answer_that_is_not_whole_says_why(response: Response, trouble: str) -> None:
    (turn,) = turns_of(Interaction(asks(USER), response))

    assert turn.answer.trouble == trouble


def test_what_came_before_a_break_is_told() -> None:
    cut = replace(streamed([event({"delta": {"content": "Half of"}})]), broken="left")

    (turn,) = turns_of(Interaction(asks(USER), cut))

    assert turn.answer.text == "Half of"


def test_who_leaves_after_the_whole_answer_has_it() -> None:
    whole = replace(streamed([event({"delta": {"content": "All"}}), *ended("stop")]), broken="left")

    (turn,) = turns_of(Interaction(asks(USER), whole))

    assert (turn.answer.text, turn.answer.trouble) == ("All", None)


def test_a_retry_is_told_as_one() -> None:
    failed = Interaction(asks(USER), Response(503, "Busy"))
    again = Interaction(asks(USER), says("fine"))

    first, second = turns_of(failed, again)

    assert (first.again, second.again, second.news) == (None, 1, ())
    assert "repeats the request of 1" in shown(failed, again)


def test_handshakes_are_one_line_for_each_server() -> None:
    other = "http://user:pw@host/mcp?key=k"
    parts = parts_of(*session(), *session(other), read("a", "x"), *session())

    told = [part for part in parts if isinstance(part, (Handshake, ServerExchange))]
    assert len(told) == len(parts)
    assert [(type(part), part.server) for part in told] == [
        (Handshake, "files"),
        (Handshake, "host/mcp"),
        (ServerExchange, "files"),
        (Handshake, "files"),
    ]
    assert parts[0] == Handshake(1, "files", ("initialize everything 1.0 2025-06-18", "2 tools"))


@pytest.mark.parametrize(
    ("response", "event"),
    [
        (Response(599, "No Answer", broken="left"), "listened"),
        (answer(""), "listened"),
        (
            replace(
                streamed([b'data: {"method": "notifications/tools/list_changed"}\n\n']),
                broken="left",
            ),
            "listened: notifications/tools/list_changed",
        ),
        (Response(404, "Not Found"), "listened: HTTP 404 Not Found"),
        (Response(broken="ReadError: reset"), "listened: broken off: ReadError: reset"),
    ],
)
def test_that_a_subscription_ends_with_the_run_is_no_failure(
    response: Response, event: str
) -> None:
    request = rpc("subscriptions/listen", {"notifications": {"toolsListChanged": True}}).request

    (part,) = parts_of(Interaction(request, response))

    assert isinstance(part, Handshake)
    assert part.events == (event,)


def test_a_handshake_that_failed_says_so() -> None:
    gone = Interaction(rpc("initialize", {}).request, Response(404, "Not Found"))
    dead = Interaction(rpc("tools/list", {}).request, Response(broken="ServerEndedError: killed"))

    (part,) = parts_of(gone, dead)

    assert isinstance(part, Handshake)
    assert part.events == (
        "initialize: HTTP 404 Not Found",
        "tools/list: broken off: ServerEndedError: killed",
    )


def test_calls_of_tools_are_told_with_what_came_back() -> None:
    failed = read("b", "no such file", failed=True)
    error = Interaction(
        read("c", "").request,
        answer('{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"bad path"}}'),
    )
    meanwhile: list[dict[str, object]] = [
        {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
        {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 2}},
        {"method": "notifications/message", "params": {"level": "info", "data": "hm"}},
        {"id": 7, "method": "sampling/createMessage", "params": {}},
        {"id": 1, "result": {"structuredContent": {"n": 1}, "content": []}},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in meanwhile)
    events = "".join(f"event: message\r\ndata: {line}\r\n\r\n" for line in lines.splitlines())

    told = parts_of(
        failed,
        error,
        Interaction(read("d", "").request, answer(lines)),
        Interaction(read("e", "").request, answer(events)),
    )

    assert [(one.text, one.failed) for one in told if isinstance(one, ServerExchange)] == [
        ("no such file", True),
        ("error -32602: bad path", True),
        ('{"n": 1}', False),
        ('{"n": 1}', False),
    ]
    for one in told[2:]:
        assert isinstance(one, ServerExchange)
        assert one.beside == (
            "log info: hm",
            "the server asks: sampling/createMessage",
            "2 reports of progress",
        )


def test_our_answers_to_servers_and_their_last_words_are_told() -> None:
    body = b'{"jsonrpc": "2.0", "id": 7, "result": {"action": "decline"}}'

    text = shown(
        Interaction(Request("POST", FILES, body=body), Response()),
        Interaction(Request("STDERR", FILES), answer("Traceback")),
    )

    assert 'files · answer {"action": "decline"}' in text
    assert "files · STDERR\n       Traceback" in text


def test_pictures_are_told_by_their_kind_and_size() -> None:
    content = [
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "text", "text": "x"},
    ]
    one = rpc("tools/call", {"content": content}, name="look", arguments={})

    (part,) = parts_of(one)

    assert isinstance(part, ServerExchange)
    assert part.text == "[image image/png, 4 characters]\nx"


def test_what_another_program_recorded_is_told_plainly() -> None:
    get = Interaction(Request("GET", "https://api.test/x?page=1"), answer("y" * 5_000))
    binary = Interaction(Request("PUT", "https://api.test/y"), answer(b"\xff\xfe"))

    page, put = parts_of(get, binary)

    assert isinstance(page, OtherExchange)
    assert isinstance(put, OtherExchange)
    assert put.body == "[2 bytes that are no text]"
    text = shown(get, binary)
    assert "GET https://api.test/x?page=1 → 200 OK" in text
    assert "… 4400 more characters; `--full` shows all" in text
    assert len(text) < 1_000
    assert "y" * 5_000 in shown(get, full=True)


def test_hostile_recordings_steer_no_terminal_and_are_folded() -> None:
    evil = "\x1b]0;own\x07\u202e\x9b2J\r\n::error::x\n" + "é" * 1_000_000
    hostile = [
        Interaction(asks({"role": evil, "content": evil}, model=evil), calls(evil, evil, evil)),
        Interaction(asks(USER, model=evil), Response(500, evil, (), evil.encode())),
        read(evil, evil, uri=f"mcp+stdio://{evil}"),
        rpc("initialize", {"serverInfo": {"name": evil}, "protocolVersion": evil}),
        Interaction(read("x", "").request, Response(broken=evil)),
        command(evil, [evil, evil], evil),
        Interaction(Request(evil, evil), Response(200, evil, (), evil.encode())),
        Interaction(Request("EXEC", "exec://x", body=b"\xff"), answer(b"\xfe")),
    ]

    told: list[str] = []
    work = work_of(lambda: told.append(shown(*hostile)))
    (text,) = told
    assert work.steps < 50_000
    assert work.text < 1_000 * len(evil)

    assert not {"\x1b", "\x07", "\u202e", "\x9b", "\r"} & set(text)
    assert not [line for line in text.splitlines() if line.strip().startswith("::")]
    assert len(text) < 50_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[1, 2]",
        b'{"messages": [1, null, {"role": 1, "content": [1, {"type": 2}], "tool_calls": [3]}]}',
        b'{"messages": [], "tools": [1, {"function": 2}], "model": 3}',
        b'{"jsonrpc": "2.0", "method": 1, "params": [1]}',
        b'{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": 1, "arguments": 2}}',
        b'{"jsonrpc": "2.0", "id": {}, "error": 5}',
        b'{"jsonrpc": "2.0", "method": "tools/list"}',
        b'{"argv": [1, 2]}',
        b'{"argv": 5, "command": 7}',
        b"\xff\xfe",
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"[" * 900 + b"]" * 900,
    ],
)
@pytest.mark.parametrize(
    "uri",
    ["exec://x", "mcp+stdio://a", "http://[::1", "http://h/v1/chat/completions", "mcp+pack:", ""],
)
def test_odd_content_is_told_and_never_fails(uri: str, body: bytes) -> None:
    for odd in (body, b'{"jsonrpc":"2.0","result":[1]}', b'{"jsonrpc":"2.0","id":1,"error":[]}'):
        one = Interaction(Request("POST", uri, body=body), answer(odd))
        assert len(parts_of(one, one)) <= 2
        shown(one, one)
        trajectory_of([one, one])
        trajectory_of_models([one])


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_server_asks_a_model_is_told_apart(*, wrapped: bool) -> None:
    message = {"role": "user", "content": {"type": "text", "text": "Sum this up"}}
    asked: dict[str, object] = {
        "method": "sampling/createMessage",
        "params": {"messages": [message]},
    }
    asked = {"result": {"inputRequests": {"a": asked}}} if wrapped else {**asked, "id": 3}
    result = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": []}})
    lines = json.dumps({"jsonrpc": "2.0", **asked}) + "\n" + result
    run = [
        Interaction(asks(USER), calls("c", "files__read", "{}")),
        Interaction(read("a", "").request, answer(lines)),
        Interaction(asks({"role": "user", "content": "Sum this up"}), says("A sum")),
    ]

    assert [turn.sampled for turn in turns_of(*run)] == [False, True]
    assert trajectory_of_models(run).answers == ()
    assert trajectory_of_models(run).totals.requests == 1
    assert "requested by a server" in shown(*run)


def test_a_command_is_told_with_its_end() -> None:
    (part,) = parts_of(command("list", ["ls"], "a\n", code=2))

    assert part == LocalCommand(1, "list", ("ls",), 2, "a\n", "", None)


def test_a_run_followed_by_its_events_compares_with_its_recording() -> None:
    following = TrajectoryCollector()
    asked = (Asked("c1", "files__read", '{"path":"a.txt"}'),)
    usage = Usage(input=20, output=5)
    for calls_, text in ((asked, ""), ((), "It says one and two")):
        following.take(TurnFinished(NOWHERE, "small", "stop", text, calls_, usage, 0.1, 0.5))
    of_server = TurnFinished(
        NOWHERE, "small", "stop", "Paris.", (), usage, 0.1, 0.5, purpose="sampling"
    )
    following.take(of_server)

    live, recorded = following.trajectory, trajectory_of_models(run_of())

    assert live.calls == recorded.calls
    assert live.answers == recorded.answers
    assert live.totals.usage == recorded.totals.usage == Usage(input=40, output=10)


def test_what_was_sent_has_results_and_prompts() -> None:
    failed = Interaction(asks(USER), Response(503))

    found = trajectory_of([failed, *run_of(), command("list", ["ls"], "a", code=1)])

    assert [(call.tool, call.result) for call in found.calls] == [
        ("files · read", "one\ntwo"),
        ("run list", "exit code 1\na"),
    ]
    assert found.prompts == (
        ("user", "Read a.txt"),
        ("system", "Be brief"),
        ("user", "Read a.txt"),
    )
    assert (found.totals.requests, found.totals.calls) == (2, 2)
