"""A server asks the person for something while a call of it runs (M11).

Everything in such a request is a stranger's text: it stands behind the bar, below a line of ours
that says which server asks. What was typed is shown once more before it is sent.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from aish.core.json import JsonObject, JsonValue
from aish.core.text import counted
from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import YES
from aish.terminal.fields import Field, FieldError, value_of
from aish.terminal.folding import barred_text, field, words
from aish.terminal.form import fields_of
from aish.terminal.masking import Masks
from aish.terminal.question import barred_arguments
from aish.terminal.sight import visible
from aish.terminal.tty import Terminal
from aish.terminal.turns import Turns

ACCEPTED = "accept"
DECLINED: JsonObject = {"action": "decline"}
CANCELLED: JsonObject = {"action": "cancel"}
BEGIN = "answer it? [y/N]"
SEND = "send this? [y/N/e]"
_AGAIN = frozenset({"e", "edit"})
_GIVE_UP = "Ctrl-C gives up"
_MOST_ROWS = 60


class TerminalElicitor:
    """The `Elicit` of `mcp`: the server's alias and its params in, the result out.

    `decline` is a no, also to a page that should be opened: none ever is. `cancel` is the end of
    the input, Ctrl-C, or a terminal that went away.
    """

    def __init__(self, turns: Turns, *, secrets: Secrets | None = None) -> None:
        self._turns = turns
        self._secrets = secrets

    async def __call__(self, server: str, params: JsonObject) -> JsonObject:
        """The `ElicitResult`; what is accepted fits what was asked for."""
        if not self._turns.attended:
            return DECLINED
        try:
            async with self._turns.take(interrupts=False) as terminal:
                return await self._asked(terminal, server, params)
        except OSError:
            # Whoever has no terminal any more has not answered.
            return CANCELLED

    async def _asked(self, terminal: Terminal, server: str, params: JsonObject) -> JsonObject:
        said = params.get("message")
        message = Masks(self._secrets).text(said if isinstance(said, str) else "")
        mode = params.get("mode", "form")
        if mode == "url":
            url = params.get("url")
            shown = _page_rows(server, message, url if isinstance(url, str) else "", terminal.width)
            await terminal.show(shown)
            return DECLINED
        await terminal.show(_form_rows(server, message, terminal.width))
        try:
            fields = fields_of(params.get("requestedSchema"), str(mode))
        except FieldError as error:
            why = f"answered with a no: {error}"
            await terminal.show(field("aish", visible(why), terminal.width))
            return DECLINED
        return await _filled_in(terminal, fields)


async def _filled_in(terminal: Terminal, fields: Sequence[Field]) -> JsonObject:
    """The answers of a person who wants to give some."""
    sent = f"{counted(len(fields), 'field')}; nothing is sent before you have seen all of it"
    await terminal.show(words(f"{sent}; {_GIVE_UP}", terminal.width))
    typed = await terminal.ask(BEGIN)
    while typed is not None and typed.strip().lower() in YES | _AGAIN:
        content: dict[str, JsonValue] = {}
        for number, one in enumerate(fields, 1):
            await terminal.show(_field_rows(one, number, len(fields), terminal.width))
            found = await _value(terminal, one)
            if found is None:
                return CANCELLED
            content.update(found)
        await terminal.show(("", *barred_arguments(content, terminal.width)))
        typed = await terminal.ask(SEND)
        said = "" if typed is None else typed.strip().lower()
        if said in YES:
            return {"action": ACCEPTED, "content": content}
        fields = [replace(one, default=content.get(one.name, one.default)) for one in fields]
        if said not in _AGAIN:
            break
    return CANCELLED if typed is None else DECLINED


async def _value(terminal: Terminal, one: Field) -> Mapping[str, JsonValue] | None:
    """What a person gives for a field, nothing of one that is left out; `None` at the end."""
    while True:
        typed = await terminal.fill(">")
        if typed is None:
            return None
        line = typed.rstrip("\r\n")
        if line:
            try:
                return {one.name: value_of(one, line)}
            except FieldError as error:
                await terminal.show(words(f"{error}; {_GIVE_UP}", terminal.width))
        elif one.default is not None:
            return {one.name: one.default}
        elif not one.required:
            return {}
        else:
            await terminal.show(words(f"it cannot be left out; {_GIVE_UP}", terminal.width))


def _form_rows(server: str, message: str, width: int) -> Iterator[str]:
    yield ""
    yield from words("a server asks you for something, and gets what you answer", width)
    yield from field("server", visible(server), width)
    yield from _some(barred_text(message, width), width)


def _page_rows(server: str, message: str, url: str, width: int) -> Iterator[str]:
    yield ""
    yield from words("a server wants you to open a page; aish opens none and says no", width)
    yield from field("server", visible(server), width)
    yield from field("host", visible(_host(url)), width)
    yield from _some(barred_text(message, width), width)
    yield from barred_text(url, width)


def _field_rows(one: Field, number: int, count: int, width: int) -> Iterator[str]:
    """What is asked in one field, ours first; a stranger's words behind the bar."""
    yield ""
    need = "required" if one.required else "optional"
    yield from words(f"field {number} of {count}: {one.wants}, {need}", width)
    label = f"{one.title} ({one.name})" if one.title else one.name
    about = f"{label}: {one.description}" if one.description else label
    yield from _some(barred_text(about, width), width)
    for place, choice in enumerate(one.choices, 1):
        own = "" if choice.title == choice.value else f" ({choice.value})"
        yield from field(str(place), visible(choice.title + own), width)
    if one.kind == "choices":
        yield from words("some of them, with commas between", width)
    if one.default is not None:
        yield from field("Enter", visible(json.dumps(one.default, ensure_ascii=False)), width)
    elif not one.required:
        yield from field("Enter", "leaves it out", width)


def _some(rows: Iterator[str], width: int) -> Iterator[str]:
    """As many rows as a person reads before a question, and how many more there are."""
    every = tuple(rows)
    yield from every[:_MOST_ROWS]
    if len(every) > _MOST_ROWS:
        yield from words(f"{len(every) - _MOST_ROWS:,} more rows are not shown", width)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "none"
    except ValueError:
        return "none"
