import base64
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.mcp.protocol.messages import RpcError
from aish.mcp.protocol.mirrored_headers import (
    Mirrored,
    check_parameters,
    check_standard,
    header_parameters,
    header_value,
    parameter_headers,
    standard_headers,
)


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def annotated(name: Any, kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"type": kind, "x-mcp-header": name, **more}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("us-west1", "us-west1"),
        ("us west 1", "us west 1"),
        ("", ""),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ],
)
def test_header_values_are_those_of_the_specification(text: str, sent: str) -> None:
    assert header_value(text) == sent


@given(st.text())
def test_every_header_value_is_safe_and_can_be_read_back(text: str) -> None:
    sent = header_value(text)
    assert re.fullmatch(r"[\x21-\x7e]?([\x20-\x7e]*[\x21-\x7e])?", sent)
    if sent != text:
        coded = sent.removeprefix("=?base64?").removesuffix("?=")
        assert base64.b64decode(coded) == text.encode("utf-8", "replace")


def test_nested_parameters_are_mirrored_by_their_path() -> None:
    found = header_parameters(
        schema(where=schema(region=annotated("Region")), n=annotated("N", "integer"))
    )
    assert found == (Mirrored("Region", ("where", "region")), Mirrored("N", ("n",)))


@each_case(
    "broken",
    [
        schema(a=annotated("")),
        schema(a=annotated("My Region")),
        schema(a=annotated("Région")),
        schema(a=annotated("A\r\nB")),
        schema(a=annotated(7)),
        schema(a=annotated("A", "object")),
        schema(a=annotated("A", "number")),
        schema(a=annotated("A", None)),
        schema(a=annotated("A", ["string", "null"])),
        schema(a=annotated("A"), b=annotated("a")),
        schema(a={"type": "array", "items": annotated("A")}),
        {"anyOf": [schema(a=annotated("A"))]},
        schema(a={"anyOf": [annotated("A")]}),
    ],
)
def test_an_annotation_that_breaks_the_rules_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="x-mcp-header"):
        header_parameters(broken)


def test_a_parameter_that_is_called_like_the_annotation_is_none() -> None:
    assert header_parameters(schema(**{"x-mcp-header": {"type": "string"}})) == ()


def test_absent_null_and_unsafe_values_have_no_header() -> None:
    wanted = tuple(Mirrored(name, (name,)) for name in "abcdefg")
    values = {"a": True, "b": None, "c": 2**60, "d": 1.5, "e": -7, "f": 4.0}
    assert dict(parameter_headers(wanted, values)) == {
        "Mcp-Param-a": "true",
        "Mcp-Param-e": "-7",
        "Mcp-Param-f": "4",
    }


def test_method_and_name_are_mirrored() -> None:
    assert dict(standard_headers("tools/call", {"name": "läsen"})) == {
        "Mcp-Method": "tools/call",
        "Mcp-Name": "=?base64?bMOkc2Vu?=",
    }
    assert dict(standard_headers("tools/list", {"name": "x"})) == {"Mcp-Method": "tools/list"}
    assert dict(standard_headers("resources/read", {"uri": "a://b"}))["Mcp-Name"] == "a://b"


def sent(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Headers as a server has them."""
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name.lower(), []).append(value)
    return found


@given(st.text(), st.integers() | st.booleans() | st.text() | st.none())
def test_what_a_client_mirrors_passes_the_check_of_a_server(name: str, value: Any) -> None:
    params = {"name": name}
    wanted = [Mirrored("A", ("a",))]

    check_standard("tools/call", params, sent(standard_headers("tools/call", params)))
    check_parameters(wanted, {"a": value}, sent(parameter_headers(wanted, {"a": value})))


@pytest.mark.parametrize(
    ("value", "headers", "is_right"),
    [
        (42, ["42"], True),
        (42, ["42.0"], True),
        (42, ["=?base64?NDI=?="], True),
        (42, ["042"], False),
        (42, ["42.5"], False),
        (42, ["4.2e1"], False),
        ("42", ["42"], True),
        (True, ["true"], True),
        (True, ["True"], False),
        ("a", [], False),
        ("a", ["a", "a"], False),
        ("a", ["b"], False),
        ("a", ["=?base64?YQ?="], False),
        ("a", ["=?base64?!!?="], False),
        ("ü", ["ü"], False),
        ("", [""], True),
        (None, [], True),
        (None, ["null"], False),
        (2**60, ["1152921504606846976"], False),
    ],
)
def test_a_mirrored_parameter_has_to_say_what_the_body_says(
    value: Any, headers: list[str], *, is_right: bool
) -> None:
    given_headers = {"mcp-param-a": headers} if headers else {}
    wanted = [Mirrored("A", ("a",))]

    if is_right:
        check_parameters(wanted, {"a": value}, given_headers)
    else:
        with pytest.raises(RpcError, match="header mismatch: `Mcp-Param-A`"):
            check_parameters(wanted, {"a": value}, given_headers)
