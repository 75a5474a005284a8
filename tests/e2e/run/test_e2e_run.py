"""`aish run`: its main paths against a scripted endpoint and real servers."""

import json
import re

import pytest
from e2e_project import ModelEndpoints, Project, http_server, of_type, stdio
from model_endpoint import json_reply, text_reply, tool_reply

pytestmark = pytest.mark.real_process


@pytest.mark.requirement("F1", "exit-0")
def test_a_question_is_answered_on_stdout(project: Project, model_endpoint: ModelEndpoints) -> None:
    endpoint = model_endpoint([text_reply("Hello, world.")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")

    done = project.run()

    assert (done.code, done.stdout) == (0, "Hello, world.\n")
    (asked,) = endpoint.asked
    assert asked["messages"] == [{"role": "user", "content": "Say hello"}]
    assert (asked["model"], asked["stream"]) == ("scripted", True)
    assert "tools" not in asked


@pytest.mark.requirement("L16", "M2")
def test_one_turn_uses_tools_of_a_child_a_web_server_and_a_pack(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [
        ("c1", "child__echo", '{"text": "from the child"}'),
        ("c2", "web__add", '{"a": 2, "b": 3}'),
        ("c3", "repo__file_read", '{"path": "notes.txt"}'),
    ]
    endpoint = model_endpoint([tool_reply(calls, "Let me look."), text_reply("done")])
    project.uses(endpoint)
    project.write("notes.txt", "from the pack")
    with http_server("--token", "web-token-0123") as url:
        project.pipeline(
            f"""
            mcp:
              servers:
                child: {{command: {stdio()}}}
                web: {{url: "{url}", auth_env: WEB_TOKEN}}
                repo: {{pack: [fs], root: .}}
              auto_approve: ["child__*", web__add, repo__file_read]
            prompt: Use your tools
            """
        )
        found = project.result(env={"WEB_TOKEN": "web-token-0123"})

    assert found["status"] == "ok"
    used = found["steps"]["main"]["tool_calls"]
    assert [(call["tool"], call["content"]) for call in used] == [
        ("child__echo", "from the child"),
        ("web__add", "5"),
        ("repo__file_read", "from the pack"),
    ]
    first, second = endpoint.asked
    offered = {tool["function"]["name"] for tool in first["tools"]}
    assert {"child__echo", "web__add", "repo__file_read"} <= offered
    said = second["messages"][1:]
    assert said[0]["content"] == "Let me look."
    assert [call["id"] for call in said[0]["tool_calls"]] == ["c1", "c2", "c3"]
    assert [(m["role"], m["tool_call_id"], m["content"]) for m in said[1:]] == [
        ("tool", "c1", "from the child"),
        ("tool", "c2", "5"),
        ("tool", "c3", "from the pack"),
    ]


@pytest.mark.requirement("F14")
def test_steps_follow_their_needs_and_hand_on_their_results(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("a summary")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio()}}}}}
          auto_approve: [s__add, shell__run]
        steps:
          - id: say
            prompt: "{{{{ steps.sum.output.sum }}}} and {{{{ steps.count.text }}}}"
            tools: []
          - id: count
            needs: [sum]
            run: [printf, "%s files", "{{{{ steps.sum.output.sum }}}}"]
          - id: sum
            call: s__add
            with: {{a: 40, b: 2}}
        outputs:
          sum: "{{{{ steps.sum.output.sum }}}}"
          counted: "{{{{ steps.count.output }}}}"
          said: "{{{{ steps.say.text }}}}"
        """
    )

    found = project.result()

    assert found["status"] == "ok", found
    assert found["outputs"] == {
        "sum": 42,
        "counted": {"exit_code": 0, "stdout": "42 files", "stderr": ""},
        "said": "a summary",
    }
    assert list(found["steps"]) == ["sum", "count", "say"]
    assert endpoint.asked[0]["messages"][0]["content"] == "42 and 42 files"
    assert "tools" not in endpoint.asked[0]


VERDICT = """
steps:
  - id: judge
    prompt: Good or bad?
    output:
      attempts: 1
      schema:
        type: object
        properties: {verdict: {enum: [good, bad]}}
        required: [verdict]
        additionalProperties: false
