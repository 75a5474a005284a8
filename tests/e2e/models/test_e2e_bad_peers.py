"""Endpoints and servers that are slow, broken or hostile: the run ends in order, in time."""

import pytest
from e2e_project import ModelEndpoints, Project, http_server, of_type, stdio
from mcp_peers import free_port
from model_endpoint import (
    CUT,
    RESET,
    Gate,
    Part,
    Pause,
    Reply,
    delta,
    hanging_reply,
    sse,
    stream_reply,
    text_reply,
    tool_reply,
)
from samples import sampled

QUICK = """
models:
  m:
    base_url: "${MODEL_URL}"
    model: x
    timeout: {TIMEOUT}
    retry: {attempts: 1}
"""
HELLO = sse([delta(role="assistant", content="Hello")], done=False)
HTML = Reply(
    parts=(b"<html><script>alert(1)</script>" + b"x" * 5000 + b"</html>",),
    status=200,
    headers={"content-type": "text/html"},
    framing="length",
)


def pings() -> Reply:
    """Comments without end, each in time, and never a word."""
    ping: list[Part] = [b": ping\n\n", Pause(0.2)]
    return stream_reply(*ping * 100)


def dribble() -> Reply:
    """Words without end, each in time."""
    word: list[Part] = [sse([delta(content="w ")], done=False), Pause(0.2)]
    return stream_reply(HELLO, *word * 200)


def nothings() -> Reply:
    """Frames without content, without end, each in time."""
    nothing: list[Part] = [sse([delta(role="assistant", content="")], done=False), Pause(0.2)]
    return stream_reply(*nothing * 100)


# Only what is to be exceeded is short: a busy machine is no bad endpoint.
SHORT = {
    "silence": "first_token: 1s",
    "pings for ever": "first_token: 1s",
    "frames without content": "first_token: 1s",
    "silence in the middle": "idle: 1s",
    "words for ever": "turn: 2s",
}
BAD: dict[str, tuple[Reply, int, str]] = {
    "silence": (hanging_reply(Gate()), 5, "no answer within 1 s"),
    "pings for ever": (pings(), 5, "no answer within 1 s"),
    "silence in the middle": (stream_reply(HELLO, Gate()), 5, "nothing new for 1 s"),
    "words for ever": (dribble(), 5, "longer than 2 s"),
    "a web page": (HTML, 1, "not a chat completion: <html>"),
    "a huge line": (stream_reply(b"data: " + b"x" * 3_000_000), 1, "over 1 MiB"),
    "cut off": (stream_reply(HELLO, CUT), 5, "the connection broke"),
    "reset": (stream_reply(HELLO, RESET), 5, "the connection broke"),
    "no words": (stream_reply(b""), 5, "the answer is empty"),
    "not HTTP": (Reply(parts=(b"HTTP/1.1 banana\r\n\r\n",), framing="raw"), 5, "banana"),
    "half an answer": (stream_reply(HELLO, sse([])), 5, "ended without a `finish_reason`"),
    "frames without content": (nothings(), 5, "no answer within 1 s"),
    "a redirect": (Reply(status=302, headers={"location": "http://127.0.0.1:9/"}), 1, "HTTP 302"),
}


@pytest.mark.requirement("L7")
@pytest.mark.parametrize(
    "kind", sampled(BAD, often={0, *range(4, len(BAD))}, reason="waits for a silent endpoint")
)
def test_a_bad_endpoint_ends_the_run_with_a_sentence(
    project: Project, model_endpoint: ModelEndpoints, kind: str
) -> None:
    reply, code, said = BAD[kind]
    endpoint = model_endpoint([reply])
    project.uses(endpoint)
    project.pipeline(QUICK.replace("TIMEOUT", SHORT.get(kind, "")) + "prompt: Say hello")

    done = project.run()

    assert (done.code, done.stdout) == (code, ""), done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if "] exit " in line]
    assert said in sentence
    assert "step `main`: model `m`: " in sentence
    assert len(sentence) < 800
    assert "Traceback" not in done.stderr
    assert project.journal[-1]["type"] == "run.finished"
    assert len(endpoint.asked) == 1


