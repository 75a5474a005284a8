"""Whatever a file holds: items, or one clear error (F5, X6)."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aish.items.counting import count_of
from aish.items.items import from_file
from aish.items.source import ItemsError, digest_of

SETTINGS = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=2 * settings().max_examples,
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
PIECES = st.sampled_from(
    [
        *(bytes([byte]) for byte in b'a,"\n\r\0\xff\xfe []{}:1-.e\\'),
        *(b"\r\n", b"\xef\xbb\xbf", "é".encode(), b"\\u", b"\\ud800", b"nul", b"null", b"true"),
    ]
)
BYTES = st.binary(max_size=60) | st.lists(PIECES, max_size=40).map(b"".join)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json"])
@SETTINGS
@given(data=BYTES)
@example(data=b"\xef\xbb\xbf")
@example(data=b"\xef")
@example(data=b"[1,")
@example(data=b'a\n""b"\n')
def test_any_bytes_are_items_or_a_clear_error(tmp_path: Path, suffix: str, data: bytes) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(data)

    trouble: ItemsError | None = None
    try:
        for item in from_file(path):
            assert len(digest_of(item.value)) == 16
    except ItemsError as error:
        trouble = error
    assert trouble is None or str(trouble.where).rpartition(":")[0] == str(path)
    assert count_of(path) is None or suffix != ".json"


@SETTINGS
@given(
    header=st.lists(TEXT.filter(str.strip), min_size=1, max_size=4, unique=True),
    data=st.data(),
    end=st.sampled_from(["\r\n", "\n"]),
)
def test_rows_come_back_as_they_were_written(
    tmp_path: Path, header: list[str], data: st.DataObject, end: str
) -> None:
    import csv

    rows = data.draw(
        st.lists(st.lists(TEXT, min_size=len(header), max_size=len(header)), max_size=5)
    )
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator=end).writerows([header, *rows])

    assert [item.value for item in from_file(path)] == [
        dict(zip(header, row, strict=True)) for row in rows
    ]
    assert count_of(path) == len(rows)


@SETTINGS
@given(rows=st.lists(JSON, max_size=6), indent=st.sampled_from([None, 1]))
def test_values_come_back_as_they_were_written(
    tmp_path: Path, rows: list[object], indent: int | None
) -> None:
    lines, array = tmp_path / "rows.jsonl", tmp_path / "rows.json"
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    array.write_text(json.dumps(rows, indent=indent), encoding="utf-8")

    assert [item.value for item in from_file(lines)] == rows
    assert [item.value for item in from_file(array)] == rows
    assert count_of(lines) == len(rows)


@SETTINGS
@given(value=JSON)
def test_equal_values_have_equal_digests(value: object) -> None:
    again = json.loads(json.dumps(value))

    assert digest_of(value) == digest_of(again)  # type: ignore[arg-type]  # it is JSON


def test_the_digest_does_not_look_at_the_order_of_keys() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": (2,), "a": 1})
    assert digest_of("1") != digest_of(1)
