"""The commands of a session, each as its row says (S5): typed into a pipe, and at a terminal."""

import json
import os
import re
from collections.abc import Callable, Mapping

import pytest
from e2e_project import Project, http_server, of_type, stdio
from model_endpoint import ModelEndpoint, json_reply, text_reply
from shell_scene import obedient, piped, sent_messages, with_servers
from shell_terminal import answered, leave, session_journal, sitting

from aish.core.json import JsonValue
from aish.journal.reader import read_journal


@pytest.fixture
def model(project: Project, model_endpoint: Callable[..., ModelEndpoint]) -> ModelEndpoint:
    endpoint = model_endpoint(obedient)
    project.uses(endpoint)
    return endpoint


@pytest.fixture
def scene(project: Project, model: ModelEndpoint) -> Project:
    """Three models, three servers and rules about them."""
    del model
    with_servers(project)
    return project


# --- :help -----------------------------------------------------------------------------------


def test_help_tells_of_one_command_with_and_without_its_colon(scene: Project) -> None:
    one = piped(scene, ":help model")

    assert one.stdout.startswith(":model [ALIAS]\n")
    assert piped(scene, ":help :model").stdout == piped(scene, ":h model").stdout == one.stdout
    assert one.code == 0


def test_an_unknown_command_is_told_with_the_nearest_one(scene: Project) -> None:
    done = piped(scene, ":help mdoel", ":mdoel", ":")

    assert done.stderr.count("\n  hint: did you mean `:model`") == 2
    assert "a `:` is followed by a command" in done.stderr


@pytest.mark.parametrize("line", [":quit", ":q", ":exit"])
def test_quit_ends_the_session_there(scene: Project, line: str) -> None:
    done = piped(scene, line, ":help")

    assert (done.code, done.stdout) == (0, "")


# --- :model ----------------------------------------------------------------------------------


def test_the_conversation_goes_on_with_another_model(scene: Project, model: ModelEndpoint) -> None:
    done = piped(scene, "one", ":model other", "two", ":model", ":cost")

    assert [request.json["model"] for request in model.requests] == ["first", "second"]
    assert sent_messages(model.requests[1].json) == [
        ("user", "one"),
        ("assistant", "<2: one>"),
        ("user", "two"),
    ]
    assert "the model is now other\n" in done.stdout
    assert "* other   second  http://127.0.0.1:" in done.stdout
    assert "  m       first   http://127.0.0.1:" in done.stdout
    assert done.code == 0


def test_a_model_without_its_key_is_told_of_and_nothing_changes(
    scene: Project, model: ModelEndpoint
) -> None:
    done = piped(scene, ":model locked", ":model lokced", "who answers")

    assert "`NO_SUCH_KEY` is not set" in done.stderr
    assert "no model `lokced`" in done.stderr
    assert "hint: did you mean `locked`" in done.stderr
    assert [request.json["model"] for request in model.requests] == ["first"]


def test_limits_in_money_hold_by_the_price_of_the_model_that_was_switched_to(
    project: Project, model: ModelEndpoint
) -> None:
    project.pipeline(
        """
        models:
          cheap:
            {base_url: "${MODEL_URL}", model: a, price: {input: 1, output: 1}, params: *short}
          dear:
            {base_url: "${MODEL_URL}", model: b, price: {input: 5e5, output: 5e5}, params: *short}
        model: cheap
        limits: {cost_usd: 2}
        """.replace("*short", "{max_tokens: 9}")
    )

    done = piped(project, "one", ":model dear", "two", ":model cheap", "three", ":cost")

    assert [request.json["model"] for request in model.requests] == ["a", "a"]
    assert sent_messages(model.requests[1].json)[-1] == ("user", "three"), "the other is taken back"
    assert "14 tokens in, 6 out" in done.stdout
    assert done.code == 4


# --- :mcp ------------------------------------------------------------------------------------


def test_servers_are_listed_with_what_became_of_them(scene: Project) -> None:
    rows = [line.split() for line in piped(scene, ":mcp list").stdout.splitlines()]

    assert rows[0] == ["alias", "transport", "address", "tools", "state"]
    assert rows[1] == ["repo", "pack", "pack", "fs", "11", "ready"]
    assert (rows[2][:2], rows[2][-3:]) == (["kid", "stdio"], ["8", "ready,", "unconfined"])
    assert rows[3][:4] == ["dead", "stdio", "false", "-"]
    assert " ".join(rows[3][4:]) == "failed: the server ended with exit code 1"


def test_tools_are_listed_with_what_the_rules_say(scene: Project) -> None:
    done = piped(scene, ":mcp tools kid__*")
    rows = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}

    assert rows["kid__echo"] == "ask"
    assert rows["kid__add"] == "ask*", "it depends on the arguments"
    assert rows["kid__crash"] == "deny"
    assert "repo__file_read" not in rows
    assert "* depends on the arguments" in done.stdout


