"""`aish serve` at its standard streams: raw JSON lines to the program, real servers behind it."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e_project import Project, stdio
from mcp_processes import is_alive, read_pid, until_gone
from served_hub import META, MODERN_META, ServedHub, flood, text_of

CANNED = Path(__file__).parents[2] / "support" / "mcp_canned_server.py"


def serving(project: Project, *flags: str, rest: str = "", mcp: str = "") -> None:
    """A file with one server, all of whose tools are approved."""
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio(*flags)}}}}}
          auto_approve: ["s__*", s__crash]
          {mcp}
        {rest}
        """
    )


def canned(project: Project, tools: list[Any], results: dict[str, Any]) -> None:
    """A file with a server that says exactly this."""
    script = {"tools": tools, "results": results, "calls": str(project.folder / "calls.jsonl")}
    project.write("script.json", json.dumps(script))
    command = json.dumps([sys.executable, str(CANNED), str(project.folder / "script.json")])
    project.pipeline(
        f'mcp: {{servers: {{c: {{command: {command}, protocol: legacy}}}}, auto_approve: ["c__*"]}}'
    )


@pytest.mark.requirement("H12")
@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2030-01-01", "2025-11-25"),
    ],
)
def test_each_revision_of_the_handshake_is_spoken(
    project: Project, asked: str, agreed: str
) -> None:
    project.write("note.md", "hello\n")
    with ServedHub(project, "--pack", "fs", "--root", ".") as hub:
        found = hub.begin(asked)

        assert found["protocolVersion"] == agreed
        assert found["capabilities"] == {"tools": {"listChanged": True}}
        assert found["serverInfo"]["name"] == "aish"
        assert hub.ask("ping")["result"] == {}
        read = hub.call("fs__file_read", {"path": "note.md"})
        assert read["structuredContent"]["content"] == "hello\n"
        assert "resultType" not in read
        message = {"jsonrpc": "2.0", "id": "a", "method": "ping"}
        hub.send([message, {**message, "id": "b"}])
        if agreed == "2025-03-26":
            both: Any = hub.until(lambda one: isinstance(one, list))
            assert {one["id"] for one in both} == {"a", "b"}
        else:
            assert hub.answer(None)["error"]["code"] == -32600
        hub.end_input()
        assert hub.finish() == 0


def test_requests_without_a_handshake_stand_for_themselves(project: Project) -> None:
    project.write("note.md", "hello\n")
    with ServedHub(project, "--pack", "fs", "--root", ".") as hub:
        early = hub.ask("tools/list")
        unknown = hub.request(
            "tools/list", {"_meta": {**MODERN_META, f"{META}protocolVersion": "1900-01-01"}}
        )
        wrong = hub.answer(unknown)
        bare = hub.ask("tools/list", {"_meta": {f"{META}protocolVersion": "2026-07-28"}})
        found = hub.ask("server/discover", modern=True)["result"]
        listed = hub.ask("tools/list", modern=True)["result"]
        read = hub.call("fs__file_read", {"path": "note.md"}, modern=True)
        denied = hub.call("fs__file_write", {"path": "a", "content": "b"}, modern=True)
        nothing = hub.ask("ping", modern=True)

    assert early["error"]["code"] == -32602
    assert (wrong["error"]["code"], wrong["error"]["data"]["requested"]) == (-32022, "1900-01-01")
    assert wrong["error"]["data"]["supported"][0] == "2026-07-28"
    assert bare["error"]["code"] == -32602
    assert found["supportedVersions"][0] == "2026-07-28"
    for one in (found, listed, read, denied):
        assert one["resultType"] == "complete"
        assert one["_meta"][f"{META}serverInfo"]["name"] == "aish"
    assert (listed["ttlMs"], listed["cacheScope"]) == (1000, "private")
    assert read["content"] == [{"type": "text", "text": "hello\n"}]
    assert denied["isError"] is True
    assert not (project.folder / "a").exists()
    assert nothing["error"]["code"] == -32601


