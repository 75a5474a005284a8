from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.config.loader import load_pipeline, read_pipeline
from aish.config.model import PromptStep
from aish.core.errors import PipelineError

TEXT = """\
aish: 1
models:
  local: {embedded: smollm2}
  cloud: {base_url: "http://127.0.0.1/v1", model: m}
mcp: {servers: {fs: {pack: fs, root: .}}}
model: local
steps:
  - {id: a, prompt: Say hello.}
  - {id: b, prompt: Say more., tools: [fs__x, fs__y]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(TEXT)
    return path


def test_one_value_is_replaced_and_the_override_is_remembered(file: Path) -> None:
    overrides = (
        "models.cloud.params.temperature=0",
        "models.cloud.retry={attempts: 2, max_delay: 5s}",
        "model=cloud",
        "steps[1].tools[0]=fs__z",
        "steps.a.max_tool_depth=1",
        "description='a: b'",
        "name=12x",
    )
    pipeline = load_pipeline(file, overrides=overrides)
    assert pipeline.models["cloud"].params == {"temperature": 0}
    assert pipeline.models["cloud"].retry.attempts == 2
    assert pipeline.model == "cloud"
    first, second = pipeline.steps
    assert isinstance(second, PromptStep)
    assert second.tools == ("fs__z", "fs__y")
    assert first.limits.max_tool_depth == 1
    assert (pipeline.description, pipeline.name) == ("a: b", "12x")
    assert pipeline.overrides == overrides


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("models.clod.params.x=0", "--set:1:1: models.clod: no key `clod` here"),
        ("modle=cloud", "--set:1:1: modle: no key `modle` here"),
        ("steps[7].model=x", "--set:1:1: steps[7]: no such item among 2"),
        ("model.x=1", "--set:1:1: model.x: the path continues below a single value"),
        ("models.cloud.params", "--set:1:1: `models.cloud.params` is not PATH=VALUE"),
        ("=1", "--set:1:1: `=1` is not PATH=VALUE"),
        ("models.cloud.params=[1", "a `[` is never closed"),
        ("limits.time=5", "--set:1:1: limits.time: a duration"),
        ("models.cloud.parms={}", "--set:1:1: models.cloud.parms: no key `parms` here"),
        ("model={{ x }}", "an unquoted `{{`"),
    ],
)
def test_a_path_that_leads_nowhere_is_a_problem(override: str, said: str, file: Path) -> None:
    with pytest.raises(PipelineError) as failed:
        load_pipeline(file, overrides=[override])
    (problem,) = failed.value.problems
    assert said in str(problem)


def test_a_near_name_is_offered(file: Path) -> None:
    with pytest.raises(PipelineError) as failed:
        load_pipeline(file, overrides=["models.clod.params.x=0"])
    assert failed.value.problems[0].hint == "did you mean `cloud`"


def test_an_override_reaches_one_of_two_values_that_an_alias_joins(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("aish: 1\nrun: ls\ninputs:\n  a: &x {type: string}\n  b: *x\n")
    inputs = load_pipeline(path, overrides=["inputs.a.type=integer"]).inputs
    assert inputs == {"a": {"type": "integer"}, "b": {"type": "string"}}


@given(text=st.text(alphabet="ab.[]0=\"'{}:- \tmodelsinputs\x00é", max_size=30) | st.text())
def test_no_override_does_more_than_make_problems(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "overridden.yaml"
    path.write_text(TEXT)
    reading = read_pipeline(path, overrides=[text])
    assert reading.pipeline is not None or reading.problems
