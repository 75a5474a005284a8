"""Items on workers: nothing is lost, nothing is recorded twice (B7)."""

import json
import os
import signal
import threading
from collections import Counter
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from dask_here import needs_dask
from e2e_project import (
    ModelEndpoints,
    Project,
    of_type,
    processes_in,
    stdio,
    wait_file,
    wait_gone,
)
from model_endpoint import Gate, Pause, Reply, text_reply, tool_reply

pytestmark = needs_dask

ITEMS = 60
SLOTS = 6
PIPELINE = f"""
    steps:
      - {{id: each, foreach: {{file: rows.jsonl}}, key: item.id, concurrency: {SLOTS},
         on_error: continue, prompt: "Row {{{{ item.id }}}}"}}
      - {{id: count, prompt: "There are {{{{ steps.each | length }}}}"}}
    """
LEDGER = """
    mcp:
      servers: {desk: {pack: fs, root: data}}
      auto_approve: ["desk__*"]
    """


def rows(project: Project, count: int = ITEMS) -> None:
    project.write("rows.jsonl", "".join(f'{{"id": "r{n}"}}\n' for n in range(count)))


def asked(body: Any) -> str:
    """What a request is about: its first user message."""
    return next(str(m["content"]) for m in body["messages"] if m["role"] == "user")


def echo(body: Any) -> Reply:
    return text_reply(f"<{asked(body)}>")


def paced(body: Any, gate: Gate | None = None) -> Reply:
    """Takes as long as an answer does, so that each item is handed out by itself."""
    return Reply((Pause(0.12), *echo(body).parts), before_head=gate)


