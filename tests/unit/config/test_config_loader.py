import hashlib
import json
import shutil
from pathlib import Path

import pytest

from aish.config.loader import load_pipeline, lookup_position
from aish.config.model import (
    CallStep,
    Limits,
    LoopLimits,
    ModelTimeout,
    Output,
    Pipeline,
    Prompt,
    PromptStep,
    RunStep,
    ServerTimeout,
)
from aish.core.errors import PipelineError
from aish.core.rules import RuleEntry
from aish.engine.plan.validation.validate import check_file, cross_check

GOOD = Path(__file__).parent / "good"


@pytest.fixture
def good() -> Pipeline:
    return load_pipeline(GOOD / "release.yaml")


def written(folder: Path, text: str) -> Path:
    file = folder / "p.yaml"
    file.write_text(text)
    return file


def test_a_whole_file_has_no_problem(good: Pipeline) -> None:
    assert cross_check(good) == ()
    assert check_file(GOOD / "release.yaml") == (good, ())


def test_steps_are_what_the_file_says(good: Pipeline) -> None:
    notes, log, write, shout, last = good.steps
    assert isinstance(notes, PromptStep)
    assert notes.prompt_name == "notes"
    assert isinstance(notes.prompt, Prompt)
    assert notes.prompt.user == "Notes since {{ inputs.since }}, {{ inputs.tone }}.\n"
    assert notes.prompt.system == "You are terse."
    assert notes.prompt.file == GOOD / "prompts/notes.md.j2"
    assert notes.tools == ("repo__git_*",)
    assert notes.output is not None
    assert notes.output.schema["required"] == ["markdown"]
    assert notes.limits == LoopLimits(max_tool_depth=4, result_limit=4096)
    assert isinstance(log, RunStep)
    assert log.run == ("git", "log", "{{ inputs.since }}..")
    assert log.on_denied == "continue"
    assert isinstance(write, CallStep)
    assert write.call == "repo__file_write"
    assert write.arguments["path"] == "NOTES.md"
    assert write.needs == ("notes",)
    assert isinstance(shout, PromptStep)
    assert shout.prompt == Prompt("{{ steps.log.text }}", system="Loud.")
    assert (shout.prompt_name, shout.model, shout.tool_choice) == (None, "fast", "none")
    assert isinstance(last, PromptStep)
    assert last.tools is None
    assert last.limits.max_tool_depth == 2


@pytest.mark.requirement("F8")
def test_bases_are_merged_and_the_file_itself_wins(good: Pipeline) -> None:
    cloud = good.models["cloud"]
    assert cloud.params == {"top_p": 0.5, "temperature": 0.2, "max_tokens": 4096}
    assert cloud.fallback == ("fast",)
    assert cloud.timeout == ModelTimeout(first_token=90.0)
    assert cloud.key_env == "OPENROUTER_API_KEY"
    assert "extends" not in good.data


def test_relative_paths_start_from_the_file_they_stand_in(good: Pipeline) -> None:
    assert good.models["local"].embedded == str(GOOD / "shared/weights/tiny.gguf")
    assert good.servers["build"].cwd == GOOD / "tools"
    assert good.servers["clock"].cwd == GOOD
    assert good.servers["repo"].root == GOOD / ".."


def test_a_value_of_a_base_keeps_its_place(good: Pipeline) -> None:
    assert str(lookup_position(good, "models.fast.base_url")).endswith("shared/more.yaml:2:20")
    assert lookup_position(good, "steps[1].run[2]").line == 46
    assert lookup_position(good, "steps[1].nothing.there") == good.positions["steps[1]"]
    assert lookup_position(good, "nothing").line == 1


def test_quantities_are_seconds_and_bytes(good: Pipeline) -> None:
    assert good.limits == Limits(time=5400.0)
    assert good.servers["build"].timeout == ServerTimeout(call=120.0, tools={"all": 5400.0})


def test_variables_stand_as_written_until_they_are_used(good: Pipeline) -> None:
    assert good.models["cloud"].base_url == "${MODEL_URL:-https://openrouter.ai/api/v1}"
    assert good.models["fast"].headers == {"X-Key": "${FAST_KEY}"}
    assert good.servers["build"].env == {"MODE": "fast", "PATH": None}
    assert good.servers["clock"].env == {"TZ": None}
    assert good.servers["clock"].command == ("uvx", "mcp-server-time")


