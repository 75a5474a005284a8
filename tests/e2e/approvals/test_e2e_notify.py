"""Somebody outside is told of the open questions of a run (A12)."""

import json
import signal
import stat
import sys
from textwrap import dedent
from typing import Any

import pytest
from e2e_project import REPO, Project, of_type, wait_file, wait_gone
from web_server import Visit, WebServer, answer

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
TOLD = json.dumps(
    [
        sys.executable,
        "-c",
        "import json, os; print(json.dumps(dict(os.environ)), file=open('told.jsonl', 'a'))",
    ]
)
SECRET = "hunter2-hunter2-hunter2"


def asking(notify: str, on_ask: str = "pause") -> str:
    """A pipeline with two calls that no rule approves; one has a secret in its arguments."""
    return dedent(f"""
        secrets: [API_KEY]
        mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
        on_ask: {on_ask}
        ask_timeout: {"7d" if on_ask == "pause" else "1ms"}
        control: {{notify: {notify}}}
        steps:
          - {{id: one, call: box__write, with: {{text: "argument {SECRET}"}}}}
          - {{id: two, call: box__write, needs: [], with: {{text: argument}}}}
        """)


def told(project: Project) -> list[dict[str, str]]:
    """The environments of the command that was told."""
    path = project.folder / "told.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def notices(project: Project) -> list[str]:
    """What was said of notifications."""
    found = of_type(project.journal, "notice")
    return [one["text"] for one in found if one["code"] == "notify_failed"]


@pytest.fixture
def keyed(project: Project) -> Project:
    """A project with secrets in its environment."""
    project.aish.env["API_KEY"] = SECRET
    return project


def test_a_command_is_told_once_of_all_that_waits_before_the_run_pauses(keyed: Project) -> None:
    keyed.pipeline(asking(f"{{command: {TOLD}}}"))

    paused = keyed.run()

    assert paused.code == 8, paused.stderr
    (environment,) = told(keyed)
    run = keyed.run_folders[0].name
    asked = of_type(keyed.journal, "approval.asked")
    assert [one["arguments"]["text"] for one in asked] == ["argument <secret:API_KEY>", "argument"]
    named = {name: text for name, text in environment.items() if name.startswith("AISH_")}
    assert named == {
        "AISH_RUN": run,
        "AISH_TOOL": "box__write\nbox__write",
        "AISH_APPROVAL": "\n".join(one["id"] for one in asked),
        "AISH_COMMAND": "\n".join(f"aish approve {run} {one['id'][:8]}" for one in asked),
    }
    # Nothing else of aish's own environment, and no argument of a call.
    assert "API_KEY" not in environment
    assert SECRET not in json.dumps(environment)
    assert "argument" not in json.dumps(environment)
    assert notices(keyed) == []

    words = environment["AISH_COMMAND"].splitlines()[0].split()[1:]
    approved = keyed.aish(*words, "--yes", "--digest", asked[0]["digest"])
    assert approved.code == 0, approved.stderr

    # What is still open is told again by the run that continues, and what is answered is not.
    again = keyed.run("--resume")

    assert again.code == 8, again.stderr
    assert [one["AISH_APPROVAL"] for one in told(keyed)[1:]] == [asked[1]["id"]]


def test_a_url_gets_the_same_as_json(keyed: Project) -> None:
    bodies: list[Any] = []

    def take(visit: Visit) -> None:
        bodies.append(body_of(visit))
        visit.send(answer(status="204 No Content"))

    with WebServer({"/hook/s3cret-part": take}) as server:
        keyed.aish.env["HOOK"] = f"{server.url}/hook/s3cret-part"
        # A proxy of the environment is not asked.
        keyed.aish.env["http_proxy"] = keyed.aish.env["HTTP_PROXY"] = "http://127.0.0.1:1"
        keyed.pipeline(asking("{url_env: HOOK}"))
        paused = keyed.run()

    assert paused.code == 8, paused.stderr
    run = keyed.run_folders[0].name
    asked = of_type(keyed.journal, "approval.asked")
    (body,) = bodies
    assert body == {
        "v": 1,
        "run": run,
        "questions": [
            {
                "approval": one["id"],
                "tool": "box__write",
                "command": f"aish approve {run} {one['id'][:8]}",
            }
            for one in asked
        ],
    }
    (head,) = server.heads
    assert head.startswith(b"POST /hook/s3cret-part HTTP/1.1\r\n")
    assert b"content-type: application/json" in head.lower()
    assert b"authorization" not in head.lower()
    assert notices(keyed) == []
    assert "s3cret-part" not in keyed.everything_written()


def body_of(visit: Visit) -> Any:
    """The JSON of a request, which may have come with its head."""
    return json.loads(visit.body())


