"""Resources, prompts, completion and log messages of servers, through `aish serve`."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e_project import Project, stdio
from served_hub import META, ServedHub, text_of

CANNED = Path(__file__).parents[2] / "support" / "mcp_canned_server.py"
ALL = 'serve: {resources: ["*__*"], prompts: ["*__*"]}'
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
CLIENTS = pytest.mark.parametrize("client", ["legacy", "modern"])


def serving(project: Project, *flags: str, rest: str = ALL, **others: str) -> None:
    """A file with servers that have resources and prompts."""
    servers = {"s": stdio(*flags), **others}
    listed = ", ".join(f"{alias}: {{command: {command}}}" for alias, command in servers.items())
    project.pipeline(f"mcp: {{servers: {{{listed}}}, auto_approve: ['*__*', s__crash]}}\n{rest}")


def canned(project: Project, results: dict[str, Any], **lists: Any) -> str:
    """The command of a server that says exactly this."""
    script = {"tools": [], "results": {}, "answers": {**lists, **results}}
    script["calls"] = str(project.folder / "calls.jsonl")
    project.write("script.json", json.dumps(script))
    return json.dumps([sys.executable, str(CANNED), str(project.folder / "script.json")])


def started(project: Project, *, modern: bool) -> ServedHub:
    hub = ServedHub(project, "p.yaml")
    if not modern:
        hub.begin()
    return hub


def told(hub: ServedHub, text: str, word: str, count: int) -> list[Any]:
    """The notifications with a word in their method that a call with this text leads to."""
    start = len(hub.seen)
    (name,) = [one["name"] for one in hub.tools() if one["name"].endswith("echo")]
    hub.call(name, {"text": text})
    while True:
        found = [one for one in hub.seen[start:] if word in one.get("method", "")]
        if len(found) == count:
            return found
        hub.until(lambda one: word in one.get("method", ""))


@ERAS
@CLIENTS
def test_resources_and_prompts_are_passed_on_as_their_server_has_them(
    project: Project, era: str, client: str
) -> None:
    modern = client == "modern"
    serving(project, "--live", "--era", era)
    with started(project, modern=modern) as hub:
        said = hub.ask("server/discover", modern=True)["result"]["capabilities"]
        listed = hub.ask("resources/list", modern=modern)["result"]
        templates = hub.ask("resources/templates/list", modern=modern)["result"]
        read = hub.ask("resources/read", {"uri": "docs://guide"}, modern=modern)["result"]
        page = hub.ask("resources/read", {"uri": "docs://page/7"}, modern=modern)["result"]
        prompts = hub.ask("prompts/list", modern=modern)["result"]
        asked = {"name": "s__review", "arguments": {"code": "x = 1"}}
        got = hub.ask("prompts/get", asked, modern=modern)["result"]
        ref = {"type": "ref/prompt", "name": "s__review"}
        argument = {"name": "tone", "value": "ki"}
        of_prompt = hub.ask(
            "completion/complete", {"ref": ref, "argument": argument}, modern=modern
        )
        ref = {"type": "ref/resource", "uri": "docs://page/{number}"}
        of_template = hub.ask(
            "completion/complete", {"ref": ref, "argument": argument}, modern=modern
        )

    assert said == {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "completions": {},
        "logging": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    }
    assert [one["uri"] for one in listed["resources"]] == [
        "docs://guide",
        "docs://logo",
        "docs://archive",
    ]
    assert listed["resources"][0] == {
        "uri": "docs://guide",
        "name": "guide.md",
        "title": "The guide",
        "description": "How to use it",
        "mimeType": "text/markdown",
    }
    assert "nextCursor" not in listed
    assert templates["resourceTemplates"] == [
        {"uriTemplate": "docs://page/{number}", "name": "A page"}
    ]
    assert read["contents"][0]["text"] == "# Guide\nSnow \u2028 é"
    assert page["contents"] == [{"uri": "docs://page/7", "text": "page 7"}]
    assert [one["name"] for one in prompts["prompts"]] == ["s__review", "s__plain"]
    assert prompts["prompts"][0]["arguments"][0]["required"] is True
    assert got["messages"][0]["content"]["text"] == "Review x = 1, kindly"
    assert got["messages"][2]["content"][1]["type"] == "resource_link"
    assert of_prompt["result"]["completion"]["values"] == ["review ki"]
    assert of_template["result"]["completion"]["values"] == ["docs://page/{number} ki"]
    for result in (listed, templates, read, prompts, got):
        assert ("resultType" in result) == modern
        assert (f"{META}serverInfo" in result.get("_meta", {})) == modern
    if modern:
        assert [one["cacheScope"] for one in (listed, templates, prompts, read)] == ["private"] * 4
        assert (listed["ttlMs"], read["ttlMs"]) == (1000, 0)


def test_only_what_the_globs_name_is_there(project: Project) -> None:
    rest = 'serve: {resources: ["s__docs://l*", "s__docs://page/1*"], prompts: [s__plain]}'
    serving(project, "--offers", rest=rest)
    with started(project, modern=False) as hub:
        listed = hub.ask("resources/list")["result"]["resources"]
        templates = hub.ask("resources/templates/list")["result"]["resourceTemplates"]
        prompts = hub.ask("prompts/list")["result"]["prompts"]
        one = hub.ask("resources/read", {"uri": "docs://page/12"})
        refused = [
            hub.ask("resources/read", {"uri": "docs://guide"}),
            hub.ask("resources/read", {"uri": "docs://page/2"}),
            hub.ask("resources/subscribe", {"uri": "docs://guide"}),
        ]
        unknown = hub.ask("prompts/get", {"name": "s__review", "arguments": {"code": "1"}})
        reads = [
            (one["method"], one["server"], one["name"], one["decision"], one["level"])
            for one in hub.audit
            if one["event"] == "read"
        ]

    assert [one["uri"] for one in listed] == ["docs://logo"]
    assert templates == []
    assert [one["name"] for one in prompts] == ["s__plain"]
    assert one["result"]["contents"][0]["text"] == "page 12"
    for answer, uri in zip(refused, ["docs://guide", "docs://page/2", "docs://guide"], strict=True):
        said = {"code": -32002, "message": "resource not found", "data": {"uri": uri}}
        assert answer["error"] == said
    assert unknown["error"] == {"code": -32602, "message": "unknown prompt: s__review"}
    assert reads == [
        ("resources/read", "s", "docs://page/12", "auto", "info"),
        ("resources/read", None, "docs://guide", "deny", "security"),
        ("resources/read", None, "docs://page/2", "deny", "security"),
        ("resources/subscribe", None, "docs://guide", "deny", "security"),
        ("prompts/get", None, "s__review", "deny", "security"),
    ]


def test_without_globs_there_are_no_resources_and_no_prompts(project: Project) -> None:
    serving(project, "--offers", rest="")
    with started(project, modern=False) as hub:
        methods = ["resources/list", "resources/read", "prompts/list", "completion/complete"]
        codes = [hub.ask(one, {"uri": "docs://guide"})["error"]["code"] for one in methods]
        later = hub.ask("resources/subscribe", {"uri": "docs://guide"}, modern=True)

    assert codes == [-32601] * 4
    assert later["error"]["code"] == -32601


def test_a_uri_is_unknown_unless_a_list_a_template_or_a_last_result_has_it(
    project: Project,
) -> None:
    link = {"type": "resource_link", "uri": "file:///srv/report.txt", "name": "report"}
    results = {
        "tools/call": {"content": [link]},
        "resources/read": {"contents": [{"uri": "file:///x", "text": "read"}]},
    }
    lists = {
        "tools/list": {"tools": [{"name": "make", "inputSchema": {"type": "object"}}]},
        "resources/list": {"resources": []},
        "resources/templates/list": {
            "resourceTemplates": [
                {"uriTemplate": "file:///{name}", "name": "files"},
                {"uriTemplate": "file:///docs/{+path}", "name": "docs"},
            ]
        },
    }
    serving(project, c=canned(project, results, **lists))
    attacks = [
        "file:///etc/passwd",
        "file:///..%2fetc%2fpasswd",
        "file:///docs/../etc/passwd",
        "file:///docs/%2e%2e/etc/passwd",
        "file:///docs/%252e%252e/etc/passwd",
        "file:///docs/..\\etc\\passwd",
        "file:///docs/" + "a" * 9000,
        "FILE:///docs/a",
        "",
    ]
    with started(project, modern=False) as hub:
        before = hub.ask("resources/read", {"uri": "file:///srv/report.txt"})
        hub.call("c__make")
        after = hub.ask("resources/read", {"uri": "file:///srv/report.txt"})
        fitting = [
            hub.ask("resources/read", {"uri": uri})["result"]
            for uri in ("file:///a.txt", "file:///docs/a/b.txt")
        ]
        refused = [hub.ask("resources/read", {"uri": uri})["error"]["code"] for uri in attacks]
        completed = hub.ask(
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "file:///etc/passwd"}, "argument": {}},
        )
        modern = hub.ask("resources/read", {"uri": "file:///etc/passwd"}, modern=True)
    sent = (project.folder / "calls.jsonl").read_text()

    assert before["error"]["code"] == -32002
    assert after["result"]["contents"][0]["text"] == "read"
    assert all(one["contents"] for one in fitting)
    assert refused == [-32002] * len(attacks)
    assert completed["error"]["code"] == -32002
    assert modern["error"]["code"] == -32602
    assert modern["error"]["data"] == {"uri": "file:///etc/passwd"}
    assert "passwd" not in sent


def test_the_first_server_has_a_resource_that_two_list(project: Project) -> None:
    serving(project, "--offers", t=stdio("--offers"))
    with started(project, modern=False) as hub:
        listed = hub.ask("resources/list")["result"]["resources"]
        prompts = hub.ask("prompts/list")["result"]["prompts"]
        hub.ask("resources/list")

    assert [one["uri"] for one in listed] == ["docs://guide", "docs://logo", "docs://archive"]
    names = ["s__review", "s__plain", "t__review", "t__plain"]
    assert [one["name"] for one in prompts] == names
    said = "resource `docs://guide` of `t` is left out: `s` has it"
    assert hub.stderr.count(said) == 1


@ERAS
def test_changes_and_updates_reach_those_who_want_them(project: Project, era: str) -> None:
    notes = project.folder / "notes.jsonl"
    serving(project, "--live", "--era", era, "--notes", str(notes))
    with started(project, modern=False) as hub:
        hub.ask("resources/list")
        wanted = {
            "resourcesListChanged": True,
            "promptsListChanged": True,
            "resourceSubscriptions": ["docs://guide", "docs://nothing"],
        }
        listening = hub.request("subscriptions/listen", {"notifications": wanted}, modern=True)
        acknowledged = hub.notification("notifications/subscriptions/acknowledged")
        assert hub.ask("resources/subscribe", {"uri": "docs://guide"})["result"] == {}
        updates = told(hub, "update docs://guide, update docs://logo", "updated", 2)
        assert hub.ask("resources/unsubscribe", {"uri": "docs://guide"})["result"] == {}
        (last,) = told(hub, "update docs://guide", "updated", 1)
        changed = told(hub, "offer docs://new", "list_changed", 4)
        listed = hub.ask("resources/list")["result"]["resources"]
        prompts = hub.ask("prompts/list")["result"]["prompts"]
        cancel = {"requestId": listening}
        hub.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel})
        before = len(hub.seen)
        hub.call("s__echo", {"text": "update docs://guide"})
        hub.ask("ping")
        quiet = [one for one in hub.seen[before:] if "method" in one]

    assert acknowledged["params"]["notifications"] == {
        "resourcesListChanged": True,
        "promptsListChanged": True,
        "resourceSubscriptions": ["docs://guide"],
    }
    of_stream = {f"{META}subscriptionId": listening}
    assert {one["params"]["uri"] for one in updates} == {"docs://guide"}
    assert sorted(str(one["params"].get("_meta")) for one in updates) == ["None", str(of_stream)]
    assert last["params"] == {"uri": "docs://guide", "_meta": of_stream}
    found = [(one["method"].split("/")[1], "params" in one) for one in changed]
    assert sorted(found) == [
        ("prompts", False),
        ("prompts", True),
        ("resources", False),
        ("resources", True),
    ]
    assert "docs://new" in [one["uri"] for one in listed]
    assert prompts[-1]["name"] == "s__new"
    assert quiet == []
    sent = [json.loads(line) for line in notes.read_text().splitlines()]
    subscribed = [params for method, params in sent if method == "resources/subscribe"]
    assert len(subscribed) == (1 if era == "legacy" else 0)


@ERAS
def test_log_messages_come_from_the_level_on_that_was_set(project: Project, era: str) -> None:
    serving(project, "--live", "--era", era, "--notes", str(project.folder / "notes.jsonl"))

    def logged(hub: ServedHub, **params: Any) -> list[str]:
        start = len(hub.seen)
        arguments = {"text": "log debug, log info, log error, log loud"}
        modern = "_meta" in params
        params = {"name": "s__echo", "arguments": arguments, **params}
        hub.ask("tools/call", params, modern=modern)
        found = [one for one in hub.seen[start:] if one.get("method") == "notifications/message"]
        assert all(one["params"]["logger"] == "test" for one in found)
        return [one["params"]["level"] for one in found]

    with started(project, modern=False) as hub:
        usual = logged(hub)
        wrong = hub.ask("logging/setLevel", {"level": "loud"})
        assert hub.ask("logging/setLevel", {"level": "error"})["result"] == {}
        few = logged(hub)
        hub.ask("logging/setLevel", {"level": "debug"})
        everything = logged(hub)
        stateless = logged(hub, _meta={f"{META}logLevel": "info"})
        silent = logged(hub, _meta={})
        unknown = hub.ask(
            "tools/call",
            {"name": "s__echo", "arguments": {}, "_meta": {f"{META}logLevel": "loud"}},
            modern=True,
        )
    notes = (project.folder / "notes.jsonl").read_text().splitlines()
    sent = [json.loads(line) for line in notes]

    assert (usual, few) == (["info", "error"], ["error"])
    assert everything == ["debug", "info", "error"]
    assert (stateless, silent) == (["info", "error"], [])
    assert (wrong["error"]["code"], unknown["error"]["code"]) == (-32602, -32602)
    levels = [params["level"] for method, params in sent if method == "logging/setLevel"]
    if era == "legacy":
        assert levels == ["error", "debug"]
    else:
        asked = [params["_meta"].get(f"{META}logLevel") for one, params in sent if "call" in one]
        assert asked == ["info", "error", "debug", "info", None]


@ERAS
def test_the_trace_of_a_client_goes_on_to_the_server_and_nothing_else_of_its_meta(
    project: Project, era: str
) -> None:
    serving(project, "--live", "--era", era, "--notes", str(project.folder / "notes.jsonl"))
    trace = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=1",
        "baggage": "user=me",
    }
    with started(project, modern=False) as hub:
        for modern in (False, True):
            meta = {**trace, "example.com/own": 1, "progressToken": "mine"}
            call = {"name": "s__echo", "arguments": {"text": "hi"}, "_meta": meta}
            hub.ask("tools/call", call, modern=modern)
        odd = {"traceparent": 5, "tracestate": "x" * 8193, "example.com/own": 1}
        hub.ask("tools/call", {"name": "s__echo", "arguments": {"text": "hi"}, "_meta": odd})
    notes = (project.folder / "notes.jsonl").read_text().splitlines()
    sent = [params for method, params in map(json.loads, notes) if method == "tools/call"]

    metas = [params.get("_meta", {}) for params in sent]
    own = [{k: v for k, v in one.items() if not k.startswith(META)} for one in metas]
    assert all(isinstance(one.pop("progressToken"), int) for one in own)
    assert own == [trace, trace, {}]


def test_a_server_that_comes_back_is_told_again_what_clients_want(project: Project) -> None:
    notes, again = project.folder / "notes.jsonl", project.folder / "again"
    starts = ("--note-pid", str(project.folder / "pid"), "--again", str(again))
    serving(project, "--live", "--era", "legacy", "--notes", str(notes), *starts)
    with started(project, modern=False) as hub:
        hub.ask("resources/subscribe", {"uri": "docs://guide"})
        hub.ask("logging/setLevel", {"level": "notice"})
        hub.call("s__crash")
        hub.notification("notifications/resources/list_changed")
        gone = hub.ask("resources/read", {"uri": "docs://guide"})
        again.touch()
        hub.notification("notifications/resources/list_changed")
        back = hub.ask("resources/read", {"uri": "docs://guide"})
        told(hub, "update docs://guide", "updated", 1)
    sent = [json.loads(line) for line in notes.read_text().splitlines()]

    assert gone["error"]["code"] == -32002
    assert back["result"]["contents"]
    found = [one for one, _ in sent if one in {"resources/subscribe", "logging/setLevel"}]
    assert sorted(found) == ["logging/setLevel"] * 2 + ["resources/subscribe"] * 2


@pytest.mark.parametrize(
    ("method", "params", "key"),
    [
        ("resources/read", {"uri": "file:///a"}, "contents"),
        ("prompts/get", {"name": "c__p"}, "messages"),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "c__p"}, "argument": {"name": "a"}},
            "completion",
        ),
    ],
)
def test_a_failure_is_an_error_and_never_an_empty_result(
    project: Project, method: str, params: dict[str, Any], key: str
) -> None:
    lists = {
        "resources/list": {"resources": [{"uri": "file:///a", "name": "a"}]},
        "prompts/list": {"prompts": [{"name": "p"}]},
    }
    answers: list[Any] = [{}, [], None, {key: "text"}, {key: None}, {"isError": False}]
    serving(project, c=canned(project, {method: answers}, **lists))
    with started(project, modern=False) as hub:
        found = [hub.ask(method, params) for _ in answers]

    said = f"[aish] c: the server sent no `{key}`"
    assert [one["error"] for one in found] == [{"code": -32603, "message": said}] * len(answers)


def test_a_resource_of_a_hub_behind_a_hub_keeps_its_uri(project: Project) -> None:
    serving(project, "--live")
    inner = json.dumps([sys.executable, "-m", "aish", "serve", str(project.folder / "p.yaml")])
    project.pipeline(
        f"mcp: {{servers: {{hub: {{command: {inner}}}}}, auto_approve: ['*__*']}}\n{ALL}",
        name="outer.yaml",
    )
    with ServedHub(project, "outer.yaml") as hub:
        hub.begin()
        listed = hub.ask("resources/list")["result"]["resources"]
        read = hub.ask("resources/read", {"uri": "docs://page/3"})["result"]
        prompts = hub.ask("prompts/list")["result"]["prompts"]
        got = hub.ask("prompts/get", {"name": "hub__s__plain"})["result"]
        hub.ask("resources/subscribe", {"uri": "docs://guide"})
        (updated,) = told(hub, "update docs://guide", "updated", 1)

    assert listed[0]["uri"] == "docs://guide"
    assert read["contents"][0]["text"] == "page 3"
    assert [one["name"] for one in prompts] == ["hub__s__review", "hub__s__plain"]
    assert got["messages"][0]["content"]["text"] == "Say hello"
    assert updated["params"] == {"uri": "docs://guide"}


def test_a_client_hears_which_capability_a_server_needs_of_it(project: Project) -> None:
    error = {"code": -32021, "message": "no", "data": {"requiredCapabilities": {"sampling": {}}}}
    results = {"tools/call": error}
    tools = {"tools/list": {"tools": [{"name": "need", "inputSchema": {"type": "object"}}]}}
    serving(project, c=canned(project, results, **tools), rest="serve: {forward: [elicitation]}")
    declares: dict[str, Any] = {f"{META}clientCapabilities": {"sampling": {}}}
    with started(project, modern=False) as hub:
        told = hub.call("c__need")
        lacking = hub.ask("tools/call", {"name": "c__need"}, modern=True)
        asked = {"name": "c__need", "_meta": declares}
        declared = hub.ask("tools/call", asked, modern=True)
        kinds = [one["kind"] for one in hub.audit if one["event"] == "finished"]

    assert (told["isError"], text_of(told)) == (True, "[aish] c: tool dispatch failed: no")
    assert lacking["error"] == error
    assert declared["error"]["code"] == -32603
    said = "the server needs `sampling`, which the file does not forward"
    assert declared["error"]["message"] == said
    assert kinds == ["rpc_error"] * 3


def test_answers_without_a_state_reach_a_stateless_server_and_have_to_be_objects(
    project: Project,
) -> None:
    serving(project, "--asks", "--era", "modern")
    arguments = {"method": "elicitation/create", "params": {"message": "Sure?"}}
    call = {"name": "s__ask_client", "arguments": arguments}
    with started(project, modern=False) as hub:
        wrong = hub.ask("tools/call", {**call, "inputResponses": {"q": 5}}, modern=True)

    said = "each value of `inputResponses` has to be an object"
    assert wrong["error"] == {"code": -32602, "message": said}


def test_a_reload_changes_what_is_offered_of_servers_that_stay(project: Project) -> None:
    serving(project, "--live", rest="")
    with started(project, modern=False) as hub:
        before = hub.ask("resources/list")
        serving(project, "--live")
        hub.signal(signal.SIGHUP)
        hub.notification("notifications/resources/list_changed")
        listed = hub.ask("resources/list")["result"]["resources"]
        prompts = hub.ask("prompts/list")["result"]["prompts"]
        serving(project, "--live", rest="serve: {prompts: [s__plain]}")
        hub.signal(signal.SIGHUP)
        hub.notification("notifications/prompts/list_changed")
        fewer = hub.ask("prompts/list")["result"]["prompts"]
        gone = [
            hub.ask("resources/read", {"uri": "docs://guide"}),
            hub.ask("prompts/get", {"name": "s__review", "arguments": {"code": "1"}}),
        ]

    assert before["error"]["code"] == -32601
    assert (len(listed), len(prompts)) == (3, 2)
    assert [one["name"] for one in fewer] == ["s__plain"]
    assert [one["error"]["code"] for one in gone] == [-32601, -32602]


def test_updates_of_a_resource_that_a_reload_has_taken_away_are_not_told(project: Project) -> None:
    serving(project, "--live")
    with started(project, modern=False) as hub:
        hub.ask("resources/list")
        for uri in ("docs://guide", "docs://logo"):
            hub.ask("resources/subscribe", {"uri": uri})
        before = told(hub, "update docs://guide, update docs://logo", "updated", 2)
        serving(project, "--live", rest="serve: {resources: ['s__docs://logo']}")
        hub.signal(signal.SIGHUP)
        hub.notification("notifications/resources/list_changed")
        after = told(hub, "update docs://guide, update docs://logo", "updated", 1)
        hub.ask("ping")

    assert {one["params"]["uri"] for one in before} == {"docs://guide", "docs://logo"}
    assert [one["params"]["uri"] for one in after] == ["docs://logo"]


@pytest.mark.slow(reason="starts the client of the SDK")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdks_client_reads_resources_and_prompts(project: Project, mode: str) -> None:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp_types import PromptReference

    serving(project, "--live")

    async def use() -> list[Any]:
        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "aish", "serve", "p.yaml"], cwd=project.folder
        )
        async with Client(stdio_client(parameters), mode=mode) as client:
            resources = await client.list_resources()
            templates = await client.list_resource_templates()
            read = await client.read_resource("docs://page/5")
            prompts = await client.list_prompts()
            got = await client.get_prompt("s__plain")
            ref = PromptReference(type="ref/prompt", name="s__review")
            completed = await client.complete(ref, {"name": "tone", "value": "k"})
            return [
                [str(one.uri) for one in resources.resources],
                [one.uri_template for one in templates.resource_templates],
                read.model_dump()["contents"][0]["text"],
                [one.name for one in prompts.prompts],
                got.model_dump()["messages"][0]["content"]["text"],
                completed.completion.values,
            ]

    assert anyio.run(use) == [
        ["docs://guide", "docs://logo", "docs://archive"],
        ["docs://page/{number}"],
        "page 5",
        ["s__review", "s__plain"],
        "Say hello",
        ["review k"],
    ]


@ERAS
@pytest.mark.parametrize("ended_by", ["signal", "input"])
def test_a_hub_ends_quietly_while_resources_are_followed(
    project: Project, era: str, ended_by: str
) -> None:
    serving(project, "--live", "--era", era)
    with started(project, modern=False) as hub:
        assert hub.ask("resources/subscribe", {"uri": "docs://guide"})["result"] == {}
        wanted = {"notifications": {"resourceSubscriptions": ["docs://logo"]}}
        hub.request("subscriptions/listen", wanted, modern=True)
        hub.notification("notifications/subscriptions/acknowledged")
        if ended_by == "signal":
            hub.signal(signal.SIGTERM)
        else:
            hub.end_input()
        code = hub.finish()

    assert (code, hub.stderr) == (0, "")


def test_a_burst_of_updates_is_told_once(project: Project) -> None:
    serving(project, "--live")
    with started(project, modern=False) as hub:
        for uri in ("docs://guide", "docs://logo"):
            assert hub.ask("resources/subscribe", {"uri": uri})["result"] == {}
        burst = ", ".join(["update docs://guide"] * 2000)
        arguments = {"text": f"{burst}, update docs://logo"}
        call = hub.request("tools/call", {"name": "s__echo", "arguments": arguments})
        # Told a moment after it came, it may still be before the answer to the call.
        hub.until(lambda one: one.get("params") == {"uri": "docs://logo"})
        assert "result" in hub.answer(call)
        told_of = [one["params"]["uri"] for one in hub.seen if "updated" in one.get("method", "")]

    assert 1 <= told_of.count("docs://guide") < 10
