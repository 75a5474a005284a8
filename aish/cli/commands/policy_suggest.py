"""`aish policy suggest RUN|CASSETTE`."""

import json
from pathlib import Path
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.options import Argument, Option, PastRunDirOption, Report, ReportOption
from aish.cli.printer import print_json, print_text
from aish.core.errors import ExitCode
from aish.core.json import JsonObject
from aish.core.phrases import counted, shorten
from aish.core.text import for_line
from aish.engine.plan.plan import load_checked
from aish.features.suggest.calls import CallHistory, calls_of
from aish.features.suggest.write import MissingRules, missing_rules, write_rules
from aish.policy.rule_yaml import rule_data, rules_yaml
from aish.policy.suggest import LeftOut, Suggestion, suggestion

_SHOWN = 200


def command(
    subject: Annotated[
        str,
        Argument(
            "RUN|CASSETTE",
            "A run: its id, the end of its id, `latest`, or its folder; or a cassette.",
            completes="run_ids",
        ),
    ],
    *,
    write: Annotated[
        Path | None, Option("--write FILE", "Add the missing rules to a pipeline file.")
    ] = None,
    run_dir: PastRunDirOption = None,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Print the narrowest rules for the calls that were made.

    They approve these tool calls, with a glob where arguments varied, and no call
    that was denied. The exit code is 1 if a call is left out.

    Example: aish policy suggest latest --write aish.yaml
    """
    pipeline = None if write is None else load_checked(write, (), locked=False)
    calls = calls_of(subject, run_dir, pipeline)
    rules = suggestion(calls.made, calls.denied)
    missing = MissingRules(rules.rules, ()) if pipeline is None else missing_rules(pipeline, rules)
    if write is not None and pipeline is not None and missing.rules:
        write_rules(write, missing.rules, pipeline)
    left_out = (*rules.left_out, *missing.left_out)
    if output_format is Report.JSON:
        print_json(_document(rules, left_out, calls, missing, write))
    elif write is None or missing.rules:
        print_text(
            "mcp:\n  auto_approve: []"
            if not missing.rules
            else "mcp:\n  auto_approve:\n" + rules_yaml(missing.rules, indent=4).removesuffix("\n")
        )
    if not calls.made and not calls.untold:
        say("note: no tool was called")
    elif write is not None and missing.rules:
        say(f"{write}: written, {counted(len(missing.rules), 'rule')} added")
    elif write is not None:
        say(f"{write}: nothing to add")
    for untold in calls.untold:
        say(f"warning: left out: {untold}")
    for entry in left_out:
        text = for_line(f"{entry.call.tool} {json.dumps(entry.call.arguments, ensure_ascii=False)}")
        say(f"warning: left out: {shorten(text, _SHOWN)}: {entry.why}")
    return int(ExitCode.FAILED if left_out or calls.untold else ExitCode.OK)


def _document(
    rules: Suggestion,
    left_out: tuple[LeftOut, ...],
    calls: CallHistory,
    missing: MissingRules,
    write: Path | None,
) -> JsonObject:
    return {
        "rules": [rule_data(rule) for rule in rules.rules],
        "left_out": [
            {"tool": str(entry.call.tool), "arguments": entry.call.arguments, "why": entry.why}
            for entry in left_out
        ],
        "untold": list(calls.untold),
        "written": None if write is None else str(write),
        "added": [] if write is None else [rule_data(rule) for rule in missing.rules],
    }
