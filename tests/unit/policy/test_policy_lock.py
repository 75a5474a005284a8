import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.core.tools import Annotations, Tool, ToolName, definition_of
from aish.policy.lock import (
    BadLockError,
    Difference,
    FieldChange,
    Lock,
    ServerPin,
    ToolPin,
    can_be_kept,
    compare,
    hash_of,
    is_wider,
    lock_of_data,
    lock_schema,
    lock_text,
    pin_of,
    tool_from_pin,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=5)
ECHO = Tool(
    name=ToolName("s", "echo"),
    wire="s__echo",
    description="Say the text back",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
    annotations=Annotations(title="Echo", read_only=True, destructive=False),
)


def pin(name: str = "echo", **changes: Any) -> ToolPin:
    return pin_of(name, {**definition_of(ECHO), **changes})


def lock(*, address: tuple[str, ...] = ("server",), **tools: ToolPin) -> Lock:
    return Lock({"s": ServerPin("stdio", address, tools)}, {"m": "gpt"}, {"main": "0" * 64})


def changed(data: Any, **fields: Any) -> Any:
    data["servers"]["s"]["tools"]["echo"].update(fields)
    return data


def without_command(data: Any) -> Any:
    del data["servers"]["s"]["command"]
    return data


def shuffled(value: Any, seed: random.Random) -> Any:
    """The same JSON with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = list(value)
        seed.shuffle(keys)
        return {key: shuffled(value[key], seed) for key in keys}
    return [shuffled(inner, seed) for inner in value] if isinstance(value, list) else value


READS_DATA = {"read": ["data"], "write": [], "network": "none"}


@each_case(
    "before, now, wider",
    [
        (None, None, False),
        (None, {"read": ["."], "write": [], "network": "full"}, False),
        ({"read": [], "write": [], "network": "none"}, None, True),
        (READS_DATA, READS_DATA, False),
        (READS_DATA, {**READS_DATA, "read": ["data/in"]}, False),
        (READS_DATA, {**READS_DATA, "read": []}, False),
        (READS_DATA, {**READS_DATA, "read": ["database"]}, True),
        (READS_DATA, {**READS_DATA, "read": ["data/../x"]}, True),
        (READS_DATA, {**READS_DATA, "write": ["data"]}, True),
        (READS_DATA, {**READS_DATA, "network": "full"}, True),
        (READS_DATA, {**READS_DATA, "network": ["a.example:443"]}, True),
        (READS_DATA, {**READS_DATA, "best_effort": True}, True),
        ({**READS_DATA, "read": ["."]}, {**READS_DATA, "read": ["../x"]}, True),
        ({**READS_DATA, "read": ["."]}, {**READS_DATA, "read": ["x"]}, False),
        ({**READS_DATA, "write": ["out"]}, {**READS_DATA, "read": ["out/x"]}, False),
        ({**READS_DATA, "network": ["a:1", "b:1"]}, {**READS_DATA, "network": ["b:1"]}, False),
        ({**READS_DATA, "network": ["b:1"]}, {**READS_DATA, "network": ["a:1"]}, True),
        ({**READS_DATA, "network": "full"}, {**READS_DATA, "network": ["a:1"]}, False),
    ],
)
def test_a_sandbox_is_wider_if_it_has_anything_that_was_not_pinned(
    before: Any, now: Any, *, wider: bool
) -> None:
    assert is_wider(before, now) is wider


@given(OBJECTS, st.randoms(use_true_random=False))
def test_the_order_of_keys_is_not_in_the_hash(schema: Any, seed: random.Random) -> None:
    definition = {"description": "x", "inputSchema": schema}

    assert hash_of("t", definition) == hash_of("t", shuffled(definition, seed))


@given(OBJECTS, OBJECTS)
def test_another_schema_has_another_hash(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

    hashes = {hash_of("t", {"description": "", "inputSchema": s}) for s in (one, other)}

    assert (len(hashes) == 1) == same


@pytest.mark.parametrize(
    "other",
    [
        {"description": "Say the text back\u200b"},
        {"inputSchema": {"type": "object"}},
        {"outputSchema": {"type": "object"}},
        {"annotations": {"title": "Echo", "readOnlyHint": True, "destructiveHint": True}},
    ],
)
def test_whatever_a_server_says_of_a_tool_is_pinned(other: dict[str, Any]) -> None:
    (field,) = other
    (found,) = compare(lock(echo=pin()), lock(echo=pin(**other)))

    before = dict(definition_of(ECHO)).get(field)
    assert found == Difference(
        "tool", "s__echo", "changed", (FieldChange(field, before, other[field]),)
    )


def test_a_name_is_pinned_with_what_it_names() -> None:
    assert pin("echo").sha256 != pin("ecko").sha256
    found = compare(lock(echo=pin("echo")), lock(ecko=pin("ecko")))

    assert [(one.name, one.change) for one in found] == [
        ("s__echo", "removed"),
        ("s__ecko", "added"),
    ]


def test_servers_models_and_prompts_are_pinned() -> None:
    other = Lock({"t": ServerPin("pack", ("fs",), {})}, {"m": "other"}, {"next": "1" * 64})

    found = compare(lock(address=("server", "${KEY}")), other)

    assert [(one.kind, one.name, one.change) for one in found] == [
        ("server", "t", "added"),
        ("server", "s", "removed"),
        ("model", "m", "changed"),
        ("prompt", "next", "added"),
        ("prompt", "main", "removed"),
    ]


def test_another_argv_or_transport_is_another_server() -> None:
    (found,) = compare(lock(), lock(address=("server", "--wide")))
    assert found.fields == (FieldChange("command", ["server"], ["server", "--wide"]),)

    web = Lock({"s": ServerPin("http", ("http://x/mcp",), {})}, {"m": "gpt"}, {"main": "0" * 64})
    (found,) = compare(lock(), web)
    assert [field.field for field in found.fields] == ["command", "url"]


@given(
    st.dictionaries(st.text(min_size=1, max_size=6), OBJECTS, max_size=4),
    st.text(max_size=30),
    st.lists(st.text(max_size=6), min_size=1, max_size=3),
)
def test_a_lock_comes_back_from_its_text(
    schemas: dict[str, Any], said: str, address: list[str]
) -> None:
    tools = {
        name: pin_of(name, {"description": said, "inputSchema": schema})
        for name, schema in schemas.items()
    }
    taken = lock(address=tuple(address), **tools)

    text = lock_text(taken)

    assert lock_of_data(json.loads(text)) == taken
    assert lock_text(lock_of_data(json.loads(text))) == text
    assert text.endswith("}\n")
    assert text.encode()


def test_hidden_characters_are_visible_in_the_file() -> None:
    said = "a\u202eb\u200bc\U000e0041\x7f\ud800 é 漢"

    text = lock_text(lock(echo=pin(description=said)))

    assert r"a\u202eb\u200bc\udb40\udc41\u007f\ud800 é 漢" in text


def test_a_tool_comes_back_from_its_pin() -> None:
    found = tool_from_pin(ECHO.name, pin(), trusted=False)

    assert found == ECHO


def test_a_pin_without_a_definition_still_tells_that_something_changed() -> None:
    bare = ToolPin(pin().sha256)

    assert compare(lock(echo=bare), lock(echo=pin())) == ()
    (found,) = compare(lock(echo=bare), lock(echo=pin(description="")))
    assert [field.field for field in found.fields] == ["sha256"]
    assert tool_from_pin(ECHO.name, bare, trusted=True) is None


def test_what_json_files_cannot_hold_is_not_kept() -> None:
    deep: Any = {}
    for _ in range(60):
        deep = {"properties": deep}

    assert can_be_kept({"inputSchema": {"a": [1, 2.5, None]}})
    assert not can_be_kept({"inputSchema": deep})
    assert not can_be_kept({"inputSchema": {"minimum": float("inf")}})


@each_case(
    "change, said",
    [
        (lambda _: [], "`aish_lock` is missing"),
        (lambda data: {**data, "aish_lock": 2}, "of version 2; this aish reads version 1"),
        (lambda data: {**data, "aish_lock": True}, "`aish_lock` is missing"),
        (lambda data: {**data, "more": 1}, "more"),
        (lambda data: {k: v for k, v in data.items() if k != "servers"}, "servers"),
        (lambda data: changed(data, sha256="x"), "servers.s.tools.echo.sha256"),
        (lambda data: changed(data, sha256="0" * 64), "`s__echo` does not match its hash"),
        (lambda data: changed(data, definition={"description": 3}), "definition"),
        (without_command, "`command` is missing"),
    ],
)
def test_a_lock_that_was_edited_is_refused(change: Any, said: str) -> None:
    data = json.loads(lock_text(lock(echo=pin())))

    with pytest.raises(BadLockError, match=said) as refused:
        lock_of_data(change(data))

    assert refused.value.hint


def test_the_published_schema_is_the_one_that_files_are_held_against() -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator(lock_schema()).validate(json.loads(lock_text(lock(echo=pin()))))
