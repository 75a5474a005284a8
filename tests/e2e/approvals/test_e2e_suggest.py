"""`aish policy suggest`: rules out of what was done, and into a file that else stays the same."""

import json
import shutil
from pathlib import Path

import pytest
from cli_process import Done
from e2e_project import REPO, ModelEndpoints, Project, of_type, stdio
from model_endpoint import text_reply, tool_reply
from recorded_runs import command, read, session, write
from syrupy.assertion import SnapshotAssertion

from aish.journal.reader import read_journal

CALLS = [
    ("c1", "s__echo", '{"text": "docs/a.md"}'),
    ("c2", "s__echo", '{"text": "docs/b.md"}'),
    ("c3", "s__add", '{"a": 1, "b": 2}'),
    ("c4", "s__big", '{"n": 9}'),
]
WIDE = f"""
mcp:
  servers: {{s: {{command: {stdio()}}}}}
  auto_approve: ["s__*", shell__run]
  deny: ["*__big"]
on_denied: continue
steps:
  - {{id: ask, prompt: Use your tools}}
  - {{id: list, run: [ls, docs], needs: [ask]}}
"""
NARROW = f"""
mcp: # whose tools
  servers: {{s: {{command: {stdio()}}}}}
  auto_approve:
    - s__empty   # this one is harmless
    # more to come

  deny: ["*__big"]
on_denied: continue
steps:
  - {{id: ask, prompt: Use your tools}}
  - {{id: list, run: [ls, docs], needs: [ask]}}
"""
RULES = [
    {"tool": "s__echo", "when": {"text": "docs/*.md"}, "schema": {"maxProperties": 1}},
    {"tool": "s__add", "when": {"a": 1, "b": 2}, "schema": {"maxProperties": 2}},
    {"tool": "shell__run", "when": {"argv": ["ls", "docs"]}, "schema": {"maxProperties": 1}},
]


