"""`aish runs export`: views of a journal as files, the same bytes each time (A13)."""

import json
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project, of_type, stdio, wait_file
from markdown_it import MarkdownIt
from model_endpoint import Gate, text_reply, tool_reply
from samples import sampled
from syrupy.assertion import SnapshotAssertion

from aish.core.text import for_ci_log, for_terminal

FILES = {"comms.jsonl", "toolcalls.md", "control.log", "commands.jsonl"}
COMMANDS = """
models: {}
mcp:
  servers:
    box: {pack: [shell, proc], root: .}
  auto_approve:
    - box__shell_run
    - box__process_start
    - box__process_input
    - box__process_output
    - box__process_stop
    - {tool: shell__run, command: [printf, "**"]}
    - {tool: shell__run, command: ["sh", "prints.sh"]}
on_denied: continue
steps:
  - {id: words, run: [sh, prints.sh]}
  - {id: denied, needs: [words], run: [touch, never]}
  - id: line
    needs: [denied]
    on_error: continue
    call: box__shell_run
    with: {command: "echo a; exit 3", shell: bash}
  - id: slow
    needs: [line]
    on_error: continue
    call: box__shell_run
    with: {command: "echo half; touch late; sleep 60", timeout_seconds: 20}
  - {id: start, needs: [slow], call: box__process_start, with: {command: cat, args: ["-"]}}
  - id: feed
    needs: [start]
    call: box__process_input
    with: {id: p1, input: "fed\\n", close: true}
  - id: out
    needs: [feed]
    call: box__process_output
    with: {id: p1, wait_for: what never comes, wait_seconds: 20}
  - {id: stop, needs: [out], call: box__process_stop, with: {id: p1}}
  - id: many
    needs: [stop]
    foreach: "['x y', 'z']"
    concurrency: 1
    run: [printf, "%s", "{{ item }}"]
"""


def export(project: Project, folder: str = "out", *words: str) -> Done:
    return project.aish("runs", "export", "latest", folder, *words)


def rows(project: Project, name: str, folder: str = "out") -> list[Any]:
    text = (project.folder / folder / name).read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def everything(folder: Path) -> dict[str, bytes]:
    """The files of an export by their paths in it."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def text_of(folder: Path) -> str:
    return "\n".join(data.decode() for data in everything(folder).values())


# --- What the files have ----------------------------------------------------------------------


@pytest.fixture
def small(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A run with a model that reads a file, writes one and may not delete one."""
    calls = [
        ("c1", "repo__file_read", '{"path": "a.txt"}'),
        ("c2", "repo__file_write", '{"path": "b.txt", "content": "b"}'),
        ("c3", "repo__file_exists", '{"path": "a.txt"}'),
    ]
    project.uses(model_endpoint([tool_reply(calls), text_reply("done")]))
    project.write("a.txt", "first\nsecond\n")
    project.pipeline("""
        mcp:
          servers: {repo: {pack: fs, root: .}}
          auto_approve: [repo__file_read, repo__file_write]
          deny: [repo__file_exists]
        on_denied: continue
        steps:
          - {id: ask, system: Be brief., prompt: Use your tools}
        """)
    assert project.run().code == 0
    return project


def test_the_files_of_a_small_run(small: Project, snapshot: SnapshotAssertion) -> None:
    done = export(small)

    assert (done.code, done.stderr) == (0, "")
    assert small.tidy(done.stdout) == snapshot(name="stdout")
    assert {path.name for path in (small.folder / "out").iterdir()} == FILES | {"scripts"}
    (run,) = small.run_folders
    for name in sorted(FILES):
        text = (small.folder / "out" / name).read_text("utf-8").replace(run.name, "<run>")
        text = re.sub(r"started by .*, aish \S+", "started by <user>, aish <version>", text)
        assert small.tidy(text) == snapshot(name=name)


