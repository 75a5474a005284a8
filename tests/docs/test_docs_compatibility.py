"""The entries of `compat/` are in form, and trying one tells whether it holds."""

import sys
from pathlib import Path

import pytest
from compat_entries import RESULTS, Entry, EntryError, read_entries
from try_entries import try_entry

from aish.cli.commands.validate import problems_of

SHOWS = [sys.executable, "-c", "print('forty', 'two')"]


def test_each_pipeline_of_an_entry_is_valid(tmp_path: Path) -> None:
    for entry in read_entries():
        if entry.pipeline:
            file = tmp_path / f"{len(list(tmp_path.iterdir()))}.yaml"
            file.write_text(entry.pipeline)
            assert [str(one) for one in problems_of(file, ()) if not one.warning] == [], entry.name


@pytest.mark.parametrize(
    ("run", "state", "said"),
    [
        ([SHOWS], "holds", ""),
        ([[*SHOWS[:2], "print('one')"]], "DOES NOT HOLD", "does not show `forty two`"),
        ([[*SHOWS[:2], "exit(3)"]], "DOES NOT HOLD", "ended with 3, not 0"),
        ([[*SHOWS[:2], "exit(4)"], SHOWS], "DOES NOT HOLD", "ended with 4"),
    ],
)
def test_an_entry_is_tried(tmp_path: Path, run: list[list[str]], state: str, said: str) -> None:
    entry = Entry(
        name="n", package="npm:n@1", tried="", result=RESULTS[0], run=run, shows=["forty two"]
    )

    seen, text = try_entry(entry, tmp_path)

    assert seen == state
    assert said in text


def test_a_program_that_an_entry_starts_has_ended_afterwards(tmp_path: Path) -> None:
    server = [sys.executable, "-m", "http.server", "8000", "--bind", "127.0.0.1"]
    asks = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/x.txt').read())"
    entry = Entry(
        name="n",
        package="pypi:n==1",
        tried="",
        result=RESULTS[0],
        files={"x.txt": "forty two"},
        port=8000,
        start=[server],
        run=[[sys.executable, "-c", asks]],
        shows=["forty two"],
    )

    assert try_entry(entry, tmp_path) == ("holds", "")
    assert try_entry(entry, tmp_path) == ("holds", "")


def test_an_entry_has_the_scripted_model_at_its_port(tmp_path: Path) -> None:
    asks = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8766/v1/models').read())"
    entry = Entry(
        name="n",
        package="pypi:n==1",
        tried="",
        result=RESULTS[0],
        model=8766,
        run=[[sys.executable, "-c", asks]],
        shows=['"id": "small"'],
    )

    assert try_entry(entry, tmp_path) == ("holds", "")


def test_an_entry_in_another_form_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "servers.yaml").write_text("- {name: a, package: 'npm:a@1', other: 1}\n")

    with pytest.raises(EntryError, match=r"servers\.yaml: `a`: unknown keys: other"):
        read_entries(tmp_path)
