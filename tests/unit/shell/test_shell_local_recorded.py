"""What a local command leaves on the tape is what a `run` step of an exported file plays."""

import json
from pathlib import Path

import anyio
from cassette_exchanges import HEAD
from shell_local_scenes import ENVIRON, Scene, ScriptedPerson

from aish.cassettes.format.file import load
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.record.file_writer import Recording
from aish.cassettes.record.recorder import Kind, RecorderRules, Way
from aish.cassettes.replay.matching import Matching
from aish.config.model import PLATFORM_SHELL
from aish.core.tools import ToolResult
from aish.engine.resources.toolbox import LocalCommands, command_arguments
from aish.features.recording.session import RunRecorder
from aish.shell.local.shell import LocalShell, run_report
from aish.system.clock import SystemClock
from aish.system.offline import offline
from aish.system.process.reaper import Reaper
from aish.system.secrets.secrets import Secrets


def recorder(folder: Path, way: Way, recording: Recording | None = None) -> RunRecorder:
    ways: dict[Kind, Way] = dict.fromkeys(("model", "mcp", "exec"), way)
    places = PathPlaceholders(root=str(folder))
    return RunRecorder(
        RecorderRules(ways),
        () if way == "record" else load(folder / "tape.yaml").interactions,
        Matching(places=places),
        places=places,
        secrets=Secrets(),
        monotonic=SystemClock().monotonic,
        recording=recording,
    )


def recorded(folder: Path, play: str, *, prefix: tuple[str, ...] = PLATFORM_SHELL) -> Scene:
    with Recording(folder / "tape.yaml", HEAD) as recording:
        session = recorder(folder, "record", recording)
        scene = Scene(
            folder, prefix=prefix, recorder=session, scripted_person=ScriptedPerson(["yes"])
        )

        async def commands(shell: LocalShell) -> None:
            await shell.run_typed(play, hand_over=True)
            await shell.propose("CMD: echo proposed >&2; exit 2")

        scene.run(commands)
        session.finish(HEAD)
    return scene


def replayed(folder: Path, step: str, run: str | list[str]) -> ToolResult:
    """A `run` step of an exported file, which replays."""

    async def scene() -> ToolResult:
        reaper = Reaper()
        commands = LocalCommands(folder, ENVIRON, reaper, recorder(folder, "replay"))
        try:
            return await commands.of_step(step).run(command_arguments(run))
        finally:
            reaper.close()

    with offline() as trips:
        result = anyio.run(scene)
    assert trips == []
    return result


def test_an_exported_step_plays_what_the_session_has_recorded(tmp_path: Path) -> None:
    scene = recorded(tmp_path, "echo typed")

    first, second = load(tmp_path / "tape.yaml").interactions
    assert (first.request.uri, second.request.uri) == ("exec://run-1", "exec://run-2")
    assert json.loads(first.request.body) == {"command": "echo typed"}
    played = [
        replayed(tmp_path, "run-1", "echo typed"),
        replayed(tmp_path, "run-2", "echo proposed >&2; exit 2"),
    ]
    assert [one.structured for one in played] == [
        {"exit_code": 0, "stdout": "typed\n", "stderr": ""},
        {"exit_code": 2, "stdout": "", "stderr": "proposed\n"},
    ]
    assert scene.waiting() == "\n\n".join(
        (
            run_report("echo typed", 0, "typed\n", ""),
            run_report("echo proposed >&2; exit 2", 2, "", "proposed\n"),
        )
    )


def test_through_another_shell_the_step_is_the_whole_argv(tmp_path: Path) -> None:
    recorded(tmp_path, "echo $0", prefix=("/bin/sh", "-e", "-c"))

    played = replayed(tmp_path, "run-1", ["/bin/sh", "-e", "-c", "echo $0"])

    assert played.content == "/bin/sh\n"


def test_an_interrupted_command_is_on_the_tape_as_such(tmp_path: Path) -> None:
    with Recording(tmp_path / "tape.yaml", HEAD) as recording:
        session = recorder(tmp_path, "record", recording)
        scene = Scene(tmp_path, recorder=session)

        async def play(shell: LocalShell) -> None:
            with anyio.CancelScope() as scope:
                scene.on_event = lambda _: scope.cancel() if scene.output() else None
                await shell.run_typed("echo up; sleep 1000", hand_over=True)

        scene.run(play)
        session.finish(HEAD)

    (one,) = load(tmp_path / "tape.yaml").interactions
    assert one.response.broken is not None