@pytest.mark.parametrize("names", ["prefixed", "plain"])
def test_a_call_by_older_names_is_the_call_of_the_tool_in_a_hub_too(
    project: Project, names: str
) -> None:
    project.write("work/notes.txt", "old text\n")
    project.pipeline(
        f"""
        mcp:
          servers:
            box: {{pack: [fs, edit], root: work}}
            s: {{command: {stdio()}}}
          auto_approve:
            - box__file_read
            - {{tool: box__file_edit, when: {{path: "*.txt", old_text: old}}}}
        serve: {{names: {names}}}
        """
    )
    prefix = "box__" if names == "prefixed" else ""
    edit = {"path": "notes.txt", "old_string": "old"}
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        listed = {tool["name"] for tool in hub.tools()}
        read = hub.call(f"{prefix}read_file", {"path": "notes.txt"})
        edited = hub.call(f"{prefix}edit_file", {**edit, "new_string": "new"})
        by_own_name = hub.call(f"{prefix}file_edit", {**edit, "new_string": "b"})
        both = hub.call(
            f"{prefix}edit_file", {**edit, "old_text": "x", "new_text": "y"}, modern=True
        )
        denied = hub.call(f"{prefix}edit_file", {**edit, "old_string": "text", "new_string": "b"})
        of_another = hub.ask("tools/call", {"name": "s__read_file", "arguments": {}})
        hub.end_input()
        assert hub.finish() == 0

    assert f"{prefix}file_read" in listed
    assert f"{prefix}read_file" not in listed
    assert text_of(read) == "old text\n"
    assert text_of(edited).startswith("changed `notes.txt`")
    assert by_own_name["structuredContent"]["error"]["code"] == "no_match"
    assert both["structuredContent"]["error"]["code"] == "bad_arguments"
    assert text_of(both) == "ERROR: `old_string` is an older name of `old_text`, and both are given"
    assert "no rule approves box__file_edit" in text_of(denied)
    assert of_another["error"]["message"] == "unknown tool: s__read_file"
    (audit,) = (project.served_state() / "audit").iterdir()
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    decided = [(one["tool"], one["decision"]) for one in records if "decision" in one]
    assert decided == [
        ("box__file_read", "auto"),
        ("box__file_edit", "auto"),
        ("box__file_edit", "auto"),
        ("box__file_edit", "ask-no"),
    ]


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_absolute_paths_below_the_root_are_relative_for_the_rules_of_a_hub_too(
    project: Project, era: str
) -> None:
    project.write("work/docs/notes.txt", "text\n")
    project.write("work/secret.txt", "no\n")
    project.write("other.txt", "no\n")
    (project.folder / "link").symlink_to(project.folder / "work")
    root, is_modern = project.folder / "work", era == "stateless"
    project.pipeline(
        """
        mcp:
          servers: {box: {pack: [fs, edit], root: link}}
          auto_approve:
            - {tool: box__file_read, when: {path: '**/*.txt'}}
            - {tool: box__file_write, when: {path: 'docs/*'}}
            - box__file_find
          deny: [{tool: box__file_read, when: {path: secret.txt}}]
        """
    )
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()

        def call(name: str, **arguments: str) -> str:
            return text_of(hub.call(f"box__{name}", arguments, modern=is_modern))

        read = call("file_read", path=f"{root}/docs/notes.txt")
        by_link = call("file_read", path=f"{project.folder}/link/docs/notes.txt")
        older = call("read_file", path=f"{root}/docs/notes.txt")
        written = call("file_write", path=f"{root}/docs/new.txt", content="new")
        found = call("file_find", glob=f"{root}/**/*.txt", path="")
        outside = call("file_read", path=f"{project.folder}/other.txt")
        beside = call("file_write", path=f"{root}/new.txt", content="new")
        denied = call("file_read", path=f"{root}/secret.txt")
        hub.end_input()
        assert hub.finish() == 0

    assert {read, older, by_link} == {"text\n"}
    assert "docs/new.txt" in written
    assert (root / "docs" / "new.txt").read_text() == "new"
    assert found.splitlines()[-1] == "3 files"
    assert str(root) not in found
    for refused in (outside, beside, denied):
        assert refused.startswith("[aish] tool call denied"), refused
    assert not (root / "new.txt").exists()