def test_a_tool_is_told_with_its_schema_and_the_rules_about_it(scene: Project) -> None:
    done = piped(scene, ":mcp tool kid__add")
    head, rule, described, *schema = done.stdout.splitlines()

    assert head == "kid__add  ask*"
    assert rule == '* auto_approve kid__add when {"a": "1"}  (mcp.auto_approve[1])'
    assert described == "  Add two numbers"
    assert json.loads("\n".join(schema))["required"] == ["a", "b"]


def test_a_tool_is_found_by_a_name_that_it_had_before(scene: Project) -> None:
    done = piped(scene, ":mcp tool repo__read_file")

    assert done.stdout.startswith("repo__file_read  ")
    assert "repo__read_file" not in piped(scene, ":mcp tools").stdout


# What is typed, what is said of it, and what next.
WRONG = (
    (":mcp lst", "unknown command `:mcp lst`", "did you mean `:mcp list`"),
    (
        ":mcp frob",
        "unknown command `:mcp frob`",
        "`:mcp list`, `:mcp tools`, `:mcp tool`, `:mcp connect`, `:mcp disconnect`",
    ),
    (":mcp list all", "`:mcp list` takes no arguments", ""),
    (":mcp tools kid", "has no `__`", "kid__*"),
    (":mcp tools a__b c__d", "takes one glob", ""),
    (":mcp tool", "takes one name", "`:mcp tools` lists them"),
    (":mcp tool kid__ecko", "no server offers the tool", "did you mean `kid__echo`"),
    (":mcp connect", "is the form", "http://"),
    (":mcp connect nothing", "not the URL of a server", "http://"),
    (":mcp connect http://h/ a b", "is the form", ""),
    (":mcp connect http://h/ x=y", "is the form", ""),
    (":mcp connect http://h/ kid", "the alias `kid` is already used", ":mcp disconnect kid"),
    (":mcp connect kid", "`kid` is already connected", ""),
    (":mcp connect -- server", "is the form", ":mcp connect clock -- uvx"),
    (":mcp connect a b -- server", "is the form", ""),
    (":mcp connect clock --", "no command after `--`", ":mcp connect clock -- uvx"),
    (":mcp connect clock -- 'server", "cannot be read: No closing quotation", ""),
    (":mcp connect kid -- server", "the alias `kid` is already used", ":mcp disconnect kid"),
    (":mcp connect a__b -- server", "cannot be an alias", ""),
    (":mcp connect clock -- server ${NO_SUCH}", "`NO_SUCH` is not set", ""),
    (":mcp connect http://h/ auth_env=NO_KEY", "`NO_KEY` is not set", "set it"),
    (":mcp disconnect", "takes one alias", "`:mcp list` shows them"),
    (":mcp disconnect kdi", "unknown server `kdi`", "did you mean `kid`"),
    (":approve kid", "has no `__`", "kid__*"),
    (":approve", "one glob", ""),
    (":approve shell__run", "not approved by a glob", "shell.auto_approve"),
    (":deny a__b c__d", "one glob", ""),
    (":approvals x", "takes no arguments", ""),
    (":run", "is the form", ""),
    (":run nope.yaml", "no such file", ""),
    (":run p.yaml", "the pipeline has no steps", ""),
    (":run 'p.yaml", "cannot be parsed", ""),
    (":attach nope.txt", "`nope.txt` is not there", "paths are relative to"),
    (":attach data", "`data` is a folder, not a file", ""),
    (":attach 'a", "cannot be parsed", ""),
    (":attach kid__nope", "offers no prompt `nope`", "kid__plain"),
    (":attach repo__nope", "offers no prompt `nope`", "has no prompts"),
    (":attach kid__review", "needs `code`", ":attach kid__review code=…"),
    (":attach kid__review code=x nope=1", "no argument `nope`", "it takes `code`, `tone`"),
    (":attach kid__review code", "is not KEY=VALUE", ""),
    (":attach docs://nope", "Resource not found", ""),
    (":attach data/note.txt x=y", "takes no arguments", "quotes"),
    (":retry", "no question in this conversation", ""),
    (":undo", "no question in this conversation", ""),
    (":edit", "no question in this conversation", ""),
    (":compact", "nothing to summarise yet", ""),
    (":norris maybe", "takes `on`, `on N` or `off`", "from 1 to"),
    (":norris on 0", "takes `on`, `on N` or `off`", ""),
    (":norris on ²", "takes `on`, `on N` or `off`", ""),
    (":context x", "takes no arguments", ":help context"),
    (":undo x", "`:undo` takes no arguments", ":help undo"),
    (":log x", "`:log` takes no arguments", ":help log"),
    (":cost x", "takes no arguments", ""),
    (":sessions x", "takes no arguments", ""),
    (":quit x", "takes no arguments", ""),
)


