"""`aish test --live --repeat`: repeated runs against endpoints whose pass rates are known."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET  # ruff: ignore[suspicious-xml-etree-import] - reads what we wrote

import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project
from model_endpoint import Gate, Reply, hanging_reply, text_reply
from syrupy.assertion import SnapshotAssertion

PIPELINE = """
name: rates
models:
  good: {base_url: "${GOOD_URL}", model: g, price: {input: 1, output: 2}, params: {max_tokens: 9},
         retry: {attempts: 1}}
  bad: {base_url: "${BAD_URL}", model: b, price: {input: 1, output: 2}, params: {max_tokens: 9}}
model: good
inputs: {question: {type: string}}
prompt: "{{ inputs.question }}"
tests:
  - name: answers
    foreach: {file: cases.csv}
    key: item.id
    expect: [{contains: "yes"}]
"""
CASES = 6
WRITE_SMALL = ("test", "--live", "pipelines", "--repeat", "2", "--write-baseline", "b.json", "-q")

Passes = Callable[[int, int], bool]
"""Says if a case passes in its run: the number of the case, and the run's, both from 0."""


def nine_of_ten(case: int, run: int) -> bool:
    return (3 * case + run) % 10 != 9


def one_of_three(case: int, run: int) -> bool:
    return (case + run) % 3 == 0


def never(_case: int, _run: int) -> bool:
    return False


class Rates:
    """An endpoint that answers each case right or wrong by the number of its run."""

    def __init__(self, passes: Passes) -> None:
        self.passes = passes
        self.asked: list[str] = []
        self.runs: Counter[int] = Counter()

    def __call__(self, request: Any) -> Reply:
        question = request["messages"][-1]["content"]
        self.asked.append(question)
        case = int(question.split()[-1])
        run = self.runs[case]
        self.runs[case] += 1
        return text_reply("yes, it is" if self.passes(case, run) else f"no {run % 2}")


@pytest.fixture
def live(project: Project) -> Project:
    rows = "".join(f"c{n},is it {n}\n" for n in range(CASES))
    project.write("pipelines/cases.csv", f"id,question\n{rows}")
    project.pipeline(PIPELINE, "pipelines/rates.yaml")
    return project


@pytest.fixture
def answer(live: Project, model_endpoint: ModelEndpoints) -> Callable[..., Rates]:
    """Sets what the models answer from now on."""

    def set_rates(good: Passes, bad: Passes = never) -> Rates:
        rates = Rates(good)
        live.aish.env["GOOD_URL"] = model_endpoint(rates).base_url
        live.aish.env["BAD_URL"] = model_endpoint(Rates(bad)).base_url
        return rates

    return set_rates


def shown(live: Project, done: Done) -> str:
    """The end of the screen without times, and the lines on stderr."""
    text = re.sub(r"\b(\d+ min )?(\d+\.)?\d+ (s|min)\b", "<s> s", done.stdout + done.stderr)
    text = re.sub(r" {2,}", "  ", re.sub(r"-{2,}", "--", live.tidy(text)))
    return re.sub(r"(?m)^pipelines\S+ (\S+ )?run \d of .*\n", "", text)


def cells(done: Done) -> dict[str, Any]:
    return {c["name"]: c["results"][0] for c in json.loads(done.stdout)["cases"]}


