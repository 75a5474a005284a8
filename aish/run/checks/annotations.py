"""What a file annotates (B11): expressions, and what stands there without a template."""

from collections.abc import Iterator, Mapping
from typing import get_args

from aish.config.pipeline import Pipeline
from aish.core.errors import did_you_mean
from aish.core.events import AnnotationLevel
from aish.run.checks.complaint import Complaint, within
from aish.run.checks.expressions import expression_complaints
from aish.templates.plain import is_template

_LEVELS = get_args(AnnotationLevel)


def annotation_complaints(pipeline: Pipeline) -> Iterator[Complaint]:
    """About `annotations`; their templates are looked at with all others."""
    for one in pipeline.annotations:
        if one.foreach is not None:
            where = within(one.where, "foreach") if one.fields else one.where
            yield from expression_complaints(one.foreach, where, pipeline)
        # What a template gives is known only when it is rendered.
        fixed = {
            key: value
            for key, value in one.fields
            if not (isinstance(value, str) and is_template(value))
        }
        level = fixed.get("level")
        if isinstance(level, str) and level not in _LEVELS:
            listed = ", ".join(f"`{known}`" for known in _LEVELS)
            hint = did_you_mean(level, _LEVELS)
            yield Complaint(within(one.where, "level"), f"`{level}` is not one of {listed}", hint)
        for key in ("line", "end_line"):
            if key in fixed and not _is_line(fixed[key]):
                yield Complaint(within(one.where, key), f"`{fixed[key]}` is not a line number")
        yield from _ends(fixed, one.where)


def _is_line(value: object) -> bool:
    text = str(value)
    return text.isascii() and text.isdigit() and int(text) > 0


def _ends(fixed: Mapping[str, object], where: str) -> Iterator[Complaint]:
    first, last = fixed.get("line"), fixed.get("end_line")
    if _is_line(first) and _is_line(last) and int(str(last)) < int(str(first)):
        yield Complaint(within(where, "end_line"), "`end_line` is before `line`")
