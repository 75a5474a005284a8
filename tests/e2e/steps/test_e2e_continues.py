"""A step that goes on with the conversation of an earlier one."""

import base64
import json
from textwrap import dedent
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, driven, of_type
from mcp_emulators import Legacy, McpEndpoint
from model_endpoint import (
    Reply,
    delta,
    json_reply,
    sse,
    stream_reply,
    text_reply,
    tool_reply,
    usage,
)
from samples import sampled

TWO = dedent("""
    steps:
      - {id: draft, prompt: {system: Be brief, user: Write a draft}}
      - {id: mend, continues: draft, prompt: Now mend it}
      - {id: last, needs: [mend], prompt: Something else}
    """)
WITH_TOOL = dedent("""
    mcp: {servers: {repo: {pack: fs, root: data}}, auto_approve: ["repo__*"]}
    steps:
      - {id: look, prompt: "Read the note"}
      - {id: ask, continues: look, prompt: "And now?"}
    """)
THREE = dedent("""
    steps:
      - {id: one, prompt: One}
      - {id: two, continues: one, prompt: Two}
      - {id: three, continues: two, prompt: Three}
    """)
FAILS = dedent("""
    steps:
      - {id: draft, prompt: Write a draft, on_error: continue, expect: [{equals: never}]}
      - {id: mend, continues: draft, when: "true", prompt: Now mend it}
      - {id: last, needs: [draft], prompt: Something else}
    """)


def echo(body: Any) -> Reply:
    """A model that says how much it was told, and what last."""
    said = body["messages"]
    return text_reply(f"<{len(said)}: {said[-1]['content']}>")


def reads(body: Any) -> Reply:
    """A model that reads a file at first."""
    if len(body["messages"]) == 1:
        return tool_reply([("c1", "repo__file_read", '{"path": "note.txt"}')], "Let me see.")
    return echo(body)


def said(body: Any) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in body["messages"]]


@pytest.fixture
def endpoint(project: Project, model_endpoint: ModelEndpoints) -> Any:
    found = model_endpoint(echo)
    project.uses(found)
    return found


def test_a_step_goes_on_where_another_one_ended(project: Project, endpoint: Any) -> None:
    project.pipeline(TWO)

    done = project.run()

    assert done.code == 0, done.stderr
    first, second, third = endpoint.asked
    assert said(first) == [("system", "Be brief"), ("user", "Write a draft")]
    assert said(second) == [
        *said(first),
        ("assistant", "<2: Write a draft>"),
        ("user", "Now mend it"),
    ]
    assert said(third) == [("user", "Something else")]


def test_turns_are_written_down_only_where_they_are_gone_on_with(
    project: Project, endpoint: Any
) -> None:
    project.pipeline(THREE)

    assert project.run().code == 0

    added = of_type(project.journal, "turn.added")
    assert [(event["step"], event["added"]["role"], event["purpose"]) for event in added] == [
        ("one", "user", "conversation"),
        ("one", "assistant", "conversation"),
        ("two", "user", "conversation"),
        ("two", "assistant", "conversation"),
        ("three", "user", "answer"),
    ]
    assert added[1]["added"] == {"role": "assistant", "text": "<1: One>", "origin": "m"}
    assert len(endpoint.asked[2]["messages"]) == 5


def test_a_pipeline_without_continues_writes_only_what_was_sent(
    project: Project, endpoint: Any
) -> None:
    project.pipeline("steps: [{id: a, prompt: A}, {id: b, prompt: 'B {{ steps.a.text }}'}]")

    assert project.run().code == 0

    added = of_type(project.journal, "turn.added")
    assert [(event["added"]["role"], event["purpose"]) for event in added] == [
        ("user", "answer")
    ] * 2
    assert len(endpoint.asked) == 2


@pytest.mark.parametrize("role", [True, False], ids=["tool role", "no tool role"])
def test_tool_turns_are_in_what_goes_on(
    project: Project, model_endpoint: ModelEndpoints, *, role: bool
) -> None:
    model = model_endpoint(reads)
    project.uses(model)
    project.write("data/note.txt", "milk")
    text = (
        f'models: {{m: {{base_url: "${{MODEL_URL}}", model: x, tool_role: {json.dumps(role)}}}}}\n'
    )
    project.pipeline(text + WITH_TOOL)

    done = project.run()

    assert done.code == 0, done.stderr
    messages = model.asked[-1]["messages"]
    roles = [message["role"] for message in messages]
    if role:
        assert roles == ["user", "assistant", "tool", "assistant", "user"]
        assert messages[1]["tool_calls"][0]["function"]["name"] == "repo__file_read"
        assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]
        assert "milk" in messages[2]["content"]
    else:
        assert roles == ["user", "assistant", "user", "assistant", "user"]
        assert "tool_calls" not in messages[1]
        assert messages[2]["content"].startswith("[tool: repo__file_read]")
    assert model.asked[-1]["messages"][:-2] == model.asked[-2]["messages"]