def test_the_state_of_packs_without_a_file_is_that_of_their_root_and_not_in_it(
    project: Project,
) -> None:
    project.write("served/note.md", "hello\n")
    with ServedHub(project, "--pack", "fs", "--root", "served") as hub:
        hub.begin()
        listed = hub.call("fs__dir_list", {"path": "."})
        hub.end_input()
        assert hub.finish() == 0

    state = project.served_state("served")
    (audit,) = (state / "audit").iterdir()
    assert [json.loads(line)["tool"] for line in audit.read_text().splitlines() if "tool" in line]
    assert not (project.folder / ".aish").exists()
    assert [one.name for one in (project.folder / "served").iterdir()] == ["note.md"]
    assert (state / ".aish" / "key").stat().st_mode & 0o777 == 0o600
    assert "note.md" in text_of(listed)


@pytest.mark.requirement("H9")
def test_every_call_passes_the_rules_and_is_written_down_without_its_values(
    project: Project,
) -> None:
    project.write("note.md", "hello\n")
    with ServedHub(
        project,
        *("--pack", "fs", "--root", "."),
        *("--allow", "fs__dir_create", "--deny", "fs__file_delete"),
    ) as hub:
        hub.begin()
        names = [tool["name"] for tool in hub.tools()]
        hub.call("fs__file_read", {"path": "note.md"})
        made = hub.call("fs__dir_create", {"path": "planted-name"})
        denied = hub.call("fs__file_write", {"path": "x", "content": "planted-content"})
        unknown = hub.ask("tools/call", {"name": "fs__file_delete", "arguments": {}})
        hub.end_input()
        assert hub.finish() == 0
        records = hub.audit

    assert "fs__file_write" in names
    assert "fs__file_delete" not in names
    assert made["isError"] is False
    assert (project.folder / "planted-name").is_dir()
    assert text_of(denied) == "[aish] tool call denied: no rule approves fs__file_write"
    assert unknown["error"]["code"] == -32602
    assert [
        (one["event"], one.get("tool"), one.get("decision") or one.get("kind"), one["level"])
        for one in records
    ] == [
        ("session.opened", None, None, "security"),
        ("decided", "fs__file_read", "auto", "info"),
        ("finished", "fs__file_read", "ok", "info"),
        ("decided", "fs__dir_create", "auto", "security"),
        ("finished", "fs__dir_create", "ok", "security"),
        ("decided", "fs__file_write", "ask-no", "security"),
        ("finished", "fs__file_write", "denied", "security"),
        ("session.closed", None, None, "security"),
    ]
    assert [one["seq"] for one in records] == list(range(1, 9))
    assert records[5]["arguments"]["types"] == {"path": "string", "content": "string"}
    assert records[0]["peer"]["transport"] == "stdio"
    assert "planted" not in json.dumps(records)
    log = next((project.served_state() / "audit").iterdir())
    assert log.stat().st_mode & 0o777 == 0o600