def test_each_message_is_there_once_in_the_order_of_the_journal(small: Project) -> None:
    assert export(small).code == 0

    lines = rows(small, "comms.jsonl")
    assert [line["seq"] for line in lines] == sorted(line["seq"] for line in lines)
    said = [(line["direction"], line["kind"]) for line in lines]
    assert said[:2] == [("out", "request"), ("in", "response")]
    assert said[-2:] == [("out", "request"), ("in", "response")]
    assert sorted(said[2:-2]) == 2 * [("in", "tool_result")] + 2 * [("out", "tool_call")]
    first, last = lines[0]["payload"]["messages"], lines[-2]["payload"]["messages"]
    assert [one["role"] for one in first] == ["system", "user"]
    assert [one["role"] for one in last] == ["assistant", "tool", "tool", "tool"]
    denied = last[-1]["content"]
    assert denied.startswith("[aish] tool call denied"), "it was not sent, but told to the model"


def test_the_same_bytes_each_time(small: Project) -> None:
    assert export(small, "one").code == export(small, "two").code == 0

    one, two = (everything(small.folder / name) for name in ("one", "two"))
    assert one == two
    assert set(one) >= FILES


def test_what_was_written_as_json(small: Project) -> None:
    told = json.loads(export(small, "out", "--format", "json").stdout)

    (run,) = small.run_folders
    assert (told["v"], told["run"], told["folder"]) == (1, run.name, "out")
    assert (told["state"], told["writer"]) == ("ended", None)
    assert told["files"]["comms.jsonl"] == len(rows(small, "comms.jsonl"))
    assert told["files"]["toolcalls.md"] == 3


@pytest.fixture
def commanded(project: Project) -> Project:
    """A run with commands of steps and of packs."""
    project.write("prints.sh", "echo out\necho err >&2\n")
    project.pipeline(COMMANDS)
    python = project.aish.python
    project.times_out(20, "late")
    project.run()
    project.aish.python = python
    return project


@pytest.mark.slow(reason="runs and exports commands; as scripts they are in another test")
def test_commands_with_what_they_were_and_what_they_printed(commanded: Project) -> None:
    done = export(commanded)

    assert done.code == 0, done.stderr
    found = {(line["step"], line["item"]): line for line in rows(commanded, "commands.jsonl")}
    assert ("denied", None) not in found
    words, line, slow = (found[step, None] for step in ("words", "line", "slow"))
    assert words["argv"] == ["sh", "prints.sh"]
    assert (words["stdout"], words["stderr"], words["exit_code"]) == ("out\n", "err\n", 0)
    assert words["seconds"] > 0
    assert line["argv"] == ["bash", "-c", "echo a; exit 3"]
    assert (line["stdout"], line["exit_code"], line["cwd"]) == ("a\n", 3, ".")
    assert (slow["stdout"], slow["kind"]) == ("half\n", "handler_error")
    start, feed, out, stop = (found[step, None] for step in ("start", "feed", "out", "stop"))
    assert [one["process"] for one in (start, feed, out, stop)] == 4 * ["p1"]
    assert [one["argv"] for one in (start, feed, out, stop)] == 4 * [["cat", "-"]]
    assert (feed["stdin"], out["output"], stop["exit_code"]) == ("fed\n", "fed\n", 0)
    printed = [line["stdout"] for (step, _), line in found.items() if step == "many"]
    assert printed == ["x y", "z"]


def test_each_command_that_was_made_is_a_script(commanded: Project) -> None:
    assert export(commanded).code == 0

    scripts = sorted((commanded.folder / "out" / "scripts").iterdir())
    assert [script.read_text("utf-8") for script in scripts] == [
        "sh prints.sh\n",
        "echo a; exit 3\n",
        "echo half; touch late; sleep 60\n",
        "cat -\n",
        "printf %s 'x y'\n",
        "printf %s z\n",
    ]
    for number, script in enumerate(scripts, 1):
        assert re.fullmatch(rf"\d{{8}}T\d{{6}}Z_{number:04d}\.sh", script.name)
    named = [line["script"] for line in rows(commanded, "commands.jsonl") if line["script"]]
    assert named == [f"scripts/{script.name}" for script in scripts]


