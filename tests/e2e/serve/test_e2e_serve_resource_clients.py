"""Resources and log messages of several clients beside each other, and of servers over HTTP."""

from collections.abc import Callable
from typing import Any

from e2e_project import Project, stdio
from mcp_emulators import Legacy, McpEndpoint, Modern, error, event, events
from mcp_offered_resources import LIVE_CAPABILITIES
from model_endpoint import Gate, Recorded
from patience import rounds
from served_http import HttpClient, HttpHub
from served_hub import META, ServedHub, SocketClient

ONE, OTHER = "one-token-" + "1" * 32, "other-token-" + "2" * 32


def with_two_clients(project: Project, servers: str, rest: str, other: str = "") -> HttpHub:
    """A hub with two clients, each with a token of its own."""
    project.pipeline(
        f"""
        mcp: {{servers: {servers}, auto_approve: ["*__*"]}}
        serve:
          {rest}
          clients:
            one: {{token_env: ONE}}
            other: {{token_env: OTHER{other}}}
        """
    )
    project.aish.env.update(ONE=ONE, OTHER=OTHER)
    return HttpHub(project, "p.yaml", token=ONE)


def pinging_until(client: HttpClient | ServedHub, is_it: Callable[[], bool]) -> None:
    """Ask a hub for nothing until something has come to its server."""
    for _ in rounds("it did not come"):
        if is_it():
            break
        client.ask("ping")


def logs(found: Any) -> list[str]:
    """The levels of the log messages on the way of an answer."""
    return [
        one.message["params"]["level"]
        for one in found
        if one.message.get("method") == "notifications/message"
    ]


def test_what_a_result_names_to_one_client_is_unknown_to_another(project: Project) -> None:
    link = {"type": "resource_link", "uri": "file:///srv/a.txt", "name": "a"}

    def call(_: Recorded) -> Any:
        return {"content": [link]}

    def read(request: Recorded) -> Any:
        return {"contents": [{"uri": request.json["params"]["uri"], "text": "read"}]}

    tools = [{"name": "make", "inputSchema": {"type": "object"}}]
    server = Legacy(
        tools=tools,
        capabilities={"tools": {}, "resources": {}},
        tools__call=call,
        resources__read=read,
    )
    server.overrides["resources/list"] = lambda _: {"resources": []}
    server.overrides["resources/templates/list"] = lambda request: error(request, -32601, "no")
    with McpEndpoint(server) as endpoint:
        servers = f"{{s: {{url: '{endpoint.url}', protocol: legacy}}}}"
        with with_two_clients(project, servers, 'resources: ["s__*"]') as hub:
            one, other = hub.client(ONE), hub.client(OTHER)
            one.call("s__make")
            asked = {"uri": "file:///srv/a.txt"}
            mine = one.ask("resources/read", asked)
            theirs = other.ask("resources/read", asked)
            again = hub.client(ONE)
            again.begin()
            later = again.ask("resources/read", asked)

    assert mine["result"]["contents"][0]["text"] == "read"
    assert theirs["error"]["code"] == -32602
    assert later["result"]["contents"][0]["text"] == "read"


def test_the_globs_of_a_client_narrow_its_resources_and_prompts(project: Project) -> None:
    servers = f"{{s: {{command: {stdio('--offers')}}}}}"
    rest = 'resources: ["s__*"]\n          prompts: ["s__*"]'
    other = ', tools: [s__echo, "s__docs://l*", s__plain]'
    with with_two_clients(project, servers, rest, other) as hub:
        found: list[Any] = []
        for client in (hub.client(ONE), hub.client(OTHER)):
            found += [
                [one["uri"] for one in client.ask("resources/list")["result"]["resources"]],
                [one["name"] for one in client.ask("prompts/list")["result"]["prompts"]],
                len(client.tools()),
            ]
        narrow = hub.client(OTHER)
        refused = [
            narrow.ask("resources/read", {"uri": "docs://guide"}),
            narrow.ask("resources/read", {"uri": "docs://page/1"}),
            narrow.ask("prompts/get", {"name": "s__review", "arguments": {"code": "1"}}),
        ]
        allowed = narrow.ask("resources/read", {"uri": "docs://logo"})

    assert found[0] == ["docs://guide", "docs://logo", "docs://archive"]
    assert found[1] == ["s__review", "s__plain"]
    assert found[3:] == [["docs://logo"], ["s__plain"], 1]
    assert [one["error"]["code"] for one in refused] == [-32602] * 3
    assert allowed["result"]["contents"]


