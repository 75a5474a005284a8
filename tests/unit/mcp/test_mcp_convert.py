import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.config.model import ServerEntry
from aish.core.tools import Annotations, Media
from aish.mcp.protocol.convert import ListTrust, read_result, tool_list

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "text", "name", "properties", "data", "uri", "resource"])
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=16,
)


def tools(*listed: Any, reading: ListTrust | None = None) -> tuple[list[Any], list[str]]:
    said: list[str] = []
    page = {"tools": list(listed)}
    found = listed_in(page, said, reading or ListTrust())
    return found, said


def listed_in(page: Any, said: list[str], reading: ListTrust) -> list[Any]:
    entry = ServerEntry(alias="s")
    found = tool_list([page], reading, entry, lambda _, text: said.append(text))
    return list(found.definitions.values())


def schema_of(schema: Any) -> Any:
    (found,), said = tools({"name": "t", "inputSchema": schema})
    assert not said
    return found.input_schema


def test_nothing_is_said_of_tools_that_the_entry_does_not_select() -> None:
    said: list[str] = []
    page: Any = {
        "tools": [
            {"name": "task", "inputSchema": {}, "execution": {"taskSupport": "required"}},
            {"name": "odd", "inputSchema": {"type": None}},
            {"name": "add", "inputSchema": {"type": "object"}},
        ]
    }

    def warn(_: str, text: str) -> None:
        said.append(text)

    wanted = ServerEntry(alias="s", tools=("add",))
    assert set(tool_list([page], ListTrust(), wanted, warn).definitions) == {"add"}
    assert said == []
    left = ServerEntry(alias="s", exclude=("odd",))
    assert set(tool_list([page], ListTrust(), left, warn).definitions) == {"add"}
    assert said == ["tool `task` is left out: it can only be called as a task"]


def test_a_right_schema_is_the_very_object_the_server_sent() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/b"}], "default": []}},
        "$defs": {"b": {"type": "array", "items": {}, "enum": [[]]}},
        "required": [],
    }
    assert schema_of(schema) is schema


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"type": "object", "properties": []}, {"type": "object", "properties": {}}),
        ([], {"type": "object", "properties": {}}),
        ({}, {"type": "object", "properties": {}}),
        (None, {"type": "object", "properties": {}}),
        (
            {"type": "object", "properties": {"x": []}, "required": []},
            {"type": "object", "properties": {"x": {}}, "required": []},
        ),
        (
            {"type": "object", "properties": {"x": {"type": "object", "properties": []}}},
            {"type": "object", "properties": {"x": {"type": "object", "properties": {}}}},
        ),
        (
            {"type": "object", "additionalProperties": [], "anyOf": [[], {"not": []}]},
            {"type": "object", "additionalProperties": {}, "anyOf": [{}, {"not": {}}]},
        ),
    ],
)
def test_empty_objects_that_came_as_lists_are_mended(sent: Any, meant: Any) -> None:
    assert schema_of(sent) == meant


def test_a_missing_schema_means_no_parameters() -> None:
    (found,), said = tools({"name": "t"})
    assert (found.input_schema, said) == ({"type": "object", "properties": {}}, [])


@pytest.mark.requirement("M6")
@each_case(
    "broken, why",
    [
        ("text", "tool number 1 is left out: it is not an object"),
        ({"name": ""}, "tool number 1 is left out: it has no name"),
        ({"name": 7}, "tool number 1 is left out: it has no name"),
        ({"name": "x" * 600}, "its name has more than 512 characters"),
        ({"name": "b", "inputSchema": "no"}, "tool `b` is left out: its `inputSchema` is not"),
        ({"name": "b", "inputSchema": {"type": "string"}}, "is not the schema of an object"),
        ({"name": "b", "outputSchema": 7}, "its `outputSchema` is not an object"),
        (
            {"name": "b", "inputSchema": {"type": "object", "title": "x" * 300_000}},
            "tool `b` is left out: its `inputSchema` is larger than 256 KiB",
        ),
    ],
)
def test_a_malformed_tool_costs_that_tool_only(broken: Any, why: str) -> None:
    found, said = tools(broken, {"name": "good"})
    assert [one.name for one in found] == ["good"]
    assert why in said[0]


def test_a_list_of_tools_that_is_none_is_reported() -> None:
    said: list[str] = []
    assert listed_in({"tools": "x"}, said, ListTrust()) == []
    assert listed_in({"tools": {}}, said, ListTrust()) == []
    assert said == ["its list of tools is not a list"]


