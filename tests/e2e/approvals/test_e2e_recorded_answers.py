"""A recording keeps the answers about calls; its replay gives them again, and asks nobody (A11)."""

import json
import sys
from itertools import product
from pathlib import Path
from textwrap import dedent
from typing import Any

import pexpect
import pytest
from e2e_project import REPO, ModelEndpoints, Project, of_type
from model_endpoint import Reply, text_reply, tool_reply
from samples import sampled
from terminal_window import close_terminal

from aish.journal.reader import read_journal

SERVER = REPO / "tests" / "support" / "mcp_ledger_server.py"
WRITES = dedent(f"""
    mcp:
      servers:
        box: {{command: {json.dumps([sys.executable, str(SERVER)])}}}
    on_denied: continue
    prompt: Write it down
    cassette: c.yaml
    """).lstrip()
NOTHING = {"PATH": "", "MODEL_URL": ""}
"""A replay needs no program, and no address."""


def calls_of(*texts: str) -> Reply:
    return tool_reply(
        [(f"c{n}", "box__write", json.dumps({"text": text})) for n, text in enumerate(texts)]
    )


def rounds(*each: tuple[str, ...]) -> Any:
    """A model that makes the calls of each round, and then repeats what came of the last."""

    def answer(request: Any) -> Reply:
        said = sum(message["role"] == "assistant" for message in request["messages"])
        if said < len(each):
            return calls_of(*each[said])
        return text_reply(f"done: {request['messages'][-1]['content']}")

    return answer


def at_terminal(project: Project, line: str, *typed: str) -> int:
    """The exit code of a line whose questions are answered with the lines that are `typed`."""
    child: pexpect.spawn[str] = pexpect.spawn(
        "sh",
        ["-c", f"exec {line}"],
        cwd=str(project.folder),
        env={**project.aish.env, "AISH": f"{sys.executable} -m aish"},
        encoding="utf-8",
        timeout=60,
    )
    try:
        for one in typed:
            child.expect_exact("[y/N")
            child.expect_exact("] ")
            child.send(f"{one}\r")
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus is not None
        return int(child.exitstatus)
    finally:
        close_terminal(child)


def ledger(project: Project) -> list[str]:
    path = project.folder / "ledger.txt"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def journal(folder: Path) -> list[Any]:
    """The events of the latest run in a project."""
    found = (folder / ".aish" / "runs").glob("*/events.jsonl")
    with read_journal(max(found, key=lambda path: path.stat().st_mtime_ns)) as reading:
        return list(reading)


def told(project: Project) -> list[tuple[Any, ...]]:
    """What the latest run told of questions and calls, without what differs in each run."""
    found: list[tuple[Any, ...]] = []
    asked: list[str] = []
    for event in journal(project.folder):
        match event["type"]:
            case "approval.asked":
                asked.append(event["id"])
                fields = ("step", "item", "call", "tool", "arguments", "reason", "always")
                found.append(
                    ("asked", asked.index(event["id"]), *(event.get(one) for one in fields))
                )
            case "approval.answered":
                number = asked.index(event["id"])
                end = ("answer", "by", "way", "note")
                found.append(("answered", number, *(event.get(one) for one in end)))
            case "tool.decided":
                number = -1 if event["approval"] is None else asked.index(event["approval"])
                found.append(("decided", number, event["verdict"], event["rule"]))
            case "tool.finished":
                found.append(("finished", event["kind"], event["content"]))
    return found


@pytest.mark.parametrize(
    ("typed", "on_ask"),
    sampled(
        product("yna", ("deny", "wait", "pause")),
        often={0, 4, 8},
        reason="each answer and each `on_ask` is in a case that always runs",
    ),
)
def test_a_replay_gives_the_answer_of_the_recording(
    project: Project, model_endpoint: ModelEndpoints, on_ask: str, typed: str
) -> None:
    project.pipeline(WRITES + f"on_ask: {on_ask}\n")
    endpoint = model_endpoint(rounds(("one",)))
    project.uses(endpoint)

    assert at_terminal(project, "$AISH record p.yaml --ask", typed) == 0
    recorded, written = told(project), ledger(project)
    endpoint.close()
    replayed = project.run("--replay", env=NOTHING)

    assert replayed.code == 0, replayed.stderr
    assert "unused" not in replayed.stderr
    assert told(project) == recorded
    assert [one[0] for one in recorded] == ["asked", "answered", "decided", "finished"]
    assert recorded[2][2] == ("ask-no" if typed == "n" else "ask-yes")
    assert ledger(project) == written == ([] if typed == "n" else ["one"])


