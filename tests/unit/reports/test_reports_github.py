import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from github_runner import Runner, command_in, commands_in
from html_blocks import read
from hypothesis import given
from hypothesis import strategies as st
from scripted_events import (
    HOSTILE,
    answered,
    any_event,
    decided,
    ordinary_run,
    paused_run,
    run_finished,
    run_started,
    stamped,
    step_finished,
    troubled_run,
    unmet_run,
)
from syrupy.assertion import SnapshotAssertion

from aish.core.events import (
    AnnotationAdded,
    ApprovalAsked,
    ChangedFile,
    Event,
    Exit,
    ExpectChecked,
    Failure,
    FilesChanged,
    ItemFinished,
    ItemStarted,
    Place,
    Stamped,
    StepStarted,
    ToolFinished,
)
from aish.core.json import JsonValue
from aish.core.messages import Usage
from aish.core.text import for_line, for_terminal
from aish.output.formats.junit import CaseResult, CaseSuite, Trouble
from aish.output.status import changes_text
from aish.reports.github.commands import (
    LIMIT,
    RunnerJob,
    Spot,
    annotation,
    goes_to_the_runner,
    mask_commands,
)
from aish.reports.github.report import (
    GitHub,
    ReportData,
    annotations,
    case_annotations,
    cases_summary,
    summary,
    value,
)
from aish.system.secrets.secrets import Secrets

SPOTS = {
    "fix": Spot("pipelines/p.yaml", 12, 5),
    "notes": Spot("pipelines/a,b:c.yaml", 3, 1),
}
ANY = st.text(st.characters(exclude_categories=()), max_size=40)
ODD: st.SearchStrategy[Any] = st.text(
    "<>&\"'`|\\*_#[]()!@:./-~ \n\r\ta1\x1b\u202e\ud800\u200b", max_size=60
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=3)


def gathered(run: Sequence[Stamped]) -> ReportData:
    told = ReportData()
    for one in run:
        told.take(one)
    told.end()
    return told


def batch(count: int, failing: int) -> list[Stamped]:
    events: list[object] = [run_started(), StepStarted(Place("rows"), "prompt", count)]
    for n in range(count):
        place = Place("rows", f"key-{n}")
        bad = n < failing
        events += (
            ItemStarted(place, f"key-{n}", n, "0" * 16),
            ItemFinished(
                place,
                f"key-{n}",
                n,
                "failed" if bad else "ok",
                None if bad else "fine",
                None,
                Usage(10, 2),
                None,
                0.1,
                Failure("schema", f"no number in {n}: {HOSTILE}") if bad else None,
            ),
        )
    failed = Failure("items", f"{failing} items failed")
    events.append(step_finished("rows", status="failed", text=None, error=failed))
    end = Exit(1, "failed", retryable=False, reason=f"step `rows`: {failing} items failed")
    events.append(run_finished(status="failed", exit=end))
    return stamped(*events)  # type: ignore[arg-type]  # they are events


@pytest.mark.parametrize(
    "run",
    [ordinary_run(), troubled_run(), unmet_run(), batch(30, 12), ordinary_run()[:8]],
    ids=["ordinary", "troubled", "unmet", "batch", "cut off"],
)
def test_the_summary_of_a_run(run: list[Stamped], snapshot: SnapshotAssertion) -> None:
    page = summary(gathered(run))

    assert page == snapshot
    read(page)


