"""Replies that are written by aish and not by a tool, all marked `[aish]`.

Untrusted text must be masked by the caller: some of it is truncated, and a truncated secret would
not be recognized.
"""

import re
from collections.abc import Sequence

from aish.core.patterns import lazy_pattern
from aish.core.phrases import counted, first_of, shorten
from aish.core.text import for_line, safe_utf8

NO_OUTPUT = "[aish] (no output)"
DEPTH_REACHED = "[aish] tool-call depth limit reached"
NO_MORE_CALLS = "[aish] tool call not run: the limit on tool calls is reached"
NOT_RUN_AFTER_DENIAL = "[aish] tool call not run: an earlier call of this turn was denied"
NOT_RUN_INTERRUPTED = "[aish] tool call not run: interrupted"
UNANSWERED = "[aish] interrupted before this call was answered"
INTERRUPTED = "[aish] tool call interrupted; whether it took effect is not known"
EMPTY_ANSWER = "[aish] (empty answer)"

_ROUNDS_LEFT_OUT = lazy_pattern(r"^\[aish\] [\d,]+ earlier rounds? left out here", re.MULTILINE)
_LEFT_OUT = lazy_pattern(r"\[aish\] result of .* left out \([\d,]+ characters?\)")
_SHOWN_NAME = 80
_SHOWN_NAMES = 8
_SHOWN_REASON = 400


def not_parseable(why: str) -> str:
    """The reply to arguments that are not a JSON object."""
    return f"[aish] tool arguments not parseable as JSON: {_short(why, _SHOWN_REASON)}"


def server_instructions(server: str, said: str) -> str:
    return (
        f"What the tool server `{server}` says about its use, and not the user:\n{safe_utf8(said)}"
    )


def denial(reply: str, arguments: str) -> str:
    """Return the denial of a call with its arguments, for the author of the rules."""
    return f"{reply.removeprefix('[aish] ')}; its arguments: {_short(arguments, _SHOWN_REASON)}"


def does_not_fit(path: str, why: str) -> str:
    """The reply to arguments that do not match the tool's `inputSchema`."""
    place = _short(path, _SHOWN_NAME) or "arguments"
    return f"[aish] tool arguments do not fit the schema: {place}: {_short(why, _SHOWN_REASON)}"


def odd_output(tool: str, why: str) -> str:
    """The notice on a result that does not match the tool's `outputSchema`."""
    return f"{tool}: the result does not fit its output schema: {_short(why, _SHOWN_REASON)}"


def too_many(count: int, limit: int) -> str:
    """The reply to each call of a turn with too many calls."""
    return f"[aish] {count} tool calls in one turn, and at most {limit} are allowed: none was run"


def text_of_stopped_command(seconds: float, printed: str) -> str:
    said = f"[aish] the command was ended after {seconds:.1f} s"
    return f"{said}; it had printed:\n{printed}" if printed else f"{said}; it had printed nothing"


def text_of_omitted_result(tool: str, characters: int) -> str:
    """The replacement of an old result in a long conversation."""
    size = "1 character" if characters == 1 else f"{characters:,} characters"
    return f"[aish] result of {_short(tool, _SHOWN_NAME)} left out ({size})"


def is_left_out(text: str) -> bool:
    """Return true if a text is already such a replacement."""
    return _LEFT_OUT.fullmatch(text) is not None


def media_gone(kind: str) -> str:
    """The replacement of an image of an earlier part of a conversation that was not stored."""
    mime_type = for_line(kind) if len(kind) <= _SHOWN_NAME else ""
    return f"[aish] no longer there: {mime_type or 'unknown type'}"


def rounds_left_out(rounds: int, model: str = "", summary: str = "") -> str:
    """The replacement of the oldest rounds of a long conversation, or their summary."""
    gone = f"[aish] {counted(rounds, 'earlier round')} left out here"
    if not summary:
        return gone
    marked = f"a summary by model `{model}`, not the user's words"
    return f"{gone}; {marked}:\n{summary}\n[aish] end of the summary"


def is_shortened(text: str) -> bool:
    """Return true if such a note is in a question, so that the conversation was longer."""
    return _ROUNDS_LEFT_OUT.search(text) is not None


def unknown_tool(name: str, known: Sequence[str]) -> str:
    """The reply to a name that no visible tool has, with the closest right names."""
    message = f"[aish] no such tool: {_short(name, _SHOWN_NAME) or '(no name)'}"
    if not known:
        return f"{message}; no tools can be called here"
    near = nearest(name, known)
    if near:
        return f"{message}; did you mean {' or '.join(near)}?"
    return f"{message}; the tools are {first_of(known, _SHOWN_NAMES)}"


def nearest(name: str, known: Sequence[str]) -> tuple[str, ...]:
    """Up to three known names similar to `name`, the most similar first."""
    # Imported only for a wrong name.
    import difflib

    name = name[:_SHOWN_NAME]
    without_alias = [tool for tool in known if name and tool.endswith(f"__{name}")]
    alike = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return tuple(dict.fromkeys(without_alias + alike))[:3]


def _short(text: str, limit: int) -> str:
    return shorten(for_line(text), limit)
