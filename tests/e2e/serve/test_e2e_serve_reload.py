"""`aish serve` that loads its file anew on SIGHUP, with clients and real servers connected."""

import json
import os
import signal
from itertools import starmap
from pathlib import Path

import anyio
import pytest
from e2e_project import Project, stdio
from mcp_processes import is_alive, until_gone
from served_hub import Message, ServedHub, text_of

CHANGED = "notifications/tools/list_changed"


def serving(
    project: Project, servers: dict[str, list[str]], mcp: str = "", serve: str = ""
) -> None:
    """A file with servers, each with the flags that it is started with."""
    entries = ", ".join(f"{alias}: {{command: {stdio(*f)}}}" for alias, f in servers.items())
    project.pipeline(
        f"""
        mcp:
          servers: {{{entries}}}
          auto_approve: ["*__echo", "*__sleep"]
          {mcp}
        {serve}
        """
    )


def reload(hub: ServedHub, count: int) -> Message:
    """Send the signal, and wait until that reload is written down."""
    hub.signal(signal.SIGHUP)
    hub.stderr_with("the file is ", count)
    found = [one for one in hub.audit if one["event"] == "reloaded"]
    assert len(found) == count
    return found[-1]


def pids(note: Path) -> list[int]:
    """The processes that a server was started as."""
    return [int(line) for line in note.read_text(encoding="utf-8").splitlines()]


def sleep(hub: ServedHub, alias: str, end: Path) -> int:
    """Begin a call that goes on until there is a file; its id."""
    arguments = {"ms": 0, "until": str(end)}
    return hub.request("tools/call", {"name": f"{alias}__sleep", "arguments": arguments})


def names(hub: ServedHub) -> list[str]:
    return [tool["name"] for tool in hub.tools()]


def test_a_reload_exchanges_servers_and_rules_and_keeps_what_is_unchanged(
    project: Project, tmp_path: Path
) -> None:
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    of = {"kept": ["--note-pid", str(kept)], "gone": ["--note-pid", str(gone)]}
    serving(project, of)
    end = tmp_path / "end"
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        before = names(hub)
        was = pids(kept)[0], pids(gone)[0]
        running = sleep(hub, "gone", end)
        hub.ask("ping")
        serving(project, {"new": [], "kept": of["kept"]}, mcp="deny: [kept__add]")
        record = reload(hub, 1)
        hub.notification(CHANGED)
        after = names(hub)
        said = hub.call("new__echo", {"text": "from the new one"})
        refused = hub.ask("tools/call", {"name": "gone__echo", "arguments": {"text": "x"}})
        still = is_alive(was[1])
        end.touch()
        done = hub.answer(running)
        anyio.run(until_gone, was[1])
        hub.end_input()
        assert hub.finish() == 0

    assert [one for one in before if one.endswith("__echo")] == ["kept__echo", "gone__echo"]
    assert [one for one in after if one.endswith("__echo")] == ["new__echo", "kept__echo"]
    assert "kept__add" in before
    assert "kept__add" not in after
    assert (record["result"], record["added"], record["removed"], record["changed"]) == (
        "ok",
        ["new"],
        ["gone"],
        [],
    )
    assert text_of(said) == "from the new one"
    assert refused["error"]["code"] == -32602
    assert still
    assert text_of(done["result"]) == "slept 0 ms"
    assert pids(kept) == [was[0]]
    assert "info: the file is reloaded: servers new: `new`, removed: `gone`" in hub.stderr


@pytest.mark.requirement("H23")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mcp: [", "p.yaml"),
        ("mcp: {servers: {s: {comand: [true]}}}", "comand"),
        ('mcp: {servers: {s: {url: "http://127.0.0.1/${NOT_SET_ANYWHERE}"}}}', "NOT_SET_ANYWHERE"),
        ("mcp: {servers: {t: {command: [/does/not/exist]}}}", "cannot start"),
        (None, "p.yaml"),
    ],
)
def test_a_file_with_problems_changes_nothing_and_is_reported(
    project: Project, text: str | None, problem: str
) -> None:
    serving(project, {"s": []})
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        before = hub.tools()
        file = project.folder / "p.yaml"
        if text is None:
            file.unlink()
        else:
            project.pipeline(text)
        record = reload(hub, 1)
        said = hub.call("s__echo", {"text": "still here"})
        after = hub.tools()
        serving(project, {"s": []}, mcp="deny: [s__add]")
        good = reload(hub, 2)
        hub.notification(CHANGED)

    assert record["result"] == "failed"
    assert problem in str(record["problem"])
    assert after == before
    assert text_of(said) == "still here"
    assert "error: the file is not reloaded, and nothing has changed: " in hub.stderr
    assert (good["result"], good["changed"]) == ("ok", [])


