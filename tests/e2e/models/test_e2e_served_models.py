"""The models that have answered: recorded, shown, and pinned in the lock."""

import json
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import Reply, named, text_reply, tool_reply

NEW, OLD = "gpt-4o-2024-11-20", "gpt-4o-2024-08-06"
ASKS = "models: {gpt: {base_url: '${MODEL_URL}', model: gpt-4o}}\n"
STEPS = "steps: [{id: one, prompt: First}, {id: two, prompt: Second}]"
CALLS = "mcp: {servers: {fs: {pack: fs, root: .}}, auto_approve: ['fs__*']}\nprompt: Look"
LISTS = ("c1", "fs__dir_list", '{"path": "."}')


def says(model: str | None, state: str = "fp_1") -> Reply:
    return named(text_reply("Done."), model, system_fingerprint=state)


@pytest.mark.requirement("V29")
def test_what_has_answered_is_in_the_journal_the_result_and_on_the_pages(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([says(NEW), says(OLD, "fp_2"), says(NEW), says(NEW)]))
    project.pipeline(ASKS + STEPS)
    project.aish.env["GITHUB_STEP_SUMMARY"] = str(project.write("summary.md", ""))

    found = project.result("--html", "page.html", "--github")
    one = project.run()

    both = {"models": [NEW, OLD], "fingerprints": ["fp_1", "fp_2"]}
    assert found["served"] == {"gpt": both}
    first, second = project.run_folders
    shown = json.loads(project.aish("runs", "show", first.name, "--format", "json").stdout)
    assert shown["served"] == found["served"]
    (mixed,) = [one for one in found["notices"] if one["code"] == "served_mixed"]
    assert mixed["text"] == f"model `gpt`: `{NEW}` has answered, and `{OLD}` too"
    asked = f"model gpt: asked `gpt-4o`, answered `{NEW}`"
    assert one.stderr.count(NEW) == one.stderr.count(asked) == 1
    assert asked in project.aish("runs", "show", second.name).stdout
    for name in ("page.html", "summary.md"):
        text = (project.folder / name).read_text()
        assert NEW in text, name
        assert OLD in text, name


