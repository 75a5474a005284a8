"""A session is gone on with exactly as if it had never ended (S6)."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, http_server, stdio
from mcp_scenes import STDIO_SERVER
from model_endpoint import Gate, ModelEndpoint, Reply, hanging_reply, json_reply, text_reply
from samples import sampled
from shell_sessions import (
    APPROVED,
    FS,
    READ,
    accepted,
    at_terminal,
    messages,
    obedient,
    records,
    session_folders,
    sit,
)
from shell_terminal import ask, leave, sitting

ONE = "{base_url: '${MODEL_URL}', model: a}"
TWO_MODELS = f"models: {{a: {ONE}, b: {ONE.replace('model: a', 'model: b')}}}\nmodel: a\n"
NO_TOOL_ROLE = f"models: {{m: {ONE[:-1]}, tool_role: false}}}}\n"
LATEST = ("--resume", "latest")


@pytest.fixture
def endpoint(project: Project, model_endpoint: ModelEndpoints) -> ModelEndpoint:
    found: ModelEndpoint = model_endpoint(obedient)
    project.uses(found)
    project.write("data/note.txt", "milk\n")
    return found


@pytest.mark.requirement("S6")
@pytest.mark.parametrize(
    ("text", "before", "after"),
    sampled([
        ("", ["hello"], ["and you?"]),
        (APPROVED, [READ, "so"], ["and then?"]),
        (FS, [READ], ["denied, wasn't it?"]),
        ("", ["hello", "!echo waits", "!echo 'and too'"], ["what waits?"]),
        ("", ["!echo once", "hello"], ["nothing waits"]),
        ("", ["$echo nothing"], ["hello"]),
        ("", ["one", "two", ":undo"], ["three"]),
        ("", ["one", "!echo hi", "two"], [":undo", "three"]),
        ("", ["one", "!echo hi", "two"], [":retry", "three"]),
        ("", [":attach data/note.txt", "!echo hi", "two"], [":undo", "three"]),
        ("", ["one", ":undo"], [":undo", "three"]),
        ("", ["one", "!echo hi", ":clear"], ["two"]),
        ("", [":attach data/note.txt", "!echo hi"], ["what?"]),
        ("", [":attach data/note.txt", ":attach p.yaml"], ["what?"]),
        ("", [":attach data/note.txt"], [":attach p.yaml", "what?"]),
        ("", [":attach data/note.txt", ":attach off", ":attach p.yaml"], ["what?"]),
        ("", [":attach data/note.txt", ":clear"], ["what?"]),
        ("", [":attach data/note.txt", "one"], ["nothing goes out twice"]),
        ("", ["!echo hi", ":attach data/note.txt", "one", ":undo"], ["two"]),
        ("", ["!echo hi", "one", ":undo", "!echo so"], ["two"]),
        ("", ["!echo hi", "one", "!echo so", ":attach p.yaml", ":undo"], ["two"]),
        ("", [":attach data/note.txt", "1", "!echo hi", "2", ":undo", ":attach p.yaml"],
         [":undo", "so"]),
        ("", [":attach data/note.txt", ":attach p.yaml", "one"], [":undo", ":attach off", "two"]),
        ("", ["one", ":attach data/note.txt"], [":undo", "two"]),
        ("", ["one", ":clear", "!echo hi"], ["two"]),
        ("", ["one", "two", "three", ":compact"], ["four"]),
        ("", ["one", "two", "three", ":compact"], [":undo", "four"]),
        ("", [":attach data/note.txt", "what?"], ["and?"]),
        ("", ["SAY CMD: ls", "\u202e odd \x1b[31m ☃ 𝄞 {{ x }}"], ["and?"]),
        (TWO_MODELS,
         ["one", ":model b", "two"], ["three"]),
        (TWO_MODELS, ["one", ":model b"], ["two"]),
        (NO_TOOL_ROLE + APPROVED, [READ], ["so"]),
        ("context: {max_tokens: 1000}\n", ["one " * 300, "two " * 300, "more"], ["three " * 300]),
    ], often=range(1, 33, 5), reason="each is three sessions"),
)  # fmt: skip
def test_what_is_asked_next_is_what_an_uninterrupted_session_would_ask(
    project: Project, endpoint: ModelEndpoint, text: str, before: list[str], after: list[str]
) -> None:
    project.pipeline(text)
    whole = sit(project, *before, *after)
    expected = endpoint.asked[-1]
    assert "Traceback" not in whole.stderr
    sit(project, *before)

    sit(project, *after, args=LATEST)

    assert endpoint.asked[-1] == expected


def test_a_session_asks_the_model_that_was_chosen_and_not_the_one_that_stood_in(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    def answer(request: Any) -> Reply:
        refused = json_reply(503, {}, {"x-should-retry": "false"})
        return refused if request["model"] == "b" else text_reply("here")

    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    project.pipeline(TWO_MODELS.replace("model: b}", "model: b, fallback: [a]}"))
    assert sit(project, "one", args=("-m", "b")).code == 0

    assert sit(project, "two", args=LATEST).code == 0

    assert [asked["model"] for asked in endpoint.asked] == ["b", "a", "b", "a"]


@pytest.mark.slow(reason="runs three parts of a session")
def test_a_session_that_was_gone_on_with_twice_is_one_session(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline(APPROVED)
    sit(project, READ, "!echo one")
    sit(project, "two", "!echo two", args=LATEST)
    sit(project, "three", args=LATEST)

    (folder,) = session_folders(project)
    found = records(folder)
    assert [one["seq"] for one in found] == list(range(1, len(found) + 1))
    started = [one["step"] for one in found if one["type"] == "step.started"]
    assert started == ["line-1", "run-1", "line-2", "run-2", "line-3"]
    assert [one["type"] for one in found].count("run.started") == 3
    assert len(messages(endpoint.asked[-1])) == 7
    told = sit(project, ":cost", ":context", args=LATEST).stdout
    assert "4 turns, 28 tokens in, 12 out" in told


def test_limits_count_what_was_used_before(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline("limits: {turns: 3}\n")
    assert sit(project, "one", "two").code == 0

    done = sit(project, "three", "four", args=LATEST)

    assert len(endpoint.asked) == 3
    assert "limit of 3 turns is reached" in done.stderr
    assert done.code == 4


def test_what_was_shown_before_the_time_was_over_is_in_the_conversation(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    whole = text_reply("", pieces=["said so far", " and what nobody sees"])
    cut = whole.but(parts=(*itertools.islice(whole.parts, 2), Gate()))
    endpoint = model_endpoint([cut, text_reply("fine")])
    project.uses(endpoint)
    project.pipeline("limits: {time: 20s}\n")
    python = project.aish.python
    project.times_out(20, "late")
    with sitting(project) as window:
        ask(window, "question")
        window.wait_for("said so far")
        project.write("late", "")
        window.wait_for("the time limit of 20 s is exceeded")
        assert leave(window) == 0
    project.aish.python = python

    done = sit(project, "and now?", args=(*LATEST, "--set", "limits.time=1h"))

    assert done.code == 0, done.stderr
    asked, said, _ = messages(endpoint.asked[-1])
    assert asked["content"] == "question"
    assert said["content"] == "said so far\n\n[aish] stopped: the time limit of 20 s is exceeded"


def test_what_was_denied_is_counted_over_all_parts_of_a_session(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline(FS)
    sit(project, READ)
    sit(project, READ, args=LATEST)
    sit(project, "nothing denied", args=LATEST)

    (folder,) = session_folders(project)
    ends = [one["denials"] for one in records(folder) if one["type"] == "run.finished"]
    assert ends == [{"repo__file_read": count} for count in (1, 2, 2)]


def test_rules_of_a_session_do_not_come_back(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(FS)
    assert "milk" in sit(project, ":approve repo__*", READ).stdout

    done = sit(project, READ, ":approvals", ":help resume", args=LATEST)

    assert "denied" in done.stdout
    assert "no rules" in done.stdout
    assert "given anew" in done.stdout


def test_what_was_denied_stays_denied(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(APPROVED)
    assert "denied by rule" in sit(project, ":deny repo__*", READ).stdout

    done = sit(project, READ, ":approvals", args=LATEST)

    assert "denied by rule" in done.stdout
    assert "deny          repo__*" in done.stdout


def test_always_does_not_come_back(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(FS)
    with at_terminal(project) as window:
        window.type(f"{READ}\r")
        window.wait_for("[y/N/a/?]")
        window.type("a\r")
        window.wait_for("milk")
        window.type(":quit\r")
        assert window.finish() == 0

    assert "denied" in sit(project, READ, args=LATEST).stdout


@pytest.mark.slow(reason="runs two sessions")
def test_a_server_that_was_connected_is_connected_again_by_hand(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    call = 'CALL web__echo {"text": "hi there"}'
    with http_server() as url:
        sit(project, f":mcp connect {url} web", ":approve web__*", call)
        without = sit(project, "so?", call, ":export x.yaml", args=LATEST)
        assert "accepts it" in without.stdout, without.stderr
        assert endpoint.asked[-2].get("tools") is None
        done = sit(project, ":mcp connect web", "so?", ":export y.yaml", args=LATEST)
        assert f"web is connected: 8 tools, {url}" in done.stdout
        assert endpoint.asked[-1]["tools"]
    assert "accepts it" in done.stdout, done.stderr


@pytest.mark.slow(reason="runs several parts of a session")
def test_images_come_back(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(
        "models: {m: {base_url: '${MODEL_URL}', model: a, vision: true}}\n"
        "mcp: {servers: {web: {command: ["
        + _server()
        + "], trust: true}}, auto_approve: [web__*]}\n"
    )
    whole = ["CALL web__image {}", "and?"]
    sit(project, *whole)
    expected = endpoint.asked[-1]
    assert "image_url" in json.dumps(expected)
    sit(project, whole[0])

    sit(project, whole[1], args=LATEST)

    assert endpoint.asked[-1] == expected
    for picture in session_folders(project)[-1].glob("files/*png"):
        picture.unlink()
    done = sit(project, "again", args=LATEST)
    assert "is gone" in done.stderr
    assert "image_url" not in json.dumps(endpoint.asked[-1])


VISION = "models: {m: {base_url: '${MODEL_URL}', model: a, vision: true}}\n"


@pytest.mark.slow(reason="runs several parts of a session")
@pytest.mark.parametrize(
    ("before", "after"),
    sampled(
        [
            ([":attach docs://logo", ":attach data/note.txt"], ["what is it?"]),
            (["one", ":attach docs://logo", "two", ":undo"], ["what is it?"]),
            ([":attach data/note.txt", ":attach docs://logo", "one"], [":undo", "what is it?"]),
        ],
        often={0},
        reason="runs two sessions",
    ),
)
def test_an_attached_picture_waits_until_it_goes_out(
    project: Project, endpoint: ModelEndpoint, before: list[str], after: list[str]
) -> None:
    project.pipeline(VISION + "mcp: {servers: {kid: {command: " + stdio("--offers") + "}}}\n")
    sit(project, *before, *after)
    expected = endpoint.asked[-1]
    assert json.dumps(expected).count("image_url") == 2
    sit(project, *before)

    sit(project, ":context", args=LATEST)
    sit(project, *after, args=LATEST)

    assert endpoint.asked[-1] == expected
    said = sit(project, "and now?", args=LATEST)
    assert said.code == 0, said.stderr
    assert json.dumps(endpoint.asked[-1]).count("image_url") == 2


def test_an_attached_picture_that_is_gone_is_told_and_the_rest_goes_out(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline(VISION + "mcp: {servers: {kid: {command: " + stdio("--offers") + "}}}\n")
    sit(project, ":attach data/note.txt", ":attach docs://logo")
    for picture in session_folders(project)[-1].glob("files/*png"):
        picture.unlink()

    done = sit(project, "what is it?", args=LATEST)

    assert done.stderr.count("is gone") == 1
    assert done.code == 0, done.stderr
    (asked,) = messages(endpoint.asked[-1])
    assert "milk" in asked["content"]
    assert asked["content"].endswith("what is it?")


@pytest.mark.slow(reason="runs two sessions and their export")
def test_what_was_attached_before_is_exported_as_if_it_were_attached_now(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    sit(project, ":attach data/note.txt", "!echo hi", "one", ":undo")

    done = sit(project, "what?", ":export x.yaml", args=LATEST)

    assert "accepts it" in done.stdout, done.stderr
    asked = accepted(project, "x.yaml")["steps"][-1]
    assert (asked["id"], asked["attach"]) == ("line-2", ["data/note.txt"])


def _server() -> str:
    return f"{sys.executable}, {STDIO_SERVER}"


class Held:
    """A model that is obedient until it is told to hold."""

    def __init__(self) -> None:
        self.gate = Gate()

    def __call__(self, body: Any) -> Reply:
        if "HOLD" in json.dumps(body["messages"][-1]):
            return hanging_reply(self.gate)
        return obedient(body)


def killed(project: Project, lines: list[str], until: str) -> Path:
    """The folder of a session that was killed when its last line had come so far."""
    reading, writing = os.pipe()
    os.write(writing, "".join(f"{line}\n" for line in lines).encode())
    process = subprocess.Popen(
        [sys.executable, "-m", "aish", "shell", "p.yaml"],
        stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=project.folder, env=project.aish.env, start_new_session=True,
    )  # fmt: skip
    os.close(reading)
    assert process.stderr is not None
    for line in process.stderr:
        if until in line.decode():
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    os.close(writing)
    return session_folders(project)[-1]


def test_a_question_that_was_killed_without_an_answer_is_taken_back(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(Held())
    project.uses(endpoint)
    project.pipeline("")
    folder = killed(project, ["one", "!echo hi", "HOLD it"], "line-2: asking")

    done = sit(project, "and now?", args=("--resume", folder.name[-4:]))

    assert done.code == 0, done.stderr
    assert "is taken back" in done.stderr
    roles = [message["role"] for message in endpoint.asked[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert endpoint.asked[-1]["messages"][-1]["content"].endswith("[exit code 0]\n\nand now?")
    assert [one["step"] for one in records(folder) if one["type"] == "step.started"][-1] == "line-3"


@pytest.mark.slow(reason="runs two sessions")
def test_a_killed_question_can_be_asked_again(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    held = Held()
    endpoint = model_endpoint(held)
    project.uses(endpoint)
    project.pipeline("")
    killed(project, ["one", "!echo hi", "HOLD it"], "line-2: asking")
    held.gate.open()

    done = sit(project, ":retry", ":export x.yaml", args=LATEST)

    assert "accepts it" in done.stdout, done.stderr
    asked = endpoint.asked[-1]["messages"][-1]["content"]
    assert asked == "[local command: echo hi]\nhi\n[exit code 0]\n\nHOLD it"


@pytest.mark.slow(reason="runs several parts of a session")
@pytest.mark.parametrize("again", [":retry", ":context"])
def test_a_question_that_is_taken_back_waits_however_often_the_session_is_left(
    project: Project, model_endpoint: ModelEndpoints, again: str
) -> None:
    held = Held()
    endpoint = model_endpoint(held)
    project.uses(endpoint)
    project.pipeline("")
    project.write("note.txt", "milk\n")
    lines = ["one", "!echo hi", ":attach note.txt", "HOLD it"]
    killed(project, lines, "line-2: asking")
    held.gate.open()
    for _ in range(2):
        sit(project, ":context", args=LATEST)

    sit(project, again, "after", args=LATEST)

    asked = [message["content"] for message in messages(endpoint.asked[-1])]
    text = next(one for one in asked if "milk" in one)
    assert text.endswith("hi\n[exit code 0]\n\n" + ("HOLD it" if again == ":retry" else "after"))
    assert "".join(asked).count("milk") == "".join(asked).count("[exit code 0]") == 1


def test_a_question_that_failed_can_be_asked_again_in_the_next_part(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    refused = json_reply(400, {"error": {"message": "no"}})
    endpoint = model_endpoint([text_reply("fine"), refused, text_reply("now it works")])
    project.uses(endpoint)
    project.pipeline("")
    project.write("note.txt", "milk\n")
    sit(project, "one", ":attach note.txt", "!echo hi", "two")

    done = sit(project, ":retry", args=LATEST)

    assert "now it works" in done.stdout, done.stderr
    assert endpoint.asked[-1] == endpoint.asked[-2]


def test_a_question_that_was_undone_is_not_asked_again_in_the_next_part(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    sit(project, "one", "two", ":undo")
    sit(project, ":retry", args=LATEST)
    assert messages(endpoint.asked[-1]) == [{"role": "user", "content": "one"}]
    sit(project, ":undo", args=LATEST)

    assert "no question in this conversation" in sit(project, ":retry", args=LATEST).stderr


def test_a_session_that_was_killed_in_a_call_knows_that_nobody_answered_it(
    project: Project, endpoint: ModelEndpoint
) -> None:
    sleeping = "mcp: {servers: {web: {command: [" + _server() + "]}}, auto_approve: [web__*]}\n"
    project.pipeline(sleeping)
    folder = killed(project, ["one", 'CALL web__sleep {"ms": 60000}'], "tool web__sleep")

    done = sit(project, "and now?", args=LATEST)

    assert done.code == 0, done.stderr
    said = endpoint.asked[-1]["messages"]
    roles = [message["role"] for message in said]
    assert roles == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert said[5]["content"] == "[aish] interrupted before this call was answered"
    again = sit(project, "and now?", args=("--resume", folder.name))
    assert again.code == 0, again.stderr
    assert endpoint.asked[-1]["messages"][: len(said)] == said


@pytest.mark.slow(
    reason="kills a session and resumes it; one killed in a call is in the test above"
)
def test_a_session_that_was_killed_while_a_command_ran(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    killed(project, ["one", "!echo before; sleep 60"], "run-1: tool shell__run")

    done = sit(project, "!echo hi", "and now?", args=LATEST)

    assert done.code == 0, done.stderr
    assert endpoint.asked[-1]["messages"][-1]["content"].startswith("[local command: echo hi]")


@pytest.mark.linux_forms  # the message names the process
def test_a_session_that_somebody_is_in_is_refused(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    with at_terminal(project) as window:
        window.type("one\r")
        window.wait_for("<2: one>")
        (folder,) = session_folders(project)
        done = sit(project, "two", args=("--resume", folder.name))
        assert done.code == 2, done.stdout
        assert "this session is open elsewhere, by process" in done.stderr
        window.type(f":resume {folder.name}\r")
        window.wait_for("this is the current session")
        window.type(":resume nonesuch\r")
        window.wait_for("unknown session `nonesuch`")
        window.type("two\r")
        window.wait_for("<4: two>")
        window.type(":quit\r")
        assert window.finish() == 0


def test_another_session_is_gone_on_with_from_within_one(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    sit(project, "one", "!echo waits")
    (first,) = session_folders(project)

    done = sit(project, "two", f":resume {first.name[-4:]}", "three", ":sessions")

    assert done.code == 0, done.stderr
    assert messages(endpoint.asked[-1])[0]["content"] == "one"
    assert "waits" in endpoint.asked[-1]["messages"][-1]["content"]
    marks = [line[0] for line in done.stdout.splitlines() if "Z-p-" in line]
    assert sorted(marks) == [" ", "*"]


def test_the_sessions_of_other_pipelines_are_no_session_of_this_one(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("", name="q.yaml")
    project.pipeline("")
    sit(project, "mine")
    project.aish("shell", "q.yaml", stdin="theirs\n")
    theirs = next(path for path in session_folders(project) if "-q-" in path.name)

    assert sit(project, "and?", args=LATEST).code == 0
    assert messages(endpoint.asked[-1])[0]["content"] == "mine"
    done = sit(project, "and?", args=("--resume", theirs.name))
    assert done.code == 2
    assert "a session on `q`, not on `p`" in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [("latest", "no sessions to resume"), ("abcd", "no sessions to resume")],
)
def test_there_is_nothing_to_go_on_with(
    project: Project, endpoint: ModelEndpoint, name: str, said: str
) -> None:
    project.pipeline("")

    done = sit(project, "hello", args=("--resume", name))

    assert (done.code, endpoint.asked) == (2, [])
    assert said in done.stderr
    assert not (project.folder / ".aish").exists()
    sit(project, "hello")
    assert "unknown session" in sit(project, "x", args=("--resume", "nonesuch")).stderr


def test_a_damaged_journal_is_not_gone_on_with(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline("")
    sit(project, "one", "two")
    (folder,) = session_folders(project)
    journal = folder / "events.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole.replace(b'"text":"one"', b'"text":"six"'))

    done = sit(project, "three", args=LATEST)

    assert done.code == 2, done.stderr
    assert "events.jsonl" in done.stderr
    assert len(endpoint.asked) == 2
    listed = sit(project, ":sessions")
    assert "cannot be read" in listed.stdout
    # A last line that was not written whole is what a kill leaves.
    journal.write_bytes(whole[:-20])
    assert sit(project, "three", args=("--resume", folder.name)).code == 0
    assert len(messages(endpoint.asked[-1])) == 5


def test_a_session_in_which_nothing_was_done_is_not_the_one_to_go_on_with(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    sit(project, "one")
    (spoken,) = session_folders(project)
    sit(project)
    sit(project, ":help", ":cost")
    listed = sit(project, ":sessions").stdout.splitlines()

    done = sit(project, "two", ":sessions", args=LATEST)

    assert len(session_folders(project)) == 4
    assert len(listed) == 2
    assert spoken.name in listed[1]
    assert done.code == 0, done.stderr
    assert [one["content"] for one in messages(endpoint.asked[-1])][::2] == ["one", "two"]


def test_planted_links_are_not_followed(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline("")
    sit(project, "one")
    aside = project.folder.parent / "aside"
    (project.folder / ".aish").rename(aside)
    (project.folder / ".aish").symlink_to(aside)

    for args in (LATEST, ()):
        done = sit(project, "two", args=args)
        assert done.code == 2, done.stdout
        assert "link" in done.stderr
    assert len(endpoint.asked) == 1
    (project.folder / ".aish").unlink()
    aside.rename(project.folder / ".aish")
    (folder,) = session_folders(project)
    folder.rename(aside)
    folder.symlink_to(aside)
    assert sit(project, "two", args=("--resume", folder.name)).code == 2


def test_sessions_are_listed_with_what_they_began_with(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    sit(project, "!echo hi", "what\tis \x1b[31mthis", "and more")

    listed = sit(project, ":sessions").stdout

    rows = [line for line in listed.splitlines() if "Z-p-" in line]
    assert len(rows) == 2
    assert "2 lines" in rows[1]
    assert "this" in rows[1]
    assert "\x1b" not in listed


def test_a_question_of_several_lines_is_listed_with_its_first_one(
    project: Project, endpoint: ModelEndpoint
) -> None:
    del endpoint
    project.pipeline("")
    with at_terminal(project) as window:
        window.type("\x1b[200~the first line\nthe second line\x1b[201~")
        window.wait_for("the second line")
        window.type("\r")
        window.wait_for("<2: the first line")
        window.type(":quit\r")
        assert window.finish() == 0

    listed = sit(project, ":sessions").stdout

    assert "1 line  " in listed
    assert "the first line" in listed
    assert "second" not in listed


def test_a_secret_on_the_tape_does_not_end_a_session(
    project: Project, endpoint: ModelEndpoint
) -> None:
    token = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z2a"
    project.write("data/note.txt", f"token {token}\n")
    project.pipeline(APPROVED)

    done = sit(project, READ, "and then?")

    assert done.code == 0, done.stderr
    assert "no cassette is kept" in done.stderr
    kept = [path for path in session_folders(project)[0].iterdir() if "recording" in path.name]
    assert all(token not in path.read_text() for path in kept)
    assert sit(project, "and?", args=LATEST).code == 0


@pytest.mark.slow(reason="runs a session on a full disk")
def test_a_full_disk_does_not_end_a_session(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(APPROVED)
    project.write("data/note.txt", "milk\n" * 2000)
    project.through_shell('ulimit -f 40; exec "$@"')

    done = sit(project, READ, "two", "three", READ, "five")

    assert len(endpoint.asked) >= 6, done.stderr
    assert "Traceback" not in done.stderr


def test_a_long_session_keeps_its_conversation_once(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    done = sit(project, *[f"the {number}th question" for number in range(30)])

    assert done.code == 0, done.stderr
    (folder,) = session_folders(project)
    recording = (folder / "recording-1.yaml").read_text()
    assert recording.count("uri: http") == 30
    assert recording.count("the 0th question") == 1  # which the model has said back


@pytest.mark.slow(reason="runs several parts of a session")
def test_a_session_whose_journal_ends_in_nul_bytes_goes_on_and_says_so(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(Held())
    project.uses(endpoint)
    project.pipeline("")
    folder = killed(project, ["one", "HOLD it"], "line-2: asking")
    with (folder / "events.jsonl").open("ab") as journal:
        journal.write(b"\0" * 4096)

    done = sit(project, "and now?", args=("--resume", folder.name))

    assert done.code == 0, done.stderr
    assert "the journal ends in 4,096 bytes that are not a whole record" in done.stderr
    assert (folder / "events.jsonl.torn").read_bytes() == b"\0" * 4096 + b"\n"
    assert endpoint.asked[-1]["messages"][1]["content"] == "one"
