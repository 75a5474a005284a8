"""What a shell completes: runs, models and tools of the file; and what installing it edits."""

import os
import shlex
import subprocess
import sys

import pytest
from asking_runs import ID, answered, asked, finished, kept_run
from e2e_project import Project

from aish.system.files import schema_text

RUNS = ("20261101T120640Z-nightly-aaaa", "20261103T120640Z-review-bbbb")
SESSION = "20261102T120640Z-try-cccc"
PIPELINE = """
aish: 1
models: {fast: {base_url: "${NO_URL}", model: small}, strong: {embedded: smollm2}}
model: fast
mcp:
  servers:
    repo: {pack: [fs], root: ., exclude: ["*_delete"]}
    web: {url: "http://127.0.0.1:9/"}
prompt: Say hello
"""


@pytest.fixture
def files(project: Project) -> Project:
    project.write("p.yaml", PIPELINE)
    project.write("broken.yaml", "models: [")
    for id in RUNS:
        (project.folder / ".aish" / "runs" / id).mkdir(parents=True)
    (project.folder / ".aish" / "sessions" / SESSION).mkdir(parents=True)
    kept_run(
        project.folder / "kept", RUNS[0], asked(), asked("4" * 32), answered("4" * 32), finished()
    )
    return project


def complete(project: Project, line: str, shell: str = "bash") -> list[str]:
    """The words that a shell is given for the last one of `line`."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    env = {"_AISH_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        env |= {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    else:
        env |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = project.aish(env=env)
    assert (done.code, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("aish runs show ", ["latest", RUNS[1], RUNS[0]]),
        ("aish runs report 20261101", [RUNS[0]]),
        ("aish runs export lat", ["latest"]),
        ("aish runs merge ", ["latest", RUNS[1], RUNS[0]]),
        ("aish policy suggest lat", ["latest"]),
        ("aish runs pending ", ["latest", RUNS[1], RUNS[0]]),
        ("aish approve 20261103", [RUNS[1]]),
        ("aish approve --run-dir kept latest ", [ID]),
        ("aish approve --run-dir kept latest 3f", [ID]),
        ("aish approve --run-dir kept latest 4", []),
        ("aish approve --run-dir kept gone ", []),
        ("aish approve latest ", []),
        ("aish run p.yaml --resume ", ["latest", RUNS[1], RUNS[0]]),
        ("aish shell --resume 2026", [SESSION]),
        ("aish run p.yaml -m ", ["fast", "strong"]),
        ("aish plan p.yaml --model s", ["strong"]),
        ("aish call p.yaml repo__dir", ["repo__dir_list", "repo__dir_create", "repo__dir_tree"]),
        ("aish call p.yaml w", ["web__"]),
        ("aish run p.yaml --allow repo__file_d", []),
        ("aish run p.yaml --allow web", ["web__", "web__*"]),
        ("aish run p.yaml --deny sh", ["shell__run"]),
        (
            "aish policy explain p.yaml --tool repo__file_s",
            ["repo__file_search", "repo__file_summary"],
        ),
        ("aish run broken.yaml -m ", []),
        ("aish run gone.yaml -m ", []),
    ],
)
def test_a_shell_completes_what_the_project_has(
    files: Project, line: str, words: list[str]
) -> None:
    assert complete(files, line) == words


def test_without_a_file_the_one_of_the_folder_is_completed(files: Project) -> None:
    files.write("aish.yaml", PIPELINE.replace("strong", "own"))

    assert complete(files, "aish run -m ") == ["fast", "own"]
    assert complete(files, "aish shell --model o") == ["own"]
    assert complete(files, "aish tools --allow repo__file_se") == ["repo__file_search"]
    assert complete(files, "aish run p.yaml -m ") == ["fast", "strong"]


def test_other_shells_are_told_the_same(files: Project) -> None:
    assert complete(files, "aish runs show 20261101", "zsh") != []
    assert RUNS[0] in " ".join(complete(files, "aish runs show 20261101", "zsh"))
    assert complete(files, "aish run p.yaml -m f", "fish")[0] == "fast"


def test_where_nothing_was_run_nothing_is_completed(project: Project) -> None:
    assert complete(project, "aish runs show ") == ["latest"]


def test_tools_of_a_locked_server_are_completed(files: Project) -> None:
    files.write("p.yaml", PIPELINE.replace('web: {url: "http://127.0.0.1:9/"}', ""))
    assert files.aish("lock", "p.yaml").code == 0

    assert complete(files, "aish call p.yaml repo__dir_l") == ["repo__dir_list"]


def test_installing_completion_says_what_it_edits(project: Project) -> None:
    (project.folder / ".bashrc").write_text("# mine\n", "utf-8")
    command = f"{shlex.join([sys.executable, '-m', 'aish'])} --install-completion; true"
    env = {**project.aish.env, "HOME": str(project.folder), "PATH": os.environ["PATH"]}

    done = subprocess.run(
        ["bash", "--norc", "-c", command],
        env=env,
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )

    added = f"source '{project.folder}/.bash_completions/aish.sh'"
    assert f"added to ~/.bashrc:\n  {added}\n" in done.stdout, done.stdout + done.stderr
    assert "wrote ~/.bash_completions/aish.sh\n" in done.stdout
    assert (project.folder / ".bashrc").read_text("utf-8") == f"# mine\n\n{added}\n"
    helped = " ".join(project.aish("--help").stdout.split())
    assert "adds a line to ~/.bashrc" in helped


@pytest.mark.parametrize("template", ["minimal", "tools", "ci", "batch", "graph"])
def test_a_starter_has_the_name_of_its_file_and_its_schema(project: Project, template: str) -> None:
    (project.folder / "pipelines").mkdir()

    done = project.aish("init", template, "-o", "pipelines/my review.yaml")
    checked = project.aish("validate", "--strict", "pipelines/my review.yaml")

    made = (project.folder / "pipelines" / "my review.yaml").read_text("utf-8")
    assert done.code == 0, done.stderr
    assert (checked.code, checked.stderr) == (0, "")
    assert made.startswith("# yaml-language-server: $schema=.aish/pipeline.schema.json\n")
    assert "\nname: my-review\n" in made
    assert "aish.yaml" not in made
    schema = project.folder / "pipelines" / ".aish" / "pipeline.schema.json"
    assert schema.read_text("utf-8") == schema_text("pipeline.schema.json")
    assert (schema.parent / ".gitignore").read_text("ascii") == "*\n"


def test_a_folder_that_cannot_hold_the_schema_is_no_reason_to_fail(project: Project) -> None:
    (project.folder / ".aish").symlink_to("/nowhere")

    done = project.aish("init")

    assert done.code == 0
    assert "warning: editors will not find the schema `.aish/pipeline.schema.json`" in done.stderr
    assert (project.folder / "aish.yaml").exists()