def test_commands_of_a_pipeline_within_a_pipeline(project: Project) -> None:
    inner = """
        models: {}
        inputs: {word: {}}
        mcp:
          servers: {box: {pack: shell, root: .}}
          auto_approve: [box__shell_run, shell__run]
        steps:
          - {id: pack, call: box__shell_run, with: {command: "echo pack {{ inputs.word }}"}}
          - {id: step, run: [echo, step, "{{ inputs.word }}"]}
        """
    project.pipeline(inner, "inner.yaml")
    project.pipeline("""
        models: {}
        steps:
          - id: outer
            foreach: "['one', 'two']"
            concurrency: 1
            pipeline: inner.yaml
            with: {word: "{{ item }}"}
        """)
    done = project.run()
    assert done.code == 0, done.stderr

    assert export(project).code == 0

    found = {(line["step"], line["item"]): line for line in rows(project, "commands.jsonl")}
    printed = {key: line["stdout"] for key, line in found.items()}
    assert printed == {
        ("outer/pack", "0"): "pack one\n",
        ("outer/step", "0"): "step one\n",
        ("outer/pack", "1"): "pack two\n",
        ("outer/step", "1"): "step two\n",
    }


def test_an_attempt_of_a_step_that_was_repeated(project: Project) -> None:
    project.write("fails.sh", "echo no; test -e again || { touch again; exit 1; }\necho yes\n")
    project.pipeline("""
        models: {}
        mcp: {auto_approve: [shell__run]}
        steps: [{id: go, retry: {attempts: 2, on: [call_unknown]}, run: [sh, fails.sh]}]
        """)
    assert project.run().code == 0

    assert export(project).code == 0

    first, last = rows(project, "commands.jsonl")
    assert (first["kind"], first["exit_code"], first["stdout"]) == ("ok", 1, "no\n")
    assert (last["kind"], last["stdout"], last["output"]) == ("ok", "no\nyes\n", None)
    assert "retry: step go: " in (project.folder / "out" / "control.log").read_text("utf-8")


def test_tools_of_a_server_that_are_called_like_those_of_a_pack_make_no_commands(
    project: Project,
) -> None:
    project.write("server.py", FOREIGN)
    command = json.dumps([sys.executable, "server.py"])
    project.pipeline(f"""
        models: {{}}
        mcp:
          servers: {{s: {{command: {command}}}}}
          auto_approve: [s__shell_run]
        steps: [{{id: go, call: s__shell_run, with: {{command: "rm -rf /"}}}}]
        """)
    done = project.run()
    assert done.code == 0, done.stderr

    assert export(project).code == 0

    assert rows(project, "commands.jsonl") == []
    assert list((project.folder / "out" / "scripts").iterdir()) == []
    assert [line["kind"] for line in rows(project, "comms.jsonl")] == ["tool_call", "tool_result"]


FOREIGN = """
import json, sys

def answer(asked):
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            server = {"name": "foreign", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            schema = {"type": "object", "properties": {"command": {"type": "string"}}}
            return {"tools": [{"name": "shell_run", "inputSchema": schema}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": "not run"}]}

for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        found = answer(asked)
        problem = {"error": {"code": -32601, "message": "unknown method"}}
        reply = problem if found is None else {"result": found}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}), flush=True)
"""


