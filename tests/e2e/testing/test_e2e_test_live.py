"""`aish test --live`: cases on the real models, in one table."""

import json
import re
from typing import Any
from xml.etree import ElementTree as ET  # ruff: ignore[suspicious-xml-etree-import] - reads what we wrote

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Gate, Reply, hanging_reply, text_reply
from syrupy.assertion import SnapshotAssertion

MODELS = """
models:
  good: {base_url: "${GOOD_URL}", model: g, price: {input: 1, output: 2}, params: {max_tokens: 9}}
  bad: {base_url: "${BAD_URL}", model: b, price: {input: 1, output: 2}, params: {max_tokens: 9}}
  gone: {base_url: "http://127.0.0.1:9/v1", model: gone, retry: {attempts: 1}}
model: good
"""
PIPELINE = f"""
name: replies
{MODELS}
inputs: {{question: {{type: string}}}}
prompt: "{{{{ inputs.question }}}}"
tests:
  - name: answers
    foreach: {{file: cases.csv}}
    key: item.id
    expect: [{{contains: "{{{{ item.word }}}}"}}]
"""
CASES = "id,question,word\nrefund,money back?,money\nhours,open when?,open\n"


def echo(request: Any) -> Reply:
    return text_reply(f"You said: {request['messages'][-1]['content']}")


def silent(request: Any) -> Reply:
    return text_reply("money is all I know")


