"""A command in a sandbox tries to answer the question of its own run (T36, T38)."""

import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confined_servers import PROBE
from e2e_project import REPO, Project, of_type
from live_runs import answer, control_file, ledger, live_run, pending, runtime_folder
from served_hub import ServedHub, text_of

from aish.control import Client
from aish.core.events import NOWHERE, ApprovalAnswered, Stamped, to_line
from aish.journal.writer import seal
from aish.system.process.sandbox import sandbox_report

REPORT = sandbox_report(os.environ)
SANDBOXES = [
    pytest.param("bubblewrap", marks=pytest.mark.skipif(bool(REPORT.bubblewrap), reason="none")),
    pytest.param("landlock", marks=pytest.mark.skipif(bool(REPORT.landlock), reason="none")),
]
SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
# It is told all that it could not find out: the question, the addresses, the token, and a code.
ATTACK = """
import ctypes, http.client, json, os, socket, subprocess, sys
from pathlib import Path

told, way = json.loads(Path("told.json").read_text()), sys.argv[1]
body = json.dumps({"answer": "approve", "digest": told["digest"]})
path = f"/api/v1/approvals/{told['question']}"
token = {"Authorization": f"Bearer {told['token']}"}


def posted(path, body, headers, at=None):
    connection = http.client.HTTPConnection(told["port"])
    if at is not None:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(at)
    connection.request("POST", path, body, {**headers, "Content-Type": "application/json"})
    return connection.getresponse().status


def by_socket():
    return posted(path, body, {}, told["socket"])


def by_port():
    return posted(path, body, token)


def by_link():
    return posted("/api/v1/link", json.dumps({"code": told["code"]}), {})


def by_files():
    return Path(told["token_file"]).read_text("utf-8")


def by_command():
    words = ["approve", told["run"], told["question"], "--yes", "--digest", told["digest"]]
    command = [sys.executable, "-m", "aish", *words]
    return subprocess.run(command, capture_output=True, text=True).returncode


def by_ptrace():
    attach, nothing = 16, ctypes.c_void_p(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(attach, told["pid"], nothing, nothing) == 0:
        return 0
    return os.strerror(ctypes.get_errno())


try:
    print(json.dumps(globals()[f"by_{way}"]()))
except OSError as error:
    print(json.dumps(error.strerror))
"""
REFUSED: dict[str, set[Any]] = {
    "socket": {403, "No such file or directory", "Permission denied"},
    "port": {403},
    "link": {403},
    "files": {"No such file or directory", "Permission denied"},
    "command": {1, 2},
    "ptrace": {"Operation not permitted", "No such process", "Permission denied"},
}


@pytest.fixture
def waiting(project: Project) -> Iterator[Project]:
    with runtime_folder(project):
        yield project


@pytest.mark.requirement("T38")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("way", REFUSED)
def test_a_confined_command_does_not_answer_its_own_question(
    waiting: Project, way: str, sandbox: str
) -> None:
    os.mkfifo(waiting.folder / "gate")
    waiting.write("attack.py", ATTACK)
    waiting.pipeline(
        f"""
        mcp:
          servers:
            box: {{command: {SERVER}}}
            sh: {{pack: [shell], root: ., options: {{shell: {{sandbox: {sandbox}}}}}}}
          auto_approve: [shell__run, sh__shell_run]
        on_ask: wait
        control: {{listen: ["127.0.0.1:0", auto]}}
        steps:
          - {{id: note, call: box__write, with: {{text: one}}}}
          - {{id: hold, needs: [], run: [cat, gate]}}
          - id: tries
            needs: [hold]
            call: sh__shell_run
            with: {{command: {sys.executable} attack.py {way}}}
        """
    )
    with live_run(waiting) as (running, client):
        (question,) = pending(client)
        named = control_file(waiting)
        run = waiting.run_folders[-1]
        link = waiting.aish("control", "open", run.name).stdout
        told = {
            "run": run.name,
            "pid": running.pid,
            "question": question["id"],
            "digest": question["digest"],
            "port": named["addresses"][0],
            "socket": named["addresses"][1].removeprefix("unix:"),
            "token": Path(named["token_file"]).read_text("utf-8").strip(),
            "code": link.partition("#code=")[2].strip(),
            "token_file": named["token_file"],
        }
        waiting.write("told.json", json.dumps(told))
        (waiting.folder / "gate").write_text("")
        running.wait_for_line("tries: ok")
        assert [one["id"] for one in pending(client)] == [question["id"]]
        assert answer(client, question, "deny").status_code == 200
        running.finish()

    finished = of_type(waiting.journal, "tool.finished")
    (tried,) = [one["content"] for one in finished if one["step"] == "tries"]
    assert json.loads(tried.splitlines()[0]) in REFUSED[way], tried
    assert ledger(waiting) == []


