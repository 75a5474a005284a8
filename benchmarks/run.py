"""`make bench`: speed and size of whole processes, each beside the smallest program that does it.

Runs in a virtual environment of its own that holds the runtime dependencies, and those of packs and
the extra `serve`, as a user's does. Prints a table; never fails for being slow. `--rounds N` (5),
`--only WORD`, `--json FILE`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import batches
import browser
import c_code
import cassettes
import clusters
import commands
import context
import control
import files
import flows
import journal
import metrics
import pages
import prompts
import python_code
import python_names
import quotes
import rag
import reports
import serving
import serving_http
import talk
import turns
import verdicts
import wires
from figures import PYTHON, ROOT, VENV, Bench, Row

MEASURES = (
    turns.version,
    turns.help_screen,
    turns.validate,
    turns.tool_listing,
    turns.one_turn,
    turns.tool_turns,
    turns.many_deltas,
    turns.parallel,
    turns.tenth_turn,
    turns.long_conversation,
    turns.shortened_conversation,
    verdicts.verdict_shares,
    wires.wire_start,
    wires.wire_deltas,
    wires.wire_tool_turns,
    cassettes.cassette_load,
    cassettes.cassette_replay,
    cassettes.cassette_size,
    cassettes.cassette_first_byte,
    cassettes.cassette_deltas,
    cassettes.cassette_cuts,
    cassettes.cassette_tests,
    journal.journal_writing,
    journal.journal_reading,
    journal.journal_resuming,
    batches.batch_wall,
    batches.batch_streams,
    batches.batch_journal,
    batches.batch_messages,
    batches.batch_memory,
    batches.batch_delivery,
    batches.batch_keys,
    clusters.cluster_of_workers,
    commands.command_time,
    commands.server_start,
    commands.server_request,
    commands.command_ring,
    context.refresh,
    metrics.metrics,
    pages.page_markdown,
    quotes.quotes,
    rag.rag,
    reports.html_report,
    reports.large_html_report,
    reports.live_page,
    reports.junit_report,
    python_code.python_outline,
    python_names.python_names,
    files.file_tools,
    files.git_difference,
    flows.flow_decision,
    c_code.c_skeleton,
    prompts.prompt_ready,
    prompts.key_echo,
    talk.talk_deltas,
    talk.shell_deltas,
    serving.proxied_call,
    serving.pack_calls,
    serving.served_list,
    serving.served_packs,
    serving_http.proxied_http,
    serving_http.pack_call,
    serving_http.pack_throughput,
    serving_http.proxied_throughput,
    serving_http.thousand_sessions,
    serving_http.growth,
    serving_http.audit_record,
    browser.event_to_page,
    browser.first_paint,
    browser.pack_browser,
    control.start,
    control.answer_to_dispatch,
    control.idle,
)


def install() -> None:
    """The environment that is measured: aish as a wheel, with its runtime dependencies.

    And with those of packs, which are imported by nothing but the rows about them.
    """
    if not VENV.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"{ROOT}[packs,serve]"], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(ROOT)], check=True)
    subprocess.run([PYTHON, "-m", "compileall", "-q", str(VENV / "lib")], check=False)


def table(rows: list[Row]) -> str:
    lines = [
        "| measure | aish | floor | ratio | target | |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        met = "met" if row.met else "missed"
        lines.append(
            f"| {row.measure} | {row.aish} | {row.floor} | {ratio} | {row.target} | {met} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="measures whose name holds this word")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="measure what is installed")
    options = parser.parse_args()
    if not options.keep:
        install()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="aish-bench-") as folder:
        env = {"PATH": os.environ["PATH"], "HOME": folder, "LANG": "C.UTF-8"}
        bench = Bench(Path(folder), options.rounds, env)
        for measure in MEASURES:
            if options.only in measure.__name__:
                for row in measure(bench):
                    rows.append(row)
                    print(f"{row.measure}: {row.aish}", file=sys.stderr)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
