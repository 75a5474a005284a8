"""Faults of the machine while packs work, from the command line."""

import json
import subprocess
from shutil import which

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import text_reply, tool_reply

# A real file system with room for 64 KiB; it goes with the process that sees it.
FULL_DISK = """
mkdir work
unshare -rm sh -c '
    mount -t tmpfs -o size=64k none work && cp old.py other.py work || exit 99
    "$@"
    code=$?
    ls -A work >left
    cp work/old.py after.py
    cp work/other.py after_other.py
    exit $code
' sh "$@"
"""


def can_mount() -> bool:
    """Whether a file system of one's own can be had here."""
    program = which("unshare")
    if program is None:
        return False
    command = [program, "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.requirement("K6")
@pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here")
def test_a_full_disk_at_a_write_leaves_every_file_as_it_was(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    old = "x = 1\n" + "# comment\n" * 4_000 + "\n\ndef f():\n    return 1\n"
    project.write("old.py", old.encode())
    project.write("other.py", "y = 1\n")
    patch = "*** Update File: other.py\n-y = 1\n+y = 2\n*** Add File: a/b.py\n+x\n"
    patch += f"*** Update File: old.py\n-x = 1\n+x = '{'y' * 9_000}'\n"
    calls = [
        ("file_write", {"path": "new/file.txt", "content": "x" * 100_000}),
        ("file_write", {"path": "old.py", "content": "x" * 40_000}),
        ("file_edit", {"path": "old.py", "old_text": "x = 1", "new_text": f"x = '{'y' * 9_000}'"}),
        (
            "py_update_definition",
            {"path": "old.py", "name": "f", "content": f"def f():\n    return '{'y' * 9_000}'\n"},
        ),
        ("py_move_def", {"path": "old.py", "new_path": "other.py", "name": "f"}),
        ("file_patch", {"patch": patch}),
        ("file_write", {"path": "small.txt", "content": "there is room\n"}),
    ]
    names = sorted({f"box__{name}" for name, _ in calls})
    # One after the other; there is no room for a second copy of `old.py`.
    turns = [
        tool_reply([(f"c{number}", f"box__{name}", json.dumps(arguments))])
        for number, (name, arguments) in enumerate(calls)
    ]
    endpoint = model_endpoint([*turns, text_reply("done")])
    project.uses(endpoint)
    project.pipeline(
        "mcp:\n  servers: {box: {pack: [fs, edit, py], root: work}}\n"
        f"  auto_approve: {json.dumps(names)}\n"
        "prompt: Use your tools\n"
    )
    project.through_shell(FULL_DISK)

    done = project.run()

    assert done.code == 0, done.stderr
    told = [one["content"] for one in endpoint.asked[-1]["messages"] if one["role"] == "tool"]
    full = "cannot be written: no space left on device"
    # Of the move the other file is written first, and taken back.
    assert [text for text in told[:6] if full in text] == told[:6]
    assert told[6].startswith("created `small.txt`")
    assert (project.folder / "after.py").read_text() == old
    assert (project.folder / "after_other.py").read_text() == "y = 1\n"
    assert (project.folder / "left").read_text().split() == ["old.py", "other.py", "small.txt"]
