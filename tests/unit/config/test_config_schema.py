import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from samples import each_case

from aish.config.file_schema import pipeline_schema
from aish.config.model import (
    PLATFORM_SHELL,
    Attachment,
    CallStep,
    Case,
    CassetteSettings,
    Context,
    Expectation,
    ExpectKind,
    Flow,
    Foreach,
    Limits,
    LoopLimits,
    ModelEntry,
    ModelTimeout,
    Output,
    Pipeline,
    PipelineStep,
    Price,
    Prompt,
    PromptStep,
    Retrieval,
    RetryPolicy,
    RunStep,
    ServerEntry,
    ServerPrompt,
    ServerSandbox,
    ServerTimeout,
    Shell,
    StepRetry,
    ToolMatch,
)
from aish.core.rules import FlowSettings, PolicyTest, RuleEntry, RuleLists
from aish.system.schema.check import check

SCHEMA: Any = json.loads(json.dumps(pipeline_schema()))
DEFS = SCHEMA["$defs"]
GOOD = Path(__file__).parent / "good"


def keys(place: Any) -> set[str]:
    return set(place["properties"])


def fields(*kinds: Any) -> set[str]:
    return {field.name for kind in kinds for field in dataclasses.fields(kind)}


LOOP = fields(LoopLimits)
FLOW = (
    fields(Flow)
    | (fields(Foreach) - {"expression", "file", "delimiter", "glob", "folder", "name"})
    | {"as"}
)
KINDS = fields(PromptStep, CallStep, RunStep, PipelineStep)
NOT_KEYS = {"prompt_name", "arguments", "inputs", "file", "flow", "asking"}
ASKING = {"on_ask", "ask_timeout"}
STEP = (KINDS - NOT_KEYS) | FLOW | ASKING | {"with", "pipeline"}
AT_TOP = STEP - {"needs", "pipeline", "continues"}
# What of a `Pipeline` is not a key, and what a key is called there.
MADE = {
    *("broken", "lock_ignore", "sources"),
    *("file", "files", "positions", "digest", "data", "overrides", "servers", "rules"),
    *("loop", "asking", "flows"),
}


def made_by(word: str) -> set[str]:
    """What makes a key or a token."""
    return {f"{word}_command", f"{word}_file", f"{word}_ttl"}


EXPECT = DEFS["expectation"]["properties"]
RULE_OBJECT = DEFS["rule"]["anyOf"][1]


