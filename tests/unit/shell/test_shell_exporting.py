"""What of a journal stands, and how it is said in a file (S7)."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from work import Work, work_of

from aish.config.model import ServerEntry
from aish.core.tools import ToolName
from aish.policy.suggest import Made
from aish.shell.export.pipeline import (
    ExportContext,
    NotExportedError,
    SessionSource,
    as_run,
    draft,
    layout,
    models_of,
    rebase,
    servers_of,
    steps_of,
)
from aish.shell.export.session_log import SessionLine, Waited, session_log_of
from aish.templates.render import render

SH = ("/bin/sh", "-c")


class Journal:
    """Records of a session, as they are read back."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.lines = self.ran = 0

    def add(self, kind: str, **fields: Any) -> None:
        self.records.append({**self.blank(kind), **fields})

    def blank(self, kind: str) -> dict[str, Any]:
        time = "2026-01-01T00:00:00.000Z"
        return {"v": 1, "seq": len(self.records) + 1, "time": time, "type": kind}

    def ask(self, text: str, *waited: str, status: str = "ok", tools: tuple[str, ...] = ()) -> None:
        self.lines += 1
        step = f"line-{self.lines}"
        self.start(step, "prompt")
        self.add("question.asked", step=step, text=text, attached=[], tools=list(tools))
        sent = "\n\n".join([*waited, text])
        self.add("turn.added", step=step, added={"role": "user", "text": sent})
        self.add(
            "turn.finished", step=step, turn=1, model="m", finish="stop", text="yes", calls=[],
            usage={"input": 1, "output": 1}, first_token_seconds=0.0, seconds=0.0, cost_usd=None,
            purpose="answer",
        )  # fmt: skip
        self.end(step, status)

    def start(self, step: str, kind: str) -> None:
        self.records.append({**self.blank("step.started"), "step": step, "kind": kind})

    def end(self, step: str, status: str = "ok") -> None:
        self.add(
            "step.finished", step=step, status=status, text="yes", output=None, usage={},
            cost_usd=None, seconds=0.0, error=None,
        )  # fmt: skip

    def waits(self, text: str, *, again: bool = False) -> str:
        self.add("output.waits", text=text, again=again)
        return text

    def run(self, command: str, code: int = 0, *, handed: bool = True) -> str:
        self.ran += 1
        step = f"run-{self.ran}"
        self.start(step, "run")
        arguments = {"command": command}
        self.add(
            "tool.decided", step=step, call=f"{step}-1", tool="shell__run", server="shell",
            name="run", arguments=arguments, verdict="ask-yes", reason="", rule="", approver="user",
            digest="0" * 64, duplicate_of=None,
        )  # fmt: skip
        self.add("tool.started", step=step, call=f"{step}-1", tool="shell__run")
        self.end(step)
        text = f"[local command: {command}]\nx\n[exit code {code}]"
        return self.waits(text) if handed else ""

    def replaced(self, reason: str, *users: str) -> None:
        turns = [{"role": "user", "text": text} for text in users]
        self.add("history.replaced", turns=turns, reason=reason)

    def standing(self) -> list[str]:
        return [line.text for line in session_log_of(self.records).lines]


def test_what_was_undone_does_not_stand() -> None:
    journal = Journal()
    journal.ask("one")
    journal.ask("two")
    journal.replaced("undone", "one")
    journal.ask("three", status="failed")

    log = session_log_of(journal.records)

    assert [line.text for line in log.complete_lines()] == ["one"]
    assert [line.text for line in log.open_lines()] == ["three"]
    assert not log.shortened


def test_questions_that_were_never_answered_are_left_out_and_named_once() -> None:
    journal = Journal()
    for text in ("refused", "refused", "asked again", "given up"):
        journal.ask(text, status="failed")
        journal.replaced("taken back")
    journal.ask("asked again")

    assert [line.text for line in session_log_of(journal.records).open_lines()] == [
        "refused",
        "given up",
    ]
    journal.replaced("cleared")
    assert session_log_of(journal.records).open_lines() == ()


