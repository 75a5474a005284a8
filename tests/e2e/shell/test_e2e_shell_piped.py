"""`aish shell` with nobody at a terminal: lines in, answers out, nobody is asked (S1, 1.2)."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from cli_process import heeding_modes
from e2e_project import REPO, ModelEndpoints, Project, of_type, stdio, wait_file
from model_endpoint import Gate, Reply, hanging_reply, json_reply, text_reply, tool_reply
from samples import sampled
from shell_terminal import answered, ask, at_prompt, leave, sent_messages, session_journal, sitting

TOOLS_SERVER = REPO / "tests" / "support" / "mcp_changing_server.py"
DENIED = "[aish] tool call denied: no rule approves s__fail"
ASKING = f"mcp: {{servers: {{s: {{command: {stdio()}}}}}}}\n"


def echoing(body: Any) -> Reply:
    """A model that says what it was told last."""
    return text_reply(f"<{body['messages'][-1]['content']}>")


@pytest.fixture
def talking(project: Project, model_endpoint: ModelEndpoints) -> Any:
    """A session on a model that echoes."""
    endpoint = model_endpoint(echoing)
    project.uses(endpoint)
    project.pipeline("")
    return endpoint


def test_answers_go_to_stdout_byte_for_byte_and_the_rest_to_stderr(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    answer = "first é\x1b[31m\r\n\tsecond  \n\n\u202elast"
    project.uses(model_endpoint([text_reply(answer), text_reply("two\n")]))
    project.pipeline("")
    done = project.aish("shell", "p.yaml", stdin="question\n\n  \nnext\n:quit\nnever\n")
    assert done.code == 0
    assert done.stdout == f"{answer}\ntwo\n"
    assert "line-2: ok" in done.stderr
    assert "\x1b" not in done.stderr
    assert "\u202e" not in done.stderr
    quiet = project.aish("shell", "p.yaml", "-q", stdin=":quit\n")
    assert (quiet.code, quiet.stdout, quiet.stderr) == (0, "", "")


@pytest.mark.parametrize("ci", [False, True])
def test_what_needs_asking_is_denied_and_the_session_goes_on(
    project: Project, model_endpoint: ModelEndpoints, *, ci: bool
) -> None:
    asks = tool_reply([("c1", "s__fail", "{}")])
    endpoint = model_endpoint([asks, text_reply("gone on"), text_reply("two")])
    project.uses(endpoint)
    project.pipeline(ASKING)
    if ci:
        with sitting(project, prompt=False, env={"CI": "true"}) as window:
            window.wait_for("model m: scripted")
            window.type("one\rtwo\r:quit\r")
            assert window.finish() == 0
    else:
        done = project.aish("shell", "p.yaml", stdin="one\ntwo\n")
        assert (done.code, done.stdout) == (0, "gone on\ntwo\n")
        assert "tool s__fail {}: ask-no (nobody to ask)" in done.stderr
    talk = [("user", "one"), ("assistant", ""), ("tool", DENIED), ("assistant", "gone on")]
    assert sent_messages(endpoint.asked[-1]) == [*talk, ("user", "two")]
    (end,) = of_type(session_journal(project), "run.finished")
    assert (end["status"], end["denials"]) == ("ok", {"s__fail": 1})


def test_a_denial_that_is_a_failure_ends_the_answer_and_decides_the_exit_code(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    asks = tool_reply([("c1", "s__fail", "{}")])
    endpoint = model_endpoint([asks, json_reply(400, {}), text_reply("three")])
    project.uses(endpoint)
    project.pipeline(f"{ASKING}\non_denied: fail\n")
    done = project.aish("shell", "p.yaml", stdin="one\ntwo\nthree\n")
    assert (done.code, done.stdout) == (3, "three\n")
    assert "exit 3 (denied): step `line-1`: tool call denied: no rule approves" in done.stderr
    said = "[aish] stopped: tool call denied: no rule approves s__fail; its arguments: {}"
    talk = [("user", "one"), ("assistant", ""), ("tool", DENIED), ("assistant", said)]
    assert sent_messages(endpoint.asked[-1]) == [*talk, ("user", "three")]


@pytest.mark.requirement("S2")
@pytest.mark.parametrize("fails", [False, True])
def test_proposed_commands_run_only_where_a_rule_approves_them(
    project: Project, model_endpoint: ModelEndpoints, *, fails: bool
) -> None:
    endpoint = model_endpoint([text_reply("CMD: echo hi\nCMD: touch ran"), text_reply("two")])
    project.uses(endpoint)
    project.pipeline("shell: {auto_approve: ['echo **']}\n" + "on_denied: fail\n" * fails)
    done = project.aish("shell", "p.yaml", stdin="one\ntwo\n")
    assert (done.code, done.stdout) == (3 * fails, "CMD: echo hi\nCMD: touch ran\nhi\ntwo\n")
    assert not (project.folder / "ran").exists()
    ((_, text),) = sent_messages(endpoint.asked[-1])[-1:]
    assert text == (
        "[local command: echo hi]\nhi\n[exit code 0]\n\n[local command: touch ran]\n"
        "[aish] tool call denied: no rule approves shell__run\n\ntwo"
    )


def test_a_typed_command_that_fails_fails_its_line(project: Project, talking: Any) -> None:
    done = project.aish(
        "shell", "p.yaml", stdin="!echo out; echo err >&2; exit 3\n$echo private\nq\n"
    )
    assert done.code == 1
    assert done.stdout == (
        "out\nprivate\n<[local command: echo out; echo err >&2; exit 3]\nout\n[stderr]\nerr\n"
        "[exit code 3]\n\nq>\n"
    )
    assert "\nerr\n" in done.stderr
    assert "private" not in talking.asked[0]["messages"][-1]["content"]
    good = project.aish("shell", "p.yaml", stdin="!true\n")
    assert (good.code, good.stdout) == (0, "")


def test_a_rule_that_denies_holds_for_what_is_typed_too(project: Project, talking: Any) -> None:
    for more, code in (("", 1), ("on_denied: fail\n", 3)):
        project.pipeline(f"mcp: {{deny: [shell__run]}}\n{more}")
        done = project.aish("shell", "p.yaml", stdin="!touch ran\n")
        assert (done.code, done.stdout) == (code, "")
        assert not (project.folder / "ran").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (":undoo", "error: unknown command `:undoo`\n  hint: did you mean `:undo`\n"),
        (":", "error: a `:` is followed by a command\n"),
        (":model nope", "error: no model `nope` in p.yaml\n"),
        ("x" * (2 << 20), "error: line 1 of stdin is longer than 1,048,576 bytes\n"),
    ],
)
def test_a_line_that_cannot_be_done_is_told_and_the_next_one_is_done(
    project: Project, talking: Any, line: str, said: str
) -> None:
    done = project.aish("shell", "p.yaml", stdin=f"{line}\nnext\n")
    assert (done.code, done.stdout) == (1, "<next>\n")
    assert said in done.stderr
    quiet = project.aish("shell", "p.yaml", "-q", stdin=f"{line}\nnext\n")
    assert (quiet.code, quiet.stdout) == (1, "<next>\n")
    assert quiet.stderr.count("error:") == 1, "told once"


def test_answers_go_on_where_nobody_reads_stderr_any_more(project: Project, talking: Any) -> None:
    del talking
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*project.aish.python, "-m", "aish", "shell", "p.yaml", "-q"],
        cwd=project.folder,
        env=project.aish.env,
        input="!echo printed >&2\none\n:nosuch\ntwo\n",
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    first, second = done.stdout.splitlines()[-2:]
    assert first.endswith("one>")
    assert (second, done.returncode) == ("<two>", 1)


@pytest.mark.parametrize("attended", [False, True], ids=["piped", "at a terminal"])
def test_a_secret_that_a_server_echoes_is_masked_in_what_commands_say(
    project: Project, talking: Any, *, attended: bool
) -> None:
    del talking
    secret = "very-secret-value-1"
    tool = {"name": "t", "description": f"says {secret}", "inputSchema": {"title": secret}}
    project.write("tools.json", json.dumps([tool]))
    project.aish.env["DEPLOY_KEY"] = secret
    command = json.dumps([sys.executable, str(TOOLS_SERVER)])
    project.pipeline(f"secrets: [DEPLOY_KEY]\nmcp: {{servers: {{s: {{command: {command}}}}}}}\n")
    lines = (":mcp tools", ":mcp tool s__t")
    if attended:
        with sitting(project) as window:
            answered(window, lines[0], "s__t  ask  says <secret:DEPLOY_KEY>")
            answered(window, lines[1], '"title": "<secret:DEPLOY_KEY>"')
            ask(window, ":quit")
            assert window.finish() == 0
            said = window.text
    else:
        refused = f":attach {secret}.md"
        done = project.aish("shell", "p.yaml", stdin="\n".join((*lines, refused)))
        said = done.stdout + done.stderr
        assert "<secret:DEPLOY_KEY>.md" in done.stderr
    assert secret not in said
    assert said.count("<secret:DEPLOY_KEY>") >= len(lines)


def test_a_quiet_session_says_why_a_question_had_no_answer(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([json_reply(401, {"error": {"message": "bad key"}})]))
    project.pipeline("")
    done = project.aish("shell", "p.yaml", "-q", stdin="question\n")
    assert (done.code, done.stdout) == (5, "")
    assert done.stderr.startswith("error: step `line-1`: model `m`: HTTP 401: ")
    assert done.stderr.count("error: ") == 1


def test_the_worst_line_decides_the_exit_code(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    refused = json_reply(401, {"error": {"message": "bad key"}})
    asks = tool_reply([("c1", "s__fail", "{}")])
    replies = [refused, text_reply("two"), asks]
    lines = ":nope\none\ntwo\nthree\nfour\n"
    codes = []
    for count in range(2, 6):
        project.uses(model_endpoint(replies))
        project.pipeline(f"{ASKING}\non_denied: fail\nlimits: {{turns: 2}}\n")
        wanted = "".join(f"{line}\n" for line in lines.split()[: min(5, count)])
        codes.append(project.aish("shell", "p.yaml", stdin=wanted).code)
    assert codes == [5, 5, 3, 3]
    project.uses(model_endpoint(replies))
    project.pipeline("limits: {turns: 1}\n")
    assert project.aish("shell", "p.yaml", stdin=lines).code == 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("given", "out", "code"),
    [
        (b"", "", 0),
        (b"\n\n", "", 0),
        (b"no end", "<no end>\n", 0),
        (b"dos\r\nlines\r\n", "<dos>\n<lines>\n", 0),
        ("\ufeffmark\n".encode(), "<mark>\n", 0),
        ("höllo\n".encode("utf-16"), "", 1),
        (b"caf\xe9\n", "<caf\ufffd>\n", 0),
        (b"\0\x1b[2J\n", "<\0\x1b[2J>\n", 0),
    ],
)
def test_whatever_stdin_holds_is_read_as_lines(
    project: Project, talking: Any, given: bytes, out: str, code: int
) -> None:
    done = project.aish("shell", "p.yaml", stdin=given)
    assert (done.stdout, done.code) == (out, code)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("end", ["<&-", "</dev/null"])
def test_without_a_stdin_the_session_is_empty(project: Project, talking: Any, end: str) -> None:
    project.through_shell(f'exec "$@" {end}')
    done = project.aish("shell", "p.yaml")
    assert (done.code, done.stdout) == (0, "")


@pytest.mark.slow(reason="fills the buffers of a pipe")
@pytest.mark.parametrize(
    ("line", "code", "asked"),
    sampled(
        [
            ('exec "$@" > /dev/full', 1, 1),
            # Whoever reads has gone before there is an answer, and says so.
            ('("$@"; echo $? > code) | (exec <&-; echo > gone); exit $(cat code)', 0, 0),
            ('exec "$@" >&-', 0, 2),
            ('exec "$@" 2>&-', 0, 2),
        ],
        often={0},
        reason="cases of the same kind",
    ),
)
def test_a_session_whose_answers_nobody_takes_ends(
    project: Project, talking: Any, line: str, code: int, asked: int
) -> None:
    os.mkfifo(project.folder / "gone")
    project.through_shell(line)
    lines = f"{'!cat gone' if 'gone' in line else '!true'}\none\ntwo\n"
    done = project.aish("shell", "p.yaml", stdin=lines)
    assert (done.code, len(talking.asked)) == (code, asked)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert session_journal(project)[-1]["type"] == "run.finished"


def test_without_a_file_it_is_the_one_here_or_ones_own(
    project: Project, talking: Any, tmp_path: Any
) -> None:
    project.aish.env["HOME"] = str(tmp_path / "home")
    none = project.aish("shell", stdin="hi\n")
    assert none.code == 2
    assert (
        "error: no pipeline file was given, and there is neither `./aish.yaml` nor" in none.stderr
    )
    assert "hint: `aish init` writes a first one" in none.stderr
    own = tmp_path / "home" / ".config" / "aish"
    own.mkdir(parents=True)
    (own / "aish.yaml").write_bytes((project.folder / "p.yaml").read_bytes())
    assert project.aish("shell", stdin="own\n").stdout == "<own>\n"
    assert not (project.folder / ".aish").exists()
    (tmp_path / "home" / ".local/state/aish/sessions").stat()
    project.pipeline("steps: [{id: a, prompt: Say something}]", "aish.yaml")
    assert project.aish("shell", stdin="here\n").stdout == "<here>\n"
    assert session_journal(project)[-1]["exit"]["code"] == 0


def test_an_ephemeral_session_leaves_nothing_behind(project: Project, talking: Any) -> None:
    project.pipeline(ASKING)
    before = sorted(project.folder.rglob("*"))
    done = project.aish("shell", "p.yaml", "--ephemeral", stdin="one\n!echo two\n")
    assert (done.code, done.stdout) == (0, "<one>\ntwo\n")
    assert sorted(project.folder.rglob("*")) == before


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_asked(
    project: Project, talking: Any
) -> None:
    heeding = heeding_modes()
    if heeding is None:
        pytest.skip("whoever runs this may write anywhere")
    project.aish.python = (*heeding, *project.aish.python)
    project.folder.chmod(0o555)
    try:
        done = project.aish("shell", "p.yaml", stdin="one\n")
        assert (done.code, done.stdout) == (2, "")
        assert "--ephemeral" in done.stderr
        without = project.aish("shell", "p.yaml", "--ephemeral", stdin="one\n")
        assert (without.code, without.stdout) == (0, "<one>\n")
    finally:
        project.folder.chmod(0o755)
    assert len(talking.asked) == 1


def test_two_sessions_at_once_in_one_folder_know_nothing_of_each_other(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate(opens_at=2)
    project.uses(model_endpoint(lambda body: echoing(body).but(before_head=gate)))
    project.pipeline("")
    sessions = [project.aish.start("shell", "p.yaml", stdin=f"{n}\n") for n in "ab"]
    assert [one.finish().stdout for one in sessions] == ["<a>\n", "<b>\n"]
    assert len(list((project.folder / ".aish" / "sessions").glob("*Z-*"))) == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 143)])
@pytest.mark.parametrize("state", ["an answer", "a command", "a pipeline"])
def test_a_signal_ends_it_as_it_ends_a_run(
    project: Project, model_endpoint: ModelEndpoints, kind: str, code: int, state: str
) -> None:
    endpoint = model_endpoint([hanging_reply(Gate())])
    project.uses(endpoint)
    project.pipeline("")
    project.pipeline("prompt: Say something", "other.yaml")
    lines = {
        "an answer": "one\n",
        "a command": "!touch begun.part; mv begun.part begun; sleep 600\n",
        "a pipeline": ":run other.yaml\n",
    }
    running = project.aish.start("shell", "p.yaml", stdin=f"{lines[state]}never\n")
    if state == "a command":
        wait_file(project.folder / "begun")
    else:
        endpoint.wait_requests(1)
    running.interrupt(signal.Signals[kind])
    done = running.finish()
    assert (done.code, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    journal = session_journal(project)
    assert journal[-1]["exit"]["code"] == code
    assert len(endpoint.requests) == (state != "a command")


@pytest.mark.parametrize("required", [False, True])
def test_a_server_that_is_missing_is_told_of_and_missed_only_where_it_is_required(
    project: Project, talking: Any, *, required: bool
) -> None:
    server = f"{{command: {stdio('--die-at-start')}, required: {str(required).lower()}}}"
    project.pipeline(f"mcp: {{servers: {{s: {server}}}}}\n")
    done = project.aish("shell", "p.yaml", stdin="one\n:mcp disconnect s\ntwo\n")
    assert done.code == 5 * required
    assert done.stderr.count("mcp server `s` is missing ") == 1
    assert ("<one>" in done.stdout) is not required
    assert done.stdout.endswith("<two>\n")


def test_a_lock_says_nothing_of_the_steps_that_a_session_does_not_have(
    project: Project, talking: Any
) -> None:
    project.write("data/note.txt", "hello")
    project.pipeline(
        """
        mcp: {servers: {repo: {pack: fs, root: data}}}
        steps: [{id: a, prompt: Say hello}]
        """
    )
    assert project.aish("lock", "p.yaml").code == 0
    done = project.aish("shell", "p.yaml", stdin="hello\n")
    assert (done.code, done.stdout) == (0, "<hello>\n")
    assert "lock_stale" not in done.stderr

    text = (project.folder / "p.yaml").read_text()
    project.write("p.yaml", text.replace("model: scripted", "model: another"))
    assert "model `m` differs from the lock" in project.aish("shell", "p.yaml", stdin="").stderr


@pytest.mark.requirement("S5")
def test_what_a_request_takes_is_told_with_the_tools_of_servers_on_their_way(
    project: Project, talking: Any
) -> None:
    project.pipeline(ASKING)
    done = project.aish("shell", "p.yaml", "-q", stdin=":context\n:mcp list\n")
    first, _, _, row = done.stdout.splitlines()
    assert done.code == 0
    assert row.split()[-2:] == ["ready,", "unconfined"]
    assert first.endswith(f", with {row.split()[-3]} tools")


PROMPTS = """
    inputs: {who: {type: string}, tone: {type: string, enum: [dry, warm], default: dry}}
    prompts:
      greet:
        system: Be {{ inputs.tone }}.
        user: "Greet {{ inputs.who }} in {{ inputs.tone }} words."
      plain: {user: Say hello to all.}
    """


@pytest.mark.usefixtures("talking")
def test_a_prompt_of_the_file_is_filled_in_and_sent(project: Project) -> None:
    project.pipeline(PROMPTS)
    lines = (
        ":prompt",
        ":prompt gret",
        ":prompt greet",
        ":prompt greet whom=x",
        ":prompt greet who=x tone=odd",
        ":prompt greet who='Ada L' tone=warm",
        ":prompt plain",
    )

    done = project.aish("shell", "p.yaml", stdin="\n".join(lines))

    assert ":prompt greet tone=… who=…\n:prompt plain\n" in done.stderr + done.stdout
    for said in (
        "unknown prompt `gret`",
        "hint: did you mean `greet`",
        "the prompt `greet` needs `who`",
        "hint: `:prompt greet who=…`",
        "the prompt `greet` has no value `whom`",
        "the input `tone`: 'odd' is not one of 'dry', 'warm'",
    ):
        assert said in done.stderr
    assert "<Be warm.\n\nGreet Ada L in warm words.>\n" in done.stdout
    assert done.stdout.endswith("<Say hello to all.>\n")


@pytest.mark.usefixtures("talking")
def test_a_prompt_of_the_file_may_be_that_of_a_server(project: Project) -> None:
    """C8: `prompts:` of the file, and so those that a server has."""
    project.pipeline(
        f"""
        mcp: {{servers: {{docs: {{command: {stdio("--offers")}}}}}}}
        inputs: {{file: {{type: string}}}}
        prompts:
          hello: {{server: docs, name: plain}}
          look: {{server: docs, name: review, with: {{code: "{{{{ inputs.file }}}}"}}}}
          lost: {{server: docs, name: none}}
        """
    )
    lines = (":prompt", ":prompt look", ":prompt lost", ":prompt hello", ":prompt look file=a.py")

    done = project.aish("shell", "p.yaml", stdin="\n".join(lines))

    listed = ":prompt hello\n:prompt look file=…\n:prompt lost\n"
    assert listed in done.stderr + done.stdout
    assert "the prompt `look` needs `file`" in done.stderr
    assert "the server `docs` offers no prompt `none`" in done.stderr
    assert "<Say hello>\n" in done.stdout
    assert "Review a.py, kindly" in done.stdout


@pytest.mark.parametrize("vision", [True, False])
def test_pictures_of_a_servers_prompt_go_out_with_it(
    project: Project, talking: Any, *, vision: bool
) -> None:
    """C8: a model that sees pictures gets them, another is told of them."""
    project.pipeline(
        f"""
        models: {{m: {{base_url: "${{MODEL_URL}}", model: a, vision: {str(vision).lower()}}}}}
        mcp: {{servers: {{docs: {{command: {stdio("--offers")}}}}}}}
        prompts:
          look: {{server: docs, name: review, with: {{code: a.py}}}}
          hello: {{server: docs, name: plain}}
        """
    )

    done = project.aish("shell", "p.yaml", stdin=":prompt look\n:prompt hello")

    assert done.code == 0, done.stderr
    looked, greeted = (json.dumps(one["messages"][-1]) for one in talking.asked)
    assert ("image_url" in looked, "not shown to this model" in looked) == (vision, not vision)
    assert "image_url" not in greeted


def test_the_names_of_prompts_and_their_inputs_are_completed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(echoing))
    project.pipeline(PROMPTS)
    with sitting(project) as window:
        # The heading draws the prompt anew, and the choices of a Tab before that go with it.
        window.wait_for("p · m (scripted)")
        window.wait_for(at_prompt(window))
        for typed, shown, whole in (
            (":prompt gr", "> :prompt gr", "> :prompt greet"),
            (" wh", "> :prompt greet wh", "> :prompt greet who="),
        ):
            window.type(typed)
            window.wait_for(shown)
            window.type("\t")
            window.wait_for(whole)
        window.type("Ada\r")
        window.wait_for("Greet Ada in dry words.>")
        leave(window)
