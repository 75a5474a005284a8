"""A session becomes a pipeline: its steps, its narrowest rules, a cassette that passes (S7)."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, http_server, stdio
from mcp_offered_resources import PICTURE
from mcp_scenes import STDIO_SERVER
from model_endpoint import (
    Gate,
    ModelEndpoint,
    delta,
    json_reply,
    sse,
    stream_reply,
    text_reply,
)
from samples import sampled
from shell_sessions import APPROVED, FS, READ, accepted, at_terminal, obedient, session_folders, sit
from shell_terminal import at_prompt

from aish.system.files import file_mode

OTHER = 'CALL repo__file_read {"path": "other.txt"}'
LIST = 'CALL repo__dir_list {"path": "."}'

MORE_SESSIONS = "each is a session, its export and three runs of it"


@pytest.fixture
def endpoint(project: Project, model_endpoint: ModelEndpoints) -> ModelEndpoint:
    found: ModelEndpoint = model_endpoint(obedient)
    project.uses(found)
    project.write("data/note.txt", "milk\n")
    project.write("data/other.txt", "eggs\n")
    return found


def exported(project: Project, *lines: str, **options: Any) -> Any:
    """The file of a session of these lines, which passes."""
    done = sit(project, *lines, ":export x.yaml", **options)
    assert "accepts it" in done.stdout, done.stderr
    return accepted(project, "x.yaml")


def refused(project: Project, *lines: str, name: str = "x.yaml", **options: Any) -> str:
    """What is said of a session that is not exported; nothing is written."""
    before = {path for path in project.folder.rglob("*") if ".aish" not in path.parts}
    done = sit(project, *lines, f":export {name}", **options)
    assert done.code == 1, done.stdout
    after = {path for path in project.folder.rglob("*") if ".aish" not in path.parts}
    assert after == before
    return done.stderr[done.stderr.index("error: ") :]


def says_the_same(project: Project, endpoint: ModelEndpoint) -> None:
    """Run live, the file asks what the session asked, and is answered the same."""
    last = endpoint.asked[-1]
    done = project.aish("run", "x.yaml")
    assert done.code == 0, done.stderr
    assert endpoint.asked[-1]["messages"] == last["messages"]
    assert endpoint.asked[-1].get("tools") == last.get("tools")


def ids(data: Any) -> list[str]:
    return [step["id"] for step in data["steps"]]


@pytest.mark.parametrize(
    ("text", "lines", "steps"),
    sampled([
        ("", ["hello"], ["line-1"]),
        ("", ["hello", "and again"], ["line-1", "line-2"]),
        (APPROVED, [READ, "and then?"], ["line-1", "line-2"]),
        (FS, [READ, "denied, wasn't it?"], ["line-1", "line-2"]),
        ("", ["!echo hi", "what is it?"], ["run-1", "line-1"]),
        ("", ["h", "!echo 1; echo 2 >&2", "!echo 3", "so"], ["line-1", "run-1", "run-2", "line-2"]),
        ("", ["!exit 3", "!printf 'a\\r\\nb\\t'", "what"], ["run-2", "line-1"]),
        ("", ["!false", "!nonesuch-command", "what"], ["line-1"]),
        ("", ["!seq 1 40000", "what?"], ["line-1"]),
        ("", ["$echo no", "what?"], ["line-1"]),
        ("", ["!echo \u2028 ☃ \\033[31m", "what?"], ["run-1", "line-1"]),
        ("", ["one", "two", ":undo", "three", ":retry"], ["line-1", "line-4"]),
        ("", ["one", "two", ":undo", ":undo", "three"], ["line-3"]),
        ("", ["one", "!echo hi", "two", ":undo", "three"], ["line-1", "run-1", "line-3"]),
        ("", ["!echo 1", "one", "!echo 2", ":undo", "two"], ["run-1", "run-2", "line-2"]),
        ("", ["one", "!echo hi", ":clear", "two"], ["line-2"]),
        ("", ["!date +%Y", "one", "!date +%Y", "two"], ["run-1", "line-1", "run-2", "line-2"]),
        ("", [":attach data/note.txt", "what?", ":attach data/other.txt", "and?"], None),
        ("", [":attach data/note.txt", "what?", ":undo", "and what?"], ["line-2"]),
        ("", [":attach /etc/hostname", "!echo hi", "what?"], ["line-1"]),
        ("", ["what is {{ this }} and {% raw %} {# x #}", "{{", "!echo '{{ a }}'", "{%"], None),
        ("", ["naïve \u202e \u200b ☃ 𝄞", "\x1b[31m red \x07", "tab\tin", "yes", "- a: b"], None),
        ("", [" :no command", "123", "null", "so's \"it\"", "#{", "a \\ b", "---", "\ufeff"], None),
        ("shell: {run: [/bin/sh, -euc]}\n", ["!echo hi", "what?"], ["run-1", "line-1"]),
        ("mcp: {result_limit: 1KiB}\n", ["!seq 1 4000", "what?"], ["line-1"]),
        ("limits: {turns: 9, tokens: 5000}\n", ["hello"], None),
        ("context: {max_tokens: 4000}\n", ["hello", "and again"], None),
        ("shell: {cmd_lines: false}\n", ["SAY CMD: ls", "and again"], None),
    ], often={2, 5, 11, 24}, reason=MORE_SESSIONS),
)  # fmt: skip
def test_what_a_session_did_is_done_again_from_its_export(
    project: Project, endpoint: ModelEndpoint, text: str, lines: list[str], steps: list[str] | None
) -> None:
    model = 'models: {m: {base_url: "${MODEL_URL}", model: s, params: {max_tokens: 100}}}\n'
    project.pipeline((model if "limits" in text else "") + text)

    data = exported(project, *lines)

    assert steps is None or ids(data) == steps
    says_the_same(project, endpoint)


def test_the_rules_approve_the_calls_that_were_made_and_no_others(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline(FS)

    data = exported(project, OTHER, ":approve repo__*", READ, LIST, "!echo hi", "done?")

    rules = data["mcp"]["auto_approve"]
    assert [rule["tool"] for rule in rules] == ["repo__file_read", "repo__dir_list", "shell__run"]
    assert data["on_denied"] == "continue"
    path = project.folder / "x.yaml"
    path.write_text(path.read_text().replace('"note.txt\\"}', '"third.txt\\"}'))
    live = project.aish("run", "x.yaml")
    assert live.code == 0, live.stderr
    assert "2 denied" in live.stderr
    assert "eggs" not in json.dumps([body["messages"] for body in endpoint.asked])


def test_the_file_is_pleasant_to_review(
    project: Project, endpoint: ModelEndpoint, snapshot: Any
) -> None:
    project.pipeline(
        APPROVED.replace("]}", "], deny: [repo__file_delete, '*__drop']}") + "limits: {turns: 50}"
    )
    lines = [READ, "!echo hi", "!false", "What do you say?\\", ":attach /etc/hostname", "And this?"]

    exported(project, *lines, ":attach data/note.txt", "And that?")

    text = (project.folder / "x.yaml").read_text()
    host = Path("/etc/hostname").read_text(encoding="utf-8").strip()
    # On its own line: the name of a machine may be any word.
    assert text.replace(f"\n      {host}\n", "\n      <host>\n") == snapshot
    assert (project.folder / "x.yaml").stat().st_mode & 0o777 == file_mode(Path("none"))
    assert (project.folder / "x.cassette.yaml").stat().st_mode & 0o777 == file_mode(Path("none"))


@pytest.mark.slow(reason="runs a session and its export")
def test_two_models_are_both_in_the_file(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(
        """
        models:
          small: {base_url: "${MODEL_URL}", model: s}
          never: {base_url: "${MODEL_URL}", model: n}
          large: {base_url: "${MODEL_URL}", model: l, fallback: [small]}
        model: small
        """
    )

    data = exported(project, "hello", ":model large", "and you?", ":model small", "and now?")

    assert (list(data["models"]), data["model"]) == (["small", "large"], "small")
    assert [step.get("model") for step in data["steps"]] == [None, "large", None]
    says_the_same(project, endpoint)
    assert [body["model"] for body in endpoint.asked[-3:]] == ["s", "l", "s"]


@pytest.mark.slow(reason="runs a session and its export")
def test_a_server_that_came_and_went_is_in_the_file_for_who_was_shown_it(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline(FS)
    with http_server() as url:
        call = 'CALL web__echo {"text": "hi there"}'
        lines = ["hello", f":mcp connect {url} web", ":approve web__*", call, ":mcp disconnect web"]
        data = exported(project, *lines, "still there?")

        assert data["mcp"]["servers"]["web"] == {"url": url}
        assert [step.get("tools") for step in data["steps"]] == [["repo__*"], None, ["repo__*"]]
        assert data["mcp"]["auto_approve"][0]["tool"] == "web__echo"
        says_the_same(project, endpoint)


@pytest.mark.slow(reason="runs a session and its export")
def test_a_server_that_no_model_was_shown_is_left_out(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("mcp: {servers: {repo: {pack: fs, root: .}}, deny: [repo__file_delete]}\n")

    data = exported(project, ":mcp disconnect repo", "hello")

    assert "mcp" not in data


@pytest.mark.slow(reason="runs a session and its export")
def test_retries_and_other_models_that_answer_in_their_stead_leave_no_trace(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    busy = json_reply(429, {"error": {"message": "later"}}, {"retry-after": "0"})
    gone = json_reply(401, {"error": {"message": "no"}})
    first = model_endpoint([busy, text_reply("at last"), gone, gone, gone, gone])
    second = model_endpoint([text_reply("me instead")])
    project.uses(first)
    project.aish.env["OTHER_URL"] = second.base_url
    project.pipeline(
        """
        models:
          one: {base_url: "${MODEL_URL}", model: s, fallback: [two]}
          two: {base_url: "${OTHER_URL}", model: s}
        model: one
        """
    )

    data = exported(project, "hello", "are you there?")

    assert data["model"] == "one"
    assert [step.get("model") for step in data["steps"]] == [None, "two"]


@pytest.mark.slow(reason="runs a session and its export")
def test_what_a_person_decides_at_the_terminal_is_exported(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline(FS)
    with at_terminal(project) as window:
        window.type(f"{READ}\r")
        window.wait_for("[y/N/a/?]")
        window.type("y\r")
        window.wait_for("milk")
        window.type('CALL repo__file_read {"path": "other.txt"}\r')
        window.wait_for("other.txt")
        window.wait_for(lambda: window.text.count("[y/N/a/?]") == 2)
        window.type("n\r")
        window.wait_for("denied")
        window.type("SAY CMD: echo proposed\r")
        window.wait_for("[y/N/e]")
        window.type("y\r")
        window.wait_for("exit 0")
        window.type(":export x.yaml\r")
        window.wait_for("accepts it")
        window.type("so?\r")
        window.wait_for("so?>")
        window.type(":export y.yaml\r")
        window.wait_for("`aish test y.yaml`")
        window.type(":quit\r")
        assert window.finish() == 0

    assert ids(accepted(project, "x.yaml")) == ["line-1", "line-2", "line-3"]
    data = accepted(project, "y.yaml")
    assert ids(data) == ["line-1", "line-2", "line-3", "run-1", "line-4"]
    assert [rule["tool"] for rule in data["mcp"]["auto_approve"]] == [
        "repo__file_read",
        "shell__run",
    ]


@pytest.mark.slow(reason="runs a session and its export")
def test_what_was_interrupted_is_left_out_and_said(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    broken = json_reply(400, {"error": {"message": "no such thing"}})
    project.uses(model_endpoint([text_reply("one"), broken, text_reply("three")]))
    project.pipeline("")

    done = sit(project, "hello", "fails", "and again", ":export x.yaml")

    assert "accepts it" in done.stdout, done.stderr
    assert ids(accepted(project, "x.yaml")) == ["line-1", "line-3"]


@pytest.mark.slow(reason="runs a session and its export")
def test_a_summary_is_told_of(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline("")

    done = sit(project, "one", "two", "three", ":compact", "four", ":export x.yaml")

    assert "note: the file sends the full conversation" in done.stdout
    assert ids(accepted(project, "x.yaml")) == ["line-1", "line-2", "line-3", "line-5"]
    done = sit(project, "one", "two", "three", ":compact", ":clear", "four", ":export y.yaml")
    assert "accepts it" in done.stdout, done.stderr
    assert ids(accepted(project, "y.yaml")) == ["line-5"]


@pytest.mark.slow(reason="runs sessions and their export")
def test_a_resumed_session_is_exported_whole(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(APPROVED)
    assert sit(project, READ, "!echo hi").code == 0
    assert sit(project, "what?", args=("--resume", "latest")).code == 0

    data = exported(project, "and now?", args=("--resume", "latest"))

    assert ids(data) == ["line-1", "run-1", "line-2", "line-3"]
    says_the_same(project, endpoint)


@pytest.mark.slow(reason="runs sessions and their export")
def test_a_resumed_session_knows_where_a_server_was_that_is_not_connected_any_more(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    call = 'CALL web__echo {"text": "hi there"}'
    with http_server() as url:
        lines = [f":mcp connect {url} web", ":approve web__*", call]
        assert sit(project, *lines).code == 0
        assert sit(project, "still there?", args=("--resume", "latest")).code == 0

        data = exported(project, "and now?", args=("--resume", "latest"))

        assert data["mcp"]["servers"] == {"web": {"url": url}}
        assert [step.get("tools") for step in data["steps"]] == [None, [], []]
        says_the_same(project, endpoint)


@pytest.mark.slow(reason="runs a session and its export")
def test_a_server_that_was_started_by_its_command_is_exported_where_it_stood(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    (project.folder / "ci").mkdir()
    call = 'CALL clock__echo {"text": "hi there"}'
    command = json.loads(stdio("--era", "both"))
    lines = [f":mcp connect clock -- {' '.join(command)}", ":approve clock__*", call]
    assert sit(project, *lines).code == 0

    again = sit(
        project,
        ":mcp connect clock",
        "and now?",
        ":export ci/y.yaml",
        ":export x.yaml",
        args=("--resume", "latest"),
    )

    assert again.stdout.count("accepts it") == 2, again.stderr
    assert accepted(project, "x.yaml")["mcp"]["servers"] == {"clock": {"command": command}}
    away = accepted(project, "ci/y.yaml")["mcp"]["servers"]["clock"]
    assert away == {"command": command, "cwd": ".."}
    says_the_same(project, endpoint)


def test_a_server_whose_url_held_a_key_has_to_be_connected_again(
    project: Project, endpoint: ModelEndpoint
) -> None:
    del endpoint
    project.pipeline("")
    with http_server() as url:
        assert sit(project, f":mcp connect {url}?token=correct-horse-battery web", "a").code == 0
        said = refused(project, "b", args=("--resume", "latest"))
    assert "the address of the server `web` is unknown in this part of the session" in said


@pytest.mark.slow(reason="kills a session and runs its export")
def test_a_killed_session_is_exported_from_what_it_had_recorded(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline(APPROVED)
    with project.aish.start("shell", "p.yaml", stdin=None) as running:
        assert running.finish().code == 0
    with at_terminal(project) as window:
        window.type(f"{READ}\r")
        window.wait_for("milk")
        window.type("!echo hi\r")
        window.wait_for("exit 0")
        window.type("and then?\r")
        window.wait_for("and then?>")
        window.wait_for(at_prompt(window))  # what is shown may not have been recorded yet
        os.kill(window.child.pid, 9)
    (folder,) = (path for path in session_folders(project) if list(path.glob("*.partial")))

    data = exported(project, "more", args=("--resume", folder.name))

    assert ids(data) == ["line-1", "run-1", "line-2", "line-3"]


@pytest.mark.slow(reason="runs a session and its export")
def test_a_file_in_another_folder_means_the_same_folders(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("mcp: {servers: {repo: {pack: fs, root: .}}}\n")
    (project.folder / "ci" / "jobs").mkdir(parents=True)
    call = 'CALL repo__file_read {"path": "data/note.txt"}'
    lines = [":approve repo__*", call, "!echo hi", ":attach data/other.txt", "so?"]

    done = sit(project, *lines, ":export ci/jobs/x.yaml")

    assert "accepts it" in done.stdout, done.stderr
    data = accepted(project, "ci/jobs/x.yaml")
    assert data["mcp"]["servers"]["repo"] == {"pack": "fs", "root": "../.."}
    assert ids(data) == ["line-1", "line-2"]
    last = endpoint.asked[-1]["messages"]
    assert project.aish("run", "ci/jobs/x.yaml").code == 0
    assert endpoint.asked[-1]["messages"] == last


@pytest.mark.slow(reason="runs a session and its export")
def test_a_lock_of_the_session_is_no_obstacle(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(APPROVED + "\n")
    assert project.aish("lock", "p.yaml").code == 0

    exported(project, READ)
    says_the_same(project, endpoint)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "nothing to export"),
        (["hello", ":clear"], "nothing to export"),
        (["hello", ":undo"], "nothing to export"),
        (["!echo hi"], "nothing to export"),
    ],
)
def test_what_has_no_answer_is_no_pipeline(
    project: Project, endpoint: ModelEndpoint, lines: list[str], said: str
) -> None:
    project.pipeline("")
    assert said in refused(project, *lines)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("p.yaml", "already exists"),
        ("missing/x.yaml", "No such file"),
        ("data", "ends in `.yaml`\n  hint: `:export data.yaml`"),
        ("a/q.txt", "ends in `.yaml`\n  hint: `:export a/q.yaml`"),
        ("..", "ends in `.yaml`\n  hint: `:export session.yaml`"),
        ("link.yaml", "already exists"),
        ("taken.yaml", "already exists"),
        ("/proc/x.yaml", "cannot write it"),
    ],
)
def test_nothing_is_written_over(
    project: Project, endpoint: ModelEndpoint, name: str, said: str
) -> None:
    project.pipeline("")
    project.write("taken.cassette.yaml", "mine")
    (project.folder / "link.yaml").symlink_to("nowhere")
    assert said in refused(project, "hello", name=name)
    assert (project.folder / "taken.cassette.yaml").read_text() == "mine"


def test_a_secret_in_a_result_is_not_written(project: Project, endpoint: ModelEndpoint) -> None:
    token = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z2a"
    project.write("data/note.txt", f"token {token}\n")
    project.pipeline(APPROVED)

    said = refused(project, READ, "and then?")

    assert "may contain an undeclared secret" in said
    assert token not in said


def test_a_declared_secret_is_masked_in_the_export(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.aish.env["DEPLOY_KEY"] = "correct-horse-battery"
    project.write("data/note.txt", "key correct-horse-battery\n")
    project.pipeline(APPROVED + "secrets: [DEPLOY_KEY]\n")

    data = exported(project, READ, "!echo correct-horse-battery", "and then?")

    assert data["secrets"] == ["DEPLOY_KEY"]
    for name in ("x.yaml", "x.cassette.yaml"):
        assert "correct-horse" not in (project.folder / name).read_text()


def test_a_rule_that_asks_is_an_error_that_says_so(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline(FS.replace("}}}", "}}, ask: [repo__file_read]}"))
    with at_terminal(project) as window:
        window.type(f"{READ}\r")
        window.wait_for("[y/N/?]")
        window.type("y\r")
        window.wait_for("milk")
        window.type(":export x.yaml\r")
        window.wait_for("the export runs unattended")
        window.type(":quit\r")
        window.finish()
    assert not (project.folder / "x.yaml").exists()


def test_an_ephemeral_session_is_not_recorded(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline("")
    assert "is not recorded" in refused(project, "hello", args=("--ephemeral",))


@pytest.mark.slow(reason="exports a session on a full disk")
def test_a_full_disk_leaves_nothing_behind(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(APPROVED)
    project.write("data/note.txt", "milk\n" * 3000)
    project.through_shell('ulimit -f 60; exec "$@"')

    said = refused(project, READ, READ, READ, "and then?")

    assert "cannot be written" in said or "not in the recording" in said


@pytest.mark.slow(reason="two hundred questions; some are in the tests above")
def test_two_hundred_lines_are_two_hundred_steps(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(APPROVED)
    lines = [READ if number % 10 == 0 else f"question {number}" for number in range(200)]
    done = sit(project, *lines)
    assert done.code == 0

    data = exported(project, "last", args=("--resume", "latest"), timeout=600)

    assert len(data["steps"]) == 201


OFFERS = f"mcp: {{servers: {{docs: {{command: [{sys.executable}, {STDIO_SERVER}, --offers]}}}}}}\n"
SEEING = "models: {m: {base_url: '${MODEL_URL}', model: a, vision: true}}\n"


@pytest.mark.slow(reason="runs a session and its export")
@pytest.mark.parametrize(
    ("attached", "steps"),
    sampled(
        [
            ("docs://guide", [["docs://guide"]]),
            ("docs://page/7", [["docs://page/7"]]),
            ("docs://logo", [["docs://logo"]]),
            ("data/logo.png", [["data/logo.png"]]),
            ("docs__plain", [None]),
        ],
        often={0, 2, 4},
        reason=MORE_SESSIONS,
    ),
)
def test_what_servers_offer_is_attached_by_the_export(
    project: Project, endpoint: ModelEndpoint, attached: str, steps: list[list[str] | None]
) -> None:
    project.pipeline(SEEING + OFFERS)
    project.write("data/logo.png", PICTURE)

    data = exported(project, f":attach {attached}", "what is it?")

    assert [step.get("attach") for step in data["steps"]] == steps
    says_the_same(project, endpoint)


def test_a_picture_that_is_elsewhere_is_an_error(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(SEEING + OFFERS)
    project.write("../logo.png", PICTURE)
    try:
        said = refused(project, f":attach {project.folder.parent}/logo.png", "what is it?")
    finally:
        (project.folder.parent / "logo.png").unlink()
    assert "an image cannot be included" in said


@pytest.mark.slow(reason="runs a session and its export")
def test_a_file_that_has_changed_since_is_told_of(
    project: Project, endpoint: ModelEndpoint
) -> None:
    project.pipeline("")
    lines = [":attach data/note.txt", "what?", "$echo eggs > data/note.txt", ":export x.yaml"]

    done = sit(project, *lines)

    assert "note: `line-1` is asked with another text" in done.stdout
    accepted(project, "x.yaml")


@pytest.mark.slow(reason="runs a session and its export")
def test_calls_that_norris_let_through_have_rules(
    project: Project, endpoint: ModelEndpoint
) -> None:
    trusted = (
        f"mcp: {{servers: {{web: {{command: [{sys.executable}, {STDIO_SERVER}], trust: true}}}}}}"
    )
    project.pipeline(trusted)

    with at_terminal(project) as window:
        for line, seen in (
            (":norris on", "norris is on"),
            ('CALL web__echo {"text": "hi there"}', "╰"),
            (":norris off", "norris is off"),
        ):
            window.type(f"{line}\r")
            window.wait_for(seen)
            # A key would halt what goes on by itself; the toolbar tells of that below the prompt.
            window.wait_for(lambda: "m>" in (line.strip() for line in window.lines[-2:]))
        window.type(":export x.yaml\r")
        window.wait_for("accepts it")
        window.type(":quit\r")
        assert window.finish() == 0

    data = accepted(project, "x.yaml")

    assert [rule["tool"] for rule in data["mcp"]["auto_approve"]] == ["web__echo"]
    says_the_same(project, endpoint)


@pytest.mark.slow(reason="runs a session and its export")
def test_calls_side_by_side_and_over_many_rounds(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline(FS)
    question = f"{READ}\n{OTHER}\n{LIST}"
    with at_terminal(project) as window:
        window.type(":approve repo__*\r")
        window.wait_for("for this session")
        window.type(question.replace("\n", "\x1b\r") + "\r")
        window.wait_for("other.txt (5 bytes)\n")
        window.wait_for(lambda: window.lines[-1].strip() == "m>")
        window.type(":export x.yaml\r")
        window.wait_for("accepts it")
        window.type(":quit\r")
        assert window.finish() == 0

    data = accepted(project, "x.yaml")

    (expected,) = data["tests"][0]["expect"]
    assert sorted(expected["tool_sequence"]) == ["repo__dir_list", *["repo__file_read"] * 2]
    says_the_same(project, endpoint)


@pytest.mark.slow(reason="runs a session and its export")
def test_what_ctrl_c_stopped_is_left_out(project: Project, model_endpoint: ModelEndpoints) -> None:
    gate = Gate()
    half = stream_reply(sse([delta(content="half of ")], done=False), gate)
    endpoint = model_endpoint([text_reply("one"), half, text_reply("three")])
    project.uses(endpoint)
    project.pipeline("")
    with at_terminal(project) as window:
        window.type("hello\r")
        window.wait_for("one\n")
        window.type("stop me\r")
        gate.wait_arrived()
        window.type("\x03")
        window.wait_for("interrupted")
        window.type("third\r")
        window.wait_for("three")
        window.type(":export x.yaml\r")
        window.wait_for("accepts it")
        window.type(":quit\r")
        window.finish()
    gate.open()

    assert ids(accepted(project, "x.yaml")) == ["line-1", "line-3"]


@pytest.mark.slow(reason="runs a session and its export")
@pytest.mark.parametrize(
    "name",
    sampled(
        ["a b.yaml", "ünï ☃.yml", "-x.yaml", "x.y.yaml", "true.yaml"],
        often={1},
        reason="cases of the same kind",
    ),
)
def test_any_name_will_do(project: Project, endpoint: ModelEndpoint, name: str) -> None:
    project.pipeline("")

    done = sit(project, "hello", f":export {name}")

    assert "accepts it" in done.stdout, done.stderr
    assert project.aish("validate", "--strict", f"./{name}").code == 0


@pytest.mark.slow(reason="runs a session and its export")
def test_commands_of_another_folder_stand_as_they_were(
    project: Project, endpoint: ModelEndpoint
) -> None:
    path = project.pipeline("")
    (project.folder / "sub").mkdir()

    done = project.aish(
        "shell", path, stdin="!pwd\nwhere?\n:export ../x.yaml\n", cwd=project.folder / "sub"
    )

    assert "accepts it" in done.stdout, done.stderr
    assert ids(accepted(project, "x.yaml")) == ["line-1"]
    assert "it ran in another" in (project.folder / "x.yaml").read_text()


def test_a_secret_in_a_url_is_not_written(project: Project, endpoint: ModelEndpoint) -> None:
    project.pipeline("")
    with http_server() as url:
        said = refused(project, f":mcp connect {url}?token=correct-horse-battery web", "hello")
    assert "the file would contain a secret" in said
