"""Structured results of tools are the same for a resumed run (B3, F14)."""

import json
import re
from typing import Any

from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import text_reply, tool_reply

# Longer than what a model sees of a result.
LONG = {"n": 25_000, "structured": True}


def seen_twice(project: Project) -> Any:
    """What the call of the last step, which fails, is given: in the run, and when it is resumed."""
    for more in ((), ("--resume", "--retry-failed")):
        done = project.run(*more)
        assert done.code == 1, done.stderr
    decided = of_type(project.journal, "tool.decided")
    told = [one["arguments"]["text"] for one in decided if one["step"] == "last"]
    # A step that failed is tried again, and takes another time.
    live, resumed = [re.sub(r"after \d+\.\d s;", "after <seconds>;", text) for text in told]
    assert live == resumed
    return json.loads(live)


def test_a_resumed_run_has_the_structured_results_of_calls(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [("c1", "s__add", '{"a": 1, "b": 2}'), ("c2", "s__big", json.dumps(LONG))]
    project.uses(model_endpoint([tool_reply(calls), text_reply("done")]))
    project.pipeline(f"""
        mcp:
          servers: {{s: {{command: {stdio()}}}}}
          auto_approve: [s__add, s__fail, s__big, shell__run]
        steps:
          - {{id: asked, prompt: Count, result_limit: 4KiB}}
          - {{id: called, call: s__add, with: {{a: 3, b: 4}}}}
          - {{id: ran, run: [echo, five]}}
          - {{id: each, foreach: "[5, 6]", call: s__add, with: {{a: "{{{{ item }}}}", b: 0}}}}
          - id: last
            needs: [asked, called, ran, each]
            call: s__fail
            with:
              text: "{{{{ {{'asked': steps.asked.tool_calls[0],
                'called': steps.called.tool_calls, 'ran': steps.ran.tool_calls,
                'each': steps.each | map(attribute='tool_calls') | list,
                'long': steps.asked.tool_calls[1] | tojson | sha256,
                'said': steps.asked.tool_calls[1].structured.said | length}} | tojson }}}} "
        """)

    seen = seen_twice(project)

    assert seen["asked"]["structured"] == {"sum": 3}
    assert seen["called"][0]["structured"] == {"sum": 7}
    assert seen["ran"][0]["structured"] == {"exit_code": 0, "stdout": "five\n", "stderr": ""}
    assert [item[0]["structured"] for item in seen["each"]] == [{"sum": 5}, {"sum": 6}]
    ends = {end["call"]: end for end in of_type(project.journal, "tool.finished")}
    assert ends["c1"]["structured"] == {"sum": 3}
    # The long text of a result is kept once.
    (span,) = ends["c2"]["structured_spans"]
    (kept,) = (project.run_folders[0] / "files").iterdir()
    assert kept.name == ends["c2"]["full"].removeprefix("files/")
    assert ends["c2"]["structured"] == {"said": ""}
    assert (span["path"], span["start"]) == (["said"], 0)
    assert len(kept.read_text()) == span["end"] == seen["said"] == 25_000
    assert ends["ran-1"]["structured"] == {"exit_code": 0, "stdout": "five\n", "stderr": ""}


def test_a_call_that_a_timeout_cuts_off_is_seen_in_the_run_as_when_it_is_resumed(
    project: Project,
) -> None:
    project.write("hangs.sh", "echo half\ntouch late\nexec sleep 600\n")
    project.pipeline(f"""
        models: {{}}
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [shell__run, s__fail]}}
        steps:
          - {{id: wait, timeout: 20s, on_error: continue, run: [sh, hangs.sh]}}
          - id: last
            needs: [wait]
            call: s__fail
            with: {{text: "{{{{ steps.wait.tool_calls | tojson }}}} "}}
        """)
    project.times_out(20, "late")

    (call,) = seen_twice(project)

    assert (call["tool"], call["kind"]) == ("shell__run", "timeout")
    assert call["structured"] == {"exit_code": None, "stdout": "half\n", "stderr": ""}
    assert "it had printed:\nhalf" in call["content"]


def test_a_text_that_a_result_has_twice_is_written_once_and_resumed_whole(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [
        ("c1", "repo__file_read", '{"path": "a.md"}'),
        ("c2", "repo__file_read", '{"path": "missing.md"}'),
        ("c3", "repo__shell_run", '{"command": "sh prints.sh"}'),
    ]
    project.uses(model_endpoint([tool_reply(calls), text_reply("done")]))
    project.aish.env["CLIENT_SECRET"] = "hush-hush-hush"
    project.write("docs/a.md", "".join(f"hush-hush-hush in line {n} of text\n" for n in range(90)))
    project.write("docs/prints.sh", "seq 100 199\nseq 200 299 >&2\nexit 3\n")
    project.pipeline(f"""
        models: {{m: {{base_url: "${{MODEL_URL}}", model: x, key_env: CLIENT_SECRET}}}}
        mcp:
          servers: {{s: {{command: {stdio()}}}, repo: {{pack: [fs, shell], root: docs}}}}
          auto_approve: [repo__file_read, repo__shell_run, s__fail]
        steps:
          - {{id: c, prompt: Read}}
          - id: last
            needs: [c]
            call: s__fail
            with: {{text: "{{{{ steps.c.tool_calls | tojson }}}} "}}
        """)

    read, missing, printed = seen_twice(project)

    assert read["structured"]["content"] == read["content"]
    assert read["structured"]["content"].count("<secret:CLIENT_SECRET> in line") == 90
    assert missing["structured"]["error"]["code"] == "not_found"
    ends = {end["call"]: end for end in of_type(project.journal, "tool.finished")}
    assert json.dumps(ends["c1"]).count("of text") == 90
    assert printed["structured"]["stdout"].splitlines() == [str(n) for n in range(100, 200)]
    assert printed["structured"]["stderr"].splitlines() == [str(n) for n in range(200, 300)]
    assert json.dumps(ends["c3"]).count("\\n250") == 1
