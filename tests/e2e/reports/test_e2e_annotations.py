"""A review that fails shows the review: what a run has to say of files, on their lines (B11)."""

import json
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, without_source
from github_runner import commands_in
from html_blocks import read
from jsonschema import Draft4Validator, FormatChecker
from model_endpoint import text_reply
from syrupy.assertion import SnapshotAssertion

SARIF = Path(__file__).parents[2] / "data" / "sarif" / "sarif-2.1.0-rtm.4.json"
FINDINGS = [
    {"file": "src/total.py", "line": 2, "severity": "high", "problem": "The first row is left out"},
    {
        "file": "./src/a b:c.py",
        "line": 7,
        "end": 9,
        "severity": "low",
        "problem": "Nobody closes it:\n- the file\n- the socket",
    },
]
REVIEW = """
    name: review
    secrets: [PLANTED]
    steps:
      - id: review
        prompt: Review it.
        output: {schema: {type: object}, attempts: 1}
        expect: [{equals: {path: output.verdict, value: pass}}]
    annotations:
      - foreach: steps.review.output.findings
        as: finding
        path: "{{ finding.file }}"
        line: "{{ finding.line }}"
        end_line: "{{ finding.end | default(none) }}"
        level: "{{ {'high': 'error', 'low': 'notice'}.get(finding.severity, 'warning') }}"
        message: "{{ finding.problem }}"
"""
REPORTS = ("--github", "--sarif", "s.sarif", "--junit", "j.xml", "--html", "h.html")


def answer(findings: Any = FINDINGS, verdict: str = "fail") -> str:
    return json.dumps({"verdict": verdict, "findings": findings})


def results(path: Path) -> list[Any]:
    """The results in a SARIF file, which is as the official schema says."""
    document = json.loads(path.read_text("utf-8"))
    schema = json.loads(SARIF.read_text("utf-8"))
    checker = Draft4Validator(schema, format_checker=FormatChecker())
    assert [str(error) for error in checker.iter_errors(document)] == []
    (run,) = document["runs"]
    found: list[Any] = run["results"]
    for result in found:
        assert_uploadable(result)
    return found


def assert_uploadable(result: Any) -> None:
    """Code scanning refuses the whole file if one result has no line of a file (issue 27, B7)."""
    (location,) = result["locations"]
    place = location["physicalLocation"]
    uri = place["artifactLocation"]["uri"]
    assert uri
    assert not uri.startswith(("/", "file:", "../"))
    assert place["region"]["startLine"] >= 1
    assert result["message"]["text"]


def told_beside(path: Path) -> list[str]:
    """The annotations without a place in the repository, and what else a SARIF file tells."""
    (run,) = json.loads(path.read_text("utf-8"))["runs"]
    (invocation,) = run["invocations"]
    return [
        f"{one['level']}: {one['message']['text']}"
        for one in invocation["toolExecutionNotifications"]
    ]


