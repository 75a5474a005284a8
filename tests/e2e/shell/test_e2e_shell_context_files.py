"""Files that stay current in a session: its conversation is one (K82 to K85)."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Reply, json_reply, text_reply, tool_reply

PIPELINE = """
mcp: {servers: {box: {pack: [edit], root: .}}, auto_approve: [box__file_edit]}
context: {files: "*.py"}
"""
OPENING = (
    "[attached: a.py (text/plain)]\nn = 1\n[end of a.py]\n\n[aish] changes to these files will be"
    " shown between `[aish files updated TAG]` and `[end TAG]`\n\n"
)


def edit(old: str, new: str) -> Reply:
    arguments = json.dumps({"path": "a.py", "old_text": old, "new_text": new})
    return tool_reply([(f"c{new}", "box__file_edit", arguments)])


def then(reply: Reply, act: Callable[[], object]) -> Callable[[Any], Reply]:
    def answer(_: Any) -> Reply:
        act()
        return reply

    return answer


def last(endpoint: Any, number: int) -> str:
    """The last message of a request, without the tag."""
    text: str = endpoint.asked[number]["messages"][-1]["content"]
    return re.sub(r"\b[0-9a-f]{12}\b", "TAG", text)


def update(old: int, new: int) -> str:
    head = "[aish files updated TAG]\n[aish TAG] a.py: changed\n@@ -1 +1 @@\n"
    return f"{head}-n = {old}\n+n = {new}\n[end TAG]"


@pytest.fixture
def session(project: Project) -> Project:
    project.write("a.py", "n = 1\n")
    project.pipeline(PIPELINE)
    return project


@pytest.mark.requirement("K83")
def test_a_session_shows_files_with_its_first_question_and_then_what_changes(
    session: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(
        [
            edit("n = 1", "n = 2"),
            then(text_reply("One."), lambda: session.write("a.py", "n = 3\n")),
            text_reply("Two."),
            text_reply("Three."),
        ]
    )
    session.uses(endpoint)

    done = session.aish("shell", "p.yaml", stdin="First?\nSecond?\nThird?\n")

    assert (done.code, done.stdout) == (0, "One.\nTwo.\nThree.\n"), done.stderr
    assert last(endpoint, 0) == f"{OPENING}First?"
    assert last(endpoint, 1).endswith(f"\n{update(1, 2)}")
    assert last(endpoint, 2) == f"{update(2, 3)}\n\nSecond?"
    assert last(endpoint, 3) == "Third?"
    assert len(set(re.findall(r"files updated ([0-9a-f]{12})", json.dumps(endpoint.asked)))) == 1


def test_another_conversation_begins_with_the_files_again(
    session: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("One."), text_reply("Two.")])
    session.uses(endpoint)

    done = session.aish("shell", "p.yaml", stdin="First?\n:clear\nSecond?\n")

    assert done.code == 0, done.stderr
    assert [last(endpoint, number) for number in (0, 1)] == [
        f"{OPENING}First?",
        f"{OPENING}Second?",
    ]


def test_a_question_that_is_asked_again_has_the_files_once(
    session: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(
        [json_reply(400, {"error": {"message": "not now"}}), text_reply("Two.")]
    )
    session.uses(endpoint)

    done = session.aish("shell", "p.yaml", stdin="First?\n:retry\n")

    assert "Two.\n" in done.stdout
    assert last(endpoint, 1) == f"{OPENING}First?"


def test_a_resumed_session_has_the_tag_of_its_journal(
    session: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("One."), text_reply("Two.")])
    session.uses(endpoint)
    assert session.aish("shell", "p.yaml", stdin="First?\n").code == 0

    done = session.aish("shell", "p.yaml", "--resume", stdin="Second?\n")

    assert done.code == 0, done.stderr
    assert last(endpoint, 1) == f"{OPENING}Second?"
    assert len(set(re.findall(r"files updated ([0-9a-f]{12})", json.dumps(endpoint.asked)))) == 1


def test_what_cannot_be_shown_fails_the_question(
    session: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([])
    session.uses(endpoint)
    session.pipeline("context: {files: missing.md}\n")

    done = session.aish("shell", "p.yaml", stdin="First?\n")

    assert done.code == 1
    assert "there is no file `missing.md`" in done.stderr
    assert endpoint.asked == []


@pytest.mark.requirement("S7")
def test_an_exported_session_keeps_the_files_as_they_were_sent(
    session: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([edit("n = 1", "n = 2"), text_reply("One.")])
    session.uses(endpoint)

    done = session.aish("shell", "p.yaml", stdin="First?\n:export out.yaml\n")

    assert done.code == 0, done.stderr
    exported = (session.folder / "out.yaml").read_text("utf-8")
    assert "[attached: a.py (text/plain)]" in exported
    tested = session.aish("test", "out.yaml")
    assert tested.code == 0, tested.stdout + tested.stderr
