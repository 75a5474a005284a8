"""Quotes in answers: what counts as evidence, and where it is shown."""

import json
from typing import Any

import pytest
from e2e_project import REPO as TOP
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import text_reply, tool_reply

SOURCE = """\
def average(values):
    # An empty list has no average.
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)
"""
REPO = """
mcp:
  servers:
    repo: {pack: [fs, edit], root: .}
  auto_approve: ["repo__*", repo__file_write]
"""
SCHEMA = """
output:
  schema:
    type: object
    properties: {findings: {type: array, items: {type: object}}}
    required: [findings]
"""
LONG = "{each: output.findings, text: quote, file: file, line: line}"


def answering(project: Project, endpoints: ModelEndpoints, calls: list[Any], *found: Any) -> None:
    """A model that makes these calls, one a turn, and answers with findings."""
    replies = [
        tool_reply([(f"c{number}", name, json.dumps(arguments))])
        for number, (name, arguments) in enumerate(calls)
    ]
    project.uses(endpoints([*replies, text_reply(json.dumps({"findings": found}))]))


def evidence(project: Project) -> list[dict[str, Any]]:
    (event,) = of_type(project.journal, "expect.checked")
    found: list[dict[str, Any]] = event["evidence"]
    return found


@pytest.mark.requirement("V14")
def test_a_step_fails_whose_answer_has_a_quote_that_no_tool_returned(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("total.py", SOURCE)
    good = {"quote": "raise ValueError(\u201cno\u00a0values\u201d)", "file": "total.py", "line": 4}
    bad = {"quote": "return sum(values) // len(values)", "file": "total.py", "line": 5}
    read = ("repo__file_read", {"path": "total.py"})
    answering(project, model_endpoint, [read], good, bad)
    project.pipeline(f"{REPO}prompt: Review\n{SCHEMA}expect: [quoted: {LONG}]\n")

    done = project.run("--format", "json", "--html", "page.html")

    assert done.code == 1
    result = json.loads(done.stdout)
    reason = result["exit"]["reason"]
    assert "1 of 2 quotes found" in reason
    (first, second) = evidence(project)
    assert (first["state"], first["tool"], first["call"], first["turn"]) == (
        ("found", "repo__file_read", "c0", 1)
    )
    assert (first["file"], first["line"], second["state"]) == ("total.py", 4, "missing")
    assert result["expectations"][0]["evidence"] == [first, second]
    shown = "  - return sum(values) // len(values)\n  + "
    assert shown in result["expectations"][0]["message"]
    page = (project.folder / "page.html").read_text()
    anchor = page.split(' id="call-', 1)[1].split('"', 1)[0]
    assert f'href="#call-{anchor}"' in page


PAGE = "<p>Refunds are <b>not</b> possible after 30 days.</p>\n<p>Ask \u2014 we\u2019re here.</p>\n"
ORDERS = 'id,customer,note\n17,Ada,"arrived late, box wet"\n18,Bo,wrong colour (blue)\n'
CHANGE = """\
--- a/total.py
+++ b/total.py
@@ -2,4 +2,4 @@
     # An empty list has no average.
-    if not values:
+    if len(values) == 0:
         raise ValueError("no values")
     return sum(values) / len(values)
"""
PLACES = """
found      | def average(values):                             | total.py | 1
found      | def average(values): # An empty list             | total.py | 1
found      | def  average(values):                            | total.py | 4
missing    | def average(value):                              | total.py | 1
missing    | def Average(values):                             | total.py | 1
elsewhere  | def average(values):                             | total.py | 5
elsewhere  | def average(values):                             | tota.py  | 1
elsewhere  | def average(values):                             | notes.md | 1
found      | # An empty list has no average.                  | total.py | 2
missing    | # An empty list has an average.                  | total.py | 2
missing    | # An empty list has no averages.                 | total.py | 2
found      | “An empty list has no average.”                  | total.py | 2
found      | An empty list has no average                     | ./total.py | 3
found      | raise ValueError(“no values”)                    | total.py | 4
missing    | raise ValueError('no values')                    | total.py | 4
missing    | raise ValueError("no value")                     | total.py | 4
missing    | raise TypeError("no values")                     | total.py | 4
found      | return sum(values) / len(values)                 | total.py | 5
missing    | return sum(values) // len(values)                | total.py | 5
missing    | return sum(values)/len(values)                   | total.py | 5
missing    | return sum(values) / len(values) + 1             | total.py | 5
elsewhere  | return sum(values) / len(values)                 | total.py | 50
elsewhere  | return sum(values) / len(values)                 | a.py     | 5
elsewhere  | return sum(values) / len(values)                 | total.py | 1
found      | raise ValueError("no values") return sum(values) | total.py | 4
missing    | def average(values): return sum(values)          | total.py | 1
missing    | def average(values): ... return sum(values)      | total.py | 1
missing    | if not values: raise ValueError("no numbers")    | total.py | 3
found      | if not values: raise ValueError("no values")     | total.py | 3
found      | if len(values) == 0:                             | total.py | 3
found      | if len(values) == 0: raise ValueError(           | total.py | 3
missing    | + if len(values) == 0:                           | total.py | 3
missing    | if len(values) == 1:                             | total.py | 3
missing    | if len(values) != 0:                             | total.py | 3
elsewhere  | if len(values) == 0:                             | total.py | 30
elsewhere  | if len(values) == 0:                             | b.py     | 3
short      | values                                           | total.py | 1
short      | "average("                                       | total.py | 1
short      |                                                  | total.py | 1
found      | Refunds are <b>not</b> possible                  | any      | 0
missing    | Refunds are <b>now</b> possible                  | any      | 0
missing    | Refunds are possible after 30                    | any      | 0
missing    | Refunds are <b>not</b> possible after 14         | any      | 0
found      | Ask - we're here.                                | any      | 0
missing    | Ask - we're there.                            | any      | 0
missing    | Ask, we're here.                              | any      | 0
found      | 17,Ada,"arrived late, box wet"                   | orders.csv | 2
found      | arrived late, box wet" 18,Bo,wrong               | orders.csv | 2
missing    | 18,Ada,"arrived late, box wet"                   | orders.csv | 2
missing    | arrived late, box dry                            | orders.csv | 2
missing    | wrong colour (red)                               | orders.csv | 3
elsewhere  | wrong colour (blue)                              | orders.csv | 9
elsewhere  | wrong colour (blue)                              | total.py | 3
own_words  | the average is computed twice                    | note.txt | 1
own_words  | computed twice                                   | note.txt | 1
missing    | the cache is never emptied                       | any      | 0
missing    | the cache is always emptied                      | any      | 0
missing    | nobody has ever read this line                   | any      | 0
missing    | An empty list has no average. the average is     | total.py | 2
missing    | SELECT * FROM users WHERE id = 1                 | total.py | 1
"""


@pytest.mark.requirement("V21")
def test_sixty_quotes_each_have_their_state(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("total.py", SOURCE)
    project.write("page.html", PAGE)
    project.write("orders.csv", ORDERS)
    rows = [[part.strip() for part in row.split("|")] for row in PLACES.strip().splitlines()]
    assert len(rows) == 60
    found = [{"quote": quote, "file": file, "line": int(line)} for _, quote, file, line in rows]
    calls: list[tuple[str, object]] = [
        ("repo__file_read", {"path": "total.py"}),
        ("repo__file_search", {"query": "the cache is never emptied"}),
        ("repo__file_write", {"path": "note.txt", "content": "the average is computed twice\n"}),
        ("repo__file_read", {"path": "note.txt"}),
    ]
    answering(project, model_endpoint, calls, *found)
    sources = "[tools, {diff: stdin}, {file: orders.csv}, steps.page]"
    project.pipeline(
        f"""{REPO}
steps:
  - id: page
    run: [cat, page.html]
  - id: review
    prompt: "Review {{{{ stdin }}}} {{{{ steps.page.text }}}}"
{SCHEMA.replace(chr(10), chr(10) + "    ")}
    expect: [quoted: {LONG.replace("}", f", in: {sources}}}")}]
""".replace("  auto_approve: [", "  auto_approve: [{tool: shell__run, command: [cat, '*']}, ")
    )

    done = project.run("--html", "page-of-run.html", stdin=CHANGE)

    assert done.code == 1, done.stderr
    (event,) = of_type(project.journal, "expect.checked")
    told = event["evidence"]
    differ = [
        (row, one["state"]) for row, one in zip(rows, told, strict=True) if row[0] != one["state"]
    ]
    assert not differ
    assert event["file_digests"][0]["path"] == "orders.csv"
    good = sum(row[0] == "found" for row in rows)
    assert f"{good} of 60 quotes found" in done.stderr


def test_the_review_refuses_a_finding_that_was_made_up(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    diff = """\
--- a/src/total.py
+++ b/src/total.py
@@ -1,4 +1,2 @@
 def average(values):
-    if not values:
-        return 0
     return sum(values) / len(values)
"""
    real = {"quote": "return sum(values) / len(values)", "line": 2}
    made_up = {"quote": "except ZeroDivisionError: pass", "line": 3}
    more = {"file": "src/total.py", "severity": "high", "problem": "It divides by zero."}
    for found, code, state in ((real, 0, "found"), (made_up, 1, "missing")):
        answer = {"verdict": "approve", "findings": [found | more]}
        url = model_endpoint([text_reply(json.dumps(answer))]).base_url
        project.aish.env.update(REVIEW_URL=url, REVIEW_KEY="a-key-for-the-test")

        done = project.aish(
            "run", TOP / "pipelines" / "review.yaml", "--format", "json", stdin=diff
        )

        result = json.loads(done.stdout)
        (quoted,) = [one for one in result["expectations"] if one["kind"] == "quoted"]
        assert (done.code, quoted["evidence"][0]["state"]) == (code, state), done.stderr


@pytest.mark.requirement("V20")
def test_a_file_that_has_changed_since_the_recording_is_no_source(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("policy.md", "Refunds are possible within 30 days.\n")
    answering(project, model_endpoint, [], {"quote": "possible within 30 days"})
    project.pipeline(f"""prompt: Refunds?
{SCHEMA}
expect: [quoted: {{each: output.findings, text: quote, in: [{{file: policy.md}}]}}]
cassette: c.yaml
tests: [{{name: it}}]
""")

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
    same = project.aish("test", "p.yaml")
    replayed = project.run("--cassette", "c.yaml", "--format", "json")
    project.write("policy.md", "Refunds are possible within 30 days. Not on Sundays.\n")
    changed = project.aish("test", "p.yaml")

    assert "policy.md" in project.aish("cassette", "show", "c.yaml").stdout
    assert (recorded.code, same.code, replayed.code, changed.code) == (0, 0, 0, 1), recorded.stderr
    assert "`policy.md`, changed since the recording" in changed.stdout


def test_calls_of_the_conversation_that_is_continued_count(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("total.py", SOURCE)
    read = tool_reply([("c0", "repo__file_read", json.dumps({"path": "total.py"}))])
    answer = text_reply(json.dumps({"quote": "An empty list has no average."}))
    project.uses(model_endpoint([read, text_reply("I have read it."), answer]))
    project.pipeline(f"""{REPO}
steps:
  - {{id: read, prompt: Read total.py}}
  - id: tell
    continues: read
    prompt: Quote it
    output: {{schema: {{type: object}}}}
    expect: [quoted: output.quote]
""")

    result = project.result()

    assert result["exit"]["code"] == 0, result
    told = result["expectations"][0]
    assert told["message"].endswith("1 of 1 quote found")
    assert (told["evidence"][0]["step"], told["evidence"][0]["call"]) == ("read", "c0")


def test_results_of_a_sub_pipeline_have_the_lines_of_its_servers(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("total.py", SOURCE)
    claim = {"quote": "# An empty list has no average.", "file": "total.py", "line": 2}
    wrong = {"quote": "# An empty list has no average.", "file": "total.py", "line": 20}
    read = ("repo__file_read", {"path": "total.py"})
    answering(project, model_endpoint, [read], claim, wrong)
    project.pipeline(
        f"{REPO}prompt: Review\n{SCHEMA}"
        "outputs: {findings: '{{ steps.main.output.findings }}'}\n",
        "inner.yaml",
    )
    project.pipeline(f"""steps:
  - id: inner
    pipeline: inner.yaml
    expect: [quoted: {LONG}]
""")

    done = project.run()

    assert done.code == 1, done.stderr
    assert [(one["state"], one["line"]) for one in evidence(project)] == [
        ("found", 2),
        ("elsewhere", 2),
    ], done.stderr


BROKEN = {
    "{text: quote, line: line, in: [stdin]}": "`line` cannot be checked: no source has files and",
    "{text: quote, line: line, tool: 'web__*'}": "`web__*` can match no server of this file",
    "{text: quote, colour: red}": "unknown key `colour`",
    "{text: quote, in: [{file: ../../etc/passwd}]}": "sources of quotes have to be inside the",
    "{text: quote, in: [{file: none.md}]}": "no such file: `none.md`",
    "{text: quote, in: [inputs.nothing]}": "`inputs.nothing` is not defined",
    "{text: quote, in: [steps.main]}": "an answer of `main` is no source for quotes in it",
    "{text: 'a..b'}": "`a..b` is not a path at",
    "{text: quote, tool: 'repo__*', in: [stdin]}": "`tool` is for results of calls",
    "{text: quote, min: 0}": "1",
    "'output.['": "is not a path",
}


@pytest.mark.requirement("V15")
def test_validate_finds_what_no_quote_could_meet(project: Project) -> None:
    steps = "".join(
        f"  - {{id: s{n}, prompt: Hi, output: {{schema: {{}}}}, expect: [quoted: {wanted}]}}\n"
        for n, wanted in enumerate(BROKEN)
    )
    project.pipeline(f"{REPO}stdin: optional\nsteps:\n{steps.replace('steps.main', 'steps.s6')}")

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    missed = [
        message
        for message in BROKEN.values()
        if message.replace("main", "s6") not in done.stdout + done.stderr
    ]
    assert not missed, done.stdout + done.stderr
