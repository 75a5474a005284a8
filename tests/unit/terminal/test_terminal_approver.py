import os
import pty
import signal
import string
import sys
import termios
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pexpect
import pytest

from aish.terminal.approver import TerminalApprover
from aish.terminal.unattended import Unattended
from aish.vocab.event_parts import Place
from aish.vocab.json import JsonObject
from aish.vocab.protocols import Answer, Question
from aish.vocab.tools import Tool, ToolName

PROMPT = "send this call? [y/N] "


def question(arguments: JsonObject | None = None, server: str = "fs", tool: str = "rm") -> Question:
    subject = Tool(ToolName(server, tool), f"{server}__{tool}", "", {})
    return Question(subject, arguments or {}, "no rule approves it", Place(step="one"))


@dataclass
class Person:
    """Sits at the master end of a pseudo-terminal."""

    master: int
    slave: int
    seen: str = ""
    waiting: bytes = field(default=b"")

    def approver(self) -> TerminalApprover:
        return TerminalApprover(reader=self.slave, writer=self.slave)

    def types(self, text: str) -> None:
        os.write(self.master, text.encode())

    async def reads_until(self, text: str, times: int = 1) -> None:
        while self.seen.count(text) < times:
            await anyio.wait_readable(self.master)
            self.waiting += os.read(self.master, 65536)
            self.seen = self.waiting.decode("utf-8", "replace")

    async def answers(self, text: str, times: int = 1) -> None:
        await self.reads_until(PROMPT, times)
        self.types(text)


@pytest.fixture
def person() -> Iterator[Person]:
    master, slave = pty.openpty()
    # Tall and wide as a person's: the default of a new pseudo-terminal is 0 by 0.
    termios.tcsetwinsize(slave, (24, 80))
    yield Person(master, slave)
    os.close(master)
    os.close(slave)


def ask(person: Person, answer: str, asked: Question | None = None, prompts: int = 1) -> Answer:
    async def scene() -> Answer:
        verdict: Answer = "no"
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(person.answers, answer, prompts)
                verdict = await person.approver().ask(asked or question())
        return verdict

    return anyio.run(scene)


@pytest.mark.requirement("P2", "X12")
@pytest.mark.parametrize(
    ("answer", "approved"),
    [
        ("y\n", True),
        ("yes\n", True),
        ("YES\n", True),
        (" y \n", True),
        ("\n", False),
        ("n\n", False),
        ("no\n", False),
        ("yep\n", False),
        ("yy\n", False),
        ("y n\n", False),
        ("\x04", False),
        ("ja\n", False),
        ("1\n", False),
        ("\uff59\n", False),
        ("x" * 5000 + "\n", False),
    ],
)
def test_only_an_explicit_yes_is_yes(person: Person, *, answer: str, approved: bool) -> None:
    assert ask(person, answer) == ("yes" if approved else "no")


@pytest.mark.requirement("P2")
def test_the_question_has_server_tool_place_and_all_arguments(person: Person) -> None:
    arguments: JsonObject = {"path": "a/b.md", "content": "line one\nline two", "n": [1, None]}
    ask(person, "n\n", question(arguments))
    for part in (
        "server: fs",
        "tool: rm",
        "why: no rule approves it",
        "(step one)",
        '"path": "a/b.md"',
        '"content": "line one\\nline two"',
        "null",
    ):
        assert part in person.seen


@pytest.mark.requirement("P2")
def test_no_argument_is_cut_however_long(person: Person) -> None:
    ask(person, "n\n", question({"content": string.digits * 20_000}))
    shown = "".join(
        line.removeprefix("  │ ").rstrip("\r")
        for line in person.seen.split("\n")
        if line.startswith("  │ ")
    )
    assert string.digits * 20_000 in shown


@pytest.mark.requirement("P2", "P9", "X2", "X3")
def test_nothing_of_a_stranger_reaches_the_terminal_as_control(person: Person) -> None:
    hostile = "\x1b[2J\x1b]0;x\x07\x9b31m\r\x08\u202e\u200b\ud800"
    asked = question({"x": hostile, hostile: 1}, server="fs", tool="rm" + hostile)
    ask(person, "n\n", asked)
    assert not set(person.seen) & set("\x1b\x07\x9b\x08\u202e\u200b")
    assert "\r" not in person.seen.replace("\r\n", "")
    assert "\\u202e" in person.seen
    assert "\\u200b" in person.seen


@pytest.mark.requirement("P2", "X3")
def test_arguments_cannot_draw_a_line_that_looks_like_ours(person: Person) -> None:
    fake = " " * 200 + "send this call? [y/N] y"
    arguments = {"a": "\n\nserver: good\n" + fake, "b\n  tool: other": "\t" * 99}
    # Whoever answers the first of the two has typed too early.
    ask(person, "n\n", question(arguments), prompts=2)
    ours = [line for line in person.seen.split("\r\n") if not line.startswith("  │ ")]
    assert [line for line in ours if "server" in line] == ["  server: fs"]
    assert [line for line in ours if "tool:" in line] == ["    tool: rm"]
    assert [line for line in ours if "send this call" in line] == [PROMPT]
    assert all(len(line) < 80 for line in person.seen.split("\r\n"))