def test_long_texts_are_whole(project: Project, model_endpoint: ModelEndpoints) -> None:
    question, told = "q" * 40_000, "t" * 90_000
    calls = [("c1", "s__echo", json.dumps({"text": told}))]
    project.uses(model_endpoint([tool_reply(calls), text_reply("done")]))
    project.pipeline(f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}
        inputs: {{q: {{}}}}
        prompt: "{{{{ inputs.q }}}}"
        """)
    assert project.run("-i", f"q={question}").code == 0
    (ended,) = of_type(project.journal, "tool.finished")
    assert ended["full"], "it was cut for the model"

    assert export(project).code == 0

    request, _, _, result, *_ = rows(project, "comms.jsonl")
    assert request["payload"]["messages"][0]["text"] == question
    assert told in result["payload"]["content"]
    assert result["payload"]["truncated"] is False
    assert told in (project.folder / "out" / "toolcalls.md").read_text("utf-8")

    (project.run_folders[0] / ended["full"]).unlink()
    assert export(project, "less").code == 0
    result = rows(project, "comms.jsonl", "less")[3]
    assert result["payload"]["truncated"] is True
    assert (
        "the file with all of it is missing"
        in (project.folder / "less" / "toolcalls.md").read_text()
    )


def test_a_session_of_the_shell(project: Project, model_endpoint: ModelEndpoints) -> None:
    project.uses(model_endpoint([text_reply("one"), text_reply("two")]))
    project.pipeline("")
    assert project.aish("shell", "p.yaml", stdin="first\nsecond\n").code == 0

    done = export(project, "out", "--run-dir", ".aish/sessions")

    assert done.code == 0, done.stderr
    log = (project.folder / "out" / "control.log").read_text("utf-8").splitlines()
    assert [
        line.partition(" of ")[2].partition(": ")[2] for line in log if "question of" in line
    ] == [
        "first",
        "second",
    ]
    answers = [one for one in rows(project, "comms.jsonl") if one["kind"] == "response"]
    assert [one["payload"]["text"] for one in answers] == ["one", "two"]


# --- Runs that did not end, and journals that are not whole -----------------------------------


def test_a_run_that_goes_on(project: Project, model_endpoint: ModelEndpoints) -> None:
    gate = Gate()
    project.uses(model_endpoint([text_reply("late").but(before_head=gate)]))
    project.pipeline("prompt: Hello")
    with project.aish.start("run", "p.yaml") as running:
        gate.wait_arrived()
        done = export(project)
        gate.open()
        assert running.finish().code == 0

    assert done.code == 0
    assert done.stdout.endswith(f"still running: process {running.pid} writes the journal\n")
    assert [line["kind"] for line in rows(project, "comms.jsonl")] == ["request"]
    assert export(project, "after").code == 0
    assert [line["kind"] for line in rows(project, "comms.jsonl", "after")] == [
        "request",
        "response",
    ]


def test_a_run_that_was_killed_in_the_middle_of_a_command(project: Project) -> None:
    project.write("hangs.sh", "echo half; touch started; exec sleep 600\n")
    project.pipeline("""
        models: {}
        mcp: {auto_approve: [shell__run]}
        steps: [{id: wait, run: [sh, hangs.sh]}]
        """)
    with project.aish.start("run", "p.yaml") as running:
        wait_file(project.folder / "started")
        running.kill()

    done = export(project)

    assert done.code == 0, done.stderr
    assert done.stdout.endswith("interrupted: the journal has no end\n")
    (command,) = rows(project, "commands.jsonl")
    assert (command["argv"], command["kind"], command["stdout"]) == (["sh", "hangs.sh"], None, None)
    (script,) = (project.folder / "out" / "scripts").iterdir()
    assert script.read_text("utf-8") == "sh hangs.sh\n"
    assert (
        "result: none, the run ended first" in (project.folder / "out" / "toolcalls.md").read_text()
    )


def test_a_run_that_was_stopped_and_resumed(project: Project) -> None:
    project.write("hangs.sh", "test -e started && exit 0; touch started; exec sleep 600\n")
    project.pipeline("""
        models: {}
        mcp: {auto_approve: [shell__run], idempotent: [shell__run]}
        steps: [{id: wait, run: [sh, hangs.sh]}]
        """)
    with project.aish.start("run", "p.yaml") as running:
        wait_file(project.folder / "started")
        running.interrupt()
        assert running.finish().code == 130
    assert project.run("--resume").code == 0

    assert export(project).code == 0

    log = (project.folder / "out" / "control.log").read_text("utf-8")
    said = [line.partition(" ")[2] for line in log.splitlines()]
    assert sum("started by" in line for line in said) == 2
    assert "resumed from" in log
    assert "signal: SIGINT" in said
    assert said[-1] == "run finished: ok, exit 0 (ok)"
    assert len(rows(project, "commands.jsonl")) == 2


def journal_of(project: Project) -> Path:
    (folder,) = project.run_folders
    return folder / "events.jsonl"


def test_a_torn_journal_gives_what_is_whole(small: Project) -> None:
    journal = journal_of(small)
    journal.write_bytes(journal.read_bytes()[:-20])

    done = export(small)

    assert done.code == 0
    assert done.stdout.endswith("interrupted: the journal has no end\n")
    assert len(rows(small, "comms.jsonl")) == 8
    assert "run finished" not in (small.folder / "out" / "control.log").read_text("utf-8")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_damaged_journal_gives_what_precedes_the_damage(small: Project, form: str) -> None:
    journal = journal_of(small)
    lines = journal.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"turn.finished"' in line)
    lines[at] = lines[at].replace(b"tool_calls", b"tool_colls", 1)
    journal.write_bytes(b"".join(lines))

    done = export(small, "out", "--format", form)

    assert done.code == small.aish("runs", "show", "latest").code == 2
    assert f"events.jsonl:{at + 1}: " in done.stderr
    assert "is damaged" in done.stderr
    assert [line["kind"] for line in rows(small, "comms.jsonl")] == ["request"]
    if form == "json":
        assert json.loads(done.stdout)["state"] == "unreadable"


@pytest.mark.requirement("A13")
def test_a_run_without_a_journal(project: Project) -> None:
    (project.folder / ".aish" / "runs" / "20261101T120640Z-p-aaaa").mkdir(parents=True)

    done = export(project)

    assert done.code == 2
    assert "it has no journal" in done.stderr
    assert not (project.folder / "out").exists()


def test_a_run_that_is_not_there(project: Project) -> None:
    done = project.aish("runs", "export", "nothing", "out")

    assert done.code == 2
    assert not (project.folder / "out").exists()


# --- Secrets and untrusted text ---------------------------------------------------------------


def test_secrets_are_nowhere_in_it(project: Project, model_endpoint: ModelEndpoints) -> None:
    key = "sk-planted-0123456789"
    calls = [
        ("c1", "box__shell_run", json.dumps({"command": f"echo {key} $((1 + 1)); echo {key} >&2"})),
        ("c2", "box__shell_run", json.dumps({"command": f"printf '%70000s' {key}"})),
    ]
    project.uses(model_endpoint([tool_reply(calls), text_reply(f"it is {key}")]))
    project.aish.env["KEY"] = key
    project.pipeline(f"""
        secrets: [KEY]
        mcp: {{servers: {{box: {{pack: shell, root: .}}}}, auto_approve: [box__shell_run]}}
        steps:
          - {{id: ask, prompt: "say {key}"}}
        """)
    assert project.run().code == 0

    assert export(project).code == 0

    found = text_of(project.folder / "out")
    assert key not in found
    assert "KEY" in found, "its name stands there"
    assert len(list((project.folder / "out" / "scripts").iterdir())) == 2


HOSTILE = (
    "\x1b[2J\x1b]0;t\x07</pre><script>alert(1)</script><img src=x onerror=y> ![i](http://e.test/i)"
    "\n\n```\n[click](javascript:x) @everyone #1 https://e.test/\n\n    code\n## no heading\n"
    "::error::x\n##vso[task.setvariable]\n\u202e\u200b\r| a | b |\n|---|---|\n</pre>\n\n- [ ] x\n"
)


def test_hostile_text_stays_text(project: Project, model_endpoint: ModelEndpoints) -> None:
    calls = [("c1", "s__echo", json.dumps({"text": HOSTILE}))]
    project.uses(model_endpoint([tool_reply(calls), text_reply(HOSTILE)]))
    project.pipeline(f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}
        inputs: {{hostile: {{}}}}
        steps: [{{id: one, foreach: "[inputs.hostile]", prompt: "{{{{ item }}}}"}}]
        """)
    done = project.run("-i", f"hostile={HOSTILE}")
    assert done.code == 0, done.stderr

    done = export(project)

    assert done.code == 0
    for name in FILES:
        text = (project.folder / "out" / name).read_text("utf-8")
        assert for_terminal(text) == text
        assert for_ci_log(text) == text
    page = (project.folder / "out" / "toolcalls.md").read_text("utf-8")
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(page)
    tags = set(re.findall(r"<\s*/?\s*([a-z0-9]+)", html))
    assert tags == {"h1", "h2", "ul", "li", "p", "pre", "code"}
    assert html.count("<pre>") == html.count("</pre>") == 2
    assert '{\n  "text": "' in page
    (command,) = [one for one in rows(project, "comms.jsonl") if one["kind"] == "tool_result"]
    assert (
        command["payload"]["content"].endswith(HOSTILE.rstrip("\n"))
        or HOSTILE in command["payload"]["content"]
    )


