"""JUnit tells what the exit code tells; the fixture `project` checks that of every other run."""

import signal
from pathlib import Path
from xml.etree import ElementTree as ET  # ruff: ignore[suspicious-xml-etree-import] - reads what we wrote

import pytest
from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import text_reply

SERVER = f"mcp: {{servers: {{s: {{command: {stdio()}}}}}}}\n"
COMMAND = ("--allow", "shell__run")
ROWS = {
    "success": ("prompt: Hi\n", (), 0, []),
    "a command": ("run: [sh, -c, exit 3]\n", COMMAND, 1, ["failure main handler_error"]),
    "an expectation": (
        "prompt: Hi\nexpect: [contains: no]\n",
        (),
        1,
        ["failure main expectation"],
    ),
    "a step that timed out": (
        "run: [sleep, '9']\ntimeout: 10ms\n",
        COMMAND,
        1,
        ["failure main timeout"],
    ),
    "items": (
        "foreach: '[1, 2]'\nrun: [sh, -c, 'exit {{ item }}']\non_error: continue\n",
        COMMAND,
        1,
        ["failure main handler_error"] * 2,
    ),
    "items over a maximum": (
        "foreach: '[1, 2, 3]'\nconcurrency: 1\nrun: [sh, -c, 'exit {{ item }}']\nmax_failures: 1\n",
        COMMAND,
        1,
        ["failure main handler_error"] * 2,
    ),
    "another file": (
        "inputs: {a: {type: integer}}\nrun: [touch, never]\n",
        ("-i", "a=x"),
        2,
        None,
    ),
    "a denied call": (SERVER + "call: s__fail\n", (), 3, ["failure main denied"]),
    "a denied item": ("foreach: '[1]'\nrun: [touch, never]\n", (), 3, ["failure main denied"]),
    "an accepted denial": (
        "on_denied: continue\nrun: [touch, never]\n",
        (),
        0,
        ["skipped main denied"],
    ),
    "a limit": (
        "run: [touch, never]\nlimits: {tool_calls: 0}\n",
        COMMAND,
        4,
        ["error main budget"],
    ),
    "a missing server": (
        "mcp: {servers: {s: {command: [./none]}}}\nprompt: Hi\n",
        (),
        5,
        ["error run unavailable", "skipped main run_ended"],
    ),
    "another cassette": (
        "run: [touch, never]\n",
        ("--replay", "c.yaml", *COMMAND),
        6,
        ["error main cassette_miss"],
    ),
    "another lock": (
        "prompt: Changed\n",
        (),
        7,
        ["failure run lock", "skipped main run_ended"],
    ),
    "a paused run": (SERVER + "call: s__fail\non_ask: pause\n", (), 8, ["error main paused"]),
}


def troubles(path: Path) -> list[str]:
    """The elements that say why a case did not pass, each with its suite and its type."""
    root = ET.parse(path).getroot()  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
    return [
        f"{one.tag} {case.get('classname')} {one.get('type')}"
        for case in root.iter("testcase")
        for one in case
        if one.tag != "system-out"
    ]


@pytest.mark.sampled(8)
@pytest.mark.requirement("V28")
@pytest.mark.parametrize("row", ROWS)
def test_a_report_is_red_exactly_if_the_exit_code_is_not_0(
    project: Project, model_endpoint: ModelEndpoints, row: str
) -> None:
    text, options, code, told = ROWS[row]
    project.uses(model_endpoint([text_reply("Hello.")]))
    if code == 6:
        project.pipeline("run: [touch, other]\n")
        project.run("--record", "c.yaml", *COMMAND)
    if code == 7:
        project.pipeline("prompt: Hi\n")
        project.aish("lock", "p.yaml", "--update")
    project.pipeline(text)

    done = project.run("--junit", "j.xml", *options)

    assert done.code == code, done.stderr
    if told is not None:
        assert troubles(project.folder / "j.xml") == told


def test_a_denial_is_a_failure_with_its_call_and_its_rule(project: Project) -> None:
    server = SERVER.replace("}}}", '}}, deny: ["*__big"]}')
    project.pipeline(server + "steps: [{id: it, call: s__big, with: {n: 9}}]\n")

    assert project.run("--junit", "j.xml").code == 3

    root = ET.parse(project.folder / "j.xml").getroot()  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
    (failure,) = root.iter("failure")
    assert failure.text is not None
    assert failure.text.splitlines()[1:4] == [
        "tool: s__big",
        'arguments: {"n": 9}',
        "rule: *__big",
    ]


@pytest.mark.real_process
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_is_an_error(project: Project, kind: signal.Signals, code: int) -> None:
    project.pipeline("run: [sleep, '60']\n")
    running = project.aish.start("run", "p.yaml", *COMMAND, "--junit", "j.xml")
    running.wait_for_line("tool shell__run")
    running.interrupt(kind)

    assert running.finish().code == code
    assert troubles(project.folder / "j.xml") == ["error main interrupted"]


def test_a_step_that_fails_again_in_a_resumed_run_is_a_failure(project: Project) -> None:
    project.pipeline("run: [sh, -c, exit 1]\n")

    assert project.run(*COMMAND).code == 1
    assert project.run(*COMMAND, "--resume", "--junit", "j.xml").code == 1

    assert troubles(project.folder / "j.xml") == ["failure main handler_error"]


