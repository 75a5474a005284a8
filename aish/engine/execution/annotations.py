"""A pipeline's `annotations`, created after its steps have ended.

Most values come from a model: a field that is not valid, or cannot be rendered, is omitted with a
warning. Annotations never fail a run.
"""

from collections.abc import Iterator, Mapping, Sequence
from posixpath import normpath
from typing import cast, get_args

from aish.agent.runtime import Mask
from aish.config.model import FIELDS, Annotation, Pipeline
from aish.core.errors import AishError
from aish.core.events import AnnotationAdded, AnnotationLevel, Event, Notice, Place
from aish.core.frozen import slotted
from aish.core.json import JsonValue
from aish.core.phrases import backticked, counted, shorten
from aish.core.text import for_line
from aish.engine.plan.order import annotation_reads
from aish.engine.records import Records
from aish.templates.render import evaluate, render_value
from aish.templates.values import text_of, with_names

_MOST = 5_000
_MOST_TOLD = 10
_LONGEST_PATH = 1_000
_LONGEST_MESSAGE = 10_000
_TOO_MANY_LINES = 10**10
_SHOWN = 60
_LEVELS = get_args(AnnotationLevel)
_USUAL: AnnotationLevel = "warning"


def annotations_of(
    pipeline: Pipeline,
    context: Mapping[str, JsonValue],
    records: Records,
    place: Place,
    mask: Mask = str,
) -> Iterator[Event]:
    """The events of all annotations; `context` is the template context, `place` the origin.

    `mask` masks a text before it is truncated.
    """
    making = _Making(place, context, records, mask)
    for annotation in pipeline.annotations:
        yield from making.events_of(annotation)
    yield from making.rest()


@slotted
class _Making:
    place: Place
    context: Mapping[str, JsonValue]
    records: Records
    mask: Mask
    count: int = 0
    untold: int = 0
    told: int = 0

    def events_of(self, annotation: Annotation) -> Iterator[Event]:
        try:
            items = self._items(annotation)
        except AishError as error:
            yield from self._report(annotation, annotation.where, error)
            return
        for index, item in enumerate(items):
            where = annotation.where if item is None else f"{annotation.where}, item {index + 1}"
            self.count += 1
            if self.count > _MOST:
                continue
            values, errors = self._fields(annotation, index, item)
            for failure in errors:
                yield from self._report(annotation, where, failure)
            if "message" in values or not errors:
                yield from self._annotation(values, where)

    def rest(self) -> Iterator[Event]:
        """The omitted annotations, in one warning each."""
        if self.count > _MOST:
            message = (
                f"{counted(self.count - _MOST, 'annotation')} over the limit of {_MOST:,} left out"
            )
            yield Notice(self.place, "warning", "annotations", message)
        if self.untold:
            message = f"{counted(self.untold, 'more problem')} with annotations"
            yield Notice(self.place, "warning", "annotations", message)

    def _items(self, annotation: Annotation) -> Sequence[Mapping[str, JsonValue] | None]:
        """The scopes in which an entry is rendered: one, or one for each item."""
        if annotation.foreach is None:
            return (None,)
        value = evaluate(annotation.foreach, self.context)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise AishError(f"`{annotation.foreach}` does not give a list")
        return [{annotation.name: item} for item in value]

    def _fields(
        self, annotation: Annotation, index: int, item: Mapping[str, JsonValue] | None
    ) -> tuple[Mapping[str, JsonValue], Sequence[AishError]]:
        """The fields that could be rendered, and why others could not."""
        if not annotation.fields:
            (value,) = (item or {}).values()
            if isinstance(value, Mapping):
                return {key: value[key] for key in FIELDS if key in value}, ()
            return {}, (AishError("the item is not a mapping with `path` and `message`"),)
        names = self.context if item is None else with_names(self.context, {**item, "index": index})
        values: dict[str, JsonValue] = {}
        errors: list[AishError] = []
        for key, source in annotation.fields:
            try:
                values[key] = render_value(source, names) if isinstance(source, str) else source
            except AishError as error:
                errors.append(error)
        return values, errors

    def _annotation(self, values: Mapping[str, JsonValue], where: str) -> Iterator[Event]:
        message = _text(values.get("message"))
        if not message:
            yield from self._warn(where, "the message is empty")
            return
        path = _text(values.get("path"))
        if len(path) > _LONGEST_PATH or for_line(path) != path:
            yield from self._warn(where, f"`path` is {_quote(path, self.mask)}, not a path")
            path = ""
        elif path and (path := normpath(written := path)).split("/", 1)[0] == "..":
            said = f"`path` is {_quote(written, self.mask)}, which leads out of the repository"
            yield from self._warn(where, said)
            path = ""
        first, last = values.get("line"), values.get("end_line")
        line, end_line = _line(first), _line(last)
        for key, source, number in (("line", first, line), ("end_line", last, end_line)):
            if number is None and _text(source):
                yield from self._warn(
                    where, f"`{key}` is {_quote(source, self.mask)}, not a line number"
                )
        level = _text(values.get("level")) or _USUAL
        if level not in _LEVELS:
            listed = backticked(_LEVELS)
            yield from self._warn(
                where, f"`level` is {_quote(level, self.mask)}, not one of {listed}"
            )
            level = _USUAL
        line = line if path else None
        yield AnnotationAdded(
            path or None,
            line,
            end_line if line is not None and end_line is not None and end_line > line else None,
            cast("AnnotationLevel", level),
            self.mask(message)[:_LONGEST_MESSAGE],
            self.place,
        )

    def _report(self, annotation: Annotation, where: str, error: AishError) -> Iterator[Event]:
        """Errors caused by the missing result of a step that was not completed are not reported."""
        names = annotation_reads(annotation)
        read = {name.split(".")[1] for name in names if name.startswith("steps.")}
        ended = [self.records[id] for id in read if id in self.records]
        if len(ended) < len(read) or any(item.output is None for item in ended):
            return
        yield from self._warn(where, error.message)

    def _warn(self, where: str, message: str) -> Iterator[Event]:
        if self.told >= _MOST_TOLD:
            self.untold += 1
            return
        self.told += 1
        yield Notice(self.place, "warning", "annotations", f"{where}: {message}")


def _line(value: JsonValue) -> int | None:
    """A line number, in any notation."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        return value if 0 < value < _TOO_MANY_LINES else None
    text = _text(value)
    # No file has line numbers with more digits.
    is_number = text.isascii() and text.isdigit() and len(text) < len(str(_TOO_MANY_LINES))
    return int(text) or None if is_number else None


def _text(value: JsonValue) -> str:
    return "" if value is None else text_of(value).strip()


def _quote(value: JsonValue, mask: Mask) -> str:
    return f"`{shorten(for_line(mask(text_of(value))), _SHOWN)}`"
