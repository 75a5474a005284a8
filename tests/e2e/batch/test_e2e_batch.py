"""A step over many items (F5, B4, B5)."""

import json
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import Gate, Reply, text_reply, tool_reply

SHELL = "mcp: {auto_approve: [shell__*]}"
ROWS = "id,n\nx1,1\nx2,2\nx3,3\n"


def last_text(request: Any) -> str:
    text: str = request["messages"][-1]["content"]
    return text


def items(project: Project) -> dict[str, str]:
    """The status of each item of the only run, by key."""
    return {event["key"]: event["status"] for event in of_type(project.journal, "item.finished")}


@pytest.mark.requirement("F5")
@pytest.mark.parametrize(
    ("source", "files"),
    [
        ("{file: rows.csv}", {"rows.csv": ROWS}),
        ("{file: rows.jsonl}", {"rows.jsonl": '{"n": "1"}\n{"n": "2"}\n{"n": "3"}\n'}),
        ("{file: rows.json}", {"rows.json": '[{"n": "1"}, {"n": "2"}, {"n": "3"}]'}),
        ("inputs.rows", {}),
    ],
)
def test_a_step_runs_once_for_each_item_and_is_a_list_in_their_order(
    project: Project, model_endpoint: ModelEndpoints, source: str, files: dict[str, str]
) -> None:
    project.uses(model_endpoint(lambda request: text_reply(f"got {last_text(request)}")))
    for name, text in files.items():
        project.write(name, text)
    project.pipeline(
        f"""
        inputs: {{rows: {{default: [{{n: "1"}}, {{n: "2"}}, {{n: "3"}}]}}}}
        steps:
          - id: each
            foreach: {source}
            as: row
            prompt: "{{{{ row.n }}}} of {{{{ index }}}}"
        outputs:
          texts: "{{{{ steps.each | map(attribute='text') | list }}}}"
          used: "{{{{ inputs.rows | length }}}}"
        """
    )

    found = project.result()

    assert found["outputs"]["texts"] == ["got 1 of 0", "got 2 of 1", "got 3 of 2"]
    assert items(project) == {"0": "ok", "1": "ok", "2": "ok"}


def test_items_may_be_the_paths_of_files(project: Project) -> None:
    for name in ("src/b.py", "src/a.py", "src/deep/c.py", "src/d.txt"):
        project.write(name, f"in {name}")
    project.pipeline(
        f"""
        {SHELL}
        steps:
          - id: each
            foreach: {{glob: "src/**/*.py"}}
            key: item
            run: [echo, "{{{{ item | readfile }}}}"]
        outputs: {{texts: "{{{{ steps.each | map(attribute='text') | list }}}}"}}
        """
    )

    texts = project.result()["outputs"]["texts"]

    assert [text.strip() for text in texts] == ["in src/a.py", "in src/b.py", "in src/deep/c.py"]


