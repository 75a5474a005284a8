"""Asks the user at the terminal about a tool call or a proposed command line.

A question is shown in full, as rows; a long one in pages. Secrets in it are masked.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonValue, writable
from aish.core.phrases import counted
from aish.core.protocols import Answer, Question
from aish.core.text import for_terminal, suspicious
from aish.system.secrets.secrets import Secrets
from aish.terminal.tty import Terminal, Turns
from aish.terminal.visible_text import FOLD, cells, fold, visible, with_bar, with_label, words

_LEAST = 5
_FOR_THE_PROMPT = 2
_REST = "all"


async def show_pages(terminal: Terminal, rows: Sequence[str]) -> bool:
    """Show all rows; false if the user stopped before the end."""
    start, everything = 0, False
    while True:
        size = len(rows) if everything else max(terminal.height - _FOR_THE_PROMPT, _LEAST)
        await terminal.show(rows[start : start + size])
        start += size
        if start >= len(rows):
            return True
        prompt = f"{len(rows) - start:,} more rows [Enter: next page, {_REST}: the rest, n: no]"
        typed = await terminal.ask(prompt)
        said = None if typed is None else typed.strip().lower()
        if said not in {"", _REST}:
            return False
        everything = said == _REST


_HOST_KEYS = frozenset({"host", "hostname", "domain", "server", "address", "origin", "url", "uri"})
_PATH_KEYS = re.compile(
    r"(?:^|_)(?:path|paths|file|files|filename|dir|directory|folder|cwd|root|source|destination)$"
)
_COMMAND_KEYS = frozenset({"argv", "command", "cmd"})
_ORIGIN = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?:[^\s/?#@]*@)?(?P<host>[^\s/?#]*)"
)
_HOST = re.compile(r"(?:[^\s/?#@]*@)?([^\s/?#]+)")
_PROGRAM = re.compile(r"(?:^|[|;&(])\s*(?:[A-Za-z_]\w*=\S*\s+)*([^\s|;&()=]+)")
_PATH_WORD = re.compile(r"""(?:^|[\s"'=<>:])((?:~\w*|\.{1,2}|[A-Za-z]:)?[/\\][^\s"']*)""")

_Span = tuple[int, int]


@dataclass(slots=True)
class Masks:
    """Masks values, and keeps the tags of the masked ones."""

    secrets: Secrets | None
    used: dict[str, None] = field(default_factory=dict)

    def text(self, text: str, key: str = "", *, first: bool = True) -> str:
        """Mask a text; `key` is the name of the argument, `first` its first word or all of it."""
        if not self.secrets:
            return text
        pieces: list[str] = []
        end = 0
        shown: list[_Span] | None = None
        for start, stop, tag in self.secrets.spans(text):
            shown = _visible_spans(text, key, first=first) if shown is None else shown
            for one, other in _without((start, stop), shown):
                self.used[tag] = None
                pieces += (text[end:one], tag)
                end = other
        return "".join((*pieces, text[end:]))

    def json(self, value: JsonValue, key: str = "", *, first: bool = True) -> JsonValue:
        """A value with everything masked, including keys and numbers."""
        if not self.secrets or value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value, key, first=first)
        if isinstance(value, Mapping):
            found: dict[str, JsonValue] = {}
            for name, one in value.items():
                shown = self.text(name)
                while shown in found:
                    # Two names with the same masked form are still two.
                    shown += "'"
                found[shown] = self.json(one, name)
            return found
        if isinstance(value, Sequence):
            return [self.json(one, key, first=not number) for number, one in enumerate(value)]
        number = str(value)
        hidden = self.text(number)
        return value if hidden == number else hidden


def _without(span: _Span, shown: Sequence[_Span]) -> Iterator[_Span]:
    at, end = span
    for start, stop in sorted(shown):
        if at < min(start, end):
            yield at, min(start, end)
        at = max(at, min(stop, end))
    if at < end:
        yield at, end


def _visible_spans(text: str, key: str, *, first: bool) -> list[_Span]:
    """The part of a text that is not masked: command, path, host."""
    name = key.lower()
    if _PATH_KEYS.search(name):
        return [(0, len(text))]
    origins = [(one.span("scheme"), one.span("host")) for one in _ORIGIN.finditer(text)]
    found = [span for origin in origins for span in origin]
    if name in _COMMAND_KEYS:
        found += [one.span(1) for one in _PATH_WORD.finditer(text)]
        found += [one.span(1) for one in _PROGRAM.finditer(text)] if first else []
    if name in _HOST_KEYS and not origins and (host := _HOST.match(text)):
        found.append(host.span(1))
    return found


MOST_ROWS = 200
"""Of the arguments that are shown at once; of more a person asks to see them."""

_LOOKALIKE = "lookalike letters"
_FIRST, _LAST = 40, 20


@frozen
class Sheet:
    """A question laid out for one width: who asks, what is sent, and which rule "always" stores.

    `short` has the call on one row and the reason below it, if all of it can be seen there.
    """

    width: int
    short: tuple[str, ...]
    head: tuple[str, ...]
    lines: int
    arguments: tuple[str, ...]
    always: tuple[str, ...]

    @property
    def is_long(self) -> bool:
        return len(self.arguments) > MOST_ROWS

    @property
    def offers_always(self) -> bool:
        """True if "always" is an accepted answer."""
        return bool(self.always)

    def whole(self) -> tuple[str, ...]:
        label = words(f"arguments, {_all(self.lines)}:", self.width)
        return (*self.head, *label, *self.arguments, *self.always)

    def head_and_tail(self) -> tuple[str, ...]:
        """The head and tail of a long question, and how much is between them."""
        left_out = len(self.arguments) - _FIRST - _LAST
        rows = len(self.arguments)
        return (
            *self.head,
            *words(f"arguments, {_all(self.lines)}, in {rows:,} rows:", self.width),
            *self.arguments[:_FIRST],
            *words(f"{left_out:,} rows not shown", self.width),
            *self.arguments[-_LAST:],
        )


@frozen
class VisibleCall:
    """A call as a person has to see it: each character visible, and nothing left out.

    `facts` are labels and values. `always` is the rule that this answer would store, if it can be
    shown unchanged.
    """

    facts: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]
    always: str | None

    @property
    def label(self) -> str:
        return f"arguments, {_all(len(self.lines))}"


