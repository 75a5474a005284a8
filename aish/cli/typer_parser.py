"""The command line with typer: help, completion, usage errors, and words that are not plain.

Typer only parses. Lists of commands are made from the catalogue; the module of a command is
imported when that command is asked for.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from aish import __version__
from aish.cli.arguments import bind_call, parameters
from aish.cli.boundary import say
from aish.cli.catalogue import COMMANDS, GROUPS, CommandEntry
from aish.cli.options import Argument, Option
from aish.cli.printer import print_text
from aish.core.errors import ExitCode, UsageError
from aish.core.text_diff import hunks

HELP = f"""Run language-model pipelines from a YAML file, unattended.

Results go to stdout, everything for people to stderr. The exit code is the status:
{", ".join(f"{int(code)} {code.name.lower()}" for code in ExitCode)}.

Example: aish run pipelines/quickstart.yaml
"""
# The options of the commands that have very many; those in no group come last.
OPTION_GROUPS = {
    "Most used": "input model output format quiet allow ask max-cost-usd replay resume",
    "Input and model": "input-text inputs set",
    "Approvals": "deny allow-broad-root lock no-fetch staged",
    "Limits": "timeout max-turns",
    "Output and reports": "stream run-dir ephemeral step csv-raw junit html sarif github otel "
    "otel-endpoint otel-content",
    "Record and replay": "record cassette record-mode live-tools live-model keep-failed pace",
    "Resume": "retry-failed retry-unknown force",
    "Many rows and machines": "concurrency delivery shard no-key-check cluster cluster-ca "
    "cluster-cert cluster-key",
    "Control": "control allow-remote behind-proxy tls-cert tls-key",
}
_MANY_OPTIONS = 25
INSTALL_HELP = (
    "Install completion for the current shell. bash: writes ~/.bash_completions/aish.sh and adds a "
    "line to ~/.bashrc; zsh: writes ~/.zfunc/_aish and adds lines to ~/.zshrc; fish: writes "
    "~/.config/fish/completions/aish.fish."
)
_EDITED = (
    ".bashrc",
    ".bash_completions/aish.sh",
    ".zshrc",
    ".zfunc/_aish",
    ".config/fish/completions/aish.fish",
)
# The parser's name for a number with a limited range.
_RANGES = {"a valid float range": "a number", "a valid int range": "a whole number"}
Call = Callable[[], int]


def parse_call(argv: Sequence[str]) -> Call:
    """The call that `argv` requests; help and completion are printed already."""
    try:
        result = command_line().main(args=list(argv), prog_name="aish", standalone_mode=False)
    except typer.Exit as leaving:
        code = leaving.exit_code
    except typer.Abort:
        code = int(ExitCode.INTERRUPTED)
    except typer.TyperException as error:
        code = _usage(error)
    else:
        if callable(result):
            call: Call = result
            return call
        code = result if isinstance(result, int) else 0
    return lambda: code


def command_line() -> Any:
    """Return all commands, none of them imported."""
    groups = {name: _group(name, text) for name, text in GROUPS.items()}
    top = _group("aish", HELP)
    for row in COMMANDS:
        parent = top if row.group is None else groups[row.group]
        stub = TyperCommand(row.name, help=row.summary, hidden=row.hidden, rich_markup_mode=None)
        parent.rows[row.name] = row
        parent.add_command(stub)
    for name, group in groups.items():
        top.add_command(group, name)
    for parameter in top.params:
        if parameter.name == "install_completion":
            parameter.help = INSTALL_HELP
            parameter.callback = _report_changes(parameter.callback)
    return top


def load_command(row: CommandEntry) -> Any:
    """The command of a row for typer; invoked, it returns the requested call."""
    command = import_module(row.module).command

    def call(**values: Any) -> Call:
        return bind_call(command, values)

    seen = [
        inspect.Parameter(
            parameter.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=parameter.default,
            annotation=Annotated[get_type(parameter.annotation), _to_typer(parameter.declared)],
        )
        for parameter in parameters(command)
    ]
    call.__doc__ = command.__doc__
    call.__annotations__ = {one.name: one.annotation for one in seen}
    # The result of `inspect.signature`, and so what typer reads.
    vars(call)["__signature__"] = inspect.Signature(seen)
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.command(row.name, cls=_GroupedCommand, hidden=row.hidden)(call)
    return typer.main.get_command(app)


def get_type(annotation: Any) -> Any:
    return annotation.__origin__


def _to_typer(one: Option | Argument) -> object:
    details: dict[str, Any] = dict(one.details)
    if "completes" in details:
        details["autocompletion"] = _completer(details.pop("completes"))
    if isinstance(one, Option):
        return typer.Option(*one.names, **details)
    return typer.Argument(**details)


def _completer(name: str) -> Callable[[typer.Context, str], Any]:
    def complete(ctx: typer.Context, incomplete: str) -> Any:
        return getattr(import_module("aish.cli.completion"), name)(ctx, incomplete)

    return complete


class _GroupedCommand(TyperCommand):
    """Shows options in groups if there are very many."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        options = {
            param.opts[-1]: param.get_help_record(ctx)
            for param in self.get_params(ctx)
            if param.param_type_name == "option"
        }
        if len(options) <= _MANY_OPTIONS:
            super().format_options(ctx, formatter)
            return
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        with formatter.section("Arguments"):
            formatter.write_dl([argument.get_help_record(ctx) for argument in arguments])
        for title, names in OPTION_GROUPS.items():
            rows = [options.pop(f"--{name}", None) for name in names.split()]
            if any(rows):
                with formatter.section(title):
                    formatter.write_dl(list(filter(None, rows)))
        with formatter.section("Other"):
            formatter.write_dl(list(filter(None, options.values())))


