"""Answers that must match a JSON Schema: requested, parsed and validated."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from json import JSONDecodeError

from aish.agent.runtime import CheckArguments, Mask
from aish.config.documents import MAX_DEPTH, parse_json
from aish.config.model import PromptStep, Step
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, strict_json_at
from aish.core.patterns import lazy_pattern
from aish.core.phrases import first_lines, shorten
from aish.core.text import for_line
from aish.system.schema.capacity import Capacity


def released_bits(step: Step) -> int:
    """The bits of a step's output, or of that of an item, that lose labels."""
    if not isinstance(step, PromptStep) or step.output is None or not step.output.release:
        return 0
    return Capacity(step.output.schema).bits


_ONE_VALUE = "one JSON value and nothing else: no explanation, no code fence."
_MOST_NAMED = 3
_MOST_TOLD = 8
_LONGEST_TOLD = 300
_FENCE = "```"
_MOST_BRACKETS = 100
_MOST_VALUES = 20
_LONGEST_BEGINNING = 120
# The parser's message for text that does not even begin like JSON.
_NOTHING_LIKE_IT = "Expecting value: line 1 column 1 "
_BRACKET = lazy_pattern(r"[\[\]{}]")
# The start of intended JSON, as opposed to a bracket in a sentence.
_MEANT = lazy_pattern(r"[\[{]\s*[\"\[{]")
# A problem with the schema or its checker, which another answer cannot fix.
_OF_THE_CHECK = "schema"


class SeveralValuesError(ValueError):
    """Several JSON values between the words."""

    def __init__(self, values: Sequence[JsonValue]) -> None:
        super().__init__("there are several JSON values, and one is expected")
        self.values = values


@frozen
class Judged:
    """An answer and its problems.

    `value` is its JSON value, `None` if it is not JSON. `why` is empty if it is valid, `told` is
    the description of its problems for the model, `mendable` whether another answer could be
    better.
    """

    value: JsonValue
    why: str = ""
    told: tuple[str, ...] = ()
    mendable: bool = True


async def judge(
    text: str,
    schema: JsonObject,
    check: CheckArguments,
    mask: Mask = str,
    *,
    nulls_for_absent: bool = False,
) -> Judged:
    """Parse an answer and validate it; `mask` removes secrets from the description of problems.

    With `nulls_for_absent`, null stands for a property that may be missing: endpoints that enforce
    a schema of which all properties are required have no other way to leave one out.
    """
    try:
        value = await _choose_answer(text, schema, check)
    except ValueError as error:
        return Judged(
            None,
            _no_json(mask(text), error),
            (f"it is not JSON: {shorten(str(error), _LONGEST_TOLD)}",),
        )
    problems = await check(schema, value)
    if not problems:
        return Judged(value)
    if nulls_for_absent:
        less = _without_nulls(value, (schema,), schema)
        if less != value and not await check(schema, less):
            return Judged(less)
    messages = tuple(shorten(mask(str(problem)), _LONGEST_TOLD) for problem in problems)
    return Judged(
        value,
        f"the answer does not fit its schema: {'; '.join(messages[:_MOST_NAMED])}",
        messages,
        mendable=all(problem.keyword != _OF_THE_CHECK for problem in problems),
    )


async def _choose_answer(text: str, schema: JsonObject, check: CheckArguments) -> JsonValue:
    """The value that fits, or the only object beside values such as `[1]`.

    Raises:
        ValueError: there is not exactly one.
    """
    try:
        return parse_answer(text)
    except SeveralValuesError as error:
        fitting = [value for value in error.values if not await check(schema, value)]
        objects = [value for value in error.values if isinstance(value, Mapping)]
        for candidates in (fitting, objects):
            if len(candidates) == 1:
                return candidates[0]
        raise


def _without_nulls(value: JsonValue, schemas: Iterable[JsonValue], root: JsonObject) -> JsonValue:
    """The value without properties that are null, cannot be null and need not be there.

    `schemas` are all that may describe the value: which of them do is checked afterwards.
    """
    forms = list(_forms(schemas, root))
    if isinstance(value, list):
        items = [form.get("items") for form in forms]
        return [_without_nulls(item, items, root) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept: dict[str, JsonValue] = {}
    for name, inner in value.items():
        having = [form for form in forms if name in _object(form.get("properties"))]
        parts = [_object(form["properties"])[name] for form in having]
        if inner is not None:
            kept[name] = _without_nulls(inner, parts, root)
        elif all(name in _list(form.get("required")) for form in having) or any(
            map(_takes_null, _forms(parts, root))
        ):
            kept[name] = None
    return kept


def _forms(schemas: Iterable[JsonValue], root: JsonObject) -> Iterator[JsonObject]:
    """The schemas, what they refer to, and the alternatives in them."""
    waiting, seen = list(schemas), set[str]()
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, Mapping):
            continue
        yield schema
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            waiting.append(_target(reference, root))
        waiting += [*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))]