@pytest.mark.skipif(bool(REPORT.bubblewrap), reason="a list of hosts needs bubblewrap")
def test_a_confined_server_that_lists_the_address_of_the_run_is_refused_there(
    waiting: Project,
) -> None:
    """It is aish itself that connects for it: as a process of the run, whatever it sends."""
    number = os.getpid()
    # An address of this test's own: nobody else listens at its port.
    host = f"127.77.{number >> 8 & 255}.{number & 255}"
    server = {
        "command": [sys.executable, "probe.py"],
        "protocol": "legacy",
        "sandbox": {"network": [f"{host}:8765"]},
    }
    waiting.write("probe.py", PROBE.read_text("utf-8"))
    os.mkfifo(waiting.folder / "gate")
    waiting.pipeline(
        f"""
        mcp:
          servers: {{box: {{command: {SERVER}}}, probe: {json.dumps(server)}}}
          auto_approve: [shell__run, probe__fetch]
        on_ask: wait
        control: {{listen: [auto, "{host}:8765"]}}
        steps:
          - {{id: note, call: box__write, with: {{text: one}}}}
          - {{id: hold, needs: [], run: [cat, gate]}}
          - {{id: tries, needs: [hold], call: probe__fetch, with: {{host: {host}, port: 8765}}}}
        """
    )
    with live_run(waiting) as (running, client):
        (question,) = pending(client)
        (waiting.folder / "gate").write_text("")
        running.wait_for_line("tries: ok")
        assert answer(client, question, "deny").status_code == 200
        running.finish()

    finished = of_type(waiting.journal, "tool.finished")
    (tried,) = [one["content"] for one in finished if one["step"] == "tries"]
    assert "processes that the run started may not connect to it" in tried


# It is told where the question is, and writes an answer there and where older versions had it.
FORGERY = """
import json
from pathlib import Path

told = json.loads(Path("told.json").read_text())
for folder in (told["state"], ".aish/serve"):
    path = Path(folder, told["server"], told["name"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(told["lines"])
        print("written")
    except OSError as error:
        print(error.strerror)
"""


@contextmanager
def control(hub: ServedHub) -> Generator[Client]:
    """The control API of a server, once it listens."""
    told = hub.stderr_with("control API: listening on")
    with Client(told.partition("control API: listening on ")[2].split()[0]) as client:
        yield client


@pytest.mark.slow(reason="confines a command of a server; that of a run is in the test above")
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_confined_command_of_a_server_does_not_write_an_answer(
    waiting: Project, sandbox: str
) -> None:
    waiting.write("forgery.py", FORGERY)
    waiting.pipeline(
        f"""
        mcp:
          servers:
            box: {{command: {SERVER}}}
            sh: {{pack: shell, root: ., options: {{shell: {{sandbox: {sandbox}}}}}}}
          auto_approve: [sh__shell_run]
        serve: {{hold: 60s}}
        """
    )
    write = {"name": "box__write", "arguments": {"text": "one"}}
    with ServedHub(waiting, "p.yaml", "--control") as hub:
        hub.begin()
        first = hub.request("tools/call", write)
        with control(hub) as api:
            question = api.wait_for_approval()
        (asked,) = waiting.served_state().glob(f"hub-*/{question.id}.jsonl")
        answered = ApprovalAnswered(NOWHERE, question.id, "approve", "mallory", "command")
        line = seal(to_line(Stamped(2, time.time(), answered)))
        before = asked.read_text("utf-8")
        told = {
            "state": str(waiting.served_state()),
            "server": asked.parent.name,
            "name": asked.name,
            "lines": before + line.decode(),
        }
        waiting.write("told.json", json.dumps(told))
        tried = text_of(hub.call("sh__shell_run", {"command": f"{sys.executable} forgery.py"}))
        after = asked.read_text("utf-8")
        listed = json.loads(waiting.aish("runs", "pending", "--format", "json").stdout)
        denied = waiting.aish("approve", told["server"], question.id, "--deny", "--yes")
        said = text_of(hub.answer(first)["result"])
        hub.end_input()
        assert hub.finish() == 0
    # Another start does not take over what lies in the project either.
    with ServedHub(waiting, "p.yaml", "--control") as hub:
        hub.begin()
        hub.request("tools/call", write)
        with control(hub) as api:
            api.wait_for_approval()
        hub.end_input()
        assert hub.finish() == 0

    # In bubblewrap it may have written into a `/tmp` of its own.
    assert after == before, tried
    assert [one["id"] for one in listed["pending"]] == [question.id]
    assert denied.code == 0, denied.stderr
    assert said == "[aish] tool call denied by the user"
    assert ledger(waiting) == []


