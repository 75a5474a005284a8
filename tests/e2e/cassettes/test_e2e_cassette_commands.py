"""`aish cassette show | scrub | check | diff`: what people see of recorded runs."""

import json
import os
from pathlib import Path

import pytest
from cassette_exchanges import HEAD, answer, chat, delta, exchange, streamed
from e2e_project import ModelEndpoints, Project
from model_endpoint import text_reply
from recorded_runs import asks, command, read, run_of, says, session, write
from syrupy.assertion import SnapshotAssertion

from aish.cassettes.format.interaction import Interaction, Request, Response
from aish.cassettes.format.layout import head_text, whole
from aish.cassettes.record.file_writer import Recording

VALUE = 'pä"ss/word+42'
KEY = "sk-" + "abcdefghijABCDEFGHIJ0123456789"
EVIL = "\x1b]0;own\x07\u202e\x9b2J\r::error::x"
PIPELINE = """
models: {m: {base_url: "http://127.0.0.1:8080/v1", model: small, key_env: NO_KEY}}
mcp: {servers: {files: {command: [never]}}}
cassette: run.yaml
steps:
  - {id: ask, system: Be brief, prompt: Read a.txt}
"""


def recorded(project: Project, name: str, *interactions: Interaction) -> Path:
    return write(project.folder / name, interactions or run_of())


@pytest.mark.requirement("C10")
def test_a_cassette_is_shown_as_a_conversation(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    failed = Interaction(asks({"role": "user", "content": "Why?"}), Response(503, "Busy"))
    again = Interaction(failed.request, says("Because\n" * 20))
    other = Interaction(Request("GET", "https://api.test/x"), answer("a page"))
    recorded(project, "run.yaml", *run_of(), failed, again, other, command("list", ["ls"], "a\n"))

    done = project.aish("cassette", "show", "run.yaml")
    full = project.aish("cassette", "show", "run.yaml", "--full")

    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == snapshot
    assert full.stdout.count("Because") == 20


def test_a_conversation_is_shown_as_json_whole(project: Project) -> None:
    recorded(project, "run.yaml", *run_of(reply="x" * 10_000))

    done = project.aish("cassette", "show", "run.yaml", "--format", "json")

    shown = json.loads(done.stdout)
    assert shown["head"]["run"] == HEAD.run
    assert [part["kind"] for part in shown["parts"]] == ["session", "model", "mcp", "model"]
    assert shown["parts"][-1]["answer"]["text"] == "x" * 10_000


@pytest.mark.slow(reason="shows each hostile recording by each command")
def test_hostile_recordings_steer_no_terminal(project: Project) -> None:
    long = EVIL + "é" * 1_000_000
    hostile = [
        Interaction(asks({"role": "user", "content": long}, model=EVIL), says(long)),
        read(long, long, failed=True),
        Interaction(Request(EVIL, EVIL), Response(200, EVIL, (), long.encode(), (), EVIL)),
        command(EVIL, [EVIL], long),
    ]
    recorded(project, "a.yaml", *hostile)
    recorded(project, "b.yaml", *run_of())
    names = ("cassette", "show", "a.yaml"), ("cassette", "diff", "a.yaml", "b.yaml")

    for words in (
        *names,
        ("cassette", "check", "a.yaml"),
        ("cassette", "diff", "b.yaml", "a.yaml"),
    ):
        done = project.aish(*words)
        said = done.stdout + done.stderr
        assert done.code in {0, 1}, said
        assert not set("\x1b\x07\u202e\x9b\r") & set(said), words
        assert not [line for line in said.splitlines() if line.strip().startswith("::")]
        assert len(said) < 100_000


def test_an_interrupted_recording_can_be_looked_at(project: Project) -> None:
    path = project.folder / "run.yaml.partial"
    path.write_text(
        head_text(HEAD.__class__(False, "run-1", "now", {}))
        + whole(HEAD, run_of()).partition("interactions:\n")[2].removesuffix("...\n")
    )

    shown = project.aish("cassette", "show", path)
    played = project.aish("cassette", "show", "run.yaml")

    assert (shown.code, played.code) == (0, 2)
    assert "not complete: the run was interrupted" in shown.stdout
    assert "It says one and two" in shown.stdout
    assert "hint: a recording was interrupted" in played.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such cassette: `x.yaml`"),
        ("", "the cassette is empty"),
        ("a: 1\n", "this is not a cassette: it has no `interactions`"),
        ("interactions: [\n", "this is not a cassette"),
        ("interactions: []\nversion: 7\n", "of version 7"),
        (
            "interactions: !!python/object:os.system []\nversion: 1\n",
            "is not allowed in a cassette",
        ),
    ],
)
def test_what_cannot_be_read_is_a_sentence_for_every_command(
    project: Project, content: str | None, said: str
) -> None:
    recorded(project, "good.yaml")
    if content is not None:
        project.write("x.yaml", content)

    for words in (
        ["show", "x.yaml"],
        ["scrub", "x.yaml", "--in-place"],
        ["diff", "good.yaml", "x.yaml"],
        ["diff", "x.yaml", "good.yaml"],
        ["check", "x.yaml"],
    ):
        done = project.aish("cassette", *words)
        assert done.code == 2, words
        assert said in done.stdout + done.stderr, words
    assert (project.folder / "x.yaml").exists() == (content is not None)


