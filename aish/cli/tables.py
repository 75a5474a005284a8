"""`-o results.csv` and the like: which step's items are meant, and what reads them."""

from pathlib import Path
from typing import BinaryIO

from aish.cli.boundary import say
from aish.cli.option_groups import Writing
from aish.cli.options import Format
from aish.config.model import PipelineStep, Step
from aish.core.errors import UsageError
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder
from aish.output.event_log import Sink
from aish.output.formats.text import Manner
from aish.output.items.results import ItemsFile, open_items_file

_ENDINGS = frozenset({".csv", ".tsv", ".jsonl"})
# What no program opens if it holds text.
_NO_TEXT = frozenset(
    {".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers", ".parquet", ".feather", ".arrow"}
)


def table_step(plan: Plan, writing: Writing, format_: Format) -> str | None:
    """The step whose items are written to a file as a table, if that is what its name means.

    The only one that has items, or the one that is named. Without any, the file is like all others.

    Raises:
        UsageError: a file of that kind cannot be written, or nobody says which step is meant.
    """
    output = writing.output
    if output is not None:
        check_kind(output)
    having = [step.id for step in plan.steps if step.flow.foreach is not None]
    ending = None if output is None or format_ is not Format.TEXT else output.suffix.lower()
    if ending not in _ENDINGS or not having:
        _check_alone("--step", given=writing.step is not None)
        _check_alone("--csv-raw", given=writing.csv_raw)
        return None
    _check_alone("--csv-raw", given=writing.csv_raw and ending == ".jsonl")
    from aish.output.items.table import step_of

    return step_of(having, writing.step, f"-o {output}")


def check_kind(output: Path) -> None:
    """See that a result can be written to a file of this name.

    Raises:
        UsageError: its ending promises what no result is.
    """
    ending = output.suffix.lower()
    if ending in _NO_TEXT:
        raise UsageError(
            f"a `{ending}` file cannot be written",
            where=f"-o {output}",
            hint="spreadsheets open `.csv` and `.tsv`; `.jsonl` has everything",
        )


def _check_alone(flag: str, *, given: bool) -> None:
    if given:
        hint = "a table is what `-o` writes of a step with `foreach`, in the format `text`"
        raise UsageError(f"`{flag}` goes with `-o FILE.csv` or `-o FILE.tsv`", hint=hint)


def ends_with_items(plan: Plan) -> bool:
    """Whether the last step, which speaks for the run, is one over items."""
    return plan.steps[-1].flow.foreach is not None


def items_file(plan: Plan, folder: RunFolder) -> ItemsFile | None:
    """Where the results of items are kept, if any step may have items."""
    return open_items_file(folder.path) if any(map(_may_have_items, plan.steps)) else None


def item_result(plan: Plan, items: ItemsFile, out: BinaryIO, manner: Manner) -> Sink:
    """What prints the texts of the last step's items."""
    from aish.output.formats.text import ItemTexts

    last = plan.steps[-1]
    structured = plan.answers_in_a_schema(last)
    return ItemTexts(out, items, last.id, say, manner, structured=structured)


def table(
    plan: Plan, items: ItemsFile, step: str, path: Path, folder: RunFolder, *, csv_raw: bool
) -> Sink:
    """What writes the items of a step to a file; with `csv_raw` no cell is guarded."""
    import shlex

    from aish.engine.execution.item_source import given_parts
    from aish.output.items.table import ALL_RAW, ItemsExporter

    meant = next(one for one in plan.steps if one.id == step)
    raw = ALL_RAW if csv_raw else frozenset(given_parts(meant, plan))
    partly = None
    if folder.path is not None:
        words = ["aish", "runs", "report", folder.id, "-o", str(path)]
        having = [one for one in plan.steps if one.flow.foreach is not None]
        words += ["--step", step] if len(having) > 1 else []
        words += ["--csv-raw"] if csv_raw else []
        words += _run_dir(folder.path)
        partly = shlex.join(words)
    return ItemsExporter(items, step, path, say, raw, partly)


def _run_dir(folder: Path) -> list[str]:
    """How `aish runs` finds a run that is not where it looks by itself."""
    runs = folder.parent
    looked = [Path.cwd() / project / ".aish" / "runs" for project in (Path(), Path("pipelines"))]
    return [] if runs in looked else ["--run-dir", str(runs)]


def _may_have_items(step: Step) -> bool:
    return step.flow.foreach is not None or isinstance(step, PipelineStep)
