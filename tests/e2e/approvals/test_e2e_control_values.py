"""A live run of the real command line: several addresses, changed limits, and a resume."""

import json
import signal
import sys
from pathlib import Path
from textwrap import dedent

import httpx
import pytest
from control_shapes import READS, check
from e2e_project import REPO, Project, of_type
from live_runs import WAITS, control_file, ledger, pending, runtime_folder
from plain_http import PLAIN

from aish.system.user import login_name

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
WAITING = f"""
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: wait
    limits: {{turns: 5}}
    steps: [{{id: note, call: box__write, with: {{text: one}}}}]
    """


def over_socket(address: str) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=address.removeprefix("unix:"), verify=PLAIN)
    return httpx.Client(transport=transport, base_url="http://aish/api/v1/", timeout=60)


@pytest.mark.slow(reason="connects until the limits of each address")
def test_a_run_listens_at_several_addresses_and_its_limits_end_with_it(project: Project) -> None:
    project.pipeline(WAITING)
    with runtime_folder(project) as runtime:
        given = ("--control", f"unix:{runtime}/own/s", "--control", "127.0.0.1:0")
        with project.aish.start("run", "p.yaml", *given) as running:
            running.wait_for_line(WAITS)
            named = control_file(project)
            token = Path(named["token_file"]).read_text(encoding="utf-8").strip()
            first, second = named["addresses"]
            with (
                over_socket(first) as socket,
                httpx.Client(
                    base_url=f"http://{second}/api/v1/",
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=60,
                    verify=PLAIN,
                ) as port,
            ):
                (question,) = pending(socket)
                done = port.put("values/limits.turns", json={"value": 9, "was": 5})
                late = socket.put("values/limits.turns", json={"value": 7, "was": 5})
                for path, shape in READS.items():
                    check(socket.get(f"http://aish{path}").json(), shape)
                # This user has another cursor than the token.
                mine = socket.get("http://aish/api/events").json()["events"]
                all_of = port.get(f"http://{second}/api/events").json()["events"]
            running.interrupt(signal.SIGTERM)
            running.finish()

        assert named["address"] == first == f"unix:{runtime}/own/s"
        assert (done.status_code, late.status_code) == (200, 409)
        assert late.json()["error"]["message"] == "the value is 9 now"
        assert f"listening on {first} (" in running.stderr
        assert f"listening on {second}, token in" in running.stderr
        by = f"control API: `limits.turns` set to 9 by {login_name()}, was 5"
        assert by in running.stderr
        assert [one["type"] for one in mine] == []
        assert all_of[0]["type"] == "run.started"
        (told,) = of_type(project.journal, "value.set")
        assert (told["path"], told["value"], told["was"], told["by"]) == (
            "limits.turns",
            9,
            5,
            login_name(),
        )

        with project.aish.start("run", "p.yaml", "--resume", *given) as running:
            running.wait_for_line(WAITS)
            with over_socket(control_file(project)["address"]) as socket:
                # The file's values again, and the events of the earlier part too.
                value = socket.get("values/limits.turns").json()["value"]
                events = socket.get("events?after=0").json()["events"]
            run = project.run_folders[0].name
            # By the socket file: the port's token is not asked for.
            answer = ("--yes", "--digest", question["digest"][:12])
            told_by = project.aish("approve", run, question["id"][:8], *answer)
            ended = running.finish()

    assert value == 5
    assert [one["type"] for one in events].count("run.started") == 1
    assert events[0]["seq"] == 1
    assert told_by.code == 0, told_by.stderr
    assert ended.code == 0, ended.stderr
    assert ledger(project) == ["one"]


@pytest.mark.requirement("A1")
def test_a_file_names_several_addresses(project: Project) -> None:
    with runtime_folder(project) as runtime:
        control = f"control: {{listen: [auto, 'unix:{runtime}/own/s']}}\n"
        project.pipeline(dedent(WAITING).lstrip() + control)
        with project.aish.start("run", "p.yaml") as running:
            running.wait_for_line(WAITS)
            addresses = control_file(project)["addresses"]
            for address in addresses:
                with over_socket(address) as socket:
                    assert socket.get("status").json()["state"] == "waiting"
            running.interrupt(signal.SIGTERM)
            running.finish()
        twice = project.run("--control=127.0.0.1:7", "--control=127.0.0.1:7")

    assert addresses[1] == f"unix:{runtime}/own/s"
    assert (twice.code, "`127.0.0.1:7` is given twice" in twice.stderr) == (2, True)


def test_what_programs_say_is_shown_as_text(project: Project) -> None:
    project.pipeline(WAITING)
    hostile = "a\x1b[2J\x1b]0;x\x07\n::error::no\r\u202eb"
    with runtime_folder(project) as runtime:
        given = ("--control", f"unix:{runtime}/own/s")
        with project.aish.start("run", "p.yaml", *given) as running:
            running.wait_for_line(WAITS)
            with over_socket(control_file(project)["address"]) as socket:
                asked = socket.post("ask", json={"title": hostile, "timeout": 0.01})
                data = {"command": "event", "name": "seen", "data": hostile}
                assert socket.post("commands", json=data).status_code == 200
            running.interrupt(signal.SIGTERM)
            ended = running.finish()

    assert asked.status_code == 504
    assert "control API: event `seen` by " in ended.stderr
    assert "asks (" in ended.stderr
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(ended.stderr)
    assert "\n::error::" not in ended.stderr
    (received,) = of_type(project.journal, "ask_received")
    assert received["title"] == hostile
