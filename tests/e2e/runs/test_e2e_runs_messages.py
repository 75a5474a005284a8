"""What models were sent stands in the journal, each message once, and can be shown (B2)."""

import json
import stat
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import Reply, json_reply, text_reply, tool_reply
from syrupy.assertion import SnapshotAssertion

TOOLS = """
mcp: {servers: {repo: {pack: [fs], root: docs}}, auto_approve: [repo__file_read]}
on_denied: continue
"""
ONE = f"""
{TOOLS}
steps:
  - id: read
    system: You read files.
    prompt: "Read a.md with {{{{ inputs.key }}}}"
inputs: {{key: {{type: string, default: nothing}}}}
"""
SCHEMA = "{type: object, properties: {n: {type: integer}}, required: [n]}"


@pytest.fixture
def reading(project: Project) -> Project:
    project.write("docs/a.md", "line of text\n" * 150)
    project.write("docs/b.md", "B\n")
    return project


def shown(project: Project, *arguments: str) -> list[Any]:
    """The requests of the only run, as `aish runs show --messages` has them."""
    done = project.aish("runs", "show", "latest", "--messages", "--format", "json", *arguments)
    assert done.code == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)["requests"]
    return found


def sent(requests: list[Any]) -> list[list[tuple[str, str]]]:
    """The whole of each request, put together from what each adds."""
    whole: dict[Any, list[tuple[str, str]]] = {}
    found = []
    for one in requests:
        key = one["step"], one["item"], one["attempt"], one["purpose"]
        new = [_plain(message) for message in one["messages"]]
        anew = one["rewritten"] is not None or one["purpose"] != "answer"
        whole[key] = new if anew else whole.get(key, []) + new
        assert len(whole[key]) + one["earlier"] == one["count"]
        found.append(whole[key])
    return found


def _plain(message: Any) -> tuple[str, str]:
    role = message["role"]
    text = message["content" if role == "tool" else "text"]
    return role, text + "".join(call["arguments"] for call in message.get("calls", ()))


def received(endpoint: Any) -> list[list[tuple[str, str]]]:
    """The same as the endpoint got it."""
    return [[_wire(message) for message in asked["messages"]] for asked in endpoint.asked]


def _wire(message: Any) -> tuple[str, str]:
    calls = message.get("tool_calls") or ()
    arguments = "".join(call["function"]["arguments"] for call in calls)
    return message["role"], (message["content"] or "") + arguments


