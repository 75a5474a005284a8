"""Results of items for others: CSV, JSON Lines, one object, plain text (B4)."""

import csv
import io
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from item_events import STEP, item_failed, item_finished, item_started, numbered, run_of
from jsonschema import Draft202012Validator
from samples import each_case
from scripted_events import HOSTILE, decided, turn_finished

from aish.core.events import Asked, Event, Exit, Failure, Place, Stamped, StepFinished, ToolFinished
from aish.core.json import JsonValue
from aish.items.csv_rows import csv_rows
from aish.output.formats.text import CI_LOG, ItemTexts
from aish.output.items.results import ItemsFile, open_items_file
from aish.output.items.table import (
    MOST_COLUMNS,
    ItemsExporter,
    cell,
    csv_pieces,
    guard_text,
    jsonl_pieces,
    unguard_text,
)
from aish.output.result import ResultFold, ResultWriter
from aish.system.files import schema_text

SCHEMA = Draft202012Validator(json.loads(schema_text("result.schema.json")))
INTERRUPTED = Exit(130, "interrupted", retryable=True, reason="interrupted")


@contextmanager
def filled(events: Sequence[Stamped]) -> Generator[ItemsFile]:
    file = open_items_file(None)
    for event in events:
        file(event)
    try:
        yield file
    finally:
        file.close()


def csv_of(pairs: Sequence[tuple[JsonValue, dict[str, Any]]]) -> list[list[str]]:
    events: list[Event] = []
    for index, (value, changes) in enumerate(pairs):
        events += [item_started(index, value), item_finished(index, **changes)]
    with filled(run_of(events)) as file:
        text = b"".join(csv_pieces(partial(file.rows, STEP))).decode()
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_flat_items_and_outputs_are_columns() -> None:
    rows = csv_of(
        [
            ({"name": "ant", "legs": "6"}, {"output": {"kind": "insect", "wings": False}}),
            ({"name": "bee", "legs": "6"}, {"output": {"kind": "insect", "of": ["hive", 1]}}),
        ]
    )

    assert rows == [
        ["key", "name", "legs", "status", "error", "kind", "wings", "of"],
        ["0", "ant", "6", "ok", "", "insect", "false", ""],
        ["1", "bee", "6", "ok", "", "insect", "", '["hive",1]'],
    ]


def test_items_without_an_output_have_their_text() -> None:
    assert csv_of([("a.py", {"text": 'fine,\n"really"'}), ("b.py", {"text": None})]) == [
        ["key", "item", "status", "error", "text"],
        ["0", "a.py", "ok", "", 'fine,\n"really"'],
        ["1", "b.py", "ok", "", ""],
    ]


def test_outputs_of_different_kinds_share_a_column() -> None:
    assert csv_of([(1, {"output": {"a": 1}}), ([2], {"output": 2.5}), (None, {})]) == [
        ["key", "item", "status", "error", "output"],
        ["0", "1", "ok", "", '{"a":1}'],
        ["1", "[2]", "ok", "", "2.5"],
        ["2", "", "ok", "", ""],
    ]


def test_columns_of_the_same_name_are_told_apart() -> None:
    item = {"status": "open", "title": "x", "key": "k"}
    rows = csv_of([(item, {"output": {"title": "y", "item.key": 1, "error": None}})])

    assert rows[0] == [
        *("key", "item.status", "title", "item.key", "status", "error"),
        *("output.title", "output.item.key", "output.error"),
    ]  # fmt: skip


def test_a_column_of_the_items_may_be_called_text_where_nothing_has_an_output() -> None:
    names = dict.fromkeys(("text", "status", "error", "key", "output", "output.text"), "x")
    rows = csv_of([(names, {"status": "failed", "text": None})])

    assert rows[0] == [
        *("key", "text", "item.status", "item.error", "item.key", "output", "output.text"),
        *("status", "error", "output.output.text"),
    ]  # fmt: skip
    assert len(set(rows[0])) == len(rows[0])


def test_a_failed_item_has_its_error_in_place() -> None:
    events: list[Event] = [item_started(0, "a"), item_failed(0, "the endpoint said no")]
    with filled(run_of(events)) as file:
        text = b"".join(csv_pieces(partial(file.rows, STEP))).decode()

    assert text == "key,item,status,error,text\r\n0,a,failed,the endpoint said no,\r\n"


def test_too_many_columns_become_one() -> None:
    wide = [(0, {"output": {f"c{index}-{number}": 1 for number in range(600)}}) for index in (1, 2)]

    assert MOST_COLUMNS < 1200
    assert csv_of(wide)[0] == ["key", "item", "status", "error", "output"]


def test_without_items_there_is_a_header() -> None:
    assert csv_of([])[0][0] == "key"


@each_case(
    "text, shown",
    [
        ("=1+1", "'=1+1"),
        ('=HYPERLINK("http://evil")', '\'=HYPERLINK("http://evil")'),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("'=1", "''=1"),
        ("-5", "-5"),
        ("+49.5e3", "+49.5e3"),
        ("-", "-"),
        ("'tis", "'tis"),
        ("a=1", "a=1"),
    ],
)
def test_no_cell_is_a_formula(text: str, shown: str) -> None:
    assert cell(text) == shown
    assert unguard_text(shown) == text


