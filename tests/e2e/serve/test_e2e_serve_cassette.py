"""`aish serve` that records a cassette, and one that serves from it without servers or models."""

from pathlib import Path
from typing import Any

import pytest
from e2e_project import REPO, ModelEndpoints, Project, stdio
from hub_cassette import asked_again, client_exchanges
from model_endpoint import text_reply
from served_hub import ServedHub, text_of

SUMMARY = """
name: summary
inputs: {text: {type: string}}
models: {m: {base_url: "URL", model: scripted, key_env: SUMMARY_KEY}}
steps:
  - id: sum
    prompt: "Summarise: {{ inputs.text }}"
outputs: {summary: "{{ steps.sum.text }}"}
"""


def serving(project: Project, note: Path, url: str) -> None:
    """A file with a server and a pipeline."""
    project.write("summary.yaml", f"aish: 1\n{SUMMARY.replace('URL', url)}")
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio("--asks", "--note-pid", str(note))}}}}}
          auto_approve: ["s__*", pipeline__summary]
        serve: {{pipelines: [summary.yaml]}}
        """
    )


def converse(hub: ServedHub) -> list[Any]:
    """What two clients of both eras do; what came of it."""
    hub.begin()
    tools = hub.tools()
    count = {"name": "s__count", "arguments": {"steps": 2}, "_meta": {"progressToken": "p"}}
    return [
        tools,
        hub.call("s__echo", {"text": "hello"}),
        hub.ask("tools/call", count)["result"],
        hub.call("s__fail"),
        hub.call("pipeline__summary", {"text": "much"})["structuredContent"],
        hub.call("s__echo", {"text": "again"}, modern=True)["content"],
    ]


def without_runs(answers: list[Any]) -> list[Any]:
    """Answers without the ids of runs: each run has one of its own."""
    for one in answers:
        one["result"].get("_meta", {}).pop("aish/run", None)
    return answers


def test_a_session_is_recorded_and_served_again_without_servers_and_models(
    project: Project, model_endpoint: ModelEndpoints, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    endpoint = model_endpoint([text_reply("short")])
    project.aish.env["SUMMARY_KEY"] = "key-that-nobody-may-see"
    serving(project, note, endpoint.base_url)
    cassette = project.folder / "hub.yaml"
    with ServedHub(project, "p.yaml", "--record", cassette) as hub:
        recorded = converse(hub)
        hub.end_input()
        assert hub.finish() == 0, hub.stderr
    started = note.read_text()
    text = cassette.read_text("utf-8")
    requests = len(endpoint.requests)
    del project.aish.env["SUMMARY_KEY"]
    with ServedHub(project, "p.yaml", "--replay", cassette) as hub:
        replayed = converse(hub)
        hub.end_input()
        code = hub.finish()
    with ServedHub(project, "p.yaml", "--replay", cassette) as again:
        asked = asked_again(again, cassette)
        again.end_input()
        assert again.finish() == 0, again.stderr

    assert replayed == recorded
    assert code == 0, hub.stderr
    assert note.read_text() == started
    assert len(endpoint.requests) == requests
    assert "key-that-nobody-may-see" not in text
    assert without_runs(asked) == without_runs([one for _, one in client_exchanges(cassette)])
    assert len(asked) == 7
    assert text.count("uri: mcp+serve://1") >= 8


@pytest.mark.requirement("H27")
def test_the_shipped_hub_serves_from_its_cassette_what_its_client_was_answered(
    project: Project,
) -> None:
    """No model is started, and none of the files that were read is there."""
    for name in ("pipelines/hub.yaml", "pipelines/quickstart.yaml"):
        project.write(name, (REPO / name).read_bytes())
    (project.folder / "pipelines" / "data").mkdir()
    cassette = REPO / "tests" / "cassettes" / "hub.yaml"
    with ServedHub(project, "pipelines/hub.yaml", "--replay", cassette) as hub:
        asked = asked_again(hub, cassette)
        hub.end_input()
        assert hub.finish() == 0, hub.stderr

    assert without_runs(asked) == without_runs([one for _, one in client_exchanges(cassette)])
    denied = [one["result"]["isError"] for one in asked[2:]]
    assert denied == [False, False, False, True, False]
    assert not any((project.folder / "pipelines" / "data").iterdir())


def test_what_a_cassette_does_not_hold_is_a_failed_call_and_exit_6(
    project: Project, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio("--note-pid", str(note))}}}}}
          auto_approve: ["s__*"]
        """
    )
    with ServedHub(project, "p.yaml", "--record", "hub.yaml") as hub:
        hub.begin()
        hub.tools()
        hub.call("s__echo", {"text": "recorded"})
        hub.end_input()
        assert hub.finish() == 0, hub.stderr
    with ServedHub(project, "p.yaml", "--replay", "hub.yaml") as hub:
        hub.begin()
        hub.tools()
        missed = hub.call("s__echo", {"text": "another"})
        held = hub.call("s__echo", {"text": "recorded"})
        hub.end_input()
        code = hub.finish()

    assert missed["isError"] is True
    said = text_of(missed)
    assert "another" in said
    assert "recorded" in said
    assert text_of(held) == "recorded"
    assert code == 6
    assert "hub.yaml" in hub.stderr


def test_a_recording_and_a_replay_exclude_each_other_and_need_their_file(project: Project) -> None:
    project.pipeline(f"mcp: {{servers: {{s: {{command: {stdio()}}}}}}}")
    for arguments, said in (
        (("--record", "a.yaml", "--replay", "b.yaml"), "exclude each other"),
        (("--replay", "missing.yaml"), "`aish serve p.yaml --record missing.yaml` records it"),
    ):
        with ServedHub(project, "p.yaml", *arguments) as hub:
            assert hub.finish() == 2
        assert said in hub.stderr
    assert [one.name for one in project.folder.glob("*.yaml")] == ["p.yaml"]
