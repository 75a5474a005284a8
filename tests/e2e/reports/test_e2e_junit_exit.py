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


@pytest.mark.requirement("V28")
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
@pytest.mark.requirement("V28")
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
