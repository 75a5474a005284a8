"""Local commands through a cassette: what one did, it seems to do again, and nothing runs."""

import json
from pathlib import Path

import pytest
from cassette_exchanges import HEAD
from waits import longest_wait

from aish.cassettes.format.file import load
from aish.cassettes.format.interaction import CassetteMissError
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.record.file_writer import Recording
from aish.cassettes.record.recorder import Kind, RecorderRules, Way
from aish.cassettes.replay.matching import Matching
from aish.core.tools import ToolResult
from aish.engine.resources.toolbox import LocalCommands, command_arguments
from aish.features.recording.session import RunRecorder
from aish.system.clock import SystemClock
from aish.system.offline import offline
from aish.system.process.reaper import Reaper
from aish.system.secrets.secrets import Secrets

SECRET = "planted-secret-value-1"
NOT_UTF_8 = ["printf", r"\377 and \303\244"]


class CommandScene:
    """A folder, and the cassette of what is run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "commands.yaml"
        self.recorder: RunRecorder
        self.waited = 0.0

    def record(self, *runs: list[str] | str, step: str = "s") -> list[ToolResult]:
        with Recording(self.path, HEAD) as recording:
            self.recorder = self._recorder("record", recording)
            results = self._run(runs, step)
            self.recorder.finish(HEAD)
        return results

    def replay(
        self, *runs: list[str] | str, step: str = "s", lenient: bool = False, paced: bool = False
    ) -> list[ToolResult]:
        self.recorder = self._recorder("replay", lenient=lenient, paced=paced)
        with offline() as trips:
            results = self._run(runs, step)
        assert trips == []
        return results

    def _recorder(
        self,
        way: Way,
        recording: Recording | None = None,
        *,
        lenient: bool = False,
        paced: bool = False,
    ) -> RunRecorder:
        ways: dict[Kind, Way] = dict.fromkeys(("model", "mcp", "exec"), way)
        places = PathPlaceholders(root=str(self.folder))
        secrets = Secrets()
        secrets.add("KEY", SECRET)
        return RunRecorder(
            RecorderRules(ways, lenient=lenient, paced=paced),
            () if way == "record" else load(self.path).interactions,
            Matching(places=places),
            places=places,
            secrets=secrets,
            monotonic=SystemClock().monotonic,
            recording=recording,
        )

    def _run(self, runs: tuple[list[str] | str, ...], step: str) -> list[ToolResult]:
        async def scene() -> list[ToolResult]:
            reaper = Reaper()
            commands = LocalCommands(
                self.folder, {"PATH": "/usr/bin:/bin", "KEY": SECRET}, reaper, self.recorder
            )
            try:
                return [await commands.of_step(step).run(command_arguments(run)) for run in runs]
            finally:
                reaper.close()

        results, self.waited = longest_wait(scene)
        found: list[ToolResult] = results
        return found


@pytest.fixture
def command_scene(tmp_path: Path) -> CommandScene:
    return CommandScene(tmp_path)


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (["printf", "%s files", "3"], "ok"),
        ("echo out; echo err >&2; exit 3", "ok"),
        ("echo only this >&2", "ok"),
        ("kill -9 $$", "ok"),
        (["true"], "ok"),
        (NOT_UTF_8, "ok"),
        (["echo", "snow \u2603 \u2028"], "ok"),
        (["/nonexistent/program"], "handler_error"),
    ],
)
def test_a_command_ends_again_as_it_did(
    run: list[str] | str, kind: str, command_scene: CommandScene
) -> None:
    recorded = command_scene.record(run)

    assert recorded[0].kind == kind
    assert command_scene.replay(run) == recorded
    assert command_scene.recorder.leftovers() == ()


def test_what_was_run_and_printed_stands_in_the_file(command_scene: CommandScene) -> None:
    command_scene.record(["printf", "hello"], step="greet")

    (one,) = load(command_scene.path).interactions
    assert (one.request.method, one.request.uri) == ("EXEC", "exec://greet")
    assert json.loads(one.request.body) == {"argv": ["printf", "hello"]}
    assert json.loads(one.response.body) == {"exit_code": 0, "stdout": "hello", "stderr": ""}


def test_equal_commands_end_in_the_order_in_which_they_did(command_scene: CommandScene) -> None:
    count = "echo x >> count; wc -l < count"
    recorded = command_scene.record(count, count, count)

    assert [one.content.strip() for one in recorded] == ["1", "2", "3"]
    assert command_scene.replay(count, count, count) == recorded
    assert (command_scene.folder / "count").read_text() == "x\n" * 3


def test_another_folder_is_no_other_command(
    command_scene: CommandScene, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command_scene.record(["echo", f"{command_scene.folder}/a.txt"])

    elsewhere = CommandScene(tmp_path_factory.mktemp("elsewhere"))
    elsewhere.path.write_bytes(command_scene.path.read_bytes())
    (played,) = elsewhere.replay(["echo", f"{elsewhere.folder}/a.txt"])

    assert played.content == f"{elsewhere.folder}/a.txt\n"


@pytest.mark.parametrize(("run", "step"), [(["echo", "b"], "s"), (["echo", "a"], "t")])
def test_another_command_or_another_step_is_a_miss(
    run: list[str], step: str, command_scene: CommandScene
) -> None:
    command_scene.record(["echo", "a"])

    with pytest.raises(CassetteMissError):
        command_scene.replay(run, step=step)
    assert len(command_scene.recorder.missed) == 1


def test_a_lenient_replay_fails_the_command_alone(command_scene: CommandScene) -> None:
    command_scene.record(["echo", "a"])

    missed, found = command_scene.replay(["echo", "b"], ["echo", "a"], lenient=True)

    assert (missed.kind, missed.content) == ("handler_error", "the cassette has no such call")
    assert found.content == "a\n"
    assert command_scene.recorder.missed == []


def test_a_command_takes_its_time_only_if_that_is_wanted(command_scene: CommandScene) -> None:
    command_scene.record(["sleep", "0.3"])

    command_scene.replay(["sleep", "0.3"])
    at_once = command_scene.waited
    command_scene.replay(["sleep", "0.3"], paced=True)

    assert at_once < 0.3 <= command_scene.waited


def test_a_secret_that_a_command_prints_is_not_kept(command_scene: CommandScene) -> None:
    command_scene.record(["echo", SECRET])

    assert SECRET not in command_scene.path.read_text(encoding="utf-8")
    assert command_scene.replay(["echo", SECRET])[0].content == "<secret:KEY>\n"


def test_a_hand_edited_answer_is_a_failed_command(command_scene: CommandScene) -> None:
    command_scene.record(["true"])
    text = command_scene.path.read_text(encoding="utf-8").replace(
        '"exit_code": 0', '"exit_kode": 0'
    )
    command_scene.path.write_text(text, encoding="utf-8")

    (played,) = command_scene.replay(["true"])

    assert played == ToolResult("handler_error", "the cassette has no answer to this")
