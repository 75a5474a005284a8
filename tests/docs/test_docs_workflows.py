"""The workflows that the docs show do not turn a failed command into a green job."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from docs_pages import PAGES, ROOT, blocks
from ruamel.yaml import YAML
from samples import each_case

_FULL = {"fetch-depth": 0}
_INSTALL = re.compile(r"pip install 'aish-pipelines(?:\[\w+\])? @ (git\+https://\S+)'")


def _jobs() -> Iterator[Any]:
    for page in PAGES:
        for block in blocks(page):
            if block.language != "yaml" or "jobs:" not in block.text:
                continue
            jobs = YAML(typ="safe", pure=True).load(block.text)["jobs"]
            for name, job in jobs.items():
                yield pytest.param(job, id=f"{page.relative_to(ROOT)}:{block.line}:{name}")


@each_case("job", list(_jobs()))
def test_a_workflow_notices_a_command_that_fails_before_a_pipe(job: Any) -> None:
    default = job.get("defaults", {}).get("run", {}).get("shell")
    for step in job["steps"]:
        if "|" in step.get("run", ""):
            assert step.get("shell", default) == "bash", f"{step['run']}: no pipefail"


@each_case("job", list(_jobs()))
def test_a_workflow_that_compares_with_a_branch_has_its_history(job: Any) -> None:
    if any("origin/" in step.get("run", "") for step in job["steps"]):
        (checkout,) = (one for one in job["steps"] if "checkout" in one.get("uses", ""))
        assert checkout.get("with") == _FULL


def test_every_page_installs_aish_as_the_readme_does() -> None:
    lines = [
        (
            f"{page.relative_to(ROOT)}:{block.line}",
            line.strip().removeprefix("- ").removeprefix("run: "),
        )
        for page in PAGES
        for block in blocks(page)
        for line in block.lines
        if "pip install" in line and "aish" in line and "'./aish[local]'" not in line
    ]
    (readme,) = {
        _INSTALL.findall(line)[0] for where, line in lines if where.startswith("README.md")
    }

    assert len(lines) > 10
    assert [row for row in lines if _INSTALL.findall(row[1]) != [readme]] == []
    assert [row for row in lines if _INSTALL.fullmatch(row[1]) is None] == []
