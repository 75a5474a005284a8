"""Approvals: nothing runs unasked, the model is told, a person's yes is for what they saw."""

import json
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from html import unescape

import pexpect
import pyte
import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import text_reply, tool_reply
from samples import sampled
from syrupy.assertion import SnapshotAssertion
from terminal_window import close_terminal

CALLS = [
    ("c1", "s__echo", '{"text": "fi\\u202ene\\u001b[2J"}'),
    ("c2", "s__add", '{"a": 1, "b": 2}'),
]
RULES = f"""
mcp:
  servers: {{s: {{command: {stdio()}}}}}
  auto_approve: [s__add]
  deny: ["*__big"]
"""


@pytest.fixture
def asking(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A project whose model asks for a call that no rule decides."""
    endpoint = model_endpoint([tool_reply(CALLS), text_reply("done")])
    project.uses(endpoint)
    project.pipeline(RULES + "on_denied: continue\nprompt: Use your tools\n")
    return project


def test_a_denied_call_is_answered_and_the_model_may_go_on(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [("c1", "s__echo", '{"text": "x"}'), ("c2", "s__big", '{"n": 9}')]
    endpoint = model_endpoint([tool_reply(calls), text_reply("without tools")])
    project.uses(endpoint)
    project.pipeline(RULES + "on_denied: continue\nprompt: Use your tools\n")

    found = project.result()

    replies = [m["content"] for m in endpoint.asked[1]["messages"] if m["role"] == "tool"]
    assert replies == [
        "[aish] tool call denied: no rule approves s__echo",
        "[aish] tool call denied by rule *__big",
    ]
    assert (found["exit"]["code"], found["steps"]["main"]["text"]) == (0, "without tools")
    assert found["denials"] == {"s__echo": 1, "s__big": 1}
    decided = of_type(project.journal, "tool.decided")
    assert [event["verdict"] for event in decided] == ["ask-no", "deny"]
    assert of_type(project.journal, "tool.started") == []


@pytest.mark.requirement("exit-3")
@pytest.mark.parametrize("kind", ["prompt", "call", "run"])
def test_a_denied_call_ends_the_run_by_default(
    project: Project, model_endpoint: ModelEndpoints, kind: str
) -> None:
    endpoint = model_endpoint([tool_reply([("c1", "s__echo", '{"text": "x"}')])])
    project.uses(endpoint)
    step = {"prompt": "prompt: Ask", "call": "call: s__fail", "run": "run: [touch, never]"}[kind]
    then = "{id: then, run: [touch, never], needs: [it]}"
    project.pipeline(f"{RULES}steps: [{{id: it, {step}}}, {then}]\n")

    found = project.result()

    assert (found["status"], found["exit"]["name"]) == ("denied", "denied")
    assert "no rule approves" in found["exit"]["reason"]
    assert found["steps"]["it"]["status"] == "denied"
    assert found["steps"]["then"]["status"] == "skipped"
    assert len(endpoint.asked) == (1 if kind == "prompt" else 0)
    assert not (project.folder / "never").exists()


@pytest.mark.requirement("P5")
def test_a_destructive_tool_needs_its_exact_name(project: Project) -> None:
    project.pipeline(RULES + "steps: [{id: it, call: s__crash}]\n")

    wildcard = project.run("--allow", "s__*")
    named = project.run("--allow", "s__crash")

    assert (wildcard.code, named.code) == (3, 5)


@pytest.mark.requirement("P3")
def test_ask_without_a_terminal_is_no_at_once(asking: Project) -> None:
    found = asking.result("--ask", stdin="y\ny\ny\n")

    assert found["denials"] == {"s__echo": 1}


@contextmanager
def at_terminal(project: Project, line: str, width: int = 100) -> Generator["pexpect.spawn[str]"]:
    """A shell line as a person at a terminal would type it; `aish` is called `$AISH`."""
    child = pexpect.spawn(
        "sh",
        ["-c", line],
        cwd=str(project.folder),
        env={**project.aish.env, "AISH": f"{sys.executable} -m aish"},
        encoding="utf-8",
        timeout=60,
        dimensions=(40, width),
    )
    try:
        yield child
    finally:
        close_terminal(child)


ANSWERS = {
    "y": ("y\r", "ok"),
    "yes": ("yes\r", "ok"),
    "n": ("n\r", "denied"),
    "nothing": ("\r", "denied"),
    "something else": ("sure\r", "denied"),
    "end of input": ("\x04", "denied"),
}


@pytest.mark.parametrize(
    "answer", sampled(ANSWERS, often={0, 3, 5}, reason="cases of the same kind")
)
def test_a_person_decides_on_what_they_see(asking: Project, answer: str) -> None:
    typed, kind = ANSWERS[answer]
    with at_terminal(asking, "exec $AISH run p.yaml --ask") as terminal:
        terminal.expect_exact("[y/N/a")
        shown = terminal.before or ""
        terminal.send(typed)
        terminal.expect(pexpect.EOF)
        rest = terminal.before or ""
        terminal.wait()

    assert terminal.exitstatus == 0, rest
    assert "echo" in shown
    assert r"fi\u202ene\x1b[2J" in shown or r"fi\u202ene\u001b[2J" in shown
    assert "\u202e" not in shown + rest
    assert "\x1b[2J" not in shown + rest
    assert "done" in rest
    (first, second) = of_type(asking.journal, "tool.finished")
    assert (first["kind"], second["kind"]) == (kind, "ok")
    verdicts = [event["verdict"] for event in of_type(asking.journal, "tool.decided")]
    assert verdicts == ["ask-yes" if kind == "ok" else "ask-no", "auto"]
    if kind == "denied":
        assert first["content"] == "[aish] tool call denied by the user"


@pytest.mark.slow(reason="asks at a terminal of each width; unit tests have the pictures")
@pytest.mark.parametrize("width", [40, 80])
def test_the_question_as_a_person_sees_it(
    asking: Project, width: int, snapshot: SnapshotAssertion
) -> None:
    screen = pyte.Screen(width, 40)
    with at_terminal(asking, "exec $AISH run p.yaml --ask", width) as terminal:
        terminal.expect_exact("[y/N/a] ")
        pyte.Stream(screen).feed(f"{terminal.before}{terminal.after}")
        terminal.send("n\r")
        terminal.expect(pexpect.EOF)

    rows = [row.rstrip() for row in screen.display]
    start = next(number for number, row in enumerate(rows) if row.startswith("a tool call"))
    assert "\n".join(rows[start:]).rstrip() == snapshot


def test_always_is_asked_once_and_named_in_the_events(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [
        (f"c{number}", "s__echo", f'{{"text": "{text}"}}') for number, text in enumerate("001")
    ]
    project.uses(model_endpoint([tool_reply(calls), text_reply("done")]))
    project.pipeline(RULES + "on_denied: continue\nprompt: Use your tools\n")
    rule = 's__echo when {"text": "0"} schema {"maxProperties": 1}'
    with at_terminal(project, "exec $AISH run p.yaml --ask") as terminal:
        terminal.expect_exact('s__echo {"text": "0"}\r\n    no rule approves s__echo (step main)')
        terminal.expect_exact("send? [y/N/a/?]")
        terminal.send("?\r")
        terminal.expect_exact(f"always: auto_approve {rule}, for this")
        terminal.expect_exact("send this call? [y/N/a]")
        terminal.send("a\r")
        terminal.expect_exact('s__echo {"text": "1"}')
        terminal.expect_exact("[y/N/a")
        terminal.send("n\r")
        terminal.expect(pexpect.EOF)
        terminal.wait()

    assert terminal.exitstatus == 0
    decided = [(e["verdict"], e["rule"]) for e in of_type(project.journal, "tool.decided")]
    assert decided == [
        ("ask-yes", f"the user, always: {rule} (this session)"),
        ("auto", f"{rule} (this session)"),
        ("ask-no", "the user"),
    ]


def test_a_denied_command_is_told_with_its_arguments_and_its_own_rule_everywhere(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    call = tool_reply([("c1", "box__shell_run", '{"command": "rm prices.py"}')])
    project.uses(model_endpoint([call, call, text_reply("done")]))
    rules = "[{tool: box__shell_run, command: [python3, -m, unittest]}]"
    head = "mcp: {servers: {box: {pack: [shell], root: .}}, auto_approve: %s}\n"
    project.pipeline(head % rules + "prompt: Clean up\n")
    project.aish.env |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "summary.md"}

    done = project.run("--github", "--junit", "junit.xml")
    rule = '{tool: box__shell_run, when: {command: "rm prices.py"}, schema: {maxProperties: 1}}'
    project.pipeline(head % f"[{rule}]" + "prompt: Clean up\n")
    pasted = project.run()

    assert done.code == 3, done.stderr
    for text in (
        done.stderr,
        unescape((project.folder / "summary.md").read_text("utf-8")),
        unescape((project.folder / "junit.xml").read_text("utf-8")),
    ):
        assert 'no rule approves box__shell_run; its arguments: {"command": "rm prices.py"}' in text
        assert f"`{rule}` under `mcp.auto_approve` approves this" in text
    (annotation,) = [line for line in done.stderr.splitlines() if line.startswith("::error ")]
    assert '{"command": "rm prices.py"}%0Ahint: `{tool' in annotation
    assert pasted.code == 0, pasted.stderr


@pytest.mark.slow(reason="asks at a terminal, as tests above do")
def test_after_the_no_of_a_person_no_rule_is_suggested(asking: Project) -> None:
    asking.pipeline(RULES + "prompt: Use your tools\n")
    with at_terminal(asking, "exec $AISH run p.yaml --ask") as terminal:
        terminal.expect_exact("[y/N/a")
        terminal.send("n\r")
        terminal.expect(pexpect.EOF)
        terminal.wait()

    assert terminal.exitstatus == 3
    (finished,) = of_type(asking.journal, "run.finished")
    hint = finished["exit"]["hint"]
    assert hint == "let the model continue with `on_denied: continue`"


@pytest.mark.requirement("P2")
def test_ctrl_c_at_the_question_ends_the_run_without_a_yes(asking: Project) -> None:
    with at_terminal(asking, "exec $AISH run p.yaml --ask") as terminal:
        terminal.expect_exact("[y/N/a")
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.wait()

    assert terminal.exitstatus == 130
    assert of_type(asking.journal, "tool.started") == []


@pytest.mark.slow(reason="asks at a terminal; the end of input is a case above")
def test_a_terminal_that_hangs_up_at_the_question_has_not_said_yes(asking: Project) -> None:
    with at_terminal(asking, "exec $AISH run p.yaml --ask") as terminal:
        terminal.expect_exact("[y/N/a")
        terminal.kill(signal.SIGHUP)
        terminal.expect(pexpect.EOF)
        terminal.wait()

    assert terminal.exitstatus == 143
    assert of_type(asking.journal, "tool.started") == []


def test_a_pipe_on_stdin_does_not_get_in_the_way_of_the_person(asking: Project) -> None:
    asking.pipeline(RULES + 'prompt: "Use your tools on {{ stdin }}"\n')
    line = "echo piped | $AISH run p.yaml --ask --format json > out.json"
    with at_terminal(asking, line) as terminal:
        terminal.expect_exact("[y/N/a")
        terminal.send("y\r")
        terminal.expect(pexpect.EOF)
        terminal.wait()

    found = json.loads((asking.folder / "out.json").read_text(encoding="utf-8"))
    assert found["steps"]["main"]["tool_calls"][0]["verdict"] == "ask-yes"


@pytest.mark.slow(reason="runs live cases at a terminal")
def test_live_cases_ask_one_question_at_a_time(project: Project) -> None:
    project.pipeline(
        "name: p\ninputs: {word: {type: string}}\n"
        'run: [echo, "{{ inputs.word }}"]\n'
        "tests:\n"
        '  - {name: one, inputs: {word: yes-please}, expect: [{contains: "yes"}]}\n'
        '  - {name: two, inputs: {word: no-thanks}, expect: [{contains: "no"}]}\n'
    )
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"

    with at_terminal(project, "exec $AISH test --live --ask -q p.yaml") as terminal:
        for _ in range(2):
            terminal.expect("yes-please|no-thanks")
            answer = "y" if terminal.after == "yes-please" else "n"
            terminal.expect_exact("[y/N/a")
            terminal.send(f"{answer}\r")
        terminal.expect_exact("1 passed, 1 failed")
        terminal.expect(pexpect.EOF)
        terminal.wait()

    assert terminal.exitstatus == 1


@pytest.mark.requirement("X3")
def test_at_a_terminal_the_answer_is_shown_once_and_nothing_steers_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    evil = "the answer\x1b]0;owned\x07\x9b2J\u202e\rover"
    project.uses(model_endpoint([text_reply(evil, pieces=list(evil))] * 2))
    project.pipeline("prompt: Say it")
    shown = []
    for line in ("exec $AISH run p.yaml", "exec $AISH run p.yaml --format json"):
        with at_terminal(project, line) as terminal:
            terminal.expect(pexpect.EOF)
            shown.append(terminal.before or "")
            terminal.wait()
        assert terminal.exitstatus == 0, shown

    assert shown[0].count("the answer") == 1
    for screen in shown:
        for sign in ("\x1b]", "\x07", "\x9b", "\u202e", "\rover"):
            assert sign not in screen


@pytest.mark.requirement("P4")
def test_a_command_that_just_misses_its_rule_is_told_why_and_how_to_write_it(
    project: Project,
) -> None:
    project.pipeline(
        """
        mcp: {auto_approve: [{tool: shell__run, command: [echo, "*"]}]}
        run: [echo, -n]
        """
    )

    planned = project.aish("plan", "p.yaml", "--offline")
    done = project.run("-q")

    why = "`*` does not take a word that begins with a dash, `-n`"
    reason = f'no rule approves shell__run (rule shell__run command ["echo", "*"]: {why})'
    rule = "{tool: shell__run, when: {argv: [echo, -n]}, schema: {maxProperties: 1}}"
    hint = f"`{rule}` under `mcp.auto_approve` approves this"
    assert f"ask: {reason}\n       hint: {hint}\n" in planned.stdout
    assert done.code == 3
    said = f'{reason}; its arguments: {{"argv": ["echo", "-n"]}}'
    assert done.stderr == f"error: step `main`: tool call denied: {said}\n\nhint: {hint}\n"


@pytest.mark.parametrize("more", ["", ", on_error: continue"])
def test_items_that_are_denied_say_which_rule_would_approve_them(
    project: Project, more: str
) -> None:
    project.pipeline(f"""
        mcp: {{auto_approve: [{{tool: shell__run, command: [echo, "*"]}}]}}
        steps: [{{id: each, foreach: "[1, 2]", run: [echo, "-x"]{more}}}]
        """)

    found = project.result()

    rule = "`{tool: shell__run, when: {argv: [echo, -x]}, schema: {maxProperties: 1}}` under"
    assert found["exit"]["code"] == 3
    assert found["exit"]["hint"].startswith(rule)
    assert found["steps"]["each"]["error"]["hint"].startswith(rule)


def test_a_denial_that_the_model_takes_is_told_with_its_arguments_and_its_own_rule(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    """A9: with `on_denied: continue` no step fails, and nobody else would tell it."""
    calls = [("c1", "box__shell_run", '{"command": "rm prices.py"}')]
    endpoint = model_endpoint([tool_reply(calls), tool_reply(calls), text_reply("done")])
    project.uses(endpoint)
    project.pipeline(
        "mcp: {servers: {box: {pack: [shell], root: .}}}\non_denied: continue\nprompt: Clean up\n"
    )
    project.aish.env |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "summary.md"}

    done = project.run("--github", "--junit", "junit.xml")

    assert done.code == 0, done.stderr
    rule = '{tool: box__shell_run, when: {command: "rm prices.py"}, schema: {maxProperties: 1}}'
    for text in (
        done.stderr,
        unescape((project.folder / "summary.md").read_text("utf-8")),
        unescape((project.folder / "junit.xml").read_text("utf-8")),
    ):
        assert '{"command": "rm prices.py"}' in text
        assert f"`{rule}` under `mcp.auto_approve` approves this" in text
    (annotation,) = [line for line in done.stderr.splitlines() if line.startswith("::warning ")]
    assert "a call of box__shell_run was denied (2 times): the model was informed" in annotation
    assert '; its arguments: {"command": "rm prices.py"}%0Ahint: `{tool' in annotation
    assert done.stderr.count(f"] hint: `{rule}`") == 1


def test_a_denial_that_fails_its_step_is_one_annotation(project: Project) -> None:
    project.pipeline("on_denied: continue\nrun: [git, log]\n")
    project.aish.env |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "summary.md"}

    done = project.run("--github")

    told = [line for line in done.stderr.splitlines() if line.startswith("::")]
    assert [line.partition(" ")[0] for line in told] == ["::error"]
    assert done.stderr.count("] hint: ") + done.stderr.count(": hint: ") == 1
