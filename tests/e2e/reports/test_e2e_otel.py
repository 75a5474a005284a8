"""`--otel`: traces of a run at a real collector, live and from its journal; never in a replay."""

import signal
import threading
from collections.abc import Sequence

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Reply, json_reply, text_reply, tool_reply
from otel_collector import attributes, collector

PATH = '{"path": "secret.txt"}'


@pytest.fixture
def traced(project: Project, model_endpoint: ModelEndpoints) -> Project:
    call = ("call_1", "repo__file_read", PATH)
    project.uses(model_endpoint([tool_reply([call]), text_reply("the answer")] * 3))
    project.write("secret.txt", "what the file says\n")
    project.pipeline(
        """
        name: look
        mcp: {servers: {repo: {pack: [fs], root: .}}, auto_approve: [repo__file_read]}
        steps: [{id: ask, prompt: the question}]
        """
    )
    return project


@pytest.mark.parametrize("extra", [[], ["--ephemeral"]], ids=["kept", "ephemeral"])
def test_a_run_is_traced(traced: Project, extra: Sequence[str]) -> None:
    with collector() as told:
        done = traced.run("--otel-endpoint", told.url, *extra)

    assert (done.code, done.stdout) == (0, "the answer\n"), done.stderr
    assert sorted(told.names) == [
        "chat scripted",
        "chat scripted",
        "execute_tool file_read",
        "invoke_workflow look",
        "step ask",
    ]
    everything = repr(told.spans)
    assert not any(said in everything for said in ("the question", "the answer", "secret.txt"))
    (root,) = [span for span in told.spans if not span.parent_span_id]
    assert attributes(root)["aish.exit.code"] == 0


def test_content_is_sent_where_it_is_asked_for(traced: Project) -> None:
    with collector() as told:
        done = traced.run("--otel-endpoint", told.url, "--otel-content")

    assert done.code == 0, done.stderr
    everything = repr(told.spans)
    assert all(said in everything for said in ("the answer", "secret.txt", "what the file says"))


def test_a_past_run_has_the_ids_that_it_had(traced: Project) -> None:
    with collector() as live, collector() as later:
        traced.run("--otel-endpoint", live.url)
        done = traced.aish("runs", "report", "latest", "--otel-endpoint", later.url)

    assert (done.code, done.stdout) == (0, ""), done.stderr
    ids = [{(one.trace_id, one.span_id, one.name) for one in told.spans} for told in (live, later)]
    assert ids[0] == ids[1]


def test_the_environment_alone_sends_nothing(traced: Project) -> None:
    with collector() as told:
        traced.aish.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = told.url
        traced.run()
        assert told.paths == []

        traced.run("--otel")
        assert told.names


def test_credentials_of_the_collector_are_in_no_log(traced: Project) -> None:
    traced.write("secret.txt", "a-planted-credential\n")
    traced.aish.env["OTEL_EXPORTER_OTLP_HEADERS"] = "authorization=a-planted-credential"
    with collector(401) as told:
        done = traced.run("--otel-endpoint", told.url, "--format", "jsonl")

    assert done.code == 0
    assert told.headers[0]["authorization"] == "a-planted-credential"
    assert "a-planted-credential" not in done.stdout + done.stderr
    assert "warning: `--otel`: 5 spans not sent: `127.0.0.1:" in done.stderr
    assert "answered HTTP 401: check the key in `OTEL_EXPORTER_OTLP_HEADERS`" in done.stderr


@pytest.mark.real_process
def test_the_spans_of_an_interrupted_run_are_sent(project: Project) -> None:
    """Issue 27, C: batches that are not full are sent at the end, whatever ends it."""
    project.pipeline("run: [sleep, '60']\n")
    with collector() as told:
        running = project.aish.start(
            "run", "p.yaml", "--allow", "shell__run", "--otel-endpoint", told.url
        )
        running.wait_for_line("tool shell__run")
        running.interrupt(signal.SIGTERM)

        assert running.finish().code == 143
    assert sorted(told.names) == ["execute_tool run", "invoke_workflow p", "step main"]
    assert len(told.paths) == 1


REFUSED: list[tuple[Reply | None, str]] = [
    *((json_reply(code, {"error": {"message": "no"}}), str(code)) for code in (400, 401, 429, 500)),
    (text_reply("late").but(parts=(b'data: {"choices": [',)), "unavailable"),
    (None, "unavailable"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("reply", "kind"), REFUSED)
def test_a_request_that_has_no_answer_says_why(
    project: Project, model_endpoint: ModelEndpoints, reply: Reply | None, kind: str
) -> None:
    """Issue 27, B8: also one whose stream broke, or without a connection."""
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    if reply is not None:
        project.uses(model_endpoint([reply] * 3))
    project.pipeline(
        "models: {m: {base_url: '${MODEL_URL}', model: x, retry: {attempts: 1}}}\nprompt: Hi\n"
    )

    with collector() as told:
        assert project.run("--otel-endpoint", told.url).code in {1, 5}

    (chat,) = [span for span in told.spans if span.name == "chat x"]
    assert attributes(chat)["error.type"] == kind


@pytest.mark.slow(reason="waits until a collector is given up")
def test_a_collector_that_hangs_neither_fails_nor_holds_a_run(traced: Project) -> None:
    never = threading.Event()
    with collector(wait=never.wait) as told:
        done = traced.run("--otel-endpoint", told.url)
        never.set()  # it has not waited for this

    assert (done.code, done.stdout) == (0, "the answer\n")
    assert done.stderr.count("spans not sent") == 1


@pytest.mark.parametrize(
    "flags", [["--replay", "c.yaml"], ["--cassette", "c.yaml"]], ids=["replay", "once"]
)
def test_a_replay_sends_nothing_and_says_so(traced: Project, flags: Sequence[str]) -> None:
    assert traced.run("--record", "c.yaml").code == 0
    before = set(traced.run_folders)

    with collector() as told:
        done = traced.run(*flags, "--otel-endpoint", told.url)

    assert done.code == 2
    assert "a replay has no network" in done.stderr
    assert told.paths == []
    assert set(traced.run_folders) == before


def test_a_replay_can_be_traced_afterwards(traced: Project) -> None:
    assert traced.run("--record", "c.yaml").code == 0
    assert traced.run("--replay", "c.yaml").code == 0

    with collector() as told:
        done = traced.aish("runs", "report", "latest", "--otel-endpoint", told.url)

    assert done.code == 0, done.stderr
    assert len(told.names) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--otel-content"], "add `--otel`"),
        (["--otel-endpoint", "collector:4318"], "is no http or https address"),
        (["--otel-endpoint", "http://me:key@host"], "has a password in it"),
    ],
)
def test_what_cannot_be_meant_is_said_before_the_run(
    traced: Project, arguments: Sequence[str], said: str
) -> None:
    done = traced.run(*arguments)

    assert done.code == 2
    assert said in done.stderr
    assert "key@" not in done.stderr
    assert not traced.run_folders