@pytest.mark.parametrize("way", ["--env", "--stdin"])
def test_named_values_are_taken_out_and_never_said(
    project: Project, way: str, snapshot: SnapshotAssertion
) -> None:
    secret = Interaction(chat(f"It is {VALUE}"), streamed(map(delta, VALUE)))
    path = recorded(project, "old.yaml", exchange(), secret)
    given = ["--env", "KEY"] if way == "--env" else ["--stdin"]

    done = project.aish(
        "cassette",
        "scrub",
        "old.yaml",
        *given,
        "--in-place",
        env={"KEY": VALUE},
        stdin=f"\nKEY={VALUE}\n",
    )
    again = project.aish(
        "cassette",
        "scrub",
        "old.yaml",
        *given,
        "--in-place",
        env={"KEY": VALUE},
        stdin=f"KEY={VALUE}",
    )

    assert (done.code, again.code) == (0, 0)
    assert done.stdout + done.stderr == snapshot(name="said")
    assert again.stdout == "nothing was found, and nothing changed\n"
    text = path.read_text(encoding="utf-8")
    assert text.count("<secret:KEY>") == 2
    assert VALUE not in text
    assert json.dumps(VALUE)[1:-1] not in text
    assert project.aish("cassette", "show", "old.yaml").code == 0
    assert sorted(one.name for one in project.folder.iterdir()) == ["old.yaml"]


def test_the_result_goes_to_another_file_on_demand(project: Project) -> None:
    request = Request("GET", "http://h", (("Authorization", "Basic abc"),))
    path = recorded(project, "old.yaml", Interaction(request, answer("x")))
    before = path.read_bytes()

    done = project.aish("cassette", "scrub", "old.yaml", "-o", "new.yaml")

    assert done.code == 0
    assert path.read_bytes() == before
    assert "<secret:authorization>" in (project.folder / "new.yaml").read_text()
    assert "interaction 1, request header `Authorization`" in done.stdout
    assert "1 place changed in new.yaml" in done.stdout