def test_what_a_server_says_reaches_the_client_as_it_is(project: Project) -> None:
    tool = {
        "name": "odd",
        "title": "An odd tool",
        "description": "Says odd things",
        "inputSchema": {"type": "object", "x-own": [1], "properties": {"a": {"type": "number"}}},
        "annotations": {"readOnlyHint": True, "ownHint": "kept"},
        "icons": [{"src": "https://example.org/i.png"}],
        "_meta": {"com.example/own": {"n": 1.5}, f"{META}own": 1, "aish/parallel": True},
        "unknownKey": None,
    }
    result = {
        "content": [
            {"type": "hologram", "beam": "\u2028\ud800", "deep": {"n": [1, 2.5, None, True]}},
            {"type": "text", "text": "x" * 100_000, "annotations": {"audience": ["user"]}},
        ],
        "structuredContent": {"z": 1, "a": 2},
        "isError": False,
        "extra": {"kept": True},
        "_meta": {"com.example/own": 1, f"{META}serverInfo": {"name": "hidden", "version": "0"}},
    }
    canned(project, [tool], {"odd": {"result": result}})
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        (listed,) = hub.tools()
        (again,) = hub.tools(modern=True)
        rows = [json.dumps(row) for row in (listed, again)]
        found = hub.call("c__odd", {"a": 1e300, "b": "\ud83d\ude00"})
        modern = hub.call("c__odd", {}, modern=True)

    assert listed == {**tool, "name": "c__odd", "_meta": {"com.example/own": {"n": 1.5}}}
    assert list(listed) == list(tool)
    assert rows[0] == rows[1]
    assert found == {**result, "_meta": {"com.example/own": 1}}
    assert modern["content"] == result["content"]
    assert modern["extra"] == {"kept": True}
    assert modern["_meta"]["com.example/own"] == 1
    assert modern["_meta"][f"{META}serverInfo"]["name"] == "p"
    sent = [json.loads(line) for line in (project.folder / "calls.jsonl").read_text().splitlines()]
    assert sent[0]["arguments"] == {"a": 1e300, "b": "\U0001f600"}


@pytest.mark.requirement("H3")
def test_a_failure_is_never_an_empty_success(project: Project) -> None:
    listed = [{"name": name, "inputSchema": {"type": "object"}} for name in ("none", "null", "rpc")]
    error = {"code": -32000, "message": "refused on purpose"}
    results = {"none": {"result": {}}, "null": {"result": None}, "rpc": {"error": error}}
    canned(project, listed, results)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        found = {name: hub.call(f"c__{name}") for name in results}
    serving(project)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        failed = hub.call("s__fail")
        crashed = hub.call("s__crash")

    assert [one["isError"] for one in found.values()] == [True] * 3
    assert text_of(found["none"]) == "[aish] c: the server sent no result"
    assert text_of(found["rpc"]) == "[aish] c: tool dispatch failed: refused on purpose"
    assert crashed["isError"] is True
    assert "[aish] s: tool transport error: the server ended with exit code 3" in text_of(crashed)
    assert failed == {
        "content": [{"type": "text", "text": "the handler failed on purpose"}],
        "isError": True,
    }


@pytest.mark.requirement("H2")
def test_names_may_be_plain_and_then_a_clash_ends_the_start(project: Project) -> None:
    serving(project, rest="serve: {names: plain, tools: [s__e*, s__add], name: hub}")
    with ServedHub(project, "p.yaml") as hub:
        info = hub.begin()
        names = [tool["name"] for tool in hub.tools()]
        said = hub.call("echo", {"text": "plain"})
    project.pipeline(f"mcp: {{servers: {{a: {{command: {stdio()}}}, b: {{command: {stdio()}}}}}}}")
    with ServedHub(project, "p.yaml", "--plain") as clash:
        assert clash.finish() == 2
    project.pipeline(f"mcp: {{servers: {{pipeline: {{command: {stdio()}}}}}}}")
    with ServedHub(project, "p.yaml") as reserved:
        assert reserved.finish() == 2

    assert info["serverInfo"]["name"] == "hub"
    assert names == ["echo", "add"]
    assert text_of(said) == "plain"
    assert "`a__echo` and `b__echo` would both be called `echo`" in clash.stderr
    assert "mcp server `pipeline`: this alias cannot be served" in reserved.stderr


def test_a_required_server_that_fails_ends_the_start_and_another_does_not(
    project: Project,
) -> None:
    serving(project, "--die-at-start")
    with ServedHub(project, "p.yaml") as hub:
        assert hub.finish() == 5
    project.pipeline(
        f"""
        mcp:
          servers:
            s: {{command: {stdio()}}}
            gone: {{command: {stdio("--die-at-start")}, required: false}}
        """
    )
    with ServedHub(project, "p.yaml") as optional:
        optional.begin()
        names = [tool["name"] for tool in optional.tools()]

    assert "error: mcp server `s`: the server ended with exit code 1" in hub.stderr
    assert names[0] == "s__echo"
    assert {name.partition("__")[0] for name in names} == {"s"}
    assert "mcp server `gone` is missing" in optional.stderr


