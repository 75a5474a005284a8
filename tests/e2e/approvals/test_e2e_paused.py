"""A run that waits for an answer ends as paused, and goes on within its conversation (A6-A10)."""

import json
import signal
import sys
from pathlib import Path
from shutil import rmtree
from textwrap import dedent
from typing import Any

import pytest
from e2e_project import REPO, ModelEndpoints, Project, driven, of_type
from model_endpoint import Reply, text_reply, tool_reply
from syrupy.assertion import SnapshotAssertion

from aish.journal.reader import read_journal

SERVER = REPO / "tests" / "support" / "mcp_ledger_server.py"
ONE = dedent(f"""
    mcp:
      servers:
        box: {{command: {json.dumps([sys.executable, str(SERVER)])}}}
    on_ask: pause
    steps:
      - {{id: note, prompt: "Write it down"}}
      - {{id: after, prompt: "Then: {{{{ steps.note.text }}}}"}}
    """).lstrip()


def writes(text: str, id: str = "c1") -> Reply:
    return tool_reply([(id, "box__write", json.dumps({"text": text}))])


def answers(request: Any) -> Reply:
    last = request["messages"][-1]
    if last["role"] == "tool":
        return text_reply(f"done: {last['content']}")
    return writes("one") if "Write" in last["content"] else text_reply("the end")


def journal_of(folder: Path) -> list[Any]:
    with read_journal(folder / "events.jsonl") as reading:
        return list(reading)