def test_rules_are_read_in_both_forms(good: Pipeline) -> None:
    rules = good.rules
    assert [rule.tool for rule in rules.auto_approve] == [
        "repo__git_*",
        "boltzmann__read_file",
        "repo__file_write",
        "shell__run",
    ]
    assert rules.auto_approve[2].when == {"path": "NOTES.md"}
    assert rules.auto_approve[3].command == ("git", "log", "**")
    assert rules.auto_approve[3].path == "mcp.auto_approve[3]"
    assert rules.deny == (RuleEntry("*__*delete*", path='mcp.deny["*__*delete*"]'),)
    assert rules.ask == (RuleEntry("repo__file_rename", path="mcp.deny.repo__file_rename"),)
    assert good.policy_tests[1].arguments == {"path": "a"}


@pytest.mark.requirement("F1")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("prompt: Say hello.\ntools: []\nparams: {seed: 1}\nmodel: local", PromptStep),
        ("call: fs__file_read\nwith: {path: a}", CallStep),
        ("run: [ls, -l]", RunStep),
        ("run: ls -l\nid: list", RunStep),
    ],
)
def test_one_step_needs_no_list(text: str, kind: type[object], tmp_path: Path) -> None:
    head = (
        "aish: 1\nmodels: {local: {embedded: smollm2}}\nmcp: {servers: {fs: {pack: fs, root: .}}}\n"
    )
    pipeline, problems = check_file(written(tmp_path, head + text + "\n"))
    assert problems == ()
    assert pipeline is not None
    (step,) = pipeline.steps
    assert isinstance(step, kind)
    assert step.id == ("list" if "id:" in text else "main")
    assert pipeline.name == "p"


def test_a_prompt_is_text_and_a_name_says_that_it_is_one(tmp_path: Path) -> None:
    head = "aish: 1\nmodels: {a: {embedded: smollm2}}\nprompts: {known: This one}\n"
    for text in ("hello", "Hello", "hello there", "{user: hello}"):
        path = written(tmp_path, f"{head}prompt: {text}\n")
        step = load_pipeline(path).steps[0]
        assert isinstance(step, PromptStep)
        assert isinstance(step.prompt, Prompt)
        assert step.prompt.user.lower().startswith("hello")
        assert check_file(path)[1] == ()
    named = load_pipeline(written(tmp_path, f"{head}prompt: {{name: known}}\n")).steps[0]
    assert isinstance(named, PromptStep)
    assert (named.prompt, named.prompt_name) == (Prompt("This one"), "known")
    for text, message in (
        ("{name: knwon}", "unknown prompt `knwon`"),
        ("{name: known, system: Terse}", "a prompt of this file has no `system` here"),
        ("{name: known, user: hello}", "`name` is for a prompt of a server"),
    ):
        with pytest.raises(PipelineError, match=message):
            load_pipeline(written(tmp_path, f"{head}prompt: {text}\n"))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("known", "write `prompt: {name: known}`"),
        ("prompts/x.md", "`{file: prompts/x.md}` sends what is in it"),
        ("gone.j2", "`{file: gone.j2}` sends what is in it"),
        ("with space", "`{file: with space}` sends what is in it"),
        ("Summarise prompts/x.md", None),
        ("folder", None),
        ("{user: known}", None),
    ],
)
@pytest.mark.parametrize("place", ["prompt", "step", "prompts"])
def test_a_text_that_was_meant_as_a_name_or_a_file_is_warned_of(
    tmp_path: Path, place: str, text: str, hint: str | None
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "with space").write_text("Hello")
    more = f", other: {text}" if place == "prompts" else ""
    head = f"aish: 1\nmodels: {{a: {{embedded: smollm2}}}}\nprompts: {{known: This one{more}}}\n"
    steps = {
        "prompt": f"prompt: {text}\n",
        "step": f"steps: [{{id: zero, prompt: Hello}}, {{id: one, prompt: {text}}}]\n",
        "prompts": "prompt: {name: other}\n",
    }
    pipeline, problems = check_file(written(tmp_path, head + steps[place]))
    assert pipeline is not None
    assert all(problem.warning for problem in problems)
    told = [problem.hint for problem in problems]
    assert told == ([] if hint is None or (place, text) == ("prompts", "known") else [hint])
    path = {"prompt": "prompt", "step": "steps[1].prompt", "prompts": "prompts.other"}[place]
    assert {problem.path for problem in problems} <= {path}


def test_how_a_model_takes_a_schema_is_said_in_its_entry(tmp_path: Path) -> None:
    entries = {
        "embedded: smollm2": "without_tools",
        "embedded: smollm2, json_schema: false": False,
        "embedded: smollm2, json_schema: true": True,
        "base_url: http://x/v1, model: x": False,
        "base_url: http://x/v1, model: x, json_schema: true": True,
        "base_url: http://x/v1, model: x, json_schema: without_tools": "without_tools",
    }
    for entry, wanted in entries.items():
        text = f"aish: 1\nmodels: {{a: {{{entry}}}}}\n"
        assert load_pipeline(written(tmp_path, text)).models["a"].json_schema == wanted