def test_what_cannot_be_done_says_why_and_what_next(scene: Project, model: ModelEndpoint) -> None:
    before = piped(scene, ":mcp list", ":approvals").stdout

    done = piped(scene, *(line for line, _, _ in WRONG), ":mcp list", ":approvals")

    assert done.stdout == before, "nothing has changed"
    _, *told_of = re.split(r"^error: ", done.stderr, flags=re.MULTILINE)
    assert len(told_of) == len(WRONG)
    for (line, said, hint), found in zip(WRONG, told_of, strict=True):
        assert said in found, line
        assert not hint or hint in found.partition("hint: ")[2], line
    assert done.code == 1
    assert not model.requests


def test_a_command_is_started_as_a_server_by_who_types_it(
    scene: Project, model: ModelEndpoint
) -> None:
    server = " ".join(json.loads(stdio("--era", "both")))
    done = piped(
        scene,
        f":mcp connect clock -- {server}",
        ":mcp list",
        "are they there?",
        ":mcp disconnect clock",
        ":mcp connect clock",
    )

    assert done.code == 0, done.stderr
    assert done.stdout.count(f"clock is connected: 8 tools, {server}\n") == 2
    assert "clock__echo" in [tool["function"]["name"] for tool in model.asked[-1]["tools"]]
    journal = session_journal(scene)
    decided = of_type(journal, "tool.decided")
    assert [(one["tool"], one["verdict"]) for one in decided] == [("shell__run", "ask-yes")] * 2
    assert decided[0]["arguments"] == {"argv": json.loads(stdio("--era", "both"))}
    (connected, _) = of_type(journal, "server.connected")
    assert (connected["alias"], connected["url"]) == ("clock", None)
    assert connected["command"] == json.loads(stdio("--era", "both"))
    order = [one["type"] for one in journal]
    assert order.index("tool.decided") < order.index("server.connected")


def test_a_command_that_a_rule_denies_is_no_server(project: Project, model: ModelEndpoint) -> None:
    del model
    project.pipeline("mcp: {deny: [{tool: shell__run, command: [touch, '*']}]}\n")

    done = piped(project, ":mcp connect x -- touch started", ":mcp list")

    assert done.code == 3
    assert 'denied by rule shell__run command ["touch", "*"]' in done.stderr
    assert "no servers" in done.stdout
    assert not (project.folder / "started").exists()


def test_a_command_that_cannot_be_started_changes_nothing(
    project: Project, model: ModelEndpoint
) -> None:
    del model
    project.pipeline("")

    done = piped(project, ":mcp connect clock -- /no/such/server", ":mcp list")

    assert done.code == 5
    assert "mcp server `clock`: cannot start `/no/such/server`" in done.stderr
    assert "nothing has changed" in done.stderr
    assert "no servers" in done.stdout
    assert of_type(session_journal(project), "server.connected") == []


def test_a_variable_in_a_command_is_a_secret(project: Project, model: ModelEndpoint) -> None:
    del model
    project.pipeline("")
    note = project.folder / "environment"
    server = " ".join(json.loads(stdio("--print-environment", note)))
    project.aish.env["A_TOKEN"] = "correct-horse-battery"

    done = piped(project, f":mcp connect x -- {server} --note-cancelled ${{A_TOKEN}}", ":mcp list")

    assert "x is connected: 8 tools" in done.stdout, done.stderr
    assert "<secret:" in done.stdout
    assert "correct-horse" not in done.stdout + done.stderr + project.everything_written()


def test_a_server_is_connected_used_and_disconnected(scene: Project, model: ModelEndpoint) -> None:
    with http_server() as url:
        done = piped(
            scene,
            f":mcp connect {url} web",
            ":approve web__echo",
            'CALL web__echo {"text": "heard"}',
            ":mcp disconnect web",
            "anything left",
            ":mcp list",
        )

    assert f"web is connected: 8 tools, {url}\n" in done.stdout
    assert "<4: heard>" in done.stdout
    assert "web is disconnected" in done.stdout
    offered = [_offered(request.json) for request in model.requests]
    assert ["web__echo" in tools for tools in offered] == [True, True, False]
    assert not any(line.startswith("web ") for line in done.stdout.splitlines()[-3:])
    assert done.code == 0, done.stderr


def _offered(body: object) -> set[str]:
    assert isinstance(body, dict)
    return {tool["function"]["name"] for tool in body.get("tools", ())}


