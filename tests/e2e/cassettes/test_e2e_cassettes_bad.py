"""What can go wrong around a cassette: a broken file, an odd place, an end in the middle."""

import json
import os
import signal
from pathlib import Path

import httpx
import pytest
import vcr
from cli_process import Running, heeding_modes
from e2e_project import REPO, ModelEndpoints, Project
from model_endpoint import Gate, ModelEndpoint, delta, sse, stream_reply, text_reply, usage
from plain_http import PLAIN
from samples import sampled

from aish.api import run
from aish.core.errors import UsageError

STEPS = "steps: [{id: a, prompt: First}, {id: b, prompt: Second, needs: [a]}]\n"
OLDER = "# The older one\ninteractions: []\nversion: 1\n"


def stuck(project: Project, model_endpoint: ModelEndpoints) -> tuple[Running, Gate, ModelEndpoint]:
    """A recording over an older cassette, in the middle of its second answer."""
    gate = Gate()
    beginning = sse([delta(role="assistant", content="It was")], done=False)
    rest = sse([delta(content=" long"), delta("stop"), usage()])
    endpoint = model_endpoint([text_reply("one"), stream_reply(beginning, gate, rest)])
    project.uses(endpoint)
    project.pipeline(STEPS)
    project.write("c.yaml", OLDER)
    running = project.aish.start("record", "p.yaml", "-o", "c.yaml", "--format", "jsonl")
    running.wait_for_line("It was", where="stdout")
    return running, gate, endpoint


def partial_of(project: Project) -> Path:
    return project.folder / "c.yaml.partial"