@pytest.mark.requirement("H5")
def test_changes_and_losses_of_servers_are_told_to_the_client(project: Project) -> None:
    again = project.folder / "again"
    starts = ("--note-pid", str(project.folder / "pid"), "--again", str(again))
    serving(project, "--change-tools", *starts)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        before = [tool["name"] for tool in hub.tools()]
        subscription = hub.request(
            "subscriptions/listen", {"notifications": {"toolsListChanged": True}}, modern=True
        )
        acknowledged = hub.notification("notifications/subscriptions/acknowledged")
        hub.call("s__echo", {"text": "change"})
        told = [hub.notification("notifications/tools/list_changed") for _ in range(2)]
        after = [tool["name"] for tool in hub.tools()]
        hub.call("s__crash")
        hub.notification("notifications/tools/list_changed")
        hub.notification("notifications/tools/list_changed")
        lost = hub.tools()
        again.touch()
        hub.notification("notifications/tools/list_changed")
        back = [tool["name"] for tool in hub.tools()]
        hub.send(
            {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": subscription},
            }
        )
        hub.call("s__fail")

    assert acknowledged["params"]["notifications"] == {"toolsListChanged": True}
    ids = [one.get("params", {}).get("_meta", {}).get(f"{META}subscriptionId") for one in told]
    assert sorted(ids, key=str) == [subscription, None]
    assert after == [*before, "s__added"]
    assert lost == []
    assert back == before
    assert all(one.get("id") != subscription or "method" in one for one in hub.seen)
    assert "mcp server `s` is connected again" in hub.stderr


def test_a_cancelled_call_is_cancelled_at_its_server_and_gets_no_answer(project: Project) -> None:
    note = project.folder / "cancelled"
    serving(project, "--note-cancelled", str(note))
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        slow = {"name": "s__sleep", "arguments": {"ms": 60_000}}
        call = {"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": slow}
        cancel = {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": "slow"},
        }
        hub.send(call, call)
        twice = hub.answer("slow")
        hub.send({**call, "id": "other"})
        assert text_of(hub.call("s__echo", {"text": "beside"})) == "beside"
        hub.send(cancel)
        assert text_of(hub.call("s__echo", {"text": "after"})) == "after"
        # The other one is cancelled where the server ends: it need not come to write that down.
        told = note.read_text().splitlines()
        hub.end_input()
        assert hub.finish() == 0
        kinds = [one["kind"] for one in hub.audit if one["event"] == "finished"]

    assert twice["error"]["code"] == -32600
    assert sum(one.get("id") == "slow" for one in hub.seen) == 1
    assert all(one.get("id") != "other" for one in hub.seen)
    assert sorted(kinds) == ["cancelled", "cancelled", "ok", "ok"]
    assert len(told) == 1


@pytest.mark.requirement("H15")
def test_progress_reaches_the_call_it_belongs_to_and_rises(project: Project) -> None:
    serving(project, "--asks")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        params = {"name": "s__count", "arguments": {"steps": 5}, "_meta": {"progressToken": "mine"}}
        hub.answer(hub.request("tools/call", params))
        told = [one["params"] for one in hub.seen if one.get("method") == "notifications/progress"]
        before = len(hub.seen)
        hub.call("s__count", {"steps": 5})

    assert {one["progressToken"] for one in told} == {"mine"}
    numbers = [one["progress"] for one in told]
    assert numbers == sorted(set(numbers))
    assert told[-1] == {
        "progressToken": "mine",
        "progress": 5,
        "total": 5,
        "message": "step 5",
    }
    assert len(hub.seen) == before + 1


