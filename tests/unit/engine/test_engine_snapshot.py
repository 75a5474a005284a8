from pathlib import Path

import pytest
from expect_scenes import checked, expectation, record, run

from aish.core.errors import UsageError
from aish.engine.expectations.snapshot import project_of, snapshot_text, write_snapshot
from aish.engine.expectations.subject import NotThereError, Subject


def said(text: str | None = "# Notes\n", **changes: object) -> Subject:
    return run(record(text=text, output=text), outputs={"notes": {"b": 1, "a": "ü"}}, **changes)  # type: ignore[arg-type]  # seconds


def test_a_snapshot_that_is_written_is_one_that_holds(tmp_path: Path) -> None:
    wanted = expectation("snapshot: kept/here/notes.md", tmp_path)

    assert not checked(wanted, said()).ok
    assert write_snapshot(wanted, said(), tmp_path)

    assert checked(wanted, said()).ok
    assert (tmp_path / "kept/here/notes.md").read_text() == "# Notes\n"
    assert not write_snapshot(wanted, said(), tmp_path)
    assert [path.name for path in (tmp_path / "kept/here").iterdir()] == ["notes.md"]


def test_a_missing_snapshot_does_not_hold_and_says_what_writes_it(tmp_path: Path) -> None:
    found = checked(expectation("snapshot: notes.md", tmp_path), said())

    assert found.message == (
        "expected the text to be that of the snapshot `notes.md`; got nothing there: "
        "`notes.md` is not there; `aish test --update-snapshots` writes it"
    )
    assert not (tmp_path / "notes.md").exists()


def test_a_changed_text_is_shown_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Notes\nold\nsame\n")

    found = checked(expectation("snapshot: notes.md", tmp_path), said("# Notes\nnew\nsame"))

    assert not found.ok
    assert "\n  line 1:\n   # Notes\n  -old\n  +new\n   same\n" in found.message
    assert found.message.endswith("`aish test --update-snapshots` accepts it")


def test_line_ends_of_a_checkout_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_bytes(b"one\r\ntwo\r\n\r\n")

    assert checked(expectation("snapshot: notes.md", tmp_path), said("one\ntwo")).ok


def test_a_value_that_is_no_text_is_kept_as_json(tmp_path: Path) -> None:
    wanted = expectation("snapshot: {path: outputs.notes, file: notes.json}", tmp_path)

    assert write_snapshot(wanted, said(), tmp_path)

    assert (tmp_path / "notes.json").read_text("utf-8") == '{\n  "b": 1,\n  "a": "ü"\n}\n'
    assert checked(wanted, said()).ok


def test_what_is_not_there_is_not_kept(tmp_path: Path) -> None:
    for text in ("snapshot: a.md", "snapshot: {path: outputs.none, file: a.md}"):
        wanted = expectation(text, tmp_path)
        assert not checked(wanted, said(None)).ok
        with pytest.raises(NotThereError):
            write_snapshot(wanted, said(None), tmp_path)
    assert not (tmp_path / "a.md").exists()


def test_secrets_are_taken_out_of_what_is_kept_and_what_is_compared(tmp_path: Path) -> None:
    wanted = expectation("snapshot: a.md", tmp_path)

    def mask(text: str) -> str:
        return text.replace("hunter2-hunter2", "<secret:PASS>")

    assert write_snapshot(wanted, said("it is hunter2-hunter2"), tmp_path, mask)

    assert (tmp_path / "a.md").read_text() == "it is <secret:PASS>\n"
    assert snapshot_text("it is hunter2-hunter2", mask) == "it is <secret:PASS>\n"


def test_nothing_is_written_outside_the_project_or_through_a_link(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    project.mkdir()
    outside.mkdir()
    (project / "linked").symlink_to(outside)
    (project / "file.md").symlink_to(outside / "file.md")
    (project / "folder.md").mkdir()

    for name, why in (
        ("../outside/a.md", "have to be inside the project"),
        (str(outside / "a.md"), "have to be inside the project"),
        ("linked/a.md", "is a link"),
        ("file.md", "is a link"),
        ("folder.md", "not a regular file"),
    ):
        with pytest.raises(UsageError, match=why):
            write_snapshot(expectation(f"snapshot: {name}", project), said(), project)
    assert list(outside.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("a file")

    with pytest.raises(UsageError) as failed:
        write_snapshot(expectation("snapshot: notes/a.md", tmp_path), said(), tmp_path)

    assert failed.value.where == str(tmp_path / "notes/a.md")


def test_a_project_begins_where_its_repository_does(tmp_path: Path) -> None:
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/pipelines").mkdir()

    assert project_of(tmp_path / "repo/pipelines/a.yaml") == tmp_path / "repo"
    assert project_of(tmp_path / "repo/a.yaml") == tmp_path / "repo"


def test_without_a_repository_the_working_folder_is_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work/pipelines").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")

    assert project_of(Path("pipelines/a.yaml")) == tmp_path / "work"
    assert project_of(tmp_path / "a.yaml") == tmp_path