FORGED = "another program wrote the approval of question"
# The last record of its own run becomes an answer; their numbers go on.
ALTERED = """
import json
from pathlib import Path
from zlib import crc32

(path,) = Path(".aish/runs").glob("*/events.jsonl")
lines = path.read_bytes().splitlines()
records = [json.loads(line) for line in lines]
(asked,) = [one for one in records if one["type"] == "approval.asked"]
answer = {
    **{key: records[-1][key] for key in ("v", "seq", "time")},
    **{"type": "approval.answered", "step": asked["step"], "id": asked["id"]},
    **{"answer": "approve", "by": "mallory", "way": "command", "note": ""},
    **{"digest": asked["digest"]},
}
line = json.dumps(answer, separators=(",", ":")).encode()
lines[-1] = b'%b,"crc":"%08x"}' % (line[:-1], crc32(line))
with path.open("r+b") as file:
    file.truncate(0)
    file.write(b"\\n".join(lines) + b"\\n")
"""


@pytest.mark.slow(reason="runs and resumes a confined run")
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_an_answer_that_a_confined_command_writes_into_its_own_run_does_not_count(
    waiting: Project, sandbox: str
) -> None:
    os.mkfifo(waiting.folder / "gate")
    waiting.write("altered.py", ALTERED)
    waiting.pipeline(
        f"""
        mcp:
          servers:
            box: {{command: {SERVER}}}
            sh: {{pack: shell, root: ., options: {{shell: {{sandbox: {sandbox}}}}}}}
          auto_approve: [shell__run, sh__shell_run]
        on_ask: pause
        steps:
          - {{id: note, call: box__write, with: {{text: one}}}}
          - {{id: hold, needs: [], run: [cat, gate]}}
          - id: tries
            needs: [hold]
            call: sh__shell_run
            with: {{command: {sys.executable} altered.py}}
        """
    )
    with waiting.aish.start("run", "p.yaml") as running:
        running.wait_for_line("waits for an answer")
        (waiting.folder / "gate").write_text("")
        done = running.finish()
    resumed = waiting.aish("run", "p.yaml", "--resume")

    assert ledger(waiting) == []
    assert done.code == 8, done.stderr
    # Bubblewrap hides the journal.
    assert resumed.code == (8 if sandbox == "bubblewrap" else 2), resumed.stderr
    assert (FORGED in resumed.stderr) is (sandbox == "landlock")


# It says yes to all that runs of this folder ask, as `aish approve` writes it.
JOURNAL_FORGERY = """
import json
from pathlib import Path
from zlib import crc32

for path in Path().glob("kept/*/events.jsonl"):
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for asked in [one for one in lines if one["type"] == "approval.asked"]:
        said = {"id": asked["id"], "answer": "approve", "by": "x", "way": "command", "note": ""}
        said |= {"digest": asked["digest"], "mac": "0" * 64}
        head = {"v": 1, "seq": len(lines) + 1, "time": asked["time"], "type": "approval.answered"}
        body = json.dumps({**head, **said}, separators=(",", ":"))
        with path.open("a") as journal:
            print(body[:-1] + f',"crc":"{crc32(body.encode()):08x}"}}', file=journal)
"""
KEPT = ("--run-dir", "kept")


