from pathlib import Path
from textwrap import dedent

import pytest
from cassette_exchanges import HEAD, answer, exchange
from recorded_runs import asks, command, read, run_of, says, session, write

from aish.cassettes.format.interaction import Head, Interaction, Request, Response
from aish.config.model import CassetteSettings
from aish.core.errors import PipelineError, UsageError
from aish.engine.plan.plan import load_checked
from aish.features.recording.lint import Checked, Subject, check, named_in, subjects

KEY = "sk-" + "abcdefghijABCDEFGHIJ0123456789"
PIPELINE = """
aish: 1
models: {m: {base_url: "http://127.0.0.1:8080/v1", model: "${MODEL:-small}", key_env: NO_KEY}}
mcp: {servers: {files: {command: [never, "--token=${NO_TOKEN}"]}}}
inputs: {file: {type: string, default: a.txt}}
cassette: run.yaml
steps:
  - {id: ask, system: Be brief, prompt: "Read {{ inputs.file }}"}
"""


def checked(folder: Path, pipeline: str, *interactions: Interaction, head: Head = HEAD) -> Checked:
    """The cassette of a pipeline, checked."""
    write(folder / "run.yaml", interactions or run_of(), head)
    file = folder / "p.yaml"
    file.write_text(dedent(pipeline))
    (subject,) = named_in(load_checked(file, ()))
    return check(subject)


@pytest.mark.requirement("C8", "C10")
def test_a_recording_that_fits_its_pipeline_is_clean(tmp_path: Path) -> None:
    assert checked(tmp_path, PIPELINE) == Checked(tmp_path / "run.yaml", 6)


