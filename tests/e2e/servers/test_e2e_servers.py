"""What servers may do besides answering: ask, report progress, send pictures, change."""

import json

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import Gate, text_reply, tool_reply

SAMPLE = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "What is 1 + 1?"}}],
        "maxTokens": 20,
    },
}


@pytest.mark.requirement("M11")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("sampling", ["allow", "deny"])
def test_a_server_may_ask_the_steps_model_only_where_the_file_says_so(
    project: Project, model_endpoint: ModelEndpoints, era: str, sampling: str
) -> None:
    endpoint = model_endpoint([tool_reply([("c1", "s__ask_client", json.dumps(SAMPLE))])])
    if sampling == "allow":
        endpoint.queue(text_reply("two, I think"))
    endpoint.queue(text_reply("done"))
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio("--asks", "--era", era)}, sampling: {sampling}}}}}
          auto_approve: ["s__*"]
        prompt: Use your tools
        """
    )

    found = project.result()

    assert found["exit"]["code"] == 0, found
    (call,) = found["steps"]["main"]["tool_calls"]
    if sampling == "allow":
        assert "two, I think" in call["content"]
        sampled = endpoint.asked[1]
        assert sampled["messages"][-1]["content"] == "What is 1 + 1?"
        assert "tools" not in sampled
    else:
        assert "two, I think" not in call["content"]
        assert len(endpoint.asked) == 2


@pytest.mark.requirement("M9")
def test_progress_is_an_event(project: Project) -> None:
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio("--asks")}}}}}, auto_approve: [s__count]}}
        steps: [{{id: it, call: s__count, with: {{steps: 3}}}}]
        """
    )

    done = project.run("--format", "jsonl")

    assert done.code == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    told = of_type(events, "tool.progress")
    assert [(e["progress"], e["total"], e["message"]) for e in told][-1] == (3, 3, "step 3")


@pytest.mark.requirement("M7", "X9")
def test_a_picture_goes_to_the_run_folder_and_a_line_to_the_model(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([tool_reply([("c1", "s__image", "{}")]), text_reply("nice")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__image]}}
        prompt: Use your tools
        """
    )

    done = project.run()

    assert done.code == 0, done.stderr
    (folder,) = project.run_folders
    (picture,) = (folder / "files").iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert oct(picture.stat().st_mode & 0o777) == "0o600"
    reply = endpoint.asked[1]["messages"][-1]
    assert reply["role"] == "tool"
    assert "image/png" in reply["content"]
    assert f"saved as files/{picture.name}" in done.stderr


@pytest.mark.requirement("M6", "L2")
def test_a_model_is_shown_the_tools_its_step_names_as_they_are_now(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    first = [("c1", "s__echo", '{"text": "x"}')]
    changed = Gate()
    waiting = text_reply("a").but(before_head=changed)
    endpoint = model_endpoint([tool_reply(first), waiting, text_reply("b")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp:
          servers:
            s: {{command: {stdio("--change-tools")}, exclude: [fail, rpc_error]}}
            t: {{command: {stdio()}, tools: [echo, add]}}
          auto_approve: ["s__*"]
        steps:
          - {{id: one, prompt: Use your tools, tool_choice: s__echo}}
          - {{id: two, needs: [one], prompt: Use your tools again, tools: ["*__add*", t__echo]}}
        """
    )

    running = project.aish.start("run", "p.yaml")
    running.wait_for_line("tools_changed")
    changed.open()
    done = running.finish()

    assert done.code == 0, done.stderr
    before, _, after = endpoint.asked
    offered = {tool["function"]["name"] for tool in before["tools"]}
    assert offered == {
        *(f"s__{n}" for n in ("echo", "add", "sleep", "big", "image", "crash")),
        "t__echo",
        "t__add",
    }
    assert before["tool_choice"] == {"type": "function", "function": {"name": "s__echo"}}
    assert {tool["function"]["name"] for tool in after["tools"]} == {
        "s__add",
        "s__added",
        "t__add",
        "t__echo",
    }


@pytest.mark.requirement("K4", "K5", "X9")
def test_a_pack_stays_in_its_root(project: Project) -> None:
    project.write("outside.txt", "outside")
    project.write("in/inside.txt", "inside")
    (project.folder / "in" / "link").symlink_to("../outside.txt")
    project.pipeline(
        "mcp: {servers: {r: {pack: [fs], root: in}}, auto_approve: ['r__*']}\nrun: [ls]"
    )

    inside = project.aish("call", "p.yaml", "r__file_read", "path=inside.txt")
    outside = [
        project.aish("call", "p.yaml", "r__file_read", f"path={path}")
        for path in ("../outside.txt", "link", str(project.folder / "outside.txt"))
    ]

    assert (inside.code, inside.stdout) == (0, "inside\n")
    for done in outside:
        assert (done.code, done.stdout) == (1, "")
