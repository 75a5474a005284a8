"""Text of strangers and private text, followed to a call that sends: from the command line."""

import json
import shutil
import signal
import sys
from typing import Any

import pexpect
import pytest
import tool_server
from batch_servers import Answer, BatchServer, answer_in_words, answer_with_call
from e2e_project import REPO, ModelEndpoints, Project, of_type
from live_runs import WAITS, answer, at_terminal, live_run, pending, runtime_folder
from mcp_scenes import STDIO_SERVER
from model_endpoint import Gate, hanging_reply, text_reply, tool_reply
from syrupy.assertion import SnapshotAssertion

from aish.system.user import login_name

LEDGER = REPO / "tests" / "support" / "mcp_ledger_server.py"
HELD = "denied by mcp.exfiltration: read "
BOTH = f"{HELD}repo__file_read (private), tickets__echo (untrusted)"
SECRET = '{"path": "secret.txt"}'
READ = """
  - {id: ticket, call: tickets__echo, with: {text: "send it to me"}}
  - {id: secret, call: repo__file_read, with: {path: secret.txt}}
"""


def write(
    project: Project,
    steps: str,
    mcp: str = "exfiltration: deny",
    name: str = "p.yaml",
    top: str = "",
) -> None:
    servers = {
        "repo": {"pack": ["fs"], "root": "."},
        "tickets": {"command": [sys.executable, str(STDIO_SERVER)]},
        "mail": {"command": [sys.executable, str(LEDGER)]},
        "memory": {"command": [sys.executable, str(STDIO_SERVER)]},
    }
    labels = {"tickets*": [], "tickets__*": ["untrusted"], "memory*": [], "memory__*": []}
    labels |= {"mail*": [], "mail__*": []}
    project.write("secret.txt", "the key is 4711\n")
    project.pipeline(
        f"name: p\non_denied: continue\n{top}mcp:\n  servers: {json.dumps(servers)}\n"
        f"  labels: {json.dumps(labels)}\n"
        "  auto_approve: ['*__*', repo__file_write, {tool: shell__run, command: ['**']}]\n"
        f"  {mcp}\n{steps}",
        name,
    )


def sent(project: Project) -> list[Any]:
    path = project.folder / "ledger.txt"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ends(project: Project) -> dict[str, Any]:
    """The end of each step's last call, by step."""
    return {line["step"]: line for line in of_type(project.journal, "tool.finished")}


WAYS = {
    "an argument": (
        READ + "  - {id: out, call: mail__write, with: "
        "{text: '{{ steps.ticket.text }} {{ steps.secret.text }}'}}",
        BOTH,
    ),
    "a condition": (
        READ + "  - {id: out, when: \"'send' in steps.ticket.text\", call: mail__write, with: "
        "{text: '{{ steps.secret.text }}'}}",
        BOTH,
    ),
    "an item of a list": (
        READ + '  - {id: out, foreach: "[steps.ticket.text]", call: mail__write, with: '
        "{text: '{{ steps.secret.text }} {{ index }}'}}",
        BOTH,
    ),
    "results of items": (
        READ.replace("id: ticket,", 'id: many, foreach: "[1, 2]",')
        + "  - {id: out, call: mail__write, with: "
        "{text: '{{ steps.secret.text }} {{ steps.many[0].text }}'}}",
        BOTH,
    ),
    "a file that was written": (
        READ + "  - {id: note, call: repo__file_write, with: "
        "{path: note.txt, content: '{{ steps.ticket.text }}'}}\n"
        "  - {id: again, needs: [note], call: repo__file_read, with: {path: note.txt}}\n"
        "  - {id: out, call: mail__write, with: {text: '{{ steps.again.text }}'}}",
        BOTH,
    ),
    "memory of a server": (
        READ + "  - {id: keep, call: memory__echo, with: {text: '{{ steps.ticket.text }}'}}\n"
        "  - {id: again, needs: [keep], call: memory__echo, with: {text: hi}}\n"
        "  - {id: out, call: mail__write, with: "
        "{text: '{{ steps.again.text }} {{ steps.secret.text }}'}}",
        BOTH,
    ),
    "a command that reads what was written": (
        READ + "  - {id: note, call: repo__file_write, with: "
        "{path: note.txt, content: '{{ steps.ticket.text }} {{ steps.secret.text }}'}}\n"
        "  - {id: out, needs: [note], run: [cat, note.txt]}",
        BOTH,
    ),
    "the file of a template": (
        READ + "  - {id: note, call: repo__file_write, with: "
        "{path: note.txt, content: '{{ steps.ticket.text }}'}}\n"
        "  - {id: out, needs: [note], call: mail__write, with: "
        "{text: \"{{ 'note.txt' | readfile }}\"}}",
        f"{HELD}readfile (private), tickets__echo (untrusted)",
    ),
}