@given(st.text(st.sampled_from("'=+-@\t5a"), max_size=5) | st.text())
def test_the_guard_can_be_taken_away_again(text: str) -> None:
    assert unguard_text(guard_text(text)) == text


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_what_is_written_is_read_back(texts: list[str]) -> None:
    events: list[Event] = []
    for index, text in enumerate(texts):
        events += [item_started(index, {"in": text}), item_finished(index, output={"out": text})]
    with filled(run_of(events)) as file:
        data = b"".join(csv_pieces(partial(file.rows, STEP)))

    rows = [row for _, row in csv_rows(io.BytesIO(data), "x.csv")]

    clean = [cell(text) for text in texts]
    assert [row["in"] for row in rows] == clean
    assert [row["out"] for row in rows] == clean


def test_lines_of_json_are_the_results_alone() -> None:
    events: list[Event] = [
        item_started(0, "a"),
        item_finished(0),
        item_started(1, "b"),
        item_failed(1),
    ]
    with filled(run_of(events)) as file:
        found = [
            json.loads(line)
            for line in b"".join(jsonl_pieces(partial(file.rows, STEP))).splitlines()
        ]

    assert [row["item"] for row in found] == ["a", "b"]
    assert list(found[0]) == [
        *("index", "key", "item", "status", "text"),
        *("output", "error", "usage", "cost_usd", "seconds"),
    ]  # fmt: skip


def told(events: Sequence[Event], path: Path, **end: Any) -> list[str]:
    said: list[str] = []
    with filled(()) as file:
        outlet = ItemsExporter(file, STEP, path, said.append)
        for event in run_of(events, **end):
            file(event)
            outlet(event)
        outlet.close()
    return said


def test_the_file_is_written_when_the_run_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"

    said = told([item_started(0, "a"), item_finished(0)], path)

    assert said == []
    assert path.read_text(encoding="utf-8").splitlines()[1] == "0,a,ok,,text of 0"


def test_a_run_that_was_cut_off_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("older", encoding="utf-8")

    said = told([item_started(0, "a"), item_finished(0)], path, exit=INTERRUPTED)

    assert path.read_text(encoding="utf-8") == "older"
    assert said == [f"note: `{path}` is not written: not all items have ended"]


@pytest.mark.parametrize(
    ("code", "is_written"),
    [
        ("items", True),
        ("items_stopped", False),
        ("max_failures", False),
        ("items_unreadable", False),
        ("interrupted", False),
    ],
)
def test_a_step_that_did_not_come_through_its_items_replaces_nothing(
    tmp_path: Path, code: str, *, is_written: bool
) -> None:
    path = tmp_path / "out.csv"
    path.write_text("older", encoding="utf-8")
    events = run_of([item_started(0, "a"), item_finished(0)])
    *before, end, last = events
    assert isinstance(end.event, StepFinished)
    failed = replace(end.event, status="failed", error=Failure(code, "said so"))

    with filled(before) as file:
        outlet = ItemsExporter(file, STEP, path, lambda _: None)
        outlet(replace(end, event=failed))
        outlet(last)

    assert (path.read_text(encoding="utf-8") != "older") is is_written


def object_of(events: Sequence[Stamped]) -> Any:
    out = io.BytesIO()
    with filled(()) as file:
        result = ResultWriter(out, "20261118T120640Z-quickstart-a1b2", file)
        for event in events:
            file(event)
            result(event)
    SCHEMA.validate(found := json.loads(out.getvalue()))
    return found


def test_one_object_has_the_items_under_their_step() -> None:
    events: list[Event] = [
        item_started(0, HOSTILE),
        item_started(1, 1),
        item_failed(1),
        item_finished(0),
    ]

    step = object_of(run_of(events))["steps"][STEP]

    assert [(row["index"], row["status"]) for row in step["items"]] == [(0, "ok"), (1, "failed")]
    assert step["tool_calls"] == []
    assert step["status"] == "ok"


def test_a_step_without_items_has_no_list_of_them() -> None:
    assert "items" not in object_of(run_of([]))["steps"][STEP]


def test_what_happens_within_items_is_not_gathered() -> None:
    import tracemalloc

    fold = ResultFold("run")
    tracemalloc.start()
    for index in range(5000):
        place = Place(STEP, str(index), 1, "c")
        events: list[Event] = [
            turn_finished(place, calls=(Asked("c", "t", "x" * 200),)),
            decided(place, "t", {"x": "y" * 200}, verdict="deny"),
            ToolFinished(place, "t", "denied", "z" * 200, None, 0.1),
            item_finished(index),
        ]
        for event in numbered(events):
            fold.take(event)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert size < 200_000


def texts_of(events: Sequence[Event], **manner: Any) -> tuple[str, list[str]]:
    out = io.BytesIO()
    said: list[str] = []
    with filled(()) as file:
        sink = ItemTexts(out, file, STEP, said.append, **manner)
        for event in run_of(events):
            file(event)
            sink(event)
        sink.close()
    return out.getvalue().decode(), said


def test_texts_come_in_the_order_of_the_items_each_with_a_line_end() -> None:
    events = [
        item_finished(2, text="three\n"),
        item_failed(1),
        item_finished(0, text="one"),
        item_finished(3, text=None, output={"a": 1}),
    ]

    text, said = texts_of(events)

    assert text == 'one\nthree\n{"a": 1}\n'
    assert said == ["note: 1 item without a result is left out"]


def test_the_text_of_an_item_is_no_command_to_a_ci_runner() -> None:
    text, _ = texts_of([item_finished(0, text="::error::x\n##[group]")], manner=CI_LOG)

    assert text == "\\x3a:error::x\n\\x23#[group]\n"
