import os
import pty
import signal
import string
import sys
import termios
import tty
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pexpect
import pytest
from patience import is_ready

from aish.core.events import Place
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Answer, Question
from aish.core.tools import Tool, ToolName
from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import PROMPT as PROMPT_LONG
from aish.terminal.approver import (
    PROMPT_ALWAYS,
    PROMPT_SHORT_ALWAYS,
    UNSEEN,
    VIEW,
    TerminalApprover,
)
from aish.terminal.approver import PROMPT_SHORT as PROMPT
from aish.terminal.tty import every_key
from aish.terminal.unattended import Unattended
from aish.terminal.visible_text import cells

BARS = ("  │ ", "  ┆ ")
PAGER = "[Enter: next page, all: the rest, n: no]"


def question(
    arguments: JsonObject | None = None,
    server: str = "fs",
    tool: str = "rm",
    always: str | None = None,
) -> Question:
    subject = Tool(ToolName(server, tool), f"{server}__{tool}", "", {})
    return Question(subject, arguments or {}, "no rule approves it", Place(step="one"), always)


@dataclass
class Person:
    """Sits at the master end of a pseudo-terminal."""

    master: int
    slave: int
    seen: str = ""
    waiting: bytes = field(default=b"")
    place: int = 0

    def approver(self) -> TerminalApprover:
        return TerminalApprover(reader=self.slave, writer=self.slave)

    def types(self, text: str) -> None:
        os.write(self.master, text.encode())

    async def reads_until(self, text: str, times: int = 1) -> None:
        while self.seen.count(text) < times:
            await anyio.wait_readable(self.master)
            self.waiting += os.read(self.master, 65536)
            self.seen = self.waiting.decode("utf-8", "replace")

    async def hears(self, text: str) -> None:
        """Reads until `text` was shown once more than when this was called last."""
        while text not in self.seen[self.place :]:
            await anyio.wait_readable(self.master)
            self.waiting += os.read(self.master, 65536)
            self.seen = self.waiting.decode("utf-8", "replace")
        self.place = self.seen.index(text, self.place) + len(text)

    async def answers(self, text: str, times: int = 1, prompt: str = PROMPT) -> None:
        await self.reads_until(prompt, times)
        self.types(text)


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    monkeypatch.setenv("TERM", "dumb")
    master, slave = pty.openpty()
    # Tall and wide as a person's: the default of a new pseudo-terminal is 0 by 0.
    termios.tcsetwinsize(slave, (24, 80))
    yield Person(master, slave)
    os.close(master)
    os.close(slave)


def ask(person: Person, answer: str) -> Answer:
    async def scene() -> Answer:
        verdict: Answer = "no"
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(person.answers, answer)
                verdict = await person.approver().ask(question())
        return verdict

    return anyio.run(scene)


def talk(person: Person, asked: Question, *lines: tuple[str, str]) -> Answer:
    """The answer of a person who waits for each of the prompts in turn and types a line."""

    async def type_all() -> None:
        for prompt, typed in lines:
            await person.hears(prompt)
            person.types(typed)

    async def scene() -> Answer:
        verdict: Answer = "no"
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(type_all)
                verdict = await person.approver().ask(asked)
        return verdict

    return anyio.run(scene)


def argument_text(screen: str) -> str:
    """What stands behind the bar, put together again."""
    rows = screen.replace("\r", "").split("\n")
    return "".join(row[4:] for row in rows if row.startswith(BARS))


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


def test_the_question_has_server_tool_place_and_all_arguments(person: Person) -> None:
    arguments: JsonObject = {"path": "a/b.md", "content": "line one\nline two" * 4, "n": [1, None]}
    talk(person, question(arguments), (PROMPT_LONG, "n\n"))
    for part in (
        "server: fs",
        "tool: rm",
        "why: no rule approves it",
        "where: step one",
        '"path": "a/b.md"',
        '"content": "line one\\n',
        'line two"',
        "null",
    ):
        assert part in person.seen


def test_no_argument_is_cut_however_long(person: Person) -> None:
    content = string.digits * 20_000
    got = talk(
        person,
        question({"content": content}),
        (VIEW, "v\n"),
        (PAGER, "all\n"),
        (PROMPT_LONG, "y\n"),
    )
    assert got == "yes"
    shown = person.seen.split(PAGER)[-1]
    first_page = person.seen.split(VIEW)[1].split(PAGER)[0]
    assert content in argument_text(first_page + shown)