@pytest.fixture
def ran(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A project in which a run with wide rules has called tools."""
    endpoint = model_endpoint([tool_reply(CALLS), text_reply("done")] * 2)
    project.uses(endpoint)
    project.write("docs/x", "")
    project.pipeline(WIDE)
    assert project.run().code == 0
    return project


def suggest(project: Project, *arguments: str | Path) -> Done:
    return project.aish("policy", "suggest", *arguments)


def suggested(project: Project, *arguments: str | Path) -> list[object]:
    done = suggest(project, *arguments, "--format", "json")
    assert done.code == 0, done.stderr
    rules: list[object] = json.loads(done.stdout)["rules"]
    return rules


# --- What is read ----------------------------------------------------------------------------


def test_a_run_tells_its_rules_by_any_of_its_names(
    ran: Project, snapshot: SnapshotAssertion
) -> None:
    (folder,) = ran.run_folders
    done = suggest(ran, "latest")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == snapshot
    relative = folder.relative_to(ran.folder)
    # Four random characters alone may spell the name of a folder that there is: `docs`.
    end = folder.name[-6:]
    names = ("latest", folder.name, end, relative, relative / "events.jsonl", folder)
    for name in names:
        assert suggested(ran, name) == RULES


def test_a_session_is_read_as_a_run_is(ran: Project) -> None:
    (folder,) = ran.run_folders
    sessions = ran.folder / ".aish" / "sessions"
    sessions.mkdir(mode=0o700)
    folder.rename(sessions / folder.name)
    for name in ("latest", folder.name, sessions.relative_to(ran.folder) / folder.name):
        assert suggested(ran, name) == RULES


def test_a_cassette_tells_its_rules(project: Project) -> None:
    recorded = [*session(), read("docs/a.md", "A"), read("docs/b.md", "B"), command("l", ["ls"])]
    write(project.folder / "run.yaml", recorded)
    done = suggest(project, "run.yaml")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == (
        "mcp:\n  auto_approve:\n"
        "    - {tool: files__read, when: {path: docs/*.md}, schema: {maxProperties: 1}}\n"
        "    - {tool: shell__run, when: {argv: [ls]}, schema: {maxProperties: 1}}\n"
    )


def test_what_is_no_run_is_said(project: Project) -> None:
    project.write("empty/x", "")
    for name, said in (
        ("latest", "there are no runs"),
        ("empty", "there is no run and no cassette"),
    ):
        done = suggest(project, name)
        assert (done.code, done.stdout) == (2, "")
        assert said in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(path.stem for path in (REPO / "pipelines").glob("*.yaml")))
def test_the_rules_of_our_own_cassettes_are_taken_by_their_pipelines(
    project: Project, name: str
) -> None:
    shutil.copytree(REPO / "pipelines", project.folder / "pipelines")
    shutil.copytree(REPO / "tests" / "cassettes", project.folder / "tests" / "cassettes")
    path, cassette = f"pipelines/{name}.yaml", f"tests/cassettes/{name}.yaml"

    before = (project.folder / path).read_text()
    done = suggest(project, cassette, "--write", path)
    again = suggest(project, cassette, "--write", path)

    assert (done.code, again.code) == (0, 0), done.stderr
    assert "written" not in again.stderr
    # Rules that are there are wide enough: nothing but new rules was added.
    after = (project.folder / path).read_text()
    assert [line for line in after.splitlines() if line in before] == before.splitlines()


# --- What is written -------------------------------------------------------------------------


def test_rules_that_are_written_let_the_same_run_pass_and_nothing_more(
    ran: Project, snapshot: SnapshotAssertion
) -> None:
    path = ran.pipeline(NARROW, "narrow.yaml")
    path.chmod(0o640)

    done = suggest(ran, "latest", "--write", "narrow.yaml")

    assert done.code == 0, done.stderr
    assert done.stderr == "narrow.yaml: written, 3 rules added\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert ran.tidy(path.read_text()) == snapshot
    assert ran.aish("run", "narrow.yaml").code == 0
    folder = ran.run_folders[-1]
    with read_journal(folder / "events.jsonl") as reading:
        verdicts = [(e["tool"], e["verdict"]) for e in of_type(list(reading), "tool.decided")]
    assert verdicts == [
        ("s__echo", "auto"),
        ("s__echo", "auto"),
        ("s__add", "auto"),
        ("s__big", "deny"),
        ("shell__run", "auto"),
    ]
    for tool, arguments in (
        ("s__echo", {"text": "docs/../a.md"}),
        ("s__echo", {"text": "docs/a.md", "more": 1}),
        ("s__add", {"a": 1, "b": 3}),
        ("s__sleep", {}),
        ("shell__run", {"argv": ["ls", "docs", "-R"]}),
    ):
        asked = ("--tool", tool, "--args", json.dumps(arguments), "--format", "json")
        explained = ran.aish("policy", "explain", "narrow.yaml", *asked)
        assert json.loads(explained.stdout)["verdict"] == "ask"


def test_what_is_covered_already_is_not_written_twice(ran: Project) -> None:
    path = ran.pipeline(NARROW, "narrow.yaml")
    suggest(ran, "latest", "--write", "narrow.yaml")
    once = path.read_bytes()

    again = suggest(ran, "latest", "--write", "narrow.yaml")
    covered = suggest(ran, "latest", "--write", "p.yaml")

    assert (again.code, again.stdout, again.stderr) == (0, "", "narrow.yaml: nothing to add\n")
    assert (covered.code, covered.stderr) == (0, "p.yaml: nothing to add\n")
    assert path.read_bytes() == once


def test_a_rule_of_the_file_that_forbids_a_call_is_said(ran: Project) -> None:
    path = ran.pipeline(NARROW.replace('"*__big"', '"*__big", s__add'), "narrow.yaml")
    done = suggest(ran, "latest", "--write", "narrow.yaml")
    assert done.code == 1
    assert 'left out: s__add {"a": 1, "b": 2}: deny rule s__add (mcp.deny[1])' in done.stderr
    assert "s__add, when" not in path.read_text()
    assert "s__echo" in path.read_text()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NARROW.replace("{s: ", "{other: ").replace("s__empty", "other__empty"), "no server of"),
        (
            NARROW + "policy_tests: [{tool: s__add, arguments: {a: 1, b: 2}, expect: ask}]\n",
            "`ask`",
        ),
        ("extends: p.yaml\nname: x\n", "is a list of a file that this one extends"),
        (
            WIDE.replace('["s__*", shell__run]', "{s__empty: true}"),
            "`mcp.auto_approve` is not a list",
        ),
        (NARROW + "nonsense: 1\n", "nonsense"),
    ],
)
def test_a_file_that_would_not_be_right_stays_as_it_is(ran: Project, text: str, said: str) -> None:
    if text.startswith("extends"):
        ran.pipeline(NARROW, "p.yaml")
    path = ran.pipeline(text, "other.yaml")
    before, files = path.read_bytes(), sorted(ran.folder.iterdir())

    done = suggest(ran, "latest", "--write", "other.yaml")

    assert done.code == 2
    assert said in done.stderr
    assert ".other.yaml" not in done.stderr
    assert path.read_bytes() == before
    assert sorted(ran.folder.iterdir()) == files


def test_a_link_is_not_written_through(ran: Project) -> None:
    path = ran.pipeline(NARROW, "narrow.yaml")
    before = path.read_bytes()
    (ran.folder / "link.yaml").symlink_to("narrow.yaml")
    done = suggest(ran, "latest", "--write", "link.yaml")
    assert done.code == 2
    assert "links are not followed here" in done.stderr
    assert path.read_bytes() == before


# --- What cannot be given --------------------------------------------------------------------


def test_a_call_with_a_secret_is_left_out_and_said(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    secret = "hunter2-hunter2"
    calls = [
        ("c1", "s__echo", json.dumps({"text": f"Bearer {secret}"})),
        ("c2", "s__add", '{"a": 1, "b": 2}'),
    ]
    project.uses(model_endpoint([tool_reply(calls), text_reply("done")]))
    project.aish.env["NAMED"] = secret
    project.pipeline("secrets: [NAMED]\n" + WIDE)
    project.write("docs/x", "")
    assert project.run().code == 0

    done = suggest(project, "latest")

    assert done.code == 1
    assert done.stderr == (
        'warning: left out: s__echo {"text": "Bearer <secret:NAMED>"}: '
        "its arguments contained a secret: <secret:NAMED>\n"
    )
    assert "s__echo" not in done.stdout
    assert "s__add" in done.stdout


@pytest.mark.requirement("S8")
def test_a_call_that_was_denied_is_not_given(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [(f"c{name}", "s__echo", f'{{"text": "docs/{name}.md"}}') for name in "abc"]
    project.uses(model_endpoint([tool_reply(calls), text_reply("done")]))
    one, two = (f"{{tool: s__echo, when: {{text: docs/{name}.md}}}}" for name in "ab")
    project.pipeline(WIDE.replace('"s__*"', f"{one}, {two}"))
    project.write("docs/x", "")
    assert project.run().code == 0

    rules = suggested(project, "latest")

    closed = {"maxProperties": 1}
    assert rules[:-1] == [
        {"tool": "s__echo", "when": {"text": f"docs/{name}.md"}, "schema": closed} for name in "ab"
    ]
