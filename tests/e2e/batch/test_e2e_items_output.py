"""What comes out of a batch: tables, one object, texts, shards and their joining (B4, B6, F5)."""

import csv
import io
import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import Gate, Reply, hanging_reply, json_reply, text_reply

COUNT = 12
ROWS = "name,text\n" + "".join(f"n{number},row {number}\n" for number in range(COUNT))
EACH = """
steps:
  - id: each
    foreach: {file: rows.csv}
    key: item.name
    on_error: continue
    prompt: "{{ item.text }}"
    output: {schema: {type: object, properties: {shout: {type: string}}, required: [shout]}}
"""
TEXTS = """
steps:
  - id: each
    foreach: "[3, 1, 2]"
    prompt: "{{ item }}"
"""


def asked(request: Any) -> str:
    text: str = request["messages"][-1]["content"]
    return text.split("\n", 1)[0]


def shouting(request: Any) -> Reply:
    text = asked(request)
    return json_reply(400, {"error": "no"}) if text == "row 7" else answer(text.upper())


def answer(shout: str) -> Reply:
    return text_reply(json.dumps({"shout": shout}))


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def read(path: Path) -> str:
    return path.read_bytes().decode()


def batch(project: Project, endpoint: Any, text: str = EACH, rows: str = ROWS) -> None:
    project.uses(endpoint)
    project.write("rows.csv", rows)
    project.pipeline(text)