def test_annotations_are_taken_where_they_are_booleans() -> None:
    claims = {"readOnlyHint": True, "destructiveHint": "no", "openWorldHint": False}
    (first, second), _ = tools(
        {"name": "a", "title": "A", "annotations": claims}, {"name": "b", "annotations": []}
    )
    assert first.annotations == Annotations("A", read_only=True, open_world=False)
    assert second.annotations == Annotations()


def test_only_a_pack_of_ours_can_mark_a_tool_as_parallel() -> None:
    marked = {"name": "a", "_meta": {"aish/parallel": True}}
    (stranger,), _ = tools(marked)
    (ours,), _ = tools(marked, reading=ListTrust(ours=True))
    assert (stranger.parallel, stranger.builtin) == (False, False)
    assert (ours.parallel, ours.builtin) == (True, True)


def test_older_names_in_the_list_of_an_older_recording_are_left_out() -> None:
    marked = {"name": "a", "_meta": {"aish/unlisted": True, "aish/older_of": "b"}}
    assert tools(marked, reading=ListTrust(ours=True)) == ([], [])
    assert len(tools(marked)[0]) == 1


def test_a_tool_with_illegal_header_annotations_is_left_out_over_stateless_http_only() -> None:
    odd = {
        "name": "a",
        "inputSchema": {
            "type": "object",
            "properties": {"p": {"type": "string", "x-mcp-header": "no way"}},
        },
    }
    assert len(tools(odd)[0]) == 1
    found, said = tools(odd, reading=ListTrust(mirrors=True))
    assert not found
    assert "x-mcp-header" in said[0]


@pytest.mark.requirement("M7")
def test_text_blocks_are_joined_by_newlines_and_structure_is_kept() -> None:
    result = read_result(
        {
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "structuredContent": {"n": [1]},
        }
    )
    assert (result.kind, result.content, result.structured) == ("ok", "a\nb", {"n": [1]})


def test_structure_alone_is_shown_as_text() -> None:
    assert read_result({"structuredContent": {"ä": 1}}).content == '{"ä": 1}'


def test_pictures_and_sounds_become_media_and_broken_ones_a_line() -> None:
    data = base64.b64encode(b"\x89PNG").decode()
    result = read_result(
        {
            "content": [
                {"type": "image", "mimeType": "image/png", "data": data},
                {"type": "audio", "data": data},
                {"type": "image", "mimeType": "image/png", "data": "%"},
            ]
        }
    )
    assert result.content == "[image: image/png, unreadable]"
    assert result.media == (
        Media("image/png", b"\x89PNG"),
        Media("application/octet-stream", b"\x89PNG"),
    )


def test_embedded_resources_are_text_and_links_are_lines() -> None:
    blob = base64.b64encode(b"\x00").decode()
    result = read_result(
        {
            "content": [
                {"type": "resource", "resource": {"uri": "a://b", "text": "inside"}},
                {"type": "resource", "resource": {"uri": "a://c", "blob": blob}},
                {"type": "resource_link", "uri": "a://d", "name": "d", "description": "a d"},
                {"type": "resource_link", "uri": "a://e"},
                {"type": "hologram"},
                "odd",
            ]
        }
    )
    assert result.content.splitlines() == [
        "inside",
        "[resource a://c]",
        "[link: a://d] d - a d",
        "[link: a://e]",
        "[content of unknown type hologram]",
        "[malformed content]",
    ]
    assert len(result.media) == 1


@pytest.mark.parametrize(
    ("flag", "kind"),
    [(True, "handler_error"), (False, "ok"), (None, "ok"), ("true", "ok")],
)
def test_only_the_flag_makes_an_error_and_the_text_stays_as_it_is(flag: Any, kind: str) -> None:
    text = {"type": "text", "text": "Error: no such room"}
    result = read_result({"content": [text], "isError": flag})
    assert (result.kind, result.content) == (kind, "Error: no such room")


@pytest.mark.parametrize("content", [None, {}, [], 7])
def test_a_result_without_content_is_empty(content: Any) -> None:
    assert not read_result({"content": content}).content


@given(JSON)
def test_no_tool_breaks_the_reader(value: Any) -> None:
    tools(value, reading=ListTrust(mirrors=True))
    tools({"name": "x", "inputSchema": value}, reading=ListTrust(mirrors=True))


@given(JSON)
def test_no_result_breaks_the_reader(value: Any) -> None:
    read_result({"content": value, "structuredContent": value})
    read_result({"content": [value]})
