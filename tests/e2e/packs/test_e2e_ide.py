"""The pack `ide` in runs: what it tells of them, and chats with a model of the file (K77, K13)."""

import json

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import text_reply

FIRST = """
name: build
steps:
  - id: make
    run: ["echo", "made"]
  - id: check
    needs: [make]
    run: ["false"]
"""
SECOND = """
name: look
mcp:
  servers: {desk: {pack: ide, options: {ide: {model: m}}}}
  auto_approve: [desk__*]
steps:
  - {id: builds, call: desk__ide_build_list}
  - {id: build, needs: [builds], call: desk__ide_build_status, with: {build_id: FIRST}}
  - {id: plan, needs: [build], call: desk__ide_plan_status, with: {session_id: FIRST}}
  - {id: logs, needs: [plan], call: desk__ide_build_logs, with: {build_id: FIRST, tail: 2}}
  - {id: own, needs: [logs], call: desk__ide_plan_status}
  - {id: metrics, needs: [own], call: desk__ide_dashboard_metrics}
  - {id: activity, needs: [metrics], call: desk__ide_dashboard_activity, with: {limit: 200}}
  - {id: overview, needs: [activity], call: desk__ide_dashboard_overview}
  - {id: chat, needs: [overview], call: desk__ide_session_create, with: {name: Plans}}
  - id: send
    needs: [chat]
    call: desk__ide_chat_send
    with: {session_id: chat-1, message: "What next?"}
  - {id: sessions, needs: [send], call: desk__ide_session_list}
"""


@pytest.mark.requirement("K77")
def test_runs_are_builds_and_chats_are_had_with_the_model_of_the_file(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Ship it.")])
    project.uses(endpoint)
    project.pipeline(FIRST, name="first.yaml")
    assert project.aish("run", "first.yaml").code != 0
    first = project.run_folders[0].name
    project.pipeline(SECOND.replace("FIRST", first))
    (project.folder / ".git").mkdir()
    (project.folder / ".git" / "HEAD").write_text("ref: refs/heads/topic\n")

    steps = project.result("--record", "c.yaml")["steps"]

    found = {id: step["output"] for id, step in steps.items()}
    build = found["build"]["build"]
    assert (build["id"], build["pipeline"], build["status"]) == (first, "build", "denied")
    assert build["exit_code"] != 0
    assert [(one["pipeline"], one["status"]) for one in found["builds"]["builds"]] == [
        ("look", "running"),
        ("build", "denied"),
    ]
    plan = [(one["id"], one["status"]) for one in found["plan"]["steps"]]
    assert plan == [("make", "denied"), ("check", "skipped")]
    assert "run.finished denied" in found["logs"]["lines"][-1]
    own = {one["id"]: one["status"] for one in found["own"]["steps"]}
    assert list(own) == list(steps)
    assert (own["logs"], own["own"], own["metrics"]) == ("ok", "running", "pending")
    metrics = found["metrics"]["metrics"]
    assert (metrics["runs"], metrics["failed"], metrics["running"]) == (2, 1, 1)
    types = {(one["run"] == first, one["type"]) for one in found["activity"]["events"]}
    assert {(True, "run.finished"), (False, "run.started"), (False, "tool.finished")} <= types
    overview = found["overview"]
    assert overview["repos"] == [{"path": ".", "branch": "topic"}]
    assert overview["services"] == [{"name": "desk", "state": "ready", "tools": 11}]
    assert overview["bridge_online"] is False
    assert found["send"]["reply"] == "Ship it."
    assert json.dumps(endpoint.asked[0]["messages"]).count("What next?") == 1
    kinds = [(one["kind"], one["name"]) for one in found["sessions"]["sessions"]]
    assert kinds == [("chat", "Plans"), ("run", "look"), ("run", "build")]
    # The same without model and runs.
    project.uses(model_endpoint())
    replayed = project.result("--replay", "c.yaml", "--ephemeral")["steps"]
    assert {id: step["output"] for id, step in replayed.items()} == found


@pytest.mark.requirement("K78")
def test_a_bridge_gets_its_token_over_tls_or_on_this_machine_only(project: Project) -> None:
    for options, said in (
        ("{bridge: {url: 'ws://ide.test/', token_env: T}}", "would be sent unencrypted"),
        ("{bridge: {url: 'http://127.0.0.1/'}}", "is not the address of a WebSocket"),
        ("{bridge: {url: 'ws://me@127.0.0.1/'}}", "is not the address of a WebSocket"),
        ("{bridge: {url: 'ws://127.0.0.1/', reconnect: 1m}}", "not more than `most`"),
        ("{model: missing}", "unknown model `missing`"),
    ):
        server = f"{{pack: ide, options: {{ide: {options}}}}}"
        project.pipeline(f"mcp: {{servers: {{desk: {server}}}}}\nprompt: Go on\n")
        done = project.aish("validate", "p.yaml")
        assert (done.code, said in done.stderr) == (2, True), done.stderr
    for origins in ("'null'", "'*'", "http://a.test/", "HTTP://a.test", "ftp://a.test"):
        server = f"{{pack: ws, options: {{ws: {{origins: [{origins}]}}}}}}"
        project.pipeline(f"mcp: {{servers: {{hub: {server}}}}}\nprompt: Go on\n")
        done = project.aish("validate", "p.yaml")
        assert (done.code, "is not an origin" in done.stderr) == (2, True), done.stderr
