"""`action.yml` and `.pre-commit-hooks.yaml`: read as GitHub and pre-commit do, and tried."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from e2e_project import REPO, Project

from aish.cli.catalogue import COMMANDS
from aish.config.yaml_tree import ListNode, MappingNode, Node, ScalarNode, parse_yaml

_EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")
# An `aish` or a `python3` that only says how it was called, a word a line.
FAKE = """#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    row = {{"name": {name!r}, "argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}
    row["stdin"] = sys.stdin.read() if {name!r} == "aish" else ""
    log.write(json.dumps(row) + "\\n")
for word in sys.argv:
    if word.startswith("--run-dir="):
        os.makedirs(word.partition("=")[2] + "/20261121T000000Z-p-aaaa", exist_ok=True)
lists = sys.argv[1:3] == ["runs", "pending"]
if lists:
    print('{{"pending": [{{"id": "1a", "digest": "2b", "tool": "t__x\\\\u0007y"}}]}}')
sys.exit(0 if lists else {code})
"""


def load(name: str) -> Any:
    """A file of the repository, read by our own loader."""
    parsed = parse_yaml((REPO / name).read_text("utf-8"), name)
    assert parsed.problems == ()
    assert parsed.root is not None
    return _plain(parsed.root)


def _plain(node: Node) -> Any:
    match node:
        case ScalarNode():
            return node.value
        case ListNode():
            return [_plain(item) for item in node.items]
        case MappingNode():
            return {key: _plain(value) for key, value in node.entries.items()}


@dataclass
class Step:
    """What GitHub does with a step of a composite action."""

    folder: Path
    inputs: dict[str, str]
    env: dict[str, str]
    log: list[Any] = field(default_factory=list)

    def run(self, step: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        script = self.folder / "step.sh"
        script.write_text(step["run"], "utf-8")
        env = {**self.env, **{key: self._filled(text) for key, text in step["env"].items()}}
        where = self.folder / self._filled(step.get("working-directory", "."))
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=where,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def _filled(self, text: str) -> str:
        return _EXPRESSION.sub(lambda found: self.inputs[found[1].removeprefix("inputs.")], text)

    def fake(self, name: str, code: int = 0) -> None:
        """Put a program into the way that only remembers how it was called."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        log = str(self.folder / "calls.jsonl")
        path.write_text(FAKE.format(python=sys.executable, log=log, name=name, code=code))
        path.chmod(0o755)

    @property
    def calls(self) -> list[Any]:
        import json

        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    @property
    def outputs(self) -> dict[str, str]:
        """What the step wrote to `$GITHUB_OUTPUT`, as the runner reads it."""
        found, lines = {}, iter((self.folder / "output").read_text("utf-8").splitlines())
        for line in lines:
            name, _, end = line.partition("<<")
            value = []
            while (part := next(lines)) != end:
                value.append(part)
            found[name] = "\n".join(value)
        return found


@pytest.fixture
def action() -> Any:
    return load("action.yml")