def test_a_long_call_is_not_sent_before_all_of_it_was_shown(person: Person) -> None:
    asked = question({"content": "x" * 100_000})
    got = talk(person, asked, (VIEW, "y\n"), (UNSEEN, ""), (VIEW, "a\n"), (VIEW, "\n"))
    assert got == "no"
    assert "1,336 rows:" in person.seen
    assert "1,276 rows not shown" in person.seen
    assert PROMPT_LONG not in person.seen


def test_whoever_stops_reading_has_not_said_yes(person: Person) -> None:
    asked = question({"content": "x" * 100_000})
    got = talk(person, asked, (VIEW, "v\n"), (PAGER, "\n"), (PAGER, "y\n"))
    assert got == "no"
    assert PROMPT_LONG not in person.seen


def test_a_call_of_a_mebibyte_is_read_page_by_page(person: Person) -> None:
    asked = question({"content": "ab\n" * 350_000})
    pages = [(PAGER, "\n")] * 5
    assert talk(person, asked, (VIEW, "v\n"), *pages, (PAGER, "\x04")) == "no"
    assert "in 350,002 rows:" in person.seen


def test_nothing_of_a_stranger_reaches_the_terminal_as_control(person: Person) -> None:
    hostile = "\x1b[2J\x1b]0;x\x07\x9b31m\r\x08\u202e\u200b\ud800"
    asked = question({"x": hostile, hostile: 1}, server="fs", tool="rm" + hostile)
    talk(person, asked, (PROMPT_LONG, "n\n"))
    assert not set(person.seen) & set("\x1b\x07\x9b\x08\u202e\u200b")
    assert "\r" not in person.seen.replace("\r\n", "")
    assert "\\u202e" in person.seen
    assert "\\u200b" in person.seen


def test_arguments_cannot_draw_a_line_that_looks_like_ours(person: Person) -> None:
    fake = " " * 200 + "send this call? [y/N] y"
    arguments = {"a": "\n\nserver: good\n" + fake, "b\n  tool: other": "\t" * 99}
    # Whoever answers the first of the two has typed too early.
    talk(person, question(arguments), (PROMPT_LONG, ""), (PROMPT_LONG, "n\n"))
    ours = [line for line in person.seen.split("\r\n") if not line.startswith(BARS)]
    assert [line for line in ours if "server" in line] == ["  server: fs"]
    assert [line for line in ours if "tool:" in line] == ["    tool: rm"]
    assert [line for line in ours if "send this call" in line] == [PROMPT_LONG + " "]
    assert all(len(line) < 80 for line in person.seen.split("\r\n"))


def test_wide_characters_do_not_break_out_of_the_frame(person: Person) -> None:
    talk(person, question({"a": "漢" * 300}), (PROMPT_LONG, "n\n"))
    rows = [line for line in person.seen.split("\r\n") if "漢" in line]
    assert len(rows) > 1
    assert all(line.startswith(BARS) and line.count("漢") <= 38 for line in rows)


def test_what_was_typed_before_the_question_does_not_answer_it(person: Person) -> None:
    person.types("y\ny\nyes")
    assert ask(person, "n\n") == "no"
    person.seen, person.waiting = "", b""
    person.types("y\n")
    assert ask(person, "\n") == "no"


def test_calls_that_run_beside_each_other_ask_one_at_a_time(person: Person) -> None:
    answers: dict[str, Answer] = {}

    async def scene() -> None:
        approver = person.approver()

        async def one(tool: str) -> None:
            answers[tool] = await approver.ask(question(tool=tool))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one, "first")
                tasks.start_soon(one, "second")
                await person.answers("y\n", times=1)
                assert "second" not in person.seen
                await person.answers("n\n", times=2)

    anyio.run(scene)
    assert answers == {"first": "yes", "second": "no"}


def test_a_question_can_be_cancelled_and_the_next_one_asked(person: Person) -> None:
    async def scene() -> Answer:
        approver = person.approver()
        with anyio.fail_after(60):
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


def test_a_terminal_that_takes_nothing_does_not_hold_up_the_loop(person: Person) -> None:
    async def scene() -> bool:
        approver = person.approver()
        # Nobody reads at the other end, as after Ctrl-S.
        with anyio.move_on_after(0.5) as waiting:
            await approver.ask(question({"content": "漢" * 7_000}))
        return waiting.cancelled_caught

    assert anyio.run(scene) is True


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


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("a", "always"),
        ("always", "always"),
        ("A", "always"),
        ("y", "yes"),
        ("", "no"),
        ("al", "no"),
    ],
)
def test_always_stores_the_rule_that_is_printed(
    person: Person, answer: str, expected: Answer
) -> None:
    asked = question({"path": "a" * 80}, always="fs__rm")
    assert talk(person, asked, (PROMPT_ALWAYS, answer + "\n")) == expected
    assert "  always: auto_approve fs__rm, for this session or run\r\n" in person.seen


