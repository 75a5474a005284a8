"""What a person meets first: help, versions, mistakes, completion."""

import re
import sys

import pytest
from e2e_project import REPO, Project
from syrupy.assertion import SnapshotAssertion

from aish import __version__
from aish.cli.catalogue import COMMANDS, GROUPS
from aish.core.errors import ExitCode

PAGE = (REPO / "docs" / "reference" / "cli.md").read_text("utf-8")
EVERY = [
    [],
    *([group] for group in GROUPS),
    *([row.group, row.name] if row.group else [row.name] for row in COMMANDS),
]


def told_on_page(command: list[str]) -> list[str]:
    """Return what the reference says of the arguments and options of a command.

    Help leaves out options that are another spelling of one that it shows.
    """
    _, _, section = PAGE.partition(f"\n## aish {' '.join(command)}\n")
    rows = re.findall(r"(?m)^\| `.*` \| (.*) \|$", section.partition("\n## ")[0])
    texts = (text.replace(r"\|", "|").partition(" Default: ")[0] for text in rows)
    return [" ".join(text.split()) for text in texts if not text.startswith("The same as ")]


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_every_command_explains_itself_with_an_example(
    project: Project, command: list[str]
) -> None:
    done = project.aish(*command, "--help", env={"COLUMNS": "100"})

    assert (done.code, done.stderr) == (0, "")
    if command not in ([group] for group in GROUPS):
        assert "\n  Example: " in done.stdout
    words = " ".join(done.stdout.split())
    assert [text for text in told_on_page(command) if text not in words] == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", [[], ["policy"], ["apply"], ["run"]], ids=" ".join)
def test_help_is_laid_out_in_columns(
    project: Project, snapshot: SnapshotAssertion, command: list[str]
) -> None:
    assert project.aish(*command, "--help", env={"COLUMNS": "100"}).stdout == snapshot


@pytest.mark.parametrize("command", [[], ["cassette"], ["policy"]])
def test_a_list_of_commands_has_whole_sentences_at_80_columns(
    project: Project, command: list[str]
) -> None:
    done = project.aish(*command, "--help", env={"COLUMNS": "80"})

    commands = done.stdout.partition("Commands:\n")[2].splitlines()
    assert commands
    assert [line for line in commands if not line.endswith(".") or line.endswith("..")] == []


def test_the_options_of_a_run_are_in_groups_and_the_most_used_come_first(project: Project) -> None:
    text = project.aish("run", "--help", env={"COLUMNS": "80"}).stdout
    parts = re.split(r"(?m)^(\w.*):$", text)[1:]
    groups = dict(zip(parts[::2], parts[1::2], strict=True))
    options = {
        name: re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", rows) for name, rows in groups.items()
    }

    assert list(options)[1:] == [
        "Most used",
        "Input and model",
        "Approvals",
        "Limits",
        "Output and reports",
        "Record and replay",
        "Resume",
        "Many rows and machines",
        "Control",
        "Other",
    ]
    assert len(options["Most used"]) == 10
    assert options["Other"] == ["--verbose", "--help"]
    listed = [name for names in options.values() for name in names]
    assert len(listed) == len(set(listed))


def test_the_top_of_the_help_has_every_exit_code(project: Project) -> None:
    words = " ".join(project.aish("--help").stdout.split())

    for code in ExitCode:
        assert f"{int(code)} {code.name.lower()}" in words


@pytest.mark.real_process
def test_the_version_is_told(project: Project) -> None:
    for flag in ("--version", "-V"):
        done = project.aish(flag)
        assert (done.code, done.stdout, done.stderr) == (0, f"aish {__version__}\n", "")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rum"], "run"),
        (["no-such-thing"], "no-such-thing"),
        (["--no-such-flag"], "--no-such-flag"),
        (["call"], "FILE"),
        (["run", "a.yaml", "b.yaml"], "b.yaml"),
        (["run", "a.yaml", "--formt", "json"], "--format"),
        (["run", "a.yaml", "--timeout"], "--timeout"),
        (["plan", "a.yaml", "--format", "jsonl"], "jsonl"),
        (["policy", "explian", "a.yaml"], "explian"),
        (["policy", "explain", "a.yaml"], "--tool"),
        (["schema", "pipelin"], "pipeline"),
        (["init", "nothing"], "minimal"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_a_sentence_and_the_way_to_help(
    project: Project, words: list[str], said: str
) -> None:
    done = project.aish(*words)

    assert (done.code, done.stdout) == (2, "")
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert not first.endswith(".")
    assert said in first
    assert any(line.startswith("hint: ") and "--help" in line for line in rest)


@pytest.mark.parametrize("words", [[], ["policy"]], ids=" ".join)
def test_no_command_shows_the_help_and_is_a_mistake(project: Project, words: list[str]) -> None:
    done = project.aish(*words)

    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: aish")


def completed(project: Project, line: str, word: int) -> list[str]:
    """What bash would offer for the word at this place."""
    asked = {"_AISH_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(word)}
    return project.aish(env=asked).stdout.split()


@pytest.mark.slow(reason="starts shells")
def test_the_shell_completes_commands_options_and_choices(project: Project) -> None:
    project.aish.python = ("bash", "-c", '"$@"; exit $?', "bash", sys.executable)
    script = project.aish("--show-completion")

    assert script.code == 0, script.stderr
    assert re.search(r"complete .* aish", script.stdout)
    assert {"run", "plan", "policy"} <= set(completed(project, "aish ", 1))
    assert completed(project, "aish va", 1) == ["validate"]
    assert completed(project, "aish run --ep", 2) == ["--ephemeral"]
    assert completed(project, "aish run p.yaml --format j", 4) == ["json", "jsonl"]
    assert completed(project, "aish policy ex", 2) == ["explain"]
    assert completed(project, "aish schema e", 2) == ["events"]
