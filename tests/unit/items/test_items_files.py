"""Items of files: what they are, and what is said of a file that is wrong (F5)."""

import codecs
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from open_descriptors import opened_below
from samples import sampled

from aish.core.json import JsonValue
from aish.items.counting import count_of
from aish.items.csv_rows import LONGEST_VALUE
from aish.items.items import from_file
from aish.items.source import LONGEST_ITEM, ItemsError


def written(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def values(folder: Path, name: str, data: bytes | str) -> list[JsonValue]:
    return [item.value for item in from_file(written(folder, name, data))]


def trouble(folder: Path, name: str, data: bytes | str) -> str:
    path = written(folder, name, data)
    with pytest.raises(ItemsError) as caught:
        list(from_file(path))
    return str(caught.value).replace(f"{folder}/", "")


def test_rows_of_csv_are_objects_of_texts(tmp_path: Path) -> None:
    data = 'name,size\r\nant,3\r\n"bee, wild","1\r\n2 ""big"""\r\n'

    rows = values(tmp_path, "rows.csv", data)

    assert rows == [
        {"name": "ant", "size": "3"},
        {"name": "bee, wild", "size": '1\r\n2 "big"'},
    ]


def test_items_are_counted_from_zero_each_time(tmp_path: Path) -> None:
    items = from_file(written(tmp_path, "rows.jsonl", "1\n2\n"))

    assert [(item.index, item.value) for item in items] == [(0, 1), (1, 2)]
    assert [(item.index, item.value) for item in items] == [(0, 1), (1, 2)]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    assert values(tmp_path, "rows.csv", codecs.BOM_UTF8 + b"a\n1\n") == [{"a": "1"}]
    assert values(tmp_path, "rows.jsonl", codecs.BOM_UTF8 + b"1\n") == [1]
    assert values(tmp_path, "rows.json", codecs.BOM_UTF8 + b"[1]") == [1]


def test_empty_lines_are_no_items(tmp_path: Path) -> None:
    assert values(tmp_path, "rows.csv", "\na\n\n1\n\n") == [{"a": "1"}]
    assert values(tmp_path, "rows.jsonl", "\n1\n  \n2\r\n") == [1, 2]


def test_a_file_without_rows_has_no_items(tmp_path: Path) -> None:
    assert values(tmp_path, "rows.csv", "a,b\n") == []
    assert values(tmp_path, "rows.jsonl", "") == []
    assert values(tmp_path, "rows.json", " [ ] ") == []


def test_lines_end_at_line_ends_only(tmp_path: Path) -> None:
    assert values(tmp_path, "rows.jsonl", '"a\u2028b\u0085c"\n') == ["a\u2028b\u0085c"]
    assert values(tmp_path, "rows.csv", "a\nx\u2028y\x0bz\n") == [{"a": "x\u2028y\x0bz"}]


@pytest.mark.parametrize("sign", [";", "\t", "|", ","])
@pytest.mark.parametrize("delimiter", [None, ",", ";"])
def test_the_separator_that_a_spreadsheet_wrote_is_taken(
    tmp_path: Path, sign: str, delimiter: str | None
) -> None:
    """Its first line is no header (issue 27, C)."""
    file = tmp_path / "rows.csv"
    file.write_bytes(codecs.BOM_UTF8 + f"sep={sign}\r\nid{sign}n\r\n1{sign}2\r\n".encode())

    rows = list(from_file(file, delimiter))

    assert [(row.value, row.line) for row in rows] == [({"id": "1", "n": "2"}, 3)]
    assert count_of(file) == 1


def test_a_column_that_begins_like_a_separator_is_one(tmp_path: Path) -> None:
    assert values(tmp_path, "rows.csv", "sep=a\n1\n") == [{"sep=a": "1"}]
    assert values(tmp_path, "rows.csv", "a\nsep=;\n") == [{"a": "sep=;"}]


def test_columns_that_are_empty_everywhere_are_left_out(tmp_path: Path) -> None:
    """Spreadsheets write them after a column was cleared (issue 27, C)."""
    rows = values(tmp_path, "rows.csv", "id,,text,,\nT-1,,a,, \n,,,,\n")

    assert rows == [{"id": "T-1", "text": "a"}, {"id": "", "text": ""}]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "rows.csv:1: the header is missing: the first line has to name the columns"),
        ("a,,c\n1,,3\n1,2,3\n", "rows.csv:3: column 2 has a value and no name in the header"),
        (",\n", "rows.csv:1: the header has no names"),
        ("sep=;\na\n1;2\n", "rows.csv:3: the row has 2 values, and the header has 1 name"),
        ("sep=;\n", "rows.csv:1: the header is missing: the first line has to name the columns"),
        ("a,b,a\n1,2,3\n", "rows.csv:1: the header has the name `a` twice, in columns 1 and 3"),
        ("a,b\n1,2\n3\n", "rows.csv:3: the row has 1 value, and the header has 2 names"),
        ('a,b\n"x\ny",2\n1,2,3\n', "rows.csv:4: the row has 3 values, and the header has 2 names"),
        (
            b"a\nok\ncaf\xe9\n",
            "rows.csv:3: byte 8 of the file (0xe9) is not UTF-8",
        ),
        (
            codecs.BOM_UTF8 + b"a\ncaf\xe9\n",
            "rows.csv:2: byte 8 of the file (0xe9) is not UTF-8",
        ),
        (b"a\nb\0c\n", "rows.csv:2: byte 3 of the file is a NUL, which no text has"),
        ("a\nb".encode("utf-16"), "rows.csv:1: the file is UTF-16, and only UTF-8 is read"),
        ('a\n1\n"open\n', "rows.csv:3: a quote is left open until the end of the file"),
        (
            'a\n"x"y\n',
            "rows.csv:2: something follows a closing quote: a quote in a value is written twice",
        ),
        ("a\n1\r2\n", "rows.csv:2: the line contains a carriage return"),
        (
            "a\n" + "x" * (LONGEST_VALUE + 1),
            f"rows.csv:2: a value is longer than {LONGEST_VALUE} characters: is a quote left open",
        ),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_said_with_its_line(
    tmp_path: Path, data: bytes | str, said: str
) -> None:
    assert trouble(tmp_path, "rows.csv", data) == said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("1\n{a: 1}\n", "rows.jsonl:2: the line is not valid JSON: Expecting property name"),
        ('{"a":1,"a":2}\n', "rows.jsonl:1: the line is not valid JSON: duplicate key `a`"),
        ("NaN\n", "rows.jsonl:1: the line is not valid JSON: `NaN` is not a JSON number"),
        ("1 2\n", "rows.jsonl:1: the line is not valid JSON: Extra data (column 3)"),
        ("[" * 65 + "]" * 65, "rows.jsonl:1: the line is not valid JSON: it is nested"),
        ("[" * 99_999, "rows.jsonl:1: the line is not valid JSON: it is nested more"),
        (b'"\xff"\n', "rows.jsonl:1: byte 1 of the file (0xff) is not UTF-8"),
        (b'1\n"a\0"\n', "rows.jsonl:2: byte 4 of the file is a NUL, which no text has"),
    ],
)
def test_what_is_wrong_with_a_line_of_json_is_said(
    tmp_path: Path, data: bytes | str, said: str
) -> None:
    assert trouble(tmp_path, "rows.jsonl", data).startswith(said)


