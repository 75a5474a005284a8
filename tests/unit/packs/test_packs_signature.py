from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict

import anyio
import pytest
from samples import each_case

import aish.packs
from aish.packs.catalogue import PACKS, older_names, older_parameters, tool_marks
from aish.packs.framework.pack import (
    Bounds,
    Marks,
    PackTool,
    description_of,
    schema_of,
    tool,
)
from aish.packs.tool_results import Answer
from aish.packs.workspace.workspace import Workspace


async def sample_tool(
    place: Workspace,
    path: str,
    words: list[str],
    mode: Literal["a", "b"] = "a",
    count: int | None = None,
    *,
    ratio: float = 0.5,
    loud: bool = False,
) -> Answer:
    """Does a thing
    over two lines.

    And says more.

    Args:
        place: Not for callers.
        path: Where: with a colon.
        words: Several words,
            told of on two lines.
        mode: How.
        count: How many.
        ratio: How much.
        loud: How loud.

    Returns:
        Nothing: of interest.
    """
    await anyio.lowlevel.checkpoint()
    return Answer(f"{place} {path} {words} {mode} {count} {ratio} {loud}")


def test_a_signature_becomes_a_schema() -> None:
    assert schema_of(sample_tool) == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where: with a colon."},
            "words": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Several words, told of on two lines.",
            },
            "mode": {"type": "string", "enum": ["a", "b"], "description": "How.", "default": "a"},
            "count": {"type": "integer", "description": "How many."},
            "ratio": {"type": "number", "description": "How much.", "default": 0.5},
            "loud": {"type": "boolean", "description": "How loud.", "default": False},
        },
        "required": ["path", "words"],
        "additionalProperties": False,
    }


def test_a_docstring_becomes_a_description() -> None:
    assert description_of(sample_tool) == "Does a thing over two lines.\nAnd says more."


async def undescribed(place: Workspace, path: str) -> Answer:
    """Has no section on its arguments."""
    await anyio.lowlevel.checkpoint()
    return Answer(f"{place} {path}")


async def untyped(place: Workspace, path: bytes) -> Answer:
    """Has a parameter that JSON cannot say.

    Args:
        place: Not for callers.
        path: Bytes.
    """
    await anyio.lowlevel.checkpoint()
    return Answer(f"{place} {path!r}")


def test_a_mistake_in_a_pack_shows_when_it_is_loaded() -> None:
    with pytest.raises(TypeError, match="`path` of `undescribed` is not described"):
        schema_of(undescribed)
    with pytest.raises(TypeError, match="has no JSON Schema"):
        schema_of(untyped)


def tools_of(pack: str) -> tuple[PackTool, ...]:
    tools: tuple[PackTool, ...] = import_module(PACKS[pack].module).PACK.tools
    return tools


@each_case("pack", list(PACKS))
def test_every_row_of_the_catalogue_is_a_pack_with_well_made_tools(pack: str) -> None:
    tools = tools_of(pack)
    assert tools
    for one in tools:
        parts = one.name.split("_")
        assert len(parts) >= 2
        assert all(part.isalnum() and part.islower() for part in parts)
        assert one.description
        assert set(one.marks.annotations) == {
            "readOnlyHint",
            "destructiveHint",
            "idempotentHint",
            "openWorldHint",
        }
        assert all(isinstance(hint, bool) for hint in one.marks.annotations.values())
        marks = tool_marks()[one.name]
        assert marks.pack == pack
        assert marks.parallel is one.marks.parallel
        assert (marks.read_only, marks.destructive, marks.open_world) == (
            one.marks.annotations["readOnlyHint"],
            one.marks.annotations["destructiveHint"],
            one.marks.annotations["openWorldHint"],
        )


def test_no_pack_is_missing_from_the_catalogue() -> None:
    folder = Path(aish.packs.__path__[0])
    modules = {
        ".".join(("aish.packs", *path.relative_to(folder).with_suffix("").parts))
        for path in folder.rglob("*.py")
        if "\nPACK = " in path.read_text(encoding="utf-8")
    }
    assert modules == {entry.module for entry in PACKS.values()}


@pytest.mark.requirement("K2")
def test_no_two_tools_share_a_name_and_every_older_name_has_its_tool() -> None:
    names = [one.name for pack in PACKS for one in tools_of(pack)]
    assert len(set(names)) == len(names)
    assert {older.tool for older in older_names().values()} <= set(names)
    assert not set(older_names()) & set(names)
    assert set(tool_marks()) == set(names)
    assert set(older_parameters()) <= set(names)


def test_a_model_needs_nothing_but_a_path_to_read_a_file() -> None:
    (read,) = (one for one in tools_of("fs") if one.name == "file_read")
    assert read.input_schema["required"] == ["path"]
    properties = read.input_schema["properties"]
    assert isinstance(properties, dict)
    assert list(properties) == ["path", "start_line", "end_line"]


def test_a_tool_is_named_as_its_function() -> None:
    marks = Marks(read_only=False, destructive=True, idempotent=False, open_world=True)
    made = tool(marks, result={"text": "string"})(sample_tool)
    assert (made.name, made.marks.parallel) == ("sample_tool", False)
    assert made.output_schema == {
        "type": "object",
        "properties": {"text": {"type": ["string", "null"]}},
    }


class Span(TypedDict):
    start: int
    end: NotRequired[int]


async def nested_tool(
    place: Workspace, span: Span, env: dict[str, str], count: Annotated[int, Bounds(1, 9)] = 3
) -> Answer:
    """Has objects in its signature.

    Args:
        place: Not for callers.
        span: An object.
        env: Names and values.
        count: A number between two others.
    """
    await anyio.lowlevel.checkpoint()
    return Answer(f"{place} {span} {env} {count}")


def test_objects_bounds_and_dicts_become_schemas() -> None:
    properties = schema_of(nested_tool)["properties"]
    assert properties == {
        "span": {
            "type": "object",
            "properties": {"start": {"type": "integer"}, "end": {"type": "integer"}},
            "required": ["start"],
            "additionalProperties": False,
            "description": "An object.",
        },
        "env": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Names and values.",
        },
        "count": {
            "type": "integer",
            "minimum": 1,
            "maximum": 9,
            "description": "A number between two others.",
            "default": 3,
        },
    }