@pytest.fixture
def review(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A review whose gate does not open."""
    project.uses(model_endpoint([text_reply(answer())]))
    project.aish.env |= {"PLANTED": "the-planted-word", "GITHUB_STEP_SUMMARY": "summary.md"}
    project.pipeline(REVIEW)
    return project


def test_a_review_that_fails_shows_its_findings_on_their_lines(review: Project) -> None:
    review.aish.env |= {"GITHUB_ACTIONS": "true", "CI": "true"}

    done = review.run(*REPORTS, "-q", "--format", "json")

    assert done.code == 1
    told = [(one.name, one.properties, one.data) for one in commands_in(done.stderr)]
    gate, first, second = [one for one in told if one[0] != "add-mask"]
    assert gate[0] == "error"
    assert gate[1]["title"] == "step review failed"
    assert first == (
        "error",
        {"file": "src/total.py", "line": "2", "title": "review"},
        "The first row is left out",
    )
    assert second == (
        "notice",
        {"file": "src/a b:c.py", "line": "7", "endLine": "9", "title": "review"},
        "Nobody closes it:\n- the file\n- the socket",
    )


def test_the_page_of_the_job_has_the_review(review: Project, snapshot: SnapshotAssertion) -> None:
    review.run("--github", "-q")

    page = (review.folder / "summary.md").read_text("utf-8")
    read(page)
    assert review.tidy(page) == snapshot


def test_the_log_has_the_review(review: Project, snapshot: SnapshotAssertion) -> None:
    assert review.tidy(review.run().stderr) == snapshot


def test_every_report_has_the_review(review: Project) -> None:
    found = review.result(*REPORTS)

    assert found["steps"]["review"]["output"]["findings"] == FINDINGS
    assert found["annotations"][0] == {
        "path": "src/total.py",
        "line": 2,
        "end_line": None,
        "level": "error",
        "message": "The first row is left out",
    }
    junit = (review.folder / "j.xml").read_text("utf-8")
    assert junit.count("<failure") == 1
    assert "The first row is left out" in junit.partition("<system-out>")[2]
    html = (review.folder / "h.html").read_text("utf-8")
    assert "<h2>Annotations</h2>" in html
    assert "src/total.py:2" in html


def test_sarif_is_as_its_schema_says(review: Project) -> None:
    review.run("--sarif", "s.sarif")

    first, second = results(review.folder / "s.sarif")
    assert (first["level"], second["level"]) == ("error", "note")
    assert first["ruleId"] == "review"
    assert first["message"]["text"] == "The first row is left out"
    (place,) = second["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "src/a%20b%3Ac.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 7, "endLine": 9},
    }
    run = json.loads((review.folder / "s.sarif").read_text("utf-8"))["runs"][0]
    (invocation,) = run["invocations"]
    # The gate is a verdict: the review itself went well.
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (True, 1)


def test_sarif_has_a_line_of_a_file_for_each_result_and_tells_the_others_beside(
    project: Project,
) -> None:
    """What has no place in the repository would lose the findings that have one."""
    inside = str(project.folder / "src" / "in.py")
    given = [
        {"path": "src/a.py", "line": 3, "message": "real"},
        {"path": "", "line": 8, "message": "no file", "level": "error"},
        {"path": "../x.py", "line": 1, "message": "outside"},
        {"path": "/etc/passwd", "line": 1, "message": "elsewhere", "level": "notice"},
        {"path": inside, "line": 2, "message": "whole"},
        {"path": "src/b.py", "line": 0, "message": "line zero"},
    ]
    project.pipeline(
        f"""
        mcp: {{auto_approve: [shell__run]}}
        inputs: {{found: {{default: {json.dumps(given)}}}}}
        run: 'true'
        annotations: inputs.found
        """
    )

    assert project.run("--sarif", "s.sarif").code == 0

    found = [one["locations"][0]["physicalLocation"] for one in results(project.folder / "s.sarif")]
    assert [(one["artifactLocation"]["uri"], one["region"]["startLine"]) for one in found] == [
        ("src/a.py", 3),
        ("src/in.py", 2),
        ("src/b.py", 1),
    ]
    told = told_beside(project.folder / "s.sarif")
    assert told[:3] == ["error: no file", "warning: outside", "note: /etc/passwd:1: elsewhere"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("see [the docs](https://evil.example)", r"see \[the docs\](https://evil.example)"),
        (r"\[x\](https://evil.example)", r"\\\[x\\\](https://evil.example)"),
        ("argument {0} of {}", "argument {{0}} of {{}}"),
        (r"C:\temp", r"C:\temp"),
        ("items[0] is read before it is set", "items[0] is read before it is set"),
        ("a[0] or [see](1) or b[1]", r"a[0] or \[see\](1) or b[1]"),
        ("[a [b](x) [c](y)", r"\[a \[b\](x) \[c\](y)"),
        (r"[a\]b](x)", r"\[a\\\]b\](x)"),
        ("] (x) ](y) [z] [", "] (x) ](y) [z] ["),
    ],
)
def test_sarif_messages_have_no_links_and_no_placeholders(
    project: Project, model_endpoint: ModelEndpoints, said: str, shown: str
) -> None:
    finding = {"file": "a.py", "line": 1, "severity": "low", "problem": said}
    project.uses(model_endpoint([text_reply(answer([finding]))]))
    project.aish.env["PLANTED"] = "the-planted-word"
    project.pipeline(REVIEW)

    project.run("--sarif", "s.sarif")

    (result,) = results(project.folder / "s.sarif")
    assert result["message"]["text"] == shown


@pytest.mark.sampled(2)
@pytest.mark.parametrize("field", ["line", "end_line", "message", "path", "level"])
def test_an_annotation_with_a_number_too_large_for_text_is_a_warning(
    project: Project, field: str
) -> None:
    fields = {"path": "a.py", "line": "1", "message": "found"}
    annotations = json.dumps([{**fields, field: "{{ 10 ** 5000 }}"}])
    project.pipeline(
        f"""
        mcp: {{auto_approve: [shell__run]}}
        run: 'true'
        annotations: {annotations}
        """
    )

    done = project.run()

    assert done.code == 0, done.stderr
    (warning,) = of_type(project.journal, "notice")
    assert "a number of more than 4,300 digits" in warning["text"]


def test_sarif_of_a_past_run_is_that_of_the_run(review: Project) -> None:
    review.run("--sarif", "s.sarif")

    done = review.aish("runs", "report", "latest", "--sarif", "again.sarif", "--format", "json")

    assert json.loads(done.stdout)["sarif"] == "again.sarif"
    assert results(review.folder / "again.sarif") == results(review.folder / "s.sarif")


def test_a_run_without_annotations_makes_sarif_without_results(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("Hello.")]))
    project.pipeline("prompt: Hello")

    assert project.run("--sarif", "s.sarif").code == 0
    assert results(project.folder / "s.sarif") == []


def test_a_run_that_cannot_review_says_so_in_sarif(project: Project) -> None:
    project.pipeline(REVIEW.replace("name: review", f"name: review\n    {DOWN}"))
    project.aish.env["PLANTED"] = "the-planted-word"

    assert project.run("--sarif", "s.sarif").code == 5
    assert results(project.folder / "s.sarif") == []
    run = json.loads((project.folder / "s.sarif").read_text("utf-8"))["runs"][0]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert (
        "no connection" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
    )


DOWN = "models: {m: {base_url: 'http://127.0.0.1:9/v1', model: x, retry: {attempts: 1}}}"


def test_an_expression_gives_annotations_that_are_there_already(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    given = [{"path": "a.py", "line": "3", "level": "error", "message": "No.", "why": "x"}]
    project.uses(model_endpoint([text_reply(answer(given))]))
    project.pipeline(
        "prompt: Hello\noutput: {schema: {type: object}}\nannotations: steps.main.output.findings\n"
    )

    found = project.result()

    assert found["exit"]["code"] == 0
    assert [(one["path"], one["line"], one["level"]) for one in found["annotations"]] == [
        ("a.py", 3, "error")
    ]


def test_what_a_model_gets_wrong_is_a_warning_and_fails_nothing(
    project: Project, model_endpoint: ModelEndpoints, snapshot: SnapshotAssertion
) -> None:
    odd = [
        {"file": "a.py", "line": "about 12", "severity": "blocker", "problem": "One."},
        {"file": "b\n.py", "line": -3, "severity": "high", "problem": "Two."},
        {"file": "c.py", "line": 4.0, "severity": "high", "problem": " "},
        {"line": 4, "severity": "high", "problem": "Four."},
        {"file": "e.py", "line": 5.0, "end": 2, "severity": "high", "problem": "Five."},
        "f.py",
    ]
    project.uses(model_endpoint([text_reply(answer(odd, "pass"))]))
    project.aish.env["PLANTED"] = "the-planted-word"
    project.pipeline(
        REVIEW.replace(
            "get(finding.severity, 'warning')", "get(finding.severity, finding.severity)"
        )
    )

    found = project.result()

    assert found["exit"]["code"] == 0
    assert {"notices": [one["text"] for one in found["notices"]]} == snapshot(name="notices")
    assert [
        (one["path"], one["line"], one["end_line"], one["level"]) for one in found["annotations"]
    ] == [
        ("a.py", None, None, "warning"),
        (None, None, None, "error"),
        (None, None, None, "error"),
        ("e.py", 5, None, "error"),
    ]


@pytest.mark.parametrize("path", ["../../etc/passwd", "src/../../total.py", ".."])
def test_a_path_that_leads_out_of_the_repository_is_left_out_with_a_warning(
    project: Project, model_endpoint: ModelEndpoints, path: str
) -> None:
    given = [
        {"path": path, "line": 4, "message": "No."},
        {"path": "..a/../b.py", "message": "Yes."},
    ]
    project.uses(model_endpoint([text_reply(answer(given))]))
    project.pipeline(
        "prompt: Hello\noutput: {schema: {type: object}}\nannotations: steps.main.output.findings\n"
    )

    found = project.result("--sarif", "s.sarif")

    assert [(one["path"], one["line"]) for one in found["annotations"]] == [
        (None, None),
        ("b.py", None),
    ]
    assert [one["text"] for one in found["notices"]] == [
        f"annotations, item 1: `path` is `{path}`, which leads out of the repository"
    ]
    (inside,) = results(project.folder / "s.sarif")
    assert inside["message"]["text"] == "Yes."
    assert "warning: No." in told_beside(project.folder / "s.sarif")


def test_no_report_names_a_file_outside_of_the_repository(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    """Issue 27, C: neither a pipeline nor what it annotates, however the path is written."""
    root = project.folder / "repository"
    root.mkdir()
    (project.folder / "link").symlink_to(root)
    paths = [f"{root}/../x.py", "/etc/passwd", "//etc/passwd", f"{root}/a/../b.py"]
    paths += [f"{project.folder}/link/c.py", "d/./e.py"]
    given = [{"path": path, "line": 4, "message": "No.", "level": "error"} for path in paths]
    project.uses(model_endpoint([text_reply(answer(given))]))
    project.aish.env |= {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(root)}
    project.pipeline(
        "prompt: Hello\noutput: {schema: {type: object}}\nexpect: [contains: nothing]\n"
        "annotations: steps.main.output.findings\n"
    )

    done = project.run("--github", "--sarif", "s.sarif")

    told = [one for one in commands_in(done.stderr) if one.name == "error"]
    files = [one.properties.get("file") for one in told]
    assert sorted(filter(None, files)) == ["b.py", "c.py", "d/e.py"]
    assert [one.data for one in told if one.data.endswith("passwd:4: No.")] != []
    found = [one["locations"][0]["physicalLocation"] for one in results(project.folder / "s.sarif")]
    assert [one["artifactLocation"]["uri"] for one in found] == ["b.py", "c.py", "d/e.py"]
    assert "../" not in (project.folder / "s.sarif").read_text()


def test_a_step_without_an_answer_has_no_annotations_and_no_more_to_say(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("Sure!")]))
    project.aish.env["PLANTED"] = "the-planted-word"
    project.pipeline(REVIEW)

    found = project.result()

    assert (found["exit"]["code"], found["annotations"], found["notices"]) == (1, [], [])


def test_an_answer_that_does_not_fit_is_shown_as_what_it_is(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply(f"```json\n{answer()}\n```")]))
    project.aish.env["GITHUB_STEP_SUMMARY"] = "summary.md"
    project.pipeline(
        "prompt: Hello\noutput: {schema: {required: [score]}, attempts: 1}\n"
        "annotations: steps.main.output.findings\n"
    )

    done = project.run("--github", "--junit", "j.xml")

    assert done.code == 1
    assert "] main:     - file: src/total.py\n" in done.stderr
    page = (project.folder / "summary.md").read_text("utf-8")
    assert "<td><code>src/total.py</code></td><td><code>2</code></td>" in page
    assert '  "verdict": "fail",\n' in (project.folder / "j.xml").read_text().replace("&quot;", '"')


def test_no_more_annotations_are_made_than_anybody_shows(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("Hello.")]))
    project.pipeline(
        "prompt: Hello\nannotations: [{foreach: range(5003) | list, path: a.py, message: no}]\n"
    )

    found = project.result()

    assert len(found["annotations"]) == 5_000
    assert [one["text"] for one in found["notices"]] == [
        "3 annotations over the limit of 5,000 left out"
    ]


def test_a_finding_is_data_and_has_no_secret(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    hostile = "\n::error::no\n##[group]the-planted-word \x1b[2J<img src=x>"
    finding = {"file": "a.py,line=9::\u202e", "line": 1, "severity": "high", "problem": hostile}
    project.uses(model_endpoint([text_reply(answer([finding]))]))
    project.aish.env |= {"PLANTED": "the-planted-word", "GITHUB_STEP_SUMMARY": "summary.md"}
    project.aish.env |= {"GITHUB_ACTIONS": "true", "CI": "true"}
    project.pipeline(REVIEW)

    done = project.run(*REPORTS)

    commands = [one for one in commands_in(done.stderr) if one.name != "add-mask"]
    assert [one.name for one in commands] == ["error", "error", "warning"]
    assert "file" not in commands[1].properties
    assert "::error::no" in commands[1].data
    read((project.folder / "summary.md").read_text("utf-8"))
    assert results(project.folder / "s.sarif") == []
    for name in ("summary.md", "s.sarif", "j.xml", "h.html"):
        text = (project.folder / name).read_text("utf-8")
        assert "the-planted-word" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_a_pipeline_within_another_has_its_annotations(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply(answer(verdict="pass"))]))
    project.aish.env["PLANTED"] = "the-planted-word"
    project.pipeline(REVIEW, "inner.yaml")
    project.pipeline("steps: [{id: sub, pipeline: inner.yaml}]")

    found = project.result()

    assert [(one["path"], one["step"]) for one in found["annotations"]] == [
        ("src/total.py", "sub"),
        ("src/a b:c.py", "sub"),
    ]


def test_each_report_has_the_annotations_of_a_pipeline_within_another(review: Project) -> None:
    review.aish.env |= {"GITHUB_ACTIONS": "true", "CI": "true"}
    review.pipeline(REVIEW, "inner.yaml")
    review.pipeline("steps: [{id: sub, pipeline: inner.yaml}]")

    done = review.run(*REPORTS, "--format", "json")

    # The gate within it has failed: its findings are there all the same.
    assert done.code == 1
    found = json.loads(done.stdout)["annotations"]
    assert [one["path"] for one in found] == ["src/total.py", "src/a b:c.py"]
    assert "] src/total.py:2: error: The first row is left out\n" in done.stderr
    told = [one.properties.get("file") for one in commands_in(done.stderr)]
    assert {"src/total.py", "src/a b:c.py"} <= set(told)
    assert len(results(review.folder / "s.sarif")) == 2
    for name in ("summary.md", "h.html"):
        assert "The first row is left out" in (review.folder / name).read_text("utf-8")


def test_a_resumed_run_has_each_annotation_once(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(
        model_endpoint([text_reply(answer(verdict="pass")), text_reply("no"), text_reply("ok")])
    )
    project.aish.env["PLANTED"] = "the-planted-word"
    second = "\n      - {id: last, needs: [review], prompt: Last., expect: [{contains: ok}]}\n"
    project.pipeline(REVIEW.replace("\n    annotations", f"{second}    annotations"))

    assert len(project.result()["annotations"]) == 2
    found = project.result("--resume")

    assert (found["exit"]["code"], len(found["annotations"])) == (0, 2)
    assert len(of_type(project.journal, "annotation.added")) == 4
    project.aish("runs", "report", "latest", "--sarif", "s.sarif")
    assert len(results(project.folder / "s.sarif")) == 2


def test_what_is_wrong_with_annotations_is_said_with_its_place(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    project.pipeline(
        """
        inputs: {since: {type: string}}
        steps: [{id: review, prompt: Hello}]
        annotations:
          - foreach: steps.revew.output.findings
            as: steps
            path: "{{ finding.file }}"
            level: eror
            message: "{{ item.problem"
          - {as: finding, path: a.py, line: 0, message: "{{ inputs.sinse }}"}
          - {path: a.py, line: 9, end_line: 3, level: fatal, message: "{{ steps.review.txt }}"}
          - {path: a.py, line: nine, message: "{{ steps.review.text | uper }}"}
        """
    )

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert project.tidy(done.stdout + done.stderr) == snapshot


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("5", "p.yaml:4:14: annotations: text or a list is expected here"),
        ("[{path: a.py}]", "p.yaml:4:15: annotations[0]: the key `message` is missing"),
        (
            "[{path: a.py, message: x, lien: 3}]",
            "p.yaml:4:40: annotations[0].lien: unknown key `lien`\n  hint: did you mean `line`",
        ),
        ("steps.review.[", "p.yaml:4:14: annotations: not an expression"),
        (
            "steps.reviw.output",
            (
                "p.yaml:4:14: annotations: `steps.reviw` is not defined\n"
                "  hint: did you mean `steps.review`"
            ),
        ),
    ],
)
def test_each_mistake_has_its_place(project: Project, written: str, said: str) -> None:
    project.pipeline(f"steps: [{{id: review, prompt: Hello}}]\nannotations: {written}\n")

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert said in without_source(done.stderr)


def test_what_only_annotations_read_is_used(project: Project) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.pipeline(
        """
        inputs: {root: {type: string, default: src}, most: {type: integer, default: 3}}
        prompt: Hello
        annotations:
          - foreach: range(inputs.most) | list
            path: "{{ inputs.root }}/a.py"
            message: "{{ item }}, {{ index }}"
        """
    )

    done = project.aish("validate", "--strict", "p.yaml")

    assert done.code == 0, done.stdout + done.stderr


def test_the_items_of_a_step_are_kept_for_annotations(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("one"), text_reply("two")]))
    project.pipeline(
        """
        steps:
          - {id: each, foreach: "['a.py', 'b.py']", concurrency: 1, key: item, prompt: "{{ item }}"}
        annotations:
          - {foreach: steps.each, path: "{{ item.key }}", message: "{{ item.text }}"}
        """
    )

    found = project.result()["annotations"]

    assert [(one["path"], one["message"]) for one in found] == [("a.py", "one"), ("b.py", "two")]
