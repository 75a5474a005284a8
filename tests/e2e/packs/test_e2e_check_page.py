"""The example pipeline that checks a page, with a real Chromium."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from e2e_project import REPO, Project, of_type, processes_in
from mcp_peers import free_port

pytestmark = pytest.mark.browser

PORT = "8423"
BROKEN = 'throw new Error("out of coffee");'


@pytest.fixture
def site(project: Project) -> Path:
    """The page of the pipeline, in a copy of the pipelines at a port of its own."""
    ours = shutil.ignore_patterns(".aish")
    shutil.copytree(REPO / "pipelines", project.folder, dirs_exist_ok=True, ignore=ours)
    file = project.folder / "check-page.yaml"
    file.write_text(file.read_text().replace(PORT, str(free_port())))
    return project.folder / "data" / "site"


def result(project: Project, code: int) -> Any:
    done = project.aish("run", "check-page.yaml", "-q")
    assert done.code == code, done.stderr
    return done.stdout + done.stderr


def test_a_page_that_is_well_is_told_by_the_exit_code(project: Project, site: Path) -> None:
    file = project.folder / "check-page.yaml"
    # The table is there soon, but on a busy machine.
    file.write_text(file.read_text().replace("timeout_seconds: 5", "timeout_seconds: 60"))
    told = result(project, 0)
    assert "3 prices shown" in told
    (folder,) = project.run_folders
    (picture,) = folder.rglob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not of_type(project.journal, "retry")
    assert not processes_in(site)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("fetch(", f"{BROKEN} fetch("), "out of coffee"),
        (('prices.json")', 'gone.json")'), "Failed to load"),
        (("Coffee bar</title>", "Tea</title>"), "`Coffee bar`"),
    ],
    ids=["throws", "misses", "differs"],
)
def test_a_page_that_is_not_well_ends_the_run_and_has_its_picture(
    project: Project, site: Path, change: tuple[str, str], said: str
) -> None:
    page = site / "index.html"
    page.write_text(page.read_text().replace(*change))
    assert said in result(project, 1)
    (folder,) = project.run_folders
    assert list(folder.rglob("*.png"))