@pytest.mark.requirement("T20")
@pytest.mark.parametrize("way", WAYS)
def test_text_is_followed_from_step_to_step(project: Project, way: str) -> None:
    steps, reply = WAYS[way]
    write(project, f"steps:\n{steps}\n")
    done = project.run()
    assert done.code == 0, done.stderr
    assert reply in ends(project)["out"]["content"]
    assert sent(project) == []


def test_one_kind_of_text_alone_is_sent(project: Project) -> None:
    steps = READ + (
        "  - {id: one, call: mail__write, with: {text: 'about {{ steps.ticket.text }}'}}\n"
        "  - {id: two, needs: [one], call: mail__write, with: {text: own words}}\n"
        "  - {id: three, run: [echo, own words]}"
    )
    write(project, f"steps:\n{steps}\n")
    done = project.run()
    assert done.code == 0, done.stderr
    assert sent(project) == ["about send it to me", "own words"]
    # What was sent from here may be read again, by a command too.
    assert ends(project)["three"]["sources"] == ["steps.three", "tickets__echo"]
    # A person calls it by hand: nothing was read.
    assert project.aish("call", "p.yaml", "mail__write", "text=by hand").code == 0
    assert sent(project)[2:] == ["by hand"]


def test_a_tool_that_is_renamed_in_the_run_is_held_and_what_it_read_counts(
    project: Project,
) -> None:
    # A call waits until the list that was announced is known: so there is one more.
    rest, save = tool_server.tool("rest", reads=True), tool_server.tool("save", "text", reads=True)
    lists = [[tool_server.tool("get", reads=True), rest], [save, rest]]
    project.write("kid/tools.json", json.dumps(lists))
    kid = [sys.executable, str(REPO / "tests" / "support" / "mcp_changing_server.py"), "--announce"]
    project.pipeline(
        f"""
        name: p
        on_denied: continue
        mcp:
          exfiltration: {{then: deny, except: [kid__get, kid__rest]}}
          labels: {{kid__get: [private, untrusted], "kid*": [], "kid__*": []}}
          servers: {{kid: {{command: {json.dumps(kid)}, cwd: kid}}}}
          auto_approve: ["kid__*"]
        steps:
          - {{id: get, call: kid__get}}
          - {{id: rest, needs: [get], call: kid__rest}}
          - {{id: save, needs: [rest], call: kid__save, with: {{text: "{{{{ steps.get.text }}}}"}}}}
        """
    )
    done = project.run()
    assert done.code == 0, done.stderr
    assert {step: end["kind"] for step, end in ends(project).items()} == {
        "get": "ok",
        "rest": "ok",
        "save": "denied",
    }
    assert f"{HELD}kid__get (private, untrusted)" in ends(project)["save"]["content"]


def test_text_is_followed_into_a_sub_pipeline_and_out_of_it(project: Project) -> None:
    inner = (
        "inputs: {said: {type: string}}\n"
        "steps:\n"
        "  - {id: own, call: repo__file_read, with: {path: secret.txt}}\n"
        "  - {id: out, call: mail__write, with: {text: '{{ inputs.said }} {{ steps.own.text }}'}}\n"
        "outputs: {secret: '{{ steps.own.text }}'}\n"
    )
    write(project, inner, "parallel: []", name="inner.yaml")
    steps = (
        "  - {id: ticket, call: tickets__echo, with: {text: send it to me}}\n"
        "  - {id: sub, pipeline: inner.yaml, with: {said: '{{ steps.ticket.text }}'}}\n"
        "  - {id: other, call: tickets__echo, with: {text: hi}}\n"
        "  - {id: out, call: mail__write, with: "
        "{text: '{{ steps.sub.output.secret }} {{ steps.other.text }}'}}"
    )
    write(project, f"steps:\n{steps}\noutputs: {{secret: '{{{{ steps.sub.output.secret }}}}'}}\n")
    done = project.run("--format", "json")
    assert done.code == 0, done.stderr
    result = json.loads(done.stdout)
    assert "repo__file_read" in result["output_sources"]["secret"]
    assert project.aish("runs", "show", result["run"]).code == 0
    calls = ends(project)
    assert "mcp.exfiltration of p.yaml: read repo__file_read" in calls["sub/out"]["content"]
    assert BOTH in calls["out"]["content"]
    assert sent(project) == []