@pytest.mark.requirement("L12")
def test_fields_of_an_endpoint_go_back_to_it_and_to_no_other(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    def signs(body: Any) -> Reply:
        chunk = delta(content=f"<{len(body['messages'])}>", thought_signature="s1")
        return stream_reply(sse([delta(role="assistant"), chunk, delta("stop"), usage()]))

    cloud, local = model_endpoint(signs), model_endpoint(echo)
    project.aish.env |= {"CLOUD": cloud.base_url, "LOCAL": local.base_url}
    project.pipeline(
        """
        models:
          cloud: {base_url: "${CLOUD}", model: x}
          local: {base_url: "${LOCAL}", model: y}
        steps:
          - {id: one, model: cloud, prompt: One}
          - {id: two, model: local, continues: one, prompt: Two}
          - {id: three, model: cloud, continues: two, prompt: Three}
        """
    )

    done = project.run()

    assert done.code == 0, done.stderr
    (between,) = local.asked
    assert [sorted(message) for message in between["messages"]] == [["content", "role"]] * 3
    back = cloud.asked[1]["messages"]
    assert [message.get("thought_signature") for message in back] == [None, "s1", None, None, None]


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        (FAILS, 0, "it continues `draft`, which failed"),
        (
            TWO.replace("{id: draft,", "{id: draft, when: 'false',"),
            0,
            "it continues `draft`, which was skipped",
        ),
    ],
    ids=["failed", "skipped"],
)
def test_a_step_with_nothing_to_go_on_with_is_skipped(
    project: Project, endpoint: Any, text: str, code: int, why: str
) -> None:
    project.pipeline(text)

    result = project.result()

    assert result["exit"]["code"] == code or "draft" in result["exit"]["reason"]
    assert result["steps"]["mend"]["status"] == "skipped"
    assert result["steps"]["mend"]["error"]["message"] == why
    assert all("Now mend it" not in str(body) for body in endpoint.asked)