def test_without_an_alias_each_server_gets_one_of_its_own(scene: Project) -> None:
    with http_server() as url:
        local = url.replace("127.0.0.1", "localhost")
        done = piped(scene, f":mcp connect {local}", f":mcp connect {local}")

    first, second = done.stdout.splitlines()
    assert first.startswith("localhost is connected")
    assert second.startswith("localhost2 is connected")


def test_another_server_does_not_take_the_alias_of_one_of_the_file(scene: Project) -> None:
    with http_server() as url:
        done = piped(scene, ":mcp tools", f":mcp connect {url} dead", ":mcp list")

    assert "`dead` is a different server in the file" in done.stderr
    assert "is connected" not in done.stdout
    assert done.code == 1


def test_a_server_of_the_file_comes_back_by_its_alias(scene: Project, model: ModelEndpoint) -> None:
    done = piped(
        scene, ":mcp tools", ":mcp disconnect kid", "without", ":mcp connect kid", "with again"
    )

    assert "kid is connected: 8 tools" in done.stdout
    without, again = (_offered(request.json) for request in model.requests)
    assert again - without == {name for name in again if name.startswith("kid__")} != set()


@pytest.mark.slow(reason="runs sessions with several servers")
def test_what_was_approved_of_a_lost_server_is_not_approved_of_another_that_takes_its_alias(
    scene: Project, model: ModelEndpoint
) -> None:
    scene.shorten_pauses()
    call = 'CALL web__echo {"text": "heard"}'
    dying = " ".join(json.loads(stdio("--die-after", "0")))
    with http_server() as new:
        done = piped(
            scene,
            f":mcp connect web -- {dying}",
            ":approve web__echo",
            *[call] * 4,
            f":mcp connect {new} web",
            call,
        )

    assert "mcp server `web` is missing (`:mcp connect web` tries again)" in done.stderr
    assert done.stdout.count("web is connected: 8 tools") == 2
    assert "your approvals for it are withdrawn (1 rule)" in done.stdout
    assert sent_messages(model.requests[-1].json)[-1][1].startswith(
        "[aish] tool call denied: no rule"
    )


def test_a_required_server_that_is_let_go_is_not_asked_for_any_more(
    project: Project, model: ModelEndpoint
) -> None:
    project.pipeline('mcp: {servers: {dead: {command: ["false"], required: true}}}')

    done = piped(project, "one", ":mcp disconnect dead", "two")

    assert "hint: `:mcp disconnect dead` continues without it" in done.stderr
    assert [text for _, text in sent_messages(model.requests[0].json)] == ["two"]


@pytest.mark.slow(reason="connects to a server for each failure")
def test_every_way_a_connection_fails_changes_nothing(
    scene: Project, model_endpoint: Callable[..., ModelEndpoint]
) -> None:
    before = piped(scene, ":mcp list").stdout
    with http_server("--token", "the-right-token") as locked:
        no_mcp = model_endpoint([]).base_url
        done = piped(
            scene,
            ":mcp tools",
            f":mcp connect {locked} locked",
            f":mcp connect {locked} locked auth_env=WRONG",
            f":mcp connect {no_mcp} nomcp",
            ":mcp connect http://127.0.0.1:9/mcp refused",
            ":mcp connect http://no-such-host.invalid/mcp?api_key=very-secret-word nohost",
            ":mcp list",
            env={"WRONG": "a-wrong-token"},
        )

    assert done.stdout.endswith(before)
    for alias in ("locked", "nomcp", "refused", "nohost"):
        assert f"error: mcp server `{alias}`: " in done.stderr
    assert "hint: `auth_env=NAME` sends the value of a variable" in done.stderr
    everything = done.stdout + done.stderr + scene.everything_written()
    assert "a-wrong-token" not in everything
    assert "very-secret-word" not in everything


def test_a_token_is_sent_and_shown_nowhere(scene: Project) -> None:
    with http_server("--token", "the-right-token") as url:
        done = piped(
            scene,
            f":mcp connect {url}?key=secret-in-query locked auth_env=TOKEN",
            ":mcp list",
            ":mcp tool locked__echo",
            env={"TOKEN": "the-right-token"},
        )

    assert "locked is connected: 8 tools" in done.stdout
    everything = done.stdout + done.stderr + scene.everything_written()
    assert "the-right-token" not in everything
    assert "secret-in-query" not in everything


def test_a_key_in_a_url_is_not_remembered_with_the_line(
    project: Project, model: ModelEndpoint
) -> None:
    del model
    project.pipeline("")
    project.aish.env["XDG_STATE_HOME"] = str(project.folder / "state")
    with sitting(project) as window:
        answered(window, ":mcp connect http://127.0.0.1:9/mcp?api_key=very-secret-word x", "error")
        answered(window, ":mcp list", "no servers")
        assert leave(window) == 0

    (history,) = (project.folder / "state").rglob("history")
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert lines == [":mcp connect http://127.0.0.1:9/mcp?api_key=<secret:api_key> x", ":mcp list"]