def test_more_calls_than_there_are_places_wait_and_then_are_refused(project: Project) -> None:
    serving(project, rest="serve: {limits: {session_calls: 1, waiting: 1}}")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        end = project.folder / "end"
        slow = {"name": "s__sleep", "arguments": {"ms": 0, "until": str(end)}}
        first, second, third = (hub.request("tools/call", slow) for _ in range(3))
        refused = hub.answer(third)
        end.touch()
        hub.answer(first)
        hub.answer(second)

    assert refused["result"]["isError"] is True
    said = text_of(refused["result"])
    assert said == "[aish] s: busy: 1 calls wait already, call again later"


@pytest.mark.parametrize("ended", [b"\n", b""])
def test_a_message_that_is_too_long_is_refused_and_ends_it(project: Project, ended: bytes) -> None:
    serving(project, rest="serve: {limits: {message: 4KiB}}")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        long = hub.call("s__big", {"n": 5000})
        assert text_of(hub.call("s__big", {"n": 3000})) == "x" * 3000
        hub.send({"jsonrpc": "2.0", "id": 9, "method": "ping", "params": {"a": "b" * 3000}})
        assert hub.answer(9)["result"] == {}
        hub.write(b"x" * 4097 + ended)
        refused = hub.answer(None)
        assert hub.finish() == 1

    assert long["isError"] is True
    assert "the result has 5," in text_of(long)
    assert refused["error"] == {"code": -32600, "message": "a message has more than 4,096 bytes"}


