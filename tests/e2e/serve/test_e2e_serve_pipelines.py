"""Pipelines of a file as tools of its hub (H6): a scripted model, real runs, raw JSON lines."""

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from e2e_project import REPO, ModelEndpoints, Project, of_type, stdio, wait_file, wait_gone
from jsonschema import Draft202012Validator
from mcp_processes import read_pid
from model_endpoint import Gate, Reply, hanging_reply, text_reply, tool_reply
from served_hub import META, Message, ServedHub, text_of

from aish.journal.reader import read_journal

KEY = "sk-a-key-that-nobody-may-see"
REVIEW = """
name: review
description: Reviews a word.
inputs:
  word: {type: string, description: The word.}
  times: {type: integer, minimum: 1, default: 1}
steps:
  - id: look
    prompt: "{{ inputs.times }} times {{ inputs.word }}"
    output:
      schema:
        type: object
        properties: {grade: {$ref: "#/$defs/grade"}, note: {type: string}}
        required: [grade]
        $defs: {grade: {enum: [good, bad]}}
  - id: say
    run: [echo, "{{ steps.look.output.grade }}"]
mcp: {auto_approve: [shell__run]}
outputs:
  review: "{{ steps.look.output }}"
  said: "{{ steps.say.text }}"
"""


def graded(request: Any) -> Reply:
    """A model that grades, and says what it was asked."""
    asked = request["messages"][-1]["content"]
    return text_reply(json.dumps({"grade": "good", "note": f"{asked} {KEY}"}))


def hub_file(project: Project, entries: str, rest: str = "", name: str = "hub.yaml") -> None:
    project.write(
        name,
        f"aish: 1\nname: hub\nserve: {{pipelines: [{entries}]}}\n"
        f"{rest or 'mcp: {auto_approve: [pipeline__*]}'}\n",
    )


def progress_of(hub: ServedHub) -> list[Message]:
    return [one["params"] for one in hub.seen if one.get("method") == "notifications/progress"]


@pytest.mark.requirement("H6")
@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "stateless"])
def test_a_pipeline_is_a_tool_and_each_call_a_run_of_its_own(
    project: Project, model_endpoint: ModelEndpoints, *, modern: bool
) -> None:
    project.uses(model_endpoint(graded))
    project.aish.env["REVIEW_KEY"] = KEY
    project.pipeline(f"secrets: [REVIEW_KEY]\n{REVIEW}", name="review.yaml")
    hub_file(project, "review.yaml, {file: review.yaml, name: again, read_only: true}")
    with ServedHub(project, "hub.yaml") as hub:
        if not modern:
            hub.begin()
        first, second = hub.tools(modern=modern)
        params = {
            "name": "pipeline__review",
            "arguments": {"word": "hub"},
            "_meta": {"progressToken": "p"},
        }
        called = hub.ask("tools/call", params, modern=modern)["result"]
        hub.call("pipeline__again", {"word": "x", "times": 2}, modern=modern)
        hub.end_input()
        assert hub.finish() == 0
        records = [one for one in hub.audit if one["event"] == "finished"]

    assert (first["name"], first["description"]) == ("pipeline__review", "Reviews a word.")
    assert first["inputSchema"] == {
        "type": "object",
        "properties": {
            "word": {"type": "string", "description": "The word."},
            "times": {"type": "integer", "minimum": 1, "default": 1},
        },
        "required": ["word"],
        "additionalProperties": False,
    }
    assert first["annotations"]["destructiveHint"] is True
    assert first["annotations"]["readOnlyHint"] is False
    assert second["annotations"]["readOnlyHint"] is True
    answer = called["structuredContent"]
    assert answer["said"] == "good\n"
    assert answer["review"]["note"].startswith("1 times hub\n")
    assert json.loads(text_of(called)) == answer
    Draft202012Validator.check_schema(first["outputSchema"])
    Draft202012Validator(first["outputSchema"]).validate(answer)
    wrong = {**answer, "review": {"grade": "none"}}
    assert not Draft202012Validator(first["outputSchema"]).is_valid(wrong)
    told = progress_of(hub)
    assert [(one["progress"], one["total"]) for one in told] == [(1, 2), (2, 2)]
    # The secret of the pipeline is nobody's business.
    assert all(KEY.encode() not in line for line in hub.lines)
    assert KEY not in project.everything_written()
    kept = {path.name for path in project.run_folders}
    assert called["_meta"]["aish/run"] in kept
    assert len(kept) == 2
    assert [one["kind"] for one in records] == ["ok", "ok"]
    assert {one["run"] for one in records} == kept
    # `read_only` is what the file says, and the file is trusted.
    assert [one["level"] for one in records] == ["security", "info"]
    listed = project.aish("runs", "list").stdout
    assert all(id in listed for id in kept)


