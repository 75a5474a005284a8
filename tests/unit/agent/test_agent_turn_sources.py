"""All ways by which text enters a request: each says where it came from, or has a reason here."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "aish"
TURNS = {"SystemTurn": 2, "UserTurn": 3, "AssistantTurn": 5, "ToolTurn": 6}
"""The turns of a conversation, and which of their arguments are the sources."""

# Where a turn is made without its sources, and why none are lost.
_OWN_WORDS = "words of aish itself"
_OF_ALL = "an answer gets the sources of the conversation that it is added to"
_LATER = "the caller gives all turns of the beginning their sources"
WITHOUT = {
    "agent/conversation.py: UserTurn": "output of own commands: the session adds their source",
    "agent/restore.py: ToolTurn": _OWN_WORDS,
    "agent/sampling.py: AssistantTurn": "a server's own text, whose answer it gets; no tools",
    "agent/sampling.py: SystemTurn": "a server's own text, whose answer it gets; no tools",
    "agent/sampling.py: UserTurn": "a server's own text, whose answer it gets; no tools",
    "agent/tool_round.py: ToolTurn": _OWN_WORDS,
    "engine/steps/prompt_inputs.py: AssistantTurn": _LATER,
    "engine/steps/prompt_inputs.py: UserTurn": _LATER,
    "features/served_models.py: UserTurn": _OWN_WORDS,
    "models/turn_pause.py: AssistantTurn": "sent again, and in no conversation",
    "shell/control_commands.py: AssistantTurn": "`replace_conversation` gives all turns `unknown`",
    "shell/control_commands.py: SystemTurn": "the frame of the file",
    "shell/control_commands.py: ToolTurn": "`replace_conversation` gives all turns `unknown`",
    "shell/control_commands.py: UserTurn": "`replace_conversation` gives all turns `unknown`",
    "shell/exchange.py: AssistantTurn": _OF_ALL,
    "shell/pending_input.py: UserTurn": "for an event only",
    "shell/resume.py: AssistantTurn": _OF_ALL,
    "shell/session.py: SystemTurn": "the frame of the file",
}


def turns_without_sources() -> dict[str, int]:
    """Where a turn is made to which no sources are given."""
    found: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            place = TURNS.get(node.func.id)
            named = {keyword.arg for keyword in node.keywords}
            if place is not None and len(node.args) < place and not named & {"sources", None}:
                found[f"{path.relative_to(PACKAGE)}: {node.func.id}"] = node.lineno
    return found


def test_each_way_into_a_request_has_a_source() -> None:
    assert sorted(turns_without_sources()) == sorted(WITHOUT)