SHORT_QUESTION = """\r
fs__rm {"path": "a"}\r
    no rule approves it (step one)\r
send? [y/N/a/?] """


@pytest.mark.parametrize(("answer", "expected"), [("a", "always"), ("y", "yes"), ("", "no")])
def test_a_question_is_as_short_as_its_call(person: Person, answer: str, expected: Answer) -> None:
    asked = question({"path": "a"}, always='fs__rm when {"path": "a"}')
    assert talk(person, asked, (PROMPT_SHORT_ALWAYS, answer + "\n")) == expected
    assert person.seen.startswith(SHORT_QUESTION)


def test_a_question_mark_shows_a_short_call_at_length_with_the_rule_of_always(
    person: Person,
) -> None:
    asked = question({"path": "a"}, always='fs__rm when {"path": "a"}')
    again = [(PROMPT_SHORT_ALWAYS, "?\n"), (PROMPT_ALWAYS, "?\n"), (PROMPT_ALWAYS, "a\n")]
    assert talk(person, asked, *again) == "always"
    assert (
        '  always: auto_approve fs__rm when {"path": "a"}, for this session or run' in person.seen
    )
    assert person.seen.count("  server: fs\r\n") == 2


def test_always_is_no_answer_where_it_is_not_offered(person: Person) -> None:
    assert talk(person, question(), (PROMPT, "a\n")) == "no"


@pytest.mark.parametrize("paste", ["y\ny\n", "y\nrm -rf x", "\ny\n", "y\n\n"])
def test_more_than_one_line_at_once_was_not_typed_by_a_person(
    person: Person, monkeypatch: pytest.MonkeyPatch, paste: str
) -> None:
    # On a busy machine the moment could be over before anybody looks for the rest, which is there.
    monkeypatch.setattr("aish.terminal.tty._PASTE_MOMENT", 20.0)
    assert talk(person, question(), (PROMPT, paste)) == "no"