@pytest.fixture
def step(tmp_path: Path, action: Any) -> Step:
    (tmp_path / "temp").mkdir()
    inputs = {name: str(one.get("default", "")) for name, one in action["inputs"].items()}
    path = os.pathsep.join(
        [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    env = {
        "PATH": path,
        "HOME": os.environ["HOME"],
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_ACTION_PATH": str(REPO),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_PATH": str(tmp_path / "path"),
        "GITHUB_ACTIONS": "true",
    }
    return Step(tmp_path, inputs, env)


def steps_of(action: Any) -> dict[str, Any]:
    return {one["id"]: one for one in action["runs"]["steps"]}


@pytest.mark.requirement("B15")
def test_the_action_is_of_the_form_that_github_wants(action: Any) -> None:
    assert action["runs"]["using"] == "composite"
    assert set(action) == {"name", "description", "author", "branding", "inputs", "outputs", "runs"}
    assert all(
        set(one) <= {"description", "required", "default"} for one in action["inputs"].values()
    )
    assert all(one["shell"] == "bash" for one in action["runs"]["steps"])


def test_no_input_becomes_part_of_a_shell_text(action: Any) -> None:
    for one in action["runs"]["steps"]:
        assert "${{" not in one["run"]
        assert set(one) <= {"id", "shell", "env", "run", "working-directory"}
        assert all(_EXPRESSION.fullmatch(text) for text in one["env"].values())


def test_every_input_is_used_and_every_output_is_made(action: Any) -> None:
    text = (REPO / "action.yml").read_text("utf-8")

    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(action["inputs"])
    made = set(re.findall(r"\"([a-z][\w-]*)=\$", steps_of(action)["run"]["run"]))
    assert made == set(action["outputs"])


def test_the_action_uses_nothing_whose_content_may_change(action: Any) -> None:
    assert not [one for one in action["runs"]["steps"] if "uses" in one]


def test_inputs_reach_aish_as_they_are(action: Any, step: Step) -> None:
    step.fake("aish")
    hostile = "$(touch pwned) `touch pwned` \"; touch pwned; ' ${{ github.token }}"
    step.inputs |= {
        "file": hostile,
        "inputs": f"one={hostile}\r\n\n  \ntwo=a b\n",
        "args": "--set\nmodels.m.params.temperature=0\n",
        "junit": "reports/it's.xml",
        "sarif": "it's.sarif",
    }

    done = step.run(steps_of(action)["run"])

    assert done.returncode == 0, done.stderr
    (call,) = step.calls
    place = next((step.folder / "temp").iterdir())
    assert call["argv"] == [
        "run",
        "--format=json",
        f"--output={place}/result.json",
        f"--run-dir={place}/runs",
        "--github",
        "--junit=reports/it's.xml",
        "--sarif=it's.sarif",
        f"--input-text=one={hostile}",
        "--input-text=two=a b",
        "--set",
        "models.m.params.temperature=0",
        "--",
        hostile,
    ]
    assert not list(step.folder.rglob("pwned"))
    assert not [name for name in call["env"] if name.startswith("AISH_ACTION_")]


@pytest.mark.parametrize("code", [0, 1, 5, 8, 70])
def test_the_outputs_are_there_whatever_the_exit_code(action: Any, step: Step, code: int) -> None:
    step.fake("aish", code)
    (step.folder / "sub").mkdir()
    step.inputs |= {"file": "p.yaml", "output": "out.json", "working-directory": "sub"}

    done = step.run(steps_of(action)["run"])

    assert done.returncode == code
    place = next((step.folder / "temp").iterdir())
    assert step.outputs == {
        "exit-code": str(code),
        "paused": "true" if code == 8 else "false",
        "result": str(step.folder / "sub" / "out.json"),
        "run-folder": f"{place}/runs/20261121T000000Z-p-aaaa",
        "junit": "",
        "archive": f"{place}/aish-run.tar" if code == 8 else "",
        "pending": "1a 2b t__xy" if code == 8 else "",
    }
    assert Path(place, "aish-run.tar").exists() == (code == 8)
    assert ("::notice title=aish: paused::" in done.stdout) == (code == 8)


def test_a_pause_may_be_a_success_and_no_other_end(action: Any, step: Step) -> None:
    step.inputs |= {"file": "p.yaml", "allow-pause": "true"}
    for code, end in ((8, 0), (3, 3), (0, 0)):
        step.fake("aish", code)
        assert step.run(steps_of(action)["run"]).returncode == end


def test_answers_without_a_run_to_continue_are_refused(action: Any, step: Step) -> None:
    step.fake("aish")
    step.inputs |= {"file": "p.yaml", "approve": "1a 2b"}

    done = step.run(steps_of(action)["run"])

    assert (done.returncode, "approve goes with resume" in done.stderr) == (2, True)
    assert not (step.folder / "calls.jsonl").exists()


def test_a_file_is_read_as_stdin(action: Any, step: Step) -> None:
    step.fake("aish")
    (step.folder / "change.diff").write_text("+1\n")
    step.inputs |= {"file": "p.yaml", "stdin": "change.diff", "github": "false"}

    assert step.run(steps_of(action)["run"]).returncode == 0

    (call,) = step.calls
    assert call["stdin"] == "+1\n"
    assert "--github" not in call["argv"]


# It works once the setting is off that the fake `sysctl` changes.
FAKE_BWRAP = """#!/bin/sh
[ -e "{off}" ] || {{ echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1; }}
"""


@pytest.mark.parametrize(("runner", "code"), [("github-hosted", 0), ("self-hosted", 1)])
def test_bubblewrap_is_installed_and_allowed_on_a_hosted_runner(
    action: Any, step: Step, runner: str, code: int
) -> None:
    off = step.folder / "off"
    step.fake("sudo")
    sudo = step.folder / "bin" / "sudo"
    act = "import shutil, subprocess\nif 'bubblewrap' in sys.argv:\n"
    act += f"    shutil.copy({str(step.folder / 'bwrap')!r}, {str(step.folder / 'bin')!r})\n"
    act += f"if sys.argv[1] == 'sysctl':\n    open({str(off)!r}, 'w').close()\nsys.exit("
    sudo.write_text(sudo.read_text().replace("sys.exit(", act, 1))
    for name, text in (("bwrap", FAKE_BWRAP.format(off=off)), ("bin/id", "#!/bin/sh\necho 1001\n")):
        path = step.folder / name
        path.write_text(text)
        path.chmod(0o755)
    for name in ("bash", "env", "true", "python3"):
        (step.folder / "bin" / name).symlink_to(str(shutil.which(name)))
    step.env |= {"PATH": str(step.folder / "bin"), "RUNNER_ENVIRONMENT": runner}
    step.inputs["sandbox"] = "bubblewrap"

    done = step.run(steps_of(action)["sandbox"])

    assert done.returncode == code, done.stderr
    words = [" ".join(call["argv"]) for call in step.calls]
    assert words[:2] == ["apt-get update -q", "apt-get install -q -y bubblewrap"]
    allowed = "sysctl -q -w kernel.apparmor_restrict_unprivileged_userns=0"
    assert words[2:] == ([allowed] if runner == "github-hosted" else [])
    assert ("see `aish doctor`" in done.stderr) == (code != 0)


def test_no_sandbox_is_installed_unless_one_is_asked_for(action: Any, step: Step) -> None:
    step.fake("sudo")
    nothing = step.run(steps_of(action)["sandbox"])
    step.inputs["sandbox"] = "chroot"
    other = step.run(steps_of(action)["sandbox"])

    assert nothing.returncode == 0
    assert other.returncode == 2
    assert "sandbox may only be bubblewrap" in other.stderr
    assert not (step.folder / "calls.jsonl").exists()


def installed(step: Step) -> list[str]:
    """The arguments of `pip`, where `python3 -m venv` makes another fake."""
    step.fake("python3")
    python = step.folder / "bin" / "python3"
    copy = 'import shutil\nif sys.argv[1:3] == ["-m", "venv"]:\n'
    copy += '    os.makedirs(sys.argv[3] + "/bin")\n'
    copy += '    shutil.copy(sys.argv[0], sys.argv[3] + "/bin/python")\nsys.exit('
    python.write_text(python.read_text().replace("sys.exit(", copy))
    done = step.run(steps_of(load("action.yml"))["install"])
    assert done.returncode == 0, done.stderr
    argv: list[str] = step.calls[-1]["argv"]
    return argv


def test_it_installs_itself_into_an_environment_of_its_own(step: Step) -> None:
    argv = installed(step)

    assert argv[:2] == ["-m", "pip"]
    assert argv[-2:] == ["--", str(REPO)]
    (place,) = (step.folder / "path").read_text().splitlines()
    assert Path(place).parent.parent == step.folder / "temp"


def test_a_version_and_extras_may_be_chosen(step: Step) -> None:
    step.inputs |= {"version": "1.2.0rc1", "extras": "git,otel"}

    assert installed(step)[-1] == "aish-pipelines[git,otel]==1.2.0rc1"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["version", "extras"])
@pytest.mark.parametrize("value", ["1 @ https://example.com/x", "1\n--index-url=x", "x]; echo"])
def test_a_version_that_is_none_is_refused(action: Any, step: Step, name: str, value: str) -> None:
    step.fake("python3")
    step.inputs[name] = value

    done = step.run(steps_of(action)["install"])

    assert done.returncode == 2
    assert [call["argv"][0] for call in step.calls] == ["-c"]


def test_an_old_python_is_said(action: Any, step: Step) -> None:
    step.fake("python3", 1)

    done = step.run(steps_of(action)["install"])

    assert done.returncode == 2
    assert "3.11" in done.stderr


def test_without_installing_there_has_to_be_an_aish(action: Any, step: Step) -> None:
    step.inputs["install"] = "false"
    assert step.run(steps_of(action)["install"]).returncode == 0

    step.env["PATH"] = "/usr/bin:/bin"
    done = step.run(steps_of(action)["install"])

    assert done.returncode == 2
    assert "not on the path" in done.stderr


GREET = """
name: greet
inputs: {who: {type: string}}
mcp: {auto_approve: [shell__run]}
steps:
  - {id: say, run: [echo, "hello {{ inputs.who }}"]}
"""


def test_the_action_runs_a_pipeline(action: Any, step: Step, project: Project) -> None:
    """With the real program: a summary, a JUnit file, a result, a run folder."""
    project.pipeline(GREET)
    step.env["GITHUB_STEP_SUMMARY"] = str(step.folder / "summary.md")
    step.inputs |= {
        "file": "p.yaml",
        "inputs": "who=you & me",
        "format": "text",
        "junit": "junit.xml",
        "working-directory": str(project.folder),
    }

    done = step.run(steps_of(action)["run"])

    assert done.returncode == 0, done.stderr
    assert Path(step.outputs["result"]).read_text("utf-8") == "hello you & me\n"
    assert Path(step.outputs["run-folder"], "events.jsonl").exists()
    assert Path(step.outputs["junit"]).read_text("utf-8").startswith("<?xml")
    assert "<code>greet</code>" in (step.folder / "summary.md").read_text("utf-8")


@pytest.mark.slow(reason="runs the action for each title")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("who=@settings.txt", "@settings.txt"),
        ("who=@@settings.txt", "@@settings.txt"),
        ("who=@nobody please review", "@nobody please review"),
        ("who=-", "-"),
        ("who={{ env.HOME }} ${HOME}", "{{ env.HOME }} ${HOME}"),
        (' {"who": "@settings.txt\\nwho=x"}\n', "@settings.txt\nwho=x"),
    ],
)
def test_a_title_is_text_whatever_it_begins_with(
    action: Any, step: Step, project: Project, inputs: str, said: str
) -> None:
    project.pipeline(GREET)
    project.write("settings.txt", "DB_PASSWORD=kettle-blue-77")
    step.env["GITHUB_STEP_SUMMARY"] = str(step.folder / "summary.md")
    step.inputs |= {"file": "p.yaml", "inputs": inputs, "format": "text"}
    step.inputs["working-directory"] = str(project.folder)

    done = step.run(steps_of(action)["run"])

    assert done.returncode == 0, done.stderr
    assert Path(step.outputs["result"]).read_text("utf-8") == f"hello {said}\n"