def test_long_names_of_two_servers_do_not_clash(project: Project, model: ModelEndpoint) -> None:
    del model
    long = "x" * 60
    project.pipeline(f"mcp: {{servers: {{{long}: {{command: {stdio()}}}}}}}")
    with http_server() as url:
        done = piped(project, f":mcp connect {url} {long[:-1]}y", ":mcp list", ":mcp tools *y__*")

    assert done.code == 0, done.stderr
    assert done.stdout.count("ready") == 2
    assert f"{long[:-1]}y__echo " in done.stdout


# --- Rules -----------------------------------------------------------------------------------


def test_rules_of_the_session_decide_at_once_and_deny_beats(
    scene: Project, model: ModelEndpoint
) -> None:
    done = piped(
        scene,
        ":approve kid__*",
        'CALL kid__echo {"text": "one"}',
        ":deny kid__echo",
        'CALL kid__echo {"text": "two"}',
        ":approvals",
    )

    assert "matches 8 of 19 tools" in done.stdout
    assert "kid__big: ask all the same (kid__big)" in done.stdout
    assert "kid__crash: deny all the same (kid__crash)" in done.stdout
    assert "<4: one>" in done.stdout
    denied = sent_messages(model.requests[-1].json)[-1]
    assert denied == ("tool", "[aish] tool call denied by rule kid__echo (this session)")
    rows = [line.split() for line in done.stdout.splitlines()[-7:]]
    assert ["auto_approve", "kid__*", "(this", "session)"] in rows
    assert ["deny", "kid__echo", "(this", "session)"] in rows


def test_a_glob_says_what_it_does_not_approve(project: Project, model: ModelEndpoint) -> None:
    del model
    project.pipeline("mcp: {servers: {repo: {pack: fs, root: data}}}")
    project.write("data/note.txt", "hello\n")

    done = piped(project, ":approve *__*", ":approve repo__file_delete")

    assert "repo__file_delete: ask all the same (only its exact name approves it)" in done.stdout
    assert done.stdout.endswith("matches 1 of 11 tools\n")


def test_a_rule_by_an_older_name_is_one_about_the_tool(
    project: Project, model: ModelEndpoint
) -> None:
    project.pipeline("mcp: {servers: {repo: {pack: fs, root: data}}}")
    project.write("data/note.txt", "hello\n")
    read = 'CALL repo__file_read {"path": "note.txt"}'

    done = piped(project, ":approve repo__read_file", read, ":deny *__read_file", read)

    assert done.stdout.startswith("auto_approve repo__file_read, for this session\n")
    assert "deny *__file_read, for this session\nmatches 1 of 11 tools\n" in done.stdout
    assert "hello" in done.stdout
    denied = sent_messages(model.requests[-1].json)[-1]
    assert denied == ("tool", "[aish] tool call denied by rule *__file_read (this session)")


def test_a_rule_that_matches_nothing_says_so(scene: Project) -> None:
    done = piped(scene, ":approve nope__*", ":deny nope__x")

    assert done.stdout.count("matches no tool; `:mcp tools` lists them") == 2


def test_denying_local_commands_denies_what_the_person_types_too(scene: Project) -> None:
    done = piped(scene, ":deny shell__*", "!echo printed")

    assert "local commands are denied\n" in done.stdout
    assert "matches no tool" not in done.stdout
    assert "printed" not in done.stdout
    assert "denied by rule shell__*" in done.stderr


# --- :save -----------------------------------------------------------------------------------


def test_a_saved_conversation_replaces_nothing_but_an_older_one_of_its_session(
    scene: Project,
) -> None:
    scene.write("mine.md", "mine")
    (scene.folder / "link.md").symlink_to("nowhere.md")
    os.mkfifo(scene.folder / "pipe.md")

    taken = (":save mine.md", ":save link.md", ":save pipe.md", ":save data", ":save /dev/tty")
    lines = (*taken, "one", ":save new.md", "two", ":save new.md", ":save no/such/folder.md")
    done = piped(scene, *lines)
    again = piped(scene, ":save new.md", args=("--resume",))
    other = piped(scene, ":save new.md")

    assert done.stderr.count("already exists\n  hint: use another name, or delete it") == 4
    assert "cannot write it: No such file or directory" in done.stderr
    assert (scene.folder / "mine.md").read_text() == "mine"
    saved = (scene.folder / "new.md").read_text()
    assert saved.startswith("# ")
    assert "one" in saved
    assert "two" in saved
    assert "the conversation is in new.md" in again.stdout
    assert (other.code, "`new.md` already exists" in other.stderr) == (1, True)