def test_a_new_conversation_is_all_that_stands() -> None:
    journal = Journal()
    journal.ask("one")
    journal.replaced("summarised", "one")
    journal.run("ls")
    journal.replaced("cleared")
    journal.ask("two")

    log = session_log_of(journal.records)

    assert [(line.text, line.waited) for line in log.lines] == [("two", ())]
    assert not log.shortened


def test_questions_that_were_summarised_are_undone_together() -> None:
    journal = Journal()
    for text in ("one", "two", "three", "four"):
        journal.ask(text)
    journal.replaced("summarised", "one … three", "four")
    assert session_log_of(journal.records).shortened
    assert journal.standing() == ["one", "two", "three", "four"]
    journal.replaced("undone", "one … three")
    assert journal.standing() == ["one", "two", "three"]
    journal.replaced("undone")
    assert journal.standing() == []


def test_output_that_is_given_back_is_still_of_its_commands() -> None:
    journal = Journal()
    outputs = journal.run("ls"), journal.run("pwd")
    journal.ask("what?", *outputs)
    later = journal.run("date")
    journal.replaced("undone")
    journal.waits("\n\n".join(outputs), again=True)
    journal.ask("what?", *outputs, later)

    (line,) = session_log_of(journal.records).lines

    ran = [(one.step, one.command) for one in line.waited]
    assert ran == [("run-1", "ls"), ("run-2", "pwd"), ("run-3", "date")]


def test_output_that_is_given_back_is_of_no_command_that_was_denied_since() -> None:
    journal = Journal()
    output = journal.run("ls")
    journal.ask("what?", output)
    journal.run("rm -r x", handed=False)
    journal.replaced("undone")
    journal.waits(output, again=True)
    journal.ask("what?", output)

    (line,) = session_log_of(journal.records).lines

    assert [(one.step, one.command) for one in line.waited] == [("run-1", "ls")]


def test_what_is_no_output_of_a_command_is_taken_for_none() -> None:
    journal = Journal()
    journal.run("ls", handed=False)
    journal.start("line-9", "prompt")
    journal.waits("[aish] 3 more `CMD:` lines not run")
    journal.ask("what?", "[aish] 3 more `CMD:` lines not run")

    (line,) = session_log_of(journal.records).lines

    assert [one.command for one in line.waited] == [""]


def told(
    folder: Path, *ran: str, shell: tuple[str, ...] = SH, here: Path | None = None
) -> ExportContext:
    return ExportContext("Be brief", shell, {}, frozenset(ran), folder, here or folder)


def asked(*waited: Waited) -> SessionLine:
    return SessionLine("line-1", "what?", (), (), waited, "m", True, {"text": "as sent"})


GOOD = "[local command: ls]\nx\n[exit code 0]"


@pytest.mark.parametrize(
    ("waited", "why"),
    [
        (Waited(GOOD.replace("code 0", "code 1"), "run-1", "ls"), "did not succeed"),
        (Waited("a\n[aish] 3 of 9 bytes left out here\n[exit code 0]", "run-1", "ls"), "too long"),
        (Waited(GOOD, "run-1", "echo <secret:KEY>"), "the command contained a secret"),
        (Waited(GOOD, "run-2", "ls"), "not in the recording"),
    ],
)
def test_output_that_no_step_can_make_again_stands_as_it_was(
    tmp_path: Path, waited: Waited, why: str
) -> None:
    (step,) = steps_of([asked(waited)], told(tmp_path, "run-1"))

    assert why in step.remarks[0]
    assert step.data["prompt"] == f"{waited.text}\n\nwhat?"


def test_a_command_is_run_by_the_shell_of_the_session(tmp_path: Path) -> None:
    bash = ("bash", "-c")
    run, line = steps_of([asked(Waited(GOOD, "run-1", "ls"))], told(tmp_path, "run-1", shell=bash))

    assert run.data == {"id": "run-1", "run": ["bash", "-c", "ls"]}
    assert "steps['run-1']" in str(line.data["prompt"])
    made = as_run(Made(ToolName("shell", "run"), {"command": "ls"}), bash)
    assert made.arguments == {"argv": ["bash", "-c", "ls"]}