def test_a_resumed_run_keeps_what_has_answered(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    refused = text_reply("").but(status=400, parts=(b"{}",))
    project.uses(model_endpoint([says(OLD), refused, says(NEW)]))
    project.pipeline(ASKS + STEPS)
    assert project.run().code == 1

    found = project.result("--resume")

    assert found["exit"]["code"] == 0
    assert found["served"]["gpt"]["models"] == [OLD, NEW]
    assert "served_mixed" in [notice["code"] for notice in found["notices"]]


@pytest.mark.requirement("V30")
def test_an_answer_of_another_model_ends_the_run_before_its_calls(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = named(tool_reply([LISTS]), NEW)
    endpoint = model_endpoint([says(OLD), calls, calls, says(NEW), calls, says(NEW)])
    project.uses(endpoint)
    project.pipeline(ASKS + CALLS)
    assert project.run("--record", "c.yaml").code == 0
    pinned = project.aish("lock", "p.yaml", "--served", "latest")
    assert pinned.code == 0, pinned.stderr
    lock = project.folder / "p.lock.json"
    assert json.loads(lock.read_text())["models"]["gpt"] == {"model": "gpt-4o", "served": [OLD]}
    # The same from the cassette of that run.
    assert project.aish("lock", "p.yaml", "--check", "--served", "c.yaml").code == 0

    ended = project.result()
    journal = project.run_folders[-1] / "events.jsonl"
    warned = project.result("--lock", "warn", "--record", "d.yaml")
    replayed = project.result("--replay", "d.yaml")
    differs = project.aish("lock", "p.yaml", "--served", "d.yaml")
    accepted = project.aish("lock", "p.yaml", "--update", "--served", "d.yaml")
    good = project.result("--replay", "d.yaml")

    what = f'model `gpt` differs from the lock: served "{OLD}" → "{NEW}"'
    for found in (ended, replayed):
        assert found["exit"]["code"] == 7
        assert found["exit"]["reason"] == "p.lock.json: model `gpt` differs from the lock"
        assert "--served RUN --diff` shows how" in found["exit"]["hint"]
        assert found["served"]["gpt"]["models"] == [NEW]
        assert found["call_counts"]["total"] == 0
        (notice,) = [one for one in found["notices"] if one["code"] == "lock_differs"]
        assert (notice["level"], notice["text"]) == ("error", f"p.lock.json: {what}")
    assert b'"tool.decided"' not in journal.read_bytes()
    assert warned["exit"]["code"] == 0
    assert [one["level"] for one in warned["notices"]] == ["warning"]
    assert (differs.code, accepted.code) == (7, 0)
    assert "`aish lock p.yaml --served d.yaml --update` accepts the changes" in differs.stderr
    assert f"- {OLD}\n    + {NEW}" in accepted.stdout
    assert json.loads(lock.read_text())["models"]["gpt"]["served"] == [NEW]
    assert good["exit"]["code"] == 0


def test_a_resumed_run_does_not_go_on_with_the_calls_of_another_model(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([says(OLD), named(tool_reply([LISTS]), None), says(OLD)]))
    # An item that ends the run is not over, and is gone on with.
    step = "steps: [{id: it, foreach: \"['a']\", prompt: Look}]"
    project.pipeline(ASKS + CALLS.replace("prompt: Look", step))
    project.run()
    project.aish("lock", "p.yaml", "--served", "latest")
    assert project.run().code == 7

    again = project.result("--resume")
    warned = project.result("--resume", "--lock", "warn")

    assert (again["exit"]["code"], again["call_counts"]["total"]) == (7, 0)
    assert (warned["exit"]["code"], warned["call_counts"]["total"]) == (0, 1)
    assert '→ "(no name)"' in str(again["notices"])


def test_without_a_run_each_model_is_asked_for_one_token(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    first, second = model_endpoint([says(NEW)]), model_endpoint([says(None)])
    project.aish.env |= {"FIRST": first.base_url, "SECOND": second.base_url}
    models: Any = {
        "gpt": {"base_url": "${FIRST}", "model": "gpt-4o", "fallback": ["other"]},
        "other": {"base_url": "${SECOND}", "model": "other"},
    }
    models["gpt"] |= {"price": {"input": 1, "output": 2}}
    models["other"] |= {"price": {"input": 1, "output": 2}, "params": {"max_completion_tokens": 9}}
    project.pipeline(f"models: {json.dumps(models)}\nsteps: [{{id: it, model: gpt, prompt: Hi}}]")

    done = project.aish("lock", "p.yaml", "--served")

    assert done.code == 0, done.stderr
    assert [endpoint.asked[0].get("max_tokens") for endpoint in (first, second)] == [1, None]
    assert second.asked[0]["max_completion_tokens"] == 1
    assert "asked 2 models for one token each: 14 in / 6 out tokens, cost $0.000026" in done.stderr
    assert "warning: an answer of model `other` names no model" in done.stderr
    pinned = json.loads((project.folder / "p.lock.json").read_text())["models"]
    assert pinned == {"gpt": {"model": "gpt-4o", "served": [NEW]}, "other": "other"}
    # What is pinned stays so, until the model itself is another one.
    assert project.aish("lock", "p.yaml", "--check").code == 0


def test_a_fallback_answers_under_its_own_alias(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("").but(status=503, parts=(b"{}",)), says(NEW)]))
    project.pipeline(
        "models:\n"
        "  a: {base_url: '${MODEL_URL}', model: m, fallback: [b], retry: {attempts: 1}}\n"
        "  b: {base_url: '${MODEL_URL}', model: n}\n"
        "steps: [{id: it, model: a, prompt: Hi}]"
    )

    found = project.result()

    assert found["served"] == {"b": {"models": [NEW], "fingerprints": ["fp_1"]}}
    (turn,) = of_type(project.journal, "turn.finished")
    assert (turn["model"], turn["served"]["model"]) == ("b", NEW)


def test_a_live_test_tells_of_another_model_than_that_of_the_baseline(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([says(OLD), says(NEW)]))
    case = "tests: [{name: it, expect: [{contains: Done}]}]"
    project.pipeline(f"{ASKS}prompt: Hi\n{case}")
    live = ("test", "--live", "p.yaml", "-m", "gpt")
    before = project.aish(*live, "--write-baseline", "b.json", "--format", "json")

    now = project.aish(*live, "--baseline", "b.json")

    model = json.loads(before.stdout)["models"][0]
    assert model["served"] == [OLD]
    told = f"gpt: answered by another model than the baseline: `{NEW}`, before `{OLD}`"
    assert told in now.stdout
    assert now.code == 0