def test_what_is_no_message_is_refused_with_its_code(project: Project) -> None:
    cases = [
        (b"{", None, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', None, -32700),
        (b'"text"', None, -32600),
        (b'{"id":7,"method":"ping"}', 7, -32600),
        (b'{"jsonrpc":"2.0","id":8,"method":5}', 8, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":9,"method":"ping","params":[]}', 9, -32600),
        (b'{"jsonrpc":"2.0","id":10,"method":"resources/list"}', 10, -32601),
        (b'{"jsonrpc":"2.0","id":11,"method":"tools/call","params":{}}', 11, -32602),
        (b'{"jsonrpc":"2.0","id":12,"method":"tools/list","params":{"cursor":"x"}}', 12, -32602),
        (b"[]", None, -32600),
        (b"[" * 200_000, None, -32700),
    ]
    with ServedHub(project, "--pack", "fs", "--root", ".") as hub:
        hub.begin()
        for line, id, code in cases:
            hub.write(b"\n" + line + b"\r\n")
            found = hub.answer(id)
            assert found["error"]["code"] == code, line[:80]
        hub.send({"jsonrpc": "2.0", "id": 13, "method": "ping", "params": None})
        assert hub.answer(13)["result"] == {}
        nothing = hub.ask("tools/call", {"name": "fs__dir_list", "arguments": None})
        assert nothing["result"]["isError"] is False


def test_nothing_but_messages_reaches_stdout_whatever_a_server_prints(project: Project) -> None:
    serving(project, "--noise", "--stderr", "3")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        assert text_of(hub.call("s__echo", {"text": "hello"})) == "hello"
        hub.end_input()
        assert hub.finish() == 0

    assert all(one["jsonrpc"] == "2.0" for one in hub.seen)
    assert "ignores what is not JSON-RPC on its stdout" in hub.stderr


def test_a_signal_lets_calls_end_and_a_subscription_gets_its_result(project: Project) -> None:
    serving(project)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        listening = hub.request("subscriptions/listen", {"notifications": {}}, modern=True)
        hub.notification("notifications/subscriptions/acknowledged")
        end = project.folder / "end"
        slow = {"name": "s__sleep", "arguments": {"ms": 0, "until": str(end)}}
        running = hub.request("tools/call", slow)
        hub.ask("ping")
        hub.signal(signal.SIGTERM)
        ended = hub.answer(listening)
        late = hub.ask("ping")
        end.touch()
        done = hub.answer(running)
        code = hub.finish()

    assert ended["result"]["_meta"][f"{META}subscriptionId"] == listening
    assert late["error"]["message"] == "the server is shutting down"
    assert text_of(done["result"]) == "slept 0 ms"
    assert code == 0


def test_a_call_that_does_not_end_in_time_is_cut_off(project: Project) -> None:
    serving(project, rest="serve: {limits: {drain: 100ms}}")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        hub.request("tools/call", {"name": "s__sleep", "arguments": {"ms": 60_000}})
        hub.ask("ping")
        hub.signal(signal.SIGTERM)
        code = hub.finish()

    assert code == 143


def test_a_client_that_does_not_read_is_disconnected(project: Project) -> None:
    serving(project, rest="serve: {limits: {queued: 4}}")
    with ServedHub(project, "p.yaml", read=False) as hub:
        hub.send(*flood(16, 100_000))
        code = hub.process.wait(60)

    assert code == 1
    assert "warning: the client does not read: it is disconnected" in hub.stderr


def test_a_killed_server_leaves_no_process(project: Project) -> None:
    note = project.folder / "pid"
    serving(project, "--grandchild-note", str(note))
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        grandchild = read_pid(note)
        hub.signal(signal.SIGKILL)
        anyio.run(until_gone, grandchild)

    assert not is_alive(grandchild)


@pytest.mark.requirement("H21")
def test_without_its_record_no_call_is_made(project: Project) -> None:
    serving(project, rest="serve: {audit: {rotate: 400B, keep: 2, path: log}}")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        for number in range(4):
            assert text_of(hub.call("s__echo", {"text": str(number)})) == str(number)
        logs = sorted(path.name for path in (project.folder / "log").iterdir())
        (project.folder / "log").rename(project.folder / "moved")
        refused = hub.call("s__echo", {"text": "unseen"})

    assert len(logs) == 3
    assert refused["isError"] is True
    assert "the call was not made: the audit log cannot be written" in text_of(refused)


def test_there_has_to_be_something_to_serve(project: Project) -> None:
    project.pipeline("mcp: {}")
    for arguments, said in (
        ((), "there is no `aish.yaml` here, and no file or pack is named"),
        (("p.yaml", "--pack", "fs"), "`--pack` and `--root` go without a file"),
        (("--pack", "fz"), "there is no tool pack `fz`"),
        (
            ("--pack", "web", "--pack", "fs"),
            "the pack `fs` needs `--root`, the folder for its tools",
        ),
        (("--pack", "fs", "--set", "a=b"), "`--set` goes with a file"),
    ):
        with ServedHub(project, *arguments) as hub:
            assert hub.finish() == 2
        assert said in hub.stderr
    project.pipeline("serve: {tools: [echo]}")
    with ServedHub(project, "p.yaml") as hub:
        assert hub.finish() == 2
    assert "`echo` matches no tool" in hub.stderr


@pytest.mark.slow(reason="starts hubs behind hubs")
def test_a_hub_behind_a_hub_keeps_names_and_rules(project: Project) -> None:
    serving(project, mcp="deny: [s__fail]")
    inner = json.dumps([sys.executable, "-m", "aish", "serve", str(project.folder / "p.yaml")])
    project.pipeline(
        f"mcp: {{servers: {{hub: {{command: {inner}}}}}, auto_approve: [hub__s__echo]}}",
        name="outer.yaml",
    )

    listed = project.aish("tools", "outer.yaml", "--json")
    called = project.aish("call", "outer.yaml", "hub__s__echo", "text=through")
    denied = project.aish("call", "outer.yaml", "hub__s__add", "a=1", "b=2")

    names = [row["tool"] for row in json.loads(listed.stdout)]
    assert names[0] == "hub__s__echo"
    assert "hub__s__fail" not in names
    assert (called.code, called.stdout) == (0, "through\n"), called.stderr
    assert denied.code == 3


@pytest.mark.requirement("H13")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdks_client_is_served_in_both_eras(project: Project, mode: str) -> None:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    serving(project, "--asks")
    numbers: list[float] = []

    async def count(progress: float, total: float | None, message: str | None) -> None:  # ruff: ignore[unused-async] - as the SDK has it
        numbers.append(progress)

    async def use() -> tuple[str, list[str], str, bool]:
        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "aish", "serve", "p.yaml"], cwd=project.folder
        )
        async with Client(stdio_client(parameters), mode=mode) as client:
            listed = await client.list_tools()
            said = await client.call_tool("s__echo", {"text": "from the SDK"})
            await client.call_tool("s__count", {"steps": 3}, progress_callback=count)
            failed = await client.call_tool("s__fail", {})
            return (
                client.protocol_version,
                [tool.name for tool in listed.tools],
                text_of(said.model_dump()),
                failed.is_error,
            )

    version, names, text, is_error = anyio.run(use)

    assert version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
    assert names[0] == "s__echo"
    assert (text, is_error) == ("from the SDK", True)
    assert numbers
    assert numbers[-1] == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"content": [], "structuredContent": {"total": 4711}}, '{"total":4711}'),
        ({"structuredContent": {"total": "größe \u2028"}}, '{"total":"größe \\u2028"}'),
        ({"content": None, "structuredContent": {}, "isError": True, "x": 1}, "{}"),
        ({"structuredContent": [0]}, "[0]"),
        ({"structuredContent": False}, "false"),
    ],
)
def test_data_without_content_gets_a_text_block(project: Project, told: Any, text: str) -> None:
    canned(project, [{"name": "t", "inputSchema": {"type": "object"}}], {"t": {"result": told}})
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        found = hub.call("c__t")
        modern = hub.call("c__t", modern=True)

    assert found == {**told, "content": [{"type": "text", "text": text}]}
    assert modern["content"] == found["content"]