@pytest.fixture
def live(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A pipeline with two cases, a model that answers well and one that does not."""
    project.pipeline(PIPELINE, "pipelines/replies.yaml")
    project.write("pipelines/cases.csv", CASES)
    project.aish.env["GOOD_URL"] = model_endpoint(echo).base_url
    project.aish.env["BAD_URL"] = model_endpoint(silent).base_url
    return project


def results(text: str) -> dict[tuple[str, str | None], Any]:
    found = json.loads(text)
    return {(c["name"], r["model"]): r for c in found["cases"] for r in c["results"]}


def test_cases_by_models_are_one_table(live: Project, snapshot: SnapshotAssertion) -> None:
    done = live.aish("test", "--live", "-m", "good", "-m", "bad", "-n", "1", "pipelines")

    assert (done.code, done.stderr) == (1, "")
    # Widths follow the times.
    told = re.sub(r" {2,}", "  ", re.sub(r"-{2,}", "--", live.tidy(done.stdout)))
    assert told == snapshot


def test_without_a_model_each_step_has_its_own(live: Project) -> None:
    done = live.aish("test", "--live", "-q", "pipelines/replies.yaml", "-k", "hours")

    assert done.code == 0, done.stdout + done.stderr
    assert "as in the file" in done.stdout
    assert "1 passed, cost $0.0000" in done.stdout


def test_a_model_that_cannot_be_reached_is_no_failed_case(live: Project) -> None:
    done = live.aish("test", "--live", "-m", "good", "-m", "gone", "--format", "json")

    assert done.code == 5
    found = json.loads(done.stdout)
    by_model = {row["model"]: row for row in found["models"]}
    assert (by_model["good"]["passed"], by_model["gone"]["unreachable"]) == (2, 2)
    assert by_model["gone"]["failed"] == 0
    cell = results(done.stdout)["answers[hours]", "gone"]
    assert (cell["verdict"], cell["code"]) == ("unreachable", 5)
    assert "unreachable" in done.stderr


def test_the_reports_have_a_suite_for_each_model_and_a_page(live: Project) -> None:
    done = live.aish(
        *("test", "--live", "-m", "good", "-m", "bad", "-m", "gone"),
        *("--junit", "t.xml", "--html", "t.html", "-q"),
    )

    assert done.code == 5
    root = ET.fromstring((live.folder / "t.xml").read_text("utf-8"))  # ruff: ignore[suspicious-xml-element-tree-usage] - ours
    suites = {one.attrib["name"]: one.attrib for one in root}
    assert list(suites) == [f"pipelines/replies.yaml [{name}]" for name in ("good", "bad", "gone")]
    counts = [(one["failures"], one["errors"]) for one in suites.values()]
    assert counts == [("0", "0"), ("1", "0"), ("0", "2")]
    page = (live.folder / "t.html").read_text("utf-8")
    assert "expected the text to contain `open`; got `money is all I know`" in page
    assert "<pre>You said: open when?</pre>" in page
    answers = [one.text for one in root.iter("system-out")]
    assert answers[1:4:2] == ["You said: open when?", "money is all I know"]
    # The id of a run ends in four random characters.
    page = live.tidy(page)
    assert "http" not in page.replace("http-equiv", "").replace("http://127.0.0.1", "")


def test_the_limit_on_cost_holds_over_all_cases(live: Project) -> None:
    # A request may cost 0.000053, and an answer does cost 0.000013.
    done = live.aish(
        *("test", "--live", "-m", "good", "-m", "bad", "-n", "1", "--format", "json"),
        *("--max-cost-usd", "0.00007"),
    )

    assert done.code == 4, done.stdout + done.stderr
    found = json.loads(done.stdout)
    verdicts = [cell["verdict"] for cell in results(done.stdout).values()]
    assert verdicts == ["passed", "passed", "not_run", "not_run"]
    assert found["cost_usd"] <= 0.00007
    assert "the limit of $0.00007 for all cases together is reached" in done.stderr


def test_a_limit_that_needs_prices_says_so_before_anything_is_asked(
    live: Project, model_endpoint: ModelEndpoints
) -> None:
    text = PIPELINE.replace("price: {input: 1, output: 2}, ", "")
    live.pipeline(text, "pipelines/replies.yaml")

    done = live.aish("test", "--live", "--max-cost-usd", "1", "pipelines")

    assert done.code == 2
    assert "`limits.cost_usd` needs a price for the model `good`" in done.stdout


def test_a_baseline_fails_on_what_got_worse_only(live: Project) -> None:
    models = ("-m", "good", "-m", "bad")
    done = live.aish("test", "--live", *models, "--write-baseline", "base.json", "-q")
    assert done.code == 1

    again = live.aish("test", "--live", *models, "--baseline", "base.json", "-q")
    assert again.code == 0, again.stdout
    assert "0 flipped" in again.stdout
    assert "hint: one run a case proves little: `--repeat 8`" in again.stdout
    assert "nothing is compared" not in again.stdout

    live.aish("test", "--live", "-m", "good", "--write-baseline", "good.json", "-q")
    new = live.aish("test", "--live", "-m", "bad", "--baseline", "good.json", "-q")
    assert new.code == 1
    assert "bad has no run in good.json: nothing is compared" in new.stdout
    assert "proves little" not in new.stdout

    live.aish.env["GOOD_URL"] = live.aish.env["BAD_URL"]
    worse = live.aish("test", "--live", *models, "--baseline", "base.json", "--format", "json")

    assert worse.code == 1
    changes = {key: cell["change"] for key, cell in results(worse.stdout).items()}
    assert changes == {
        ("answers[refund]", "good"): "same",
        ("answers[refund]", "bad"): "same",
        ("answers[hours]", "good"): "worse",
        ("answers[hours]", "bad"): "same",
    }
    assert "flipped, worse than in base.json:" in worse.stderr


def test_a_case_that_has_changed_is_new_beside_a_baseline(live: Project) -> None:
    live.aish("test", "--live", "-m", "good", "--write-baseline", "base.json", "-q")
    live.write("pipelines/cases.csv", CASES.replace(",money\n", ",cash\n"))

    done = live.aish("test", "--live", "-m", "good", "--baseline", "base.json", "--format", "json")

    assert done.code == 1
    changes = {key[0]: cell["change"] for key, cell in results(done.stdout).items()}
    assert changes == {"answers[refund]": "new", "answers[hours]": "same"}


def test_a_new_case_that_fails_is_a_failure_beside_a_baseline(live: Project) -> None:
    live.aish("test", "--live", "-m", "good", "--write-baseline", "base.json", "-q")
    live.write("pipelines/cases.csv", CASES.replace("hours", "times") + "new,who?,nobody\n")

    done = live.aish("test", "--live", "-m", "good", "--baseline", "base.json", "-q")

    assert done.code == 1
    assert "in base.json but not run now:\n  pipelines/replies.yaml::answers[hours]" in done.stdout


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--live", "-m", "godo"), "no model `godo` in pipelines/replies.yaml"),
        (("--model", "good"), "`--model` is for live runs"),
        (("--baseline", "b.json"), "`--baseline` is for live runs"),
        (("--recorded-tools",), "`--recorded-tools` is for live runs"),
        (("--live", "--recorded-tools", "--ask"), "`--ask` is about tools that run"),
        (("--live", "--recorded-tools", "--record"), "`--record` is for cassettes"),
        (("--live", "--update-snapshots"), "`--update-snapshots` is for cassettes"),
        (("--live", "--record"), "`--record` is for cassettes"),
        (("--live", "--baseline", "b.json"), "--baseline b.json: cannot be read: No such file"),
        (("--live", "--baseline", "pipelines/cases.csv"), "is not JSON"),
        (("--live", "--baseline", "other.json"), "is not a result of `aish test --live`"),
        (("--live", "--timeout", "5"), "--timeout: "),
        (("--live", "--html", "no/t.html"), "its folder does not exist"),
    ],
)
def test_options_that_make_no_sense_contact_nothing(
    live: Project, options: tuple[str, ...], said: str
) -> None:
    live.write("other.json", '{"v": 1}')

    done = live.aish("test", *options)

    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr


def test_an_interrupted_run_has_a_partial_table(
    live: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()

    def second_hangs(request: Any) -> Reply:
        return echo(request) if "money" in str(request) else hanging_reply(gate)

    live.aish.env["GOOD_URL"] = model_endpoint(second_hangs).base_url
    with live.aish.start("test", "--live", "-m", "good", "-n", "1", "pipelines") as running:
        gate.wait_arrived()
        running.interrupt()
        done = running.finish()

    assert done.code == 130, done.stdout + done.stderr
    assert "pipelines/replies.yaml::answers[refund] [good] passed" in done.stdout
    assert "not run" in done.stdout
    assert "interrupted: 1 passed, 1 not run" in done.stdout


def test_the_time_limit_holds_over_all_cases(live: Project, model_endpoint: ModelEndpoints) -> None:
    live.aish.env["BAD_URL"] = model_endpoint(lambda _: hanging_reply(Gate())).base_url

    done = live.aish("test", "--live", "-m", "bad", "-n", "4", "--timeout", "1s")

    assert done.code == 4, done.stdout + done.stderr
    assert "0 passed, 2 not run, cost" in done.stdout
    assert "(the time limit of 1 s for all cases is exceeded)" in done.stdout


def test_a_limit_of_the_file_holds_for_each_case(live: Project) -> None:
    text = PIPELINE.replace("inputs:", "limits: {cost_usd: 0.00006}\ninputs:", 1)
    live.pipeline(text, "pipelines/replies.yaml")

    done = live.aish("test", "--live", "-m", "good", "--max-cost-usd", "1")

    assert done.code == 0, done.stdout

    live.pipeline(text.replace("0.00006", "0.00001"), "pipelines/replies.yaml")
    done = live.aish("test", "--live", "-m", "good", "--max-cost-usd", "1")

    assert done.code == 1, done.stdout
    assert "the run ended with 4 (budget): step `main`: the limit of $0.00001" in done.stdout


def test_a_missing_key_or_a_broken_file_costs_its_own_cases_only(live: Project) -> None:
    text = PIPELINE.replace("model: b,", "model: b, key_env: BAD_KEY,")
    live.pipeline(text, "pipelines/replies.yaml")
    live.pipeline("prompt: '{{ gone }}'\ntests: [{name: t}]\n", "pipelines/broken.yaml")

    done = live.aish("test", "--live", "-m", "good", "-m", "bad", "pipelines")

    assert done.code == 2
    assert "2 passed, 3 errors, cost" in done.stdout
    assert "`BAD_KEY`" in done.stdout
    assert "broken.yaml:3:9: prompt: `gone` is not defined" in done.stdout


def test_the_page_of_a_job_has_the_cases_that_failed(live: Project) -> None:
    summary = live.write("summary.md", "")
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}

    done = live.aish("test", "--live", "-m", "good", "-m", "bad", "--github", env=env)

    assert done.code == 1, done.stdout + done.stderr
    page = summary.read_text("utf-8")
    assert "3 passed, 1 failed" in page
    assert "answers[hours] [bad]" in page


def test_a_live_case_leaves_a_run_that_can_be_looked_at(live: Project) -> None:
    done = live.aish("test", "--live", "-m", "bad", "-k", "hours")

    assert done.code == 1
    (folder,) = (live.folder / "pipelines" / ".aish" / "runs").iterdir()
    assert f"run: pipelines/.aish/runs/{folder.name}" in done.stdout
    shown = live.aish("runs", "show", folder.name, "--run-dir", "pipelines/.aish/runs")
    assert shown.code == 0, shown.stderr


def test_calls_of_live_cases_are_approved_by_rules_alone(live: Project) -> None:
    live.pipeline(
        "name: p\nrun: [echo, hello]\ntests: [{name: t, expect: [{contains: hello}]}]\n",
        "pipelines/replies.yaml",
    )

    denied = live.aish("test", "--live", "pipelines", env={"MODEL_URL": "http://127.0.0.1:9"})
    allowed = live.aish(
        *("test", "--live", "pipelines", "--allow", "shell__run"),
        env={"MODEL_URL": "http://127.0.0.1:9"},
    )

    assert (denied.code, allowed.code) == (1, 0), denied.stdout + allowed.stdout
    assert "no rule approves shell__run" in denied.stdout


def test_a_journal_that_cannot_be_written_ends_its_case_and_says_so(live: Project) -> None:
    rows = f"long,{'money? ' * 2000},money\nhours,open when?,open\n"
    live.write("pipelines/cases.csv", f"id,question,word\n{rows}")
    live.through_shell('ulimit -f 16; exec "$@"')

    done = live.aish("test", "--live", "-n", "1", "pipelines", "--format", "json")

    found = {case["name"]: case["results"][0] for case in json.loads(done.stdout)["cases"]}
    broken, whole = found["answers[long]"], found["answers[hours]"]
    assert (broken["verdict"], whole["verdict"]) == ("error", "passed")
    assert "cannot write the journal: " in broken["reason"]
    assert "Traceback" not in done.stderr
