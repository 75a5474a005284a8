"""A run that is resumed again and again: what an earlier attempt did stays known (B3, P6)."""

import json
import signal
import sys
from collections.abc import Generator
from typing import Any

import pytest
from e2e_project import REPO, ModelEndpoints, Project, driven, of_type
from jsonschema import Draft202012Validator
from mcp_emulators import McpEndpoint, Modern, error
from mcp_tools import text_result
from model_endpoint import Reply, json_reply, text_reply, tool_reply

STEP = """
    mcp:
      servers: {box: {pack: [shell], root: .}}
      auto_approve: [box__shell_run]
    steps: [{id: pay, prompt: Pay}]
    """
ITEM = ("prompt: Pay", """foreach: "['a']", key: item, prompt: "Pay {{ item }}" """)
ITEMS = STEP.replace(*ITEM)
PAY = json.dumps({"command": "echo paid >> paid.txt"})
SCHEMA = Draft202012Validator(json.loads((REPO / "schemas/result.schema.json").read_text("utf-8")))
BROKEN = json_reply(400, {"error": {"message": "no"}})


def paid(project: Project) -> int:
    path = project.folder / "paid.txt"
    return len(path.read_text("utf-8").splitlines()) if path.exists() else 0


def paying(project: Project, model_endpoint: ModelEndpoints, text: str) -> dict[str, Any]:
    """A model that pays; `after` the payment, or `before` it, the endpoint may be broken."""
    broken: dict[str, Any] = {"before": False, "after": True}

    def answer(body: Any) -> Reply:
        is_paid = body["messages"][-1]["role"] == "tool"
        if broken["after" if is_paid else "before"]:
            return BROKEN
        return text_reply("paid") if is_paid else tool_reply([("c1", "box__shell_run", PAY)])

    project.uses(model_endpoint(answer))
    project.pipeline(text)
    return broken


def dies(project: Project, failpoint: str, *flags: str) -> None:
    done = driven(project, failpoint, "run", "p.yaml", *flags).finish()
    assert done.code == -signal.SIGKILL, done.stderr


def test_a_payment_is_named_after_each_attempt_that_failed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    broken = paying(project, model_endpoint, STEP)
    assert project.run().code == 1
    assert project.run("--resume").code == 2
    broken["before"] = True
    for _ in range(2):
        assert project.run("--resume", "--retry-unknown").code == 1
    broken.update(before=False, after=False)

    done = project.run("--resume")

    assert done.code == 2
    assert "1 call would be made again" in done.stderr
    assert "`box__shell_run` in step `pay`" in done.stderr
    assert paid(project) == 1
    assert project.run("--resume", "--retry-unknown").code == 0
    assert paid(project) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("text", "ended"), [(STEP, "started"), (ITEMS, "started"), (STEP, "finished")]
)
def test_a_payment_is_named_after_attempts_that_were_killed_before_theirs(
    project: Project, model_endpoint: ModelEndpoints, text: str, ended: str
) -> None:
    broken = paying(project, model_endpoint, text)
    broken["after"] = ended == "finished"
    if ended == "finished":
        assert project.run().code == 1
    else:
        dies(project, "after:tool.started:1")
    broken.update(after=False)
    retry = ["--resume", "--retry-unknown"]
    for failpoint in ("after:step.started:1", "before:tool.decided:1", "after:tool.decided:1"):
        dies(project, failpoint, *retry)
    before = paid(project)

    done = project.run("--resume")

    assert done.code == 2, done.stderr
    assert "`box__shell_run` in step `pay`" in done.stderr
    assert paid(project) == before
    assert project.run(*retry).code == 0
    assert paid(project) == before + 1


ASKED = STEP.replace("auto_approve: [box__shell_run]", "auto_approve: []\n    on_ask: pause")


def approve(project: Project) -> None:
    """Say yes to the only open question."""
    asked = of_type(project.journal, "approval.asked")[-1]
    done = project.aish("approve", "latest", asked["id"], "--yes", "--digest", asked["digest"])
    assert done.code == 0, done.stderr


