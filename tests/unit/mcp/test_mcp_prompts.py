"""Prompts of servers: listed, filled in, bounded, refused."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import mcp_offered_resources
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_emulators import Legacy, McpEndpoint, Modern
from mcp_scenes import http, play, registry, stdio
from model_endpoint import json_reply
from samples import each_case

from aish.core.errors import AishError, StepFailedError, UnavailableError, UsageError
from aish.core.tools import Media, PromptArgument, PromptMessage, ServerPromptInfo
from aish.mcp.protocol.convert_resources import MAX_MESSAGES, MAX_TEXT, read_messages, read_prompts

CAPABLE: Mapping[str, Any] = {"tools": {}, **mcp_offered_resources.CAPABILITIES}
ERAS = pytest.mark.parametrize("kind", [Legacy, Modern])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
LISTED = (
    ServerPromptInfo(
        "web",
        "review",
        "Review some code",
        (PromptArgument("code", "What to review", required=True), PromptArgument("tone")),
    ),
    ServerPromptInfo("web", "plain", "Without arguments"),
)
MESSAGES = (
    PromptMessage("user", "Review x = 1, sternly"),
    PromptMessage("assistant", "# Guide\nSnow \u2028 é"),
    PromptMessage(
        "user", "[link: docs://logo] logo", (Media("image/png", mcp_offered_resources.PICTURE),)
    ),
)
FILLED = {"code": "x = 1", "tone": "sternly"}


def got(handler: Any, name: str = "review", **arguments: str) -> Any:
    """What a prompt comes to: its messages, or the error."""
    with McpEndpoint(handler) as end:

        async def scene() -> Any:
            async with registry(http(end.url)) as s:
                try:
                    return await s.registry.get_prompt("web", name, arguments)
                except AishError as failed:
                    return failed

        return play(scene)


def messages(*found: Any) -> Any:
    return got(Legacy(capabilities=CAPABLE, prompts__get=lambda _: {"messages": [*found]}))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@ERAS
def test_prompts_are_listed_with_their_arguments(kind: type[Legacy]) -> None:
    with McpEndpoint(kind(capabilities=CAPABLE)) as end:

        async def scene() -> Any:
            async with registry(stdio(), http(end.url)) as s:
                return await s.registry.prompts(), s.notices.said

        assert play(scene) == (LISTED, [])


@ERAS
def test_a_prompt_is_filled_in(kind: type[Legacy]) -> None:
    assert got(kind(capabilities=CAPABLE), **FILLED) == MESSAGES


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_child_is_asked_in_the_same_way(era: str) -> None:
    async def scene() -> None:
        async with registry(stdio("--offers", "--era", era)) as s:
            assert [one.name for one in await s.registry.prompts()] == ["review", "plain"]
            assert await s.registry.get_prompt("kid", "review", FILLED) == MESSAGES
            assert await s.registry.get_prompt("kid", "plain", {}) == (
                PromptMessage("user", "Say hello"),
            )

    play(scene)


@ERAS
def test_a_server_that_refuses_is_told_apart_from_one_that_does_not_answer(
    kind: type[Legacy],
) -> None:
    refused = got(kind(capabilities=CAPABLE))
    assert isinstance(refused, StepFailedError)
    assert str(refused) == (
        "mcp server `web`: it refused the prompt `review`: Missing required argument: code"
    )
    broken = json_reply(502, {"error": "bad gateway"})
    away = got(kind(capabilities=CAPABLE, prompts__get=lambda _: broken))
    assert isinstance(away, UnavailableError)
    assert "HTTP 502" in away.message


def test_a_server_that_does_not_declare_prompts_is_not_asked() -> None:
    async def scene() -> None:
        async with registry(stdio()) as s:
            assert await s.registry.prompts() == ()
            with pytest.raises(StepFailedError, match="`kid`: it offers no prompts"):
                await s.registry.get_prompt("kid", "review", {})
            with pytest.raises(UsageError, match="there is no such server"):
                await s.registry.get_prompt("web", "review", {})

    play(scene)


@each_case(
    "found, reason",
    [
        ([], "the answer has no messages"),
        ([{"role": "system", "content": "x"}], "neither of the user nor of the assistant"),
        ([user({"type": "video"})], "content of unknown type video"),
        ([user({"type": "image", "data": "!", "mimeType": "image/png"})], "neither text nor"),
        (
            [user({"type": "image", "data": "", "mimeType": "text/html"})],
            "its image is binary (text/html)",
        ),
        ([user({"type": "resource", "resource": {"uri": "a:b", "blob": "/w=="}})], "is binary"),
        ([user("x")] * (MAX_MESSAGES + 1), f"it has more than {MAX_MESSAGES} messages"),
        ([user("x" * MAX_TEXT), user("x")], "1024 KiB of text"),
    ],
)
def test_messages_that_cannot_be_used_are_refused(found: list[Any], reason: str) -> None:
    failed = messages(*found)
    assert isinstance(failed, StepFailedError)
    assert failed.message.startswith("the prompt `review` cannot be used: ")
    assert reason in failed.message


def test_what_is_malformed_in_a_row_costs_that_row() -> None:
    said: list[str] = []
    page = {"prompts": [3, {"name": ""}, {"name": "x", "arguments": [3, {}, {"name": "a"}]}]}

    found = [*read_prompts(page, "web", lambda code, _: said.append(code))]

    assert found == [ServerPromptInfo("web", "x", "", (PromptArgument("a"),))]
    assert said == ["malformed_list", "malformed_prompt"]


@given(JSON)
def test_no_messages_break_the_reader(value: Any) -> None:
    block = {"type": "resource", "resource": value}
    for found in (value, [value], [user(value)], [user([value, block])]):
        with suppress(ValueError):
            assert read_messages({"messages": found})


@given(JSON)
def test_no_list_breaks_the_reader(value: Any) -> None:
    rows = [value, {"name": value, "arguments": value}, {"name": "x", "arguments": [value]}]
    for page in ({"prompts": value}, {"prompts": rows}):
        for one in read_prompts(page, "web", lambda *_: None):
            assert one.name