def _target(reference: str, root: JsonObject) -> JsonValue:
    found: JsonValue = root
    for part in reference.split("/")[1:]:
        found = _object(found).get(part.replace("~1", "/").replace("~0", "~"))
    return found


def _takes_null(form: JsonObject) -> bool:
    """Return true if a schema takes null by what it says itself."""
    if "enum" in form or "const" in form:
        return any(one is None for one in (*_list(form.get("enum")), form.get("const", "")))
    if "type" in form:
        return form["type"] == "null" or "null" in _list(form["type"])
    return not {"$ref", "anyOf", "oneOf", "properties", "items"} & form.keys()


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, Mapping) else {}


def _list(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, list | tuple) else ()


def _no_json(text: str, error: ValueError) -> str:
    """The message for an answer that is not JSON: its beginning is most informative."""
    if not text.strip():
        return "the answer is empty"
    beginning = text.strip()
    begins = for_line(shorten(beginning, _LONGEST_BEGINNING))
    if str(error).startswith(_NOTHING_LIKE_IT):
        return f'the answer is not JSON; it begins: "{begins}"'
    return f'the answer is not JSON: {shorten(str(error), _LONGEST_TOLD)}; it begins: "{begins}"'


def instruction(schema: JsonObject) -> str:
    """The instruction for a model whose endpoint does not support `response_format`."""
    text = json.dumps(schema, ensure_ascii=False)
    return f"Answer with {_ONE_VALUE} It must fit this JSON Schema:\n{text}"


def last_turn(schema: JsonObject) -> str:
    """The instruction of the final turn without tools, which requests the answer in the schema."""
    return f"Now give your answer in this form. {instruction(schema)}"


def correction_request(judged: Judged) -> str:
    """The message to a model about an invalid answer: its problems, never its text."""
    rows = [f"- {shorten(for_line(problem), _LONGEST_TOLD)}" for problem in judged.told]
    listed = "\n".join(first_lines(rows, _MOST_TOLD, "- "))
    return f"That answer cannot be used:\n{listed}\nAnswer again with {_ONE_VALUE}"


def parse_whole(text: str) -> JsonValue:
    """The JSON value that `text` is, a code fence around it allowed.

    Raises:
        ValueError: it is not JSON; gives the position of the error.
    """
    inner = _fence_content(text)
    return parse_json(text if inner is None else inner)


def parse_answer(text: str) -> JsonValue:
    """The only JSON value in `text`, which may be in a code fence or surrounded by words.

    Between words, only an object or an array is recognized. If there are several, or one is inside
    something broken, none is returned.

    Raises:
        ValueError: there is not exactly one; says what is wrong.
    """
    if not text.strip():
        raise ValueError("it is empty")
    try:
        return parse_whole(text)
    except ValueError as error:
        texts = _among_words(text)
        if not texts:
            raise ValueError(str(error)) from error
        values = list(map(parse_json, texts))
        if len(values) > 1:
            raise SeveralValuesError(values) from error
        return values[0]


def _fence_content(text: str) -> str | None:
    """The content of the code fence, if the text is one."""
    text = text.strip()
    head, newline, rest = text.partition("\n")
    if not newline or not head.startswith(_FENCE) or not rest.endswith(_FENCE):
        return None
    return rest[: -len(_FENCE)]


def _among_words(text: str) -> list[str]:
    """The texts of the objects and arrays between words, up to a limit."""
    texts: list[str] = []
    place = depth = no_values = 0
    while bracket := _BRACKET.search(text, place):
        place = bracket.end()
        if bracket[0] in "]}":
            depth -= 1
            if depth < 0:
                raise ValueError(f"there is a `{bracket[0]}` too many")
            continue
        if depth:
            depth += 1
            continue
        end = _end_of_value(text, bracket.start())
        if end is None:
            depth += 1
            no_values += 1
            # Each attempt scans the whole text.
            if no_values > _MOST_BRACKETS:
                raise ValueError("it has brackets, but is not valid JSON")
            continue
        if len(texts) == _MOST_VALUES:
            raise SeveralValuesError(())
        texts.append(text[bracket.start() : end])
        place = end
    if texts and depth:
        raise ValueError("a bracket around it is not closed")
    return texts


def _end_of_value(text: str, start: int) -> int | None:
    """The end of the value that begins here; `None` if there is none and none was intended."""
    try:
        return strict_json_at(text, start)[1]
    except JSONDecodeError as error:
        if _MEANT.match(text, start):
            raise ValueError(str(error)) from error
        return None
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from None
