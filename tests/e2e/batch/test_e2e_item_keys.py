"""Keys of items: one that repeats costs nothing, one that is none fails its item (B4, B5)."""

import csv
import io
import json
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import Gate, Reply, hanging_reply, text_reply

from aish.items.source import digest_of
from aish.journal.writer import seal

EACH = """
foreach: {file: rows.csv}
key: item.id
concurrency: 2
prompt: "{{ item.id }} {{ item.n }} at {{ index }}"
"""
# The second `a` and the second `b` come after 100 rows that cost something.
TWICE = "id,n\na,1\nb,2\n" + "".join(f"t{n},{n}\n" for n in range(100)) + "a,3\nb,4\na,5\n"
FEW = "id,n\na,1\nb,2\na,3\na-2,4\nc,5\na,6\n"


def said(request: Any) -> Reply:
    return text_reply(str(request["messages"][-1]["content"]))


def keyed(project: Project, endpoint: Any, rows: str, text: str = EACH) -> None:
    project.uses(endpoint)
    project.write("rows.csv", rows)
    project.pipeline(text)


def table(project: Project, name: str = "out.csv") -> list[dict[str, str]]:
    text = (project.folder / name).read_bytes().decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def finished(project: Project) -> list[tuple[str, str]]:
    """Key and status of each item of the only run, in their order."""
    ends = sorted(of_type(project.journal, "item.finished"), key=itemgetter("index"))
    return [(event["key"], event["status"]) for event in ends]


@pytest.mark.parametrize("key", ["item.id", "item['id']", "item.id | upper"])
def test_a_key_that_is_there_twice_costs_no_request(
    project: Project, model_endpoint: ModelEndpoints, key: str
) -> None:
    endpoint = model_endpoint(said)
    keyed(project, endpoint, TWICE, EACH.replace("item.id\n", f"{key}\n"))

    done = project.run("-q")
    planned = project.aish("plan", "p.yaml", "--offline")

    name = "A" if "upper" in key else "a"
    found = f"error: rows.csv:104: the key `{name}` is that of line 2 too; 3 items repeat a key\n"
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(found)
    assert "`on_duplicate: first` or `on_duplicate: number`" in done.stderr
    assert (planned.code, found in planned.stderr) == (2, True)
    assert "foreach: rows.csv (105 items)" in planned.stdout, "what would run is shown"
    assert endpoint.requests == []
    assert not project.run_folders