def visible_call(
    question: Question, secrets: Secrets | None = None, masked: Sequence[str] = ()
) -> VisibleCall:
    """The call of a question; `masked` are the tags of secrets that were masked before.

    Raises:
        RecursionError: the arguments are nested too deeply.
        ValueError: JSON cannot represent them.
    """
    masks = Masks(secrets, dict.fromkeys(masked))
    lines = tuple(_arguments(masks.json(question.arguments)).split("\n"))
    return VisibleCall(tuple(_facts(question, masks)), lines, _always(question.always, secrets))


def sheet_of(
    question: Question,
    width: int,
    secrets: Secrets | None = None,
    details: Sequence[tuple[str, str]] = (),
    masked: Sequence[str] = (),
) -> Sheet:
    """The question for a terminal `width` columns wide.

    `details` are more rows of its head, `masked` the tags of secrets that were masked before.

    Raises:
        RecursionError: the arguments are nested too deeply.
        ValueError: JSON cannot represent them.
    """
    call = visible_call(question, secrets, masked)
    facts = [*call.facts, *((label, visible(value)) for label, value in details)]
    head = [row for label, value in facts for row in with_label(label, value, width)]
    always: Iterator[str] = iter(())
    if call.always is not None:
        always = with_label("always", f"auto_approve {call.always}, for this session or run", width)
    return Sheet(
        width=width,
        short=_short(question, call, width),
        head=("", *words(f"{_asker(question)} needs an answer", width), *head),
        lines=len(call.lines),
        arguments=tuple(row for line in call.lines for row in with_bar(line, width)),
        always=tuple(always),
    )