def test_a_second_line_counts_even_if_nobody_looked_for_it_in_time(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def once_it_is_there(device: int) -> Generator[None]:
        with every_key(device):
            assert is_ready(device, 30)
            yield

    monkeypatch.setattr("aish.terminal.tty._PASTE_MOMENT", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr("aish.terminal.tty.every_key", once_it_is_there)
        assert talk(person, question(), (PROMPT, "y\nrm -rf x")) == "no"
    assert talk(person, question(), (PROMPT, "y\n")) == "yes"


def test_a_pasted_yes_is_none_where_the_terminal_marks_pastes(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert talk(person, question(), (PROMPT, "\x1b[200~y\x1b[201~\n")) == "no"
    assert talk(person, question(), (PROMPT, "y\n")) == "yes"
    person.place = 0
    for mark in ("h", "l", "h", "l"):
        anyio.run(person.hears, f"\x1b[?2004{mark}")


@pytest.mark.parametrize("left", ["raw", "without echo", "without line ends"])
def test_a_terminal_that_was_left_in_a_bad_state_is_used_and_left_so(
    person: Person, left: str
) -> None:
    if left == "raw":
        tty.setraw(person.slave)
    else:
        modes = termios.tcgetattr(person.slave)
        modes[3] &= ~(termios.ECHO if left == "without echo" else termios.ICANON)
        modes[0] &= ~termios.ICRNL
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(person.slave, termios.TCSANOW, modes)
    before = termios.tcgetattr(person.slave)

    assert talk(person, question({"a": "b"}), (PROMPT, "y\r")) == "yes"

    assert termios.tcgetattr(person.slave) == before
    # The kernel hands over the echo a moment after it.
    anyio.run(person.reads_until, f"{PROMPT} y\r\n")
    assert person.seen.endswith(f"{PROMPT} y\r\n")
    assert '\r\nfs__rm {"a": "b"}\r\n' in person.seen


def test_a_window_made_narrower_in_the_meantime_shows_the_call_again(person: Person) -> None:
    answers: list[Answer] = []

    async def scene() -> None:
        async def person_types() -> None:
            await person.hears(PROMPT_LONG)
            termios.tcsetwinsize(person.slave, (24, 40))
            person.types("y\n")
            await person.hears("the window is narrower")
            await person.hears(PROMPT_LONG)
            person.types("y\n")

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(person_types)
                answers.append(await person.approver().ask(question({"content": "x" * 300})))

    anyio.run(scene)
    assert answers == ["yes"]
    again = person.seen.split("the window is narrower")[1]
    assert all(len(row) < 40 for row in again.split("\r\n"))


def test_a_short_question_becomes_a_long_one_in_a_window_that_is_too_narrow(
    person: Person,
) -> None:
    answers: list[Answer] = []

    async def scene() -> None:
        async def person_types() -> None:
            await person.hears(PROMPT)
            termios.tcsetwinsize(person.slave, (24, 40))
            person.types("y\n")
            await person.hears("the window is narrower")
            await person.hears(PROMPT_LONG)
            person.types("y\n")

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(person_types)
                answers.append(await person.approver().ask(question({"content": "x" * 40})))

    anyio.run(scene)
    assert answers == ["yes"]


@pytest.mark.parametrize("width", [20, 25, 39, 40, 80, 400])
def test_the_question_fits_any_width(person: Person, width: int) -> None:
    termios.tcsetwinsize(person.slave, (24, width))
    arguments: JsonObject = {"path": "docs/" + "a" * 500, "content": "漢字 \u202e" * 50}
    asked = question(arguments, tool="a_tool_with_quite_a_long_name", always="fs__" + "a" * 300)

    assert talk(person, asked, ("[y/N/a", "y\n")) == "yes"

    assert "a" * 500 in argument_text(person.seen)
    for row in person.seen.split("\r\n"):
        assert sum(map(cells, row)) <= width


def test_what_cannot_be_shown_is_not_sent(person: Person) -> None:
    endless: list[JsonValue] = []
    endless.append(endless)
    deep: JsonObject = {"a": endless}

    async def scene() -> Answer:
        return await person.approver().ask(question(deep))

    assert anyio.run(scene) == "no"


def test_secrets_are_hidden_and_named_and_nothing_else_is(person: Person) -> None:
    secrets = Secrets()
    secrets.add("TOKEN", "s3cr3t-of-the-house")
    secrets.add("HOST", "intranet.example")
    arguments: JsonObject = {
        "url": "https://intranet.example/x?key=s3cr3t-of-the-house",
        "token": "s3cr3t-of-the-house",
    }

    async def scene() -> None:
        approver = TerminalApprover(reader=person.slave, writer=person.slave, secrets=secrets)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(person.answers, "n\n", 1, PROMPT_LONG)
            await approver.ask(question(arguments))

    anyio.run(scene)
    assert "s3cr3t" not in person.seen
    assert '"url": "https://intranet.example/x?key=<secret:TOKEN>"' in person.seen
    assert '"token": "<secret:TOKEN>"' in person.seen
    assert "  hidden: 1 secret, sent as what they are: <secret:TOKEN>" in person.seen


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


def test_a_terminal_that_goes_away_has_not_said_yes() -> None:
    master, slave = pty.openpty()
    approver = TerminalApprover(reader=slave, writer=slave)
    os.close(master)
    try:
        assert anyio.run(approver.ask, question()) == "no"
    finally:
        os.close(slave)


def test_nobody_says_no_at_once() -> None:
    assert not Unattended().attended
    assert anyio.run(Unattended().ask, question()) == "no"


SCRIPT = """
import anyio
from aish.terminal.approver import TerminalApprover
from aish.core.events import Place
from aish.core.protocols import Answer, Question
from aish.core.tools import Tool, ToolName

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


def test_the_own_terminal_is_asked_even_when_stdin_is_a_pipe(script: Path) -> None:
    command = f"echo y | {sys.executable} {script}"
    child: pexpect.spawn[str] = pexpect.spawn("/bin/sh", ["-c", command], encoding="utf-8")
    child.expect_exact(PROMPT, timeout=60)
    child.sendline("n")
    child.expect_exact("answer no", timeout=60)
    child.expect(pexpect.EOF)
    child.wait()
    child.close()
    assert child.exitstatus == 0


def test_control_c_at_the_question_stops_the_program(script: Path) -> None:
    child: pexpect.spawn[str] = pexpect.spawn(sys.executable, [str(script)], encoding="utf-8")
    child.expect_exact(PROMPT, timeout=60)
    child.sendintr()
    child.expect(pexpect.EOF, timeout=60)
    child.wait()
    child.close()
    assert "answer yes" not in str(child.before)
    assert "KeyboardInterrupt" in str(child.before)
    assert child.exitstatus == 1 or child.signalstatus == signal.SIGINT


def test_a_program_without_a_terminal_is_not_attended(script: Path) -> None:
    async def run() -> bytes:
        with anyio.fail_after(60):
            done = await anyio.run_process(
                [sys.executable, str(script)], input=b"y\n", start_new_session=True
            )
        return done.stdout

    assert anyio.run(run) == b"attended False\nanswer no\n"