def test_data_that_does_not_fit_the_output_schema_is_told_or_an_error(project: Project) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
    result = {"content": [], "structuredContent": {"n": "two"}}
    canned(project, [tool], {"t": {"result": result}})
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        lenient = hub.call("c__t")
        hub.stderr_with("c__t: the result does not fit its output schema: ")
    text = (project.folder / "p.yaml").read_text()
    project.write("p.yaml", text.replace("legacy", "legacy, strict_output: true"))
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        strict = hub.call("c__t")

    assert lenient["structuredContent"] == {"n": "two"}
    assert "isError" not in lenient
    assert strict["isError"] is True
    assert "does not fit its output schema" in text_of(strict)


def test_names_leave_room_for_the_prefix_of_a_client(project: Project) -> None:
    alias, name = "a" * 40, "e" * 14
    tools = [{"name": one, "inputSchema": {"type": "object"}} for one in (name, f"{name}x")]
    canned(project, tools, {f"{name}x": {"result": {"content": []}}})
    text = (project.folder / "p.yaml").read_text().replace("{c: ", f"{{{alias}: ")
    project.write("p.yaml", text.replace("c__*", "*__*") + "\nserve: {name: hub}\n")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        names = [one["name"] for one in hub.tools()]
        found = hub.call(names[1])
    locked = project.aish("lock", "p.yaml")
    checked = project.aish("validate", "p.yaml")

    assert names[0] == f"{alias}__{name}"
    assert [len(one) for one in names] == [56, 56]
    assert names[1].startswith(f"{alias}__eeeee_")
    assert found == {"content": []}
    assert locked.code == 0, locked.stderr
    assert f"clients get shorter names for `{alias}__{name}x`: " in checked.stderr
    assert checked.code == 0


def test_a_call_has_more_time_than_clients_have_unless_the_file_says_so(project: Project) -> None:
    project.times_out(300, "late")
    command = stdio()
    project.pipeline(
        f"""
        mcp:
          servers:
            s: {{command: {command}}}
            own: {{command: {command}, timeout: {{call: 100ms}}}}
          auto_approve: ["s__*", "own__*"]
        """
    )
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        arguments = {"arguments": {"ms": 600_000}}
        own = hub.ask("tools/call", {"name": "own__sleep", **arguments})["result"]
        long = hub.request("tools/call", {"name": "s__sleep", **arguments})
        hub.ask("ping")
        project.write("late", "")
        late = hub.answer(long)["result"]

    assert "no answer within 0.1 s" in text_of(own)
    assert "no answer within 300 s" in text_of(late)
