"""Packs of other distributions, from the command line: run, lock, record, serve, and bad ones."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from distribution import DICE, NOISY, install
from docs_pages import blocks
from e2e_project import REPO, ModelEndpoints, Project, of_type
from model_endpoint import text_reply, tool_reply
from served_hub import ServedHub, text_of

GUIDE = REPO / "docs" / "reference" / "tool-packs.md"
OPTIONS = "{dice: {sides: 20, log: rolls.txt, wait: 1m30s}}"
CALL = f"""
mcp:
  servers: {{d: {{pack: dice, options: {OPTIONS}}}}}
  auto_approve: [d__dice_sides]
steps: [{{id: ask, call: d__dice_sides}}]
outputs: {{found: "{{{{ steps.ask.output }}}}"}}
"""

pytestmark = pytest.mark.real_process  # what is installed is known when an interpreter starts


def dice(project: Project, version: str = "1.2", text: str = DICE) -> Path:
    """Install `acme-dice`, which offers the pack `dice`; its module."""
    modules = {"acme_dice.py": text}
    site = install(
        project.folder / version, "acme-dice", version, {"dice": "acme_dice:PACK"}, modules
    )
    project.aish.env["PYTHONPATH"] = str(site)
    return site / "acme_dice.py"


def test_a_pack_of_a_distribution_runs_with_its_options(project: Project) -> None:
    dice(project)
    project.pipeline(CALL)

    found = project.result()

    log = str(project.folder / "rolls.txt")
    assert found["outputs"]["found"] == {"sides": 20, "log": log, "wait": 90.0}
    notices = [one["text"] for one in of_type(project.journal, "notice")]
    assert "pack `dice`: opened with 20 sides" in notices


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "place", "message"),
    [
        ("{sids: 20}", "dice.sids", "unknown key `sids`\n.*did you mean `sides`"),
        ("{sides: many}", "dice.sides", "a whole number is expected here, and this is text"),
        ("{sides: 1}", "dice.sides", "a die has two sides or more"),
        ("{shape: bal}", "dice.shape", ".*\n.*did you mean `ball`"),
        ("{table: {felt: red}}", "dice.table", "the key `size` is missing"),
        ("{sides: 77}", "dice", "KeyError: 'no die has 77'"),
        ("{wait: soon}", "dice.wait", "`soon` is not a duration such as"),
        ("{label: '${X}'}", "dice.label", "variables are not read in the options of a pack"),
        ("{token_env: s-ecret}", "dice.token_env", "this is not a variable's name"),
    ],
)
def test_options_are_checked_with_the_file(
    project: Project, options: str, place: str, message: str
) -> None:
    dice(project)
    project.pipeline(
        f"mcp: {{servers: {{d: {{pack: dice, options: {{dice: {options}}}}}}}}}\nprompt: Hi\n"
    )

    done = project.aish("validate", "p.yaml", env={"MODEL_URL": "http://127.0.0.1:9/v1"})

    assert done.code == 2
    line = next(one for one in done.stderr.splitlines() if one.startswith("error: "))
    assert "p.yaml:3:" in line
    assert f"mcp.servers.d.options.{place}: " in line
    shown = "\n".join(one for one in done.stderr.splitlines() if " | " not in one)
    assert re.search(message, shown), done.stderr
    assert "s-ecret" not in line


def test_what_a_pack_prints_is_not_among_the_results(project: Project) -> None:
    modules = {"acme_noise.py": NOISY}
    site = install(project.folder, "acme-noise", "1", {"noise": "acme_noise:PACK"}, modules)
    project.aish.env["PYTHONPATH"] = str(site)
    project.pipeline(
        """
        mcp: {servers: {n: {pack: noise}}, auto_approve: [n__noise_make]}
        call: n__noise_make
        with: {text: x}
        """
    )
    run = project.run("--format", "jsonl")
    called = project.aish("call", "p.yaml", "n__noise_make", "text=y")

    assert run.code == called.code == 0, run.stderr
    events = [json.loads(line)["type"] for line in run.stdout.splitlines()]
    assert events[-1] == "run.finished"
    assert called.stdout == "heard y\n"
    assert "\ncall x\nkept x\n" in run.stderr
    assert "call y\nkept y\n" in called.stderr


def test_marks_of_its_own_approve_nothing_until_the_file_trusts_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    dice(project)
    thrown = [("c1", "d__dice_sides", "{}"), ("c2", "d__dice_throw", '{"count": 2}')]
    verdicts: dict[str, list[str]] = {}
    for trust in ("false", "true"):
        endpoint = model_endpoint([tool_reply(thrown), text_reply("done")])
        project.uses(endpoint)
        project.pipeline(
            f"""
            mcp: {{servers: {{d: {{pack: dice, trust: {trust}}}}}, auto_approve: ["d__*"]}}
            on_denied: continue
            prompt: Throw
            """
        )
        done = project.run("--format", "jsonl")
        events = [json.loads(line) for line in done.stdout.splitlines()]
        verdicts[trust] = [one["verdict"] for one in events if one["type"] == "tool.decided"]

    assert verdicts == {"false": ["auto", "ask-no"], "true": ["auto", "auto"]}


def test_a_lock_pins_the_definitions_and_the_distribution(project: Project) -> None:
    dice(project)
    project.pipeline(CALL)
    assert project.aish("lock", "p.yaml").code == 0
    assert project.run().code == 0
    lock = json.loads((project.folder / "p.lock.json").read_text())
    assert lock["servers"]["d"]["pack"][:2] == ["dice", "acme-dice==1.2"]

    dice(project, "1.3")
    newer = project.run()
    dice(project, "1.2", DICE.replace("Tells how many", "Says how many"))
    changed = project.run()

    assert newer.code == changed.code == 7
    assert "acme-dice==1.3" in newer.stderr
    assert "d__dice_sides" in changed.stderr


def test_a_recorded_run_replays_the_same_without_code_of_the_pack(project: Project) -> None:
    module = dice(project)
    project.pipeline(CALL)
    recorded = project.result("--record", "p.cassette.yaml")
    module.write_text("raise RuntimeError('never imported')\n")
    project.pipeline(CALL.replace(f", options: {OPTIONS}", ""))

    replayed = project.result("--replay", "p.cassette.yaml")

    assert replayed["outputs"] == recorded["outputs"]


def test_the_hub_serves_it(project: Project) -> None:
    dice(project)
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.pipeline(CALL.partition("steps:")[0], name="hub.yaml")
    with ServedHub(project, "hub.yaml") as hub:
        hub.begin()
        names = [tool["name"] for tool in hub.tools()]
        sides = hub.call("d__dice_sides", {})
        failed = hub.call("d__dice_sides", {"name": "coin"})
        hub.end_input()
        assert hub.finish() == 0

    assert "d__dice_sides" in names
    assert text_of(sides).startswith("20 sides")
    assert failed["isError"] is True
    assert text_of(failed) == "ERROR: there is no die `coin`"


def test_tools_call_and_doctor_know_it(project: Project) -> None:
    module = dice(project)
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.pipeline(CALL)

    tools = project.aish("tools", "p.yaml")
    call = project.aish("call", "p.yaml", "d__dice_sides", "name=coin")
    good = project.aish("doctor")
    module.write_text("import nowhere\n")
    bad = project.aish("doctor", "p.yaml")

    assert "d__dice_sides  auto   Tells how many sides a die has." in tools.stdout
    assert call.code == 1
    assert "there is no die `coin`" in call.stderr
    assert "ok    pack `dice`: 3 tools, of acme-dice==1.2" in good.stdout
    assert bad.code == 5
    assert "bad   pack `dice`: the pack `dice` (`acme_dice:PACK` of acme-dice 1.2)" in bad.stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere\n", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("PACK = 1\n", "is declared as int, and not as a `Pack`"),
        (DICE.replace("notice(f", "1 / 0\n    notice(f"), "cannot be opened: ZeroDivisionError"),
    ],
    ids=["import", "kind", "open"],
)
def test_a_pack_that_cannot_be_loaded_is_a_server_that_does_not_start(
    project: Project, text: str, message: str
) -> None:
    dice(project, text=text)
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.pipeline(CALL)
    valid = project.aish("validate", "p.yaml")
    needed = project.run()
    recorded = project.run("--record", "p.cassette.yaml")
    project.pipeline(
        CALL.replace("pack: dice", "pack: dice, required: false")
        .replace("call: d__dice_sides", "run: [echo, hi]")
        .replace("[d__dice_sides]", "[shell__run]")
        .replace("output }}", "text }}")
    )
    optional = project.run()

    assert valid.code == 0
    assert needed.code == recorded.code == 5
    assert message in needed.stderr
    assert "update `acme-dice`, or remove the pack from the file" in needed.stderr
    assert optional.code == 0
    assert message in optional.stderr


def test_a_pack_that_is_not_installed_is_named_with_what_brings_it(project: Project) -> None:
    project.pipeline(CALL)

    done = project.aish("validate", "p.yaml", env={"MODEL_URL": "http://127.0.0.1:9/v1"})

    assert done.code == 2
    assert "mcp.servers.d.pack: unknown pack `dice`" in done.stderr
    assert (
        "`pip install` the distribution with the entry point `dice` in the group `aish.packs`"
        in done.stderr
    )


def test_it_has_a_server_of_its_own_and_its_name_for_itself(project: Project) -> None:
    site = dice(project).parent
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.pipeline("mcp: {servers: {d: {pack: [fs, dice], root: .}}}\nprompt: Hi\n")
    mixed = project.aish("validate", "p.yaml")
    install(site.parent, "other-dice", "3", {"dice": "acme_dice:PACK", "fs": "acme_dice:PACK"}, {})
    project.pipeline("mcp: {servers: {d: {pack: dice}}}\nprompt: Hi\n")
    twice = project.aish("validate", "p.yaml")
    doctor = project.aish("doctor")

    assert mixed.code == twice.code == 2
    assert "the pack `dice` is not built in, and needs a server of its own" in mixed.stderr
    assert "is offered by `acme-dice==1.2` and `other-dice==3`" in twice.stderr.replace(
        "`other-dice==3` and `acme-dice==1.2`", "`acme-dice==1.2` and `other-dice==3`"
    )
    assert "other-dice==3 offers a pack with the name of a built-in one" in doctor.stdout


def test_a_built_in_pack_is_used_and_that_is_said_where_a_distribution_has_its_name(
    project: Project,
) -> None:
    site = install(project.folder, "other-fs", "3", {"fs": "nowhere:PACK"}, {})
    project.aish.env["PYTHONPATH"] = str(site)
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.pipeline("mcp: {servers: {f: {pack: fs, root: .}}}\nprompt: Hi\n")
    told = (
        "mcp.servers.f.pack: the pack `fs` is the built-in one; that of `other-fs==3` is not used"
    )
    commands = (
        ("validate", "--strict"),
        ("plan", "--no-key-check"),
        ("plan", "--offline"),
        ("tools",),
    )
    for command, *words in commands:
        done = project.aish(command, "p.yaml", *words)
        assert done.code == 0, done.stderr
        lines = [line for line in done.stderr.splitlines() if told in line]
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("warning: p.yaml:")


def test_the_pack_of_the_guide_does_what_the_guide_says(project: Project) -> None:
    page = list(blocks(REPO / "docs" / "reference" / "tool-packs.md"))
    files = {one.options["file"]: one.text for one in page if "file" in one.options}
    (shown,) = [one for one in page if one.options.get("output") == "dice.yaml"]
    about = tomllib.loads(files["acme-dice/pyproject.toml"])["project"]
    site = install(
        project.folder,
        about["name"],
        about["version"],
        about["entry-points"]["aish.packs"],
        {"acme_dice.py": files["acme-dice/acme_dice.py"]},
    )
    project.aish.env["PYTHONPATH"] = str(site)
    project.write("dice.yaml", files["dice.yaml"])

    done = project.aish("run", "dice.yaml", "-q")
    few = project.aish("validate", "dice.yaml", "--set", "mcp.servers.game.options.dice.sides=1")

    command, *wanted = shown.lines
    assert command == "$ aish run dice.yaml -q"
    assert done.stdout.splitlines() == wanted, done.stderr
    assert "mcp.servers.game.options.dice.sides: a die has two sides or more" in few.stderr