def test_the_result_takes_the_place_of_no_pipeline(project: Project) -> None:
    recorded(project, "old.yaml", Interaction(Request("GET", "http://h"), answer("x")))
    project.pipeline("prompt: Say hello")
    before = (project.folder / "p.yaml").read_bytes()

    done = project.aish("cassette", "scrub", "old.yaml", "-o", "p.yaml")

    assert done.code == 2
    assert "`p.yaml` is not a cassette, and would be overwritten" in done.stderr
    assert (project.folder / "p.yaml").read_bytes() == before


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["old.yaml", "--env", "KEY"], "exactly one output is required"),
        (["old.yaml", "--in-place", "-o", "x"], "exactly one output is required"),
        (["old.yaml", "--in-place", "--env", "NOT_SET"], "`NOT_SET` is not set"),
        (["old.yaml", "--in-place", "--env", "SHORT"], "shorter than 8"),
        (["old.yaml", "--in-place", "--stdin"], "stdin:1: not `NAME=VALUE`"),
        (["link.yaml", "--in-place", "--env", "KEY"], "is a link"),
        (["old.yaml", "--env", "KEY", "-o", "missing/x.yaml"], "cannot be written"),
    ],
)
def test_a_mistake_changes_nothing_and_repeats_no_value(
    project: Project, words: list[str], said: str
) -> None:
    path = recorded(project, "old.yaml", Interaction(chat(VALUE), answer(VALUE)))
    (project.folder / "link.yaml").symlink_to(path)
    before = path.read_bytes()

    done = project.aish(
        "cassette", "scrub", *words, env={"KEY": VALUE, "SHORT": "abc"}, stdin=f"{VALUE}\n"
    )

    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert VALUE not in done.stderr
    assert path.read_bytes() == before


def test_cassettes_are_checked_with_their_pipelines(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    recorded(project, "run.yaml")
    recorded(project, "keys/a.yaml", exchange(reply=KEY))
    project.write("keys/run.yaml.partial", "interactions:\n")
    project.write("keys/broken.yaml", "interactions: [\n")
    project.pipeline(PIPELINE)
    project.pipeline(PIPELINE.replace("Be brief", "Be brief and kind"), "changed.yaml")
    allowing = PIPELINE.replace(
        "cassette: run.yaml", "cassette: {path: keys/a.yaml, allow: [sk-*]}"
    )
    project.pipeline(allowing, "allowing.yaml")

    clean = project.aish("cassette", "check", "p.yaml", "run.yaml", "./run.yaml")
    changed = project.aish("cassette", "check", "changed.yaml", "p.yaml")
    given = project.aish("cassette", "check", "keys/a.yaml", "--pipeline", "allowing.yaml")
    keys = project.aish("cassette", "check", "keys")
    allowed = project.aish("cassette", "check", "keys/a.yaml", "--allow", "sk-*")
    rows = project.aish("cassette", "check", "keys", "p.yaml", "--format", "json")

    codes = [one.code for one in (clean, changed, given, keys, allowed, rows)]
    assert codes == [0, 0, 0, 2, 0, 2]
    said = [one.stdout for one in (clean, keys, allowed)]
    assert project.tidy("\n".join(said)) == snapshot
    assert changed.stdout == clean.stdout, "a replay shows what fits, and each is checked once"
    assert given.stdout == allowed.stdout
    assert [row["exchanges"] for row in json.loads(rows.stdout)] == [1, 0, 0, 6]
    assert not [one for one in said if KEY in one]


def test_a_fifo_or_a_device_is_never_waited_for(project: Project) -> None:
    os.mkfifo(project.folder / "pipe.yaml")
    recorded(project, "a.yaml")

    done = project.aish("cassette", "check", ".")

    assert done.code == 0, done.stdout
    assert done.stdout == "a.yaml: ok, 6 exchanges\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("model: small", "model: large"), ["model changed: small → large"]),
        (
            ("model: small", "model: small, params: {temperature: 0.5}"),
            ["parameter added: temperature", "  + 0.5"],
        ),
        (("Say hello", "Say goodbye"), ["user prompt changed:", "  @@ line 1 @@"]),
        (("[fs]", "[fs, edit]"), ["tool added: repo__file_edit"]),
    ],
    ids=["model", "parameter", "prompt", "tool"],
)
def test_a_changed_model_parameter_prompt_or_tool_is_named(
    project: Project, model_endpoint: ModelEndpoints, change: tuple[str, str], told: list[str]
) -> None:
    project.uses(model_endpoint(lambda _: text_reply("Hello.")))
    text = (
        'models: {m: {base_url: "${MODEL_URL}", model: small}}\n'
        "mcp: {servers: {repo: {pack: [fs], root: .}}}\n"
        "prompt: Say hello\n"
    )
    project.pipeline(text)
    first = project.aish("record", "p.yaml", "-o", "a.yaml")
    same = project.aish("record", "p.yaml", "-o", "b.yaml")
    project.pipeline(text.replace(*change))
    second = project.aish("record", "p.yaml", "-o", "c.yaml")

    equal = project.aish("cassette", "diff", "a.yaml", "b.yaml")
    done = project.aish("cassette", "diff", "a.yaml", "c.yaml")

    assert (first.code, same.code, second.code) == (0, 0, 0), second.stderr
    assert (equal.code, done.code) == (0, 1)
    assert "models, parameters, tools, calls, prompts and answers are the same" in equal.stdout
    rows = done.stdout.splitlines()
    place = rows.index(told[0])
    assert rows[place : place + len(told)] == told
    assert not [row for row in rows if "are the same" in row]