@given(ODD | ANY)
def test_a_strangers_text_is_text_in_a_summary_and_nothing_else(text: str) -> None:
    changed = FilesChanged(text, (ChangedFile(text, "added", 1, 0),), patch=text, kept=text)
    run = stamped(
        run_started(pipeline=text),
        StepStarted(Place(text), "prompt"),
        ExpectChecked(Place(text), "equals", ok=False, message=text),
        decided(Place(text), text, {}, verdict="deny"),
        step_finished(text, status="failed", text=text, error=Failure("x", text, text)),
        StepStarted(Place("last"), "prompt"),
        decided(Place("last", turn=1, call="c"), text, text),
        ToolFinished(Place("last", turn=1, call="c"), text, "handler_error", text, None, 0.1),
        step_finished("last", text=text),
        changed,
        run_finished(exit=Exit(1, "failed", retryable=False, reason=text, hint=text)),
    )

    seen = read(summary(gathered(run)))

    assert seen.tags <= {
        *("h3", "p", "b", "br", "code", "pre", "table", "tr", "th", "td", "details", "summary")
    }
    assert seen.attributes <= {"open", "lang"}
    shown = {for_line(text), f"\n{for_terminal(text)}", for_terminal(text)}
    shown |= {for_line(changes_text(changed)), for_line(f"handler_error: {text}")}
    ours = {"last", "{}", run_finished().folder, for_line(text.partition("\n")[0])}
    assert set(seen.foreign) <= shown | ours


def test_steps_are_in_the_order_of_the_file_with_what_decided_calls_and_changes(
    snapshot: SnapshotAssertion,
) -> None:
    """The last step ends first; calls in trouble come first, each prompt has its answer."""
    steps: dict[str, JsonValue] = dict.fromkeys(("read", "fix", "check", "tell"))
    call = Place("fix", turn=1, call="1"), Place("fix", turn=1, call="2")
    files = (
        ChangedFile("src/``a`.py", "changed", 12, 3),
        ChangedFile("new\n# x.py", "added", 1_200, 0),
        ChangedFile(".env", "changed"),
    )
    patch = "--- a/x.md\n+++ b/x.md\n@@ -1 +1,3 @@\n-old\n+```\n+</pre><b>**x**\n"
    failed = Failure("unmet", "no")
    run = stamped(
        run_started(limits={"steps": steps}),
        StepStarted(Place("tell"), "prompt"),
        step_finished("tell", text="*I* told"),
        StepStarted(Place("check"), "run"),
        step_finished("check", status="failed", text=None, error=failed, exit_code=1),
        StepStarted(Place("fix"), "prompt"),
        decided(call[0], "box__shell_run", {"command": "x" * 300}),
        ToolFinished(call[0], "box__shell_run", "ok", "done", None, 0.1),
        decided(call[1], "box__shell_run", {"command": "pytest"}),
        ToolFinished(call[1], "box__shell_run", "ok", "1 failed", None, 0.1, exit_code=1),
        step_finished("fix", text="I fixed `it`"),
        StepStarted(Place("read"), "call"),
        step_finished("read"),
        FilesChanged(".", files, 0, patch, dirty=True, kept="files/changes.diff"),
        FilesChanged("sub", problem="git took longer than 5 s"),
        run_finished(status="failed", exit=Exit(1, "failed", retryable=False, reason="no")),
    )

    page = summary(gathered(run))

    assert page == snapshot
    read(page)


@given(st.recursive(ODD | ANY | st.none() | st.integers() | st.booleans(), nested, max_leaves=8))
def test_a_structured_answer_is_tables_and_lists_of_text(answer: Any) -> None:
    run = stamped(
        run_started(),
        StepStarted(Place("ask"), "prompt"),
        step_finished("ask", status="failed", output=answer, error=Failure("schema", "no")),
        run_finished(exit=Exit(1, "failed", retryable=False, reason="no")),
    )

    seen = read(summary(gathered(run)))

    assert seen.attributes <= {"open"}
    assert seen.tags <= {
        *("h3", "p", "b", "code", "pre", "table", "tr", "th", "td", "details", "summary"),
        *("ul", "li", "br"),
    }
    # Of what a stranger wrote nothing stands outside of `code` and `pre`.
    told = {"The answer:", "ask", "failed", "no", "exit 1 (failed)", ": ", "run folder: "}
    assert all(
        one.strip() in told or one.isascii() or "❌" in one or "·" in one for one in seen.own
    )


