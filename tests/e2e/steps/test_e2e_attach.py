"""Files, resources and prompts of servers in the prompts of steps, from the file to the wire."""

import json
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from mcp_emulators import Legacy, McpEndpoint, Modern, error
from mcp_tools import PNG
from model_endpoint import Recorded, text_reply

OFFERS: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
PAGE = "# Intro\nNever say {{ inputs.topic }}.\n"
MESSAGES = [
    {"role": "user", "content": {"type": "text", "text": "Here is {{ stdin }}."}},
    {"role": "assistant", "content": {"type": "text", "text": "I see."}},
    {"role": "user", "content": {"type": "text", "text": "Review it."}},
]


def read(request: Recorded) -> Any:
    """One page that is not listed, and nothing else."""
    uri = request.json["params"]["uri"]
    if uri != "docs://page/intro":
        return error(request, -32002, f"Resource not found: {uri}")
    return {"contents": [{"uri": uri, "mimeType": "text/markdown", "text": PAGE}]}


def docs(kind: type[Legacy] = Legacy, **overrides: Any) -> McpEndpoint:
    """A server with one page and one prompt."""
    usual: dict[str, Any] = {
        "resources__list": lambda _: {"resources": []},
        "resources__templates__list": lambda _: {
            "resourceTemplates": [{"uriTemplate": "docs://page/{name}", "name": "A page"}]
        },
        "resources__read": read,
        "prompts__list": lambda _: {"prompts": [{"name": "review"}]},
        "prompts__get": lambda _: {"messages": MESSAGES},
    }
    return McpEndpoint(kind(capabilities=OFFERS, **{**usual, **overrides}))


def sent(endpoint: Any, number: int = 0) -> list[tuple[str, Any]]:
    """The messages of a request to the model."""
    return [(one["role"], one["content"]) for one in endpoint.requests[number].json["messages"]]


@pytest.mark.requirement("M12")
@pytest.mark.parametrize("kind", [Legacy, Modern])
def test_what_is_attached_stands_before_the_prompt(
    project: Project, model_endpoint: ModelEndpoints, kind: type[Legacy]
) -> None:
    endpoint = model_endpoint([text_reply("Read.")])
    project.uses(endpoint)
    project.write("notes/style.md", "Be {{ kind }}.\n")
    with docs(kind) as server, docs(kind, resources__templates__list=lambda _: {}) as other:
        project.pipeline(
            f"""
            inputs: {{page: {{type: string}}, topic: {{type: string, default: rain}}}}
            mcp: {{servers: {{other: {{url: "{other.url}"}}, docs: {{url: "{server.url}"}}}}}}
            system: Be terse.
            prompt: Write about {{{{ inputs.topic }}}}.
            attach:
              - notes/style.md
              - docs://page/{{{{ inputs.page }}}}
              - {{server: other, uri: docs://page/intro}}
            """
        )
        done = project.run("-i", "page=intro")
    assert (done.code, done.stdout) == (0, "Read.\n"), done.stderr
    style = "[attached: notes/style.md (text/markdown)]\nBe {{ kind }}.\n[end of notes/style.md]"
    page = (
        "[attached: docs://page/intro (text/markdown)]\n"
        f"{PAGE.rstrip()}\n[end of docs://page/intro]"
    )
    assert sent(endpoint) == [
        ("system", "Be terse."),
        (
            "user",
            f"{style}\n\n{page}\n\n{page}\n\nWrite about rain.",
        ),
    ]
    assert server.methods.count("resources/read") == other.methods.count("resources/read") == 1


def test_the_prompt_of_a_server_is_a_conversation_and_never_a_template(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply('{"ok": true}')])
    project.uses(endpoint)
    project.write("a.txt", "attached")
    asked: list[Any] = []

    def get(request: Recorded) -> Any:
        asked.append(request.json["params"]["arguments"])
        return {"messages": MESSAGES}

    with docs(prompts__get=get) as server:
        project.pipeline(
            f"""
            mcp: {{servers: {{docs: {{url: "{server.url}"}}}}}}
            prompts:
              review: {{server: docs, name: review, arguments: {{code: "{{{{ 1 + 1 }}}}"}}}}
            steps:
              - id: one
                prompt: {{name: review}}
                system: Be terse.
                attach: a.txt
                output: {{schema: {{type: object}}}}
            """
        )
        done = project.run()
    assert done.code == 0, done.stderr
    assert asked == [{"code": "2"}]
    *before, (role, last) = sent(endpoint)
    assert before == [
        ("system", "Be terse."),
        ("user", "Here is {{ stdin }}."),
        ("assistant", "I see."),
    ]
    assert role == "user"
    assert last.startswith("[attached: a.txt (text/plain)]\nattached\n[end of a.txt]\n\nReview it.")
    assert "JSON" in last