@pytest.mark.requirement("B4")
def test_as_many_items_as_the_file_says_are_in_flight_and_no_more(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    barrier = Gate(opens_at=12)
    endpoint = model_endpoint(
        lambda request: text_reply("x").but(before_head=barrier) if request else Reply()
    )
    project.uses(endpoint)
    project.write("rows.jsonl", "".join(f"{number}\n" for number in range(24)))
    project.pipeline("foreach: {file: rows.jsonl}\nconcurrency: 12\nprompt: '{{ item }}'\n")

    assert project.run("-q").code == 0
    most = now = 0
    for event in project.journal:
        now += {"item.started": 1, "item.finished": -1}.get(event["type"], 0)
        most = max(most, now)
    assert most == 12


@pytest.mark.requirement("B5")
def test_items_that_fail_are_recorded_in_their_place_and_the_others_go_on(project: Project) -> None:
    project.write("rows.csv", ROWS)
    project.pipeline(
        f"""
        {SHELL}
        steps:
          - id: each
            foreach: {{file: rows.csv}}
            key: item.id
            on_error: continue
            run: [test, "{{{{ item.n }}}}", -ne, "2"]
          - id: after
            run: [echo, "{{{{ steps.each | map(attribute='status') | join(' ') }}}}"]
        """
    )

    done = project.run()

    assert (done.code, done.stdout) == (1, "ok failed ok\n")
    assert items(project) == {"x1": "ok", "x2": "failed", "x3": "ok"}
    assert "1 of 3 items failed; first `x2`" in done.stderr


@pytest.mark.parametrize(("most", "ran"), [("2", 3), ("'10%'", 3)])
def test_more_failures_than_allowed_stop_the_batch(project: Project, most: str, ran: int) -> None:
    numbers = ", ".join(map(str, range(20)))
    project.pipeline(
        f"""
        {SHELL}
        foreach: "[{numbers}]"
        concurrency: 1
        max_failures: {most}
        run: ["false"]
        """
    )

    done = project.run("-q")

    assert done.code == 1
    assert len(items(project)) == ran
    assert "no more were started" in done.stderr


def test_a_share_of_a_file_is_of_all_of_its_items(project: Project) -> None:
    project.write("rows.csv", "id\n" + "".join(f"{number}\n" for number in range(60)))
    project.pipeline(
        f"""
        {SHELL}
        foreach: {{file: rows.csv}}
        concurrency: 1
        max_failures: 5%
        run: [test, "{{{{ index }}}}", -ge, "3"]
        """
    )

    assert project.run("-q").code == 1
    assert len(items(project)) == 60


def test_the_first_failure_stops_a_batch_that_says_nothing_else(project: Project) -> None:
    project.pipeline(f"{SHELL}\nforeach: '[1, 2, 3]'\nconcurrency: 1\nrun: ['false']\n")

    assert project.run("-q").code == 1
    assert items(project) == {"0": "failed"}


def test_an_item_is_tried_again_by_itself(project: Project, model_endpoint: ModelEndpoints) -> None:
    seen: dict[str, int] = {}

    def answer(request: Any) -> Reply:
        text = last_text(request)
        seen[text] = seen.get(text, 0) + 1
        return text_reply("no" if text == "2" and seen[text] == 1 else "yes")

    project.uses(model_endpoint(answer))
    project.pipeline(
        """
        foreach: "['1', '2', '3']"
        prompt: "{{ item }}"
        retry: {attempts: 2}
        expect: [{equals: "yes"}]
        """
    )

    assert project.run("-q").code == 0
    assert seen == {"1": 1, "2": 2, "3": 1}


def test_a_when_about_the_item_leaves_items_out(project: Project) -> None:
    project.write("rows.csv", ROWS)
    project.pipeline(
        f"""
        {SHELL}
        foreach: {{file: rows.csv}}
        key: item.id
        when: item.n != "2"
        run: [echo, "{{{{ item.n }}}}"]
        """
    )

    done = project.run()

    assert done.code == 0
    assert items(project) == {"x1": "ok", "x2": "skipped", "x3": "ok"}


def test_no_items_at_all_is_a_step_that_went_well(project: Project) -> None:
    project.write("rows.csv", "id,n\n")
    project.pipeline(f"{SHELL}\nforeach: {{file: rows.csv}}\nrun: [ls]\n")

    assert project.result()["steps"]["main"]["status"] == "ok"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{file: nowhere.csv}", "No such file"),
        ("{file: '{{ inputs.name }}.xml'}", "by the ending of the name"),
        ("inputs.name", "`foreach` takes a list"),
        ("{file: bad.csv}", "bad.csv:3"),
    ],
)
def test_items_that_cannot_be_read_fail_the_step_with_their_place(
    project: Project, source: str, said: str
) -> None:
    project.write("x.xml", "<a/>")
    project.write("bad.csv", "id,n\nx1,1\nx2\n")
    project.pipeline(
        f"""
        inputs: {{name: {{type: string, default: x}}}}
        {SHELL}
        foreach: {source}
        run: [echo, "{{{{ inputs.name }}}}"]
        """
    )

    done = project.run()

    assert done.code == 1
    assert said in done.stderr


@pytest.mark.requirement("P10")
def test_each_call_of_each_item_passes_the_gate(project: Project) -> None:
    project.write("rows.csv", ROWS)
    project.pipeline(
        """
        mcp: {auto_approve: [{tool: shell__run, command: [echo, "1"]}]}
        foreach: {file: rows.csv}
        key: item.id
        concurrency: 1
        on_error: continue
        run: [echo, "{{ item.n }}"]
        """
    )

    assert project.run("-q").code == 3
    assert items(project) == {"x1": "ok", "x2": "denied", "x3": "denied"}
    digests = [event["digest"] for event in of_type(project.journal, "tool.decided")]
    assert len(set(digests)) == 3


@pytest.mark.requirement("C2")
def test_a_batch_is_recorded_and_replayed(project: Project, model_endpoint: ModelEndpoints) -> None:
    endpoint = model_endpoint(lambda request: text_reply(f"got {last_text(request)}"))
    project.uses(endpoint)
    project.write("rows.csv", ROWS)
    project.pipeline(
        """
        cassette: c.yaml
        steps:
          - {id: each, foreach: {file: rows.csv}, key: item.id, prompt: "{{ item.n }}"}
        outputs: {texts: "{{ steps.each | map(attribute='text') | list }}"}
        """
    )

    live = project.aish("record", "p.yaml", "--format", "json")
    assert live.code == 0, live.stderr
    endpoint.close()
    again = project.run("--replay", "c.yaml", "--format", "json")

    assert again.code == 0, again.stderr
    assert json.loads(again.stdout)["outputs"] == json.loads(live.stdout)["outputs"]


def test_an_item_that_calls_tools_without_end_does_not_stop_the_others(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [("c1", "child__echo", '{"text": "again"}')]

    def answer(request: Any) -> Reply:
        return text_reply("fine") if request["messages"][0]["content"] == "1" else tool_reply(calls)

    project.uses(model_endpoint(answer))
    project.pipeline(
        f"""
        mcp: {{servers: {{child: {{command: {stdio()}}}}}, auto_approve: ["child__*"]}}
        foreach: "['0', '1']"
        concurrency: 1
        on_error: continue
        max_tool_depth: 1
        prompt: "{{{{ item }}}}"
        """
    )

    assert project.run("-q").code == 4
    assert items(project) == {"0": "budget", "1": "ok"}