def test_a_list_of_objects_is_a_table_and_a_huge_answer_is_cut() -> None:
    rows: list[JsonValue] = [{"file": f"{n}.py", "line": n} for n in range(150)]

    page = value({"findings": rows, "tags": ["a", "b"], "note": "x\ny"})

    assert "<tr><td><code>3.py</code></td><td><code>3</code></td></tr>" in page
    assert "<tr><td>and 50 more</td></tr>" in page
    assert "<ul><li><code>a</code></li><li><code>b</code></li></ul>" in page
    assert "<code>x</code><br><code>y</code>" in page
    assert len(value([["x" * 1000] * 100] * 100)) < 30_000


def test_failures_and_findings_share_what_github_shows() -> None:
    found = [AnnotationAdded("a.py", n, None, "error", f"finding {n}") for n in range(1, 30)]
    more = [AnnotationAdded("a.py", 1, None, "notice", "by the way")]
    batch_end = batch(12, 12)
    run = [*batch_end[:-1], *stamped(*found, *more), batch_end[-1]]

    lines = list(annotations(gathered(run), SPOTS))

    assert [line.partition(" ")[0] for line in lines] == ["::error"] * 10 + ["::notice"]
    assert sum("finding" in line for line in lines) == 5
    assert "12 items failed" in lines[0]


@given(st.lists(any_event(), max_size=12))
def test_whatever_the_events_are_the_summary_is_whole(run: list[Stamped]) -> None:
    told = gathered(run)

    page = summary(told, 4000)

    assert len(page.encode()) <= 4000
    read(page)
    for line in annotations(told, SPOTS):
        command = command_in(line)
        assert command is not None
        assert command.name in {"error", "warning", "notice"}


@pytest.mark.parametrize("limit", [200, 1500, 3000])
def test_a_summary_is_cut_to_its_limit_and_says_so(limit: int) -> None:
    page = summary(gathered(batch(300, 40)), limit)

    assert len(page.encode()) <= limit
    assert not page or "cut off" in page
    read(page)


def test_a_huge_run_stays_under_what_github_takes() -> None:
    long = "é" * 400_000
    events: list[object] = [run_started()]
    for n in range(600):
        failed = Failure("x", long, long)
        events += [
            StepStarted(Place(f"s{n}"), "prompt"),
            step_finished(f"s{n}", status="failed", text=long, error=failed),
        ]
    events.append(run_finished())

    page = summary(gathered(stamped(*events)))  # type: ignore[arg-type]  # they are events

    assert len(page.encode()) <= LIMIT
    assert "cut off" in page
    read(page)


def test_of_many_items_only_the_first_failures_are_kept() -> None:
    told = gathered(batch(5000, 3000))

    assert len(told.rows["rows"].failures) == 10
    page = summary(told)
    assert "2,000 ok, 3,000 not" in page
    assert "and 2990 more items" in page


def test_an_item_that_went_well_in_the_end_is_no_failure() -> None:
    first = batch(3, 3)[:-2]
    again = batch(3, 0)

    told = gathered([*first, *again])

    assert not told.rows["rows"].failures
    assert not told.rows["rows"].trouble


@pytest.mark.parametrize(
    "run", [ordinary_run(), troubled_run(), unmet_run()], ids=["ordinary", "troubled", "unmet"]
)
def test_failures_are_annotated_where_the_step_stands(
    run: list[Stamped], snapshot: SnapshotAssertion
) -> None:
    lines = list(annotations(gathered(run), SPOTS))

    assert lines == snapshot
    assert [command_in(line) for line in lines] == snapshot(name="as the runner reads them")


def test_whoever_answers_by_the_page_sees_the_whole_call_or_that_it_is_not_there() -> None:
    nested: JsonValue = []
    for _ in range(100_000):
        nested = [nested]
    hidden = "a\u202eb"
    pages = []
    for arguments in ({"text": f"{'x' * 5_000}<b>\n\n{hidden}"}, {"text": "y" * 200_000}, nested):
        run = [
            replace(one, arguments=arguments) if isinstance(one, ApprovalAsked) else one
            for one in paused_run()
        ]
        pages.append(summary(gathered(stamped(*run))))
    whole, long, deep = pages

    assert whole.replace("\n  │ ", "").count("x") > 5_000
    assert "&lt;b&gt;\\n" in whole
    assert hidden not in whole
    assert "characters, and are not shown here: <code>aish approve</code> shows them" in long
    assert "yyyy" not in long
    assert "its arguments are nested too deeply to be shown" in deep
    assert all("<p>digest <code>0000" in page for page in pages)