def test_a_line_that_does_not_end_is_refused_early(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.truncate(200 * LONGEST_ITEM)

    tracemalloc.start()
    with pytest.raises(ItemsError, match=r"rows\.jsonl:1: the line is longer than 16777216 bytes"):
        list(from_file(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 3 * LONGEST_ITEM


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "rows.json:1: the file is empty"),
        ('{"a": 1}', "rows.json:1: the file is not one JSON array"),
        ("[1, 2", "rows.json:1: this is not valid JSON: Expecting ',' or ']'"),
        ("[1,\n 2,\n]", "rows.json:3: this is not valid JSON: Expecting value"),
        ("[1]\n\n[2]", "rows.json:3: something follows the array"),
        ('["a]', "rows.json:1: this is not valid JSON: Unterminated string starting at"),
        ('[1,\n{"a":1,"a":2}]', "rows.json:2: the element is not valid JSON: duplicate key"),
        (b'[1,\n"\xff"]', "rows.json:2: byte 5 of the file (0xff) is not UTF-8"),
        (b'["\xc3', "rows.json:1: byte 2 of the file (0xc3) is not UTF-8"),
        ("[" * 66 + "]" * 66, "rows.json:1: the element is not valid JSON: it is nested"),
    ],
)
def test_what_is_wrong_with_an_array_is_said_with_its_line(
    tmp_path: Path, data: bytes | str, said: str
) -> None:
    assert trouble(tmp_path, "rows.json", data).startswith(said)