@each_case(
    "place, names",
    [
        (DEFS["model"], fields(ModelEntry) - {"alias", "key_source"} | made_by("key")),
        (DEFS["model"]["properties"]["retry"], fields(RetryPolicy)),
        (DEFS["model"]["properties"]["timeout"], fields(ModelTimeout)),
        (
            DEFS["server"],
            (fields(ServerEntry) - {"alias", "key_sources"})
            | {"args", "header_commands"}
            | made_by("auth"),
        ),
        (DEFS["server"]["properties"]["timeout"], fields(ServerTimeout)),
        (
            DEFS["mcp"],
            fields(RuleLists, FlowSettings) | LOOP | {"servers", "sandbox"},
        ),
        (DEFS["flowRule"], {"from", "to", "then"}),
        (DEFS["sandbox"]["anyOf"][1], fields(ServerSandbox) - {"best_effort"}),
        (DEFS["prompt"], fields(Prompt, ServerPrompt) | {"with"}),
        (
            DEFS["attachment"]["anyOf"][1],
            (fields(Attachment) - {"ref"}) | {"uri"} | fields(Retrieval),
        ),
        (DEFS["shell"], fields(Shell)),
        (DEFS["step"], STEP | LOOP),
        (DEFS["step"]["properties"]["output"], fields(Output)),
        (RULE_OBJECT, fields(RuleEntry) - {"path"}),
        (DEFS["cassette"]["anyOf"][1], fields(CassetteSettings) - {"name"}),
        (DEFS["test"], fields(Case) - {"where", "rows", "names"} | {"foreach", "as", "key"}),
        (DEFS["expectation"], set(get_args(ExpectKind))),
        (EXPECT["matches"]["anyOf"][1], {"path", "regex"}),
        (EXPECT["snapshot"]["anyOf"][1], fields(Expectation) & {"path", "file"}),
        (EXPECT["tool_sequence"]["anyOf"][1], fields(Expectation) & {"tools", "exact"}),
        (DEFS["lastCall"], (fields(ToolMatch) - {"arguments"}) | {"with"}),
        (DEFS["madeCall"], (fields(ToolMatch) - {"arguments", "last"}) | {"with"}),
        (DEFS["toolMatch"], {"tool", "with"}),
        (
            EXPECT["max_failed_calls"]["anyOf"][2],
            fields(Expectation) & {"value", "tools", "exit_codes"},
        ),
        (DEFS["policyTest"], (fields(PolicyTest) - {"path"}) | {"with"}),
        (DEFS["limits"], fields(Limits)),
        (DEFS["context"], fields(Context)),
        (DEFS["price"], fields(Price)),
        (DEFS["step"]["properties"]["retry"], fields(StepRetry)),
        (DEFS["foreach"]["anyOf"][1], fields(Foreach) & {"file", "delimiter", "glob"}),
        (
            SCHEMA,
            (fields(Pipeline) - MADE | {"aish", "extends", "mcp"}) | AT_TOP | LOOP,
        ),
    ],
)
def test_schema_and_dataclasses_name_the_same_keys(place: Any, names: set[str]) -> None:
    assert keys(place) == names


def subschemas(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key there is, with what is said of it."""
    if isinstance(schema, Mapping):
        for key, inner in schema.items():
            if key in {"properties", "$defs"}:
                for name, entry in inner.items():
                    yield f"{path}.{name}", entry
                    yield from subschemas(entry, f"{path}.{name}")
            elif key in {"items", "additionalProperties", "propertyNames"}:
                yield from subschemas(inner, f"{path}.{key}")
            elif key == "anyOf":
                for index, form in enumerate(inner):
                    yield from subschemas(form, f"{path}.{index}")


ALL = list(subschemas(SCHEMA))


@each_case("path, schema", ALL)
def test_each_key_is_described_and_its_examples_hold(path: str, schema: Any) -> None:
    assert schema["description"].endswith((".", "?")), path
    assert schema["examples"], path
    whole = {"$defs": DEFS, **schema}
    for example in schema["examples"]:
        Draft202012Validator(whole).validate(example)
        assert check(whole, example) == ()
    if "default" in schema:
        Draft202012Validator(whole).validate(schema["default"])


def test_the_schema_is_one_and_needs_no_library_at_run_time() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert check(pipeline_schema(), {}) != ()


def test_defaults_of_the_schema_are_those_of_the_dataclasses() -> None:
    for place, kind in (
        (DEFS["model"], ModelEntry(alias="a")),
        (DEFS["server"], ServerEntry(alias="a")),
        (DEFS["model"]["properties"]["retry"], RetryPolicy()),
    ):
        for name, entry in place["properties"].items():
            if "default" in entry and isinstance(entry["default"], bool | int):
                assert getattr(kind, name) == entry["default"], name


def test_a_local_command_goes_to_the_shell_of_the_platform_unless_the_file_says() -> None:
    assert DEFS["shell"]["properties"]["run"]["default"] == list(PLATFORM_SHELL)
    assert Shell().cmd_lines is DEFS["shell"]["properties"]["cmd_lines"]["default"]


def test_editors_and_the_loader_agree_on_the_good_file() -> None:
    from aish.config.loader import load_pipeline

    data = load_pipeline(GOOD / "release.yaml").data
    Draft202012Validator(SCHEMA).validate(data)
    with pytest.raises(ValidationError):
        Draft202012Validator(SCHEMA).validate({**data, "promt": 1})