def results(folder: Path) -> dict[str, Any]:
    """Each record of `results.jsonl`, by key; times differ from run to run."""
    found: dict[str, Any] = {}
    for line in (folder / "results.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record["key"] not in found, f"{record['key']} was recorded twice"
        found[record["key"]] = {**record, "seconds": 0, "seq": 0}
    return found


def workers_of(driver: int) -> list[int]:
    """The worker processes that a run has started."""
    children = Path(f"/proc/{driver}/task/{driver}/children").read_text("ascii").split()
    return [pid for pid in map(int, children) if b"local_workers" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def ends(project: Project) -> Counter[str]:
    """How often each item has ended."""
    return Counter(event["key"] for event in of_type(project.journal, "item.finished"))


@pytest.mark.requirement("B7")
def test_a_cluster_gives_what_one_process_gives(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(echo)
    project.uses(endpoint)
    rows(project)
    project.pipeline(PIPELINE)

    alone = project.run("--run-dir", "alone")
    spread = project.run("--run-dir", "spread", "--cluster", "local:2")

    assert (alone.code, spread.code) == (0, 0), spread.stderr
    assert spread.stdout == alone.stdout == f"<There are {ITEMS}>\n"
    (one,), (other,) = (project.folder / "alone").glob("2*"), (project.folder / "spread").glob("2*")
    assert results(other) == results(one)
    assert len(results(other)) == ITEMS
    assert len(endpoint.requests) == 2 * (ITEMS + 1)
    assert processes_in(project.folder) == []


def test_a_key_that_a_worker_makes_is_masked_in_the_run(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    def repeat(_body: Any) -> Reply:
        return text_reply("your key is made-on-a-worker-42")

    project.uses(model_endpoint(repeat))
    rows(project, 1)
    project.pipeline(
        """
        models:
          m: {base_url: "${MODEL_URL}", model: m, key_command: [printf, "%s", made-on-a-worker-42]}
        steps:
          - {id: each, foreach: {file: rows.jsonl}, prompt: Hello}
        outputs: {said: "{{ steps.each }}"}
        """
    )
    done = project.run("--cluster", "local:1")

    assert done.code == 0, done.stderr
    assert "your key is <secret:models.m.key_command>" in done.stdout
    assert "made-on-a-worker-42" not in done.stdout
    (written,) = (folder / "results.jsonl" for folder in project.run_folders)
    assert "your key is <secret:models.m.key_command>" in written.read_text("utf-8")


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_a_killed_worker_loses_nothing_and_repeats_what_was_in_flight_on_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def answer(body: Any) -> Reply:
        with lock:
            seen[asked(body)] += 1
            slow = sum(seen.values()) > ITEMS // 2
        return paced(body, gate if slow else None)

    project.uses(model_endpoint(answer))
    rows(project)
    project.pipeline(PIPELINE)

    with project.aish.start("run", "p.yaml", "--cluster", "local:2") as running:
        gate.wait_arrived()
        os.kill(workers_of(running.pid)[0], signal.SIGKILL)
        gate.open()
        done = running.finish()

    assert done.code == 0, done.stderr
    assert done.stdout == f"<There are {ITEMS}>\n"
    assert ends(project) == {f"r{n}": 1 for n in range(ITEMS)}
    assert len(results(project.run_folders[0])) == ITEMS
    begun = Counter(event["key"] for event in of_type(project.journal, "item.started"))
    assert set(begun.values()) == {1}
    assert sum(seen.values()) <= ITEMS + 1 + SLOTS
    assert processes_in(project.folder) == []


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
@pytest.mark.parametrize("goes_on", [[], ["--cluster", "local:2"]])
def test_a_killed_driver_leaves_no_process_and_its_run_goes_on(
    project: Project, model_endpoint: ModelEndpoints, goes_on: list[str]
) -> None:
    gate = Gate()
    stopped = threading.Event()

    def answer(body: Any) -> Reply:
        if stopped.is_set():
            return echo(body)
        return paced(body, gate if asked(body) == "Row r20" else None)

    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    rows(project, 40)
    project.pipeline(PIPELINE)

    with project.aish.start("run", "p.yaml", "--cluster", "local:2") as running:
        gate.wait_arrived()
        workers = workers_of(running.pid)
        running.interrupt(signal.SIGKILL)
        running.finish()
        stopped.set()
        gate.open()
    for pid in workers:
        wait_gone(pid)
    done = project.run("--resume", *goes_on)

    assert len(workers) == 2
    assert done.code == 0, done.stderr
    assert done.stdout == "<There are 40>\n"
    assert ends(project) == {f"r{n}": 1 for n in range(40)}
    assert len(endpoint.requests) <= 41 + SLOTS
    assert processes_in(project.folder) == []


def call_first(tool: str, arguments: str) -> Any:
    """Answers that call a tool once and then say what came of it."""

    def answer(body: Any) -> Reply:
        last = body["messages"][-1]
        if last["role"] != "tool":
            return tool_reply([("c1", tool, arguments)])
        return text_reply(str(last["content"]))

    return answer


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_what_a_worker_may_call_is_decided_and_written_down_by_the_driver(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(call_first("desk__file_read", '{"path": "note.txt"}')))
    project.write("data/note.txt", "a note")
    rows(project, 4)
    project.pipeline(LEDGER + PIPELINE.replace("on_error: continue", "on_denied: continue"))

    allowed = project.result("--run-dir", "allowed", "--cluster", "local:2")
    denied = project.result("--deny", "desk__file_read", "--cluster", "local:2")

    texts = {item["text"] for item in allowed["steps"]["each"]["items"]}
    assert len(texts) == 1
    assert "a note" in texts.pop()
    assert denied["denials"] == {"desk__file_read": 5}
    assert not of_type(project.journal, "tool.started")
    assert {e["verdict"] for e in of_type(project.journal, "tool.decided")} == {"deny"}


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_items_may_be_pipelines_and_their_calls_be_staged(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(call_first("desk__file_write", '{"path": "a", "content": "b"}')))
    project.write("data/.keep", "")
    rows(project, 3)
    project.pipeline(
        """
        inputs: {id: {}}
        mcp:
          servers: {desk: {pack: fs, root: data}}
          stage: ["desk__*"]
        steps:
          - {id: ask, prompt: "Row {{ inputs.id }}"}
          - {id: tell, prompt: "Then {{ steps.ask.text }}", tools: [], on_tool_error: continue}
        """,
        "inner.yaml",
    )
    project.pipeline(
        """
        steps:
          - {id: each, foreach: {file: rows.jsonl}, key: item.id, pipeline: inner.yaml,
             with: {id: "{{ item.id }}"}}
        """
    )

    found = project.result("--cluster", "local:2")

    staged = json.loads((project.run_folders[0] / "staged.json").read_text())
    turns = of_type(project.journal, "turn.finished")
    assert found["exit"]["code"] == 0, found["exit"]
    assert len(staged["calls"]) == 3
    assert {(event["step"], event["item"]) for event in turns} == {
        (f"each/{step}", f"r{n}") for step in ("ask", "tell") for n in range(3)
    }
    assert not (project.folder / "data" / "a").exists()


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_a_call_that_was_lost_with_its_worker_is_not_made_again(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(echo))
    rows(project, 1)
    project.pipeline(
        """
        mcp: {auto_approve: [shell__*]}
        steps:
          - {id: each, foreach: {file: rows.jsonl}, key: item.id, on_error: continue,
             run: [sh, fatal.sh]}
        """
    )
    project.write("fatal.sh", "echo made >> made.txt; kill -9 $PPID; sleep 5")

    done = project.run("--cluster", "local:1", "--format", "json")

    item = json.loads(done.stdout)["steps"]["each"]["items"][0]
    assert done.code == 1, done.stderr
    assert item["error"]["code"] == "call_unknown"
    assert "--retry-unknown" in item["error"]["hint"]
    assert (project.folder / "made.txt").read_text() == "made\n"


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_a_call_that_may_be_made_again_is_made_again_where_its_worker_was_lost(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(echo))
    rows(project, 1)
    project.pipeline(
        """
        mcp: {auto_approve: [shell__*], idempotent: [shell__run]}
        steps:
          - {id: each, foreach: {file: rows.jsonl}, key: item.id, run: [sh, fatal.sh]}
        """
    )
    project.write(
        "fatal.sh", "echo made >> made.txt; test $(wc -l < made.txt) = 2 || kill -9 $PPID"
    )

    done = project.run("--cluster", "local:1")

    assert done.code == 0, done.stderr
    assert (project.folder / "made.txt").read_text() == "made\nmade\n"
    assert [record["reason"] for record in of_type(project.journal, "retry")] == [
        "its worker was lost"
    ]
    assert ends(project) == {"r0": 1}


COMMAND = """
    mcp: {auto_approve: [shell__*]}
    steps:
      - {id: each, foreach: {file: rows.jsonl}, key: item.id, run: [sh, slow.sh]}
    """


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_a_call_that_was_lost_with_the_run_is_not_made_again_unasked(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(echo))
    rows(project, 1)
    project.pipeline(COMMAND)
    os.mkfifo(project.folder / "gate")
    project.write("slow.sh", "test -e made.txt && exit; echo made > made.txt; read line < gate")

    with project.aish.start("run", "p.yaml", "--cluster", "local:1") as running:
        wait_file(project.folder / "made.txt")
        workers = workers_of(running.pid)
        running.interrupt(signal.SIGKILL)
        running.finish()
    for pid in workers:
        wait_gone(pid)
    refused = project.run("--resume")
    again = project.run("--resume", "--retry-unknown")

    assert not of_type(project.journal, "tool.started")[:-1]
    assert refused.code == 2
    assert "1 item has not come back from workers, and may have made calls:" in refused.stderr
    assert "step `each`, item `r0`" in refused.stderr
    assert again.code == 0, again.stderr
    assert ends(project) == {"r0": 1}


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_what_an_item_has_done_is_written_down_where_the_run_is_terminated(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(echo))
    rows(project, 1)
    project.pipeline(COMMAND)
    os.mkfifo(project.folder / "gate")
    project.write("slow.sh", "echo made > made.txt; read line < gate")

    with project.aish.start("run", "p.yaml", "--cluster", "local:1") as running:
        wait_file(project.folder / "made.txt")
        running.interrupt(signal.SIGTERM)
        done = running.finish()

    assert done.code == 143, done.stderr
    assert [call["item"] for call in of_type(project.journal, "tool.started")] == ["r0"]
    assert [call["kind"] for call in of_type(project.journal, "tool.finished")] == ["interrupted"]
    assert "item_unfinished" in [note["code"] for note in of_type(project.journal, "notice")]
    assert processes_in(project.folder) == []


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_a_limit_holds_for_all_workers_together(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(echo)
    project.uses(endpoint)
    rows(project)
    project.pipeline(PIPELINE)

    done = project.run("--cluster", "local:2", "--max-turns", "17")

    assert done.code == 4, done.stderr
    assert "the limit of 17 turns is reached" in done.stderr
    assert len(endpoint.requests) == 17
    assert len(ends(project)) == 17


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_an_item_that_has_used_up_its_part_of_a_limit_goes_on_where_it_was(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    """Four items of five requests each use up a limit of twenty, none of it for anything twice."""

    def answer(body: Any) -> Reply:
        calls = sum(message["role"] == "tool" for message in body["messages"])
        if calls == 4:
            return echo(body)
        return tool_reply([(f"c{calls}", "desk__file_read", '{"path": "note.txt"}')])

    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    project.write("data/note.txt", "a note")
    rows(project, 4)
    project.pipeline(LEDGER + PIPELINE.partition("- {id: count")[0])

    done = project.run("--cluster", "local:2", "--max-turns", "20")
    short = project.run("--cluster", "local:2", "--max-turns", "19", "--run-dir", "short")

    assert done.code == 0, done.stderr
    assert short.code == 4, short.stderr
    assert "the limit of 19 turns is reached" in short.stderr
    assert len(endpoint.requests) == 20 + 19
    begun = [record["item"] for record in of_type(project.journal, "turn.started")]
    assert Counter(begun) == {f"r{n}": 5 for n in range(4)}


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_what_is_in_flight_on_workers_comes_to_its_end_after_an_interrupt(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    endpoint = model_endpoint(lambda body: echo(body).but(before_head=gate))
    project.uses(endpoint)
    rows(project)
    project.pipeline(PIPELINE)

    with project.aish.start("run", "p.yaml", "--cluster", "local:2") as running:
        gate.wait_arrived()
        running.interrupt(signal.SIGINT)
        running.wait_for_line("under way")
        gate.open()
        done = running.finish()

    assert done.code == 130, done.stderr
    assert set(ends(project).values()) == {1}
    assert 1 <= len(ends(project)) <= SLOTS
    assert len(endpoint.requests) == len(ends(project))
    assert processes_in(project.folder) == []


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_a_terminated_run_ends_its_workers(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    project.uses(model_endpoint(lambda body: echo(body).but(before_head=gate)))
    rows(project)
    project.pipeline(PIPELINE)

    with project.aish.start("run", "p.yaml", "--cluster", "local:2") as running:
        gate.wait_arrived()
        running.interrupt(signal.SIGTERM)
        done = running.finish()
    gate.open()

    assert done.code == 143, done.stderr
    assert processes_in(project.folder) == []


def listening(pid: int) -> set[int]:
    """The TCP ports at which a process listens."""
    sockets = set()
    for open_file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(str(open_file.readlink()))
    rows = Path(f"/proc/{pid}/net/tcp").read_text("ascii").splitlines()[1:]
    words = [row.split() for row in rows]
    return {
        int(word[1].partition(":")[2], 16)
        for word in words
        if word[3] == "0A" and f"socket:[{word[9]}]" in sockets
    }


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_two_runs_have_workers_at_once_and_none_of_them_serves_pages(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    project.uses(model_endpoint(lambda body: echo(body).but(before_head=gate)))
    rows(project, 1)
    project.pipeline(PIPELINE)

    with project.aish.start("run", "p.yaml", "-q", "--cluster", "local:1") as one:
        gate.wait_arrived()
        asked_for = ("/json/identity.json", "/info/main/workers.html", "/health", "/api/v1")
        pages = [
            _status(port, page)
            for pid in (one.pid, *workers_of(one.pid))
            for port in listening(pid)
            for page in asked_for
        ]
        with project.aish.start("run", "p.yaml", "-q", "--cluster", "local:1") as other:
            gate.open()
            done = other.finish(), one.finish()

    assert [one.stderr for one in done] == ["", ""]
    assert len(pages) >= 2 * len(asked_for)
    assert set(pages) <= {None, 404}


def _status(port: int, page: str) -> int | None:
    """What a plain HTTP request gives; nothing where no HTTP is spoken."""
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", page)
        return connection.getresponse().status
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def test_what_cannot_be_is_said_before_anything_is_begun(project: Project) -> None:
    project.pipeline("prompt: Hello", "p.yaml")
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"

    clear = project.run("--cluster", "tcp://far.example:8786")
    taped = project.run("--cluster", "local:2", "--record", "c.yaml")
    asking = project.run("--cluster", "local:2", "--ask")
    alone = project.run("--cluster-ca", "ca.pem")

    assert (clear.code, taped.code, asking.code, alone.code) == (2, 2, 2, 2)
    assert "unencrypted" in clear.stderr
    assert "cassettes exclude each other" in taped.stderr
    assert "`--ask` exclude each other: workers decide on calls by rules alone" in asking.stderr
    assert "go with `--cluster`" in alone.stderr
    assert project.run_folders == []


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_a_dask_cluster_that_is_there_is_used_over_tls_and_left_as_it_was(
    project: Project, model_endpoint: ModelEndpoints, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from dask_cluster import dask_cluster

    endpoint = model_endpoint(call_first("s__big", '{"n": 100000}'))
    project.uses(endpoint)
    project.aish.env["A_KEY"] = "a key that nobody is to see"
    rows(project, 12)
    model = 'models: {m: {base_url: "${MODEL_URL}", model: scripted, key_env: A_KEY}}\n'
    server = f"mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__big]}}\n"
    project.pipeline(model + server + dedent(PIPELINE))
    elsewhere = tmp_path_factory.mktemp("cluster")

    with dask_cluster(elsewhere, project.aish.env, workers=2) as cluster:
        first = project.run("--cluster", cluster.address, *cluster.flags)
        again = project.run("--cluster", cluster.address, *cluster.flags)
        stranger = project.run("--cluster", cluster.address, *_strange(elsewhere / "strange"))

    assert (first.code, again.code) == (0, 0), first.stderr
    assert {r.headers["authorization"] for r in endpoint.requests} == {
        "Bearer a key that nobody is to see"
    }
    logs = [path.read_text() for path in elsewhere.glob("*.log")]
    assert "a key that nobody is to see" not in "".join([*logs, project.everything_written()])
    # Beside each text there is the structured result, for a resume.
    kept = list((project.run_folders[0] / "files").glob("*.txt"))
    assert len(kept) == 13
    assert len({path.read_text() for path in kept}) == 1
    assert stranger.code == 5, stranger.stderr


def _strange(folder: Path) -> tuple[str, ...]:
    """The certificate of somebody whom the cluster does not know."""
    from distributed import Security

    folder.mkdir()
    made = Security.temporary()
    (folder / "cert.pem").write_text(made.tls_ca_file)
    (folder / "key.pem").write_text(made.tls_client_key)
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    return "--cluster-ca", cert, "--cluster-cert", cert, "--cluster-key", key


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_what_workers_sent_is_in_the_journal_too(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    system, long = "Be brief. " * 300, "long text " * 5_000
    project.uses(model_endpoint(echo))
    rows(project, 8)
    project.pipeline(f"""
        steps:
          - id: each
            foreach: {{file: rows.jsonl}}
            key: item.id
            system: {system!r}
            prompt: "{{{{ item.id }}}} {long}"
        """)

    done = project.run("--cluster", "local:2", "--concurrency", "2", "-q")
    shown = project.aish("runs", "show", "latest", "--messages", "--format", "json")

    assert done.code == 0, done.stderr
    found = json.loads(shown.stdout)["requests"]
    told = {one["item"]: [message["text"] for message in one["messages"]] for one in found}
    systems = list((project.run_folders[0] / "files").glob("*-system.txt"))
    assert told == {f"r{n}": [system, f"r{n} {long}"] for n in range(8)}
    assert len(systems) == 1, "what all items begin with is kept once"


@pytest.mark.slow(reason="starts a cluster of its own; others in this file do too")
def test_workers_mark_changed_files_with_the_tag_of_the_run(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(echo)
    project.uses(endpoint)
    project.write("a.md", "text\n")
    rows(project, 4)
    project.pipeline(f"context: {{files: a.md}}\n{dedent(PIPELINE)}")

    done = project.run("--cluster", "local:2")

    assert done.code == 0, done.stderr
    said = [asked(body) for body in endpoint.asked]
    assert len({text.partition("files updated ")[2].partition("]")[0] for text in said}) == 1
    assert all(text.startswith("[attached: a.md (text/markdown)]\ntext\n") for text in said)
