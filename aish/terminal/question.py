"""A question about a tool call as rows, all of it (P2, P9). Pure: the approver shows them."""

import json
from collections.abc import Iterator, Mapping, Sequence

from aish.core.frozen import frozen
from aish.core.json import JsonValue, writable
from aish.core.protocols import Question
from aish.core.text import counted, for_terminal, suspicious
from aish.system.secrets.secrets import Secrets
from aish.terminal.folding import barred, field, words
from aish.terminal.masking import Masks
from aish.terminal.sight import visible

MOST_ROWS = 200
"""Of the arguments that are shown at once; of more a person asks to see them."""

_LOOKALIKE = "lookalike letters"
_FIRST, _LAST = 40, 20
_LONGEST_RULE = 1000


@frozen
class Sheet:
    """A question laid out for one width: who asks, what is sent, and what an "always" stores."""

    width: int
    head: tuple[str, ...]
    lines: int
    arguments: tuple[str, ...]
    always: tuple[str, ...]

    @property
    def is_long(self) -> bool:
        """Whether it is more than a person reads without being told how much it is."""
        return len(self.arguments) > MOST_ROWS

    @property
    def offers_always(self) -> bool:
        """Whether "always" is an answer."""
        return bool(self.always)

    def whole(self) -> tuple[str, ...]:
        """Everything but the prompt."""
        label = words(f"arguments, {_all(self.lines)}:", self.width)
        return (*self.head, *label, *self.arguments, *self.always)

    def beginning(self) -> tuple[str, ...]:
        """Head and tail of one that is long, and how much is between them."""
        left_out = len(self.arguments) - _FIRST - _LAST
        rows = len(self.arguments)
        return (
            *self.head,
            *words(f"arguments, {_all(self.lines)}, in {rows:,} rows:", self.width),
            *self.arguments[:_FIRST],
            *words(f"{left_out:,} rows not shown", self.width),
            *self.arguments[-_LAST:],
        )


def sheet_of(question: Question, width: int, secrets: Secrets | None = None) -> Sheet:
    """The question for a terminal `width` columns wide.

    Raises:
        RecursionError: the arguments are nested too deeply.
        ValueError: they are nothing that JSON can say.
    """
    masks = Masks(secrets)
    lines = _arguments(masks.json(question.arguments)).split("\n")
    arguments = tuple(row for line in lines for row in barred(line, width))
    return Sheet(
        width=width,
        head=tuple(_head(question, masks, width)),
        lines=len(lines),
        arguments=arguments,
        always=tuple(_always(question.always, secrets, width)),
    )


def barred_arguments(arguments: object, width: int) -> Iterator[str]:
    """The JSON that will be sent, all of it, behind the bar."""
    for line in _arguments(arguments).split("\n"):
        yield from barred(line, width)


def _all(lines: int) -> str:
    return "the only line" if lines == 1 else f"all {lines:,} lines"


def _head(question: Question, masks: Masks, width: int) -> Iterator[str]:
    name = question.tool.name
    yield ""
    yield from words("a tool call needs an answer", width)
    if place := _place(question):
        yield from field("where", visible(place), width)
    yield from field("server", visible(name.server), width)
    yield from field("tool", visible(name.name), width)
    yield from field("why", visible(masks.text(question.reason)), width)
    if alike := _lookalikes(question):
        yield from field("beware", visible("letters that look like others: " + alike), width)
    if masks.used:
        hidden = f"{counted(len(masks.used), 'secret')}, sent as what they are: "
        yield from field("hidden", visible(hidden + ", ".join(masks.used)), width)


def _lookalikes(question: Question) -> str:
    """The names that have letters which pass for Latin ones; `paths` and `p\u0430ths` are two."""
    name = question.tool.name
    names = [name.server, name.name, *_keys(question.arguments)]
    odd = [one for one in names if not one.isascii() and _LOOKALIKE in suspicious(one)]
    spelled_out = (one.encode("ascii", "backslashreplace").decode() for one in odd)
    return ", ".join(dict.fromkeys(spelled_out))


def _keys(value: JsonValue) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from value
        value = tuple(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from _keys(one)


def _always(rule: str | None, secrets: Secrets | None, width: int) -> Iterator[str]:
    """The rule that would be stored; none where it cannot be shown as it is."""
    if rule is None or len(rule) > _LONGEST_RULE or (secrets and secrets.mask(rule) != rule):
        return
    yield from field("always", f"auto_approve {visible(rule)}, for this session", width)


def _place(question: Question) -> str:
    """Where in the run, for a person who watches several steps at once."""
    parts = (("step", question.place.step), ("item", question.place.item))
    return ", ".join(f"{key} {value}" for key, value in parts if value)


def _arguments(arguments: object) -> str:
    """The JSON that will be sent, laid out; the line ends inside its strings stay escaped."""
    sent = json.dumps(arguments, default=writable)
    laid_out = json.dumps(json.loads(sent), indent=2, ensure_ascii=False)
    if laid_out.isascii():
        return for_terminal(laid_out)
    return "\n".join(map(visible, laid_out.split("\n")))