def test_an_answer_is_asked_for_three_times_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    head = "aish: 1\nmodels: {a: {embedded: smollm2}}\nprompt: Hello!\n"
    for more, attempts in (("", 3), (", attempts: 1", 1), (", attempts: 7", 7)):
        text = f"{head}output: {{schema: {{type: object}}{more}}}\n"
        (step,) = load_pipeline(written(tmp_path, text)).steps
        assert isinstance(step, PromptStep)
        assert step.output == Output({"type": "object"}, attempts)
    for wrong in ("0", "101", "many", "1.5"):
        text = f"{head}output: {{schema: {{type: object}}, attempts: {wrong}}}\n"
        with pytest.raises(PipelineError, match=r"output\.attempts"):
            load_pipeline(written(tmp_path, text))


def test_the_digest_is_that_of_what_the_files_say(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(GOOD, copy)
    first = load_pipeline(copy / "release.yaml")
    again = load_pipeline(GOOD / "release.yaml")
    assert first.digest == again.digest
    assert len(first.digest) == len(hashlib.sha256().hexdigest())
    prompt = copy / "prompts/notes.md.j2"
    prompt.write_text(prompt.read_text() + "More.\n")
    changed = load_pipeline(copy / "release.yaml")
    assert changed.digest != first.digest
    overridden = load_pipeline(GOOD / "release.yaml", overrides=["name=x"])
    assert overridden.digest != first.digest
    assert json.loads(json.dumps(first.data)) == first.data


def test_later_bases_win_over_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("description: a\nname: a\nenv: [A]\n")
    (tmp_path / "b.yaml").write_text("description: b\nenv: [B, C]\n")
    text = "aish: 1\nextends: [a.yaml, b.yaml]\nrun: ls\n"
    pipeline = load_pipeline(written(tmp_path, text))
    assert (pipeline.description, pipeline.name, pipeline.env) == ("b", "a", ("B", "C"))


def test_no_other_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"x": {"command": "x"}}}')
    (tmp_path / "aish.yaml").write_text("aish: 1\nname: other\n")
    monkeypatch.chdir(tmp_path)
    pipeline = load_pipeline(written(tmp_path, "aish: 1\nrun: ls\n"))
    assert (pipeline.name, dict(pipeline.servers)) == ("p", {})


def test_many_files_that_share_bases_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "0.yaml").write_text("aish: 1\nrun: ls\n")
    for number in range(1, 40):
        before = f"{number - 1}.yaml"
        (tmp_path / f"{number}.yaml").write_text(f"extends: [{before}, ./{before}, {before}]\n")
    assert load_pipeline(tmp_path / "39.yaml").steps
    for number in range(40, 80):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number - 1}.yaml\n")
    with pytest.raises(PipelineError, match="more than 64 files"):
        load_pipeline(tmp_path / "79.yaml")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[1]", "line 1, column 1: a mapping is expected here, and this is a list"),
        (b'{"a": 1, "a": 2}', "duplicate key `a`"),
        (b'{"a": NaN}', "`NaN` is not a JSON number"),
        (b'{"a": ', "line 1, column 7: Expecting value"),
        (b"[" * 100_000, "it is nested more than 64 deep"),
        (b"", "is empty"),
        (b"\xff", "not UTF-8: byte 0xff"),
    ],
)
def test_a_schema_file_that_holds_none_is_said(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_bytes(content)
    text = "aish: 1\nmodels: {a: {embedded: smollm2}}\nprompt: x y\noutput: {schema: s.json}\n"
    with pytest.raises(PipelineError) as failed:
        load_pipeline(written(tmp_path, text))
    (problem,) = failed.value.problems
    assert problem.path == "output.schema"
    assert reason in problem.message.replace(
        "does not contain a JSON Schema: a mapping", f"{reason}"
    )


@pytest.mark.parametrize(
    ("entry", "params"),
    [
        ("embedded: smollm2", {"max_tokens": 256}),
        ("embedded: smollm2, params: {temperature: 1}", {"temperature": 1, "max_tokens": 256}),
        ("embedded: smollm2, params: {max_tokens: 2000}", {"max_tokens": 2000}),
        ("embedded: a.gguf, params: {max_completion_tokens: 9}", {"max_completion_tokens": 9}),
        ("base_url: http://127.0.0.1/v1, model: m", {}),
    ],
)
def test_an_embedded_model_answers_with_a_bound_unless_the_file_has_one(
    tmp_path: Path, entry: str, params: dict[str, int]
) -> None:
    pipeline = load_pipeline(
        written(tmp_path, f"aish: 1\nmodels: {{m: {{{entry}}}}}\nprompt: Say hi\n")
    )

    assert pipeline.models["m"].params == params
