"""On an interpreter that lacks what Python on a Mac lacks, and on one of Windows."""

import json
import subprocess
import sys

import fake_darwin
import pytest
from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import text_reply, tool_reply

_IMPORT_ALL = """
import importlib, pkgutil, sys, aish
assert sys.platform == "darwin"
for module in pkgutil.walk_packages(aish.__path__, "aish."):
    # What a Mac has in compiled form is not here: `psutil`, of the cluster.
    if not module.name.endswith("__main__") and ".cluster." not in module.name:
        importlib.import_module(module.name)
"""


@pytest.mark.real_process
def test_nothing_that_only_linux_has_is_needed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [
        tool_reply([("c", "kid__echo", json.dumps({"text": "from a server"}))]),
        tool_reply([("c", "repo__file_read", json.dumps({"path": "p.yaml"}))]),
        tool_reply(
            [("c", "repo__file_write", json.dumps({"path": "new.txt", "content": "new\n"}))]
        ),
        tool_reply([("c", "sh__shell_run", json.dumps({"command": "echo from a shell"}))]),
        text_reply("Done."),
    ]
    project.uses(model_endpoint(calls))
    project.pipeline(
        f"""
        prompt: Go
        mcp:
          servers:
            kid: {{command: {stdio()}}}
            repo: {{pack: [fs, edit], root: .}}
            sh: {{pack: shell, root: .}}
          auto_approve: ["*__*", repo__file_write, sh__shell_run]
        """
    )
    project.aish.env["PYTHONPATH"] = str(fake_darwin.make_folder(project.folder.parent))

    everything = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL],
        env=project.aish.env,
        capture_output=True,
        text=True,
        check=False,
    )
    version, checked = project.aish("--version"), project.aish("validate", "p.yaml")
    result = project.result()
    project.pipeline(
        """
        models: {}
        mcp:
          servers: {box: {pack: [shell], root: ., options: {shell: {sandbox: required}}}}
          auto_approve: [box__shell_run]
        steps: [{id: s, call: box__shell_run, with: {command: touch started}}]
        """,
        "sandbox.yaml",
    )
    refused = project.aish("run", "sandbox.yaml")
    doctor = json.loads(project.aish("doctor", "--format", "json").stdout)

    assert everything.returncode == 0, everything.stderr
    assert version.code == checked.code == 0, version.stderr + checked.stdout
    assert result["exit"]["code"] == 0, result["exit"]
    events = project.run_folders[0] / "events.jsonl"
    assert "from a server" in (told := events.read_text("utf-8"))
    assert "from a shell" in told
    assert (project.folder / "new.txt").read_text("utf-8") == "new\n"
    assert refused.code == 2
    assert "bubblewrap does not work here: it needs Linux" in refused.stderr
    assert not (project.folder / "started").exists()
    found = {row["subject"]: row["text"] for row in doctor}
    assert found["sandboxes"] == "commands and servers are not confined"
    assert "folder by folder" in found["openat2"]


def test_windows_is_told_about_wsl_before_anything_is_imported(project: Project) -> None:
    script = (
        "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None\n"
        "try:\n    import aish; aish.run\nexcept ImportError as error:\n    print(error)\n"
        "from aish.__main__ import main; main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        env=project.aish.env,
        capture_output=True,
        text=True,
        check=False,
    )

    said = "Windows is not supported; install WSL (`wsl --install`) and run aish in it\n"
    assert (done.returncode, done.stdout, done.stderr) == (5, said, f"aish: {said}")
