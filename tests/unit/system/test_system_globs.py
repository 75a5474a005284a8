"""Names of denied and autorun files, as they are compared."""

import pytest
from samples import each_case
from work import work_of

from aish.system.globs import AUTORUN_FILES, comparable_name, is_autorun, matches_path


@each_case(
    "path",
    [
        ".github/workflows/ci.yml",
        ".GitHub/Workflows/ci.yml",
        "./sub//.github/dependabot.yml",
        ".gitlab-ci.yml",
        ".pre-commit-config.yaml",
        "deep/er/.envrc",
        ".vscode/tasks.json",
        ".devcontainer/devcontainer.json",
        "lib/site-packages/x.PTH",
        "sitecustomize.py",
        "\uff53itecustomize.py",
        ".git\u200dhub/workflows/ci.yml",
        ".github/workflows/ci.yml. ",
        "usercustomize.py",
        "lib/usercustomize.pyc",
        "lib/sitecustomize/__init__.py",
        "lib/sitecustomize.cpython-311-x86_64-linux-gnu.so",
        ".devcontainer.json",
        "Jenkinsfile",
        ".circleci/config.yml",
        "azure-pipelines.yaml",
        ".husky/pre-commit",
        ".githooks/pre-commit",
        "lefthook.yml",
        "the.code-workspace",
        ".idea/workspace.xml",
        ".config/fish/config.fish",
        "sub/.npmrc",
        ".yarnrc.yml",
        ".cargo/config.toml",
        ".mvn/jvm.config",
        ".bashrc",
        ".mcp.json",
    ],
)
def test_files_that_programs_run_by_themselves_are_recognized_in_any_spelling(path: str) -> None:
    assert is_autorun(path)


@each_case(
    "path",
    [
        *("github/ci.yml", "envrc", ".env", "a.pth.txt", "", ".", "x/.github2/a", "profile"),
        *("conftest.py", "Makefile", "package.json", ".cargo/registry/a", ".config/other", "x.py"),
        *("mysitecustomize.py", "my.npmrc", "idea/x", "a.lefthook.yml.txt", "Jenkinsfile.md"),
    ],
)
def test_other_files_are_not(path: str) -> None:
    assert not is_autorun(path)


def test_a_name_is_compared_without_case_form_and_invisible_characters() -> None:
    composed, decomposed = "caf\u00e9.PEM", "cafe\u0301.pem"

    assert comparable_name(composed) == comparable_name(decomposed)
    assert comparable_name(".\ufeffenv") == ".env"


@pytest.mark.slow(reason="counts the work of long paths")
def test_a_long_path_takes_work_in_proportion_to_its_length() -> None:
    short = work_of(lambda: is_autorun("a/" * 100 + ".envrc2")).steps
    long = work_of(lambda: is_autorun("a/" * 1000 + ".envrc2")).steps

    assert long < 20 * short


def test_each_glob_of_autorun_files_is_found_at_any_depth_and_no_other_path() -> None:
    for glob in AUTORUN_FILES:
        path = glob.removeprefix("**/").replace("**", "a/b").replace("*", "x")
        assert matches_path(glob, path)
        assert is_autorun(path)
        assert is_autorun(f"c/d/{path}")
        assert not is_autorun(f"c/y{path}y")