"""


def test_an_endpoint_that_enforces_schemas_is_sent_the_schema(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply('{"verdict": "good"}')])
    project.uses(endpoint)
    models = 'models: {m: {base_url: "${MODEL_URL}", model: x, json_schema: true}}\n'
    project.pipeline(models + VERDICT)

    found = project.result()

    assert found["steps"]["judge"]["output"] == {"verdict": "good"}
    (asked,) = endpoint.asked
    assert asked["response_format"]["type"] == "json_schema"
    assert asked["response_format"]["json_schema"]["schema"]["required"] == ["verdict"]
    assert asked["messages"][0]["content"] == "Good or bad?"


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        ('```json\n{"verdict": "bad"}\n```', 0, ""),
        ('{"verdict": "so so"}', 1, "verdict"),
        ("rather good, I think", 1, "not JSON"),
    ],
)
def test_any_other_endpoint_is_told_the_schema_and_the_answer_is_checked(
    project: Project, model_endpoint: ModelEndpoints, answer: str, code: int, reason: str
) -> None:
    endpoint = model_endpoint([text_reply(answer)])
    project.uses(endpoint)
    project.pipeline(VERDICT)

    found = project.result()

    assert found["exit"]["code"] == code
    assert reason in found["exit"]["reason"]
    (asked,) = endpoint.asked
    assert "response_format" not in asked
    assert '"enum": ["good", "bad"]' in asked["messages"][0]["content"]


@pytest.mark.requirement("F9")
def test_everything_the_command_line_adds_reaches_the_request(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("ok")])
    project.uses(endpoint)
    project.write(
        "base/base.yaml",
        """
        aish: 1
        models:
          m: {base_url: "http://127.0.0.1:9/v1", model: base}
          other:
            base_url: "${MODEL_URL}"
            model: other-model
            params: {temperature: 1, top_p: 0.5}
        prompts: {ask: {file: ask.txt}}
        """,
    )
    project.write("base/ask.txt", "{{ inputs.since }} {{ inputs.count + 1 }} {{ inputs.tone }}: ")
    project.write("inputs.yaml", "tone: dry\ncount: 1\n")
    project.write("since.txt", "v1.2\n")
    project.write(
        "p.yaml",
        """
        aish: 1
        extends: [base/base.yaml]
        model: m
        inputs:
          since: {type: string}
          count: {type: integer}
          tone: {enum: [dry, warm], default: warm}
        steps:
          - id: one
            prompt: {name: ask}
            system: "{{ stdin }}"
        """,
    )

    found = project.result(
        *("-m", "other", "--set", "models.other.params.temperature=0", "--timeout", "1m"),
        *("--inputs", "inputs.yaml", "-i", "since=@since.txt", "-i", "count=41"),
        stdin="piped text",
    )

    assert found["status"] == "ok", found
    (asked,) = endpoint.asked
    assert (asked["model"], asked["temperature"], asked["top_p"]) == ("other-model", 0, 0.5)
    system, user = asked["messages"]
    assert system == {"role": "system", "content": "piped text"}
    assert user["content"].split() == ["v1.2", "42", "dry:"]
    started = project.journal[0]
    assert started["overrides"] == ["models.other.params.temperature=0"]
    assert started["inputs"]["count"] == 41
    assert started["limits"]["time"] == 60
    assert [model["alias"] for model in started["models"]] == ["other"]


def test_inputs_may_come_on_stdin(project: Project, model_endpoint: ModelEndpoints) -> None:
    endpoint = model_endpoint([text_reply("ok")])
    project.uses(endpoint)
    project.pipeline("inputs: {word: {type: string}}\nprompt: 'Say {{ inputs.word }}'")

    done = project.run("--inputs", "-", stdin='{"word": "seven"}')

    assert done.code == 0, done.stderr
    assert endpoint.asked[0]["messages"][0]["content"] == "Say seven"


@pytest.mark.requirement("L9")
def test_the_next_model_answers_when_the_first_stays_unavailable(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    down = model_endpoint(lambda _: json_reply(503, {"error": {"message": "overloaded"}}))
    up = model_endpoint([text_reply("from the second")])
    project.pipeline(
        f"""
        models:
          first:
            base_url: "{down.base_url}"
            model: a
            fallback: [second]
            retry: {{attempts: 2, max_delay: 1s}}
          second: {{base_url: "{up.base_url}", model: b}}
        model: first
        prompt: Say something
        """
    )

    done = project.run()

    assert (done.code, done.stdout) == (0, "from the second\n")
    assert len(down.asked) == 2
    (fallback,) = of_type(project.journal, "fallback")
    assert (fallback["from"], fallback["to"]) == ("first", "second")
    assert len(of_type(project.journal, "retry")) == 1


@pytest.mark.slow(reason="runs the file with each option")
def test_a_command_line_may_loosen_and_tighten_the_rules(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [("c1", "s__echo", '{"text": "x"}'), ("c2", "s__add", '{"a": 1, "b": 1}')]
    endpoint = model_endpoint([tool_reply(calls), text_reply("done")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio()}}}}}
          auto_approve: [s__add]
        on_denied: continue
        prompt: Use your tools
        """
    )

    found = project.result("--allow", "s__echo", "--deny", "*__add")

    assert [(c["tool"], c["kind"]) for c in found["steps"]["main"]["tool_calls"]] == [
        ("s__echo", "ok"),
        ("s__add", "denied"),
    ]
    assert found["denials"] == {"s__add": 1}
    assert {"list": "deny", "rule": "*__add"} in project.journal[0]["rules"]