def test_equal_calls_have_their_answers_in_order(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(WRITES)
    endpoint = model_endpoint(rounds(("same", "same"), ("other",), ("same",)))
    project.uses(endpoint)

    assert at_terminal(project, "$AISH record p.yaml --ask", "n", "y", "y", "n") == 0
    recorded = told(project)
    replayed = project.run("--replay", env=NOTHING)

    assert replayed.code == 0, replayed.stderr
    assert told(project) == recorded
    verdicts = [one[2] for one in recorded if one[0] == "decided"]
    assert verdicts == ["ask-no", "ask-yes", "ask-yes", "ask-no"]
    cassette = (project.folder / "c.yaml").read_text("utf-8")
    assert cassette.count("uri: approval://main\n") == 4
    assert ledger(project) == ["same", "other"]


def test_an_always_answers_the_same_call_of_its_round_again_and_no_other(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    strict = "cassette: {path: c.yaml, strict: true}"
    project.pipeline(WRITES.replace("cassette: c.yaml", f"on_ask: wait\n{strict}"))
    endpoint = model_endpoint(rounds(("a", "a"), ("b",), ("a",)))
    project.uses(endpoint)

    assert at_terminal(project, "$AISH record p.yaml --ask", "a", "n") == 0
    recorded = told(project)
    replayed = project.run("--replay", env=NOTHING)

    assert replayed.code == 0, replayed.stderr
    assert told(project) == recorded
    verdicts = [one[2] for one in recorded if one[0] == "decided"]
    assert verdicts == ["ask-yes", "auto", "ask-no", "auto"]
    assert [one[0] for one in recorded[:4]] == ["asked"] * 2 + ["answered"] * 2


def test_other_arguments_are_denied(project: Project, model_endpoint: ModelEndpoints) -> None:
    project.pipeline(WRITES.replace("on_denied: continue\n", ""))
    endpoint = model_endpoint(rounds(("one",)))
    project.uses(endpoint)
    assert at_terminal(project, "$AISH record p.yaml --ask", "y") == 0
    cassette = project.folder / "c.yaml"
    # The model of the replay asks for another text, and nobody has seen that.
    first, rest = cassette.read_text("utf-8").split("uri: approval://", 1)
    start, _, end = first.rpartition("one")
    cassette.write_text(f"{start}two{end}uri: approval://{rest}", "utf-8")

    replayed = project.run("--replay", env=NOTHING)

    assert replayed.code == 3, replayed.stderr
    (decided,) = of_type(journal(project.folder), "tool.decided")
    assert decided["arguments"] == {"text": "two"}
    assert (decided["verdict"], decided["rule"]) == ("ask-no", "nobody to ask")
    assert of_type(journal(project.folder), "approval.asked") == []


@pytest.mark.parametrize(
    "on_ask", sampled(["deny", "wait", "pause"], often={0}, reason="cases of the same kind")
)
def test_a_cassette_without_answers_denies_at_once(
    project: Project, model_endpoint: ModelEndpoints, on_ask: str
) -> None:
    project.pipeline(WRITES.replace("on_denied: continue", f"on_ask: {on_ask}"))
    endpoint = model_endpoint(rounds(("one",)))
    project.uses(endpoint)
    recorded = project.aish("record", "p.yaml", "--allow", "box__write")
    assert recorded.code == 0, recorded.stderr

    replayed = project.run("--replay", env=NOTHING)
    asked = at_terminal(project, "$AISH run p.yaml --replay --ask")

    assert (replayed.code, asked) == (3, 3), replayed.stderr
    assert of_type(journal(project.folder), "approval.asked") == []
    assert "no rule approves box__write" in replayed.stderr


@pytest.mark.parametrize("on_ask", ["wait", "pause"])
def test_nobody_answers_again(
    project: Project, model_endpoint: ModelEndpoints, on_ask: str
) -> None:
    """While it is recorded a run waits, also where it would be paused."""
    project.pipeline(WRITES + f"on_ask: {on_ask}\nask_timeout: 1ms\n")
    endpoint = model_endpoint(rounds(("one",)))
    project.uses(endpoint)

    recorded = project.aish("record", "p.yaml")
    assert recorded.code == 0, recorded.stderr
    before = told(project)
    replayed = project.run("--replay", env=NOTHING)

    assert replayed.code == 0, replayed.stderr
    assert told(project) == before
    assert "nobody answered within 1ms" in before[-1][2]
    assert [one[2:5] for one in before if one[0] == "answered"] == [("expired", "nobody", "time")]


def test_folders_and_secrets_are_the_same_call_on_another_machine(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    secret = "correct-horse-battery"
    batch = "steps: [{id: each, foreach: {file: rows.jsonl}, key: item.path, prompt: Write}]"
    pipeline = "secrets: [NOTE_KEY]\n" + WRITES.replace("prompt: Write it down", batch)
    here, there = project.folder, project.folder / "elsewhere" / "deeper"
    path = "übrig/a b.txt"
    project.pipeline(pipeline)
    project.write("rows.jsonl", json.dumps({"path": f"{here}/{path}"}))
    endpoint = model_endpoint(rounds((f"{secret} {here}/{path}",)))
    project.uses(endpoint)
    project.aish.env["NOTE_KEY"] = secret

    assert at_terminal(project, "$AISH record p.yaml --ask", "y") == 0
    cassette = (here / "c.yaml").read_text("utf-8")
    assert secret not in cassette
    assert str(here) not in cassette
    assert "approval://each/%3Croot%3E/%C3%BCbrig/a%20b.txt" in cassette
    assert ledger(project) == [f"{secret} {here}/{path}"]
    del project.aish.env["NOTE_KEY"]
    for name in ("p.yaml", "c.yaml"):
        project.write(str(there / name), (here / name).read_bytes())
    project.write(str(there / "rows.jsonl"), json.dumps({"path": f"{there}/{path}"}))
    replayed = project.aish("run", there / "p.yaml", "--replay", env=NOTHING)

    assert replayed.code == 0, replayed.stderr
    (decided,) = of_type(journal(there), "tool.decided")
    assert decided["verdict"] == "ask-yes"
    assert decided["arguments"] == {"text": f"<secret:NOTE_KEY> {there}/{path}"}


def approvals_in(path: Path) -> int:
    return path.read_text("utf-8").count("uri: approval://")


def test_modes(project: Project, model_endpoint: ModelEndpoints) -> None:
    project.pipeline(WRITES)
    endpoint = model_endpoint(rounds(("one",)))
    project.uses(endpoint)
    cassette = project.folder / "c.yaml"

    once = "$AISH run p.yaml --ask --cassette"
    assert at_terminal(project, once, "y") == 0
    assert at_terminal(project, once) == 0
    assert (ledger(project), approvals_in(cassette)) == (["one"], 1)
    # Calls may be made now: somebody is asked, and the answer takes the place of the old one.
    assert at_terminal(project, f"{once} --record-mode new_episodes", "y") == 0
    assert (ledger(project), approvals_in(cassette)) == (["one"], 1)
    assert at_terminal(project, f"{once} --record-mode all", "n") == 0
    assert (ledger(project), approvals_in(cassette)) == (["one"], 1)
    replayed = project.run("--replay", env=NOTHING)
    assert replayed.code == 0, replayed.stderr
    assert of_type(journal(project.folder), "approval.answered")[0]["answer"] == "deny"


def test_a_recorded_yes_approves_no_call_that_is_made(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(WRITES)
    endpoint = model_endpoint(rounds(("one",)))
    project.uses(endpoint)
    assert at_terminal(project, "$AISH record p.yaml --ask", "y") == 0

    live = project.run("--replay", "--live-tools")
    decided = of_type(journal(project.folder), "tool.decided")
    extended = project.run("--cassette", "--record-mode", "new_episodes")
    decided += of_type(journal(project.folder), "tool.decided")

    assert [one["verdict"] for one in decided] == ["ask-no", "ask-no"]
    assert live.code == 6, live.stderr
    assert extended.code == 0, extended.stderr
    assert ledger(project) == ["one"]


@pytest.mark.slow(reason="runs each command")
def test_commands_about_cassettes_know_answers(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(WRITES)
    endpoint = model_endpoint(rounds(("one", "one")))
    project.uses(endpoint)
    assert at_terminal(project, "$AISH record p.yaml --ask", "y", "y") == 0
    assert at_terminal(project, "$AISH record p.yaml --ask -o d.yaml", "y", "n") == 0

    shown = project.aish("cassette", "show", "c.yaml")
    parts = json.loads(project.aish("cassette", "show", "c.yaml", "--format", "json").stdout)
    checked = project.aish("cassette", "check", "c.yaml", "d.yaml")
    compared = project.aish("cassette", "diff", "c.yaml", "d.yaml")
    same = project.aish("cassette", "diff", "c.yaml", "c.yaml")
    scrubbed = project.aish(
        "cassette", "scrub", "c.yaml", "--in-place", "--env", "WHO", env={"WHO": "the user"}
    )

    assert "approval in main · box__write " in shown.stdout
    assert ": approve by the user (terminal)" in shown.stdout
    found = [one for one in parts["parts"] if one["kind"] == "approval"]
    assert [(one["answer"], one["count"]) for one in found] == [("approve", 1), ("approve", 2)]
    assert len({one["digest"] for one in found}) == 1
    assert checked.code == 0, checked.stdout
    assert compared.code == 1
    assert (
        "approval of box__write changed:\n  @@ line 1 @@\n  - approve\n  + deny" in compared.stdout
    )
    assert same.code == 0, same.stdout
    assert scrubbed.code == 0, scrubbed.stderr
    assert "response body" in scrubbed.stdout
    assert "the user" not in (project.folder / "c.yaml").read_text("utf-8")


def test_an_answer_that_is_not_used_is_left_over(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    tests = "tests: [{name: one, cassette: c.yaml, expect: [{contains: done}]}]\n"
    project.pipeline(WRITES + tests)
    endpoint = model_endpoint(rounds(("one",)))
    project.uses(endpoint)
    assert at_terminal(project, "$AISH record p.yaml --ask", "y") == 0

    tested = project.aish("test", "p.yaml", env=NOTHING)
    approved = project.run("--replay", "--allow", "box__write", env=NOTHING)
    project.pipeline(WRITES.replace("on_denied", "  auto_approve: [box__write]\non_denied") + tests)
    strict = project.aish("test", "p.yaml", env=NOTHING)

    assert tested.code == 0, tested.stdout + tested.stderr
    assert approved.code == 0, approved.stderr
    assert "APPROVAL approval://main" in approved.stderr
    assert strict.code == 6, strict.stdout + strict.stderr