@pytest.mark.parametrize("vision", [False, True])
def test_a_picture_is_shown_to_a_model_that_sees(
    project: Project, model_endpoint: ModelEndpoints, *, vision: bool
) -> None:
    endpoint = model_endpoint([text_reply("A dot.")])
    project.uses(endpoint)
    project.write("dot", PNG)
    project.pipeline(
        f"""
        models: {{m: {{base_url: "${{MODEL_URL}}", model: x, vision: {str(vision).lower()}}}}}
        prompt: What is it?
        attach: dot
        """
    )
    assert project.run().code == 0
    ((_, content),) = sent(endpoint)
    if vision:
        assert [part["type"] for part in content] == ["text", "image_url"]
        assert content[1]["image_url"]["url"].startswith("data:image/png;base64,")
        content = content[0]["text"]
    line = "attached" if vision else "not shown to this model"
    assert f"[aish] {line}: image/png, {len(PNG)} bytes" in content
    assert content.endswith("\n\nWhat is it?")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("attach: long.txt", "`long.txt` has 40,000 bytes of text, and `result_limit` is 32,768"),
        ("attach: gone.txt", "the attachment `gone.txt` is not there"),
        ("attach: docs://gone", "refused the resource `docs://gone`: Resource not found"),
        ("attach: ../p.yaml", "is not inside the project's folder"),
    ],
)
def test_what_cannot_be_attached_ends_the_step_before_a_model_is_asked(
    project: Project, model_endpoint: ModelEndpoints, lines: str, reason: str
) -> None:
    endpoint = model_endpoint([])
    project.uses(endpoint)
    project.write("long.txt", "x" * 40_000)
    with docs() as server:
        project.pipeline(
            f'mcp: {{servers: {{docs: {{url: "{server.url}"}}}}}}\nprompt: Read it.\n{lines}\n'
        )
        done = project.run()
    assert done.code == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert endpoint.requests == []
    (step,) = of_type(project.journal, "step.finished")
    assert step["status"] == "failed"


def test_a_run_with_attachments_is_recorded_replayed_and_tested_without_its_server(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Read.")])
    project.uses(endpoint)
    project.write("notes.md", "Be kind.")
    with docs() as server, docs() as other:
        project.pipeline(
            f"""
            mcp: {{servers: {{docs: {{url: "{server.url}"}}, b: {{url: "{other.url}"}}}}}}
            cassette: c.yaml
            steps:
              - id: one
                prompt: {{server: docs, name: review, arguments: {{a: b}}}}
                attach: [notes.md, {{server: b, uri: "docs://page/intro"}}]
            tests:
              - {{name: reads, expect: [{{contains: Read}}]}}
            """
        )
        recorded = project.aish("record", "p.yaml")
        assert recorded.code == 0, recorded.stderr
    endpoint.close()

    replayed = project.run("--replay", "c.yaml")
    tested = project.aish("test", "p.yaml")
    checked = project.aish("cassette", "check", "c.yaml", "--pipeline", "p.yaml")

    assert (replayed.code, replayed.stdout) == (0, "Read.\n"), replayed.stderr
    assert tested.code == 0, tested.stdout
    assert checked.code == 0, checked.stdout + checked.stderr

    project.write("notes.md", "Be cruel.")
    changed = project.aish("test", "p.yaml")
    assert changed.code != 0
    assert "Be cruel." in changed.stdout + changed.stderr


def test_a_plan_names_what_is_attached_and_reads_none_of_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([]))
    with docs() as server:
        project.pipeline(
            f"""
            inputs: {{page: {{type: string}}}}
            mcp: {{servers: {{docs: {{url: "{server.url}"}}}}}}
            steps:
              - id: one
                prompt: {{server: docs, name: review, arguments: {{page: "{{{{ inputs.page }}}}"}}}}
                attach: [gone.md, {{server: docs, uri: "docs://{{{{ inputs.page }}}}"}}]
              - {{id: two, prompt: Go on., continues: one}}
            """
        )
        shown = project.aish("plan", "p.yaml", "-i", "page=intro")
        view = project.aish("plan", "p.yaml", "-i", "page=intro", "--format", "json")
        asked = set(server.methods)
    assert shown.code == 0, shown.stderr
    assert shown.stdout[shown.stdout.index("  1. one") :].split("\n")[:4] == [
        "  1. one  prompt to `m`",
        '     prompt: `review` of the server `docs` with {"page": "intro"}',
        "     attach: gone.md",
        "     attach: docs://intro of `docs`",
    ]
    assert "     continues: one" in shown.stdout
    one, two = json.loads(view.stdout)["steps"]
    assert one["prompt"] == {"server": "docs", "name": "review", "arguments": {"page": "intro"}}
    assert one["attach"] == ["gone.md", {"server": "docs", "uri": "docs://intro"}]
    assert (two["needs"], two["continues"]) == (["one"], "one")
    assert not asked & {"resources/read", "prompts/get", "resources/list"}


def test_a_file_without_steps_is_for_looking_and_not_for_running(project: Project) -> None:
    project.pipeline("models: {a: {embedded: smollm2}}\n")
    assert project.aish("validate", "p.yaml").code == 0
    assert project.aish("tools", "p.yaml").code == 0
    for command in ("run", "plan", "test"):
        done = project.aish(command, "p.yaml")
        assert done.code == 2, command
        assert "the pipeline has no steps" in done.stdout + done.stderr, command
    done = project.aish("record", "p.yaml", "-o", "c.yaml")
    assert done.code == 2
    assert "the pipeline has no steps" in done.stderr
    assert not project.run_folders


def test_a_lock_notices_another_attachment_or_prompt_of_a_server(project: Project) -> None:
    head = "mcp: {servers: {docs: {command: [docs-server], required: false}}}\n"
    review = 'prompt: {server: docs, name: review}\nattach: [a.md, "docs://page/intro"]\n'
    project.pipeline(head + review)
    assert project.aish("lock", "p.yaml").code == 0
    assert project.aish("lock", "p.yaml", "--check").code == 0

    for change in (("a.md", "b.md"), ("name: review", "name: other"), ("docs://page", "docs://p")):
        project.pipeline(head + review.replace(*change))
        checked = project.aish("lock", "p.yaml", "--check")
        assert checked.code == 7
        assert "prompt of step main: changed" in checked.stdout