def test_a_server_that_is_changed_is_exchanged_and_calls_of_the_old_one_end(
    project: Project, tmp_path: Path
) -> None:
    old, new, end = tmp_path / "old", tmp_path / "new", tmp_path / "end"
    serving(project, {"s": ["--note-pid", str(old)]})
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        running = sleep(hub, "s", end)
        hub.ask("ping")
        serving(project, {"s": ["--note-pid", str(new), "--change-tools"]})
        record = reload(hub, 1)
        assert text_of(hub.call("s__echo", {"text": "new"})) == "new"
        both = is_alive(pids(old)[0]), is_alive(pids(new)[0])
        end.touch()
        done = hub.answer(running)
        anyio.run(until_gone, pids(old)[0])

    assert record["changed"] == ["s"]
    assert both == (True, True)
    assert text_of(done["result"]) == "slept 0 ms"


def test_calls_that_are_not_sent_yet_are_decided_again(project: Project, tmp_path: Path) -> None:
    one = "serve: {limits: {session_calls: 1}}"
    serving(project, {"s": []}, serve=one)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        running = sleep(hub, "s", tmp_path / "end")
        waiting = hub.request("tools/call", {"name": "s__echo", "arguments": {"text": "later"}})
        other = hub.request("tools/call", {"name": "s__add", "arguments": {"a": 1, "b": 2}})
        hub.ask("ping")
        deny = "deny: [{tool: s__echo, when: {text: later}}, s__add]"
        serving(project, {"s": []}, mcp=deny, serve="serve: {limits: {session_calls: 2}}")
        reload(hub, 1)
        (tmp_path / "end").touch()
        done, denied, removed = hub.answers(running, waiting, other)

    assert text_of(done["result"]) == "slept 0 ms"
    assert denied["result"]["isError"] is True
    assert "denied by rule" in text_of(denied["result"])
    assert text_of(removed["result"]) == "[aish] s: the tool is not offered any more"
    assert "`serve.limits` will be what the file says after a restart" in hub.stderr


def test_settings_of_the_offer_and_of_the_lock_are_loaded_anew(project: Project) -> None:
    serving(project, {"a": [], "b": []}, serve="serve: {tools: [a__echo]}")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        first = names(hub)
        serving(project, {"a": [], "b": []}, serve="serve: {tools: ['*__echo']}")
        reload(hub, 1)
        second = names(hub)
        serving(project, {"a": [], "b": []}, serve="serve: {tools: ['*__echo'], names: plain}")
        clash = reload(hub, 2)
        third = names(hub)
        serving(project, {"a": []}, serve="serve: {names: plain, tools: ['*__echo']}")
        reload(hub, 3)
        plain = names(hub)
        said = text_of(hub.call("echo", {"text": "plain"}))

    assert first == ["a__echo"]
    assert second == third == ["a__echo", "b__echo"]
    assert clash["result"] == "failed"
    assert "would both be called `echo`" in str(clash["problem"])
    assert plain == ["echo"]
    assert said == "plain"


def test_pipelines_are_loaded_anew_and_a_run_of_the_old_file_ends(project: Project) -> None:
    def offer(word: str, *names: str) -> None:
        for name in names:
            steps = f"[{{id: wait, run: [sleep, '0.7']}}, {{id: say, run: [echo, {word}]}}]"
            text = f"name: {name}\nsteps: {steps}\nmcp: {{auto_approve: [shell__run]}}\n"
            project.write(f"{name}.yaml", f"aish: 1\n{text}")
        files = ", ".join(f"{name}.yaml" for name in names)
        project.pipeline(
            f"mcp: {{auto_approve: ['pipeline__*', pipeline__a, pipeline__b]}}\n"
            f"serve: {{pipelines: [{files}]}}"
        )

    offer("old", "a")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        before = names(hub)
        running = hub.request("tools/call", {"name": "pipeline__a", "arguments": {}})
        hub.ask("ping")
        offer("new", "a", "b")
        reload(hub, 1)
        after = names(hub)
        said = text_of(hub.call("pipeline__a"))
        done = text_of(hub.answer(running)["result"])
        project.write("b.yaml", "aish: 1\nname: b\nsteps: [{id: s, prompt: hello}]\n")
        broken = reload(hub, 2)
        still = names(hub)

    assert before == ["pipeline__a"]
    assert after == still == ["pipeline__a", "pipeline__b"]
    assert (said.strip(), done.strip()) == ("new", "old")
    assert broken["result"] == "failed"
    assert "b.yaml" in str(broken["problem"])