def test_two_runs_are_compared(project: Project, snapshot: SnapshotAssertion) -> None:
    recorded(project, "a.yaml")
    recorded(
        project,
        "b.yaml",
        *run_of(prompt="Read b.txt", path="b.txt", text="three", reply="It says three"),
    )
    recorded(project, "c.yaml", *session(), *run_of()[3:])

    changed = project.aish("cassette", "diff", "a.yaml", "b.yaml")
    same = project.aish("cassette", "diff", "a.yaml", "c.yaml")
    rows = project.aish("cassette", "diff", "a.yaml", "b.yaml", "--format", "json")

    assert (changed.code, same.code, rows.code) == (1, 0, 1)
    assert (changed.stderr, same.stderr) == ("", "")
    assert changed.stdout == snapshot(name="changed")
    assert same.stdout == snapshot(name="same")
    found = json.loads(rows.stdout)
    assert (found["same"], found["calls"][0]["kind"]) == (False, "changed")


@pytest.mark.parametrize(("mask", "file", "folder"), [("022", 0o644, 0o755), ("027", 0o640, 0o750)])
def test_what_is_made_to_be_committed_has_the_mode_of_the_umask(
    project: Project, model_endpoint: ModelEndpoints, mask: str, file: int, folder: int
) -> None:
    project.uses(model_endpoint([text_reply("Hello."), text_reply("Hello.")]))
    project.pipeline(
        """
        prompt: Say hello
        cassette: cassettes/p.yaml
        tests: [{name: same, expect: [{snapshot: snapshots/p.txt}]}]
        """
    )
    project.through_shell(f'umask {mask}; exec "$@"')
    for words in (["record", "-q"], ["lock"], ["test", "--update-snapshots"]):
        target = "p.yaml" if words[0] != "test" else "."
        assert project.aish(words[0], target, *words[1:]).code == 0
    scrub = ("cassette", "scrub", "cassettes/p.yaml")
    assert project.aish(*scrub, "-o", "scrubbed.yaml", stdin="KEY=Say hello\n").code == 0
    kept = project.write("kept.yaml", (project.folder / "cassettes" / "p.yaml").read_bytes())
    kept.chmod(0o604)
    assert project.aish("record", "p.yaml", "-q", "-o", "kept.yaml").code == 0

    modes = {
        str(path.relative_to(project.folder)): path.stat().st_mode & 0o777
        for path in project.folder.rglob("*")
        if ".aish" not in path.parts
    }
    assert modes.pop("p.yaml")
    assert modes == {
        "cassettes": folder,
        "cassettes/p.yaml": file,
        "kept.yaml": 0o604,
        "p.lock.json": file,
        "scrubbed.yaml": file,
        "snapshots": folder,
        "snapshots/p.txt": file,
    }


def test_a_recording_that_does_not_end_well_is_private(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "c.yaml", HEAD)
    recording.append(run_of()[0])
    recording.close()

    assert (tmp_path / "c.yaml.partial").stat().st_mode & 0o777 == 0o600
