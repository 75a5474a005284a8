"""Reports of a run, asked for with it and after it (B11)."""

import json
import stat
from pathlib import Path
from xml.etree import ElementTree as ET  # ruff: ignore[suspicious-xml-etree-import] - reads what we wrote

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Gate, Reply, text_reply
from report_pages import Page
from samples import sampled

ANSWERING = 'steps: [{id: ask, prompt: Hello, expect: [{contains: "forty"}]}]'

THREE = """
steps:
  - id: ask
    foreach: "['a', 'b', 'c']"
    concurrency: 1
    on_error: continue
    prompt: "Ask {{ item }}"
    expect: [{contains: "forty"}]
"""


def cases(path: Path) -> dict[str, list[str]]:
    """The names of the cases of steps, each with what befell it."""
    root = ET.parse(path).getroot()  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
    return {
        case.get("name", ""): [child.tag for child in case]
        for case in root.iter("testcase")
        if case.get("classname") != "run"
    }


def page_at(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture
def answered(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A pipeline whose one answer is `forty-two`."""
    project.uses(model_endpoint([text_reply("forty-two")]))
    project.pipeline(ANSWERING)
    return project


def test_a_run_writes_the_reports_that_it_is_asked_for(answered: Project) -> None:
    done = answered.run("--junit", "junit.xml", "--html", "report.html")

    assert done.code == 0, done.stderr
    assert done.stdout == "forty-two\n"
    assert cases(answered.folder / "junit.xml") == {"ask": [], "ask: contains 1": []}
    assert "forty-two" in (answered.folder / "report.html").read_text()


def test_a_failed_run_has_its_reports_too(project: Project, model_endpoint: ModelEndpoints) -> None:
    project.uses(model_endpoint([text_reply("nothing")]))
    project.pipeline(ANSWERING)

    done = project.run("--junit", "junit.xml", "--html", "report.html")

    assert done.code == 1
    told = {"ask": [], "ask: contains 1": ["failure", "system-out"]}
    assert cases(project.folder / "junit.xml") == told
    assert "not met" in (project.folder / "report.html").read_text()


def test_items_have_their_cases_and_their_rows(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("forty"), text_reply("no"), text_reply("forty")]))
    project.pipeline(THREE)

    done = project.run("--junit", "junit.xml", "--html", "report.html")

    assert done.code == 1, done.stderr
    found = cases(project.folder / "junit.xml")
    assert {name: befell for name, befell in found.items() if befell} == {
        "1: contains 1": ["failure", "system-out"]
    }
    assert len(found) == 7
    page = page_at(project.folder / "report.html")
    # Failed ones first.
    assert [row[1:3] for row in page.rows] == [["1", "failed"], ["0", "ok"], ["2", "ok"]]


def test_the_reports_of_a_resumed_run_tell_of_the_whole_run(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    answers = [text_reply(text) for text in ("forty", "no", "forty", "forty-two")]
    project.uses(model_endpoint(answers))
    project.pipeline(THREE)
    assert project.run().code == 1

    done = project.run(
        "--resume", "--retry-failed", "--junit", "junit.xml", "--html", "report.html"
    )

    assert done.code == 0, done.stderr
    assert not any(cases(project.folder / "junit.xml").values())
    page = page_at(project.folder / "report.html")
    assert [row[1:4] for row in page.rows] == [
        ["0", "ok", "forty"],
        ["1", "ok", "forty-two"],
        ["2", "ok", "forty"],
    ]
    assert "in 2 parts" in page.shown


def test_a_run_that_leaves_no_folder_has_its_reports_too(answered: Project) -> None:
    done = answered.run("--ephemeral", "--junit", "junit.xml")

    assert done.code == 0, done.stderr
    assert cases(answered.folder / "junit.xml") == {"ask": [], "ask: contains 1": []}
    assert answered.run_folders == []


def test_an_interrupted_run_has_its_reports_too(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    project.uses(model_endpoint([text_reply("late").but(before_head=gate)]))
    project.pipeline("prompt: Hello")

    arguments = ("--junit", "junit.xml", "--html", "report.html")
    with project.aish.start("run", "p.yaml", *arguments) as running:
        gate.wait_arrived()
        running.interrupt()
        assert running.finish().code == 130
    gate.open()

    assert set(map(tuple, cases(project.folder / "junit.xml").values())) == {("error",)}
    assert "interrupted" in (project.folder / "report.html").read_text()


@pytest.mark.parametrize("flag", ["--junit", "--html"])
def test_a_place_that_cannot_be_written_is_refused_before_the_run(
    project: Project, model_endpoint: ModelEndpoints, flag: str
) -> None:
    endpoint = model_endpoint([])
    project.uses(endpoint)
    project.pipeline("prompt: Hello")

    done = project.run(flag, "missing/report")

    assert done.code == 2
    assert f"error: {flag} missing/report: its folder does not exist" in done.stderr
    assert not project.run_folders


def test_a_past_run_has_its_page_in_its_folder(answered: Project) -> None:
    answered.run()
    (folder,) = answered.run_folders

    done = answered.aish("runs", "report", "latest")

    assert done.code == 0, done.stderr
    assert done.stdout.strip() == str(folder.relative_to(answered.folder) / "report.html")
    assert "forty-two" in (folder / "report.html").read_text()
    assert answered.aish("runs", "clean", "--keep", "0").code == 0
    assert not folder.exists()


def test_reports_of_a_past_run_go_where_they_are_wanted(answered: Project) -> None:
    answered.run()
    (folder,) = answered.run_folders

    done = answered.aish(
        "runs", "report", "latest", "--junit", "j.xml", "--html", "h.html", "--format", "json"
    )

    assert json.loads(done.stdout) == {
        "v": 1,
        "run": folder.name,
        "junit": "j.xml",
        "html": "h.html",
        "sarif": None,
    }
    assert cases(answered.folder / "j.xml") == {"ask": [], "ask: contains 1": []}
    assert not (folder / "report.html").exists()


def test_a_report_follows_no_link(answered: Project) -> None:
    answered.run()
    (folder,) = answered.run_folders
    other = answered.write("other.txt", "mine")
    (folder / "report.html").symlink_to(other)

    answered.aish("runs", "report", "latest")

    assert other.read_text() == "mine"
    assert not (folder / "report.html").is_symlink()


def test_a_damaged_journal_makes_no_report(answered: Project) -> None:
    answered.run()
    (folder,) = answered.run_folders
    journal = folder / "events.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"forty", b"fifty", 1))

    done = answered.aish("runs", "report", "latest", "--html", "h.html")

    assert done.code == 2
    assert "is damaged" in done.stderr
    assert not (answered.folder / "h.html").exists()


def test_a_step_with_exit_code_1_is_a_failure_whatever_broke(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([Reply([b'{"error": {"message": "no such"}}'], status=400)]))
    project.pipeline(ANSWERING)

    done = project.run("--junit", "junit.xml")

    assert done.code == 1
    assert cases(project.folder / "junit.xml") == {"ask": ["failure"]}
    assert 'failures="1" errors="0"' in (project.folder / "junit.xml").read_text()


def test_an_answer_that_is_rejected_is_in_every_report(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    said = "Sure! Here is the verdict: it is fine."
    project.uses(model_endpoint([text_reply(said)]))
    project.pipeline("prompt: Hello\noutput: {schema: {type: object}, attempts: 1}")
    reports = ("--junit", "junit.xml", "--html", "report.html")

    found = project.result(*reports)

    why = f'the answer is not JSON; it begins: "{said}"'
    assert found["steps"]["main"]["text"] == said
    assert found["steps"]["main"]["error"]["message"] == why
    assert f"<system-out>{said}</system-out>" in (project.folder / "junit.xml").read_text()
    assert cases(project.folder / "junit.xml") == {"main": ["failure", "system-out"]}
    assert said in (project.folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("umask", "mode"),
    sampled([(0o022, 0o644), (0o027, 0o640)], often={0}, reason="cases of the same kind"),
)
def test_files_that_a_person_names_are_as_the_umask_says(
    project: Project, model_endpoint: ModelEndpoints, umask: int, mode: int
) -> None:
    project.uses(model_endpoint([text_reply("forty-two")] * 5))
    project.pipeline("prompt: Hello {{ item }}\nforeach: [1]".replace("[1]", '"[1]"'))
    named = ("text.txt", "table.csv", "rows.jsonl", "junit.xml", "report.html", "again.xml")
    project.through_shell(f'umask {umask:03o}; exec "$@"')

    done = project.run("-o", "text.txt", "--junit", "junit.xml", "--html", "report.html")
    assert done.code == 0, done.stderr
    assert project.run("-o", "table.csv").code == 0
    assert project.run("-o", "rows.jsonl").code == 0
    assert project.aish("runs", "report", "latest", "--junit", "again.xml").code == 0
    assert project.aish("runs", "report", "latest").code == 0

    assert {stat.S_IMODE((project.folder / name).stat().st_mode) for name in named} == {mode}
    kept = [project.folder / ".aish", *(project.folder / ".aish").rglob("*")]
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in kept}
    assert modes == {(True, 0o700), (False, 0o600)}
    assert any(path.name == "report.html" for path in kept)