# --- The folder -------------------------------------------------------------------------------


def modes(folder: Path) -> set[tuple[bool, int]]:
    """Each kind of mode in a folder: whether it is of a folder, and the bits."""
    found = [folder, *folder.rglob("*")]
    return {(path.is_dir(), stat.S_IMODE(path.lstat().st_mode)) for path in found}


@pytest.mark.parametrize(
    "folder", sampled(["out", "new/below/out", "given"], often={0}, reason="cases of the same kind")
)
def test_files_are_private_whatever_the_umask(commanded: Project, folder: str) -> None:
    given = commanded.folder / "given"
    given.mkdir()
    given.chmod(0o777)
    commanded.through_shell('umask 000; exec "$@"')

    done = export(commanded, folder)

    assert done.code == 0, done.stderr
    assert modes(commanded.folder / folder) == {(True, 0o700), (False, 0o600)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["full", "file", "link", "dangling", "run's folder"])
def test_a_folder_that_is_not_new_is_left_alone(small: Project, kind: str) -> None:
    place = small.folder / "out"
    target = small.folder / "target"
    match kind:
        case "full":
            place.mkdir(mode=0o755)
            (place / "mine").write_text("mine")
        case "file":
            place.write_text("mine")
        case "link":
            target.mkdir()
            place.symlink_to(target)
        case "dangling":
            place.symlink_to(target)
        case _:
            place = small.run_folders[0]
    before = everything(small.folder)
    mode = place.lstat().st_mode

    done = export(small, str(place.relative_to(small.folder)))

    assert (done.code, done.stdout) == (2, "")
    wanted = "is not empty" if kind in {"full", "run's folder"} else "is a link or not a folder"
    assert wanted in done.stderr
    assert everything(small.folder) == before
    assert place.lstat().st_mode == mode
    assert not target.exists() or not any(target.iterdir())