@pytest.mark.slow(reason="runs several confined runs")
@pytest.mark.parametrize("sandbox", SANDBOXES[:1])
def test_a_confined_command_does_not_answer_in_the_journals_of_runs_below_its_root(
    waiting: Project, sandbox: str
) -> None:
    waiting.write("forgery.py", JOURNAL_FORGERY)
    command = f"ls -A kept; python3 forgery.py; mv kept away; {sys.executable} forgery.py"
    waiting.pipeline(
        f"""
        mcp:
          servers:
            box: {{command: {SERVER}}}
            sh: {{pack: [shell], root: ., options: {{shell: {{sandbox: {sandbox}}}}}}}
          auto_approve: [sh__shell_run]
        on_ask: pause
        steps:
          - {{id: pay, call: box__write, with: {{text: one}}}}
        """
    )
    other = (waiting.folder / "p.yaml").read_text("utf-8").partition("on_ask")[0]
    waiting.write("q.yaml", f"{other}call: sh__shell_run\nwith: {{command: {json.dumps(command)}}}")

    paused = waiting.run(*KEPT)
    (journal,) = (waiting.folder / "kept").glob("*/events.jsonl")
    before = journal.read_bytes()
    tried = waiting.aish("run", "q.yaml", *KEPT)
    after = journal.read_bytes()
    resumed = waiting.run("--resume", journal.parent.name, *KEPT)

    assert (paused.code, after == before) == (8, True), tried
    assert journal.parent.name not in tried.stdout
    assert resumed.code == 8, resumed.stderr
    assert ledger(waiting) == []


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_an_approval_that_a_command_writes_into_another_run_is_refused(
    waiting: Project, sandbox: str
) -> None:
    waiting.write("forgery.py", JOURNAL_FORGERY)
    servers = f"""
        mcp:
          servers:
            box: {{command: {SERVER}}}
            sh: {{pack: [shell], root: ., options: {{shell: {{sandbox: {sandbox}}}}}}}
          auto_approve: [sh__shell_run]
        """
    waiting.pipeline(
        f"{servers}on_ask: pause\n        call: box__write\n        with: {{text: one}}"
    )
    waiting.pipeline(servers, "q.yaml")

    paused = waiting.run(*KEPT)
    (journal,) = (waiting.folder / "kept").glob("*/events.jsonl")
    key = waiting.served_state().parents[1] / ".aish" / "approvals.key"
    secret = key.read_text("utf-8").strip()
    command = f"command=cat {key}; {sys.executable} forgery.py"
    tried = waiting.aish("call", "q.yaml", "sh__shell_run", command)
    resumed = waiting.run("--resume", journal.parent.name, *KEPT)

    assert (paused.code, resumed.code) == (8, 2), tried
    assert '"answer":"approve"' in journal.read_text("utf-8"), "nothing was tried"
    assert secret not in tried.stdout + tried.stderr
    assert FORGED in resumed.stderr
    assert ledger(waiting) == []


def without_mac(record: Any) -> None:
    """As an older version wrote it."""
    record.pop("mac")
    record.pop("digest" if record["type"] == "approval.answered" else "mac", None)


def about_another_call(record: Any) -> None:
    """As a command writes it that changes what a person was asked about."""
    if record["type"] == "approval.asked":
        record["digest"] = "0" * 64


@pytest.mark.slow(reason="runs and resumes a confined run")
@pytest.mark.parametrize("change", [without_mac, about_another_call])
def test_an_approval_that_cannot_be_verified_is_asked_again(
    waiting: Project, change: Callable[[Any], None]
) -> None:
    waiting.pipeline(
        f"""
        mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
        on_ask: pause
        call: box__write
        with: {{text: one}}
        """
    )

    paused = waiting.run()
    (asked,) = of_type(waiting.journal, "approval.asked")
    yes = ("--yes", "--digest")
    approved = waiting.aish(
        "approve", waiting.run_folders[0].name, asked["id"], *yes, asked["digest"]
    )
    path = waiting.run_folders[0] / "events.jsonl"
    lines = []
    for before in path.read_bytes().splitlines():
        line, record = before, json.loads(before)
        if record["type"].startswith("approval."):
            del record["crc"]
            change(record)
            line = seal(json.dumps(record, separators=(",", ":")).encode() + b"\n").rstrip()
        lines.append(line)
    path.write_bytes(b"\n".join(lines) + b"\n")
    again = waiting.run("--resume")
    (anew,) = of_type(waiting.journal, "approval.asked")[1:]
    waiting.aish("approve", waiting.run_folders[0].name, anew["id"], *yes, anew["digest"])
    written = ledger(waiting)
    resumed = waiting.run("--resume")

    assert (paused.code, approved.code, again.code, resumed.code) == (8, 0, 8, 0), again.stderr
    assert "was approved elsewhere or by an older version: it is asked again" in again.stderr
    assert anew["id"] != asked["id"]
    assert (written, ledger(waiting)) == ([], ["one"])


@pytest.mark.parametrize(
    ("run_dir", "path"),
    [("kept", "kept/x/events.jsonl"), (".", "{{ steps.own.text }}")],
    ids=["another run", "this run, in the root"],
)
def test_no_tool_writes_where_the_run_is_kept(waiting: Project, run_dir: str, path: str) -> None:
    (waiting.folder / "kept" / "x").mkdir(parents=True)
    waiting.write("own.py", "import glob; print((glob.glob('*/plan.json') or ['-'])[0], end='')")
    waiting.pipeline(
        f"""
        mcp:
          servers: {{fs: {{pack: [fs], root: .}}}}
          auto_approve: [fs__file_write, shell__run]
        steps:
          - {{id: own, run: [python3, own.py]}}
          - {{id: free, call: fs__file_write, with: {{path: new.txt, content: x}}}}
          - {{id: it, call: fs__file_write, with: {{path: "{path}", content: x}}}}
        """
    )

    done = waiting.run("--run-dir", run_dir)

    assert done.code == 1, done.stderr
    assert "protected" in done.stderr
    assert (waiting.folder / "new.txt").exists()
    assert not (waiting.folder / "kept" / "x" / "events.jsonl").exists()