def test_folders_are_said_from_where_the_file_will_stand(tmp_path: Path) -> None:
    target = tmp_path / "ci" / "jobs"

    def there(entry: Any) -> Any:
        return rebase(entry, tmp_path, target)

    assert there({"pack": "fs", "root": "data"}) == {"pack": "fs", "root": "../../data"}
    assert there({"pack": "fs"}) == {"pack": "fs"}
    assert there({"command": "x"}) == {"command": "x", "cwd": "../.."}
    assert there({"pack": "fs", "root": "${DATA}"}) == {"pack": "fs", "root": "${DATA}"}
    assert there({"url": "http://h/mcp"}) == {"url": "http://h/mcp"}
    assert rebase({"pack": "fs", "root": "x"}, tmp_path, tmp_path) == {"pack": "fs", "root": "x"}


def test_servers_are_those_that_models_were_shown(tmp_path: Path) -> None:
    data: Any = {"mcp": {"servers": {"a": {"url": "http://a"}, "b": {"url": "http://b"}}}}
    web = ServerEntry(alias="web", url="http://web", auth_env="KEY")

    found = servers_of(data, {"web": web}, {"b", "web"}, tmp_path, tmp_path)

    assert found == {"b": {"url": "http://b"}, "web": {"url": "http://web", "auth_env": "KEY"}}
    with pytest.raises(NotExportedError, match="the address of the server `gone`"):
        servers_of(data, {}, {"gone"}, tmp_path, tmp_path)


def test_models_are_those_that_answered_and_what_they_fall_back_to() -> None:
    data: Any = {"models": {"a": {}, "b": {"fallback": ["c"]}, "c": {"fallback": ["b"]}, "d": {}}}

    assert list(models_of(data, ["c"])) == ["b", "c"]


TEXTS = [
    "plain", "two words", "yes", "{{ x }}", "{% raw %}", "a\n\nb", " led", "trailed ", "\n", "\t",
    "a: b", "- x", "#no", "\u2028", "\x00", "\x1b[0m", "a\r\nb", "é\u202e", "'", '"', "\\",
    "x\n# y", "~", "null", "1e3", "{", "a{", "|", ">", "needs:\n- a", "\ufeff", "##[x]",
    "steps:\n\n\n  y\n",
]  # fmt: skip


def test_an_export_costs_no_square_of_the_questions_of_its_session(tmp_path: Path) -> None:
    data: Any = {"models": {"m": {"base_url": "http://h"}}}
    source = SessionSource(data, tmp_path, tmp_path, {}, {}, "Be brief", SH)

    def export(count: int) -> Work:
        journal = Journal()
        for number in range(count):
            journal.ask(f"question {number}", journal.run("ls"))
        ran = frozenset(f"run-{number}" for number in range(1, count + 1))
        files: list[str] = []

        def write() -> None:
            made = draft(
                source, session_log_of(journal.records), ran, tmp_path / "x.yaml", "c.yaml"
            )
            files.append(layout(made, "x.yaml"))

        work = work_of(write)
        assert len(yaml.safe_load(files[0])["steps"]) == 2 * count
        return work

    export(2)  # so that nothing is counted that is done once
    assert export(200).steps < 15 * export(20).steps


@pytest.mark.parametrize("text", TEXTS)
def test_any_question_is_read_back_as_it_was_asked(tmp_path: Path, text: str) -> None:
    journal = Journal()
    journal.ask(text, tools=("web__a",))
    data: Any = {
        "models": {"m": {"base_url": "http://h"}},
        "mcp": {"servers": {"web": {"url": "u"}}},
    }
    source = SessionSource(data, tmp_path, tmp_path, {}, {"web": ("web__a",)}, "Be brief", SH)

    made = draft(
        source, session_log_of(journal.records), frozenset(), tmp_path / "x.yaml", "c.yaml"
    )
    found = yaml.safe_load(layout(made, "x.yaml"))

    prompt = found["steps"][0]["prompt"]
    prompt = prompt["user"] if isinstance(prompt, dict) else prompt
    assert render(prompt, {}) == text
