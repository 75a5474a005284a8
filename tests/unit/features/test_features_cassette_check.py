from pathlib import Path
from textwrap import dedent

import pytest
from cassette_exchanges import HEAD, answer, exchange
from recorded_runs import run_of, write

from aish.cassettes.format.interaction import Interaction, RecordingMetadata, Request, Response
from aish.config.model import CassetteSettings
from aish.core.errors import PipelineError, UsageError
from aish.engine.plan.plan import load_checked
from aish.features.recording.lint import LintResult, check, settings_of, subjects

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


def checked(
    folder: Path, pipeline: str, *interactions: Interaction, head: RecordingMetadata = HEAD
) -> LintResult:
    """The cassette of a pipeline, checked."""
    write(folder / "run.yaml", interactions or run_of(), head)
    file = folder / "p.yaml"
    file.write_text(dedent(pipeline))
    (subject,) = settings_of(load_checked(file, ()))
    return check(subject)


def test_a_recording_that_fits_its_pipeline_is_clean(tmp_path: Path) -> None:
    assert checked(tmp_path, PIPELINE) == LintResult(tmp_path / "run.yaml", 6)


@pytest.mark.requirement("C8")
def test_what_looks_like_a_secret_is_found_wherever_it_is(tmp_path: Path) -> None:
    head = RecordingMetadata(complete=True, run="r", clock="now", env={"WHERE": KEY})
    request = Request("GET", "http://h", (("Authorization", "Basic abc"),))
    path = write(
        tmp_path / "a.yaml",
        [exchange(reply=KEY), Interaction(request, Response(headers=(("Set-Cookie", "a"),) * 2))],
        head,
    )

    found = check(CassetteSettings(path))
    allowed = check(CassetteSettings(path, allow=("sk-abc*",)))

    assert found.findings == (
        "may be a secret: interaction 1, response body, column 1: an API key (`sk-abc…`)",
        "may be a secret: the value of `WHERE`, column 1: an API key (`sk-abc…`)",
        "may be a secret: interaction 2, request header `Authorization`: it carries credentials",
        "may be a secret: interaction 2, response header `Set-Cookie`: it carries credentials",
    )
    assert len(allowed.findings) == 2
    assert len(check(CassetteSettings(path), ["sk-*"]).findings) == 2


def test_interrupted_recordings_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", [exchange()])
    (tmp_path / "a.yaml.partial").write_text("interactions:\n")
    (tmp_path / "b.yaml.partial").write_text(
        path.read_text().replace("complete: true", "complete: false")
    )

    found = [check(subject) for subject in subjects([tmp_path], None)]

    assert found[0].findings == ("`a.yaml.partial`: a recording of it was interrupted",)
    assert found[1].findings == ("this recording was interrupted and cannot be replayed",)
    assert len(found) == 2


def test_folders_are_searched_for_cassettes_and_what_pipelines_name(tmp_path: Path) -> None:
    for name in ("z.yaml", "deep/er/a.yml", ".hidden/b.yaml", ".c.yaml", "d.txt"):
        write(tmp_path / name, [exchange()])
    (tmp_path / "p.yaml").write_text(PIPELINE)

    found = [one.path.relative_to(tmp_path) for one in subjects([tmp_path], None)]

    assert [str(path) for path in found] == ["run.yaml", "z.yaml", "deep/er/a.yml"]


def test_what_is_named_twice_is_checked_once_and_with_its_pipeline(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", run_of())
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE)

    (subject,) = subjects([path, file, tmp_path / "." / "run.yaml", file], None)

    assert subject.path.resolve() == path


def test_cassettes_of_tests_are_checked_with_what_each_allows(tmp_path: Path) -> None:
    tests = """
    tests:
      - {name: one}
      - {name: two, cassette: {path: run.yaml, allow: ["sk-*"]}}
      - {name: three, cassette: other.yaml}
    """
    (tmp_path / "p.yaml").write_text(PIPELINE + dedent(tests))

    found = subjects([tmp_path / "p.yaml"], None)

    assert [(one.path.name, one.allow) for one in found] == [
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

    with pytest.raises(UsageError, match="has no cassette"):
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

    assert check(CassetteSettings(path)) == LintResult(path)
    assert check(CassetteSettings(other)).exchanges == 1
