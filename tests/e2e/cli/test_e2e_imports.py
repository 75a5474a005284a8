"""What a run imports before its first request; its speed rests on that (docs/performance.md)."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import text_reply
from wire_replies import answer

from aish.core.wires import WIRES
from aish.packs.catalogue import PACKS

HEAVY = {"jsonschema", "jinja2", "rich", "vcr", "pydantic", "importlib.metadata", "platformdirs"}
HEAVY |= {"httpcore", "h11", "typer", "starlette", "httptools"}


# What prepares and writes a recording, and what people are shown of one.
LATE = {
    "inspect.conversation",
    "format.json_body",
    "format.layout",
    "format.parts",
    "replay.mismatch",
    "format.file_reader",
    "record.redact",
    "replay.renumber",
    "record.secret_scan",
    "format.stream_text",
    "inspect.trajectory",
}

_AT_END = """
import sys
# Development tools bring `click`, and with it httpx imports rich; a user has none.
sys.modules["click"] = None
from aish.cli.main import run_command_line
code = run_command_line({arguments!r})
print(*sys.modules, sep="\\n", file=sys.stderr)
sys.exit(code)
"""
_AT_FIRST_BYTE = """
import sys
sys.modules["click"] = None
from aish.cli.main import run_command_line
class Watched:
    told = False
    def __getattr__(self, name):
        return getattr(sys.__stdout__.buffer, name)
    def write(self, data):
        if data and not self.told:
            self.told = True
            print(*sys.modules, sep="\\n", file=sys.stderr)
        return sys.__stdout__.buffer.write(data)
class Stdout:
    buffer = Watched()
    def __getattr__(self, name):
        return getattr(sys.__stdout__, name)
sys.stdout = Stdout()
sys.exit(run_command_line({arguments!r}))
"""


_WHOLE_PROGRAM = """
import sys
from aish.__main__ import main
sys.argv = ["aish", *{arguments!r}]
try:
    main()
finally:
    print(*sys.modules, sep="\\n", file=sys.stderr)