@pytest.mark.parametrize(
    ("kind", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_an_interrupted_recording_stays_beside_the_older_cassette(
    project: Project, model_endpoint: ModelEndpoints, kind: signal.Signals, code: int
) -> None:
    running, _, _ = stuck(project, model_endpoint)

    running.interrupt(kind)
    done = running.finish(20)
    replayed = project.run("--replay", "c.yaml.partial")

    assert done.code == code, done.stderr
    assert (project.folder / "c.yaml").read_text() == OLDER
    kept = partial_of(project).read_text()
    assert "complete: false" in kept
    assert "First" in kept
    assert replayed.code == 2
    assert "not complete" in replayed.stderr
    if kind is not signal.SIGKILL:
        assert "c.yaml.partial" in done.stderr


def test_a_recording_that_was_killed_is_no_obstacle(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    running, _, _ = stuck(project, model_endpoint)
    running.interrupt(signal.SIGKILL)
    running.finish(20)
    project.uses(model_endpoint([text_reply("one"), text_reply("two")]))

    done = project.aish("record", "p.yaml", "-o", "c.yaml")

    assert done.code == 0, done.stderr
    assert not partial_of(project).exists()
    assert project.run("--replay", "c.yaml").stdout == "two\n"


def test_a_second_recording_of_one_cassette_is_refused_before_it_asks_anybody(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    running, gate, endpoint = stuck(project, model_endpoint)
    asked = len(endpoint.requests)

    second = project.aish("record", "p.yaml", "-o", "c.yaml")
    with pytest.raises(UsageError, match="is being recorded by another run"):
        run(
            project.folder / "p.yaml",
            record=project.folder / "c.yaml",
            environ={**os.environ, **project.aish.env},
        )
    folders = project.run_folders
    gate.open()
    first = running.finish(20)

    assert len(folders) == 1, "a run that was refused leaves nothing"
    assert (second.code, second.stdout) == (2, "")
    assert "is being recorded by another run" in second.stderr
    assert len(endpoint.requests) == asked
    assert first.code == 0, first.stderr
    endpoint.close()
    assert project.run("--replay", "c.yaml").stdout == "It was long\n"


RECORDED = (REPO / "tests" / "cassettes" / "quickstart.yaml").read_text()
INCOMPLETE = """
metadata: {complete: false, version: 1, run: r, clock: c, env: {}}
version: 1
interactions: []
"""
BROKEN = {
    "missing": (None, "no such cassette"),
    "empty": ("", "the cassette is empty"),
    "another program's data": ("a: 1\n", "no `interactions`"),
    "no YAML": ("{{{", "error: "),
    "a tag": ("!!python/object/apply:os.system [ls]\n", "error: "),
    "another version": ("version: 2\ninteractions: []\n", "of version 2"),
    "interrupted": (INCOMPLETE, "not complete"),
    "cut off": (RECORDED[: len(RECORDED) // 2], "cut short"),
    "edited by hand": (RECORDED.replace("chunks: ", "chunks: 1000000@0 ", 1), "chunks"),
    "full of tags": ("interactions: !!map [!!str a, !<!b> c]\nversion: 1\n", "error: "),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", BROKEN)
def test_a_cassette_that_cannot_be_used_is_said_before_anybody_is_asked(
    project: Project, model_endpoint: ModelEndpoints, name: str
) -> None:
    content, said = BROKEN[name]
    endpoint = model_endpoint([text_reply("live")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    if content is not None:
        project.write("c.yaml", content)

    done = project.run("--replay", "c.yaml")

    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "c.yaml" in done.stderr
    assert "Traceback" not in done.stderr
    assert endpoint.requests == []


@pytest.mark.parametrize(
    "arguments",
    sampled(
        [
            ["run", "p.yaml", "--replay", "c.yaml"],
            ["run", "p.yaml", "--cassette", "c.yaml", "--record-mode", "new_episodes"],
            ["cassette", "show", "c.yaml"],
            ["cassette", "check", "c.yaml"],
        ],
        often={0},
        reason="each starts the real program",
    ),
)
def test_a_cassette_of_a_gigabyte_is_refused_and_not_read(
    project: Project, model_endpoint: ModelEndpoints, arguments: list[str]
) -> None:
    endpoint = model_endpoint([text_reply("live")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    with (project.folder / "c.yaml").open("wb") as file:
        file.truncate(1 << 30)
    # Had it to be read, there would be no room for it.
    project.through_shell('ulimit -v 1000000; exec "$@"')

    done = project.aish(*arguments)

    assert done.code == 2
    assert "c.yaml" in done.stdout + done.stderr
    assert "is larger than 256 MB" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert endpoint.requests == []


def test_a_recording_of_another_program_by_plain_vcrpy_is_a_miss(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("theirs"))
    with vcr.use_cassette(str(project.folder / "c.yaml"), decode_compressed_response=True):
        httpx.post(
            f"{endpoint.base_url}/chat/completions",
            json={"model": "x", "messages": []},
            verify=PLAIN,
        )
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    asked = len(endpoint.requests)

    done = project.run("--replay", "c.yaml")

    assert (done.code, done.stdout) == (6, ""), done.stderr
    assert "c.yaml" in done.stderr
    assert "Say hello" in done.stderr
    assert len(endpoint.requests) == asked == 1


@pytest.mark.parametrize("place", ["p.yaml/c.yaml", "folder", "/proc/nowhere/c.yaml"])
def test_a_place_that_cannot_be_written_is_said_before_anybody_is_asked(
    project: Project, model_endpoint: ModelEndpoints, place: str
) -> None:
    endpoint = model_endpoint([text_reply("live")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    (project.folder / "folder").mkdir()

    done = project.aish("record", "p.yaml", "-o", place)

    assert (done.code, done.stdout) == (2, "")
    assert place in done.stderr
    assert endpoint.requests == []


def test_a_read_only_folder_is_played_from_and_not_recorded_to(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    prefix = heeding_modes()
    if prefix is None:
        pytest.skip("nothing is read-only for root here")
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    recorded = project.aish("record", "p.yaml", "-o", "kept/c.yaml")
    kept = project.folder / "kept"
    before = (kept / "c.yaml").read_bytes()
    kept.chmod(0o500)
    project.aish.python = (*prefix, *project.aish.python)

    refused = [project.aish("record", "p.yaml", "-o", f"kept/{name}.yaml") for name in "cd"]
    replayed = project.run("--replay", "kept/c.yaml")
    kept.chmod(0o700)

    assert recorded.code == 0, recorded.stderr
    assert [(one.code, one.stdout) for one in refused] == [(2, ""), (2, "")]
    assert all("cannot be written: Permission denied" in one.stderr for one in refused)
    assert len(endpoint.requests) == 1
    assert (replayed.code, replayed.stdout) == (0, "Hello.\n"), replayed.stderr
    assert list(kept.iterdir()) == [kept / "c.yaml"]
    assert (kept / "c.yaml").read_bytes() == before


def test_a_full_disk_loses_the_cassette_and_not_the_answer(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("word " * 50_000)])
    project.uses(endpoint)
    project.pipeline("prompt: Say a lot")
    project.write("c.yaml", OLDER)
    project.through_shell('ulimit -f 64; exec "$@"')

    done = project.aish("record", "p.yaml", "-o", "c.yaml", "--ephemeral")

    assert done.code == 1, done.stderr
    assert len(done.stdout) > 200_000
    assert "the cassette `c.yaml` cannot be written" in done.stderr
    assert (project.folder / "c.yaml").read_text() == OLDER


@pytest.mark.requirement("C8")
def test_what_looks_like_a_secret_is_not_written_unless_the_file_allows_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    endpoint = model_endpoint([text_reply(f"Use {key}."), text_reply(f"Use {key}.")])
    project.uses(endpoint)
    project.pipeline("prompt: A key, please")
    project.write("c.yaml", OLDER)

    refused = project.aish("record", "p.yaml", "-o", "c.yaml", "--format", "json")
    left = partial_of(project).read_text() if partial_of(project).exists() else ""
    project.pipeline('prompt: A key, please\ncassette: {path: c.yaml, allow: ["ghp_*"]}')
    allowed = project.aish("record", "p.yaml")

    assert refused.code == 1
    assert json.loads(refused.stdout)["steps"]["main"]["status"] == "ok"
    assert "interaction 1" in refused.stderr
    assert "hint:" in refused.stderr
    assert key not in left
    assert allowed.code == 0, allowed.stderr
    assert key in (project.folder / "c.yaml").read_text()


CONTRADICTIONS = {
    "--record a.yaml --replay b.yaml": "`--record` and `--replay` exclude each other",
    "--record a.yaml --cassette b.yaml": "`--record` and `--cassette` exclude each other",
    "--replay a.yaml --record-mode all": "`--replay` already sets what is recorded",
    "--record a.yaml --record-mode once": "`--record` already sets what is recorded",
    "--record-mode none": "no cassette is named",
    "--live-tools": "`--live-tools` needs a cassette",
    "--live-model m": "`--live-model` needs a cassette",
    "--pace recorded": "`--pace` needs a cassette",
    "--replay a.yaml --live-tools --live-model m": "exclude each other",
    "--record a.yaml --live-tools": "`--live-tools` replays a cassette and records none",
    "--cassette a.yaml --live-model m": "`--live-model` replays a cassette and records none",
    "--record a.yaml --pace recorded": "`--pace recorded` is about a replay",
    "--replay a.yaml --live-model m --model m": "exclude each other",
    "--replay a.yaml --keep-failed": "`--keep-failed` is about a recording",
    "--keep-failed": "`--keep-failed` needs a cassette",
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("flags", CONTRADICTIONS)
def test_flags_that_contradict_each_other_are_refused_with_a_hint(
    project: Project, model_endpoint: ModelEndpoints, flags: str
) -> None:
    endpoint = model_endpoint([text_reply("live")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")

    done = project.run(*flags.split())

    assert (done.code, done.stdout) == (2, "")
    assert CONTRADICTIONS[flags] in done.stderr
    assert "hint:" in done.stderr
    assert endpoint.requests == []
    assert not list(project.folder.glob("*.partial"))


def test_a_recording_without_a_place_names_both_ways_to_give_one(project: Project) -> None:
    project.pipeline("prompt: Say hello")
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"

    done = project.aish("record", "p.yaml")

    assert done.code == 2
    assert "`-o CASSETTE`" in done.stderr
    assert "`cassette: PATH`" in done.stderr