def ledger(project: Project) -> list[str]:
    path = project.folder / "ledger.txt"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_paused_run_goes_on_after_the_answer(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(ONE)
    endpoint = model_endpoint(answers)
    project.uses(endpoint)

    paused = project.run()

    assert paused.code == 8, paused.stderr
    assert ledger(project) == []
    assert len(endpoint.requests) == 1
    (folder,) = project.run_folders
    (asked,) = of_type(journal_of(folder), "approval.asked")
    finished = journal_of(folder)[-1]
    assert (finished["type"], finished["status"]) == ("run.finished", "paused")
    assert f"aish approve {folder.name} {asked['id'][:8]}" in finished["exit"]["hint"]

    listed = json.loads(project.aish("runs", "pending", "--format", "json").stdout)
    assert [one["id"] for one in listed["pending"]] == [asked["id"]]
    approved = project.aish(
        "approve", folder.name, asked["id"][:8], "--yes", "--digest", asked["digest"][:12]
    )
    assert approved.code == 0, approved.stderr
    assert ledger(project) == []

    done = project.run("--resume")

    assert done.code == 0, done.stderr
    assert done.stdout == "the end\n"
    assert ledger(project) == ["one"]
    assert len(endpoint.requests) == 3
    decided = of_type(journal_of(folder), "tool.decided")
    assert [(one["verdict"], one["approval"]) for one in decided] == [("ask-yes", asked["id"])]


BATCH = f"""
    mcp:
      servers:
        box: {{command: {json.dumps([sys.executable, str(SERVER)])}}}
    on_ask: pause
    steps:
      - {{id: rows, foreach: {{file: rows.jsonl}}, key: item.id, concurrency: 2,
          on_error: continue, prompt: "{{{{ item.say }}}} {{{{ item.id }}}}"}}
      - {{id: after, prompt: "Then: {{{{ steps.rows | map(attribute='text') | join(', ') }}}}"}}
    """


def in_batch(request: Any) -> Reply:
    first, last = request["messages"][0]["content"], request["messages"][-1]
    if last["role"] == "tool":
        return text_reply(f"{first} done")
    return writes(first) if first.startswith("Write") else text_reply(f"{first} ok")


def approve(project: Project, question: Any, *flags: str) -> None:
    run = project.run_folders[-1].name
    given = flags or ("--yes", "--digest", question["digest"][:12])
    done = project.aish("approve", run, question["id"], *given)
    assert done.code == 0, done.stderr


@pytest.mark.slow(reason="runs, answers and resumes many items")
def test_items_wait_while_the_others_go_on(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(BATCH)
    says = ["Write", "Write", "Write", "Say", "Say", "Write", "Say"]
    rows = [{"id": f"r{n}", "say": say} for n, say in enumerate(says)]
    project.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    endpoint = model_endpoint(in_batch)
    project.uses(endpoint)

    paused = project.run()

    assert paused.code == 8, paused.stderr
    events = journal_of(project.run_folders[0])
    ended = {one["item"]: one["status"] for one in of_type(events, "item.finished")}
    assert ended == {f"r{n}": "paused" if say == "Write" else "ok" for n, say in enumerate(says)}
    assert len(endpoint.requests) == len(says)
    asked = of_type(events, "approval.asked")
    assert len(asked) == 4
    for question in asked[:2]:
        approve(project, question)
    approve(project, asked[2], "--deny", "--yes")

    again = project.run("--resume")

    # A call of one item was denied, which weighs more, and one still waits.
    assert again.code == 3, again.stderr
    assert journal_of(project.run_folders[0])[-1]["waiting"] == 1
    assert sorted(ledger(project)) == sorted(one["arguments"]["text"] for one in asked[:2])
    assert len(endpoint.requests) == len(says) + 2
    approve(project, asked[3])
    last = project.run("--resume")
    assert last.code == 3, last.stderr
    assert len(ledger(project)) == 3


def test_the_calls_of_a_turn_are_asked_about_together(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(ONE)

    def three(request: Any) -> Reply:
        if request["messages"][-1]["role"] == "tool":
            return text_reply("all written")
        if "Then" in request["messages"][-1]["content"]:
            return text_reply("the end")
        texts = ("a", "b", "c")
        return tool_reply(
            [(f"c{n}", "box__write", json.dumps({"text": text})) for n, text in enumerate(texts)]
        )

    endpoint = model_endpoint(three)
    project.uses(endpoint)

    assert project.run().code == 8
    asked = of_type(journal_of(project.run_folders[0]), "approval.asked")
    assert [one["arguments"]["text"] for one in asked] == ["a", "b", "c"]
    approve(project, asked[0])
    approve(project, asked[2])

    # What was answered before an open question is made, and no call out of its order.
    assert project.run("--resume").code == 8
    assert ledger(project) == ["a"]
    approve(project, asked[1])
    done = project.run("--resume")

    assert done.code == 0, done.stderr
    assert ledger(project) == ["a", "b", "c"]
    assert len(endpoint.requests) == 3
    assert (
        len({one["id"] for one in of_type(journal_of(project.run_folders[0]), "approval.asked")})
        == 3
    )


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_denied_call_is_told_to_the_model_or_ends_the_run(
    project: Project,
    model_endpoint: ModelEndpoints,
    tolerant: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - a parameter of the test
) -> None:
    project.pipeline(ONE + ("on_denied: continue\n" if tolerant else ""))
    endpoint = model_endpoint(answers)
    project.uses(endpoint)
    assert project.run().code == 8
    (asked,) = of_type(journal_of(project.run_folders[0]), "approval.asked")
    approve(project, asked, "--deny", "--yes", "--note", "not on a Friday")

    done = project.run("--resume")

    assert done.code == (0 if tolerant else 3), done.stderr
    assert ledger(project) == []
    told = [request["messages"][-1]["content"] for request in endpoint.asked]
    assert ("[aish] tool call denied by the user: not on a Friday" in told) is tolerant


def test_an_answer_is_for_the_call_that_was_shown(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(ONE)
    endpoint = model_endpoint(answers)
    project.uses(endpoint)
    assert project.run().code == 8
    (asked,) = of_type(journal_of(project.run_folders[0]), "approval.asked")
    approve(project, asked)
    # The server now says something else of its tool.
    project.pipeline(ONE.replace('.py"', '.py", "--describe", "Erases everything"'))

    again = project.run("--resume", "--force")

    assert again.code == 8, again.stderr
    assert ledger(project) == []
    newer = of_type(journal_of(project.run_folders[0]), "approval.asked")[-1]
    assert newer["id"] != asked["id"]
    assert newer["digest"] != asked["digest"]


def test_nobody_answered_in_time(project: Project, model_endpoint: ModelEndpoints) -> None:
    project.pipeline(ONE + "ask_timeout: 1ms\non_denied: continue\n")
    endpoint = model_endpoint(answers)
    project.uses(endpoint)
    first = project.run()
    done = project.run("--resume") if first.code == 8 else first

    assert done.code == 0, done.stderr
    assert ledger(project) == []
    (ended,) = of_type(journal_of(project.run_folders[0]), "approval.answered")
    assert (ended["answer"], ended["way"]) == ("expired", "time")
    assert "nobody answered within 1ms" in str(endpoint.asked)


@pytest.mark.slow(reason="runs, answers and resumes")
def test_secrets_are_put_back_from_their_references(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    secret = "correct-horse-battery"
    project.aish.env["NOTE_KEY"] = secret
    project.pipeline(
        "secrets: [NOTE_KEY]\n" + ONE.replace("Write it down", "Write <secret:NOTE_KEY> down")
    )

    def repeats(request: Any) -> Reply:
        last = request["messages"][-1]
        if last["role"] == "tool":
            return text_reply("done")
        if "Then" in last["content"]:
            return text_reply("the end")
        return writes(f"{secret} from the model")

    endpoint = model_endpoint(repeats)
    project.uses(endpoint)
    assert project.run().code == 8
    (asked,) = of_type(journal_of(project.run_folders[0]), "approval.asked")
    assert secret not in project.everything_written()
    approve(project, asked)

    done = project.run("--resume")

    assert done.code == 0, done.stderr
    assert ledger(project) == [f"{secret} from the model"]
    sent = [body["messages"] for body in endpoint.asked]
    assert sent[1][0] == sent[0][0]
    assert secret not in project.everything_written()


FIRST = (
    "run.started",
    "step.started",
    "turn.added",
    "turn.started",
    "turn.finished",
    "approval.asked",
    "step.finished",
    "run.finished",
)
AFTER = (
    "run.started",
    "notice",
    "tool.decided",
    "tool.finished",
    "turn.added",
    "turn.started",
    "turn.finished",
    "step.finished",
    "run.finished",
)
EACH = 'steps: [{id: each, foreach: "[1]", pipeline: inner.yaml}]\n'
"""The same as the steps of an item."""
KILLS_WITHIN = [
    ("after:approval.asked:1", "after:tool.decided:1"),
    ("before:item.finished:1", "before:item.finished:1"),
    ("torn:item.finished:1", "after:tool.finished:1"),
    ("after:item.finished:1", "before:item.started:1"),
    ("before:step.finished:3", "after:item.started:1"),
    ("after:run.finished:1", "torn:step.started:1"),
    ("after:turn.finished:1", "after:step.started:1"),
    ("after:turn.finished:1", "after:step.finished:1"),
]
ALL_KILLS = [
    (f"{where}:{FIRST[index % len(FIRST)]}:1", f"{where}:{AFTER[index]}:1")
    for where in ("before", "torn", "after")
    for index in range(len(AFTER))
]
FEW_KILLS = [
    ("after:turn.finished:1", "after:tool.decided:1"),
    ("after:approval.asked:1", "before:tool.finished:1"),
]


@pytest.mark.parametrize(
    ("outer", "kills"),
    [
        pytest.param(None, FEW_KILLS, id="few"),
        pytest.param(EACH, KILLS_WITHIN[:1], id="within an item"),
        pytest.param(
            EACH, KILLS_WITHIN[1:], id="all within an item", marks=pytest.mark.slow(reason="kills")
        ),
        pytest.param(
            None, ALL_KILLS, id="all", marks=pytest.mark.slow(reason="kills a run at 54 records")
        ),
    ],
)
def test_a_kill_loses_no_answer_and_makes_no_call_twice(
    project: Project, model_endpoint: ModelEndpoints, outer: str | None, kills: list[Any]
) -> None:
    """Killed at a record of a run that is paused, and again at a record after the answer."""
    project.pipeline(ONE, "p.yaml" if outer is None else "inner.yaml")
    if outer is not None:
        project.pipeline(outer)
    for first, second in kills:
        endpoint = model_endpoint(answers)
        project.uses(endpoint)
        (project.folder / "ledger.txt").unlink(missing_ok=True)
        # Of two runs of the same second the names do not tell which came last.
        rmtree(project.folder / ".aish", ignore_errors=True)
        killed = driven(project, first, "run", "p.yaml").finish()
        assert killed.code in {-signal.SIGKILL, 8}, f"{first}: {killed.stderr}"
        # Before its first record a run has nothing to go on with.
        begun = len(journal_of(project.run_folders[-1])) > 0
        if not begun:
            rmtree(project.folder / ".aish")
        paused = project.run("--resume") if begun else project.run()
        assert paused.code == 8, f"{first}: {paused.stderr}"
        folder = project.run_folders[-1]
        asked = of_type(journal_of(folder), "approval.asked")
        assert len({one["id"] for one in asked}) == 1, first
        approve(project, asked[-1])

        killed = driven(project, second, "run", "p.yaml", "--resume", folder.name).finish()
        assert killed.code in {-signal.SIGKILL, 0}, f"{second}: {killed.stderr}"
        done = project.run("--resume", folder.name)

        assert ledger(project) == ["one"], f"{first}, {second}"
        if "tool.finished" in second and not second.startswith("after"):
            # It was sent, and nobody knows what came of it: it is not made again unasked.
            assert (done.code, "with unknown outcome" in done.stderr) == (2, True), done.stderr
            continue
        assert done.code == 0, f"{first}, {second}: {done.stderr}"


@pytest.mark.requirement("A6")
def test_a_part_that_ends_before_it_asks_again_leaves_the_question_open(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(ONE)
    endpoint = model_endpoint(answers)
    project.uses(endpoint)
    assert project.run().code == 8
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:1/v1"
    command = json.dumps([sys.executable, "-c", "import sys; sys.exit(1)"])
    project.write(
        "p.yaml",
        (project.folder / "p.yaml")
        .read_text()
        .replace(json.dumps([sys.executable, str(SERVER)]), command),
    )

    again = project.run("--resume", "--force")

    assert again.code == 5, again.stderr
    (asked,) = of_type(journal_of(project.run_folders[0]), "approval.asked")
    assert of_type(journal_of(project.run_folders[0]), "approval.answered") == []
    assert journal_of(project.run_folders[0])[-1]["waiting"] == 1
    listed = json.loads(project.aish("runs", "pending", "--format", "json").stdout)
    assert [one["id"] for one in listed["pending"]] == [asked["id"]]


@pytest.mark.slow(reason="waits for 13 s")
def test_a_run_that_waits_is_not_late(project: Project, model_endpoint: ModelEndpoints) -> None:
    project.pipeline(f"limits: {{time: 12s}}\nask_timeout: 13s\n{ONE.replace('pause', 'wait')}")
    project.uses(model_endpoint(answers))

    done = project.run()

    # Denied, not ended by the limit of the run.
    assert done.code == 3, done.stderr
    assert "nobody answered within 13s" in done.stderr


def test_a_run_that_keeps_nothing_is_not_paused(
    project: Project, model_endpoint: ModelEndpoints, snapshot: SnapshotAssertion
) -> None:
    project.pipeline(ONE)
    endpoint = model_endpoint(answers)
    project.uses(endpoint)

    done = project.run("--ephemeral")
    clustered = project.run("--cluster", "tcp://127.0.0.1:1")

    assert (done.code, clustered.code, len(endpoint.requests)) == (2, 2, 0)
    assert done.stderr + clustered.stderr == snapshot


INNER = f"""
    inputs: {{say: {{type: string}}}}
    mcp:
      servers:
        box: {{command: {json.dumps([sys.executable, str(SERVER)])}}}
    on_ask: pause
    steps:
      - {{id: first, prompt: "Begin {{{{ inputs.say }}}}"}}
      - {{id: note, prompt: "{{{{ inputs.say }}}}"}}
      - {{id: again, needs: [note], foreach: "['x', 'y']",
          prompt: "{{{{ inputs.say }}}} {{{{ item }}}}"}}
    outputs: {{said: "{{{{ steps.again | map(attribute='text') | join(' and ') }}}}"}}
    """
OVER_INNER = """
    steps:
      - {id: each, foreach: {file: rows.jsonl}, key: item.id, concurrency: 2,
          pipeline: inner.yaml, with: {say: "{{ item.say }} {{ item.id }}"}}
      - {id: last, prompt: "Then: {{ steps.each | map(attribute='output.said') | join(', ') }}"}
    """


def test_an_item_that_is_a_pipeline_goes_on_where_it_was(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(INNER, "inner.yaml")
    project.pipeline(OVER_INNER)
    rows = [{"id": id, "say": "Say" if id == "c" else "Write"} for id in "abcd"]
    project.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    endpoint = model_endpoint(in_batch)
    project.uses(endpoint)

    parts = [project.run()]
    answered = 0
    while parts[-1].code == 8:
        asked = of_type(journal_of(project.run_folders[0]), "approval.asked")
        assert len(asked) > answered, parts[-1].stderr
        for question in asked[answered:]:
            approve(project, question)
        answered = len(asked)
        parts.append(project.run("--resume"))

    # All of them wait together, and more than may run at once; then both items of each of them.
    assert [part.code for part in parts] == [8, 8, 0], parts[-1].stderr
    asked = of_type(journal_of(project.run_folders[0]), "approval.asked")
    # In which order depends on which of the requests to the model is answered first.
    assert {(one["step"], one["item"]) for one in asked[:3]} == {
        ("each/note", item) for item in "abd"
    }
    assert {(one["step"], one["item"]) for one in asked[3:]} == {
        ("each/again", f"{item}/{own}") for item in "abd" for own in "01"
    }
    assert sorted(ledger(project)) == sorted(
        f"Write {item}{rest}" for item in "abd" for rest in ("", " x", " y")
    )
    # Each turn was asked for once: one for each prompt, and one more for each call.
    sent = [request.json["messages"] for request in endpoint.requests]
    assert len(sent) == 4 * 4 + 9 + 1
    assert len({json.dumps(one) for one in sent}) == len(sent)
    said = [f"Write {item} x done and Write {item} y done" for item in "abd"]
    said.insert(2, "Say c x ok and Say c y ok")
    assert sent[-1][0]["content"] == f"Then: {', '.join(said)}"


def test_a_step_of_a_sub_pipeline_is_paused(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(ONE, "inner.yaml")
    project.pipeline(
        "steps:\n  - {id: outer, pipeline: inner.yaml}\n"
        '  - {id: last, prompt: "Then {{ steps.outer.text }}"}\n'
    )
    endpoint = model_endpoint(answers)
    project.uses(endpoint)

    assert project.run().code == 8
    (asked,) = of_type(journal_of(project.run_folders[0]), "approval.asked")
    assert asked["step"] == "outer/note"
    approve(project, asked)
    done = project.run("--resume")

    assert done.code == 0, done.stderr
    assert ledger(project) == ["one"]
    assert len(endpoint.requests) == 4


def test_an_answer_in_a_schema_goes_on_too(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    schema = "{type: object, required: [n], properties: {n: {type: integer}}}"
    project.pipeline(
        ONE.replace(
            'prompt: "Write it down"', f'prompt: "Write it down", output: {{schema: {schema}}}'
        )
    )
    said: list[str] = []

    def corrected(request: Any) -> Reply:
        last = request["messages"][-1]
        said.append(last["role"])
        if last["role"] == "tool":
            return text_reply("no JSON")
        if last["role"] == "user" and len(request["messages"]) > 2:
            return text_reply('{"n": 3}') if len(said) > 3 else writes("one", f"c{len(said)}")
        return writes("one") if "Write" in last["content"] else text_reply("the end")

    endpoint = model_endpoint(corrected)
    project.uses(endpoint)
    assert project.run().code == 8
    (asked,) = of_type(journal_of(project.run_folders[0]), "approval.asked")
    approve(project, asked)

    second = project.run("--resume")

    # It was corrected once, and asks again in its second attempt at an answer.
    assert second.code == 8, second.stderr
    newer = of_type(journal_of(project.run_folders[0]), "approval.asked")[-1]
    assert newer["id"] != asked["id"]
    approve(project, newer, "--deny", "--yes")
    assert project.run("--resume").code == 3
    assert ledger(project) == ["one"]


def test_the_calls_after_a_denied_one_are_withdrawn(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(ONE)
    texts = ("a", "b", "c")
    calls = [(f"c{n}", "box__write", json.dumps({"text": text})) for n, text in enumerate(texts)]
    endpoint = model_endpoint(lambda _: tool_reply(calls))
    project.uses(endpoint)
    assert project.run().code == 8
    asked = of_type(journal_of(project.run_folders[0]), "approval.asked")
    approve(project, asked[0], "--deny", "--yes")

    done = project.run("--resume")

    assert done.code == 3, done.stderr
    assert ledger(project) == []
    ended = of_type(journal_of(project.run_folders[0]), "approval.answered")
    assert {one["id"]: one["answer"] for one in ended} == {
        asked[0]["id"]: "deny",
        asked[1]["id"]: "withdrawn",
        asked[2]["id"]: "withdrawn",
    }
    assert json.loads(project.aish("runs", "pending", "--format", "json").stdout)["pending"] == []