def test_a_paused_run_is_no_failure_and_says_how_to_answer(snapshot: SnapshotAssertion) -> None:
    run = gathered(stamped(*paused_run()))
    page, lines = summary(run), list(annotations(run, SPOTS))

    assert page == snapshot
    read(page)
    found = [command_in(line) for line in lines]
    assert [one.name for one in found if one is not None] == ["notice", "notice"]
    assert lines == snapshot(name="annotations")


def test_an_answered_question_is_not_among_those_that_wait() -> None:
    late = answered(Place("fix", turn=1, call="c2"))
    run = gathered(stamped(*paused_run(), late))

    assert "aish approve" not in summary(run)
    assert [row.calls.total for row in run.rows.values()] == [1, 0]


def test_an_item_that_waits_is_no_failed_item() -> None:
    events = batch(2, 0)[:-2]
    row = Place("rows", "w")
    more: list[Event] = [
        ItemStarted(row, "w", 9, "0" * 16),
        ItemFinished(row, "w", 9, "paused", None, None, Usage(), None, 0.1),
        step_finished("rows", status="paused", text=None),
        run_finished(status="paused", exit=Exit(8, "paused", retryable=False, reason="it waits")),
    ]
    run = gathered(stamped(*(one.event for one in events), *more))

    assert "2 ok, 1 paused" in summary(run)
    names = [found.name for line in annotations(run, {}) if (found := command_in(line))]
    assert "error" not in names


def test_no_more_annotations_than_github_shows() -> None:
    events: list[object] = [run_started()]
    for n in range(30):
        events += [
            decided(Place(f"s{n}"), f"evil__tool_{n}", {}, verdict="deny"),
            step_finished(f"s{n}", status="failed", error=Failure("x", "broken")),
        ]

    found = commands_in("\n".join(annotations(gathered(stamped(*events)), {})))  # type: ignore[arg-type]  # events

    assert [one.name for one in found] == ["error"] * 10 + ["warning"] * 10


def test_each_failed_step_comes_before_the_second_complaint_of_one() -> None:
    place = Place("many")
    checks = [ExpectChecked(place, "contains", ok=False, message=f"no {n}") for n in range(12)]
    run = stamped(
        StepStarted(place, "prompt"),
        *checks,
        step_finished("many", status="failed"),
        step_finished("other", status="failed", error=Failure("x", "broken")),
    )

    found = commands_in("\n".join(annotations(gathered(run), {})))

    assert [one.data for one in found[:3]] == ["no 0", "broken", "no 1"]


@given(ANY | ODD, ANY | ODD, st.builds(Spot, ANY | ODD, st.integers(1), st.integers(1)))
def test_an_annotation_is_one_command_with_the_text_as_data(
    title: str, message: str, spot: Spot
) -> None:
    (line,) = Runner.lines(annotation("error", title, message, spot))

    command = command_in(line)

    assert command is not None
    assert command.name == "error"
    assert set(command.properties) <= {"file", "line", "col", "title"}
    assert command.data == for_terminal(message)
    assert command.properties.get("title", "").strip() == for_terminal(title).strip()
    assert command.properties["line"] == f"{spot.line}"


@pytest.mark.requirement("B13")
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=8, max_size=90))
def test_each_secret_is_a_mask_line_by_line(value: str) -> None:
    secrets = Secrets()
    secrets.add("KEY", value)
    runner = Runner()

    runner.read("\n".join(mask_commands(secrets)))

    assert not [line for line in runner.log if line]
    assert len(set(runner.masks)) == len(runner.masks)
    assert all(mask in value and len(mask) >= 8 for mask in runner.masks)
    if not {"\r", "\n"} & set(value):
        assert value in runner.masks