@pytest.mark.requirement("P2", "X3")
def test_wide_characters_do_not_break_out_of_the_frame(person: Person) -> None:
    ask(person, "n\n", question({"a": "漢" * 300}))
    rows = [line for line in person.seen.split("\r\n") if "漢" in line]
    assert len(rows) > 1
    assert all(line.startswith("  │ ") and line.count("漢") <= 38 for line in rows)


@pytest.mark.requirement("P2")
def test_what_was_typed_before_the_question_does_not_answer_it(person: Person) -> None:
    person.types("y\ny\nyes")
    assert ask(person, "n\n") == "no"
    person.seen, person.waiting = "", b""
    person.types("y\n")
    assert ask(person, "\n") == "no"


@pytest.mark.requirement("P2")
def test_calls_that_run_beside_each_other_ask_one_at_a_time(person: Person) -> None:
    answers: dict[str, Answer] = {}

    async def scene() -> None:
        approver = person.approver()

        async def one(tool: str) -> None:
            answers[tool] = await approver.ask(question(tool=tool))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one, "first")
                tasks.start_soon(one, "second")
                await person.answers("y\n", times=1)
                assert "second" not in person.seen
                await person.answers("n\n", times=2)

    anyio.run(scene)
    assert answers == {"first": "yes", "second": "no"}


@pytest.mark.requirement("P2", "L10")
def test_a_question_can_be_cancelled_and_the_next_one_asked(person: Person) -> None:
    async def scene() -> Answer:
        approver = person.approver()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(approver.ask, question())
                await person.reads_until(PROMPT)
                tasks.cancel_scope.cancel()
            verdict: Answer = "no"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(person.answers, "y\n", 2)
                verdict = await approver.ask(question())
        return verdict

    assert anyio.run(scene) == "yes"


@pytest.mark.requirement("P2", "L10")
def test_a_terminal_that_takes_nothing_does_not_hold_up_the_loop(person: Person) -> None:
    async def scene() -> bool:
        approver = person.approver()
        # Nobody reads at the other end, as after Ctrl-S.
        with anyio.move_on_after(0.2) as waiting:
            await approver.ask(question({"content": "x" * 1_000_000}))
        return waiting.cancelled_caught

    assert anyio.run(scene) is True


@pytest.mark.requirement("P2")
def test_whoever_draws_on_the_screen_is_paused_while_the_question_stands(person: Person) -> None:
    told: list[str] = []

    @contextmanager
    def pause() -> Generator[None, None, None]:
        told.append("paused")
        try:
            yield
        finally:
            told.append("resumed")

    async def scene() -> None:
        approver = TerminalApprover(reader=person.slave, writer=person.slave, pause=pause)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(person.answers, "y\n")
            await approver.ask(question())

    anyio.run(scene)
    assert told == ["paused", "resumed"]


@pytest.mark.requirement("P2", "P3", "X12")
def test_a_pipe_is_not_a_person() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"y\n")
        approver = TerminalApprover(reader=reader, writer=writer)
        assert not approver.attended
        assert anyio.run(approver.ask, question()) == "no"
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.requirement("P2", "X12")
def test_a_terminal_that_goes_away_has_not_said_yes() -> None:
    master, slave = pty.openpty()
    approver = TerminalApprover(reader=slave, writer=slave)
    os.close(master)
    try:
        assert anyio.run(approver.ask, question()) == "no"
    finally:
        os.close(slave)


@pytest.mark.requirement("P3", "X12")
def test_nobody_says_no_at_once() -> None:
    assert not Unattended().attended
    assert anyio.run(Unattended().ask, question()) == "no"


SCRIPT = """
import anyio
from aish.terminal.approver import TerminalApprover
from aish.vocab.event_parts import Place
from aish.vocab.protocols import Answer, Question
from aish.vocab.tools import Tool, ToolName

tool = Tool(ToolName("fs", "rm"), "fs__rm", "", {})
approver = TerminalApprover()
print("attended", approver.attended)
print("answer", anyio.run(approver.ask, Question(tool, {"a": 1}, "why", Place())))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "asks.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.requirement("P2")
def test_the_own_terminal_is_asked_even_when_stdin_is_a_pipe(script: Path) -> None:
    command = f"echo y | {sys.executable} {script}"
    child: pexpect.spawn[str] = pexpect.spawn("/bin/sh", ["-c", command], encoding="utf-8")
    child.expect_exact(PROMPT, timeout=20)
    child.sendline("n")
    child.expect_exact("answer no", timeout=20)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@pytest.mark.requirement("P2", "L10")
def test_control_c_at_the_question_stops_the_program(script: Path) -> None:
    child: pexpect.spawn[str] = pexpect.spawn(sys.executable, [str(script)], encoding="utf-8")
    child.expect_exact(PROMPT, timeout=20)
    child.sendintr()
    child.expect(pexpect.EOF, timeout=20)
    child.close()
    assert "answer yes" not in str(child.before)
    assert "KeyboardInterrupt" in str(child.before)
    assert child.exitstatus == 1 or child.signalstatus == signal.SIGINT


@pytest.mark.requirement("P3", "X12")
def test_a_program_without_a_terminal_is_not_attended(script: Path) -> None:
    async def run() -> bytes:
        with anyio.fail_after(20):
            done = await anyio.run_process(
                [sys.executable, str(script)], input=b"y\n", start_new_session=True
            )
        return done.stdout

    assert anyio.run(run) == b"attended False\nanswer no\n"
