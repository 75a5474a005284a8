"""Answers of an endpoint in the form of each `api`, for tests that hold on all of them."""

from itertools import starmap

import messages_streams
import responses_streams
from model_endpoint import Reply, stream_reply, text_reply, tool_reply

Call = tuple[str, str, str]
"""The id, the tool and the arguments of a call."""


def asking(api: str, *calls: Call) -> Reply:
    """An answer with these calls."""
    match api:
        case "messages":
            blocks = [messages_streams.call(*call, index=at) for at, call in enumerate(calls)]
            ends = messages_streams.ends("tool_use")
            return stream_reply(messages_streams.start(), *blocks, ends)
        case "responses":
            return responses_streams.reply(*starmap(responses_streams.call, calls))
        case _:
            return tool_reply(list(calls))


def answer(api: str, text: str) -> Reply:
    """An answer of text."""
    match api:
        case "messages":
            said = messages_streams.text(text)
            return stream_reply(messages_streams.start(), said, messages_streams.ends())
        case "responses":
            return responses_streams.reply(responses_streams.message(text))
        case _:
            return text_reply(text)


def thoughtful(api: str, thought: str, call: Call) -> Reply:
    """An answer that thinks and calls; whatever only its endpoint may see has the thought in it."""
    if api == "messages":
        thinks = messages_streams.thinking(thought, f"signed-{thought}")
        calls = messages_streams.call(*call, index=1)
        ends = messages_streams.ends("tool_use")
        return stream_reply(messages_streams.start(), thinks, calls, ends)
    thinks_about = responses_streams.reasoning(thought, id=f"rs_{thought}")
    return responses_streams.reply(thinks_about, responses_streams.call(*call))