def test_a_log_message_that_may_be_about_another_client_reaches_nobody(project: Project) -> None:
    notes = project.folder / "notes.jsonl"
    flags = ("--live", "--era", "legacy", "--notes", str(notes))
    servers = f"{{s: {{command: {stdio(*flags)}}}}}"
    with with_two_clients(project, servers, "forward: []") as hub:
        one, other = hub.client(ONE), hub.client(OTHER)
        one.begin()
        other.begin()
        say = {"name": "s__echo", "arguments": {"text": "log error"}}

        def said(client: HttpClient) -> list[str]:
            with client.opened("tools/call", say) as found:
                return logs(found)

        alone = said(one)
        slow = {"name": "s__sleep", "arguments": {"ms": 600_000}}
        call = {"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": slow}
        with hub.leaving(call, one.session):
            pinging_until(other, lambda: "600000" in notes.read_text())
            plain = other.post({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": say})

    assert alone == ["error"]
    assert "notifications/message" not in plain.text


def test_a_server_that_never_answers_about_its_log_level_delays_no_call_of_another(
    project: Project,
) -> None:
    gate = Gate()
    silent = Legacy(capabilities={"tools": {}, "logging": {}}, session="s1")
    silent.overrides["logging/setLevel"] = lambda _: events(gate)
    with McpEndpoint(silent) as endpoint:
        project.pipeline(
            f"""
            mcp:
              servers:
                silent: {{url: '{endpoint.url}', protocol: legacy}}
                s: {{command: {stdio()}}}
              auto_approve: ["s__*"]
            """
        )
        with ServedHub(project, "p.yaml") as hub:
            hub.begin()
            level = hub.ask("logging/setLevel", {"level": "warning"})
            call = {"name": "s__echo", "arguments": {"text": "hello"}}
            wanted = {**call, "_meta": {f"{META}logLevel": "debug"}}
            found = hub.ask("tools/call", wanted, modern=True)
            pinging_until(hub, lambda: "logging/setLevel" in endpoint.methods)
            gate.open()

    assert level["result"] == {}
    assert "hello" in found["result"]["content"][0]["text"]


def test_a_cut_stream_of_changes_is_opened_again_and_what_was_missed_is_asked_for(
    project: Project,
) -> None:
    gates = [Gate(), Gate()]
    names = ["one"]
    listened = iter(gates)

    def listen(_: Recorded) -> Any:
        told = {"method": "notifications/subscriptions/acknowledged", "jsonrpc": "2.0"}
        first = event({**told, "params": {"notifications": {"promptsListChanged": True}}})
        gate = next(listened)
        if gate is gates[1]:
            names.append("two")  # while nobody listened
        return events(first, gate)  # and the stream ends

    server = Modern(capabilities={"tools": {}, "prompts": LIVE_CAPABILITIES["prompts"]})
    server.overrides["prompts/list"] = lambda _: {
        "resultType": "complete",
        "prompts": [{"name": name} for name in names],
    }
    server.overrides["subscriptions/listen"] = listen
    with McpEndpoint(server) as endpoint:
        project.pipeline(
            f"mcp: {{servers: {{s: {{url: '{endpoint.url}'}}}}}}\nserve: {{prompts: ['s__*']}}"
        )
        with ServedHub(project, "p.yaml") as hub:
            hub.begin()
            before = [one["name"] for one in hub.ask("prompts/list")["result"]["prompts"]]
            gates[0].open()
            hub.notification("notifications/prompts/list_changed")
            after = [one["name"] for one in hub.ask("prompts/list")["result"]["prompts"]]
        gates[1].open()

    assert (before, after) == (["s__one"], ["s__one", "s__two"])


def test_a_lost_session_of_a_server_is_begun_anew_with_its_subscriptions(project: Project) -> None:
    lost: list[bool] = []

    def read(request: Recorded) -> Any:
        if not lost:
            lost.append(True)
            return error(request, -32001, "Session not found", status=404)
        return {"contents": [{"uri": "docs://guide", "text": "read"}]}

    server = Legacy(capabilities={"tools": {}, **LIVE_CAPABILITIES}, session="s1")
    server.overrides["resources/read"] = read
    for method in ("resources/subscribe", "logging/setLevel"):
        server.overrides[method] = lambda _: {}
    with McpEndpoint(server) as endpoint:
        project.pipeline(
            f"mcp: {{servers: {{s: {{url: '{endpoint.url}', protocol: legacy}}}}}}\n"
            "serve: {resources: ['s__*']}"
        )
        with ServedHub(project, "p.yaml") as hub:
            hub.begin()
            hub.ask("resources/subscribe", {"uri": "docs://guide"})
            hub.ask("logging/setLevel", {"level": "error"})
            found = hub.ask("resources/read", {"uri": "docs://guide"})
            pinging_until(hub, lambda: endpoint.methods.count("resources/subscribe") == 2)
        methods = endpoint.methods

    assert found["result"]["contents"][0]["text"] == "read"
    assert methods.count("initialize") == 2
    assert methods.count("logging/setLevel") == 2


def test_subscriptions_that_are_asked_for_at_once_are_one_and_end_with_their_client(
    project: Project,
) -> None:
    server = Legacy(capabilities={"tools": {}, **LIVE_CAPABILITIES}, session="s1")
    for method in ("resources/subscribe", "resources/unsubscribe", "resources/read"):
        server.overrides[method] = lambda _: {"contents": []}
    guide = {"uri": "docs://guide"}
    with McpEndpoint(server) as endpoint:
        project.pipeline(
            f"mcp: {{servers: {{s: {{url: '{endpoint.url}', protocol: legacy}}}}}}\n"
            "serve: {resources: ['s__*']}"
        )
        with ServedHub(project, "p.yaml", "--stdio", "--unix", "run/s") as hub:
            hub.begin()
            hub.ask("resources/list")
            (address,) = hub.addresses()[-1:]
            with SocketClient(address) as other:
                other.begin()
                # All of these are read before the first of them is answered.
                ask = ["subscribe", "subscribe", "unsubscribe", "subscribe", "subscribe"]
                messages = [
                    {
                        "jsonrpc": "2.0",
                        "id": f"m{at}",
                        "method": f"resources/{one}",
                        "params": guide,
                    }
                    for at, one in enumerate(ask)
                ]
                other.send(*messages)
                answers = other.answers(*(one["id"] for one in messages))
            pinging_until(hub, lambda: "resources/unsubscribe" in endpoint.methods)

    assert all(one["result"] == {} for one in answers)