# --- :run ------------------------------------------------------------------------------------


def test_a_pipeline_runs_in_a_session_with_a_folder_of_its_own(
    scene: Project, model: ModelEndpoint
) -> None:
    scene.pipeline("inputs: {who: {type: string}}\nprompt: hello {{ inputs.who }}", "my run.yaml")

    done = piped(scene, "a question", ":run 'my run.yaml' who='Bob B'", "another")

    assert done.stdout == "<2: a question>\n<1: hello Bob B>\n<4: another>\n"
    assert len(scene.run_folders) == 1
    assert sent_messages(model.requests[2].json)[0] == ("user", "a question"), (
        "the run is no part of it"
    )
    assert re.search(r"\bok, 1 step, 7 in / 3 out tokens,.*/runs/", done.stderr)
    assert done.code == 0, done.stderr


def test_inputs_of_a_pipeline_are_told_as_they_are_typed_here(scene: Project) -> None:
    scene.pipeline("inputs: {who: {type: string}}\nprompt: hello {{ inputs.who }}", "run.yaml")

    done = piped(scene, ":run run.yaml", ":run run.yaml whom=x", ":run run.yaml x")

    assert "run.yaml: the input is missing: `who`" in done.stderr
    assert "hint: `:run run.yaml who=…`" in done.stderr
    assert "unknown input `whom`, did you mean `who`" in done.stderr
    assert "`x` is not NAME=VALUE" in done.stderr
    # As an option: the name of a run may well have it, too.
    assert re.search(r"(?<!\w)-i\b", done.stderr) is None


@pytest.mark.slow(reason="runs pipelines in a session")
def test_what_the_session_denies_is_denied_in_its_pipelines(scene: Project) -> None:
    scene.pipeline(
        """
        mcp: {servers: {repo: {pack: fs, root: data}}, auto_approve: ["repo__*"]}
        steps:
          - {id: read, call: repo__file_read, with: {path: note.txt}}
        """,
        "run.yaml",
    )

    allowed = piped(scene, ":run run.yaml")
    denied = piped(scene, ":deny repo__file_*", ":run run.yaml")

    assert "hello" in allowed.stdout
    assert allowed.code == 0
    assert "hello" not in denied.stdout
    assert denied.code == 3
    assert "denied by rule repo__file_*" in denied.stderr


def test_what_a_pipeline_uses_counts_for_the_session_and_for_what_goes_on_with_it(
    scene: Project, model: ModelEndpoint
) -> None:
    price = "price: {input: 100, output: 1000}"
    priced = f'models: {{m: {{base_url: "${{MODEL_URL}}", model: x, {price}}}}}'
    scene.pipeline(priced)
    scene.pipeline(
        f"""
        {priced}
        mcp: {{servers: {{repo: {{pack: fs, root: data}}}}, auto_approve: ["repo__*"]}}
        steps:
          - {{id: read, call: repo__file_read, with: {{path: note.txt}}}}
          - {{id: a, prompt: say first}}
          - {{id: b, prompt: "{{{{ steps.a.text }}}}"}}
        """,
        "run.yaml",
    )

    done = piped(scene, "a question", ":run run.yaml", ":cost", args=("--max-turns", "2"))

    assert done.code == 4
    assert "the limit of 2 turns is reached (in the session that runs it)" in done.stderr
    assert "2 turns, 14 tokens in, 6 out, cost $0.0074" in done.stdout
    spent = of_type(session_journal(scene), "pipeline.spent")
    assert sorted((one["turns"], one["tool_calls"]) for one in spent) == [(0, 1), (1, 0)]
    (folder,) = scene.run_folders
    assert {one["folder"] for one in spent} == {f".aish/runs/{folder.name}"}
    assert len(model.requests) == 2

    again = piped(scene, ":cost", ":run run.yaml", args=("--resume", "--max-turns", "3"))

    assert again.stdout.startswith("2 turns, 14 tokens in, 6 out, cost $0.0074")
    assert again.code == 4
    assert len(model.requests) == 3


# --- The conversation ------------------------------------------------------------------------


def test_a_summary_takes_the_place_of_the_conversation(
    scene: Project, model: ModelEndpoint
) -> None:
    done = piped(
        scene,
        "first",
        "second",
        'CALL repo__file_read {"path": "note.txt"}',
        ":compact",
        "SAY fourth",
        ":undo",
        ":undo",
        ":context",
    )

    summed = sent_messages(model.requests[-1].json)
    assert [role for role, _ in summed] == ["user", "assistant", "user"]
    assert summed[0][1].startswith("first\n\n[aish] ")
    assert "a summary by model `m`" in summed[0][1]
    assert "summarised: about" in done.stdout
    assert "part of a summary" in done.stderr, "no question is left to take back"
    assert "1 question" in done.stdout.splitlines()[-1]


