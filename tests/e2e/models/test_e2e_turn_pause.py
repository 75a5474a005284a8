"""Turns that an endpoint pauses are continued, and are one turn to everything else."""

import json
import os
import signal
from concurrent.futures import Future
from typing import Any

import messages_streams as s
import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import PATIENCE, Reply, json_reply, stream_reply, text_reply

from aish.journal.reader import read_journal

SEARCH: dict[str, Any] = {"id": "srvtoolu_1", "name": "web_search", "input": {"query": "planted"}}
FOUND: dict[str, Any] = {
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "encrypted_content": "planted-result", "url": "u"}],
}
PIPELINE = """
models:
  m:
    {api: messages, base_url: "${MODEL_URL}", model: claude, price: {input: 1, output: 1} MORE}
  other: {base_url: "${OTHER_URL}", model: gpt}
model: m
mcp:
  servers:
    repo: {pack: [fs], root: .}
  auto_approve: [repo__file_read]
prompt: Look it up.
"""


def paused(word: str) -> Reply:
    """A part of a turn: it thinks, speaks, and uses a tool of the vendor, which is not done."""
    return stream_reply(
        s.start(),
        s.thinking("privately", "signed-privately"),
        s.text(word, 1),
        s.begin(2, "server_tool_use", **SEARCH),
        s.stop(2),
        s.ends("pause_turn"),
    )


def goes_on() -> Reply:
    """The next part, which ends with a call of ours."""
    return stream_reply(
        s.start(),
        s.begin(0, "web_search_tool_result", **FOUND),
        s.stop(0),
        s.text("and read. ", 1),
        s.call("toolu_1", "repo__file_read", '{"path": "notes.txt"}', index=2),
        s.ends("tool_use"),
    )


def scene(project: Project, more: str = "") -> None:
    project.write("notes.txt", "from the file")
    project.pipeline(PIPELINE.replace("MORE", more))


BLOCKS = [
    {"type": "thinking", "thinking": "privately", "signature": "signed-privately"},
    {"type": "text", "text": "I search "},
    {"type": "server_tool_use", **SEARCH},
]