"""


def imported(project: Project, *arguments: str, script: str = _AT_END, code: int = 0) -> set[str]:
    """The modules that `aish ARGUMENTS` had imported when it ended, or when `script` says."""
    script = script.format(arguments=list(arguments))
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.folder,
        env=project.aish.env,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, done.stderr
    return set(done.stderr.splitlines())


def test_what_other_packages_install_makes_no_run_slower(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    """With click, which other packages need, httpx would import a command line of its own."""
    project.uses(model_endpoint([text_reply("Hello.")]))
    project.pipeline("prompt: Hello")

    found = imported(project, "run", "p.yaml", script=_WHOLE_PROGRAM)

    assert find_spec("click") is not None
    assert "httpx" in found
    assert found.isdisjoint({"click", "pygments", "rich"})


def test_a_simple_run_imports_no_heavy_library_and_no_room_it_does_not_use(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline(
        """
        prompt: "Say hello to {{ inputs.name }}"
        inputs: {name: {type: string, default: you}}
        """
    )

    modules = imported(project, "run", "p.yaml")

    assert modules & HEAVY == set()
    assert not [
        name
        for name in modules
        if name.startswith(
            ("aish.mcp.", "aish.packs.framework.server", "aish.packs.fs", "aish.cassettes", "yaml")
        )
    ]
    # What only a batch, a report, a resumed or a staged run, a cluster or a price needs.
    assert not [
        name
        for name in modules
        if name.startswith(("aish.items", "aish.reports", "aish.features.cluster", "genai_prices"))
        or "net.listen" in name
        or "features.control" in name
    ]
    others = {"engine.execution.foreach", "engine.resume_state"}
    others |= {"engine.execution.sub_pipeline", "engine.steps.expect", "engine.expectations.check"}
    others |= {"features.resume.scan", "features.staging.queue"}
    assert not modules & {f"aish.{name}" for name in others}
    assert not modules & {"aish.output.items.table", "aish.output.progress_panel"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("api", list(WIRES))
def test_a_run_imports_its_own_wire_alone_and_neither_batches_nor_logins(
    project: Project, model_endpoint: ModelEndpoints, api: str
) -> None:
    project.uses(model_endpoint([answer(api, "Hello.")]))
    project.pipeline(
        f"""
        models: {{m: {{api: {api}, base_url: "${{MODEL_URL}}", model: any}}}}
        prompt: Say hello
        """
    )

    modules = imported(project, "run", "p.yaml")

    apart = {*WIRES, "batches"} - {api}
    folders = tuple(f"aish.wire.{name}." for name in apart)
    assert f"aish.wire.{api}.decode" in modules
    assert not [name for name in modules if name.startswith(folders)]
    # The settings of a login are a part of every file that is read.
    logins = {name for name in modules if name.startswith("aish.net.oauth.")}
    assert logins <= {"aish.net.oauth.settings"}
    assert not modules & {"aish.models.batch_delivery", "anthropic", "openai", "joserfc", "authlib"}
    assert ("aish.models.turn_pause" in modules) == WIRES[api].pauses


def test_a_run_that_listens_imports_http_when_somebody_connects(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello\n")

    modules = imported(project, "run", "p.yaml", "--control", "127.0.0.1:0")

    assert "aish.net.listen.server" in modules
    # Its figures are folded as the run goes.
    assert "aish.features.control.run_state" in modules
    assert not modules & {"aish.features.control.routes", "starlette", "httptools"}


def test_a_session_that_does_not_listen_imports_nothing_of_that(project: Project) -> None:
    project.pipeline("models: {small: {embedded: smollm2}}\n")

    modules = imported(project, "shell", "p.yaml", "--ephemeral")

    assert "aish.shell.bootstrap" in modules
    assert not [name for name in modules if "net.listen" in name or "features.control" in name]
    assert "aish.shell.control_commands" not in modules


def test_a_run_with_one_server_imports_the_transport_of_that_server_alone(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}}}
        prompt: Say hello
        tools: ["s__*"]
        """
    )

    modules = imported(project, "run", "p.yaml")

    transports = {name for name in modules if name.startswith("aish.mcp.transports.")}
    assert transports == {
        f"aish.mcp.transports.{name}"
        for name in ("factory", "pending_requests", "settings", "stdio", "transport")
    }
    # What only tools of ours, or the servers of a session, need.
    assert "aish.packs.framework.server" not in modules
    assert "aish.mcp.client.dynamic_registry" not in modules