_PLAIN_NAME = re.compile(r"[\w.\-]+", re.ASCII)
_USUAL_FACTS = frozenset({"where", "server", "tool", "why"})
_MOST_REASON_ROWS = 3
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})


def _short(question: Question, call: VisibleCall, width: int) -> tuple[str, ...]:
    """The call on one row, and why it is asked about; empty where that would not show all of it.

    The rule of "always" has exactly these arguments, so it is not repeated.
    """
    facts = dict(call.facts)
    name = str(question.tool.name)
    is_usual = "server" in facts and facts.keys() <= _USUAL_FACTS and _PLAIN_NAME.fullmatch(name)
    # One row is at least as long as these without their indentation.
    least = sum(len(line.strip()) for line in call.lines)
    if not is_usual or least >= width:
        return ()
    sent = f"{name} {_json(question.arguments)}"
    why = facts["why"] + (f" ({facts['where']})" if "where" in facts else "")
    reason = tuple(fold(why, width - len(FOLD), at_spaces=True))
    fits = sum(map(cells, sent)) < width and len(reason) <= _MOST_REASON_ROWS
    if not fits or visible(sent) != sent or _turns_around(sent + why):
        return ()
    indent = " " * len(FOLD)
    return ("", sent, *((FOLD if number else indent) + row for number, row in enumerate(reason)))


def _turns_around(text: str) -> bool:
    """Return true if a terminal may show parts of one row in another order."""
    return any(unicodedata.bidirectional(character) in _RIGHT_TO_LEFT for character in text)


def arguments_with_bar(arguments: object, width: int) -> Iterator[str]:
    """The complete JSON that will be sent, behind the bar."""
    for line in _arguments(arguments).split("\n"):
        yield from with_bar(line, width)


def _all(lines: int) -> str:
    return "the only line" if lines == 1 else f"all {lines:,} lines"


def _asker(question: Question) -> str:
    """Name what asks: only a call has a server."""
    return "a tool call" if question.tool.name.server else "another program"


def _facts(question: Question, masks: Masks) -> Iterator[tuple[str, str]]:
    name = question.tool.name
    if place := _place(question):
        yield "where", visible(place)
    if name.server:
        yield "server", visible(name.server)
        yield "tool", visible(name.name)
    yield "why", visible(masks.text(question.reason))
    if alike := _lookalikes(question):
        yield "beware", visible("lookalike letters: " + alike)
    if masks.used:
        hidden = f"{counted(len(masks.used), 'secret')}, sent as what they are: "
        yield "hidden", visible(hidden + ", ".join(masks.used))


def _lookalikes(question: Question) -> str:
    """The names with letters that look like Latin ones; `paths` and `p\u0430ths` are two."""
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


def _always(rule: str | None, secrets: Secrets | None) -> str | None:
    """The rule that would be stored; none if it cannot be shown unchanged."""
    if rule is None or (secrets and secrets.mask(rule) != rule):
        return None
    return visible(rule)


def _place(question: Question) -> str:
    """The place in the run, for a user who watches several steps at once."""
    place = question.place
    step = ("step", place.step) if place.client is None else ("client", place.client)
    parts = (step, ("item", place.item))
    return ", ".join(f"{key} {value}" for key, value in parts if value)


def _arguments(arguments: object) -> str:
    """The JSON that will be sent, laid out; line ends inside its strings remain escaped."""
    laid_out = _json(arguments, indent=2)
    if laid_out.isascii():
        return for_terminal(laid_out)
    return "\n".join(map(visible, laid_out.split("\n")))


def _json(arguments: object, indent: int | None = None) -> str:
    sent = json.dumps(arguments, default=writable)
    return json.dumps(json.loads(sent), indent=indent, ensure_ascii=False)


