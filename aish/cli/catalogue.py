"""The commands, one row each. Modules are imported on use."""

from collections.abc import Sequence

from aish.core.frozen import frozen


@frozen
class Command:
    """`module` has a function `command`, whose docstring begins with the summary.

    `group` is the parent of a sub-command.
    """

    name: str
    module: str
    summary: str
    group: str | None = None
    hidden: bool = False


COMMANDS: tuple[Command, ...] = (
    Command("run", "aish.cli.commands.run", "Execute a pipeline."),
    Command(
        "shell",
        "aish.cli.commands.shell",
        "Talk with the models of a pipeline file, at a terminal.",
    ),
    Command("record", "aish.cli.commands.record", "Run a pipeline live and record it."),
    Command(
        "validate", "aish.cli.commands.validate", "Check pipeline files; no network, and no keys."
    ),
    Command(
        "check",
        "aish.cli.commands.validate",
        "Check pipeline files; no network, and no keys.",
        hidden=True,
    ),
    Command("plan", "aish.cli.commands.plan", "Show what would run and what would be asked."),
    Command(
        "test",
        "aish.cli.commands.test",
        "Run the `tests:` of pipelines on their cassettes, offline.",
    ),
    Command(
        "tools",
        "aish.cli.commands.tools",
        "List the tools a pipeline sees, and what its rules say of each.",
    ),
    Command("call", "aish.cli.commands.call", "Call one tool directly, under the file's rules."),
    Command(
        "serve",
        "aish.cli.commands.serve",
        "Serve tools to MCP clients, under the file's rules.",
    ),
    Command("approve", "aish.cli.commands.approve", "Answer a tool call that waits for approval."),
    Command("apply", "aish.cli.commands.apply", "Execute staged calls after review, each once."),
    Command(
        "lock", "aish.cli.commands.lock", "Pin tools, servers, models and prompts in a lock file."
    ),
    Command(
        "explain",
        "aish.cli.commands.policy_explain",
        "Say which rule decides a tool call, and why the others do not.",
        group="policy",
    ),
    Command(
        "suggest",
        "aish.cli.commands.policy_suggest",
        "Print the narrowest rules for the calls that were made.",
        group="policy",
    ),
    Command(
        "show",
        "aish.cli.commands.cassette_show",
        "Print a cassette as the conversation that it is.",
        group="cassette",
    ),
    Command(
        "scrub",
        "aish.cli.commands.cassette_scrub",
        "Take secrets out of a cassette.",
        group="cassette",
    ),
    Command(
        "check",
        "aish.cli.commands.cassette_check",
        "Check cassettes for damage and secrets.",
        group="cassette",
    ),
    Command(
        "diff",
        "aish.cli.commands.cassette_diff",
        "Say what changed between two runs.",
        group="cassette",
    ),
    Command(
        "open",
        "aish.cli.commands.control_open",
        "Print a link to the page of a live run.",
        group="control",
    ),
    Command(
        "pending",
        "aish.cli.commands.control_pending",
        "Serve the questions of paused runs until they are answered.",
        group="control",
    ),
    Command(
        "list",
        "aish.cli.commands.runs_list",
        "List the runs that were kept, and how each ended; the newest first.",
        group="runs",
    ),
    Command(
        "pending",
        "aish.cli.commands.runs_pending",
        "List the tool calls that wait for an answer.",
        group="runs",
    ),
    Command(
        "show",
        "aish.cli.commands.runs_show",
        "Print the log, the result, the messages or the tool calls of a past run, from its "
        "journal.",
        group="runs",
    ),
    Command(
        "report",
        "aish.cli.commands.runs_report",
        "Make reports of a past run, from its journal: an HTML page in its folder, or what is"
        " named.",
        group="runs",
    ),
    Command(
        "export",
        "aish.cli.commands.runs_export",
        "Write a past run's messages, tool calls and commands to a folder.",
        group="runs",
    ),
    Command(
        "merge",
        "aish.cli.commands.runs_merge",
        "Join the results of all shards of a run, if they are all there.",
        group="runs",
    ),
    Command(
        "clean",
        "aish.cli.commands.runs_clean",
        "Delete old run folders, never that of a live run.",
        group="runs",
    ),
    Command(
        "schema",
        "aish.cli.commands.schema",
        "Print a JSON Schema: pipeline, events, result, lock, staged.",
    ),
    Command("init", "aish.cli.commands.init", "Write a working starter pipeline."),
    Command(
        "doctor",
        "aish.cli.commands.doctor",
        "Check the environment: packs, sandbox, keys, endpoints, servers.",
    ),
)

GROUPS = {
    "policy": "Explain approval decisions, suggest rules from a run.",
    "cassette": "Work with cassettes: show, compare, check and scrub them.",
    "control": "Open the page of a run that listens.",
    "runs": "List, show, export, merge and delete past runs.",
}


def find_command(argv: Sequence[str]) -> tuple[Command | None, Sequence[str]]:
    """The command at the beginning of the words, and the words after it."""
    group = argv[0] if argv and argv[0] in GROUPS else None
    named = argv if group is None else argv[1:]
    for row in COMMANDS:
        if named and (row.name, row.group) == (named[0], group):
            return row, named[1:]
    return None, argv