def test_the_lines_of_a_key_file_are_masked_and_short_ones_are_not() -> None:
    secrets = Secrets()
    secrets.add("PEM", "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7\r\n}\nhalf%0Aof it: 100% secret\n")

    assert list(mask_commands(secrets)) == [
        "::add-mask::-----BEGIN KEY-----",
        "::add-mask::MIIEpAIBAAKCAQEA7",
        "::add-mask::half%250Aof it: 100%25 secret",
    ]


def test_only_a_pipe_of_its_own_is_given_secrets(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as pipe:
        assert goes_to_the_runner(pipe)
    with (tmp_path / "log").open("w") as file:
        assert not goes_to_the_runner(file)
    assert not goes_to_the_runner(io.StringIO())


def closed(environ: Mapping[str, str], run: Sequence[Stamped]) -> tuple[str, list[str]]:
    out, warnings = io.StringIO(), list[str]()
    sink = GitHub(RunnerJob(environ, out, warnings.append), SPOTS)
    for one in run:
        sink(one)
    sink.close()
    return out.getvalue(), warnings


def test_a_summary_goes_after_what_others_wrote(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("| a | b", "utf-8")

    for _ in range(2):
        closed({"GITHUB_STEP_SUMMARY": str(path)}, ordinary_run())

    text = path.read_text("utf-8")
    assert text.startswith("| a | b\n\n<h3>")
    assert text.count("<h3>") == 2


def test_the_runs_of_one_step_share_its_room(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("x" * (LIMIT - 4000), "utf-8")
    environ = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(path)}

    said = [closed(environ, batch(30, 30))[1] for _ in range(3)]

    assert path.stat().st_size <= LIMIT
    assert said[0] == []
    assert any("full" in line for line in said[2])


@pytest.mark.parametrize("there", ["nothing", "a folder", "a link"])
def test_a_summary_that_cannot_be_written_is_said_and_no_more(tmp_path: Path, there: str) -> None:
    path = tmp_path / "summary.md"
    environ = {"GITHUB_ACTIONS": "true"}
    if there != "nothing":
        environ["GITHUB_STEP_SUMMARY"] = str(path)
    if there == "a folder":
        path.mkdir()
    if there == "a link":
        path.symlink_to(tmp_path / "elsewhere")

    printed, warnings = closed(environ, unmet_run())

    assert len(warnings) == 1
    assert warnings[0].startswith("`--github`: ")
    assert len(commands_in(printed)) == 3
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("value", ["", "false", "1"])
def test_outside_of_github_nothing_is_printed(tmp_path: Path, value: str) -> None:
    environ = {"GITHUB_ACTIONS": value, "GITHUB_STEP_SUMMARY": str(tmp_path / "s")}

    said = "`--github`: `GITHUB_ACTIONS` is not `true`, so no annotation is printed"
    assert closed(environ, unmet_run()) == ("", [said])


def suites() -> list[CaseSuite]:
    good = CaseResult("fine", "pipelines/a.yaml", 0.5, "pipelines/a.yaml")
    why = Trouble("failure", "expectation", HOSTILE.partition("\n")[0], f"why\n{HOSTILE}")
    bad = CaseResult(HOSTILE, "pipelines/b.yaml", 0.25, "pipelines/b.yaml", (why,))
    return [CaseSuite("pipelines/a.yaml", (good,)), CaseSuite("pipelines/b.yaml", (good, bad))]


def test_tests_on_the_page_of_their_job(snapshot: SnapshotAssertion) -> None:
    page = cases_summary("2 passed, 1 failed in 1.0 s", suites())

    assert page == snapshot
    read(page)
    lines = list(case_annotations(suites(), lambda file: f"sub/{file}"))
    assert [command_in(line) for line in lines] == snapshot(name="annotations")


def test_many_failing_tests_are_cut() -> None:
    (_, bad) = suites()[1].cases
    many = [CaseSuite(f"p{n}.yaml", (bad,) * 5) for n in range(2000)]

    page = cases_summary("", many)

    assert len(page.encode()) <= LIMIT
    assert len(list(case_annotations(many, str))) == 10
    read(page)
