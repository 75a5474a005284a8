"""Resources of servers: listed, read, bounded, refused."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio
import mcp_offered_resources
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_dynamic_registry import dynamic_registry
from mcp_emulators import Legacy, McpEndpoint, Modern, error
from mcp_scenes import http, play, registry, stdio
from model_endpoint import CUT, Gate, Recorded, Reply, json_reply

from aish.core.errors import AishError, StepFailedError, UnavailableError, UsageError
from aish.core.tools import Media, Part, Resource
from aish.mcp.protocol.convert_resources import (
    MAX_MEDIA,
    MAX_PARTS,
    MAX_TEXT,
    read_contents,
    read_resources,
)

CAPABLE: Mapping[str, Any] = {"tools": {}, **mcp_offered_resources.CAPABILITIES}
ERAS = pytest.mark.parametrize("kind", [Legacy, Modern])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
ROWS = (
    Resource("web", "docs://guide", "The guide", "How to use it", "text/markdown"),
    Resource("web", "docs://logo", "logo", "", "image/png"),
    Resource("web", "docs://archive", "archive", "", "application/zip"),
    Resource("web", "docs://page/{number}", "A page", template=True),
)
GUIDE = Part("docs://guide", "text/markdown", text="# Guide\nSnow \u2028 é")


def read(handler: Any, uri: str = "docs://guide", **fields: Any) -> Any:
    """What a resource comes to: its parts, or the error."""
    with McpEndpoint(handler) as end:

        async def scene() -> Any:
            async with registry(http(end.url, **fields)) as s:
                try:
                    return await s.registry.read_resource("web", uri)
                except AishError as failed:
                    return failed

        return play(scene)


def contents(*parts: Any) -> Any:
    return read(Legacy(capabilities=CAPABLE, resources__read=lambda _: {"contents": [*parts]}))


@ERAS
def test_resources_and_templates_are_listed_from_all_pages(kind: type[Legacy]) -> None:
    with McpEndpoint(kind(capabilities=CAPABLE)) as end:

        async def scene() -> Any:
            async with registry(http(end.url), stdio()) as s:
                return await s.registry.resources(), s.notices.said

        assert play(scene) == (ROWS, [])
    assert end.methods.count("resources/list") == 2


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_child_is_asked_in_the_same_way(era: str) -> None:
    async def scene() -> None:
        async with registry(stdio("--offers", "--era", era)) as s:
            assert [one.uri for one in await s.registry.resources()] == [one.uri for one in ROWS]
            assert await s.registry.read_resource("kid", "docs://guide") == (GUIDE,)

    play(scene)


@ERAS
def test_a_text_is_read(kind: type[Legacy]) -> None:
    assert read(kind(capabilities=CAPABLE)) == (GUIDE,)


def test_a_resource_of_a_template_is_read_by_its_own_address() -> None:
    (part,) = read(Legacy(capabilities=CAPABLE), "docs://page/7")
    assert (part.text, part.mime) == ("page 7", "")


def test_a_picture_is_media() -> None:
    (part,) = read(Legacy(capabilities=CAPABLE), "docs://logo")
    assert part.text is None
    assert part.media == Media("image/png", mcp_offered_resources.PICTURE)


def test_what_no_model_can_be_given_is_an_error_that_says_so() -> None:
    failed = read(Legacy(capabilities=CAPABLE), "docs://archive")

    assert isinstance(failed, StepFailedError)
    assert str(failed) == (
        "mcp server `web`: the resource `docs://archive` cannot be used: `docs://archive` is binary"
        " (application/zip): only text, images, audio and PDFs can be sent to a model"
    )


@pytest.mark.parametrize("mime", ["text/plain; charset=utf-8", "application/ld+json", ""])
def test_text_that_comes_as_a_blob_is_text(mime: str) -> None:
    (part,) = contents(
        {"uri": "a", "mimeType": mime, "blob": mcp_offered_resources.blob("é".encode())}
    )
    assert (part.text, part.media) == ("é", None)


@pytest.mark.parametrize(("mime", "data"), [("text/plain", b"\xff"), ("", b"\xff"), ("", b"a\0")])
def test_bytes_that_are_no_text_are_not_taken_for_it(mime: str, data: bytes) -> None:
    found = contents({"uri": "a", "mimeType": mime, "blob": mcp_offered_resources.blob(data)})
    assert "binary" in str(found)


def test_a_resource_may_have_several_parts_and_none() -> None:
    assert contents() == ()
    assert contents({"uri": "a", "text": "1"}, {"text": "2"}) == (
        Part("a", "", text="1"),
        Part("docs://guide", "", text="2"),
    )


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([{"text": "x" * (MAX_TEXT // 2)}, {"text": "é" * (MAX_TEXT // 4 + 1)}], "1024 KiB of"),
        ([{"text": ""}] * (MAX_PARTS + 1), f"it has more than {MAX_PARTS} parts"),
        (
            [{"mimeType": "image/png", "blob": mcp_offered_resources.blob(b"x" * (MAX_MEDIA + 1))}],
            "more than 16 MiB of media",
        ),
    ],
)
def test_a_resource_has_bounds(parts: list[Any], reason: str) -> None:
    failed = contents(*parts)
    assert isinstance(failed, StepFailedError)
    assert reason in failed.message


def test_a_megabyte_of_text_is_read_whole() -> None:
    (part,) = contents({"text": "x" * MAX_TEXT})
    assert part.text == "x" * MAX_TEXT


@pytest.mark.parametrize("answer", [{}, {"contents": {}}, {"contents": [3]}, {"contents": [{}]}])
def test_an_answer_that_is_malformed_is_refused(answer: Any) -> None:
    failed = read(Legacy(capabilities=CAPABLE, resources__read=lambda _: answer))
    assert isinstance(failed, StepFailedError)
    assert failed.message.startswith("the resource `docs://guide` cannot be used: ")


@ERAS
def test_a_server_that_refuses_is_told_apart_from_one_that_does_not_answer(
    kind: type[Legacy],
) -> None:
    refused = read(kind(capabilities=CAPABLE), "docs://nothing")
    assert isinstance(refused, StepFailedError)
    assert str(refused) == (
        "mcp server `web`: it refused the resource `docs://nothing`: "
        "Resource not found: docs://nothing"
    )
    unauthorized = json_reply(401, {"error": "unauthorized"})
    away = read(kind(capabilities=CAPABLE, resources__read=lambda _: unauthorized))
    assert isinstance(away, UnavailableError)
    assert "HTTP 401" in away.message
    assert away.retryable


def test_an_answer_that_does_not_come_is_waited_for_so_long() -> None:
    gate = Gate()

    def silent(request: Recorded) -> Reply:
        return Legacy(capabilities=CAPABLE).usual(request).but(before_head=gate)

    failed = read(Legacy(capabilities=CAPABLE, resources__read=silent), call=0.2)
    gate.open()
    assert isinstance(failed, UnavailableError)
    assert "no answer within 0.2 s" in failed.message


def test_a_connection_that_breaks_is_no_refusal() -> None:
    broken = Reply(parts=(b'{"jsonrpc"', CUT), headers={"content-type": "application/json"})
    failed = read(Legacy(capabilities=CAPABLE, resources__read=lambda _: broken))
    assert isinstance(failed, UnavailableError)


def test_a_server_that_does_not_declare_resources_is_not_asked() -> None:
    with McpEndpoint(Legacy(resources__list=lambda _: pytest.fail("asked"))) as end:

        async def scene() -> None:
            async with registry(http(end.url)) as s:
                assert await s.registry.resources() == ()
                with pytest.raises(StepFailedError, match="`web`: it offers no resources"):
                    await s.registry.read_resource("web", "docs://guide")

        play(scene)


def test_a_capability_spelled_as_an_empty_list_is_one() -> None:
    (part,) = read(Legacy(capabilities={"resources": []}))
    assert part == GUIDE


def test_a_server_without_templates_lists_the_rest() -> None:
    def none(request: Recorded) -> Reply:
        return error(request, -32601, "Method not found")

    with McpEndpoint(Legacy(capabilities=CAPABLE, resources__templates__list=none)) as end:

        async def scene() -> None:
            async with registry(http(end.url)) as s:
                assert await s.registry.resources() == ROWS[:3]
                assert s.notices.said == []

        play(scene)


def test_one_that_cannot_list_is_told_of_and_costs_only_its_own() -> None:
    def refused(request: Recorded) -> Reply:
        return error(request, -32603, "out of order")

    with McpEndpoint(Legacy(capabilities=CAPABLE, resources__list=refused)) as end:

        async def scene() -> None:
            async with registry(http(end.url), stdio("--offers")) as s:
                found = await s.registry.resources()
                assert [one.server for one in found] == ["web", "kid", "kid", "kid", "kid"]
                assert s.notices.said == [
                    ("web", "list_failed", "it refused `resources/list`: out of order")
                ]

        play(scene)


def test_a_list_without_end_is_cut_off() -> None:
    def endless(request: Recorded) -> Any:
        cursor = int(request.json["params"].get("cursor", 0))
        rows = [{"uri": f"a://{cursor}/{number}"} for number in range(100)]
        return {"resources": rows, "nextCursor": str(cursor + 1)}

    with McpEndpoint(Legacy(capabilities=CAPABLE, resources__list=endless)) as end:

        async def scene() -> None:
            async with registry(http(end.url)) as s:
                assert len(await s.registry.resources()) == 2001
                assert s.notices.codes == ["too_many_pages"]

        play(scene)


def test_what_is_malformed_in_a_row_costs_that_row() -> None:
    said: list[str] = []
    page = {"resources": [3, {}, {"uri": "a" * 10_000}, {"uri": "a:b", "name": 7, "mimeType": []}]}

    found = [*read_resources(page, "web", lambda code, _: said.append(code))]

    assert found == [Resource("web", "a:b", "a:b")]
    assert said == ["malformed_list", "malformed_resource", "malformed_resource"]


def test_a_server_that_is_not_there_is_named() -> None:
    async def scene() -> None:
        async with registry(stdio(alias="docs"), stdio("--die-at-start", alias="dead")) as s:
            with pytest.raises(UsageError) as unknown:
                await s.registry.read_resource("doc", "a:b")
            assert str(unknown.value) == "mcp server `doc`: there is no such server"
            assert unknown.value.hint == "did you mean `docs`"
            with pytest.raises(UnavailableError, match="cannot find my configuration"):
                await s.registry.read_resource("dead", "a:b")
            assert await s.registry.resources() == ()

    play(scene)


def test_whoever_asks_while_a_server_connects_waits_for_it() -> None:
    gate = Gate()

    def slow(request: Recorded) -> Reply:
        return Legacy(capabilities=CAPABLE).usual(request).but(before_head=gate)

    with McpEndpoint(Legacy(capabilities=CAPABLE, initialize=slow)) as end:

        async def scene() -> None:
            async with dynamic_registry(http(end.url, protocol="legacy"), settled=False) as s:
                found: list[Any] = []

                async def listing() -> None:
                    found.append(await s.registry.resources())

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(listing)
                    await gate.arrival()
                    gate.open()
                    assert await s.registry.read_resource("web", "docs://guide") == (GUIDE,)
                assert found == [ROWS]

        play(scene)


def test_a_server_that_asks_before_it_answers_hears_a_no() -> None:
    def asking(request: Recorded) -> Any:
        params = request.json["params"]
        if "inputResponses" not in params:
            question = {"method": "elicitation/create", "params": {"message": "sure?"}}
            return {"resultType": "input_required", "inputRequests": {"q": question}}
        text = json.dumps(params["inputResponses"])
        return {"resultType": "complete", "contents": [{"uri": params["uri"], "text": text}]}

    (part,) = read(Modern(capabilities=CAPABLE, resources__read=asking))
    assert part.text == '{"q": {"action": "decline"}}'


@given(JSON)
def test_no_contents_break_the_reader(value: Any) -> None:
    for answer in ({"contents": value}, {"contents": [value]}, {"contents": [{"blob": value}]}):
        with suppress(ValueError):
            assert isinstance(read_contents(answer, "a:b"), tuple)


@given(JSON)
def test_no_list_breaks_the_reader(value: Any) -> None:
    for page in ({"resources": value}, {"resources": [value, {"uri": value, "name": value}]}):
        for one in read_resources(page, "web", lambda *_: None):
            assert one.uri