@pytest.mark.requirement("C10")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "Be brief",
            "Be brief and kind",
            "step `ask`: no recorded request has this line of its system prompt: Be brief and kind",
        ),
        (
            "Read {{",
            "Please read {{",
            "step `ask`: no recorded request has this line of its prompt: Please read",
        ),
        (
            "MODEL:-small",
            "MODEL:-large",
            "model `m`: the recording asked `small`, and the file names `large`",
        ),
        (
            "servers: {files:",
            "servers: {data:",
            "server `data`: the recording has no exchange with it",
        ),
        (
            "servers: {files:",
            "servers: {data:",
            "server `files`: it is in the recording, and the file names no such server",
        ),
        (
            "steps:\n",
            "steps:\n  - {id: tell, call: files__erase}\n",
            "step `tell`: the recorded server has no tool `files__erase`",
        ),
    ],
)
def test_what_changed_in_the_file_is_stale(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in PIPELINE

    found = checked(tmp_path, PIPELINE.replace(old, new))

    assert f"stale: {said}" in found.findings


@pytest.mark.parametrize(
    "prompt",
    [
        "Read {{ inputs.file }}",
        "{{ inputs.file | upper }}",
        "Read {{- ' ' ~ inputs.file }}",
        "Read\\t{% if inputs.file %}something{% endif %}",
        "{# Nothing #}Read it",
        "{{ '}}' }} Read it",
        "{{ stdin }}",
    ],
)
def test_templates_are_compared_by_what_is_certain_only(tmp_path: Path, prompt: str) -> None:
    found = checked(tmp_path, PIPELINE.replace("Read {{ inputs.file }}", prompt))

    assert found.findings == ()


def test_parts_of_a_prompt_count_in_their_order(tmp_path: Path) -> None:
    run = run_of(prompt="first the one, then the other")
    twisted = "then the other {{ inputs.file }} first the one"

    found = checked(tmp_path, PIPELINE.replace("Read {{ inputs.file }}", twisted), *run)

    assert found.findings == (
        "stale: step `ask`: no recorded request has its prompt as it stands now",
    )


def test_a_step_that_was_never_reached_is_a_note_only(tmp_path: Path) -> None:
    more = f"{PIPELINE}  - {{id: more, needs: [ask], prompt: Something else}}\n"

    found = checked(tmp_path, more)

    assert found.findings == ()
    assert found.notes == ("step `more`: its prompt was never sent in this recording",)


def test_a_pipelines_folder_is_known_by_its_name(tmp_path: Path) -> None:
    run = run_of(prompt="Look into <root>/notes now")

    found = checked(
        tmp_path,
        PIPELINE.replace("Read {{ inputs.file }}", f"Look into {tmp_path}/notes now"),
        *run,
    )

    assert found.findings == ()


def test_variables_have_the_values_that_were_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL", "something else")
    head = Head(complete=True, run="r", clock="now", env={"MODEL": "tiny"})

    assert checked(tmp_path, PIPELINE, *run_of(model="tiny"), head=head).findings == ()


def test_commands_of_steps_that_are_gone_are_stale(tmp_path: Path) -> None:
    found = checked(tmp_path, PIPELINE, *run_of(), command("list", ["ls"]))

    assert found.findings == (
        "stale: step `list`: its command is in the recording, and the file has no such step",
    )


def test_servers_over_http_are_known_by_their_address(tmp_path: Path) -> None:
    url = "https://tools.test/mcp?key=${NO_TOKEN}"
    pipeline = PIPELINE.replace('command: [never, "--token=${NO_TOKEN}"]', f'url: "{url}"')
    there = "https://tools.test/mcp?key=<secret:NO_TOKEN>"
    run = [*session(there), read("a", "x", uri=there), Interaction(asks(*prompt()), says("x"))]

    assert checked(tmp_path, pipeline, *run).findings == ()


def prompt() -> list[dict[str, str]]:
    return [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Read a.txt"}]


@pytest.mark.requirement("C8")
def test_what_looks_like_a_secret_is_found_wherever_it_is(tmp_path: Path) -> None:
    head = Head(complete=True, run="r", clock="now", env={"WHERE": KEY})
    request = Request("GET", "http://h", (("Authorization", "Basic abc"),))
    path = write(
        tmp_path / "a.yaml",
        [exchange(reply=KEY), Interaction(request, Response(headers=(("Set-Cookie", "a"),) * 2))],
        head,
    )

    found = check(Subject(CassetteSettings(path)))
    allowed = check(Subject(CassetteSettings(path, allow=("sk-abc*",))))

    assert found.findings == (
        "may be a secret: interaction 1, response body, column 1: an API key (`sk-abc…`)",
        "may be a secret: the value of `WHERE`, column 1: an API key (`sk-abc…`)",
        "may be a secret: interaction 2, request header `Authorization`: it carries credentials",
        "may be a secret: interaction 2, response header `Set-Cookie`: it carries credentials",
    )
    assert len(allowed.findings) == 2
    assert len(check(Subject(CassetteSettings(path)), ["sk-*"]).findings) == 2


@pytest.mark.requirement("C9")
def test_interrupted_recordings_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", [exchange()])
    (tmp_path / "a.yaml.partial").write_text("interactions:\n")
    (tmp_path / "b.yaml.partial").write_text(
        path.read_text().replace("complete: true", "complete: false")
    )

    found = [check(subject) for subject in subjects([tmp_path], None)]

    assert found[0].findings == ("`a.yaml.partial`: a recording of it was interrupted",)
    assert found[1].findings == ("this recording was interrupted: nothing plays it",)
    assert len(found) == 2


def test_folders_are_searched_for_cassettes_and_what_pipelines_name(tmp_path: Path) -> None:
    for name in ("z.yaml", "deep/er/a.yml", ".hidden/b.yaml", ".c.yaml", "d.txt"):
        write(tmp_path / name, [exchange()])
    (tmp_path / "p.yaml").write_text(PIPELINE)

    found = [one.settings.path.relative_to(tmp_path) for one in subjects([tmp_path], None)]

    assert [str(path) for path in found] == ["run.yaml", "z.yaml", "deep/er/a.yml"]


def test_what_is_named_twice_is_checked_once_and_with_its_pipeline(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", run_of())
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE)

    (subject,) = subjects([path, file, tmp_path / "." / "run.yaml", file], None)

    assert subject.pipeline is not None


def test_cassettes_of_tests_are_checked_with_what_each_allows(tmp_path: Path) -> None:
    tests = """
    tests:
      - {name: one}
      - {name: two, cassette: {path: run.yaml, allow: ["sk-*"]}}
      - {name: three, cassette: other.yaml}
    """
    (tmp_path / "p.yaml").write_text(PIPELINE + dedent(tests))

    found = subjects([tmp_path / "p.yaml"], None)

    assert [(one.settings.path.name, one.settings.allow) for one in found] == [
        ("run.yaml", ("sk-*",)),
        ("other.yaml", ()),
    ]


def test_a_cassette_takes_its_settings_from_the_pipeline_that_is_given(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", run_of(reply=KEY))
    named = '{path: run.yaml, allow: ["sk-*"]}'
    (tmp_path / "p.yaml").write_text(PIPELINE.replace("cassette: run.yaml", f"cassette: {named}"))
    pipeline = load_checked(tmp_path / "p.yaml", ())

    (subject,) = subjects([path, path], pipeline)

    assert check(subject).findings == ()


def test_what_leads_to_no_cassette_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("aish: 1\nrun: [ls]\n")
    (tmp_path / "broken.yaml").write_text("aish: 1\nrum: [ls]\n")

    with pytest.raises(UsageError, match="names no cassette"):
        subjects([tmp_path / "p.yaml"], None)
    with pytest.raises(PipelineError):
        subjects([tmp_path / "broken.yaml"], None)
    with pytest.raises(PipelineError):
        subjects([tmp_path], None)
    (tmp_path / "broken.yaml").unlink()
    with pytest.raises(UsageError, match="no cassettes in"):
        subjects([tmp_path], None)


def test_files_of_plain_vcrpy_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("version: 1\ninteractions: []\n")
    other = write(tmp_path / "other.yaml", [Interaction(Request("GET", "http://h"), answer("x"))])

    assert check(Subject(CassetteSettings(path))) == Checked(path)
    assert check(Subject(CassetteSettings(other))).exchanges == 1