@pytest.mark.requirement("L18")
def test_a_long_result_is_cut_for_the_model_and_kept_whole(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([tool_reply([("c1", "s__big", '{"n": 100000}')]), text_reply("k")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio()}}}}}
          auto_approve: [s__big]
          result_limit: 1KiB
        prompt: Use your tools
        """
    )

    done = project.run()

    assert done.code == 0, done.stderr
    (finished,) = of_type(project.journal, "tool.finished")
    (folder,) = project.run_folders
    assert (folder / finished["full"]).read_text() == "x" * 100_000
    sent = endpoint.asked[1]["messages"][-1]["content"]
    assert len(sent) < 1400
    assert "left out" in sent


@pytest.mark.requirement("M10")
def test_a_server_starts_in_the_folder_of_the_file_with_a_small_environment(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("ok")]))
    python, server = json.loads(stdio())
    script = f'pwd > "$NOTE"\nenv >> "$NOTE"\nexec {python} {server}\n'
    project.write("sub/server.sh", script)
    note = project.folder / "note.txt"
    project.pipeline(
        f"""
        mcp:
          servers:
            s:
              command: [sh, server.sh]
              env: {{NOTE: "{note}", GIVEN: "${{NAMED}}"}}
        prompt: Say ok
        """,
        name="sub/p.yaml",
    )

    done = project.aish("run", "sub/p.yaml", env={"NAMED": "named-value", "OTHER": "unnamed"})

    assert done.code == 0, done.stderr
    cwd, *environment = note.read_text().splitlines()
    assert cwd == str(project.folder / "sub")
    assert "GIVEN=named-value" in environment
    names = {line.partition("=")[0] for line in environment}
    assert "OTHER" not in names
    assert "MODEL_URL" not in names


def test_the_log_of_a_run_counts_from_the_start_of_its_process(project: Project) -> None:
    project.pipeline("run: [printf, hi]")

    done = project.run("--allow", "shell__run")
    first = re.match(r"\[ *([0-9.]+)s\] aish ", done.stderr)

    # To start an interpreter takes longer than this on any machine.
    assert first is not None, done.stderr
    assert float(first[1]) > 0