PROMPT_SHORT = "send? [y/N/?]"
PROMPT_SHORT_ALWAYS = "send? [y/N/a/?]"
PROMPT = "send this call? [y/N]"
PROMPT_ASKED = "answer yes? [y/N]"
PROMPT_ALWAYS = "send this call? [y/N/a]"
VIEW = "v shows all of it [v/N]"
UNSEEN = "not before all of it was shown"
RESIZED = "the window is narrower now, so here is the call again"
UNSHOWN = "its arguments are nested too deeply to be shown"
YES = frozenset({"y", "yes"})
_ALWAYS = frozenset({"a", "always"})
_AT_LENGTH = frozenset({"?", "help"})
_VIEW = frozenset({"v", "view"})


class TerminalApprover:
    """Asks one question at a time; only `y` or `yes` is yes, only `a` or `always` is always.

    A call that can be seen on one row is shown so; `?` shows it at length, with the rule of `a`.
    Uses `/dev/tty`, the given descriptors, or the terminal of `turns`.
    """

    def __init__(
        self,
        *,
        reader: int | None = None,
        writer: int | None = None,
        pause: Callable[[], AbstractContextManager[object]] = nullcontext,
        secrets: Secrets | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._turns = turns or Turns(reader=reader, writer=writer, pause=pause)
        self._secrets = secrets

    @property
    def attended(self) -> bool:
        return self._turns.attended

    async def ask(self, question: Question) -> Answer:
        """Anything but `no` only if it was typed after the whole question was shown."""
        if not self.attended:
            return "no"
        try:
            async with self._turns.take() as terminal:
                # While others were asked, it may have been answered.
                if not await question.is_open():
                    return "no"
                with _report_other_answer(terminal, question.answered):
                    return await self._ask(terminal, question)
        except OSError:
            # A closed terminal is no approval.
            return "no"

    async def _ask(self, terminal: Terminal, question: Question) -> Answer:
        at_length = False
        while True:
            width = terminal.width
            try:
                sheet = sheet_of(question, width, self._secrets)
            except (RecursionError, ValueError):
                name = visible(str(question.tool.name))
                await terminal.show(("", *with_label("not sent", f"{name}: {UNSHOWN}", width)))
                return "no"
            if sheet.short and not at_length:
                await terminal.show(sheet.short)
                prompt = PROMPT_SHORT_ALWAYS if sheet.offers_always else PROMPT_SHORT
                said = _word(await terminal.ask(prompt))
            else:
                prompt = PROMPT if question.tool.name.server else PROMPT_ASKED
                prompt = PROMPT_ALWAYS if sheet.offers_always else prompt
                said = await _answer_to(terminal, sheet, prompt)
            if said in _AT_LENGTH:
                at_length = True
                continue
            answer: Answer = "no"
            if said in YES:
                answer = "yes"
            elif said in _ALWAYS and sheet.offers_always:
                answer = "always"
            if answer == "no" or terminal.width >= width:
                return answer
            # The terminal has folded the rows by itself, so that some began without our bar.
            await terminal.show(("", *words(RESIZED, terminal.width)))


@contextmanager
def _report_other_answer(terminal: Terminal, answered: Callable[[], str | None]) -> Generator[None]:
    """Show at the end who has answered the question first, if somebody else did."""
    try:
        yield
    finally:
        if said := answered():
            terminal.show_at_once(words(visible(said), terminal.width))


async def _answer_to(
    terminal: Terminal,
    sheet: Sheet,
    prompt: str,
    view: str = VIEW,
    unseen: frozenset[str] = frozenset(),
) -> str:
    """Return what was typed after the whole question was shown; nothing if the user stops reading.

    The words in `unseen` are also accepted before a long question was shown whole.
    """
    if not sheet.is_long:
        await terminal.show(sheet.whole())
    else:
        await terminal.show(sheet.head_and_tail())
        while (said := _word(await terminal.ask(view))) not in _VIEW:
            if said in unseen:
                return said
            if said not in YES | _ALWAYS:
                return ""
            await terminal.show(words(UNSEEN, terminal.width))
        if not await show_pages(terminal, sheet.whole()):
            return ""
    return _word(await terminal.ask(prompt))


def _word(typed: str | None) -> str:
    return "" if typed is None else typed.strip().lower()


Decision = Literal["approve", "always", "deny", "open"]
"""What a person decides about a question that need not be answered now."""

PROMPT_DECIDE = "approve this call? [y: approve, n: deny, Enter: leave it open]"
PROMPT_DECIDE_ALWAYS = "approve this call? [y: approve, a: always, n: deny, Enter: leave it open]"
PROMPT_DENY = "deny this call? [y: deny, Enter: leave it open]"
VIEW_DECIDE = "v shows all of it, n denies it [v/n, Enter: leave it open]"
VIEW_DENY = "v shows all of it, y denies it [v/y, Enter: leave it open]"
_NO = frozenset({"n", "no"})


async def ask_decision(
    question: Question,
    turns: Turns,
    *,
    deny: bool = False,
    details: Sequence[tuple[str, str]] = (),
    masked: Sequence[str] = (),
) -> Decision:
    """The decision about a recorded question; with `deny` it is asked whether to deny it.

    A call is approved only after all of it was shown; it may be denied before. Anything but an
    answer leaves it open.

    Raises:
        OSError: there is no terminal, or it was closed.
        RecursionError: the arguments are nested too deeply to be shown.
        ValueError: JSON cannot represent them.
    """
    prompt, view = (PROMPT_DENY, VIEW_DENY) if deny else (PROMPT_DECIDE, VIEW_DECIDE)
    denials = YES if deny else _NO
    async with turns.take() as terminal:
        while True:
            width = terminal.width
            sheet = sheet_of(question, width, details=details, masked=masked)
            offers = sheet.offers_always and not deny
            shown = PROMPT_DECIDE_ALWAYS if offers else prompt
            said = await _answer_to(terminal, sheet, shown, view, denials)
            if said in denials:
                return "deny"
            if said not in YES and not (offers and said in _ALWAYS):
                return "open"
            if terminal.width >= width:
                return "approve" if said in YES else "always"
            await terminal.show(("", *words(RESIZED, terminal.width)))


CommandAnswer = Literal["no", "yes", "edit"]

_EDIT = frozenset({"e", "edit"})
_LINE_ENDS = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
_RESIZED = "the window is narrower now, so here is the command again"
_SPELLED_OUT = "invisible characters are spelled out"


async def ask_command(
    command: str,
    terminal: Turns,
    *,
    secrets: Secrets | None = None,
    answered: Callable[[], str | None] = lambda: None,
) -> CommandAnswer:
    """The user's answer to one line; `no`, unasked, to several lines or none.

    `answered` says who else has given the answer first.
    """
    if not terminal.attended or not command.strip() or not _LINE_ENDS.isdisjoint(command):
        return "no"
    shown = visible(Masks(secrets).text(command, "command"))
    note = _SPELLED_OUT if visible(command) != command else ""
    try:
        async with terminal.take() as screen:
            with _report_other_answer(screen, answered):
                said = await _read_answer(screen, shown, note)
    except OSError:
        # A closed terminal is no approval.
        return "no"
    if said in YES:
        return "yes"
    return "edit" if said in _EDIT else "no"


async def _read_answer(screen: Terminal, shown: str, note: str) -> str:
    """The answer typed after everything was shown; nothing if the user stops reading."""
    while True:
        width = screen.width
        rows, prompt = _question(shown, width)
        rows = ("", *rows, *(words(note, width) if note else ()))
        # Text that scrolls away is not seen, and the worst part of a command may come first.
        if len(rows) < screen.height:
            await screen.show(rows)
        elif not await show_pages(screen, rows):
            return ""
        typed = await screen.ask(prompt)
        said = "" if typed is None else typed.strip().lower()
        if said not in YES or screen.width >= width:
            return said
        await screen.show(("", *words(_RESIZED, screen.width)))


def _question(shown: str, width: int) -> tuple[tuple[str, ...], str]:
    prompt = f"run '{shown}'? [y/N/e]"
    # A command broken at its spaces would be a different one; and it must not begin a line.
    if len(prompt) + 2 < width and prompt.isascii():
        return (), prompt
    return tuple(with_bar(shown, width)), "run this? [y/N/e]"