def test_a_step_that_was_removed_from_the_file_fails_nothing(project: Project) -> None:
    """Issue 27, B8: `--resume --force` ends with exit code 0."""
    good, bad = "{id: good, run: ['true']}", "{id: bad, run: [sh, -c, exit 1], needs: []}"
    project.pipeline("steps: [{id: sub, pipeline: inner.yaml}]\n")
    project.pipeline(f"steps: [{good}, {bad}]\n", "inner.yaml")
    project.aish.env["GITHUB_ACTIONS"] = "true"
    assert project.run(*COMMAND).code == 1
    project.pipeline(f"steps: [{good}]\n", "inner.yaml")

    done = project.run(
        *COMMAND, "--resume", "--force", "--junit", "j.xml", "--html", "p.html", "--github"
    )

    assert done.code == 0, done.stderr
    assert troubles(project.folder / "j.xml") == []
    assert "::error" not in done.stderr
    page = (project.folder / "p.html").read_text()
    assert ">sub/good<" in page
    assert ">sub/bad<" not in page


def test_every_case_has_a_name_of_its_own(project: Project, model_endpoint: ModelEndpoints) -> None:
    """Issue 27, C: readers show cases of the same class and name as one."""
    project.uses(model_endpoint([text_reply("Hello.")] * 5))
    keys = ["run", "a", "a: contains 1", "run (2)", "p"]
    project.pipeline(
        f'name: run\nsteps: [{{id: run, foreach: "{keys}", key: item, prompt: Hi, '
        "expect: [contains: Hello]}]\n"
    )

    assert project.run("--junit", "j.xml", "-o", "/dev/full").code == 1

    root = ET.parse(project.folder / "j.xml").getroot()  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
    cases = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(cases) == len(set(cases)) == 13
    (failure,) = root.iterfind(".//failure/..")
    assert cases.count((failure.get("classname"), failure.get("name"))) == 1


GREEN = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="p" tests="1" failures="0" errors="0" time="0.1">
  <testsuite name="run"><testcase classname="run" name="p" time="0.1"/></testsuite>
</testsuites>
"""
# What ends a command before a run begins, or after its reports.
UNBEGUN = {
    "no file": ("run nowhere.yaml", 2, "error run invalid_pipeline"),
    "a broken file": ("run broken.yaml", 2, "error run invalid_pipeline"),
    "an unknown input": ("run p.yaml -i x=1", 2, "error run usage"),
    "two models": ("run p.yaml --live-model m --model m", 2, "error run usage"),
    "a result that cannot be written": ("run p.yaml -o none/o.txt", 2, "error run usage"),
    "another report that cannot be written": ("run p.yaml --html none/h", 2, "error run usage"),
    "no cassette": ("run p.yaml --replay none.yaml", 2, "error run invalid_cassette"),
    "no run to resume": ("run p.yaml --resume", 2, "error run usage"),
    "no lock": ("run locked.yaml", 2, "error run invalid_pipeline"),
    "an unset variable": ("run unset.yaml", 2, "error run invalid_pipeline"),
    "a lost result": ("run p.yaml -o /dev/full", 1, "failure run exit_code"),
    "a lost report": ("run p.yaml --html /dev/full", 1, "failure run exit_code"),
    "a refused recording": ("record keys.yaml -o c.yaml", 1, "failure run failed"),
    "no tests": ("test nowhere", 2, "error run usage"),
    "no live tests": ("test p.yaml --live", 2, "error run usage"),
    "options that do not fit": ("test p.yaml --model m", 2, "error run usage"),
    "no past run": ("runs report latest", 2, "error run usage"),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("row", UNBEGUN)
def test_what_ends_without_a_run_leaves_a_red_report(
    project: Project, model_endpoint: ModelEndpoints, row: str
) -> None:
    line, code, told = UNBEGUN[row]
    project.uses(model_endpoint([text_reply("Hello.")]))
    project.pipeline("prompt: Hi\n")
    project.pipeline("promt: Hi\n", "broken.yaml")
    project.pipeline("lock: none.json\nprompt: Hi\n", "locked.yaml")
    project.write(
        "unset.yaml", "aish: 1\nmodels: {m: {base_url: '${NONE}', model: x}}\nprompt: Hi\n"
    )
    random = "1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms"
    project.pipeline(f"prompt: Hi {random}\n", "keys.yaml")
    for name in ("j.xml", "h.html", "s.sarif"):
        project.write(name, GREEN if name == "j.xml" else "<!doctype html>sarif")
    reports = ["--junit", "j.xml"]
    if "html" not in line and not line.startswith("test"):
        reports += ["--html", "h.html", "--sarif", "s.sarif"]

    done = project.aish(*line.split(), *reports)

    assert done.code == code, done.stderr
    assert troubles(project.folder / "j.xml")[-1:] == [told]
    if "--sarif" in reports and "/dev/full" not in line and not line.startswith("record"):
        assert not (project.folder / "h.html").exists()
        assert not (project.folder / "s.sarif").exists()


def test_a_killed_run_leaves_no_green_report(project: Project) -> None:
    project.pipeline("run: [sleep, '60']\n")
    project.write("j.xml", GREEN)
    running = project.aish.start("run", "p.yaml", *COMMAND, "--junit", "j.xml")
    running.wait_for_line("tool shell__run")

    running.kill()
    running.finish()

    assert not (project.folder / "j.xml").exists()


def test_a_file_that_is_no_report_is_not_removed(project: Project) -> None:
    project.pipeline("promt: Hi\n")
    text = (project.folder / "p.yaml").read_text()

    assert project.run("--junit", "p.yaml").code == 2

    assert (project.folder / "p.yaml").read_text() == text


def test_cases_stay_in_a_report_that_becomes_red(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("Hello.")]))
    project.pipeline("prompt: Hi\n")

    assert project.run("--junit", "j.xml", "-o", "/dev/full").code == 1

    root = ET.parse(project.folder / "j.xml").getroot()  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
    assert [suite.get("name") for suite in root] == ["run", "main", "run"]
    assert dict(root.attrib) | {"time": ""} == {
        "name": "p",
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "time": "",
    }