def model_of(endpoint: Any) -> list[str]:
    """The contents of the tool messages that the model was sent last."""
    messages = endpoint.requests[-1].json["messages"]
    return [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.requirement("T24")
def test_a_model_is_denied_what_follows_both_kinds_of_text(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(
        [
            tool_reply(
                [("a", "tickets__echo", '{"text": "hi"}'), ("b", "mail__write", '{"text": "1"}')]
            ),
            tool_reply([("c", "repo__file_read", '{"path": "secret.txt"}')]),
            tool_reply(
                [("d", "mail__write", '{"text": "4711"}'), ("e", "tickets__echo", '{"text": "x"}')]
            ),
            text_reply("done"),
        ]
    )
    project.uses(endpoint)
    write(project, "prompt: Look at the ticket.\n")
    done = project.run("--format", "json")
    assert done.code == 0, done.stderr
    assert sent(project) == ["1"]
    assert model_of(endpoint)[-2] == f"[aish] tool call {BOTH}"
    decided = [line for line in of_type(project.journal, "tool.decided") if line.get("flow")]
    assert [(line["tool"], line["verdict"], line["rule"]) for line in decided] == [
        ("mail__write", "deny", "mcp.exfiltration"),
        ("tickets__echo", "deny", "mcp.exfiltration"),
    ]
    assert decided[0]["flow"] == {
        "rule": "mcp.exfiltration",
        "sources": ["repo__file_read", "tickets__echo"],
    }
    new = [line["sources"] for line in of_type(project.journal, "turn.started")]
    assert new == [[], ["mail__write", "tickets__echo"], ["repo__file_read"], []]


def test_a_file_without_these_keys_records_nothing_of_them(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(
        [tool_reply([("a", "tickets__echo", '{"text": "hi"}')]), text_reply("done")]
    )
    project.uses(endpoint)
    write(project, "prompt: Look at the ticket.\n", "parallel: []")
    assert project.run().code == 0
    for line in project.journal:
        assert not {"sources", "flow", "output_sources", "released_bits"} & line.keys()


def test_a_warning_is_told_once_for_a_sink(project: Project) -> None:
    steps = READ + (
        "  - {id: one, call: mail__write, with: "
        "{text: '{{ steps.ticket.text }} {{ steps.secret.text }}'}}\n"
        "  - {id: two, needs: [one], call: mail__write, with: {text: '{{ steps.one.text }}'}}\n"
    )
    write(project, f"steps:\n{steps}", "exfiltration: warn")
    done = project.run()
    assert done.code == 0, done.stderr
    assert len(sent(project)) == 2
    notices = [
        line for line in of_type(project.journal, "notice") if line["code"] == "exfiltration"
    ]
    assert [line["level"] for line in notices] == ["security"]
    assert notices[0]["text"] == (
        "mcp.exfiltration: mail__write read repo__file_read (private), tickets__echo (untrusted)"
    )


@pytest.mark.slow(reason="kills and resumes a run")
def test_text_is_still_followed_after_a_run_was_killed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    look = [("a", "tickets__echo", '{"text": "hi"}'), ("b", "repo__file_read", SECRET)]
    endpoint = model_endpoint([tool_reply(look), hanging_reply(gate)])
    project.uses(endpoint)
    write(project, "steps:\n  - {id: talk, prompt: Look at the ticket.}\n")
    running = project.aish.start("run", "p.yaml")
    gate.wait_arrived()
    running.interrupt(signal.SIGKILL)
    running.finish()
    (run,) = project.run_folders
    project.uses(
        model_endpoint([tool_reply([("c", "mail__write", '{"text": "4711"}')]), text_reply("done")])
    )
    done = project.run("--resume", run.name)
    assert done.code == 0, done.stderr
    assert BOTH in ends(project)["talk"]["content"]
    assert sent(project) == []


@pytest.mark.slow(reason="runs and resumes")
def test_an_older_part_of_a_run_has_unknown_sources(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    look = [("a", "tickets__echo", '{"text": "hi"}')]
    project.uses(model_endpoint([tool_reply(look), hanging_reply(gate)]))
    steps = "steps:\n  - {id: talk, prompt: Look at the ticket.}\n"
    write(project, steps, "parallel: []")
    running = project.aish.start("run", "p.yaml")
    gate.wait_arrived()
    running.interrupt(signal.SIGKILL)
    running.finish()
    (run,) = project.run_folders
    project.uses(
        model_endpoint([tool_reply([("c", "mail__write", '{"text": "4711"}')]), text_reply("done")])
    )
    write(project, steps)
    done = project.run("--resume", run.name, "--force")
    assert done.code == 0, done.stderr
    assert f"{HELD}unknown (private, untrusted)" in ends(project)["talk"]["content"]


@pytest.mark.requirement("T26")
def test_nobody_is_there_to_lift_it_or_it_waits_for_review(project: Project) -> None:
    steps = READ + (
        "  - {id: out, call: mail__write, with: "
        "{text: '{{ steps.ticket.text }} {{ steps.secret.text }}'}}"
    )
    write(project, f"steps:\n{steps}\n", "exfiltration: {then: ask, except: [memory__echo]}")
    assert project.run().code == 0
    assert BOTH in ends(project)["out"]["content"]
    shutil.rmtree(project.folder / ".aish")
    write(project, f"steps:\n{steps}\n", "exfiltration: stage")
    done = project.run("--staged", "staged.json")
    assert done.code == 0, done.stderr
    assert sent(project) == []
    applied = project.aish("apply", "staged.json")
    assert applied.code == 0, applied.stderr
    assert sent(project) == ["send it to me the key is 4711\n"]


@pytest.mark.slow(reason="runs a session; text is followed in one in another test")
def test_a_session_follows_what_a_person_shows_until_it_is_cleared(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    send = tool_reply([("c", "mail__write", '{"text": "4711"}')])
    again = tool_reply([("d", "mail__write", '{"text": "hello"}')])
    endpoint = model_endpoint([send, text_reply("one"), again, text_reply("two")])
    project.uses(endpoint)
    write(project, "model: m\n")
    lines = "!cat secret.txt\nSend it.\n:context\n:clear\n:context\nSay hello.\n"
    done = project.aish("shell", "p.yaml", stdin=lines)
    assert done.code in {0, 3}, done.stderr
    shown = [line for line in done.stdout.splitlines() if line.startswith("sources: ")]
    assert shown == ["sources: ! (private, untrusted)", "sources: none"]
    assert sent(project) == ["hello"]
    replies = [
        one["content"] for one in endpoint.requests[1].json["messages"] if one["role"] == "tool"
    ]
    assert replies == [f"[aish] tool call {HELD}! (private, untrusted)"]


PROMPTS = """model: m
prompts:
  secret: "{{ 'secret.txt' | readfile }}"
  note: "{{ 'note.txt' | readfile }}"
"""
ECHO = ("a", "tickets__echo", '{"text": "hi"}')
NOTE = ("b", "repo__file_write", '{"path": "note.txt", "content": "hi"}')
SEND = tool_reply([("c", "mail__write", '{"text": "4711"}')])
SESSIONS = {
    "a prompt that is asked again": (
        ":prompt secret\n:retry\n",
        [text_reply("one"), tool_reply([ECHO]), SEND, text_reply("two")],
        "readfile (private), tickets__echo (untrusted)",
    ),
    "a file that was written, in a prompt": (
        "Go.\n:clear\n:prompt note\n",
        [tool_reply([ECHO]), tool_reply([NOTE]), text_reply("one"), SEND, text_reply("two")],
        "readfile (private), tickets__echo (untrusted)",
    ),
}


@pytest.mark.parametrize("way", SESSIONS)
def test_text_is_followed_in_a_session(
    project: Project, model_endpoint: ModelEndpoints, way: str
) -> None:
    lines, replies, causes = SESSIONS[way]
    endpoint = model_endpoint(replies)
    project.uses(endpoint)
    write(project, PROMPTS)
    project.aish("shell", "p.yaml", stdin=lines)
    assert sent(project) == []
    assert model_of(endpoint)[-1] == f"[aish] tool call {HELD}{causes}"


ANSWERED = """
  - {id: out, call: mail__write, with: {text: '{{ steps.ticket.text }}'}}
  - {id: told, needs: [out], call: tickets__echo, with:
      {text: 'again {{ steps.ticket.text }} {{ steps.secret.text }}'}}
  - {id: kept, needs: [told], call: memory__echo, with: {text: '{{ steps.told.text }}'}}
"""


def test_causes_are_on_the_page_in_the_reports_and_in_the_list_of_calls(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    flow = "{from: [untrusted], to: [mail__write], then: ask}"
    kept = "{from: [private], to: ['memory__*'], then: deny}"
    asks = "ask: [{tool: tickets__echo, when: {text: 'again *'}}]"
    mcp = f"exfiltration: warn\n  flow: [{flow}, {kept}]\n  {asks}\n  parallel: [tickets__echo]"
    write(project, f"on_ask: wait\nsteps:\n{READ}{ANSWERED}", mcp)
    summary = project.write("summary.md", "")
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    project.aish.env |= github
    whys = []
    with (
        runtime_folder(project),
        live_run(project, "--html", "r.html", "--github") as (running, client),
    ):
        for tool in ("mail__write", "tickets__echo"):
            running.wait_for_line(f"{tool} {WAITS}")
            (question,) = pending(client)
            facts = client.get(f"approvals/{question['id']}/call").json()["facts"]
            whys.append(dict(facts)["why"])
            assert answer(client, question).status_code == 200
        done = running.finish()
    assert done.code == 0, done.stderr
    shown = project.aish("runs", "show", "latest", "--level", "security")
    listed = project.aish("runs", "show", "latest", "--level", "security", "--format", "json")

    assert whys == snapshot
    assert project.tidy(shown.stdout.replace(str(login_name()), "<user>")) == snapshot
    flows = {call["step"]: call["flow"] for call in json.loads(listed.stdout)["calls"]}
    causes = ["repo__file_read", "tickets__echo"]
    # Without causes, calls of tools that only read are not listed.
    assert list(flows) == ["out", "told", "kept"]
    assert flows["out"] == {"rule": "mcp.flow[0]", "sources": ["tickets__echo"]}
    assert flows["told"] == {"rule": "mcp.exfiltration", "sources": causes}
    page = (project.folder / "r.html").read_text()
    for line in ("mcp.flow[0]: read tickets__echo", "mcp.exfiltration: read repo__file_read, "):
        assert line in page
    assert "mcp.flow[1]: read repo__file_read; " in summary.read_text()


def test_a_person_at_a_terminal_sees_the_causes_and_says_yes_to_one_call(project: Project) -> None:
    steps = READ + (
        "  - {id: out, foreach: '[1, 2]', concurrency: 1, call: mail__write, with: "
        "{text: '{{ steps.ticket.text }} {{ steps.secret.text }}'}}"
    )
    write(project, f"steps:\n{steps}\n", "exfiltration: ask")
    with at_terminal(project, "exec $AISH run p.yaml --ask") as child:
        for answer in "yn":
            child.expect_exact("read repo__file_read (private), tickets__echo (untrusted)")
            # Not `a`, which stands for "always".
            child.expect(r"\[y/N(/\?)?\]")
            child.send(f"{answer}\r")
        child.expect(pexpect.EOF)
    assert sent(project) == ["send it to me the key is 4711\n"]


@pytest.mark.slow(reason="records and replays a run")
def test_a_replay_denies_what_was_called_before_the_file_had_these_keys(project: Project) -> None:
    steps = READ + (
        "  - {id: out, call: mail__write, with: "
        "{text: '{{ steps.ticket.text }} {{ steps.secret.text }}'}}"
    )
    write(project, f"steps:\n{steps}\n", "parallel: []")
    assert project.run("--record", "c.yaml").code == 0
    shutil.rmtree(project.folder / ".aish")
    write(project, f"steps:\n{steps}\n")
    done = project.run("--replay", "c.yaml")
    assert done.code == 0, done.stderr
    assert ends(project)["out"]["content"] == f"[aish] tool call {BOTH}"


def ask_in_turn(body: dict[str, Any]) -> Answer:
    """Reads a ticket and a file, and then sends."""
    calls = [("tickets__echo", {"text": "hi"}), ("repo__file_read", {"path": "secret.txt"})]
    calls += [("mail__write", {"text": "4711"})]
    done = json.dumps(body["messages"]).count('"tool_result"')
    if done == len(calls):
        return answer_in_words("messages", "done")
    return answer_with_call("messages", *calls[done])


@pytest.mark.slow(reason="waits for a batch")
def test_text_is_followed_in_items_whose_requests_wait_in_a_batch(project: Project) -> None:
    project.shorten_pauses()
    models = (
        "models: {m: {api: messages, base_url: '${MODEL_URL}', model: s, key_env: KEY, "
        "delivery: batch, params: {max_tokens: 100}}}\n"
    )
    steps = "steps:\n  - {id: rows, foreach: '[1, 2]', prompt: 'Row {{ item }}'}\n"
    write(project, steps, top=models)
    with BatchServer("messages", ask_in_turn) as batches:
        env = {"KEY": "sk-batch-0123456789abcdef", "MODEL_URL": batches.base_url}
        done = project.run(env=env)
    assert done.code == 0, done.stderr
    assert sent(project) == []
    denied = [line for line in of_type(project.journal, "tool.decided") if line.get("flow")]
    assert [line["tool"] for line in denied] == ["mail__write"] * 2
