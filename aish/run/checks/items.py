"""What a step says that it runs over, as far as that can be told from the file (F5, F11)."""

import re
from collections.abc import Iterator
from pathlib import Path

from aish.config.pipeline import Pipeline
from aish.config.steps import Foreach
from aish.core.errors import AishError
from aish.run.checks.complaint import Complaint, within
from aish.run.checks.expressions import expression_complaints
from aish.run.checks.reading import ROOTS
from aish.templates.plain import is_template

_FILE_NAME = re.compile(r"(?:\.{0,2}/)?[\w./-]+\.(?:csv|tsv|jsonl?|ndjson|xlsx?)")


def foreach_complaints(
    foreach: Foreach, path: str, names: tuple[str, ...], pipeline: Pipeline
) -> Iterator[Complaint]:
    """About the `foreach` of the step at `path`, whose templates see `names`."""
    where, said = within(path, "foreach"), foreach.expression
    if said is not None and _names_file(said):
        hint = f"`foreach: {{file: {said}}}`"
        yield Complaint(where, f"`{said}` is a file, and an expression is expected here", hint)
    elif said is not None:
        yield from expression_complaints(said, where, pipeline)
    if foreach.file is not None and not is_template(foreach.file):
        from aish.items.items import reader_of

        file = Path(foreach.file)
        for key, delimiter in (("file", None), ("delimiter", foreach.delimiter)):
            try:
                reader_of(file, delimiter)
            except AishError as error:
                yield Complaint(within(where, key), error.message, error.hint)
                break
    if foreach.key is not None:
        yield from expression_complaints(foreach.key, within(path, "key"), pipeline, names)


def _names_file(expression: str) -> bool:
    root, _, _ = expression.partition(".")
    return root not in ROOTS and _FILE_NAME.fullmatch(expression) is not None
