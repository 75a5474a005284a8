"""The life of a run, as its page tells it: the files that a real run enters, and its events."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_process import clean_environment
from docs_pages import ROOT
from model_endpoint import text_reply, tool_reply

PAGE = ROOT / "docs" / "life-of-a-run.md"
# By so many files the page may be wrong, or each change would be one of the page too.
ROUNDED = 8
# A body of a module or class is executed by its import, whether anything of it is used or not.
TRACER = """\
import inspect, sys
entered = {}
def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and "/aish/" in code.co_filename and code.co_flags & inspect.CO_OPTIMIZED:
        entered[code.co_filename.rpartition("/aish/")[2]] = None
sys.setprofile(profile)
from aish.__main__ import main
try:
    main()
finally:
    sys.setprofile(None)
    with open("entered", "w") as file:
        file.write("\\n".join(entered))
"""
PIPELINE = """\
aish: 1
models: {m: {base_url: BASE_URL, model: m}}
mcp:
  servers: {repo: {pack: fs, root: .}}
  auto_approve: [repo__file_read]
prompt: What does notes.txt say?
tools: ["repo__*"]
"""


@pytest.mark.slow(reason="a run under a profiler")
@pytest.mark.real_process
def test_the_page_tells_the_way_of_a_real_run(
    tmp_path: Path, empty_home: Path, model_endpoint: Any
) -> None:
    call = tool_reply([("a1", "repo__file_read", '{"path": "notes.txt"}')])
    endpoint = model_endpoint([call, text_reply("It says hello.")])
    (tmp_path / "notes.txt").write_text("hello\n")
    (tmp_path / "p.yaml").write_text(PIPELINE.replace("BASE_URL", endpoint.base_url))

    subprocess.run(
        [sys.executable, "-c", TRACER, "run", "p.yaml", "--run-dir", "runs"],
        cwd=tmp_path,
        env=clean_environment(empty_home),
        check=True,
    )

    stages, events = told_by_the_page()
    (journal,) = tmp_path.glob("runs/*/events.jsonl")
    lines = journal.read_text("utf-8").splitlines()
    assert [json.loads(line)["type"] for line in lines] == events
    entered = set((tmp_path / "entered").read_text().splitlines())
    assert stages - entered == set()
    said = re.search(r"\((\d+) files\)", PAGE.read_text("utf-8"))
    assert said is not None
    assert abs(len(entered) - int(said[1])) <= ROUNDED, len(entered)


def told_by_the_page() -> tuple[set[str], list[str]]:
    """The files and the events of the table of stages."""
    rows = re.findall(
        r"^\| +\d+ \|[^|]*\|([^|]*)\|([^|]*)\|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    files = {name for row, _ in rows for name in re.findall(r"`([\w/]+\.py)`", row)}
    return files, [name for _, row in rows for name in re.findall(r"`([\w.]+)`", row)]