def test_wrong_inputs_are_refused_by_their_names_before_anything_runs(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(graded))
    project.pipeline(REVIEW, name="review.yaml")
    hub_file(project, "review.yaml")
    with ServedHub(project, "hub.yaml") as hub:
        hub.begin()
        missing = hub.call("pipeline__review", {"wrod": "x"})
        unfit = hub.call("pipeline__review", {"word": "x", "times": 0})
        nested: Any = "x"
        for _ in range(400):
            nested = [nested]
        deep = hub.call("pipeline__review", {"word": nested})

    assert missing["isError"] is True
    assert text_of(missing).splitlines() == [
        "[aish] pipeline: review: unknown input `wrod`, did you mean `word`",
        "the input `word` is missing",
    ]
    assert text_of(deep) == (
        "[aish] pipeline: review: the input `word` is nested more than 128 levels deep"
    )
    assert unfit["isError"] is True
    assert text_of(unfit).startswith("[aish] pipeline: review: the input `times`")
    assert project.run_folders == []


def test_the_hubs_rules_decide_about_the_call_and_the_files_own_about_what_it_does(
    project: Project,
) -> None:
    project.pipeline(
        f"""
        name: inner
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}
        steps:
          - {{id: say, call: s__echo, with: {{text: hello}}}}
          - {{id: sum, call: s__add, with: {{a: 1, b: 2}}}}
        """,
        name="inner.yaml",
    )
    project.pipeline("name: quiet\nrun: [echo, hi]\nmcp: {deny: [shell__run]}", name="quiet.yaml")
    hub_file(
        project,
        "inner.yaml, {file: inner.yaml, name: asks}, quiet.yaml",
        f"mcp: {{servers: {{s: {{command: {stdio()}}}}}, "
        "auto_approve: [pipeline__inner, s__add, shell__run], deny: [pipeline__quiet]}",
    )
    with ServedHub(project, "hub.yaml") as hub:
        hub.begin()
        names = [tool["name"] for tool in hub.tools() if tool["name"].startswith("pipeline")]
        failed = hub.call("pipeline__inner")
        denied = hub.call("pipeline__asks")

    assert names == ["pipeline__inner", "pipeline__asks"]
    assert failed["isError"] is True
    (run,) = project.run_folders
    assert text_of(failed) == (
        "[aish] pipeline: inner: denied: step `sum`: tool call denied: no rule approves s__add; "
        f'its arguments: {{"a": 1, "b": 2}} '
        f"(run {run.name})"
    )
    assert failed["_meta"] == {"aish/run": run.name}
    assert "no rule approves pipeline__asks" in text_of(denied)


def test_cancelled_calls_end_their_runs_and_children_and_others_wait_for_a_place(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    note = project.folder / "grandchild"

    def answer(request: Any) -> Reply:
        asked = request["messages"][-1]["content"]
        return hanging_reply(gate) if asked == "hang" else text_reply(f"said {asked}")

    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    project.pipeline(
        f"""
        name: talk
        inputs: {{word: {{type: string}}}}
        mcp: {{servers: {{s: {{command: {stdio("--grandchild-note", note)}}}}}}}
        prompt: "{{{{ inputs.word }}}}"
        """,
        name="talk.yaml",
    )
    project.write(
        "hub.yaml",
        "aish: 1\nserve: {pipelines: [talk.yaml], limits: {pipelines: 1}}\n"
        "mcp: {auto_approve: [pipeline__*]}\n",
    )
    with ServedHub(project, "hub.yaml") as hub:
        hub.begin()
        hub.tools()
        call = {"name": "pipeline__talk", "arguments": {"word": "hang"}}
        hanging = hub.request("tools/call", call)
        gate.wait_arrived()
        grandchild = read_pid(note)
        waiting = hub.request(
            "tools/call", {"name": "pipeline__talk", "arguments": {"word": "next"}}
        )
        third = {"name": "pipeline__talk", "arguments": {"word": "third"}}
        dropped = hub.request("tools/call", third)
        hub.ask("ping")
        assert len(project.run_folders) == 1
        for id in (dropped, hanging):
            hub.send(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/cancelled",
                    "params": {"requestId": id},
                }
            )
        said = hub.answer(waiting)["result"]
        wait_gone(grandchild)
        note.unlink()
        hub.request("tools/call", call)
        wait_file(note, whole=True)
        again = read_pid(note)
        hub.end_input()
        assert hub.finish() == 0
        wait_gone(again)
        kinds = [(one["kind"], "run" in one) for one in hub.audit if one["event"] == "finished"]

    assert text_of(said) == "said next"
    assert "structuredContent" not in said
    assert all(one.get("id") not in {hanging, dropped} for one in hub.seen)
    assert sorted(kinds) == [
        ("cancelled", False),
        ("cancelled", True),
        ("cancelled", True),
        ("ok", True),
    ]
    ends = []
    for folder in project.run_folders:
        with read_journal(folder / "events.jsonl") as reading:
            ends += [one["exit"]["code"] for one in of_type(list(reading), "run.finished")]
    assert sorted(ends) == [0, 143, 143]


