"""How sessions end that go on with one another, where nobody is there (S1, S6)."""

import json
import os
import signal

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio, wait_file
from samples import sampled
from shell_sessions import obedient, records, session_folders


@pytest.mark.parametrize(
    ("before", "after", "code"),
    sampled(
        [
            ("!exit 3", "hello", 1),
            ("hello", "!exit 3", 1),
            ("!exit 3", "CALL s__fail {}", 3),
            ("CALL s__fail {}", "!exit 3", 3),
            ("hello", "hello", 0),
        ],
        often={0, 2},
        reason="cases of the same kind",
    ),
)
def test_the_worst_line_decides_also_where_another_session_is_gone_on_with(
    project: Project, model_endpoint: ModelEndpoints, before: str, after: str, code: int
) -> None:
    project.uses(model_endpoint(obedient))
    project.pipeline(f"mcp: {{servers: {{s: {{command: {stdio()}}}}}}}\non_denied: fail\n")
    assert project.aish("shell", "p.yaml", stdin="first\n").code == 0
    (first,) = session_folders(project)

    done = project.aish("shell", "p.yaml", stdin=f"{before}\n:resume {first.name}\n{after}\n")

    assert done.code == code, done.stderr
    ends = {
        one["exit"]["code"]
        for folder in session_folders(project)
        for one in of_type(records(folder), "run.finished")
    }
    assert max(ends) == code, "each part has its own end, too"


def test_a_signal_while_one_session_closes_is_no_way_into_the_next(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(obedient))
    project.pipeline("")
    assert project.aish("shell", "p.yaml", stdin="first\n").code == 0
    (first,) = session_folders(project)
    project.write("slow.sh", "trap '' TERM\n\"$@\"\ntouch closing\nsleep 600\n")
    server = json.dumps(["sh", str(project.folder / "slow.sh"), *json.loads(stdio())])
    project.pipeline(f"mcp: {{servers: {{s: {{command: {server}}}}}}}\n")
    # The next session, if there is one, waits for good at its first line.
    os.mkfifo(project.folder / "never")
    # A question waits until the server is connected.
    lines = f"hello\n:resume {first.name}\n!cat never\n"
    running = project.aish.start("shell", "p.yaml", stdin=lines)
    wait_file(project.folder / "closing")
    running.interrupt(signal.SIGTERM)
    done = running.finish()

    assert done.code == 143