@pytest.mark.requirement("A12")
@pytest.mark.parametrize(
    ("page", "said"),
    [
        (answer(status="500 Internal Server Error"), "answered with status 500"),
        (
            answer(status="302 Found", location="/elsewhere"),
            "answered with status 302, and redirects are not followed",
        ),
        (b"no HTTP at all\r\n\r\n", "cannot be reached: "),
    ],
)
def test_a_url_that_refuses_is_a_notice_and_decides_nothing(
    keyed: Project, page: bytes, said: str
) -> None:
    with WebServer({"/hook": page}) as server:
        keyed.aish.env["HOOK"] = f"{server.url}/hook"
        keyed.pipeline(asking("{url_env: HOOK}"))
        paused = keyed.run()

    assert paused.code == 8, paused.stderr
    (notice,) = notices(keyed)
    assert notice.startswith(f"nobody was notified of 2 questions: the URL in `HOOK` {said}")
    assert server.targets == ["/hook"]
    assert of_type(keyed.journal, "approval.answered") == []


@pytest.mark.slow(reason="runs a command for each case; a URL that refuses is in the test above")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            [
                sys.executable,
                "-c",
                f"import sys; sys.exit('no: ' + 'hunter2-' * 2 + '{SECRET[-7:]}')",
            ],
            "ended with exit code 1: no: <secret:API_KEY>",
        ),
        (["./missing"], "No such file or directory"),
    ],
)
def test_a_command_that_fails_is_a_notice_and_decides_nothing(
    keyed: Project, command: list[str], said: str
) -> None:
    keyed.pipeline(asking(f"{{command: {json.dumps(command)}}}"))

    paused = keyed.run()

    assert paused.code == 8, paused.stderr
    (notice,) = notices(keyed)
    assert notice.startswith("nobody was notified of 2 questions: ")
    assert notice.endswith(said)
    assert said in paused.stderr
    assert of_type(keyed.journal, "approval.answered") == []


def test_a_command_that_hangs_ends_with_an_interrupted_run(keyed: Project) -> None:
    line = "import os, time; print(os.getpid(), file=open('pid', 'w'), flush=True); time.sleep(600)"
    keyed.pipeline(asking(f"{{command: {json.dumps([sys.executable, '-c', line])}}}"))

    with keyed.aish.start("run", "p.yaml") as running:
        wait_file(keyed.folder / "pid", whole=True)
        running.interrupt(signal.SIGTERM)
        done = running.finish()

    assert done.code == 143, done.stderr
    wait_gone(int((keyed.folder / "pid").read_text()))
    assert notices(keyed) == []
    # The questions are kept.
    listed = json.loads(keyed.aish("runs", "pending", "--format", "json").stdout)
    assert len(listed["pending"]) == 2


def test_what_is_answered_already_is_not_told(keyed: Project) -> None:
    keyed.pipeline(asking(f"{{command: {TOLD}}}", on_ask="wait"))

    done = keyed.run()

    assert done.code == 3, done.stderr
    assert len(of_type(keyed.journal, "approval.asked")) == 2
    assert told(keyed) == []


def test_a_replay_tells_nobody(keyed: Project) -> None:
    keyed.pipeline(asking(f"{{command: {TOLD}}}", on_ask="wait"))
    assert keyed.run("--record", "c.yaml").code == 3
    keyed.pipeline(asking(f"{{command: {TOLD}}}"))

    replayed = keyed.run("--replay", "c.yaml")

    assert replayed.code == 3, replayed.stderr
    assert told(keyed) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("notify", "value", "said"),
    [
        ("{url_env: HOOK}", None, "`HOOK` is not set"),
        ("{url_env: HOOK}", "ftp://x/s3cret-part", "`HOOK` holds no `http://` or `https://` URL"),
        ("{url_env: HOOK}", "s3cret-part", "`HOOK` holds no `http://` or `https://` URL"),
        ("{command: notify.sh}", None, "control.notify.command"),
        ("{command: []}", None, "control.notify.command"),
        ("{command: [x], url_env: HOOK}", None, "control.notify"),
        ("{}", None, "control.notify"),
    ],
)
def test_what_cannot_be_told_is_refused_before_the_run(
    keyed: Project, notify: str, value: str | None, said: str
) -> None:
    if value is not None:
        keyed.aish.env["HOOK"] = value
    keyed.pipeline(asking(notify))

    done = keyed.run()

    assert (done.code, said in done.stderr) == (2, True), done.stderr
    assert "s3cret-part" not in done.stderr
    assert keyed.run_folders == []


@pytest.mark.requirement("A10")
def test_a_paused_run_continues_with_another_command(keyed: Project) -> None:
    keyed.pipeline(asking('{command: ["true"]}'))
    assert keyed.run().code == 8
    keyed.pipeline(asking(f"{{command: {TOLD}}}"))

    again = keyed.run("--resume")

    assert again.code == 8, again.stderr
    assert len(told(keyed)) == 1
    assert stat.S_IMODE((keyed.run_folders[0] / "events.jsonl").stat().st_mode) == 0o600