@pytest.mark.requirement("V1", "V3", "V4")
def test_each_case_runs_so_often_in_rounds(
    live: Project, answer: Callable[..., Rates], snapshot: SnapshotAssertion
) -> None:
    rates = answer(nine_of_ten)

    done = live.aish("test", "--live", "--repeat", "8", "-n", "1", "pipelines")

    assert done.code == 1
    rounds = [rates.asked[n : n + CASES] for n in range(0, 8 * CASES, CASES)]
    assert all(sorted(one) == sorted(rounds[0]) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert shown(live, done) == snapshot


@pytest.mark.requirement("V5", "V7", "V9", "V11")
def test_a_baseline_fails_on_what_chance_alone_would_not_do(
    live: Project, answer: Callable[..., Rates], snapshot: SnapshotAssertion
) -> None:
    answer(nine_of_ten)
    repeat = ("test", "--live", "pipelines", "--repeat", "8", "-q")
    written = live.aish(*repeat, "--write-baseline", "b.json")
    assert "--write-baseline" not in written.stderr

    rates = answer(lambda case, run: nine_of_ten(case, run + 1))
    same = live.aish(*repeat, "--baseline", "b.json")
    assert (same.code, len(rates.asked)) == (0, 3 * CASES), same.stdout
    assert shown(live, same) == snapshot(name="same")

    rates = answer(one_of_three)
    worse = live.aish(*repeat, "--baseline", "b.json")
    assert (worse.code, len(rates.asked)) == (1, 3 * CASES), worse.stdout
    assert shown(live, worse) == snapshot(name="worse")

    # A sure case that breaks is named.
    rates = answer(lambda case, run: case > 0 and nine_of_ten(case, run + 1))
    broken = live.aish(*repeat, "--baseline", "b.json")
    assert (broken.code, rates.runs[0]) == (1, 8), broken.stdout
    assert shown(live, broken) == snapshot(name="broken")

    rates = answer(one_of_three)
    whole = live.aish(*repeat, "--baseline", "b.json", "--all-runs", "--format", "json")
    assert (whole.code, len(rates.asked)) == (1, 8 * CASES)
    (column,) = json.loads(whole.stdout)["models"]
    comparison = column["comparison"]
    assert comparison["outcome"] == "worse"
    assert comparison["interval"][0] < comparison["change"] < comparison["interval"][1] < 0


@pytest.mark.requirement("V8")
def test_a_baseline_of_several_sessions_knows_how_days_differ(
    live: Project, answer: Callable[..., Rates], snapshot: SnapshotAssertion
) -> None:
    # Half of the cases pass on even days only: a day decides more than a run.
    day = ("test", "--live", "pipelines", "--repeat", "5", "-q")
    answer(lambda case, _: case % 2 == 0)
    live.aish(*day, "--write-baseline", "b.json")
    answer(lambda case, _: case % 2 == 1)
    extended = live.aish(*day, "--extend-baseline", "b.json")
    assert len(json.loads((live.folder / "b.json").read_text("utf-8"))["earlier"]) == 1
    assert "not written" not in extended.stderr

    answer(lambda case, _: case == 1)
    drifted = live.aish(*day, "--baseline", "b.json", "--all-runs")
    assert drifted.code == 0, drifted.stdout
    assert shown(live, drifted) == snapshot
    found = live.aish(*day, "--baseline", "b.json", "--all-runs", "--format", "json")
    assert json.loads(found.stdout)["models"][0]["comparison"]["correlation"] == pytest.approx(1)

    live.pipeline(PIPELINE.replace("max_tokens: 9", "max_tokens: 8", 1), "pipelines/rates.yaml")
    rates = answer(nine_of_ten)
    refused = live.aish(*day, "--extend-baseline", "b.json")
    assert (refused.code, rates.asked) == (2, [])
    assert "--extend-baseline b.json: is of other pipelines: `pipelines/rates.yaml`" in (
        refused.stderr
    )


@pytest.mark.requirement("V10")
def test_models_are_compared_within_a_session(
    live: Project, answer: Callable[..., Rates], snapshot: SnapshotAssertion
) -> None:
    answer(nine_of_ten, one_of_three)
    repeat = ("test", "--live", "pipelines", "--repeat", "6", "-q")

    other = live.aish(*repeat, "--against", "good", "-m", "bad")
    assert other.code == 1, other.stdout
    assert shown(live, other) == snapshot(name="model")

    itself = live.aish(*repeat, "--against", "itself")
    assert itself.code == 0, itself.stdout
    assert shown(live, itself) == snapshot(name="itself")

    # Every other answer is right: both halves of a session differ.
    answer(lambda _case, run: run % 2 == 0)
    unstable = live.aish(*repeat, "--against", "itself")
    assert unstable.code == 1, unstable.stdout
    assert "different from itself: -100 points" in unstable.stdout

    alone = live.aish(*repeat, "--against", "good")
    assert (alone.code, "`good` is compared with nothing" in alone.stderr) == (2, True)


@pytest.mark.requirement("V2")
def test_runs_that_could_not_be_asked_are_none(
    live: Project, answer: Callable[..., Rates], model_endpoint: ModelEndpoints
) -> None:
    rates = Rates(lambda _case, _run: True)

    def busy(request: Any) -> Reply:
        reply = rates(request)
        case = int(request["messages"][-1]["content"].split()[-1])
        # The first case is asked in vain 3 times of 4, the second twice.
        in_vain = rates.runs[case] <= {0: 3, 1: 2}.get(case, 0)
        return Reply([b"busy"], status=503) if in_vain else reply

    answer(nine_of_ten)
    live.aish.env["GOOD_URL"] = model_endpoint(busy).base_url

    done = live.aish("test", "--live", "pipelines", "--repeat", "4", "--format", "json")

    found = cells(done)
    assert done.code == 5, done.stderr
    assert [found[f"answers[c{n}]"]["verdict"] for n in range(3)] == [
        *("unmeasured", "passed", "passed"),
    ]
    assert found["answers[c1]"]["tried"] == 2
    assert "1 unmeasured" in done.stderr


@pytest.mark.requirement("V13")
def test_all_reports_have_the_runs(live: Project, answer: Callable[..., Rates]) -> None:
    answer(lambda case, run: case != 1 and (case != 0 or run > 0))
    text = PIPELINE.replace("key: item.id", "key: item.id\n    repeat: {runs: 4, pass: 60%}")
    live.pipeline(text, "pipelines/rates.yaml")

    done = live.aish(
        *("test", "--live", "pipelines", "--all-runs", "--format", "json"),
        *("--junit", "t.xml", "--html", "t.html"),
    )

    assert done.code == 1, done.stderr
    found = cells(done)
    flaky, failed = found["answers[c0]"], found["answers[c1]"]
    assert (flaky["verdict"], flaky["flaky"], flaky["passed"], flaky["needed"]) == (
        *("passed", True, 3, 3),
    )
    assert [run["verdict"] for run in flaky["runs"]] == ["failed", "passed", "passed", "passed"]
    assert (flaky["distinct_answers"], flaky["same_calls"]) == (2, 1.0)
    assert flaky["interval"] == pytest.approx([0.3006, 0.9544], abs=1e-3)
    assert (failed["verdict"], failed["distinct_answers"]) == ("failed", 2)
    (column,) = json.loads(done.stdout)["models"]
    assert column["rate"] == pytest.approx(19 / 24)
    assert column["pass_power"] == pytest.approx({"1": 19 / 24, "4": 4 / 6})
    root = ET.fromstring((live.folder / "t.xml").read_text("utf-8"))  # ruff: ignore[suspicious-xml-element-tree-usage] - ours
    told = {case.attrib["name"]: case for case in root.iter("testcase")}
    assert len(told) == CASES
    failure = told["answers[c1] [as in the file]"].find("failure")
    assert failure is not None
    assert failure.attrib["message"].startswith("0 of 4: tests[0].expect[0] contains")
    passed = told["answers[c0] [as in the file]"]
    assert passed.find("failure") is None
    assert "3 of 4 passed" in (passed.findtext("system-out") or "")
    assert "3 of 4" in (live.folder / "t.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("passes", "runs"),
    [(lambda _case, _run: True, 3), (never, 2), (lambda _case, run: run > 0, 4)],
    ids=["passes", "fails", "flaky"],
)
def test_a_case_ends_when_its_share_is_certain(
    live: Project, answer: Callable[..., Rates], passes: Passes, runs: int
) -> None:
    text = PIPELINE.replace("key: item.id", "key: item.id\n    repeat: {runs: 4, pass: 3}")
    live.pipeline(text, "pipelines/rates.yaml")
    rates = answer(passes)

    done = live.aish("test", "--live", "pipelines", "-k", "c0", "-q")

    assert done.code == (1 if passes is never else 0), done.stdout
    assert len(rates.asked) == runs
    assert "1 case, 1 model, 4 runs each: 2 to 4 runs" in done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("after", [7, 18])
def test_an_interrupted_session_has_no_verdict_and_keeps_what_ran(
    live: Project, answer: Callable[..., Rates], model_endpoint: ModelEndpoints, after: int
) -> None:
    answer(nine_of_ten)
    repeat = ("test", "--live", "pipelines", "--repeat", "8", "-n", "1", "--format", "json")
    live.aish(*WRITE_SMALL)
    gate, rates = Gate(), Rates(lambda case, run: run < 3 or nine_of_ten(case, run))

    def hang(request: Any) -> Reply:
        reply = rates(request)
        return hanging_reply(gate) if len(rates.asked) > after else reply

    live.aish.env["GOOD_URL"] = model_endpoint(hang).base_url
    options = ("--baseline", "b.json", "--all-runs", "--extend-baseline", "b.json")
    before = (live.folder / "b.json").read_bytes()
    with live.aish.start(*repeat, *options) as running:
        gate.wait_arrived()
        running.interrupt()
        done = running.finish()

    assert done.code == 130, done.stderr
    found = json.loads(done.stdout)
    ran = [run for cell in cells(done).values() for run in cell["runs"] if run["code"] == 0]
    assert len(ran) == after
    assert all((live.folder / run["folder"]).is_dir() for run in ran)
    assert found["models"][0]["comparison"]["outcome"] == "undecided"
    counts = {cell["tried"] for cell in cells(done).values()}
    assert max(counts) - min(counts) <= 1
    assert (live.folder / "b.json").read_bytes() == before
    assert "not written" in done.stderr


def test_a_limit_that_ends_a_session_leaves_no_verdict(
    live: Project, answer: Callable[..., Rates]
) -> None:
    answer(nine_of_ten)
    repeat = ("test", "--live", "pipelines", "--repeat", "8", "-n", "1")
    live.aish(*WRITE_SMALL)

    # An answer costs 0.000013 and a request at most 0.000053.
    limits = ("--max-cost-usd", "0.00015", "--format", "json")
    done = live.aish(*repeat, "--baseline", "b.json", *limits)

    assert done.code == 4, done.stderr
    found = json.loads(done.stdout)
    assert found["models"][0]["comparison"]["outcome"] == "undecided"
    assert 0 < found["cost_usd"] <= 0.00015
    assert {cell["verdict"] for cell in cells(done).values()} == {"unmeasured"}
    assert "no verdict" in done.stderr
    assert "(at most $0.0001)" in done.stderr
