"""`aish test --live --recorded-tools`: a live model on the tools of a cassette."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from batch_servers import BatchServer
from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import Reply, text_reply, tool_reply

ECHO = ("s__echo", '{"text": "one"}')
OTHER_ECHO = ("s__echo", '{"text": "two"}')
READ = ("repo__file_read", '{"path": "notes.txt"}')
WRITE = ("repo__file_write", '{"path": "out.txt", "content": "done"}')
RECORDED = (ECHO, READ, WRITE)
TESTS = """
tests:
  - name: writes
    cassette: c.yaml
    expect: [{contains: Done}]
"""


class Script:
    """A model whose runs each make the calls of the next script, one a turn, and say `Done.`"""

    def __init__(self, *scripts: Sequence[tuple[str, str]]) -> None:
        self.scripts = scripts
        self.runs = 0

    def __call__(self, request: Any) -> Reply:
        turn = sum(one["role"] == "assistant" for one in request["messages"])
        self.runs += turn == 0
        calls = self.scripts[(self.runs - 1) % len(self.scripts)]
        if turn == len(calls):
            return text_reply("Done.")
        name, arguments = calls[turn]
        return tool_reply([(f"c{turn}", name, arguments)])


def use(project: Project, command: str, more: str = "") -> None:
    project.pipeline(
        f"""
        models:
          m: {{base_url: "${{MODEL_URL}}", model: scripted, price: {{input: 1, output: 2}}}}
        mcp:
          servers:
            s: {{command: {command}}}
            repo: {{pack: [fs], root: .}}
          auto_approve: ["s__*", repo__file_read, repo__file_write, shell__run]
        steps:
          - {{id: begin, run: [touch, ran]}}
          - {{id: main, needs: [begin], prompt: "Write. {more}"}}
        """
        + TESTS.replace("\n", "\n        ")
    )


@pytest.fixture
def recorded(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A case that was recorded with real tools, none of which can be used any more."""
    project.write("notes.txt", "buy milk")
    project.uses(model_endpoint(Script(RECORDED)))
    use(project, stdio())
    done = project.aish("test", "--record", "p.yaml")
    assert done.code == 0, done.stdout + done.stderr
    for name in ("out.txt", "ran", "notes.txt"):
        (project.folder / name).unlink()
    use(project, '["/no/such/server"]')
    return project


def results(project: Project, *options: str) -> tuple[int, Any, Any]:
    done = project.aish(
        *("test", "--live", "--recorded-tools", "-n", "1", "p.yaml", "--format", "json"), *options
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    return done.code, found, found["cases"][0]["results"][0]


@pytest.mark.requirement("V12")
def test_a_live_model_on_recorded_tools_may_read_again_and_leaves_where_it_goes_further(
    recorded: Project, model_endpoint: ModelEndpoints
) -> None:
    # A changed prompt, another order, reading twice; then an unknown call, and writing twice.
    script = Script(
        RECORDED,
        (WRITE, READ, ECHO, READ, READ, ECHO),
        (READ, OTHER_ECHO),
        (WRITE, WRITE),
    )
    endpoint = model_endpoint(script)
    recorded.uses(endpoint)
    use(recorded, '["/no/such/server"]', "Please.")

    reports = ("--junit", "t.xml", "--html", "t.html")
    done = recorded.aish("test", "--live", "--recorded-tools", "-n", "1", "--repeat", "4", *reports)

    assert done.code == 0, done.stdout + done.stderr
    assert "  p.yaml::writes: 2 runs\n    " in done.stdout
    assert "no recording matches `tools/call echo` to `mcp+stdio://s`" in done.stdout
    assert "1 passed, 2 runs left the recording, cost " in done.stdout
    assert not {"out.txt", "ran"} & {one.name for one in recorded.folder.iterdir()}
    assert "2 of 2 passed\n2 runs left the recording: " in (recorded.folder / "t.xml").read_text()
    assert "2 of 2, 2 left" in (recorded.folder / "t.html").read_text("utf-8")

    # More than half of its runs left: nothing is known of the case.
    twice = (WRITE, WRITE)
    script.scripts, script.runs = (twice, (READ,), twice, twice, (READ,)), 0
    code, found, cell = results(recorded, "--repeat", "5")
    assert (code, cell["verdict"], cell["left"]) == (6, "unmeasured", 3), cell
    assert [run["verdict"] for run in cell["runs"]] == ["left", "passed", "left", "left"]
    assert "`tools/call file_write`" in cell["first_left"]
    assert (found["recorded_tools"], found["models"][0]["left"]) == (True, 3)
    script.runs = 0
    code, _, cell = results(recorded)
    assert (code, cell["verdict"]) == (6, "unmeasured")


def test_baselines_of_recorded_and_of_live_tools_are_kept_apart(
    recorded: Project, model_endpoint: ModelEndpoints
) -> None:
    recorded.uses(model_endpoint(Script(RECORDED, (READ,), (WRITE, WRITE))))
    run = ("test", "--live", "--recorded-tools", "p.yaml", "--repeat", "4", "-q")

    written = recorded.aish(*run, "--write-baseline", "b.json")
    assert written.code == 0, written.stdout + written.stderr
    compared = recorded.aish(*run, "--baseline", "b.json")
    itself = recorded.aish(*run, "--against", "itself")
    live = recorded.aish("test", "--live", "p.yaml", "--baseline", "b.json")

    assert (compared.code, itself.code) == (0, 0), compared.stdout + itself.stdout
    assert "no difference shown" in compared.stdout
    assert "the same as itself" in itself.stdout
    assert live.code == 2
    assert "b.json: was made with recorded tools, and these runs have live ones" in live.stderr


@pytest.mark.slow(reason="a batch is collected")
def test_models_are_asked_by_batches_and_with_keys_that_a_command_makes(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.shorten_pauses()
    project.write("key.sh", "#!/bin/sh\necho made-key-0123456789\n").chmod(0o755)
    entry = 'models: {{m: {{base_url: "{}", model: s, key_command: [./key.sh]{}}}}}\n'
    text = "prompt: Say hello\ntests: [{name: t, cassette: c.yaml, expect: [{contains: ello}]}]\n"
    project.pipeline(entry.format(model_endpoint([text_reply("Hello.")]).base_url, "") + text)
    assert project.aish("test", "--record", "p.yaml").code == 0

    with BatchServer("chat") as server:
        url = server.base_url.replace("127.0.0.1", "localhost")
        project.pipeline(entry.format(url, ", delivery: batch") + text)
        done = project.aish("test", "--live", "--recorded-tools", "p.yaml")

    assert done.code == 0, done.stdout + done.stderr
    assert len(server.batches) == 1
