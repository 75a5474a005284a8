from importlib import import_module
from pathlib import Path
from typing import Literal

import anyio
import pytest

import aish.packs
from aish.packs.catalogue import DESTRUCTIVE, OLDER_NAMES, PACKS
from aish.packs.framework.pack import Marks, PackTool, description_of, schema_of, tool_of
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


@pytest.mark.requirement("K1")
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


@pytest.mark.requirement("K1")
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


@pytest.mark.requirement("K1")
def test_a_mistake_in_a_pack_shows_when_it_is_loaded() -> None:
    with pytest.raises(TypeError, match="`path` of `undescribed` is not described"):
        schema_of(undescribed)
    with pytest.raises(TypeError, match="has no JSON Schema"):
        schema_of(untyped)


def tools_of(pack: str) -> tuple[PackTool, ...]:
    tools: tuple[PackTool, ...] = import_module(PACKS[pack]).TOOLS
    return tools


@pytest.mark.requirement("K1", "K2")
@pytest.mark.parametrize("pack", list(PACKS))
def test_every_row_of_the_catalogue_is_a_pack_with_well_made_tools(pack: str) -> None:
    tools = tools_of(pack)
    assert tools
    for tool in tools:
        parts = tool.name.split("_")
        assert len(parts) >= 2
        assert all(part.isalnum() and part.islower() for part in parts)
        assert tool.description
        assert set(tool.annotations) == {
            "readOnlyHint",
            "destructiveHint",
            "idempotentHint",
            "openWorldHint",
        }
        assert all(isinstance(hint, bool) for hint in tool.annotations.values())
        assert tool.parallel is tool.annotations["readOnlyHint"]
    said = tuple(tool.name for tool in tools if tool.annotations["destructiveHint"])
    assert said == DESTRUCTIVE[pack]


@pytest.mark.requirement("K1")
def test_no_pack_is_missing_from_the_catalogue() -> None:
    folder = Path(aish.packs.__path__[0])
    modules = {
        f"aish.packs.{path.stem}"
        for path in folder.glob("*.py")
        if "\nTOOLS = " in path.read_text(encoding="utf-8")
    }
    assert modules == set(PACKS.values())


@pytest.mark.requirement("K2")
def test_no_two_tools_share_a_name_and_every_older_name_has_its_tool() -> None:
    names = [tool.name for pack in PACKS for tool in tools_of(pack)]
    assert len(set(names)) == len(names)
    assert set(OLDER_NAMES.values()) <= set(names)
    assert not set(OLDER_NAMES) & set(names)


@pytest.mark.requirement("K1")
def test_a_model_needs_nothing_but_a_path_to_read_a_file() -> None:
    (read,) = (tool for tool in tools_of("fs") if tool.name == "file_read")
    assert read.input_schema["required"] == ["path"]
    properties = read.input_schema["properties"]
    assert isinstance(properties, dict)
    assert list(properties) == ["path", "start_line", "end_line"]


@pytest.mark.requirement("K1")
def test_a_tool_is_named_as_its_function() -> None:
    marks = Marks(read_only=False, destructive=True, idempotent=False, open_world=True)
    tool = tool_of(sample_tool, marks)
    assert (tool.name, tool.parallel, tool.unlisted) == ("sample_tool", False, False)