def test_lines_of_a_value_do_not_set_another_input_again(action: Any, step: Step) -> None:
    step.fake("aish")
    step.inputs |= {"file": "p.yaml", "inputs": "title=a\nkind=b\ntitle=@x"}

    done = step.run(steps_of(action)["run"])

    assert (done.returncode, done.stderr) == (
        2,
        "inputs sets title twice; write a JSON object for values of several lines\n",
    )
    assert not (step.folder / "calls.jsonl").exists()


@pytest.fixture
def hooks() -> dict[str, Any]:
    return {one["id"]: one for one in load(".pre-commit-hooks.yaml")}


def test_hooks_call_commands_that_there_are(hooks: dict[str, Any]) -> None:
    names = {row.name for row in COMMANDS if row.group is None}

    assert set(hooks) == {"aish-validate", "aish-test"}
    for hook in hooks.values():
        program, command, *_ = shlex.split(hook["entry"])
        assert (program, hook["language"]) == ("aish", "python")
        assert command in names


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("pipelines/review.yaml", True),
        ("team/pipelines/deep/review.yml", True),
        ("pipelines/cassettes/review.yaml", False),
        ("pipelines/snapshots/review.yaml", False),
        (".github/workflows/ci.yaml", False),
        ("mypipelines/review.yaml", False),
    ],
)
def test_which_files_the_hook_takes(hooks: dict[str, Any], path: str, *, wanted: bool) -> None:
    hook = hooks["aish-validate"]

    assert hook["types"] == ["yaml"]
    taken = re.search(hook["files"], path) and not re.search(hook["exclude"], path)
    assert bool(taken) is wanted


def test_the_hook_passes_our_own_pipelines(hooks: dict[str, Any], run_aish: Any) -> None:
    hook = hooks["aish-validate"]
    files = [str(path) for path in sorted((REPO / "pipelines").glob("*.yaml"))]

    done = run_aish(*shlex.split(hook["entry"])[1:], *files)

    assert done.code == 0, done.stdout + done.stderr