@pytest.mark.slow(reason="starts several runs")
def test_a_call_that_is_made_again_has_the_result_of_the_run_that_waits_for_an_answer(
    project: Project,
) -> None:
    project.pipeline(
        f"""
        name: pays
        on_ask: wait
        mcp: {{servers: {{s: {{command: {stdio()}}}}}}}
        call: s__echo
        with: {{text: paid}}
        """,
        name="pays.yaml",
    )
    hub_file(project, "pays.yaml")
    params = {"name": "pipeline__pays", "arguments": {}}
    anew = {**params, "_meta": {"aish/run_key": "b"}}
    with ServedHub(project, "hub.yaml") as hub:
        hub.begin()
        hub.tools()
        ids = [hub.request("tools/call", asked) for asked in (params, params, anew, anew)]
        wrong = hub.ask("tools/call", {**params, "_meta": {"aish/run_key": 1}})
        pending: list[Any] = []
        while len(pending) < 2:
            found = project.aish("runs", "pending", "--format", "json").stdout
            pending = json.loads(found)["pending"]
        # The client has given the first up, and still waits for the second.
        cancelled = {"requestId": ids[0]}
        hub.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
        hub.ask("ping")
        for one in pending:
            words = ("approve", one["run"], one["id"], "--yes", "--digest", one["digest"])
            assert project.aish(*words).code == 0
        results = [answer["result"] for answer in hub.answers(*ids[1:])]
        hub.end_input()
        assert hub.finish() == 0
        records = [one for one in hub.audit if one["event"] == "finished"]

    assert wrong["error"]["message"] == "`aish/run_key` has to be a text"
    assert [text_of(result) for result in results] == ["paid"] * 3
    runs = [result["_meta"]["aish/run"] for result in results]
    assert runs[0] != runs[1] == runs[2]
    assert {path.name for path in project.run_folders} == set(runs)
    # The audit log says which run each call has had.
    assert sorted((one["kind"], one["run"]) for one in records) == sorted(
        [("cancelled", runs[0]), *(("ok", run) for run in runs)]
    )