def test_of_equal_keys_the_first_item_may_be_the_one_that_is_run(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    keyed(project, model_endpoint(said), FEW, f"{EACH}on_duplicate: first\n")

    planned = project.aish("plan", "p.yaml", "--offline").stdout
    done = project.run("-o", "out.csv")

    assert done.code == 0, done.stderr
    assert [(row["key"], row["n"], row["output"]) for row in table(project)] == [
        ("a", "1", "a 1 at 0"),
        ("b", "2", "b 2 at 1"),
        ("a-2", "4", "a-2 4 at 2"),
        ("c", "5", "c 5 at 3"),
    ]
    assert "warning: 2 items with a duplicate key are left out" in done.stderr
    assert "foreach: rows.csv (4 items)" in planned
    assert "key: item.id; 2 items with a duplicate key: left out\n" in planned
    assert "model requests  4 at least, 4 at most" in planned
    assert of_type(project.journal, "step.started")[0]["count"] == 4


def test_equal_keys_may_be_numbered(project: Project, model_endpoint: ModelEndpoints) -> None:
    keyed(project, model_endpoint(said), FEW, f"{EACH}on_duplicate: number\n")

    done = project.run("-o", "out.csv")

    assert done.code == 0, done.stderr
    assert [(row["key"], row["n"]) for row in table(project)] == [
        *(("a", "1"), ("b", "2"), ("a-2", "3"), ("a-2-2", "4"), ("c", "5"), ("a-3", "6"))
    ]
    assert "warning: 3 items with a duplicate key have numbers added" in done.stderr


@pytest.mark.parametrize("policy", ["first", "number"])
def test_shards_agree_on_what_becomes_of_equal_keys(
    project: Project, model_endpoint: ModelEndpoints, policy: str
) -> None:
    keyed(project, model_endpoint(said), FEW, f"{EACH}on_duplicate: {policy}\n")
    assert project.run("-o", "whole.csv", "--ephemeral").code == 0

    for shard in ("1/2", "2/2"):
        assert project.run("--shard", shard).code == 0
    runs = [str(folder) for folder in project.run_folders]
    done = project.aish("runs", "merge", *runs, "-o", "merged.csv")

    assert done.code == 0, done.stderr
    assert table(project, "merged.csv") == table(project, "whole.csv")


@pytest.mark.parametrize(("policy", "count"), [("first", 4), ("number", 6)])
def test_a_resumed_run_knows_which_item_goes_by_which_key(
    project: Project, model_endpoint: ModelEndpoints, policy: str, count: int
) -> None:
    gate, hangs = Gate(), {"c 5"}

    def reply(request: Any) -> Reply:
        text = str(request["messages"][-1]["content"])
        return hanging_reply(gate) if text.startswith(tuple(hangs)) else text_reply(text)

    endpoint = model_endpoint(reply)
    keyed(project, endpoint, FEW, f"{EACH}on_duplicate: {policy}\n".replace("cy: 2", "cy: 1"))
    with project.aish.start("run", "p.yaml", "-o", "out.csv") as running:
        gate.wait_arrived()
        running.kill()
    before = len(endpoint.asked)
    hangs.clear()
    hangs.add("none")

    done = project.run("--resume", "-o", "out.csv")

    assert done.code == 0, done.stderr
    assert len(endpoint.asked) - before == count - (before - 1), "nothing is done twice"
    assert len(table(project)) == len({row["key"] for row in table(project)}) == count
    project.pipeline(f"{EACH}".replace("cy: 2", "cy: 1"))
    other = project.run("--resume")
    assert other.code == 2
    assert "`on_duplicate`" in other.stderr


def test_the_look_at_the_keys_can_be_left_out(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(said)
    keyed(project, endpoint, "id,n\na,1\nb,2\na,3\n", EACH.replace("cy: 2", "cy: 1"))

    done = project.run("-q", "--no-key-check")
    planned = project.aish("plan", "p.yaml", "--offline", "--no-key-check")

    assert done.code == 1
    assert "items 0 and 2 have the same key `a`" in done.stderr
    assert len(endpoint.asked) == 2
    assert planned.code == 0


def test_items_that_a_step_makes_are_looked_at_before_the_first_one(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(said)
    project.uses(endpoint)
    project.write("make.sh", "printf 'id,n\\na,1\\nb,2\\na,3\\n' > made.csv; printf made.csv")
    project.pipeline(
        f"""
        mcp: {{auto_approve: [shell__run]}}
        steps:
          - {{id: make, run: [sh, make.sh]}}
          - id: each
            foreach: {{file: "{{{{ steps.make.text }}}}"}}
            {EACH.strip().split(chr(10), 1)[1].replace(chr(10), chr(10) + " " * 12)}
        """
    )

    done = project.run("-q")

    assert done.code == 1
    assert "made.csv:4: the key `a` is that of line 2 too" in done.stderr
    assert endpoint.requests == []


SUB = """
name: sub
inputs: {file: {type: string, default: rows.csv}}
steps:
  - id: each
    foreach: {file: "{{ inputs.file }}"}
    key: item.id
    prompt: "{{ item.id }}"
"""
OUTER = """
steps:
  - {id: first, prompt: say hello}
  - id: below
    MORE
    needs: [first]
    pipeline: sub.yaml
"""


@pytest.mark.parametrize(
    "more",
    [
        "with: {}",
        "with: {file: rows.csv}",
        "with: {file: '{{ \"rows\" }}.csv'}",
        "foreach: '[1, 2]'",
    ],
)
def test_the_keys_of_a_sub_pipeline_are_looked_at_before_the_first_request(
    project: Project, model_endpoint: ModelEndpoints, more: str
) -> None:
    endpoint = model_endpoint(said)
    project.pipeline(SUB, "sub.yaml")
    keyed(project, endpoint, TWICE, OUTER.replace("MORE", more))

    done = project.run("-q")
    planned = project.aish("plan", "p.yaml", "--offline")

    found = "error: rows.csv:104: the key `a` is that of line 2 too; 3 items repeat a key\n"
    assert (done.code, done.stderr.startswith(found)) == (2, True), done.stderr
    assert (planned.code, found in planned.stderr) == (2, True)
    assert endpoint.requests == []
    assert not project.run_folders


@pytest.mark.parametrize(
    "more",
    [
        "with: {file: '{{ steps.first.text }}'}",
        "foreach: '[\"rows.csv\"]'\n    with: {file: '{{ item }}'}",
    ],
)
def test_items_of_a_sub_pipeline_that_only_the_run_knows_are_looked_at_in_their_step(
    project: Project, model_endpoint: ModelEndpoints, more: str
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("rows.csv"))
    project.pipeline(SUB, "sub.yaml")
    keyed(project, endpoint, TWICE, OUTER.replace("MORE", more))

    done = project.run("-q")
    planned = project.aish("plan", "p.yaml", "--offline")

    assert done.code == 1
    assert "rows.csv:104: the key `a` is that of line 2 too" in done.stderr
    assert planned.code == 0, planned.stderr
    assert len(endpoint.asked) == 1


BAD: Sequence[Any] = ["", "x" * 257, "a\nb", "a\x1b[31m", "a\ud800b", None, ["a"], {"a": 1}]


@pytest.mark.parametrize("more", [(), ("--no-key-check",), ("--shard", "1/1")], ids=str)
def test_an_item_without_a_usable_key_fails_and_no_other(
    project: Project, model_endpoint: ModelEndpoints, more: tuple[str, ...]
) -> None:
    endpoint = model_endpoint(said)
    ids = [id for place, bad in enumerate(BAD) for id in (f"k{place}", bad)]
    lines = [json.dumps({"id": id, "n": place}) for place, id in enumerate(ids)]
    project.write("rows.jsonl", "\n".join([*lines, '{"n": 99}', '{"id": "last", "n": 1}', ""]))
    project.uses(endpoint)
    project.pipeline(EACH.replace("rows.csv", "rows.jsonl") + "on_error: continue\n")

    done = project.run("-o", "out.jsonl", *more)

    assert done.code == 1, done.stderr
    ends = finished(project)
    bad = [key for key, status in ends if status == "failed"]
    assert bad == [f"[{place}]" for place in range(1, 16, 2)] + ["[16]"]
    assert len(endpoint.asked) == len(BAD) + 1
    rows = [json.loads(line) for line in (project.folder / "out.jsonl").read_text().splitlines()]
    assert rows[1]["error"]["message"] == "rows.jsonl:2: the key is empty"
    assert rows[1]["error"]["code"] == "key"
    assert rows[-1]["status"] == "ok"

    again = project.run("--resume")
    assert again.code == 1
    assert len(endpoint.asked) == len(BAD) + 1, "what is done is done"


def test_the_first_item_without_a_key_ends_a_batch_that_does_not_go_on(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(said)
    keyed(project, endpoint, 'id,n\n"",1\nb,2\n', EACH.replace("cy: 2", "cy: 1"))

    planned = project.aish("plan", "p.yaml", "--offline")
    done = project.run("-q")

    want = (
        "warning: step `main`: 1 of 2 items will fail because the key is missing; first "
        "rows.csv:2: the"
    )
    assert (planned.code, want in planned.stderr) == (0, True)
    assert done.code == 1
    assert "1 of 1 item failed; first `[0]`: rows.csv:2: the key is empty" in done.stderr
    assert endpoint.requests == []


@pytest.mark.parametrize(
    ("key", "rows", "where"),
    [
        ("item.ids", "id,n\na,1\nb,2\n", "rows.csv:1: unknown column `ids`"),
        ("item.id", 'id,n\n"",1\n"",2\n', "rows.csv:2: the key is empty"),
        ("item.id", "id,n\na,1\nb\n", "rows.csv:3: the row has 1 value, and the header has 2"),
    ],
)
def test_what_would_fail_for_every_item_is_found_before_the_first(
    project: Project, model_endpoint: ModelEndpoints, key: str, rows: str, where: str
) -> None:
    endpoint = model_endpoint(said)
    keyed(project, endpoint, rows, EACH.replace("item.id\n", f"{key}\n"))

    done = project.run("-q")

    assert done.code == 2
    assert where in done.stderr
    assert endpoint.requests == []
    assert not project.run_folders


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "foreach: inputs.a\non_duplicate: first\nrun: [ls]",
            "on_duplicate: `on_duplicate` is for items with a `key`",
        ),
        ("on_duplicate: first\nrun: [ls]", "on_duplicate: `on_duplicate` is for steps with"),
        ("foreach: inputs.a\nkey: item\non_duplicate: last\nrun: [ls]", "on_duplicate: `last` is"),
    ],
)
def test_what_is_to_become_of_equal_keys_is_checked_in_the_file(
    project: Project, text: str, found: str
) -> None:
    project.pipeline(f"inputs: {{a: {{default: [1]}}}}\n{text}\n")

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert found in done.stderr + done.stdout


ENDS = ("step.finished", "run.finished")
STAND_INS = 'id,n\n[1],a\n"",b\nx,c\n[01],d\n'


def test_no_key_of_an_item_is_the_name_of_another_that_has_none(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(said)
    keyed(project, endpoint, STAND_INS, f"{EACH}on_error: continue\n")

    planned = project.aish("plan", "p.yaml", "--offline")
    done = project.run("-o", "out.csv")

    assert "2 of 4 items will fail because the key is missing; first rows.csv:2" in planned.stderr
    assert done.code == 1, done.stderr
    assert [(row["key"], row["n"], row["status"]) for row in table(project)] == [
        ("[0]", "a", "failed"),
        ("[1]", "b", "failed"),
        ("x", "c", "ok"),
        ("[01]", "d", "ok"),
    ]
    assert "rows.csv:2: the key `[1]` has the form of names of items" in done.stderr

    again = project.run("--resume")
    assert again.code == 1, again.stderr
    assert len(endpoint.asked) == 2, "what is done is done"


def test_a_run_of_an_earlier_version_with_such_a_key_is_resumed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(said)
    keyed(project, endpoint, "id,n\ny,a\n[1],b\n", f"{EACH}on_error: continue\n")
    assert project.run().code == 1
    keyed(project, endpoint, "id,n\n[1],a\n", f"{EACH}on_error: continue\n")
    (folder,) = project.run_folders
    # As it was written when such a key was one: the first item alone, and the run cut off after it.
    old, new = (digest_of({"id": key, "n": "a"}) for key in ("y", "[1]"))
    kept = []
    for event in project.journal:
        if "[1]" not in {event.get("item"), event.get("key")} and event["type"] not in ENDS:
            text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
            kept.append(seal(text.replace('"y"', '"[1]"').replace(old, new).encode() + b"\n"))
    (folder / "events.jsonl").write_bytes(b"".join(kept))

    # The table is another one than that of the run, `--force` lets that pass.
    done = project.run("--resume", "--force")

    assert done.code == 0, done.stderr
    assert len(endpoint.asked) == 1


FIRST = "- {id: first, when: inputs.on, prompt: say hello}"
EACH_OF = "id: each, foreach: {file: rows.csv}, key: item.id, prompt: '{{ item.id }}'"
CONDITIONS = {
    "false": f"- {{when: 'false', {EACH_OF}}}",
    "an input": f"- {{when: inputs.on, {EACH_OF}}}",
    "a need that is skipped": f"{FIRST}\n- {{needs: [first], {EACH_OF}}}",
    "an answer": f"- {{id: a, prompt: say hello}}\n- {{when: \"'!' in steps.a.text\", {EACH_OF}}}",
    "a pipeline": "- {id: below, when: inputs.on, pipeline: sub.yaml}",
    "each item": "- {id: below, foreach: '[1]', when: item > 1, pipeline: sub.yaml}",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_step_that_is_not_run_may_have_equal_keys(
    project: Project, model_endpoint: ModelEndpoints, condition: str
) -> None:
    endpoint = model_endpoint(said)
    project.pipeline(SUB, "sub.yaml")
    steps = CONDITIONS[condition].replace("\n", "\n" + " " * 10)
    keyed(
        project,
        endpoint,
        FEW,
        f"""
        inputs: {{on: {{type: boolean, default: false}}}}
        steps:
          {steps}
        """,
    )

    assert project.aish("plan", "p.yaml", "--offline").code == 0
    done = project.run()

    assert done.code == 0, done.stderr
    assert len(endpoint.requests) == (condition == "an answer")


@pytest.mark.parametrize("when", ["inputs.on", "item.id != 'a'"])
def test_a_step_whose_condition_is_known_to_hold_is_refused_before_the_run(
    project: Project, model_endpoint: ModelEndpoints, when: str
) -> None:
    endpoint = model_endpoint(said)
    on = "inputs: {on: {type: boolean, default: true}}"
    keyed(project, endpoint, FEW, f'{on}\nsteps:\n- {{when: "{when}", {EACH_OF}}}\n')

    done = project.run("-q")

    assert (done.code, endpoint.requests) == (2, [])
    assert "rows.csv:4: the key `a` is that of line 2 too" in done.stderr


def test_a_step_whose_condition_only_the_run_knows_is_refused_when_it_begins(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(said)
    keyed(project, endpoint, FEW, f"steps:\n{CONDITIONS['an answer'].replace('!', 'hello')}\n")

    done = project.run("-q")

    assert done.code == 1
    assert "rows.csv:4: the key `a` is that of line 2 too" in done.stderr
    assert len(endpoint.requests) == 1
