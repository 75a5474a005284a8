"""`aish login FILE [SERVER]`."""

import os
import sys
from pathlib import Path
from typing import Annotated

import anyio

from aish.cli.boundary import say
from aish.cli.options import Argument, Option, Report, ReportOption
from aish.cli.pipeline_options import seconds_of
from aish.cli.printer import print_json, print_text
from aish.core.errors import PipelineError, UsageError, did_you_mean
from aish.core.json import JsonObject
from aish.core.phrases import backticked
from aish.core.text import for_line
from aish.engine.plan.credentials import ResolvedServer
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, load_checked, make_plan
from aish.features.browser_login import LoginDialog, log_in_at
from aish.net.oauth.failure import quote
from aish.net.oauth.login_store import list_logins
from aish.net.oauth.person_login import PERSON_SECONDS


def command(
    file: Annotated[Path | None, Argument("[FILE]", "The pipeline file.")] = None,
    server: Annotated[
        str | None, Argument("[SERVER]", "The server; by default each that wants a login.")
    ] = None,
    *,
    list_all: Annotated[bool, Option("--list", "List the logins that are kept.")] = False,
    no_browser: Annotated[
        bool, Option("--no-browser", "Only print the address; open no browser.")
    ] = False,
    timeout: Annotated[
        str | None, Option("--timeout DURATION", "How long to wait for the person: 5m.")
    ] = None,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Log in at servers of a file, in a browser.

    These are the servers with `oauth: {login: true}`. The login is kept for later runs, which never
    open a browser.

    Example: aish login notes.yaml
    """
    if list_all:
        if file is not None:
            raise UsageError("`--list` takes no file: it lists all logins")
        _list(output_format)
        return 0
    if file is None:
        raise UsageError("`FILE` is missing", hint="`aish login FILE`, or `aish login --list`")
    seconds = seconds_of(timeout) or PERSON_SECONDS
    plan = plan_of_logins(file)
    at_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    dialog = LoginDialog(print_text, say, seconds, opens_browser=at_terminal and not no_browser)
    for one in pick_servers(plan, server):
        anyio.run(log_in_at, one, plan.secrets, dialog)
    return 0


def plan_of_logins(file: Path) -> Plan:
    """The plan of a file to log in at its servers; what else it needs may be missing."""
    options = RunOptions(environ=dict(os.environ))
    return make_plan(load_checked(file, ()), options, with_models=False, offline=True)


def pick_servers(plan: Plan, name: str | None) -> list[ResolvedServer]:
    """The servers of a plan that want a person's login, or the one that is named.

    Raises:
        PipelineError: a variable that one of them needs is not set.
        UsageError: there is none.
    """
    known = {
        server.entry.alias: server
        for server in plan.servers
        if server.login is not None and server.login.settings.login
    }
    if not known:
        message = "no server of this file wants a person to log in"
        raise UsageError(message, hint="`oauth: {login: true}` in its entry says that it does")
    if name is not None and name not in known:
        hint = did_you_mean(name, known) or f"servers with a login: {backticked(known)}"
        raise UsageError(f"no server `{name}` wants a person to log in", hint=hint)
    picked = list(known) if name is None else [name]
    places = tuple(f"mcp.servers.{alias}." for alias in picked)
    problems = [one.problem for one in plan.missing if one.problem.path.startswith(places)]
    if problems:
        raise PipelineError(tuple(problems))
    return [known[alias] for alias in picked]


def warn(text: str) -> None:
    """Warn of a login that cannot be read."""
    say(f"warning: {text}")


def _list(output_format: Report) -> None:
    rows: list[JsonObject] = [
        {
            "server": login.server,
            "issuer": login.issuer,
            "client_id": login.client_id,
            "scopes": [*(login.granted if login.granted is not None else login.asked)],
            "kept": "keyring" if login.in_keyring else str(path),
            "open": login.is_open,
        }
        for path, login in list_logins(warn)
    ]
    if output_format is Report.JSON:
        print_json([*rows])
        return
    for row in rows:
        over = "" if row["open"] else ", which is over"
        print_text(
            f"{for_line(str(row['server']))}: at `{quote(str(row['issuer']))}`{over};"
            f" kept in {for_line(str(row['kept']))}"
        )
    if not rows:
        print_text("no logins")