class _Group(TyperGroup):
    """Lists commands from the catalogue, and loads the requested one."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.rows: dict[str, CommandEntry] = {}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, cmd, left = super().resolve_command(ctx, args)
        row = self.rows.get(name or "")
        return name, cmd if row is None else load_command(row), left


def _group(name: str, text: str) -> Any:
    app = typer.Typer(
        name=name,
        cls=_Group,
        help=text,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=name == "aish",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top if name == "aish" else _do_nothing)
    return typer.main.get_command(app)


def _print_version(value: bool) -> None:  # ruff: ignore[boolean-type-hint-positional-argument] - typer calls it with the flag's value
    if value:
        print_text(f"aish {__version__}")
        raise typer.Exit


def _top(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    del version


def _do_nothing() -> None:
    pass


# --- Mistakes ------------------------------------------------------------------------------------


def _usage(error: typer.TyperException) -> int:
    """The exit code of a command group that has shown its help."""
    text = error.format_message()
    if text.startswith("Usage: "):
        say(text)
        return int(ExitCode.USAGE)
    for words, meant in _RANGES.items():
        text = text.replace(words, meant)
    # Names that the parser quotes; we use backticks.
    message = re.sub(r"'([^'\n]+)'", r"`\1`", text).removesuffix(".")
    context = getattr(error, "ctx", None)
    program = context.command_path if context is not None else "aish"
    hint = f"see `{program} --help`"
    if program == "aish serve" and "option: --listen" in text:
        hint = "`--http`, `--unix` and `--tcp` say where clients connect"
    raise UsageError(message, hint=hint) from error


# --- Files that the installation of completion edits
# -----------------------------------------------


def _report_changes(install: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    def install_and_report(ctx: Any, parameter: Any, value: Any) -> Any:
        before = _texts() if value else {}
        try:
            return install(ctx, parameter, value)
        finally:
            if value:
                for name, text in _texts().items():
                    _tell(name, before.get(name), text)

    return install_and_report


def _texts() -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in _EDITED:
        with suppress(OSError):
            texts[name] = (Path.home() / name).read_text("utf-8", "replace")
    return texts


def _tell(name: str, before: str | None, text: str) -> None:
    if not name.endswith("rc"):
        if before != text:
            print_text(f"wrote ~/{name}")
        return
    old, new = (before or "").splitlines(), text.splitlines()
    rows = (row for hunk in hunks(old, new, around=0, most=len(new)) for row in hunk.rows)
    lines = [row[1:] for row in rows if row[0] == "+" and row[1:].strip()]
    if lines:
        print_text(f"added to ~/{name}:")
        for line in lines:
            print_text(f"  {line}")