def test_an_array_is_read_wherever_its_pieces_are_cut(tmp_path: Path) -> None:
    rows: list[JsonValue] = [
        {"n": number, "t": "ü\U0001f600" * (number % 97)} for number in range(4000)
    ]
    text = "[" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "]"

    assert values(tmp_path, "rows.json", text) == rows


def test_numbers_are_not_cut_where_a_piece_of_the_file_ends(tmp_path: Path) -> None:
    text = "[" + ",".join("1.25e2" for _ in range(60_000)) + "]"

    assert set(values(tmp_path, "rows.json", text)) == {125.0}


def test_an_element_that_does_not_end_is_refused(tmp_path: Path) -> None:
    data = '["' + "x" * (3 * LONGEST_ITEM) + '"]'

    said = trouble(tmp_path, "rows.json", data)

    assert said == f"rows.json:1: the element is longer than {LONGEST_ITEM} characters"


def test_a_file_that_is_not_there_is_said_before_the_first_item(tmp_path: Path) -> None:
    with pytest.raises(ItemsError, match="the items cannot be read: No such file") as failed:
        from_file(tmp_path / "rows.csv")

    assert "the folder of the pipeline file" in (failed.value.hint or "")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_folder_is_no_file_of_items(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "rows.csv")

    with pytest.raises(ItemsError, match="regular files only") as failed:
        from_file(tmp_path / "rows.csv")

    assert "write piped items to a file first" in (failed.value.hint or "")
    assert opened_below(tmp_path) == []


def test_an_unknown_ending_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(ItemsError, match=r"`\.csv`, `\.tsv`, `\.jsonl`, `\.ndjson`, `\.json`"):
        from_file(written(tmp_path, "rows.xlsx", ""))


@pytest.mark.parametrize(
    ("name", "line", "head"),
    sampled(
        [
            ("rows.csv", "{0},some text of row {0}\n", "number,text\n"),
            ("rows.jsonl", '{{"number": {0}, "text": "some text of row {0}"}}\n', ""),
            ("rows.json", ',{{"number": {0}, "text": "some text of row {0}"}}\n', "[0\n"),
        ],
        often={0},
        reason="each writes many items",
    ),
)
def test_memory_is_flat_over_many_items(tmp_path: Path, name: str, line: str, head: str) -> None:
    path = tmp_path / name
    with path.open("w", encoding="utf-8") as file:
        file.write(head)
        file.writelines(line.format(number) for number in range(25_000))
        file.write("]" if name.endswith(".json") else "")

    tracemalloc.start()
    count = sum(1 for _ in from_file(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count >= 25_000
    assert peak < 1_500_000


def test_a_file_given_up_on_is_closed(tmp_path: Path) -> None:
    items = iter(from_file(written(tmp_path, "rows.jsonl", "1\n2\n")))

    next(items)
    del items  # a file left open is a warning, and a warning fails


@pytest.mark.parametrize(
    ("name", "data", "count"),
    [
        ("rows.csv", 'a,b\n1,"x\n\ny"\n\n"2 ""q""",3\n4,5', 3),
        ("rows.csv", "a\n", 0),
        ("rows.csv", "", 0),
        ("rows.jsonl", "1\n\n2\n  \n3", 3),
        ("rows.jsonl", "", 0),
        ("rows.json", "[1, 2]", None),
    ],
)
def test_rows_are_counted_before_they_are_read(
    tmp_path: Path, name: str, data: str, count: int | None
) -> None:
    assert count_of(written(tmp_path, name, data)) == count


def test_a_file_that_cannot_be_counted_has_no_count(tmp_path: Path) -> None:
    assert count_of(tmp_path / "none.csv") is None
