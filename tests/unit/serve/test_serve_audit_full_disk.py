"""The audit log where its file is full and there is no room for another one."""

import subprocess
import sys
from shutil import which

import pytest

# A real file system with room for two files: the state's folder is elsewhere.
WRITER = """
import sys
from pathlib import Path
from aish.config.model import AuditSettings
from aish.serve.records.audit import AuditError, AuditLog
from aish.serve.state import ServeState
from aish.system.clock import SystemClock

folder = Path(sys.argv[1])
folder.chmod(0o700)
filler = folder / "filler"
filler.touch()
state = ServeState(folder, "hub-test", b"k" * 32)
log = AuditLog(folder, AuditSettings(rotate=1000), state, SystemClock(), str)
refused = 0
for _ in range(20):
    try:
        log.note("listening", None)
    except AuditError as error:
        refused += 1
        assert "No space left" in str(error), error
names = {path.name for path in folder.iterdir()}
print(refused > 0, names == {log.path.name, "filler"})
filler.unlink()
log.note("listening", None)
print(log.path.stat().st_size < 1000, len(list(folder.glob("*.jsonl*"))))
log.close()
"""
MOUNTED = 'mount -t tmpfs -o nr_inodes=3 none "$1" && exec "$2" -c "$3" "$1"'


def can_mount() -> bool:
    """Whether a file system of one's own can be had here."""
    program = which("unshare")
    if program is None:
        return False
    command = [program, "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here")
def test_a_full_file_that_cannot_be_exchanged_refuses_records_until_there_is_room(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("audit")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", MOUNTED, "sh", str(folder), sys.executable, WRITER],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.splitlines() == ["True True", "True 2"], done.stderr