def test_clear_drops_all_that_was_to_go_out(scene: Project, model: ModelEndpoint) -> None:
    done = piped(
        scene, "old", "!echo printed", ":attach data/note.txt", ":context", ":clear", "new"
    )

    assert "is sent with the next line: data/note.txt, output of 1 local command" in done.stdout
    assert sent_messages(model.requests[-1].json) == [("user", "new")]


def test_questions_are_taken_back_one_after_the_other(scene: Project, model: ModelEndpoint) -> None:
    done = piped(
        scene,
        "one",
        'CALL repo__file_read {"path": "note.txt"}',
        "three",
        ":undo",
        ":undo",
        "two",
        ":undo",
        ":undo",
        ":undo",
        "begin",
    )

    assert sent_messages(model.requests[-2].json) == [
        ("user", "one"),
        ("assistant", "<2: one>"),
        ("user", "two"),
    ]
    assert sent_messages(model.requests[-1].json) == [("user", "begin")]
    assert done.stdout.count("left out, with its answer: ") == 4
    assert "no question in this conversation" in done.stderr


def test_retry_asks_again_with_all_that_went_out(scene: Project, model: ModelEndpoint) -> None:
    done = piped(
        scene,
        "before",
        "!echo printed",
        ":attach data/note.txt",
        "look",
        ":retry",
        ":retry",
        "!echo more",
        "after",
    )

    first, second, third = (sent_messages(one.json) for one in model.requests[1:4])
    assert first == second == third
    assert "printed" in first[-1][1]
    assert "hello" in first[-1][1]
    assert first[-1][1].endswith("look")
    last = sent_messages(model.requests[-1].json)
    assert [role for role, _ in last] == ["user", "assistant", "user", "assistant", "user"]
    assert "printed" not in last[-1][1]
    assert done.code == 0


def test_what_is_given_back_goes_out_before_what_has_come_since(
    scene: Project, model: ModelEndpoint
) -> None:
    scene.write("two.txt", "second file\n")
    first = ["!echo first output", ":attach data/note.txt", "one"]
    second = ["!echo second output", ":attach two.txt", "two"]

    piped(scene, *first, *second, "!echo third", ":undo", ":undo", "all")

    ((_, text),) = sent_messages(model.requests[-1].json)
    parts = ("hello", "second file", "first output", "second output", "third", "all")
    places = [text.index(one) for one in parts]
    assert places == sorted(places)
    assert all(text.count(one) == 1 for one in parts[:2])


def test_retry_after_an_undo_is_about_the_question_that_is_still_there(
    scene: Project, model: ModelEndpoint
) -> None:
    piped(scene, "one", "two", ":undo", ":retry")

    assert sent_messages(model.requests[-1].json) == [("user", "one")]


def test_a_session_that_is_gone_on_with_knows_what_was_asked(
    scene: Project, model: ModelEndpoint
) -> None:
    piped(scene, "one", "!echo printed", "two")
    (folder,) = (scene.folder / ".aish" / "sessions").glob("*Z-*")

    done = piped(scene, ":retry", ":undo", ":undo", "other", args=("--resume", folder.name))

    again, other = (sent_messages(one.json) for one in model.requests[2:])
    assert again == sent_messages(model.requests[1].json)
    assert "printed" in again[-1][1]
    assert [text for role, text in other if role == "user"][-1].endswith("other")
    assert len(other) == 1
    assert done.code == 0, done.stderr


def test_a_question_that_failed_is_asked_again(
    project: Project, model_endpoint: Callable[..., ModelEndpoint]
) -> None:
    endpoint = model_endpoint(
        [json_reply(400, {"error": {"message": "no"}}), text_reply("now it works")]
    )
    project.uses(endpoint)
    project.pipeline("model: m")
    project.write("note.txt", "in a file\n")

    done = piped(project, ":attach note.txt", "a question", ":retry")

    assert done.stdout.endswith("now it works\n")
    first, second = (sent_messages(one.json) for one in endpoint.requests)
    assert first == second
    assert "in a file" in first[0][1]


def test_nobody_can_edit_where_nobody_is(scene: Project, model: ModelEndpoint) -> None:
    done = piped(scene, "one", ":edit", "two")

    assert "it can be edited only at a terminal" in done.stderr
    assert len(sent_messages(model.requests[-1].json)) == 3


# --- :attach ---------------------------------------------------------------------------------