@pytest.mark.parametrize("text", [ASKED, ASKED.replace(*ITEM)], ids=["step", "item"])
def test_an_approval_that_a_call_has_used_allows_no_other_call(
    project: Project, model_endpoint: ModelEndpoints, text: str
) -> None:
    paying(project, model_endpoint, text)["after"] = False
    assert project.run().code == 8
    approve(project)
    dies(project, "after:tool.started:1", "--resume")
    assert project.run("--resume").code == 2

    for _ in range(2):
        done = project.run("--resume", "--retry-unknown")
        assert done.code == 8, done.stderr
    assert paid(project) == 0
    assert len({one["id"] for one in of_type(project.journal, "approval.asked")}) == 2

    approve(project)
    assert project.run("--resume", "--retry-unknown").code == 0
    assert paid(project) == 1


@pytest.mark.requirement("P6")
def test_an_approval_that_no_call_has_used_stands(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    paying(project, model_endpoint, ASKED)["after"] = False
    assert project.run().code == 8
    approve(project)
    for failpoint in ("before:tool.decided:1", "after:tool.decided:1", "before:tool.started:1"):
        dies(project, failpoint, "--resume")

    assert project.run("--resume").code == 0
    assert paid(project) == 1
    assert len(of_type(project.journal, "approval.answered")) == 1


def test_all_calls_are_named_in_a_file_and_in_the_result(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [(f"c{n}", "box__shell_run", json.dumps({"command": f"echo {n}"})) for n in range(25)]
    project.uses(model_endpoint([tool_reply(calls), BROKEN, text_reply("done")]))
    project.pipeline(STEP)
    assert project.run().code == 1

    done = project.run("--resume", "--format", "json")

    assert done.code == 2
    assert "25 calls would be made again" in done.stderr
    assert "… and 15 more" in done.stderr
    (folder,) = project.run_folders
    head, *lines = (folder / "calls-to-check.txt").read_text().splitlines()
    assert f"all of them are in {folder}/calls-to-check.txt" in done.stderr
    assert head.startswith("25 calls would be made again")
    assert [f'"echo {n}"' in line for n, line in enumerate(lines)] == 25 * [True]
    told = json.loads(done.stdout)
    SCHEMA.validate(told)
    assert (told["status"], told["exit"]["code"]) == ("failed", 2)
    assert [call["arguments"]["command"] for call in told["calls"]] == [
        f"echo {n}" for n in range(25)
    ]
    assert {call["outcome"] for call in told["calls"]} == {"known"}

    done = project.run("--resume", "--retry-unknown", "--format", "json")

    assert done.code == 0, done.stderr
    assert "25 calls may be made again, as `--retry-unknown` allows" in done.stderr
    assert len((folder / "calls-to-check.txt").read_text().splitlines()) == 26
    again = json.loads(done.stdout)
    SCHEMA.validate(again)
    assert again["calls"] == told["calls"]


@pytest.mark.parametrize("text", [STEP, ITEMS], ids=["step", "item"])
def test_what_failed_by_a_request_after_a_payment_is_tried_again_from_there(
    project: Project, model_endpoint: ModelEndpoints, text: str
) -> None:
    broken = paying(project, model_endpoint, text)
    for flags in ([], ["--resume", "--retry-failed"], ["--resume", "--retry-failed"]):
        assert project.run(*flags).code == 1
    broken["after"] = False

    done = project.run("--resume", "--retry-failed")

    assert (done.code, done.stdout, paid(project)) == (0, "paid\n", 1), done.stderr


def test_a_call_of_one_part_of_an_item_does_not_hide_that_of_another(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    def answer(body: Any) -> Reply:
        if body["messages"][-1]["role"] == "tool":
            return text_reply("done")
        # The server ends at the first call, after its effect; the ids are the same.
        pays = body["messages"][-1]["content"] == "Pay"
        tool, arguments = ("s__die", '{"text": "paid"}') if pays else ("box__shell_run", PAY)
        return tool_reply([("c1", tool, arguments)])

    project.uses(model_endpoint(answer))
    command = json.dumps([sys.executable, str(REPO / "tests/support/mcp_ledger_server.py")])
    servers = f"""
    mcp:
      servers: {{box: {{pack: [shell], root: .}}, s: {{command: {command}}}}}
      auto_approve: [box__shell_run, "s__*"]
    """
    project.pipeline(
        f"""{servers}
    steps:
      - {{id: a, prompt: Pay, on_error: continue}}
      - {{id: b, needs: [a], prompt: Note}}
      - {{id: c, needs: [b], call: s__fail, with: {{text: ""}}}}
    """,
        "inner.yaml",
    )
    outer = """foreach: "['k']", key: item, pipeline: inner.yaml"""
    project.pipeline(f"{servers}\n    steps: [{{id: all, {outer}}}]\n")
    assert project.run().code == 1

    done = project.run("--resume", "--retry-failed")

    assert done.code == 2, done.stderr
    assert "1 call started, with unknown outcome" in done.stderr
    assert "`s__die` in step `all`, item `k`" in done.stderr
    assert len((project.folder / "ledger.txt").read_text("utf-8").splitlines()) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", ["step", "item", "part of a step", "part of an item"])
def test_a_retry_does_not_repeat_what_an_earlier_part_of_the_run_has_called(
    project: Project, model_endpoint: ModelEndpoints, place: str
) -> None:
    tries = "retry: {attempts: 3}, "
    text = ITEMS if "item" in place else STEP
    if "part" in place:
        broken = paying(project, model_endpoint, STEP)
        project.pipeline(STEP, "inner.yaml")
        for prompt in ('prompt: "Pay {{ item }}"', "prompt: Pay"):
            text = text.replace(prompt, "pipeline: inner.yaml")
        project.pipeline(text)
    else:
        broken = paying(project, model_endpoint, text)
    path = project.folder / "p.yaml"
    path.write_text(path.read_text().replace("{id: pay, ", f"{{id: pay, {tries}"))
    broken["after"] = False
    dies(project, "after:tool.finished:1")
    broken["after"] = True

    done = project.run("--resume")

    assert done.code == 1, done.stderr
    assert paid(project) == 1
    assert "it is not tried again, as its call of `box__shell_run` may have taken" in done.stderr


SERVED = """
    mcp:
      servers: {s: {url: "${BOX_URL}", timeout: {call: 5s}}}
      auto_approve: [s__pay]
    """
TOOL = {
    "name": "pay",
    "description": "Pay",
    "inputSchema": {"type": "object", "properties": {"sum": {"type": "integer"}}},
}
ENDS = {
    "ok": lambda _: {"resultType": "complete", **text_result("paid")},
    "handler_error": lambda _: {"resultType": "complete", **text_result("no"), "isError": True},
    "rpc_error": lambda request: error(request, -32000, "the bank is down"),
}


@pytest.fixture
def bank(project: Project, request: pytest.FixtureRequest) -> Generator[McpEndpoint]:
    """A server with a tool whose calls end in the way that the test names, once each is counted."""
    with McpEndpoint(Modern(tools=[TOOL], tools__call=ENDS[request.param])) as server:
        project.aish.env["BOX_URL"] = server.url
        yield server


def payments(bank: McpEndpoint) -> int:
    return bank.methods.count("tools/call")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bank", ["handler_error", "rpc_error"], indirect=True)
@pytest.mark.parametrize("text", ["prompt: Pay", ITEM[1]], ids=["step", "item"])
def test_a_payment_that_ended_with_an_error_is_named_before_it_is_made_again(
    project: Project, model_endpoint: ModelEndpoints, bank: McpEndpoint, text: str
) -> None:
    is_broken = True

    def answer(body: Any) -> Reply:
        if body["messages"][-1]["role"] == "tool":
            return BROKEN if is_broken else text_reply("done")
        return tool_reply([("c1", "s__pay", '{"sum": 3}')])

    project.uses(model_endpoint(answer))
    project.pipeline(f"{SERVED}\n    steps: [{{id: pay, {text}, on_error: continue}}]\n")
    assert project.run().code == 1
    is_broken = False
    if "foreach" in text:
        # It stays failed.
        assert project.run("--resume").code == 1
        assert project.run("--resume", "--retry-failed").code == 0
        assert payments(bank) == 1
        return

    done = project.run("--resume")

    assert done.code == 2, done.stderr
    assert "1 call would be made again" in done.stderr
    assert "`s__pay` in step `pay`" in done.stderr
    assert payments(bank) == 1
    done = project.run("--resume", "--retry-unknown", "--format", "json")
    assert done.code == 0, done.stderr
    assert payments(bank) == 2
    assert "1 call may be made again, as `--retry-unknown` allows" in done.stderr
    assert [call["tool"] for call in json.loads(done.stdout)["calls"]] == ["s__pay"]
