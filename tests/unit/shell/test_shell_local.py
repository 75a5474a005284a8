"""Local commands of a session over real processes: what runs, what is told, what is left."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from agent_fakes import Person
from hypothesis import given
from hypothesis import strategies as st
from mcp_processes import is_alive
from shell_local_scenes import ENVIRON, Scene, words

from aish.config.model import ModelEntry, Pipeline, ServerEntry
from aish.core.errors import BudgetError, UsageError
from aish.core.events import (
    Event,
    Notice,
    Place,
    StepFinished,
    ToolFinished,
    ToolOutput,
    ToolStarted,
)
from aish.core.protocols import Hold
from aish.core.rules import RuleEntry
from aish.engine.resources.toolbox import OUTPUT_LIMIT
from aish.shell.local.shell import LocalOutput, LocalShell, Ran, own_environment
from aish.system.secrets.secrets import Secrets


def typed(scene: Scene, command: str, *, hand_over: bool = True) -> Ran:
    async def play(shell: LocalShell) -> Ran:
        return await shell.run_typed(command, hand_over=hand_over)

    return scene.run(play)


async def gone(pid: int) -> None:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with anyio.fail_after(60):
        await anyio.wait_readable(watched)
    os.close(watched)


def test_a_typed_command_is_a_step_that_tells_its_output(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    ran = typed(scene, "echo out; echo err >&2; exit 3")

    kinds = scene.types()
    assert kinds[:3] == ["step.started", "tool.decided", "tool.started"]
    assert set(kinds[3:-2]) == {"tool.output stdout", "tool.output stderr"}
    assert kinds[-2:] == ["tool.finished", "step.finished"]
    assert scene.decisions() == [("ask-yes", "the user")]
    assert (scene.output(), scene.output("stderr")) == ("out\n", "err\n")
    assert ran.record.output == {"exit_code": 3, "stdout": "out\n", "stderr": "err\n"}
    (finished,) = scene.events_of(StepFinished)
    assert (finished.place, finished.status) == (Place("run-1"), "failed")
    assert {event.place for event in scene.events_of(ToolOutput)} == {
        Place("run-1", call="run-1-1")
    }


def test_what_a_command_printed_waits_for_the_next_question(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def play(shell: LocalShell) -> None:
        await shell.run_typed("echo one", hand_over=True)
        await shell.run_typed("echo hidden", hand_over=False)
        await shell.run_typed("echo two", hand_over=True)

    scene.run(play)

    assert scene.buffer.user_turn("And now?").text == (
        "[local command: echo one]\none\n[exit code 0]\n\n"
        "[local command: echo two]\ntwo\n[exit code 0]\n\n"
        "And now?"
    )
    steps = [event.place.step for event in scene.events_of(StepFinished)]
    assert steps == ["run-1", "run-2", "run-3"]


def test_a_command_may_have_several_lines(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    typed(scene, "for i in 1 2\ndo echo $i\ndone")

    assert scene.output() == "1\n2\n"


def test_nothing_typed_is_no_command(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with pytest.raises(UsageError, match="there is no command"):
        typed(scene, "  ")
    assert scene.events == []


def test_a_rule_that_denies_beats_what_the_person_types(tmp_path: Path) -> None:
    scene = Scene(tmp_path, auto=(words("touch **"),), deny=(words("touch **"),))

    ran = typed(scene, "touch made")

    assert ran.record.status == "denied"
    assert not (tmp_path / "made").exists()
    assert scene.decisions() == [("deny", 'shell__run command ["touch", "**"]')]
    assert "denied by rule shell__run" in str(ran.handed)
    assert scene.events_of(ToolStarted) == []


def test_a_typed_command_runs_where_nobody_can_be_asked(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ask=(RuleEntry("shell__*"),), person=Person(attended=False))

    typed(scene, "echo hi")

    assert scene.decisions() == [("ask-yes", "the user")]
    assert scene.person.questions == []
    assert scene.output() == "hi\n"


def test_a_command_runs_in_the_folder_and_the_shell_of_the_person(tmp_path: Path) -> None:
    scene = Scene(tmp_path, prefix=(sys.executable, "-I", "-S", "-c"))

    typed(scene, "import os; print(os.getcwd(), open(0).read() == '')")

    assert scene.output() == f"{tmp_path} True\n"


def test_a_command_has_no_terminal_and_a_group_of_its_own(tmp_path: Path) -> None:
    scene = Scene(tmp_path, prefix=(sys.executable, "-I", "-S", "-c"))

    typed(scene, "import os; print(os.getpid() == os.getpgid(0) == os.getsid(0), os.isatty(0))")
    assert scene.output() == "True False\n"

    other = Scene(tmp_path)
    ran = typed(other, "echo password </dev/tty")
    assert isinstance(ran.record.output, dict)
    assert ran.record.output["exit_code"] != 0


def test_a_command_finds_all_of_the_environment_but_the_secrets_of_the_file(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(
        file=tmp_path / "task.yaml",
        name="task",
        models={"m": ModelEntry(alias="m", key_env="MODEL_KEY")},
        servers={"s": ServerEntry(alias="s", auth_env="SERVER_KEY")},
    )
    secrets = Secrets()
    secrets.add("TOKEN", "secret-token-1234")
    environ = {
        **ENVIRON,
        "MODEL_KEY": "short",
        "SERVER_KEY": "key",
        "TOKEN": "secret-token-1234",
        "SAME": "https://u:secret-token-1234@host/",
        "EDITOR": "vi",
    }
    scene = Scene(tmp_path, environment=own_environment(environ, pipeline, secrets))

    typed(scene, "env; echo model=$MODEL_KEY")

    printed = scene.output()
    assert "secret-token-1234" not in printed
    assert "EDITOR=vi\n" in printed
    assert "model=\n" in printed
    names = {line.partition("=")[0] for line in printed.splitlines()}
    assert names.isdisjoint({"MODEL_KEY", "SERVER_KEY", "TOKEN", "SAME"})


@pytest.mark.slow(reason="prints without end")
def test_a_command_that_prints_without_end_is_kept_and_told_up_to_a_bound(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    ran = typed(scene, "head -c 100000000 /dev/zero | tr '\\0' 'x'")

    assert len(scene.output()) == OUTPUT_LIMIT
    (notice,) = (one for one in scene.events_of(Notice) if one.code == "output_cut")
    assert notice.text == "the first 16 MiB of 100,000,000 bytes of output were kept"
    assert ran.handed is not None
    assert len(ran.handed) <= 32 * 1024
    assert "bytes left out here" in ran.handed
    assert ran.handed.startswith("[local command: head")
    assert ran.handed.endswith("\n[exit code 0]")
    (kept,) = scene.kept.values()
    assert len(kept) == OUTPUT_LIMIT


def test_a_long_output_is_handed_over_cut_in_the_middle(tmp_path: Path) -> None:
    scene = Scene(tmp_path, limit=300)

    ran = typed(scene, "seq 1000")

    assert ran.handed is not None
    lines = ran.handed.splitlines()
    assert lines[0] == "[local command: seq 1000]"
    assert lines[1] == "1"
    assert lines[-2:] == ["1000", "[exit code 0]"]
    assert any(line.startswith("[aish] ") and "left out here" in line for line in lines)
    assert len(ran.handed) <= 300
    (kept,) = scene.kept.values()
    assert kept.splitlines() == [str(n).encode() for n in range(1, 1001)]


def test_output_is_told_as_it_is_for_each_place_to_make_fit(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    typed(scene, r"printf '\033[2Jred\033[0m \033]0;title\007\r\n'")

    assert scene.output() == "\x1b[2Jred\x1b[0m \x1b]0;title\x07\r\n"
    assert "\x1b[2J" in scene.waiting()


def test_a_command_may_close_its_output_and_go_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    ran = typed(scene, "echo before; exec 1>&- 2>&-; touch after; exit 5")

    assert ran.record.output == {"exit_code": 5, "stdout": "before\n", "stderr": ""}
    assert (tmp_path / "after").exists()


def test_what_a_command_leaves_in_the_background_ends_with_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    typed(scene, "sleep 100 & echo $!")

    anyio.run(gone, int(scene.output()))
    assert not is_alive(int(scene.output()))


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [("kill -9 $$", -9, ""), ("no-such-program-here", 127, "not found"), ("true", 0, "")],
)
def test_every_end_of_a_command_is_told(command: str, code: int, said: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    ran = typed(scene, command)

    assert isinstance(ran.record.output, dict)
    assert ran.record.output["exit_code"] == code
    assert said in scene.output("stderr")
    assert scene.waiting().endswith(f"[exit code {code}]")


@pytest.mark.parametrize("command", ["echo a\0b", "x" * 3_000_000])
def test_what_cannot_be_started_says_why(command: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    ran = typed(scene, command)

    assert (ran.record.status, ran.record.output) == ("failed", None)
    assert "cannot start `/bin/sh`" in scene.waiting()


def test_a_shell_that_is_not_there_says_so(tmp_path: Path) -> None:
    scene = Scene(tmp_path, prefix=("/nonexistent/zsh", "-c"))

    typed(scene, "ls")

    assert scene.waiting() == (
        "[local command: ls]\ncannot start `/nonexistent/zsh`: No such file or directory"
    )


def test_an_interrupted_command_ends_with_all_it_has_started(tmp_path: Path) -> None:
    script = (
        "trap '' TERM; (trap '' TERM; sleep 1000) & echo $! $$; echo working >&2; sleep 1000 & wait"
    )
    scene = Scene(tmp_path)

    async def play(shell: LocalShell) -> None:
        with anyio.CancelScope() as scope:
            scene.on_event = _once_printed(scene, "working", scope.cancel)
            await shell.run_typed(script, hand_over=True)
        assert scope.cancelled_caught
        for pid in map(int, scene.output().split()):
            await gone(pid)

    scene.run(play)

    assert not any(map(is_alive, map(int, scene.output().split())))
    assert scene.types()[-2:] == ["tool.finished", "step.finished"]
    (finished,) = scene.events_of(StepFinished)
    assert finished.error is not None
    assert finished.error.code == "interrupted"
    (ended,) = scene.events_of(ToolFinished)
    assert ended.content == "[aish] interrupted"
    assert ended.seconds == finished.seconds > 0
    assert scene.waiting().endswith("[stderr]\nworking\n[aish] interrupted")


def test_after_an_interrupted_command_the_next_one_runs(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def play(shell: LocalShell) -> Ran:
        with anyio.CancelScope() as scope:
            scene.on_event = _once_printed(scene, "up", scope.cancel)
            await shell.run_typed("echo up; sleep 1000", hand_over=False)
        return await shell.run_typed("echo again", hand_over=True)

    ran = scene.run(play)

    assert ran.record.text == "again\n"
    assert scene.waiting() == "[local command: echo again]\nagain\n[exit code 0]"


def test_output_is_told_while_the_command_runs(tmp_path: Path) -> None:
    """The command goes on only after its first line was heard."""
    os.mkfifo(tmp_path / "go")
    scene = Scene(tmp_path)
    seen: list[str] = []

    def heard() -> None:
        seen.extend(scene.types())
        os.close(os.open(tmp_path / "go", os.O_WRONLY))

    scene.on_event = _once_printed(scene, "first", heard)
    typed(scene, "echo first; read x < go; echo second")

    assert "tool.output stdout" in seen
    assert "tool.finished" not in seen
    assert scene.output() == "first\nsecond\n"


def test_a_limit_on_calls_holds_for_local_commands(tmp_path: Path) -> None:
    scene = Scene(tmp_path, meter=_Spent())

    ran = typed(scene, "touch made")

    assert ran.record.status == "budget"
    assert ran.handed is None
    assert not (tmp_path / "made").exists()
    assert scene.types()[-1] == "step.finished"


@given(st.lists(st.binary(max_size=8), max_size=8))
def test_pieces_of_output_are_the_text_that_all_of_it_is(pieces: list[bytes]) -> None:
    events: list[Event] = []
    output = LocalOutput(Place(), events.append)
    for piece in pieces:
        output.printed("stdout", piece)
    output.close()

    told = "".join(event.text for event in events if isinstance(event, ToolOutput))
    assert told == output.stdout == b"".join(pieces).decode("utf-8", "replace")
    assert not output.stderr


def test_a_character_that_comes_in_two_pieces_is_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    typed(scene, r"printf '\342\230'; printf '\203 snow\n'")

    assert scene.output() == "☃ snow\n"


class _Spent:
    """A meter whose limit on calls is reached."""

    async def reserve(self, place: Place, alias: str, size: int, max_tokens: int | None) -> Hold:
        raise AssertionError("no model is asked")

    async def count_call(self, place: Place) -> None:
        await anyio.lowlevel.checkpoint()
        raise BudgetError(f"no more calls at {place.step}")


def _once_printed(scene: Scene, wanted: str, then: Callable[[], None]) -> Callable[[Event], None]:
    """Calls `then` when `wanted` has been printed, once."""
    done: list[bool] = []

    def look(event: Event) -> None:
        if done or not isinstance(event, ToolOutput):
            return
        if wanted in scene.output("stdout") + scene.output("stderr"):
            done.append(True)
            then()

    return look