def test_each_attempt_begins_with_the_same_conversation(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    refused = json_reply(400, {"error": {"message": "no"}})
    tries = iter([text_reply("draft"), refused, text_reply("mended"), text_reply("end")])
    model = model_endpoint(lambda _: next(tries))
    project.uses(model)
    project.pipeline(
        """
        steps:
          - {id: draft, prompt: Write a draft}
          - {id: mend, continues: draft, prompt: Now mend it, retry: {attempts: 2}}
          - {id: last, continues: mend, prompt: And the end}
        """
    )

    done = project.run()

    assert done.code == 0, done.stderr
    _, first, second, last = model.asked
    assert first["messages"] == second["messages"]
    assert said(last) == [
        *said(second),
        ("assistant", "mended"),
        ("user", "And the end"),
    ]


def test_one_conversation_may_go_on_in_two_ways(project: Project, endpoint: Any) -> None:
    project.pipeline(
        """
        steps:
          - {id: one, prompt: One}
          - {id: left, continues: one, prompt: Left}
          - {id: right, continues: one, prompt: Right}
        """
    )

    assert project.run().code == 0

    _, *both = endpoint.asked
    ways = sorted([message["content"] for message in body["messages"]] for body in both)
    assert ways == [["One", "<1: One>", "Left"], ["One", "<1: One>", "Right"]]


def test_a_conversation_that_was_shortened_goes_on_short(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    def answer(body: Any) -> Reply:
        tools = sum(message["role"] == "tool" for message in body["messages"])
        if tools < 3 and len(body["messages"]) <= 7 and body["messages"][-1]["content"] != "Last":
            return tool_reply([(f"c{tools}", "repo__file_read", '{"path": "note.txt"}')])
        return echo(body)

    model = model_endpoint(answer)
    project.uses(model)
    project.write("data/note.txt", "milk and bread\n" * 200)
    project.pipeline(
        """
        mcp:
          servers: {repo: {pack: fs, root: data, exclude: ["*_find", "*_search", dir_tree]}}
          auto_approve: ["repo__*"]
        context: {max_tokens: 3000, keep: 1}
        steps:
          - {id: look, prompt: Read the note}
          - {id: last, continues: look, prompt: Last}
        """
    )

    done = project.run()

    assert done.code == 0, done.stderr
    assert of_type(project.journal, "history.replaced")
    before, after = model.asked[-2]["messages"], model.asked[-1]["messages"]
    assert after[: len(before)] == before
    assert "left out" in str(after)


RESUMED = {
    "words": (THREE, echo),
    "tools": (f"{WITH_TOOL}  - {{id: three, continues: ask, prompt: Three}}\n", reads),
}


@pytest.mark.parametrize(
    "failpoint",
    sampled(
        ["after:step.finished:1", "after:step.finished:2"],
        often={0},
        reason="cases of the same kind",
    ),
)
@pytest.mark.parametrize("way", RESUMED)
def test_a_run_that_was_killed_goes_on_with_the_same_conversation(
    project: Project, model_endpoint: ModelEndpoints, way: str, failpoint: str
) -> None:
    text, model_says = RESUMED[way]
    project.write("data/note.txt", "milk")
    project.pipeline(text)
    undisturbed = model_endpoint(model_says)
    project.uses(undisturbed)
    assert project.run().code == 0
    project.aish("runs", "clean", "--all", "--yes")
    model = model_endpoint(model_says)
    project.uses(model)

    driven(project, failpoint, "run", "p.yaml").finish()
    before = len(model.asked)
    done = project.run("--resume")

    assert done.code == 0, done.stderr
    assert 0 < before < len(undisturbed.asked)
    assert [body["messages"] for body in model.asked] == [
        body["messages"] for body in undisturbed.asked
    ]


def test_an_attempt_that_came_to_nothing_is_no_part_of_what_goes_on_later(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    broken = json_reply(400, {"error": {"message": "no"}})
    tries = iter([broken, text_reply("draft"), text_reply("mended")])
    model = model_endpoint(lambda _: next(tries))
    project.uses(model)
    project.pipeline(
        """
        steps:
          - {id: draft, prompt: Write a draft, retry: {attempts: 2}}
          - {id: mend, continues: draft, prompt: Now mend it}
        """
    )
    driven(project, "after:step.finished:1", "run", "p.yaml").finish()

    assert project.run("--resume").code == 0

    assert said(model.asked[-1]) == [
        ("user", "Write a draft"),
        ("assistant", "draft"),
        ("user", "Now mend it"),
    ]


def test_to_go_on_with_a_conversation_later_makes_it_another_run(
    project: Project, endpoint: Any
) -> None:
    project.pipeline(THREE.replace("continues: two, ", "needs: [two], "))
    driven(project, "after:step.finished:2", "run", "p.yaml").finish()
    project.pipeline(THREE)

    refused = project.run("--resume")
    forced = project.run("--resume", "--force")

    assert refused.code == 2
    assert "`steps[2].continues` is new" in refused.stderr
    assert forced.code == 0, forced.stderr
    assert len(endpoint.asked) == 3
    assert [message for _, message in said(endpoint.asked[2])] == [
        message for _, message in said(endpoint.asked[1])
    ] + ["<3: Two>", "Three"]


def test_conversations_go_on_within_a_sub_pipeline(project: Project, endpoint: Any) -> None:
    project.pipeline(TWO, "inner.yaml")
    project.pipeline(
        "steps: [{id: part, pipeline: inner.yaml}, {id: end, needs: [part], prompt: End}]"
    )

    driven(project, "after:step.finished:1", "run", "p.yaml").finish()
    done = project.run("--resume")

    assert done.code == 0, done.stderr
    assert [message for _, message in said(endpoint.asked[1])] == [
        "Be brief",
        "Write a draft",
        "<2: Write a draft>",
        "Now mend it",
    ]
    assert len(endpoint.asked) == 4


def test_a_secret_in_a_conversation_is_put_back_and_stored_nowhere(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    model = model_endpoint(lambda _: text_reply("your key is hunter2-and-then-some"))
    project.uses(model)
    project.aish.env["TOKEN"] = "hunter2-and-then-some"
    entry = '{base_url: "${MODEL_URL}", model: x, key_env: TOKEN}'
    project.pipeline(f"models: {{m: {entry}}}\n{THREE}")
    driven(project, "after:step.finished:1", "run", "p.yaml").finish()

    done = project.run("--resume")

    assert done.code == 0, done.stderr
    assert "the conversation of this step contained a secret" not in done.stderr
    assert said(model.asked[1])[1] == ("assistant", "your key is hunter2-and-then-some")
    assert "hunter2" not in project.everything_written()


def test_a_recording_of_it_replays(project: Project, endpoint: Any) -> None:
    project.pipeline(THREE + "tests:\n  - {name: talk, cassette: c.yaml}\n")
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", "--format", "json")
    endpoint.close()

    replayed = project.aish("run", "p.yaml", "--cassette", "c.yaml", "--format", "json")
    tested = project.aish("test", "p.yaml")

    assert recorded.code == 0, recorded.stderr
    assert replayed.code == 0, replayed.stderr
    assert tested.code == 0, tested.stdout + tested.stderr
    assert (
        json.loads(replayed.stdout)["steps"]["three"]["text"]
        == json.loads(recorded.stdout)["steps"]["three"]["text"]
        == "<5: Three>"
    )


def test_the_plan_shows_what_goes_on_with_what(project: Project, endpoint: Any) -> None:
    project.pipeline(TWO)

    plan = project.aish("plan", "p.yaml", "--format", "json")
    shown = project.aish("plan", "p.yaml")

    assert plan.code == 0, plan.stderr
    mend = json.loads(plan.stdout)["steps"][1]
    assert (mend["continues"], mend["needs"]) == ("draft", ["draft"])
    assert "continues: draft" in shown.stdout
    assert endpoint.asked == []


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "deleted"])
def test_an_image_goes_on_with_its_conversation(
    project: Project, model_endpoint: ModelEndpoints, *, kept: bool
) -> None:
    def shows(body: Any) -> Reply:
        if len(body["messages"]) == 1:
            return tool_reply([("c1", "s__image", "{}")])
        return text_reply(f"<{len(body['messages'])}>")

    picture = base64.b64encode(b"\x89PNG and so on").decode()
    image = {"type": "image", "data": picture, "mimeType": "image/png"}
    model = model_endpoint(shows)
    project.uses(model)
    with McpEndpoint(Legacy(tools__call=lambda _: {"content": [image]})) as server:
        project.pipeline(
            f"""
            models: {{m: {{base_url: "${{MODEL_URL}}", model: x, vision: true}}}}
            mcp: {{servers: {{s: {{url: "{server.url}"}}}}, auto_approve: ["s__*"]}}
            steps:
              - {{id: look, prompt: Show me a picture}}
              - {{id: ask, continues: look, prompt: What is it?}}
            """
        )
        driven(project, "after:step.finished:1", "run", "p.yaml").finish()
        (folder,) = project.run_folders
        files = sorted((folder / "files").glob("*-turn.png"))
        if not kept:
            files[0].unlink()
        done = project.run("--resume")

    assert done.code == 0, done.stderr
    assert len(files) == 1
    first, last = model.asked[1]["messages"], model.asked[2]["messages"]
    url = f"data:image/png;base64,{picture}"
    assert url in str(first)
    assert (url in str(last)) is kept
    assert ("[aish] no longer there: image/png" in str(last)) is not kept
    assert ("an image of the conversation, is gone" in done.stderr) is not kept


def test_each_item_of_a_sub_pipeline_has_a_conversation_of_its_own(
    project: Project, endpoint: Any
) -> None:
    inner = THREE.replace("prompt: One", "prompt: '{{ inputs.name }}'")
    project.pipeline(f"inputs: {{name: {{type: string}}}}\n{inner}", "inner.yaml")
    project.pipeline(
        """
        steps:
          - {id: all, foreach: "['a', 'b']", pipeline: inner.yaml, with: {name: "{{ item }}"}}
        """
    )

    done = project.run("--html", "run.html", "--junit", "run.xml")

    assert done.code == 0, done.stderr
    last = [said(body) for body in endpoint.asked if len(body["messages"]) == 5]
    assert sorted(messages[0][1] for messages in last) == ["a", "b"]
    # An item that is not done is done again as a whole: nothing is gone on with later.
    added = of_type(project.journal, "turn.added")
    assert {(event["added"]["role"], event["purpose"]) for event in added} == {("user", "answer")}


def test_events_and_reports_have_conversations_that_go_on(project: Project, endpoint: Any) -> None:
    project.pipeline(THREE)

    live = project.run("--format", "jsonl", "--ephemeral")
    done = project.run("--html", "run.html", "--junit", "run.xml", "-o", "out.txt")

    assert (live.code, done.code) == (0, 0), live.stderr + done.stderr
    told = [json.loads(line)["type"] for line in live.stdout.splitlines()]
    assert told.count("turn.added") == 5
    assert "turn.added" not in done.stderr
    assert (project.folder / "run.html").read_text().count("Three") > 0
    assert len(endpoint.asked) == 6