def test_what_was_sent_is_put_together_again_from_the_journal(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(
        [
            tool_reply(
                [
                    ("c1", "repo__file_read", '{"path": "a.md"}'),
                    ("c2", "repo__file_read", '{"path": "b.md"}'),
                    ("c3", "repo__file_read", '{"path": "missing.md"}'),
                ],
                "I read them.",
            ),
            # No arguments of a tool, no tool, one that no rule approves.
            tool_reply(
                [
                    ("c1", "repo__file_read", "[1]"),
                    ("c2", "repo__nothing", "{}"),
                    ("c3", "repo__file_list", "{}"),
                ]
            ),
            text_reply("Read."),
        ]
    )
    reading.uses(endpoint)
    reading.pipeline(ONE)

    assert reading.run().code == 0

    requests = shown(reading)
    assert sent(requests) == received(endpoint)
    assert [one["turn"] for one in requests] == [1, 2, 3]
    assert requests[-1]["answer"]["text"] == "Read."
    # Each message once: what an answer or a call has told is not told again.
    written = reading.everything_written()
    assert written.count("You read files.") == 2  # the plan, and the message
    assert written.count("line of text") == 150


def test_a_conversation_that_was_shortened_is_shown_as_it_was_sent(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    call = '{"path": "a.md"}'
    reads = [tool_reply([(f"c{n}", "repo__file_read", call)]) for n in range(12)]
    endpoint = model_endpoint([*reads, text_reply("Read.")])
    cheap = model_endpoint([text_reply("in short")] * 9)
    reading.uses(endpoint)
    reading.aish.env["CHEAP_URL"] = cheap.base_url
    reading.pipeline(f"""
        models:
          m: {{base_url: "${{MODEL_URL}}", model: x}}
          cheap: {{base_url: "${{CHEAP_URL}}", model: y}}
        model: m
        context: {{max_tokens: 2500, keep: 1, summary_model: cheap}}
        {TOOLS.strip().replace(chr(10), chr(10) + " " * 8)}
        steps: [{{id: one, prompt: Read it all, max_tool_depth: 50}}]
        """)

    assert reading.run().code == 0

    requests = shown(reading)
    answers = [one for one in requests if one["purpose"] == "answer"]
    summaries = [one for one in requests if one["purpose"] == "summary"]
    assert sent(answers) == received(endpoint)
    assert sent(summaries) == received(cheap)
    assert {one["rewritten"] for one in answers} == {None, "context_trimmed"}
    # What stays is named, and not told again.
    told = [turn for one in of_type(reading.journal, "history.replaced") for turn in one["turns"]]
    assert any("at" in turn for turn in told)
    assert not any("line of text" in json.dumps(turn) for turn in told)


def test_attempts_rejected_answers_and_judges_are_shown(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    grade = '{"reason": "Fine.", "pass": true}'
    endpoint = model_endpoint(
        [
            json_reply(400, {"error": {"message": "no"}}),
            text_reply("no JSON"),
            text_reply('{"n": 1}'),
            text_reply(grade),
        ]
    )
    project.uses(endpoint)
    project.pipeline(f"""
        steps:
          - id: count
            prompt: How many?
            retry: {{attempts: 2}}
            output: {{schema: {SCHEMA}, attempts: 2}}
            expect: [{{judge: {{model: m, rubric: It counts.}}}}]
        """)

    assert project.run().code == 0

    requests = shown(project)
    assert [(one["attempt"], one["purpose"]) for one in requests] == [
        (1, "answer"),
        (2, "answer"),
        (2, "answer"),
        (2, "judge"),
    ]
    assert requests[0]["answer"] is None
    assert sent(requests) == received(endpoint)


def test_messages_of_items_are_masked_and_long_ones_are_files(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    shared, long = "Rule. " * 400, "some text " * 5_000
    project.uses(model_endpoint(lambda _: text_reply("fine")))
    project.aish.env["CLIENT_SECRET"] = "hush-hush-hush"
    rows = [{"id": n, "text": f"row {n}"} for n in range(4)] + [{"id": 9, "text": long}]
    project.write("rows.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    project.pipeline(f"""
        models: {{m: {{base_url: "${{MODEL_URL}}", model: x, key_env: CLIENT_SECRET}}}}
        steps:
          - id: each
            foreach: {{file: rows.jsonl}}
            key: item.id
            system: {shared!r}
            prompt: "hush-hush-hush {{{{ item.text }}}}"
        """)

    assert project.run().code == 0

    (request,) = shown(project, "--step", "each", "--item", "9")
    system, user = request["messages"]
    assert system["text"] == shared
    assert user["text"].endswith(long)
    assert user["text"].startswith("<secret:CLIENT_SECRET> some")
    assert "hush-hush-hush" not in project.everything_written()
    # The long text once, and the shared one when it came a second time.
    (folder,) = project.run_folders
    files = sorted((folder / "files").iterdir())
    assert [path.name for path in files] == ["0001-system.txt", "0002-user.txt"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    journal = (folder / "events.jsonl").read_text()
    assert journal.count(shared) == 1
    assert long[:1000] not in journal.partition('"added"')[2].partition('"item":"9"')[0]
    (other,) = shown(project, "--item", "2")
    assert other["messages"][0]["text"] == shared


def test_messages_are_shown_as_text(
    reading: Project, model_endpoint: ModelEndpoints, snapshot: SnapshotAssertion
) -> None:
    reading.uses(
        model_endpoint(
            [
                tool_reply([("c1", "repo__file_read", '{"path": "b.md"}')], "I look."),
                text_reply("Read \x1b[31mred."),
            ]
        )
    )
    reading.pipeline(ONE)
    assert reading.run("-i", "key=\x1b]0;title\x07::error::x").code == 0

    done = reading.aish("runs", "show", "latest", "--messages", "--step", "read")

    assert done.code == 0
    assert done.stdout == snapshot
    assert reading.aish("runs", "report", "latest").code == 0
    (page,) = reading.folder.glob(".aish/runs/*/report.html")
    html = page.read_text()
    assert "<strong>System</strong>" in html
    assert "<pre>You read files.</pre>" in html
    assert "Read a.md with \\x1b]0;title\\x07::error::x" in html


def test_the_messages_of_a_continued_conversation_are_shown_too(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("said"))
    project.uses(endpoint)
    project.pipeline("""
        steps:
          - {id: one, prompt: One}
          - {id: two, prompt: Two, continues: one}
        """)

    assert project.run().code == 0

    first, second = shown(project)
    assert [message["text"] for message in first["messages"]] == ["One"]
    assert (second["earlier"], [message["text"] for message in second["messages"]]) == (2, ["Two"])
    roles = [one["added"]["role"] for one in of_type(project.journal, "turn.added")]
    assert roles == ["user", "assistant", "user"]


def test_what_nobody_was_asked_is_an_error_that_names_what_there_is(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("said")]))
    project.pipeline("steps: [{id: first, prompt: One}]")
    assert project.run().code == 0

    other = project.aish("runs", "show", "latest", "--messages", "--step", "frist")
    alone = project.aish("runs", "show", "latest", "--step", "first")

    assert (other.code, alone.code) == (2, 2)
    assert "there are no model requests in the step `frist`" in other.stderr
    assert "did you mean `first`" in other.stderr
    assert "add `--messages`" in alone.stderr


def test_an_interrupted_run_shows_what_was_asked_last(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([Reply(parts=(), status=500)] * 9))
    project.pipeline("""
        models: {m: {base_url: "${MODEL_URL}", model: x, retry: {attempts: 1}}}
        steps: [{id: first, prompt: One}]
        """)
    assert project.run().code == 5

    (request,) = shown(project)

    assert (request["messages"], request["answer"]) == ([{"role": "user", "text": "One"}], None)