@pytest.mark.requirement("X9")
def test_a_link_among_the_files_of_a_planted_run_is_not_followed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    told = "t" * 90_000
    calls = [("c1", "s__echo", json.dumps({"text": told}))]
    project.uses(model_endpoint([tool_reply(calls), text_reply("done")]))
    project.pipeline(f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}
        prompt: Go
        """)
    assert project.run().code == 0
    files = project.run_folders[0] / "files"
    elsewhere = project.folder / "elsewhere"
    files.rename(elsewhere)
    for path in elsewhere.iterdir():
        path.write_text("private")
    files.symlink_to(elsewhere)

    assert export(project).code == 0

    assert "private" not in text_of(project.folder / "out")


@pytest.mark.slow(reason="exports again and again on a disk that fills up")
def test_a_full_disk_leaves_nothing(commanded: Project) -> None:
    python = commanded.aish.python
    commanded.through_shell('ulimit -f 2; exec "$@"')

    done = export(commanded)

    assert done.code == 1
    assert re.match(r"error: out/\S+: cannot write: ", done.stderr)
    assert not (commanded.folder / "out").exists()
    commanded.aish.python = python
    assert export(commanded).code == 0


def test_a_run_whose_commands_were_kept_is_deleted_with_them(project: Project) -> None:
    project.pipeline("""
        models: {}
        mcp:
          servers: {box: {pack: shell, root: ., options: {shell: {keep_scripts: true}}}}
          auto_approve: [box__shell_run]
        steps: [{id: go, call: box__shell_run, with: {command: echo hi}}]
        """)
    assert project.run().code == 0
    assert (project.run_folders[0] / "scripts").is_dir()

    done = project.aish("runs", "clean", "--keep", "0")

    assert (done.code, done.stderr) == (0, "")
    assert project.run_folders == []
