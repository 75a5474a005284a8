"""The commands, one row each: name, module, group. Modules are imported when asked for."""

from aish.core.frozen import frozen


@frozen
class Command:
    """`module` has a function `command`, a typer callback; `group` is a sub-command's parent."""

    name: str
    module: str
    group: str | None = None
    hidden: bool = False


COMMANDS: tuple[Command, ...] = (
    Command("run", "aish.cli.commands.run"),
    Command("shell", "aish.cli.commands.shell"),
    Command("record", "aish.cli.commands.record"),
    Command("validate", "aish.cli.commands.validate"),
    Command("check", "aish.cli.commands.validate", hidden=True),
    Command("plan", "aish.cli.commands.plan"),
    Command("test", "aish.cli.commands.test"),
    Command("tools", "aish.cli.commands.tools"),
    Command("call", "aish.cli.commands.call"),
    Command("apply", "aish.cli.commands.apply"),
    Command("lock", "aish.cli.commands.lock"),
    Command("explain", "aish.cli.commands.policy_explain", group="policy"),
    Command("suggest", "aish.cli.commands.policy_suggest", group="policy"),
    Command("show", "aish.cli.commands.cassette_show", group="cassette"),
    Command("scrub", "aish.cli.commands.cassette_scrub", group="cassette"),
    Command("check", "aish.cli.commands.cassette_check", group="cassette"),
    Command("diff", "aish.cli.commands.cassette_diff", group="cassette"),
    Command("list", "aish.cli.commands.runs_list", group="runs"),
    Command("show", "aish.cli.commands.runs_show", group="runs"),
    Command("report", "aish.cli.commands.runs_report", group="runs"),
    Command("merge", "aish.cli.commands.runs_merge", group="runs"),
    Command("clean", "aish.cli.commands.runs_clean", group="runs"),
    Command("schema", "aish.cli.commands.schema"),
    Command("init", "aish.cli.commands.init"),
    Command("doctor", "aish.cli.commands.doctor"),
)

GROUPS = {
    "policy": "Explain approval decisions, suggest rules from a run.",
    "cassette": "Work with cassettes: show, compare, check and scrub them.",
    "runs": "Work with past runs: list, show, merge shards, delete old ones.",
}