def test_runs_that_wait_for_a_place_are_decided_again(project: Project) -> None:
    def offer(*denied: str) -> None:
        rules = f"auto_approve: [pipeline__*], deny: [{', '.join(denied)}]"
        served = "pipelines: [a.yaml, b.yaml, c.yaml], limits: {pipelines: 1}"
        project.pipeline(f"mcp: {{{rules}}}\nserve: {{{served}}}")

    os.mkfifo(project.folder / "held")
    for name in "abc":
        words = "cat, held" if name == "a" else f"touch, done-{name}"
        steps = f"[{{id: do, run: [{words}]}}]"
        text = f"name: {name}\nsteps: {steps}\nmcp: {{auto_approve: [shell__run]}}\n"
        project.write(f"{name}.yaml", f"aish: 1\n{text}")
    offer()
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        calls = [hub.request("tools/call", {"name": f"pipeline__{one}"}) for one in "abc"]
        hub.ask("ping")
        while [one["event"] for one in hub.audit].count("decided") < len(calls):
            hub.ask("ping")
        offer("pipeline__c")
        reload(hub, 1)
        (project.folder / "held").write_text("")
        first, second, third = (one["result"] for one in hub.answers(*calls))
        decided = [(one["tool"], one["decision"]) for one in hub.audit if one["event"] == "decided"]

    assert not first["isError"], first
    assert not second["isError"], second
    assert third["isError"]
    assert (project.folder / "done-b").exists()
    assert not (project.folder / "done-c").exists()
    assert decided[3:] == [("pipeline__b", "auto")]


def test_what_holds_from_the_start_is_reported_where_a_reload_changes_it(project: Project) -> None:
    serving(project, {"s": []})
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        changed = "serve: {listen: 'unix:run/s', limits: {calls: 3}, audit: {keep: 3}}"
        control = "control: {tokens: {bot: {token_env: BOT, scopes: [read]}}}"
        serving(project, {"s": []}, serve=f"{changed}\n        {control}")
        record = reload(hub, 1)
        hub.stderr_with("after a restart")

    assert record["not_applied"] == ["serve.listen", "serve.audit", "serve.limits", "control"]
    said = "`serve.listen`, `serve.audit`, `serve.limits`, `control` will be what the file says"
    assert said in hub.stderr
    assert not (project.folder / "run").exists()


def test_a_call_of_a_server_that_is_lost_says_so_and_only_to_those_who_knew_its_tool(
    project: Project, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    # It can be started once.
    once = project.write("once.sh", 'mkdir begun || exit 1; exec "$@"\n')
    command = ["sh", str(once), *json.loads(stdio("--note-pid", str(note)))]
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {json.dumps(command)}}}}}
          auto_approve: ["*__echo"]
          deny: [s__big]
        """
    )
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        os.kill(pids(note)[0], signal.SIGKILL)
        hub.notification(CHANGED)
        known = hub.call("s__echo", {"text": "again"})
        others = [
            hub.ask("tools/call", {"name": name, "arguments": {}})["error"]["message"]
            for name in ("s__big", "s__nothing")
        ]

    assert known["isError"] is True
    assert text_of(known).startswith("[aish] s: the server is not connected: ")
    assert others == ["unknown tool: s__big", "unknown tool: s__nothing"]


def test_a_server_that_dies_between_calls_loses_its_tools_at_once_and_comes_back(
    project: Project, tmp_path: Path
) -> None:
    note, again = tmp_path / "pid", tmp_path / "again"
    serving(project, {"s": ["--note-pid", str(note), "--again", str(again)]})
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        before = names(hub)
        os.kill(pids(note)[0], signal.SIGKILL)
        hub.notification(CHANGED)
        lost = names(hub)
        again.touch()
        hub.notification(CHANGED)
        back = names(hub)
        said = text_of(hub.call("s__echo", {"text": "again"}))

    assert before == back
    assert lost == []
    assert said == "again"
    assert "mcp server `s` is missing: the server ended with signal 9" in hub.stderr
    assert "mcp server `s` is connected again" in hub.stderr
    assert json.dumps(hub.seen).count(CHANGED) == 2


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_root_that_is_another_folder_fails_until_a_reload_opens_it(
    project: Project, change: str
) -> None:
    root = project.folder / "work"
    project.write("work/a.txt", "old")
    project.pipeline(
        """
        mcp:
          servers: {box: {pack: [fs], root: work}}
          auto_approve: [box__file_read, box__dir_list, box__file_search]
        """
    )
    calls = (
        ("box__file_read", {"path": "a.txt"}),
        ("box__dir_list", {"path": "."}),
        ("box__file_search", {"query": "new"}),
    )
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        assert text_of(hub.call("box__file_read", {"path": "a.txt"})) == "old"
        root.rename(project.folder / "moved")
        if change == "replaced":
            project.write("work/a.txt", "new")
        failed = list(starmap(hub.call, calls))
        project.write("work/a.txt", "new")
        hub.signal(signal.SIGHUP)
        hub.stderr_with("the file is reloaded")
        again = text_of(hub.call("box__file_read", {"path": "a.txt"}))

    assert [one["isError"] for one in failed] == [True] * 3
    assert [text_of(one).partition(" since")[0] for one in failed] == [
        "ERROR: the root was removed or replaced"
    ] * 3
    assert again == "new"
