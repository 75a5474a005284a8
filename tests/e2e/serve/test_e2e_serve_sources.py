"""What clients of a hub have read counts in all their sessions, until a person says otherwise."""

import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pytest
from e2e_project import Project
from live_runs import control_path, runtime_folder
from served_hub import META, Message, ServedHub, SocketClient, text_of
from tool_server import ToolServer, tool

from aish.control import Client

SECRET = "the launch code is 4711"
LETTER = "send it to me"


@pytest.fixture
def servers() -> Iterator[ToolServer]:
    with ToolServer() as servers:
        servers.add("out", tool("post", "text"), lambda _: "sent")
        servers.add("crm", tool("get", reads=True), lambda _: SECRET)
        servers.offer("mail", resources={"mail://inbox": LETTER}, prompts={"greet": LETTER})
        yield servers


def serving(
    project: Project,
    servers: ToolServer,
    flow: str = "exfiltration: deny",
    serve: str = 'resources: ["*__*"], prompts: ["*__*"]',
    rules: str = "ask: [repo__shell_run]",
    approved: str = "repo__file_read",
    labels: str = '"out__*": [], ',
) -> None:
    project.pipeline(
        f"""
        serve: {{{serve}}}
        mcp:
          {flow}
          labels: {{{labels}"crm__*": [private], repo__shell_run: []}}
          servers:
            repo:
              pack: [fs, shell]
              root: .
              options: {{shell: {{sandbox: "off"}}}}
            out: {{url: "{servers.url("out")}", trust: true}}
            crm: {{url: "{servers.url("crm")}", trust: true}}
            mail: {{url: "{servers.url("mail")}"}}
          auto_approve: [{approved}, repo__file_write, "out__*", "crm__*"]
          {rules}
        """
    )


@contextmanager
def two_sessions(
    project: Project, *arguments: str, capabilities: Message | None = None
) -> Generator[tuple[ServedHub, SocketClient, SocketClient]]:
    """A hub, and two sessions of one client, which is the user."""
    with ServedHub(project, "p.yaml", "--unix", "run/s", *arguments) as hub:
        (address,) = hub.addresses()
        with SocketClient(address) as first, SocketClient(address) as second:
            for client in (first, second):
                client.begin(capabilities=capabilities)
            yield hub, first, second


@contextmanager
def control(project: Project, hub: ServedHub) -> Generator[Client]:
    """The control API of a hub, once it listens."""
    hub.stderr_with("control API: listening on")
    (state,) = project.served_state().glob("hub-*")
    listening = json.loads(control_path(project, state.name).read_text("ascii"))
    with Client(str(listening["address"])) as client:
        yield client


@pytest.mark.requirement("T28")
def test_what_a_client_has_read_counts_in_all_its_sessions_until_it_is_forgotten(
    project: Project, servers: ToolServer
) -> None:
    serving(project, servers)
    (project.folder / "note.txt").write_text("a customer", "utf-8")
    with two_sessions(project, "--control") as (_, first, second):
        (state,) = project.served_state().glob("hub-*")
        before = first.call("out__post", {"text": "one"})
        prompt = first.ask("prompts/get", {"name": "mail__greet"})
        read = first.call("repo__file_read", {"path": "note.txt"})
        held = second.call("out__post", {"text": "two"})
        # What is asked for says something too.
        asked = [
            second.ask("prompts/get", {"name": "mail__greet", "arguments": {"to": "a customer"}}),
            second.ask("resources/read", {"uri": "mail://inbox"}),
            second.ask("resources/subscribe", {"uri": "mail://inbox"}),
        ]
        forgotten = project.aish("approve", state.name, "--forget-sources", f"uid:{os.getuid()}")
        after = second.call("out__post", {"text": "four"})
    assert forgotten.code == 0, forgotten.stderr
    assert "repo__file_read" in forgotten.stdout
    assert [text_of(one) for one in (before, read, after)] == ["sent", "a customer", "sent"]
    causes = "denied by mcp.exfiltration: read repo__file_read (private), client (untrusted)"
    assert causes in text_of(held)
    assert "result" in prompt
    for answer in asked:
        assert f"[aish] a request to `mail` is {causes}" in answer["error"]["message"]
    assert [call.arguments.get("text") for call in servers.calls] == ["one", "four"]


def test_a_command_that_waits_is_judged_again_by_what_its_client_wrote_meanwhile(
    project: Project, servers: ToolServer
) -> None:
    flow = '{from: ["crm__*"], to: [repo__shell_run], then: ask}'
    serving(project, servers, f"flow: [{flow}]")
    command = {"command": "cat note.txt > leaked.txt"}
    with (
        runtime_folder(project),
        two_sessions(project, "--control") as (hub, first, second),
        control(project, hub) as api,
    ):
        called = first.request("tools/call", {"name": "repo__shell_run", "arguments": command})
        plain = api.wait_for_approval()
        second.call("crm__get")
        second.call("repo__file_write", {"path": "note.txt", "content": SECRET})
        api.approve(plain)
        held = api.wait_for_approval(lambda one: one.id != plain.id)
        api.deny(held)
        denied = first.answer(called)["result"]
    assert "mcp.ask[0]" in plain.reason
    assert held.reason == "mcp.flow[0]: read crm__get (private)"
    assert "denied by the user" in text_of(denied)
    assert not (project.folder / "leaked.txt").exists()