def test_a_paused_turn_goes_on_and_is_one_turn_of_the_run_and_its_recording(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    cut = stream_reply(s.start(), s.text("half"))
    done = stream_reply(s.start(), s.text("Done."), s.ends())
    endpoint = model_endpoint([paused("I search "), cut, goes_on(), done])
    project.uses(endpoint)
    scene(project, ", retry: {attempts: 2}")

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
    endpoint.close()
    replayed = project.run("--replay", "c.yaml", "--format", "json")

    assert recorded.code == 0, recorded.stderr
    assert replayed.code == 0, replayed.stderr
    _, after_pause, again, after_call = (asked["messages"] for asked in endpoint.asked)
    assert after_pause == again
    assert after_pause[-1] == {"role": "assistant", "content": BLOCKS}
    whole = [
        *BLOCKS,
        {"type": "web_search_tool_result", **FOUND},
        {"type": "text", "text": "and read. "},
        {"type": "tool_use", "id": "toolu_1", "name": "repo__file_read",
         "input": {"path": "notes.txt"}},
    ]  # fmt: skip
    assert after_call[1] == {"role": "assistant", "content": whole}
    assert after_call[2]["content"][0]["tool_use_id"] == "toolu_1"
    with read_journal(project.run_folders[0] / "events.jsonl") as reading:
        part, first, last = of_type(list(reading), "turn.finished")
    assert part["purpose"] == "paused"
    assert (first["text"], first["finish"]) == ("I search and read. ", "tool_calls")
    for one in (part, first):
        assert (one["usage"]["input"], one["usage"]["output"]) == (10, 5)
        assert one["cost_usd"] == pytest.approx(15e-6)
    assert last["text"] == "Done."
    result = json.loads(replayed.stdout)
    assert result["steps"]["main"]["text"] == "Done."
    assert result["usage"]["input"] == 30


def test_pauses_count_as_turns_and_have_an_end(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(lambda _: paused("I search "))
    project.uses(endpoint)
    scene(project)

    limited = project.run("--max-turns", "2")
    asked = len(endpoint.requests)
    endless = project.run()

    assert limited.code == 4, limited.stderr
    assert asked == 2
    assert endless.code == 0
    assert len(endpoint.requests) - asked == 33
    assert "the answer ended with `pause_turn`" in endless.stderr


def test_another_model_is_told_nothing_of_a_paused_turn(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    busy = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    claude = model_endpoint([paused("I search "), json_reply(529, busy)])
    other = model_endpoint([text_reply("Without it.")])
    scene(project, ", fallback: [other], retry: {attempts: 1}")

    done = project.run(env={"MODEL_URL": claude.base_url, "OTHER_URL": other.base_url})

    assert (done.code, done.stdout) == (0, "Without it.\n"), done.stderr
    sent = other.requests[0].body.decode()
    assert [message["role"] for message in json.loads(sent)["messages"]] == ["user"]
    for kept in ("privately", "signed", "planted", "srvtoolu", "I search"):
        assert kept not in sent
    parts, turn = of_type(project.journal, "turn.finished")
    assert (parts["model"], parts["purpose"], parts["cost_usd"]) == ("m", "paused", 15e-6)
    assert (turn["model"], turn["text"]) == ("other", "Without it.")


def test_a_pause_does_not_make_a_conversation_look_longer_than_it_is(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    counts = {"input_tokens": 3000, "output_tokens": 1}
    part = stream_reply(s.start(counts), s.text("I look "), s.ends("pause_turn"))
    calls = s.call("toolu_1", "repo__file_read", '{"path": "notes.txt"}', index=1)
    then = stream_reply(s.start(counts), s.text("and read."), calls, s.ends("tool_use"))
    done = stream_reply(s.start(counts), s.text("Done."), s.ends())
    project.uses(model_endpoint([part, then, done]))
    scene(project)
    file = project.folder / "p.yaml"
    file.write_text(f"{file.read_text()}context: {{max_tokens: 5000}}\n")

    ran = project.run()

    assert ran.code == 0, ran.stderr
    assert not of_type(project.journal, "notice")
    used = [turn["usage"]["input"] for turn in of_type(project.journal, "turn.finished")]
    assert used == [3000, 3000, 3000]


def test_what_the_parts_of_a_turn_have_used_is_told_though_the_turn_never_ends(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    refused = json_reply(400, {"type": "error", "error": {"message": "no"}})
    done = stream_reply(s.start(), s.text("Done."), s.ends())
    project.uses(model_endpoint([paused("I search "), paused("more "), refused, done]))
    scene(project)

    broken = project.run("--format", "json", "--html", "r.html")
    resumed = project.run("--resume", "--format", "json")

    assert (broken.code, resumed.code) == (1, 0), broken.stderr + resumed.stderr
    for told, times in ((broken, 2), (resumed, 3)):
        result = json.loads(told.stdout)
        assert result["usage"]["input"] == 10 * times
        assert result["usage"]["output"] == 5 * times
        assert result["cost_usd"] == pytest.approx(15e-6 * times)
    assert "m began an answer (other, 10 in / 5 out tokens" in broken.stderr
    assert "Part of a paused turn" in (project.folder / "r.html").read_text()


def test_what_a_part_of_a_turn_has_used_is_counted_though_the_next_one_is_killed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    process: Future[int] = Future()

    def kill(asked: Any) -> Reply:
        os.killpg(process.result(PATIENCE), signal.SIGKILL)
        return json_reply(400, asked)

    done = stream_reply(s.start(), s.text("Done."), s.ends())
    endpoint = model_endpoint([paused("I search "), kill, done])
    project.uses(endpoint)
    scene(project)

    with project.aish.start("run", "p.yaml") as running:
        process.set_result(running.pid)
        killed = running.finish()
    resumed = project.run("--resume", "--format", "json")

    assert (killed.code, resumed.code) == (-signal.SIGKILL, 0), resumed.stderr
    result = json.loads(resumed.stdout)
    assert result["usage"]["input"] == 20
    assert result["usage"]["output"] == 10
    assert result["cost_usd"] == pytest.approx(30e-6)