def test_runs_of_several_calls_go_on_side_by_side_and_drain_at_a_signal(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gates = [Gate(), Gate(), Gate()]

    def answer(request: Any) -> Reply:
        number = int(request["messages"][-1]["content"])
        return text_reply(f"answer {number}").but(before_head=gates[number])

    project.uses(model_endpoint(answer))
    project.pipeline(
        'name: ask\ninputs: {n: {type: integer}}\nprompt: "{{ inputs.n }}"', name="ask.yaml"
    )
    hub_file(project, "ask.yaml")
    with ServedHub(project, "hub.yaml") as hub:
        hub.begin()
        hub.tools()
        ids = [
            hub.request("tools/call", {"name": "pipeline__ask", "arguments": {"n": number}})
            for number in range(3)
        ]
        for gate in gates:
            gate.wait_arrived()
        gates[1].open()
        middle = hub.answer(ids[1])
        hub.signal(signal.SIGTERM)
        gates[2].open()
        gates[0].open()
        others = {hub.until(lambda one: one.get("id") in ids)["id"] for _ in range(2)}
        assert hub.finish() == 0

    assert text_of(middle["result"]) == "answer 1"
    assert others == {ids[0], ids[2]}


def test_items_are_told_as_they_end_and_a_failed_run_says_why(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.pipeline(
        """
        name: each
        mcp: {auto_approve: [shell__run]}
        steps:
          - id: all
            foreach: "['a', 'b', 'c']"
            run: [echo, "{{ item }}"]
        """,
        name="each.yaml",
    )
    project.pipeline(
        "name: fails\nrun: [sh, -c, exit 3]\nmcp: {auto_approve: [shell__run]}", name="fails.yaml"
    )
    hub_file(project, "each.yaml, fails.yaml")
    with ServedHub(project, "hub.yaml", "--plain") as hub:
        hub.begin()
        hub.tools()
        params = {"name": "each", "arguments": {}, "_meta": {"progressToken": 7}}
        done = hub.ask("tools/call", params)["result"]
        failed = hub.call("fails")

    assert text_of(done) == "a\n\nb\n\nc\n"
    numbers = [one["progress"] for one in progress_of(hub)]
    assert numbers == sorted(set(numbers))
    assert progress_of(hub)[-1] == {
        "progressToken": 7,
        "progress": 4,
        "total": 4,
        "message": "step `all`: ok",
    }
    assert failed["isError"] is True
    assert text_of(failed).startswith("[aish] pipeline: fails: failed: step `main`")
    assert failed["_meta"]["aish/run"] in text_of(failed)


def test_a_question_of_a_served_run_waits_for_an_answer_from_outside(project: Project) -> None:
    project.pipeline(
        f"""
        name: careful
        on_ask: pause
        mcp: {{servers: {{s: {{command: {stdio()}}}}}}}
        call: s__echo
        with: {{text: approved}}
        """,
        name="careful.yaml",
    )
    hub_file(project, "careful.yaml")
    with ServedHub(project, "hub.yaml") as hub:
        hub.begin()
        hub.tools()
        params = {"name": "pipeline__careful", "arguments": {}}
        called = hub.request("tools/call", params)
        hub.ask("ping")
        pending: list[Any] = []
        while not pending:
            found = project.aish("runs", "pending", "--format", "json").stdout
            pending = json.loads(found)["pending"]
        (one,) = pending
        words = ("approve", one["run"], one["id"], "--yes", "--digest", one["digest"])
        approved = project.aish(*words)
        answer = hub.answer(called)["result"]

    assert approved.code == 0, approved.stderr
    assert text_of(answer) == "approved"


def test_what_cannot_be_served_is_told_at_the_start_and_by_validate(project: Project) -> None:
    project.pipeline('name: reads\nprompt: "{{ stdin }}"', name="reads.yaml")
    project.pipeline("name: empty", name="empty.yaml")
    project.pipeline("name: twice\nrun: [echo]", name="one.yaml")
    project.pipeline("name: twice\nrun: [echo]", name="two.yaml")
    project.pipeline("name: bad\nprompt: {oops: 1}", name="bad.yaml")
    hub_file(project, "reads.yaml, empty.yaml, one.yaml, two.yaml, missing.yaml, bad.yaml")
    checked = project.aish("validate", "hub.yaml")
    with ServedHub(project, "hub.yaml") as hub:
        assert hub.finish() == 2

    for said in (checked.stderr, hub.stderr):
        assert "`reads.yaml` reads `stdin`, which a served pipeline does not have" in said
        assert "`empty.yaml` has no steps" in said
        assert "two pipelines would be called `pipeline__twice`" in said
        assert "no such file: `missing.yaml`" in said
        assert "bad.yaml" in said
    project.pipeline("name: needs\nprompt: Hi", name="needs.yaml")
    hub_file(project, "needs.yaml")
    unset = project.aish("validate", "hub.yaml")
    assert unset.code == 0
    assert "needs.yaml" in unset.stderr
    assert "`MODEL_URL` is not set" in unset.stderr
    project.pipeline("name: rule\nrun: [echo]\nmcp: {auto_approve: [pipeline__x]}")
    assert (
        "`pipeline__x` can match no server of this file"
        in project.aish("validate", "p.yaml").stderr
    )


@pytest.mark.slow(reason="starts two hubs")
def test_a_pipeline_of_a_hub_behind_a_hub_is_a_tool_like_any_other(project: Project) -> None:
    project.pipeline(
        """
        name: greet
        inputs: {who: {type: string}}
        mcp: {auto_approve: [shell__run]}
        run: [echo, "hello {{ inputs.who }}"]
        outputs: {said: "{{ steps.main.text }}"}
        """,
        name="greet.yaml",
    )
    hub_file(project, "greet.yaml")
    inner = json.dumps([sys.executable, "-m", "aish", "serve", str(project.folder / "hub.yaml")])
    project.pipeline(
        f"mcp: {{servers: {{hub: {{command: {inner}}}}}, auto_approve: [hub__pipeline__greet]}}",
        name="outer.yaml",
    )
    with ServedHub(project, "outer.yaml") as hub:
        hub.begin()
        (tool,) = hub.tools()
        params = {
            "name": tool["name"],
            "arguments": {"who": "you"},
            "_meta": {"progressToken": 1},
        }
        called = hub.ask("tools/call", params)["result"]
        failed = hub.call(tool["name"], {"whom": "you"})

    assert tool["name"] == "hub__pipeline__greet"
    assert called["structuredContent"] == {"said": "hello you\n"}
    assert progress_of(hub)[-1]["progress"] == 1
    assert "unknown input `whom`" in text_of(failed)
    called_by_cli = project.aish("call", "outer.yaml", "hub__pipeline__greet", "who=cli")
    assert "hello cli" in called_by_cli.stdout


def test_the_shipped_hub_serves_files_history_and_a_pipeline(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    shipped = REPO / "pipelines"
    for name in ("hub.yaml", "quickstart.yaml", "data/note.md"):
        project.write(f"pipelines/{name}", (shipped / name).read_bytes())
    quickstart = project.folder / "pipelines" / "quickstart.yaml"
    # A scripted endpoint in the place of the small model.
    embedded, own = "{embedded: smollm2}", "{base_url: '${MODEL_URL}', model: scripted}"
    assert embedded in quickstart.read_text()
    quickstart.write_text(quickstart.read_text().replace(embedded, own))
    read = tool_reply([("1", "notes__file_read", '{"path": "note.md"}')])
    details = text_reply('{"about": "a meeting", "day": "Friday"}')
    project.uses(model_endpoint([read, text_reply("On Friday at ten."), details]))
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "Begin")):
        subprocess.run(("git", *words), cwd=project.folder, check=True)
    tasks: Message = {f"{META}clientCapabilities": {"extensions": {f"{META}tasks": {}}}}
    with ServedHub(project, "pipelines/hub.yaml") as hub:
        names = {tool["name"] for tool in hub.tools(modern=True)}
        note = hub.call("repo__file_read", {"path": "pipelines/data/note.md"}, modern=True)
        log = hub.call("repo__git_log", modern=True)
        written = hub.call("repo__file_write", {"path": "a", "content": "b"}, modern=True)
        params = {"name": "pipeline__meeting", "arguments": {}, "_meta": tasks}
        made = hub.ask("tools/call", params, modern=True)["result"]
        state = made
        while state["status"] == "working":
            params = {"taskId": made["taskId"], "_meta": tasks}
            state = hub.ask("tasks/get", params, modern=True)["result"]

    assert "pipeline__meeting" in names
    assert "repo__file_delete" not in names
    assert "Friday" in text_of(note)
    assert "Begin" in text_of(log)
    assert written["isError"] is True
    assert not (project.folder / "a").exists()
    assert made["resultType"] == "task"
    assert state["result"]["structuredContent"] == {
        "file": "note.md",
        "details": {"about": "a meeting", "day": "Friday"},
        "answer": "On Friday at ten.",
    }


def test_a_reload_reads_pipelines_anew_and_a_broken_one_changes_nothing(project: Project) -> None:
    approved = "mcp: {auto_approve: [shell__run]}"
    project.pipeline(f"name: one\nrun: [echo, before]\n{approved}", name="one.yaml")
    project.pipeline(f"name: two\nrun: [echo, two]\n{approved}", name="two.yaml")
    hub_file(project, "one.yaml")
    with ServedHub(project, "hub.yaml") as hub:
        hub.begin()
        names = [tool["name"] for tool in hub.tools()]
        before = hub.call("pipeline__one")
        project.pipeline("name: one\nrun: 5", name="one.yaml")
        hub.signal(signal.SIGHUP)
        hub.stderr_with("one.yaml")
        same = hub.call("pipeline__one")
        project.pipeline(f"name: one\nrun: [echo, after]\n{approved}", name="one.yaml")
        hub_file(project, "one.yaml, two.yaml")
        hub.signal(signal.SIGHUP)
        hub.notification("notifications/tools/list_changed")
        more = [tool["name"] for tool in hub.tools()]
        after = hub.call("pipeline__one")

    assert names == ["pipeline__one"]
    assert more == ["pipeline__one", "pipeline__two"]
    assert [text_of(one) for one in (before, same, after)] == ["before\n", "before\n", "after\n"]
