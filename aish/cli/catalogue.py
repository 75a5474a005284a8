"""The commands, one row each. Modules are imported on use."""

from collections.abc import Iterator, Sequence

from aish.core.frozen import frozen


@frozen
class CommandEntry:
    """`module` has a function `command`, whose docstring begins with the summary.

    `group` is the parent of a sub-command.
    """

    name: str
    module: str
    summary: str
    group: str | None = None
    hidden: bool = False


_SUMMARIES = {
    "run": "Execute a pipeline.",
    "shell": "Talk with the models of a pipeline file, at a terminal.",
    "record": "Run a pipeline live and record it.",
    "validate": "Check pipeline files; no network, and no keys.",
    "plan": "Show what would run and what would be asked.",
    "test": "Run the `tests:` of pipelines on their cassettes, offline.",
    "tools": "List the tools of a pipeline, and what its rules say of each.",
    "call": "Call one tool directly, under the file's rules.",
    "login": "Log in at servers of a file, in a browser.",
    "logout": "Forget logins that `aish login` made.",
    "serve": "Serve tools to MCP clients, under the file's rules.",
    "approve": "Answer a tool call that waits for approval.",
    "apply": "Execute staged calls after review, each once.",
    "fetch": "Fetch the servers that `npx` and `uvx` would fetch.",
    "lock": "Pin tools, servers, models and prompts in a lock file.",
    "policy explain": "Say which rule decides a tool call, and why the others do not.",
    "policy suggest": "Print the narrowest rules for the calls that were made.",
    "cassette show": "Print a cassette as a conversation.",
    "cassette scrub": "Remove secrets from a cassette.",
    "cassette check": "Check cassettes for damage and secrets.",
    "cassette diff": "Compare the cassettes of two runs.",
    "control open": "Print a link to the page of a live run.",
    "control pending": "Serve the questions of paused runs until they are answered.",
    "runs list": "List the runs that were kept, and how each ended; the newest first.",
    "runs pending": "List the tool calls that wait for an answer, and open batches.",
    "runs show": "Print the log, the result, the messages or the tool calls of a past run, from "
    "its journal.",
    "runs report": "Make reports of a past run, from its journal: an HTML page in its folder, "
    "or what is named.",
    "runs open": "Write the HTML page of a past run into its folder, and open it in a browser.",
    "runs export": "Write a past run's messages, tool calls and commands to a folder.",
    "runs merge": "Join the results of all shards of a run, if they are all there.",
    "runs clean": "Delete old run folders, never that of a live run.",
    "schema": "Print a JSON Schema: pipeline, events, result, lock, staged.",
    "init": "Write a working starter pipeline.",
    "doctor": "Check the environment: packs, sandbox, keys, endpoints, servers.",
}


def _rows() -> Iterator[CommandEntry]:
    for words, summary in _SUMMARIES.items():
        group, _, name = words.rpartition(" ")
        module = f"aish.cli.commands.{words.replace(' ', '_')}"
        yield CommandEntry(name, module, summary, group or None)
        if words == "validate":
            yield CommandEntry("check", module, summary, hidden=True)


COMMANDS = tuple(_rows())

GROUPS = {
    "policy": "Explain approval decisions, suggest rules from a run.",
    "cassette": "Work with cassettes: show, compare, check and scrub them.",
    "control": "Open the page of a run that listens.",
    "runs": "List, show, export, merge and delete past runs.",
}


def find_command(argv: Sequence[str]) -> tuple[CommandEntry | None, Sequence[str]]:
    group = argv[0] if argv and argv[0] in GROUPS else None
    named = argv if group is None else argv[1:]
    for row in COMMANDS:
        if named and (row.name, row.group) == (named[0], group):
            return row, named[1:]
    return None, argv
