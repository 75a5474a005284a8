"""Which calls were made and denied: told from events, told from a recording."""

from pathlib import Path

import pytest
from cassette_exchanges import answer
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import asks, called, calls, command, read, rpc, says, session
from scripted_events import stamped

from aish.cassettes.format.interaction import Interaction, Request
from aish.config.loader import load_pipeline
from aish.core.events import Event, Place, ToolDecided, ToolStarted, Verdict
from aish.core.json import JsonValue
from aish.core.tools import ToolName
from aish.features.suggest.calls import CallHistory, calls_in_cassette, calls_in_events
from aish.mcp.protocol.convert import wire_name
from aish.policy.suggest import Made

ECHO = ToolName("s", "echo")
READ = ToolName("files", "read")
DENIED = "[aish] tool call denied: no rule approves files__read"
YES = {"auto", "ask-yes"}
AT_URL = "https://tools.test:8443/mcp"


def decided(call: str, verdict: Verdict, arguments: JsonValue = None) -> ToolDecided:
    given = {"text": call} if arguments is None else arguments
    place = Place("main", turn=1, call=call)
    return ToolDecided(place, "s__echo", "s", "echo", given, "digest", verdict, "rule")


def started(call: str) -> ToolStarted:
    return ToolStarted(Place("main", turn=1, call=call), "s__echo")


def texts(made: tuple[Made, ...]) -> list[JsonValue]:
    assert {call.tool for call in made} <= {ECHO}
    return [call.arguments["text"] for call in made]


# --- Events ----------------------------------------------------------------------------------


def test_what_was_approved_and_begun_was_made() -> None:
    found = calls_in_events(
        stamped(
            decided("by rule", "auto"),
            started("by rule"),
            decided("by person", "ask-yes"),
            decided("never begun", "ask-yes"),
            started("by person"),
            decided("nobody", "ask-no"),
            decided("rule", "deny"),
            decided("later", "staged"),
            decided("odd", "auto", ["no object"]),
            started("odd"),
            started("unheard of"),
        )
    )
    assert texts(found.made) == ["by rule", "by person"]
    assert texts(found.denied) == ["nobody", "rule"]
    assert found.untold == ()


@given(st.lists(st.tuples(st.sampled_from(["auto", "ask-yes", "ask-no", "deny"]), st.booleans())))
def test_every_decision_is_told_as_it_was(rows: list[tuple[Verdict, bool]]) -> None:
    events: list[Event] = []
    for number, (verdict, begun) in enumerate(rows):
        events.append(decided(str(number), verdict))
        if begun and verdict in YES:
            events.append(started(str(number)))
    found = calls_in_events(stamped(*events))
    numbered = [(str(number), *row) for number, row in enumerate(rows)]
    assert texts(found.made) == [n for n, v, begun in numbered if begun and v in YES]
    assert texts(found.denied) == [n for n, v, _ in numbered if v in {"ask-no", "deny"}]


# --- Recordings ------------------------------------------------------------------------------


def told(*interactions: Interaction) -> CallHistory:
    return calls_in_cassette(interactions, None)


def test_a_recording_tells_of_tools_and_commands() -> None:
    found = told(*session(), read("a.txt", "A"), read("b.txt", "B"), command("list", ["ls", "-a"]))
    assert found.made == (
        Made(READ, {"path": "a.txt"}),
        Made(READ, {"path": "b.txt"}),
        Made(ToolName("shell", "run"), {"argv": ["ls", "-a"]}),
    )
    assert not found.denied
    assert not found.untold


def test_a_command_line_is_told_as_the_text_that_it_was() -> None:
    request = Request("EXEC", "exec://run-1", body=b'{"command": "ls | wc"}')
    found = told(Interaction(request, answer('{"exit_code": 0, "stdout": "", "stderr": ""}')))
    assert found.made == (Made(ToolName("shell", "run"), {"command": "ls | wc"}),)


@pytest.mark.parametrize("arguments", ['{"path": "x"}', '"{\\"path\\": \\"x\\"}"'])
def test_a_denial_is_told_by_the_reply_that_the_model_got(arguments: str) -> None:
    user = {"role": "user", "content": "Read x"}
    asked = called("c1", "files__read", arguments)
    reply = {"role": "tool", "tool_call_id": "c1", "content": DENIED}
    other = {"role": "tool", "tool_call_id": "c1", "content": f"it said: {DENIED}"}
    first = Interaction(asks(user), calls("c1", "files__read", arguments))
    found = told(first, Interaction(asks(user, asked, reply), says("No")))
    assert found.denied == (Made(READ, {"path": "x"}),)
    assert told(first, Interaction(asks(user, asked, other), says("No"))).denied == ()


def test_a_denial_is_told_where_results_go_out_as_text() -> None:
    user = {"role": "user", "content": "Read x"}
    first = Interaction(asks(user), calls("c1", "files__read", '{"path": "x"}'))
    results = {"role": "user", "content": f"[tool: files__read]\n{DENIED}"}
    said = {"role": "assistant", "content": ""}
    found = told(first, Interaction(asks(user, said, results), says("No")))
    assert found.denied == (Made(READ, {"path": "x"}),)
    twice = f"[tool: files__read]\n[tool: x]\n[tool: files__read]\n{DENIED}"
    forged = {"role": "user", "content": twice}
    again = told(first, Interaction(asks(user, said, forged), says("No")))
    assert again.denied == (Made(READ, {"path": "x"}),)


def test_a_denial_is_told_of_a_tool_that_models_know_by_another_name() -> None:
    tool = ToolName("files", "read.file of mine")
    wire = wire_name(tool, 64)
    listed = rpc("tools/list", {"tools": [{"name": tool.name}]})
    user = {"role": "user", "content": "Read x"}
    asked = called("c1", wire, "{}")
    reply = {"role": "tool", "tool_call_id": "c1", "content": DENIED}
    first = Interaction(asks(user), calls("c1", wire, "{}"))
    found = told(listed, first, Interaction(asks(user, asked, reply), says("No")))
    assert found.denied == (Made(tool, {}),)


def test_a_folder_of_another_machine_is_not_known_exactly() -> None:
    (call,) = told(*session(), read("<root>/a.txt", "A")).made
    assert "<root>" in call.unknown


# --- Whose tools -----------------------------------------------------------------------------


def test_a_server_at_a_url_is_known_by_the_names_that_models_saw() -> None:
    called_there = read("a.txt", "A", uri=AT_URL)
    (call,) = told(*session(AT_URL), called_there, Interaction(asks(), says("x"))).made
    assert call.tool == READ


@pytest.mark.parametrize(
    ("servers", "alias"),
    [
        (f"{{other: {{url: 'https://elsewhere.test/mcp'}}, mine: {{url: '{AT_URL}'}}}}", "mine"),
        ("{only: {url: 'https://moved.test/mcp'}, ours: {pack: [fs], root: .}}", "only"),
        ("{one: {url: 'https://a.test/mcp'}, two: {url: 'https://b.test/mcp'}}", None),
    ],
)
def test_a_server_at_a_url_is_known_by_the_file(
    tmp_path: Path, servers: str, alias: str | None
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"aish: 1\nmodels: {{m: {{embedded: smollm2}}}}\nmcp: {{servers: {servers}}}\n")
    recorded = [*session(AT_URL), read("a.txt", "A", uri=AT_URL)]
    found = calls_in_cassette(recorded, load_pipeline(path))
    if alias is None:
        assert found.made == ()
        (untold,) = found.untold
        assert "`read` at tools.test:8443/mcp" in untold
    else:
        assert [call.tool for call in found.made] == [ToolName(alias, "read")]