def test_a_run_without_items_draws_on_a_terminal_without_importing_rich(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    project.aish.env["FORCE_COLOR"] = "1"

    modules = imported(project, "run", "p.yaml")

    assert "aish.output.presenter" in modules
    assert modules & {*HEAVY, "markdown_it", "aish.output.progress_panel"} == set()


@pytest.mark.parametrize(
    "mcp",
    ["", 'mcp: {servers: {repo: {pack: [fs, edit], root: .}}, auto_approve: ["repo__file_*"]}'],
    ids=["without servers", "with packs and a wildcard"],
)
def test_validating_imports_neither_a_network_library_nor_a_schema_engine(
    project: Project, mcp: str
) -> None:
    project.pipeline(f"prompt: Say hello\nmodels: {{m: {{embedded: smollm2}}}}\n{mcp}")

    modules = imported(project, "validate", "p.yaml")

    # A file is checked without an event loop, a socket or a child.
    assert modules & {*HEAVY, "httpx", "anyio", "asyncio", "socket", "ssl"} == set()
    assert not [name for name in modules if name.startswith("aish.packs.fs")]


def test_a_recording_imports_what_writes_it_only_after_its_first_byte(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Hello."), text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    arguments = ("run", "p.yaml", "--stream", "--quiet")
    plain = imported(project, *arguments, script=_AT_FIRST_BYTE)

    recording = imported(project, *arguments, "--record", "c.yaml", script=_AT_FIRST_BYTE)

    more = recording - plain
    assert "aish.cassettes.record.recorder" in more
    assert more & {*HEAVY, *(f"aish.cassettes.{name}" for name in LATE)} == set()
    assert [name for name in more if not name.startswith("aish.")] == []


def test_a_recording_and_a_replay_import_nothing_that_only_a_comparison_needs(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")

    recording = imported(project, "run", "p.yaml", "--record", "c.yaml")
    replay = imported(project, "run", "p.yaml", "--replay", "c.yaml")

    for modules in (recording, replay):
        assert modules & {*HEAVY, "jsonschema", "aish.features.recording.compare"} == set()
        assert "aish.cassettes.inspect.trajectory" not in modules
        assert "aish.cassettes.inspect.conversation" not in modules
    # A replay writes nothing, and one without a miss explains none.
    assert (
        replay
        & {
            "aish.cassettes.record.secret_scan",
            "aish.cassettes.replay.mismatch",
            "aish.cassettes.scrub",
        }
        == set()
    )


def test_plain_words_are_read_without_the_parser_of_the_command_line(project: Project) -> None:
    project.pipeline("""
        prompt: Say hello to {{ inputs.name }}
        models: {small: {embedded: smollm2}}
        inputs: {name: {type: string, default: you}}
        mcp: {servers: {repo: {pack: [fs], root: .}}}
    """)
    for line in (
        "validate p.yaml --set inputs.name.default=x --format=json --strict",
        "plan p.yaml --offline --format json",
        "call p.yaml repo__dir_list path=. --allow repo__* -v",
        "shell p.yaml --quiet --ephemeral",
        "runs list",
    ):
        assert "typer" not in imported(project, *line.split()), line
    assert "typer" not in imported(project, "test", ".", "-n", "2", code=2)


@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 0), ([], 2), (["rum"], 2), (["runs", "--help"], 0)]
)
def test_help_and_unknown_commands_import_no_command(
    project: Project, words: list[str], code: int
) -> None:
    modules = imported(project, *words, code=code)

    assert "aish.cli.typer_parser" in modules
    assert [name for name in modules if name.startswith("aish.cli.commands.")] == []
    rooms = {name.split(".")[1] for name in modules if name.startswith("aish.")}
    assert rooms <= {"cli", "core", "system"}


PARSERS = {
    "tree_sitter",
    "tree_sitter_python",
    "tree_sitter_c",
    "tree_sitter_cpp",
    "pygit2",
}
PARSERS |= {"html_to_markdown", "httpcore", "ast", "tokenize", "difflib"}
"""What packs use in a child process, or when a tool is called."""

LIGHT = {"aish.packs", "aish.packs.catalogue"}
"""What is known of packs without loading one."""


def test_listing_the_tools_of_all_packs_imports_little_more_than_listing_none(
    project: Project,
) -> None:
    packs = f"repo: {{pack: [{', '.join(PACKS)}], root: .}}"
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:1/v1"
    project.pipeline(f"mcp: {{servers: {{s: {{command: {stdio()}}}}}}}\nprompt: Go on\n")
    project.pipeline(f"mcp: {{servers: {{{packs}}}}}\nprompt: Go on\n", name="packs.yaml")

    few = imported(project, "tools", "p.yaml", "--format", "json")
    more = imported(project, "tools", "packs.yaml", "--format", "json") - few

    assert not {name.partition(".")[0] for name in more} & PARSERS
    ours = {name for name in more if name.startswith("aish.")}
    assert len(ours) <= MOST_OF_OURS
    assert len(more - ours) <= MOST_OF_OTHERS


# Most packs have a module of options beside their own.
MOST_OF_OURS = 6 * len(PACKS)
MOST_OF_OTHERS = 25
"""Modules that all packs together add: each is paid for by every run that names one."""


@pytest.mark.requirement("K87")
@pytest.mark.parametrize("arguments", [("run", "p.yaml"), ("validate", "p.yaml"), ("--version",)])
def test_what_names_no_pack_imports_none(
    project: Project, model_endpoint: ModelEndpoints, arguments: tuple[str, ...]
) -> None:
    project.uses(model_endpoint([text_reply("Hello.")]))
    project.pipeline(f"mcp: {{servers: {{s: {{command: {stdio()}}}}}}}\nprompt: Say hello\n")

    modules = imported(project, *arguments)

    assert {name for name in modules if name.startswith("aish.packs")} <= LIGHT
    assert not modules & (PARSERS - {"ast", "tokenize", "difflib"})