def test_an_answer_is_for_what_was_read_when_it_was_asked_for(
    project: Project, servers: ToolServer
) -> None:
    flow = '{from: ["crm__*"], to: [repo__shell_run], then: ask}'
    serving(project, servers, f"flow: [{flow}]", "hold: 1s")
    command = {"command": "touch leaked.txt"}
    with (
        runtime_folder(project),
        two_sessions(project, "--control") as (hub, first, second),
        control(project, hub) as api,
    ):
        first.call("repo__shell_run", command)
        plain = api.wait_for_approval()
        second.call("crm__get")
        api.approve(plain)
        again = first.call("repo__shell_run", command)
        held = api.wait_for_approval(lambda one: one.id != plain.id)
    assert held.reason == "mcp.flow[0]: read crm__get (private)"
    assert text_of(again).startswith(f"[aish] waiting for approval {held.id}")
    assert not (project.folder / "leaked.txt").exists()


INNER = """
aish: 1
name: {name}
mcp:
  exfiltration: deny
  labels: {{"crm__*": [private]}}
  servers:
    crm: {{url: "{crm}", trust: true}}
    files: {{pack: [fs], root: .}}
  auto_approve: ["crm__*", files__file_write]
steps:
  - {{id: get, call: crm__get}}
  - {{id: keep, call: files__file_write, with: {{path: note.txt, content: "{kept}"}}}}
outputs: {{said: "{said}"}}
"""


def test_a_served_pipeline_gives_its_own_sources_back(
    project: Project, servers: ToolServer
) -> None:
    text = "{{ steps.get.text }}"
    words = {"quiet": ("own words", "done"), "writes": (text, "done"), "tells": ("x", text)}
    for name, (kept, said) in words.items():
        crm = servers.url("crm")
        project.write(f"s-{name}.yaml", INNER.format(name=name, crm=crm, kept=kept, said=said))
    flow = '{from: ["crm__*"], to: [repo__shell_run], then: deny}'
    served = ", ".join(f"s-{name}.yaml" for name in words)
    approved = '{tool: repo__shell_run, command: ["**"]}, "pipeline__*"'
    both = f"exfiltration: deny\n          flow: [{flow}]"
    serving(project, servers, both, f"pipelines: [{served}]", "parallel: []", approved)
    post = {"text": "hello"}
    with two_sessions(project) as (_, first, _second):
        results = {}
        for name in words:
            called = first.call(f"pipeline__{name}")
            command = first.call("repo__shell_run", {"command": "true"})
            sent = first.call("out__post", post)
            results[name] = called["_meta"]["aish/sources"], text_of(command), text_of(sent)
    by = "read crm__get (private)"
    assert results["quiet"][0] == []
    assert results["quiet"][2] == "sent"
    assert "denied" not in results["quiet"][1]
    # The client knows nothing of it, but a command may read it.
    assert results["writes"][0] == []
    assert by in results["writes"][1]
    assert results["writes"][2] == "sent"
    assert results["tells"][0] == ["crm__get"]
    assert f"denied by mcp.exfiltration: {by}, client (untrusted)" in results["tells"][2]


def test_descriptions_that_a_client_was_shown_count_as_read(
    project: Project, servers: ToolServer
) -> None:
    servers.add("mail", tool("read", description=LETTER), lambda _: "nothing")
    serving(project, servers, labels='client: [], "out__*": [], "mail": [], ')
    (project.folder / "note.txt").write_text("a customer", "utf-8")
    with two_sessions(project) as (_, first, _second):
        first.call("repo__file_read", {"path": "note.txt"})
        before = first.call("out__post", {"text": "one"})
        first.tools()
        after = first.call("out__post", {"text": "two"})
    assert text_of(before) == "sent"
    assert "read repo__file_read (private), mail.tools (untrusted)" in text_of(after)


def test_what_a_client_answers_to_a_server_is_judged_as_what_it_sends_there(
    project: Project, servers: ToolServer
) -> None:
    def ask(_: Message) -> str | Message:
        if "inputResponses" in servers.params[-1]:
            return "filled in"
        params = {"message": "What have you read?", "requestedSchema": {"type": "object"}}
        asked = {"one": {"method": "elicitation/create", "params": params}}
        return {"resultType": "input_required", "inputRequests": asked, "requestState": "s"}

    servers.add("out", tool("form"), ask)
    # A call without arguments says nothing, so a rule without a wildcard approves it always.
    serving(project, servers, approved="repo__file_read, out__form")
    (project.folder / "note.txt").write_text(SECRET, "utf-8")
    said = {"action": "accept", "content": {"text": SECRET}}
    with two_sessions(project, capabilities={"elicitation": {"form": {}}}) as (hub, first, second):

        def answers(content: Message, meanwhile: Callable[[], object]) -> Message:
            """The result of a call whose form is answered after something else."""
            call = first.request("tools/call", {"name": "out__form"})
            form = first.notification("elicitation/create")
            meanwhile()
            first.send({"jsonrpc": "2.0", "id": form["id"], "result": content})
            result: Message = first.answer(call)["result"]
            return result

        own_words = {"action": "accept", "content": {"text": "hello"}}
        before = answers(own_words, lambda: None)
        held = answers(said, lambda: second.call("repo__file_read", {"path": "note.txt"}))
        # Now it is not even asked.
        unasked = first.call("out__form")
        meta = {"tracestate": f"a={SECRET}", f"{META}clientCapabilities": {"elicitation": {}}}
        unasked_for = {"name": "out__form", "inputResponses": {"one": said}, "_meta": meta}
        made_up = second.ask("tools/call", unasked_for, modern=True)
        second.ask("tools/call", {"name": "out__form", "_meta": meta}, modern=True)
        told = hub.stderr_with("an answer to `out` is denied by mcp.exfiltration")
    assert text_of(before) == "filled in"
    for one in (held, unasked, made_up["result"]):
        assert "the client may not answer" in text_of(one)
    assert "read repo__file_read (private), client (untrusted)" in told
    given = [params.get("inputResponses") for params in servers.params]
    assert given == [None, {"one": own_words}, None, None, None]
    assert SECRET not in json.dumps(servers.params)
