"""What the catalogue knows of tools, and how it reads the arguments of their calls."""

from importlib import import_module

from samples import each_case

from aish.core.json import JsonObject, JsonValue
from aish.core.tools import Tool, ToolName
from aish.packs.catalogue import PACKS, call_arguments
from aish.packs.framework.pack import PackTool

TOOLS: list[PackTool] = [
    tool for entry in PACKS.values() for tool in import_module(entry.module).PACK.tools
]


@each_case("tool", TOOLS)
def test_older_names_lead_to_parameters_of_the_tool(tool: PackTool) -> None:
    assert len(set(tool.codes)) == len(tool.codes)
    parameters = tool.input_schema["properties"]
    assert isinstance(parameters, dict)
    assert {*tool.older_parameters.values()} <= {*parameters}
    for older in tool.older.values():
        assert {*older.rename.values(), *older.set} <= {*parameters}


ROOT = ("/home/ada/link", "/data/project")


@each_case(
    "given, seen",
    [
        ({"path": "/home/ada/link/src/a.py"}, {"path": "src/a.py"}),
        ({"path": "/data/project//src/"}, {"path": "src/"}),
        ({"path": "/data/project"}, {"path": "."}),
        ({"path": "/data/project-two/a"}, {"path": "/data/project-two/a"}),
        ({"path": "/data/project/../a"}, {"path": "../a"}),
        ({"path": "/etc/passwd"}, {"path": "/etc/passwd"}),
        ({"path": 7}, {"path": 7}),
        ({"path": "", "after": "", "limit": 0}, {"path": "", "limit": 0}),
        ({"content": "/data/project/a"}, {"content": "/data/project/a"}),
        ({"new_path": "/data/project/b", "cwd": "/data/project/c"}, {"new_path": "b", "cwd": "c"}),
        ({"glob": "/data/project/**/*.py"}, {"glob": "**/*.py"}),
    ],
)
def test_arguments_are_seen_relative_to_the_root_and_without_empty_ones(
    given: dict[str, JsonValue], seen: dict[str, JsonValue]
) -> None:
    schema: JsonObject = {"type": "object", "required": ["path"]}
    tool = Tool(ToolName("repo", "dir_list"), "repo__dir_list", "", schema, root=ROOT)
    assert call_arguments("repo__dir_list", tool, given) == seen


def test_a_path_below_the_root_of_the_system_is_relative_to_it() -> None:
    tool = Tool(ToolName("all", "dir_list"), "all__dir_list", "", {}, root=("/",))
    assert call_arguments("all__dir_list", tool, {"path": "/etc"}) == {"path": "etc"}
