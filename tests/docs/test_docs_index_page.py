"""What a package index shows of README, and where the placeholder of its address is explained."""

import re
import tarfile
import tomllib
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

from distributions import build, extras
from docs_pages import ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PLACEHOLDER = "github.com/OWNER/aish"


def _project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return found


def _as_shown_on_an_index() -> str:
    """README after the substitutions of the build."""
    tool = _project()["tool"]
    assert isinstance(tool, dict)
    shown = (ROOT / "README.md").read_text("utf-8")
    for one in tool["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(one["pattern"], one["replacement"], shown)
    return shown


def test_on_an_index_page_every_link_of_the_readme_is_a_whole_address() -> None:
    links = _LINK.findall(_as_shown_on_an_index())
    ours = [link.partition("/blob/main/")[2] for link in links if _PLACEHOLDER in link]

    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert len(ours) > 20
    assert [path for path in ours if not (ROOT / path.partition("#")[0]).exists()] == []
    pictures = [
        link.partition("/OWNER/aish/main/")[2] for link in links if "/OWNER/aish/main/" in link
    ]
    assert [path.rpartition(".")[2] for path in pictures if (ROOT / path).exists()] == ["png"] * 3


def test_the_package_cannot_be_put_on_an_index_while_its_address_is_a_placeholder() -> None:
    project = _project()["project"]
    assert isinstance(project, dict)
    made_up = [url for url in project["urls"].values() if _PLACEHOLDER in url]

    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} <= set(project["urls"])
    assert bool(made_up) == ("Private :: Do Not Upload" in project["classifiers"])


def test_whoever_reads_the_placeholder_is_told_what_it_stands_for() -> None:
    pages = [
        ROOT / "README.md",
        *ROOT.glob("docs/**/*.md"),
    ]
    named = {page for page in pages if "OWNER/aish" in page.read_text("utf-8")}

    assert "`OWNER` is a placeholder" in (ROOT / "README.md").read_text("utf-8")
    assert ROOT / "docs" / "jobs" / "continuous-integration.md" in named
    for page in named - {ROOT / "README.md"}:
        assert "README.md#install" in page.read_text("utf-8"), page


def test_the_wheel_is_whole_and_says_where_the_project_is(tmp_path: Path) -> None:
    wheel, sdist = build(tmp_path)

    with ZipFile(wheel) as archive:
        rows = {row.filename: row for row in archive.infolist()}
        files = {name for name in rows if ".dist-info/" not in name}
        name = next(name for name in rows if name.endswith("/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode("utf-8"))
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}

    # All that the program imports or reads, and no more: the wheel is made from the sdist.
    own = {str(path.relative_to(ROOT)) for path in _files(ROOT / "aish")}
    assert files == own | {f"aish/schemas/{path.name}" for path in _files(ROOT / "schemas")}
    assert {"LICENSE", "README.md", "pyproject.toml", "pipelines/quickstart.yaml"} <= packed
    assert [name for name in packed if name.startswith(("tests/", "docs/", ".venv/"))] == []
    # Made twice they are the same, byte for byte.
    assert len({row.date_time for row in rows.values()}) == 1
    urls = metadata.get_all("Project-URL") or []
    assert f"Source, https://{_PLACEHOLDER}" in urls
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).strip() == _as_shown_on_an_index().strip()


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        kept = path.suffix != ".pyc" and not {"__pycache__", ".aish"} & set(path.parts)
        if kept and path.is_file():
            yield path


def test_the_table_of_extras_has_all_of_them() -> None:
    page = (ROOT / "docs" / "start" / "install.md").read_text("utf-8")

    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == sorted(extras())