def test_a_table_has_a_row_for_each_item_in_their_order(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    batch(project, model_endpoint(shouting))

    done = project.run("-o", "out.csv")

    assert (done.code, done.stdout) == (1, "")
    rows = table(read(project.folder / "out.csv"))
    assert list(rows[0]) == ["key", "name", "text", "status", "error", "shout"]
    assert [row["key"] for row in rows] == [f"n{number}" for number in range(COUNT)]
    assert [row["shout"] for row in rows[:2]] == ["ROW 0", "ROW 1"]
    failed = rows[7]
    assert (failed["status"], failed["shout"]) == ("failed", "")
    assert "400" in failed["error"]
    kept = read(project.run_folders[0] / "results.jsonl").splitlines()
    assert sorted(json.loads(line)["index"] for line in kept) == list(range(COUNT))


def test_lines_of_json_have_the_items_too(project: Project, model_endpoint: ModelEndpoints) -> None:
    batch(project, model_endpoint(shouting))

    project.run("-o", "out.jsonl", "--ephemeral")

    rows = [json.loads(line) for line in read(project.folder / "out.jsonl").splitlines()]
    assert [row["item"]["text"] for row in rows] == [f"row {number}" for number in range(COUNT)]
    assert rows[3]["output"] == {"shout": "ROW 3"}
    assert rows[7]["error"]["code"] == "endpoint_error"
    assert not (project.folder / ".aish").exists()


def test_an_answer_is_no_formula(project: Project, model_endpoint: ModelEndpoints) -> None:
    batch(
        project,
        model_endpoint(lambda _: answer('=HYPERLINK("http://x","y")')),
        rows="text\n=1+1\n-5\n",
    )
    project.write("p.yaml", read(project.folder / "p.yaml").replace("key: item.name", ""))

    project.run("-o", "out.csv")

    rows = table(read(project.folder / "out.csv"))
    assert [row["text"] for row in rows] == ["=1+1", "-5"]
    assert rows[0]["shout"] == '\'=HYPERLINK("http://x","y")'


def test_the_object_has_the_items_of_their_step(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    batch(project, model_endpoint(shouting))

    found = project.result()

    items = found["steps"]["each"]["items"]
    assert [item["index"] for item in items] == list(range(COUNT))
    assert items[2]["output"] == {"shout": "ROW 2"}
    shown = project.aish("runs", "show", "latest", "--format", "json")
    assert json.loads(shown.stdout)["steps"] == found["steps"]


def test_texts_are_printed_in_the_order_of_the_items(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()

    def late(request: Any) -> Reply:
        text = asked(request)
        if text == "2":
            return json_reply(400, {"error": "no"})
        reply = text_reply(f"got {text}")
        if text == "1":
            gate.open()
        return reply.but(parts=(gate, *reply.parts)) if text == "3" else reply

    batch(project, model_endpoint(late), TEXTS + "    on_error: continue\n")

    done = project.run()

    assert (done.code, done.stdout) == (1, "got 3\ngot 1\n")
    assert "note: 1 item without a result is left out" in done.stderr


def test_a_table_is_not_written_of_a_run_that_was_cut_off(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    batch(
        project,
        model_endpoint(
            lambda request: hanging_reply(gate) if asked(request) == "row 3" else answer("X")
        ),
    )
    project.write("out.csv", "older")

    with project.aish.start("run", "p.yaml", "-o", "out.csv") as running:
        gate.wait_arrived()
        running.interrupt(signal.SIGTERM)
        done = running.finish()

    assert done.code == 143
    assert read(project.folder / "out.csv") == "older"
    assert "note: `out.csv` is not written: not all items have ended" in done.stderr


def test_a_run_that_was_killed_has_a_whole_table_in_the_end(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    hangs = {"row 5"}

    def reply(request: Any) -> Reply:
        text = asked(request)
        return hanging_reply(gate) if text in hangs else answer(text.upper())

    batch(project, model_endpoint(reply), EACH + "    concurrency: 2\n")
    with project.aish.start("run", "p.yaml", "-o", "out.csv") as running:
        gate.wait_arrived()
        running.kill()
    hangs.clear()
    results = project.run_folders[0] / "results.jsonl"
    # As if the machine had lost the end of it.
    results.write_bytes(results.read_bytes()[:-30])

    done = project.run("--resume", "-o", "out.csv")

    assert done.code == 0, done.stderr
    rows = table(read(project.folder / "out.csv"))
    assert [row["shout"] for row in rows] == [f"ROW {number}" for number in range(COUNT)]
    lines = [json.loads(line)["index"] for line in read(results).splitlines()]
    assert sorted(lines) == list(range(COUNT))
    again = project.run("--resume", "-o", "again.csv")
    assert again.code == 0, again.stderr
    assert read(project.folder / "again.csv") == read(project.folder / "out.csv")


def test_items_that_failed_and_are_tried_again_leave_one_row(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    broken = {"row 7", "row 2"}

    def reply(request: Any) -> Reply:
        text = asked(request)
        return json_reply(400, {"error": "no"}) if text in broken else answer(text.upper())

    batch(project, model_endpoint(reply))
    assert project.run("-o", "out.csv").code == 1
    broken.clear()

    done = project.run("--resume", "--retry-failed", "-o", "out.csv")

    assert done.code == 0, done.stderr
    rows = table(read(project.folder / "out.csv"))
    assert [row["shout"] for row in rows] == [f"ROW {number}" for number in range(COUNT)]
    kept = read(project.run_folders[0] / "results.jsonl").splitlines()
    assert len(kept) == COUNT


def shards(project: Project, of: int, *more: str) -> list[str]:
    """The folders of the runs of all shards."""
    for index in range(1, of + 1):
        done = project.run("--shard", f"{index}/{of}", *more)
        assert done.code in {0, 1}, done.stderr
    return [str(folder.relative_to(project.folder)) for folder in project.run_folders]


def merge(project: Project, runs: Sequence[str], *more: str) -> Any:
    return project.aish("runs", "merge", *runs, "-o", "merged.csv", *more)


@pytest.mark.requirement("B6")
def test_the_shards_of_a_run_joined_equal_the_whole(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(shouting)
    batch(project, endpoint)
    project.run("-o", "whole.csv", "--ephemeral")
    before = len(endpoint.asked)

    runs = shards(project, 3)
    done = merge(project, runs)

    assert (done.code, done.stdout) == (0, ""), done.stderr
    assert done.stderr == f"{COUNT} items of 3 runs, 1 failed\n"
    assert read(project.folder / "merged.csv") == read(project.folder / "whole.csv")
    assert len(endpoint.asked) == 2 * before
    ids = [folder.name for folder in project.run_folders]
    told = json.loads(merge(project, ids[::-1], "--format", "json").stdout)
    assert told == {
        "v": 1,
        "runs": ids[::-1],
        "step": "each",
        "output": "merged.csv",
        "items": COUNT,
        "failed": 1,
    }
    assert not merge(project, ids[::-1], "-q").stderr
    assert read(project.folder / "merged.csv") == read(project.folder / "whole.csv")


def test_a_shard_says_which_it_is(project: Project, model_endpoint: ModelEndpoints) -> None:
    batch(project, model_endpoint(shouting))

    project.run("--shard", "2/3", "-o", "out.csv")

    assert of_type(project.journal, "run.started")[0]["shard"] == {"index": 2, "of": 3}
    assert 0 < len(table(read(project.folder / "out.csv"))) < COUNT


def test_what_is_no_shard_is_refused(project: Project, model_endpoint: ModelEndpoints) -> None:
    batch(project, model_endpoint([]))

    done = project.run("--shard", "4/3")

    assert done.code == 2
    assert "error: --shard 4/3: there is no shard 4 of 3" in done.stderr


def test_shards_that_are_missing_or_double_are_named(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    batch(project, model_endpoint(shouting))
    runs = shards(project, 4)
    by_shard = {name: shard_of_run(project, name) for name in runs}
    first, second, third, fourth = sorted(runs, key=by_shard.__getitem__)

    def said(*names: str) -> str:
        done = merge(project, names)
        assert done.code == 2
        assert not (project.folder / "merged.csv").exists()
        return str(done.stderr)

    both = said(first, third)
    assert both.startswith("error: the shards 2/4, 4/4 are missing\n\nhint: ")
    assert "`aish run FILE --shard 2/4` runs it" in both
    assert said(first, second, third).startswith("error: the shard 4/4 is missing\n")
    twice = said(first, second, second, third, fourth)
    assert twice == f"error: {second}: the shard 2/4 appears twice: also in `{second}`\n"


def shard_of_run(project: Project, name: str) -> int:
    line = (project.folder / name / "events.jsonl").read_text(encoding="utf-8").splitlines()[0]
    index: int = json.loads(line)["shard"]["index"]
    return index


def test_shards_of_another_run_are_refused(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    batch(project, model_endpoint(shouting))
    assert project.run("--shard", "1/2").code in {0, 1}
    project.write(
        "p.yaml", read(project.folder / "p.yaml").replace("{{ item.text }}", "{{ item.name }}")
    )
    assert project.run("--shard", "2/2").code in {0, 1}

    done = merge(project, [folder.name for folder in project.run_folders])

    assert done.code == 2
    assert "`steps.each.prompt` differ" in done.stderr


def test_a_run_of_all_items_is_no_shard(project: Project, model_endpoint: ModelEndpoints) -> None:
    batch(project, model_endpoint(shouting))
    project.run()

    done = merge(project, ["latest"])

    assert done.code == 2
    assert "it is not a shard: it has all items" in done.stderr


def test_a_shard_that_was_cut_off_is_named(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    batch(project, model_endpoint(shouting), EACH.replace("    on_error: continue\n", ""))
    runs = shards(project, 1)

    done = merge(project, runs)

    assert done.code == 2
    assert "the step `each` has not finished its items" in done.stderr
    shutil.rmtree(project.folder / runs[0])
    (project.folder / runs[0]).mkdir()
    assert "has no journal of a run" in merge(project, runs).stderr


NASTY = [
    "+48 600 100 200",
    "@bob",
    "=A1",
    "-2+3",
    "'quoted",
    "\t=1",
    "line\r\nof two",
    ' "said" ',
    "\uff1d1",
    "",
    "; , \\",
]


def written(rows: Sequence[Sequence[str]], delimiter: str = ",") -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n", delimiter=delimiter).writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize(("name", "delimiter"), [("out.csv", ","), ("out.tsv", "\t")])
def test_columns_of_the_input_come_back_byte_for_byte(
    project: Project, model_endpoint: ModelEndpoints, name: str, delimiter: str
) -> None:
    source = [["+id", "=text"], *([f"@{number}", text] for number, text in enumerate(NASTY))]
    batch(
        project,
        model_endpoint(lambda _: text_reply("=1+1")),
        "foreach: {file: rows.csv}\nkey: item['+id']\nprompt: Say\n",
        written(source),
    )

    assert project.run("-o", name).code == 0
    assert project.run("-o", f"raw-{name}", "--csv-raw").code == 0

    def came(file: str) -> list[list[str]]:
        text = read(project.folder / file)
        return list(csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter))

    rows, raw = came(name), came(f"raw-{name}")
    assert [row[1:3] for row in rows] == source
    assert [row[0] for row in rows[1:]] == [row[0] for row in source[1:]], "the key is of the input"
    assert {row[-1] for row in rows[1:]} == {"'=1+1"}
    assert {row[-1] for row in raw[1:]} == {"=1+1"}
    assert [row[:3] for row in raw] == [row[:3] for row in rows]


@pytest.mark.parametrize(
    "source",
    ["steps.make.output", "{file: made.csv}", '{file: "{{ steps.make.text }}"}'],
    ids=["a list", "a file", "a path"],
)
def test_items_that_a_step_has_made_are_guarded(project: Project, source: str) -> None:
    project.write("make.sh", "printf 'a\\n=1+1\\n' > made.csv; printf made.csv")
    make = "[sh, make.sh]"
    if source.startswith("steps"):
        source, make = "steps.make.text.split()", "[echo, '=1+1']"
    project.pipeline(
        f"""
        mcp: {{auto_approve: [shell__run]}}
        steps:
          - {{id: make, run: {make}}}
          - {{id: each, needs: [make], foreach: {source}, run: ['true']}}
        """
    )

    done = project.run("-o", "out.csv")

    assert done.code == 0, done.stderr
    (row,) = csv.reader(io.StringIO(read(project.folder / "out.csv").split("\r\n")[1]))
    assert row[:2] == ["0", "'=1+1"]


def test_joined_shards_have_the_columns_of_the_input_as_they_were(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    rows = written([["name", "text"], *([f"@{n}", text] for n, text in enumerate(NASTY))])
    batch(project, model_endpoint(lambda _: answer("=1+1")), rows=rows)
    project.run("-o", "whole.csv", "--ephemeral")
    project.run("-o", "raw.csv", "--csv-raw", "--ephemeral")

    runs = shards(project, 2)

    assert merge(project, runs).code == 0
    assert read(project.folder / "merged.csv") == read(project.folder / "whole.csv")
    assert merge(project, runs, "--csv-raw").code == 0
    assert read(project.folder / "merged.csv") == read(project.folder / "raw.csv")


@pytest.mark.parametrize(
    ("name", "source", "delimiter"),
    [
        ("rows.tsv", "{file: rows.tsv}", "\t"),
        ("rows.csv", '{file: rows.csv, delimiter: ";"}', ";"),
        ("rows.TSV", '{file: rows.TSV, delimiter: "|"}', "|"),
    ],
)
def test_values_may_be_separated_otherwise(
    project: Project, model_endpoint: ModelEndpoints, name: str, source: str, delimiter: str
) -> None:
    project.uses(model_endpoint(lambda request: text_reply(asked(request))))
    project.write(name, written([["id", "text"], ["1", "a;b"], ["2", "c,d"]], delimiter))
    project.pipeline(f'foreach: {source}\nkey: item.id\nprompt: "{{{{ item.text }}}}"\n')

    done = project.run()

    assert (done.code, done.stdout) == (0, "a;b\nc,d\n"), done.stderr
    assert of_type(project.journal, "step.started")[0]["count"] == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('{file: rows.jsonl, delimiter: ";"}', "foreach.delimiter: `delimiter` is for `.csv` and"),
        ('{glob: "*.py", delimiter: ";"}', "foreach.delimiter: `delimiter` goes with `file`"),
        ('{file: rows.csv, delimiter: ";;"}', "foreach.delimiter: "),
        ('{file: rows.csv, delimiter: "\\n"}', "foreach.delimiter: "),
    ],
)
def test_a_delimiter_that_cannot_be_is_an_error_in_the_file(
    project: Project, source: str, said: str
) -> None:
    project.pipeline(f"foreach: {source}\nrun: ['true']\n")

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert said in done.stdout + done.stderr


def test_a_table_of_several_steps_needs_to_know_which(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(lambda request: text_reply(asked(request)))
    batch(project, endpoint)
    project.pipeline(
        """
        steps:
          - {id: a, foreach: "[1]", prompt: say a}
          - {id: b, needs: [a], foreach: "[1]", prompt: say b}
          - {id: c, needs: [a, b], prompt: say c}
        """
    )

    done = project.run("-o", "out.csv")

    assert done.code == 2
    assert done.stderr.startswith("error: -o out.csv: several steps have items: `a`, `b`\n")
    assert "hint: `--step ID` selects one" in done.stderr
    assert not endpoint.requests
    assert not project.run_folders

    assert project.run("-o", "out.csv", "--step", "a").code == 0
    assert [row["output"] for row in table(read(project.folder / "out.csv"))] == ["say a"]
    other = project.run("-o", "out.csv", "--step", "c")
    assert other.stderr.startswith("error: --step c: no step `c` has items\n\nhint: steps that")
    for flag in ("--step=a", "--csv-raw"):
        alone = project.run(flag, "-o", "out.txt")
        assert alone.code == 2
        assert "goes with `-o FILE.csv` or `-o FILE.tsv`" in alone.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("name", ["out.xlsx", "out.ODS"])
def test_a_spreadsheet_is_refused_with_what_is_possible(
    project: Project, model_endpoint: ModelEndpoints, name: str, form: str
) -> None:
    endpoint = model_endpoint([])
    batch(project, endpoint)

    done = project.run("-o", name, "--format", form)

    assert done.code == 2
    assert f"error: -o {name}: a `{name[3:].lower()}` file cannot be written" in done.stderr
    assert "hint: spreadsheets open `.csv` and `.tsv`" in done.stderr
    assert not endpoint.requests
    assert not (project.folder / name).exists()


def test_a_file_without_items_is_written_as_ever(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("a,b")]))
    project.pipeline("prompt: a line of CSV")

    assert project.run("-o", "out.csv").code == 0
    assert read(project.folder / "out.csv") == "a,b\n"


@pytest.mark.parametrize(("more", "count"), [((), COUNT), (("--shard", "1/2"), None)])
def test_how_many_items_there_are_is_told_before_the_first_one(
    project: Project, model_endpoint: ModelEndpoints, more: tuple[str, ...], count: int | None
) -> None:
    batch(project, model_endpoint(shouting))

    project.run(*more)

    assert of_type(project.journal, "step.started")[0]["count"] == count