def test_the_file_can_accept_answers_without_a_finish_reason(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([stream_reply(HELLO, sse([]))]))
    entry = QUICK.replace("TIMEOUT", "").replace("model: x", "model: x\n    finish: optional")
    project.pipeline(entry + "prompt: Say hello")

    done = project.run()

    assert (done.code, done.stdout) == (0, "Hello\n"), done.stderr
    assert "the answer ended without a `finish_reason`" in done.stderr


def test_a_server_that_hangs_at_start_is_given_up_and_gone(project: Project) -> None:
    project.pipeline(
        f"""
        mcp:
          servers:
            s: {{command: {stdio("--hang-at-start", "--ignore-sigterm")}, timeout: {{connect: 1s}}}}
            quick: {{command: {stdio()}}}
        run: [touch, never]
        """
    )

    done = project.run()

    assert done.code == 5
    assert "exit 5 (unavailable): mcp server `s`: " in done.stderr
    assert "1 s" in done.stderr
    assert not (project.folder / "never").exists()


def test_noise_on_a_servers_stdout_costs_nothing(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([tool_reply([("c1", "s__echo", '{"text": "x"}')]), text_reply("k")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio("--noise")}}}}}, auto_approve: [s__echo]}}
        prompt: Use your tools
        """
    )

    found = project.result()

    assert found["exit"]["code"] == 0
    assert found["steps"]["main"]["tool_calls"][0]["content"] == "x"
    assert 1 <= len(found["notices"]) <= 2, "said, and not over and over"


@pytest.mark.requirement("M8")
def test_whatever_a_tool_does_the_model_gets_a_legal_reply(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    minute = '{"ms": 60000}'
    rounds = [
        [("c1", "s__fail", "{}"), ("c2", "s__rpc_error", "{}"), ("c3", "s__big", '{"n": 0}')],
        [("c4", "s__nothing", "{}"), ("c5", "s__add", '{"a": "x", "b": 1}'), ("c6", "s__add", "{")],
        [
            ("c7", "s__crash", "{}"),
            ("c8", "w__crash", "{}"),
            ("c9", "slow__sleep", minute),
        ],
        [("d1", "s__echo", '{"text": "back again"}'), ("d2", "w__echo", '{"text": "x"}')],
    ]
    endpoint = model_endpoint([*map(tool_reply, rounds), text_reply("done")])
    project.uses(endpoint)
    # Once it has crashed, no other test is given its port.
    with http_server("--port", str(free_port())) as url:
        project.pipeline(
            f"""
            mcp:
              servers:
                s: {{command: {stdio()}}}
                w: {{url: "{url}"}}
                slow: {{command: {stdio()}, timeout: {{call: 1s}}}}
              auto_approve: ["*__*", s__crash, w__crash]
            on_tool_error: continue
            prompt: Use your tools
            """
        )
        done = project.run()

    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    replies = {
        message["tool_call_id"]: message["content"]
        for message in endpoint.asked[-1]["messages"]
        if message["role"] == "tool"
    }
    starts = {
        "c1": "the handler failed on purpose",
        "c2": "[aish] tool dispatch failed: refused on purpose",
        "c3": "[aish] (no output)",
        "c4": "[aish] ",
        "c5": "[aish] tool arguments do not fit the schema: a",
        "c6": "[aish] tool arguments not parseable as JSON: ",
        "c7": "[aish] tool transport error: ",
        "c8": "[aish] tool transport error: ",
        "c9": "[aish] tool transport error: ",
        "d1": "back again",
        "d2": "[aish] tool transport error: ",
    }
    assert list(replies) == list(starts)
    wrong = {
        key: replies[key] for key, start in starts.items() if not replies[key].startswith(start)
    }
    assert wrong == {}
    kinds = {event["call"]: event["kind"] for event in of_type(project.journal, "tool.finished")}
    assert kinds["c1"] == "handler_error"
    assert kinds["c2"] == "rpc_error"
    assert kinds["c9"] == "transport_error"


def test_a_call_step_at_a_server_that_dies_is_a_failed_run(project: Project) -> None:
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio()}}}}}
          auto_approve: [s__crash]
        steps: [{{id: it, call: s__crash}}]
        """
    )

    done = project.run()

    assert (done.code, done.stdout) == (5, "")
    assert "exit 5 (unavailable): step `it`: tool transport error: " in done.stderr
    assert "the server ended with exit code 3" in done.stderr