def test_files_resources_and_prompts_go_out_with_the_next_line(
    scene: Project, model: ModelEndpoint
) -> None:
    scene.write("data/with blank.txt", "blank\n")
    scene.write("home/at-home.txt", "home\n")

    done = piped(
        scene,
        ":attach data/with blank.txt",
        ":attach 'data/with blank.txt'",
        ":attach ~/at-home.txt",
        ":attach docs://guide",
        ":attach docs://page/7 server=kid",
        ":attach kid__review code='a b' tone=sharply",
        ":attach",
        "look at it",
        ":attach",
        env={"HOME": str(scene.folder / "home")},
    )

    ((_, text),) = sent_messages(model.requests[-1].json)
    places = [
        text.index(one) for one in ("blank", "home", "# Guide", "page 7", "Review a b, sharply")
    ]
    assert places == sorted(places)
    assert text.endswith("look at it")
    assert done.stdout.count("~/at-home.txt is sent with the next line") == 2
    assert done.stdout.splitlines()[-1].startswith("nothing is attached")
    assert done.code == 0, done.stderr


def test_a_link_is_not_followed_where_it_would_not_be_seen(scene: Project) -> None:
    (scene.folder / "link.txt").symlink_to(scene.folder / "data" / "note.txt")

    done = piped(scene, ":attach link.txt", ":attach")

    assert "`link.txt` is a link" in done.stderr
    assert f"hint: name the file itself, `{scene.folder / 'data' / 'note.txt'}`" in done.stderr
    assert done.stdout.startswith("nothing is attached")


def test_what_is_attached_can_be_dropped(scene: Project, model: ModelEndpoint) -> None:
    done = piped(scene, ":attach data/note.txt", ":attach off", "plain")

    assert "1 attachment dropped" in done.stdout
    assert sent_messages(model.requests[-1].json) == [("user", "plain")]


@pytest.mark.parametrize("vision", [True, False])
def test_a_picture_goes_only_to_a_model_that_sees(
    project: Project, model: ModelEndpoint, *, vision: bool
) -> None:
    sees = "true" if vision else "false"
    project.pipeline(
        f"""
        models: {{m: {{base_url: "${{MODEL_URL}}", model: scripted, vision: {sees}}}}}
        mcp: {{servers: {{kid: {{command: {stdio("--offers")}}}}}}}
        """
    )

    done = piped(project, ":attach docs://logo", "what is it")

    content = model.requests[0].json["messages"][-1]["content"]
    assert isinstance(content, list) is vision
    assert ("gets a note instead of the image" in done.stdout) is not vision
    assert (", 1 picture\n" in done.stdout) is vision


def test_a_file_that_is_too_long_is_not_attached(scene: Project, model: ModelEndpoint) -> None:
    scene.write("data/long.txt", "x" * 200_000)

    done = piped(scene, ":attach data/long.txt", "nothing with it")

    assert "has 200,000 bytes of text" in done.stderr
    assert "hint: shorten it" in done.stderr
    assert sent_messages(model.requests[-1].json) == [("user", "nothing with it")]


@pytest.mark.slow(reason="connects to two servers")
def test_a_resource_of_two_servers_is_named_with_its_server(scene: Project) -> None:
    with http_server("--offers") as url:
        done = piped(
            scene,
            f":mcp connect {url} web",
            ":attach docs://guide",
            ":attach docs://guide server=web",
        )

    assert "`docs://guide` is a resource of several servers: `kid`, `web`" in done.stderr
    assert "hint: `:attach docs://guide server=kid` names one of them" in done.stderr
    assert "docs://guide is sent with the next line" in done.stdout


# --- :norris ---------------------------------------------------------------------------------


def test_norris_needs_a_person(scene: Project, model: ModelEndpoint) -> None:
    done = piped(scene, ":norris on", 'CALL repo__file_exists {"path": "note.txt"}', ":norris")

    decided = [event["verdict"] for event in of_type(_journal(scene), "tool.decided")]
    assert decided == ["ask-no"]
    assert "`:norris on` needs a terminal, where it can be stopped" in done.stderr
    assert "norris is off\n" in done.stdout
    assert done.code == 1
    assert model.requests


def _journal(project: Project) -> list[Mapping[str, JsonValue]]:
    folder = max((project.folder / ".aish" / "sessions").glob("*Z-*"))
    with read_journal(folder / "events.jsonl") as reading:
        return list(reading)


# --- :cost -----------------------------------------------------------------------------------


def test_what_it_cost_is_summed_over_models_and_unknown_where_one_has_no_price(
    scene: Project,
) -> None:
    known = piped(scene, ":model other", "one", ":cost")
    unknown = piped(scene, "one", ":model other", "two", ":cost", ":log")

    assert "1 turn, 7 tokens in, 3 out, cost $0.000013" in known.stdout
    assert "2 turns, 14 tokens in, 6 out, cost unknown: a model has no price" in unknown.stdout
    assert (scene.folder / unknown.stdout.splitlines()[-1]).is_file()
