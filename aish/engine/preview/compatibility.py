"""Rows of the compatibility page about the servers and endpoints of a file, for `aish doctor`.

`compatibility.json` is made from `compat/*.yaml` by docs/generate.py.
"""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

from aish.config.model import ModelEntry, Pipeline, ServerEntry
from aish.engine.preview.checkup import CheckResult
from aish.mcp.transports.package_store import package_spec
from aish.models.retry import origin_of

_PAGE = "docs/reference/compatibility.md"
Row = Mapping[str, str]


def check_compatibility(pipeline: Pipeline) -> Iterator[CheckResult]:
    """Yield the row of each server and endpoint that was tried with aish."""
    rows = _read_rows()
    for alias, server in pipeline.servers.items():
        yield from _results(f"mcp server `{alias}`", rows.get(_package(server)))
    for alias, model in pipeline.models.items():
        yield from _results(f"model `{alias}`", rows.get(_address(model)))


def _results(subject: str, row: Row | None) -> Iterator[CheckResult]:
    if row is not None:
        tried = f"tried with {row['name']} {row['version']} on {row['tried']}: {row['result']}"
        know = f"; {row['know']}" if row["know"] else ""
        yield CheckResult(subject, "ok", tried + know, f"{_PAGE}#{row['anchor']}")


def _package(server: ServerEntry) -> str:
    spec = package_spec(server.command, server.cwd or Path.cwd())
    return "" if spec is None else spec.name


def _address(model: ModelEntry) -> str:
    return origin_of(model.base_url).replace("127.0.0.1", "localhost")


def _read_rows() -> Mapping[str, Row]:
    """The rows by the name of a package, and by the usual origin of an endpoint."""
    text = files(__package__).joinpath("compatibility.json").read_text("utf-8")
    rows: Mapping[str, Row] = json.loads(text)
    return rows
