"""Prompts whose constant text is not in a recording any more (C8, C12).

Only what stands outside of `{{ }}` is compared: what a template puts in is not known here. Of a
template with statements nothing is said: which of its texts are sent depends on them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from aish.cassettes.conversation_parts import ModelTurn
from aish.cassettes.places import Places
from aish.config.steps import Prompt, PromptStep
from aish.core.frozen import frozen
from aish.engine.plan.order import systems_of

_VALUE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_SYSTEM = ("system", "developer")
_SHOWN = 80

_Literals = tuple[str, ...]


@frozen
class _Opening:
    """The first request of a conversation."""

    system: str
    user: str


@frozen
class _Wanted:
    """The constant text of a step's prompt."""

    step: str
    system: _Literals
    user: _Literals

    def fits(self, opening: _Opening) -> bool:
        """Whether this prompt may have opened the conversation."""
        return _holds(opening.system, self.system) and _holds(opening.user, self.user)


def stale_prompts(
    steps: Iterable[PromptStep], turns: Iterable[ModelTurn], places: Places
) -> Iterator[tuple[str, bool]]:
    """A sentence for each prompt that was not sent as it stands, and whether it is certain.

    It is not certain where every recorded conversation belongs to another prompt: the run may have
    ended before this one.
    """
    asked = [turn for turn in turns if turn.again is None and not turn.sampled]
    openings = [_opening(turn) for turn in asked if turn.follows is None]
    later = [_opening(turn) for turn in asked if turn.follows is not None]
    every = list(steps)
    wanted = [_wanted(step, places) for step in every if step.continues is None]
    strangers = any(not any(one.fits(opening) for one in wanted) for opening in openings)
    unsent = [one for one in wanted if not any(one.fits(opening) for opening in openings)]
    for one in unsent:
        if strangers:
            yield f"step `{one.step}`: {_missing(one, openings)}", True
        else:
            yield _unsent(one), False
    for one in [_wanted(step, places) for step in every if step.continues is not None]:
        # What else is asked in a conversation, such as for another form, is not told apart.
        if not any(one.fits(opening) for opening in later):
            yield _unsent(one), False


def _unsent(wanted: _Wanted) -> str:
    return f"step `{wanted.step}`: its prompt was never sent in this recording"


def _opening(turn: ModelTurn) -> _Opening:
    system = "\n\n".join(one.text for one in turn.news if one.role in _SYSTEM)
    return _Opening(system, "\n\n".join(one.text for one in turn.news if one.role == "user"))


def _wanted(step: PromptStep, places: Places) -> _Wanted:
    return _Wanted(
        step.id,
        tuple(chain.from_iterable(_literals(text, places) for text in systems_of(step))),
        # What a server's prompt says is not known here.
        _literals(step.prompt.user, places) if isinstance(step.prompt, Prompt) else (),
    )


def _literals(source: str, places: Places) -> _Literals:
    """The texts around what is put in; none where only running the template could tell."""
    if "{%" in source or "{#" in source:
        return ()
    parts = _VALUE.split(source.replace("\r\n", "\n").replace("\r", "\n"))
    if any("{{" in part or "}}" in part for part in parts):
        return ()
    # `{{-` takes the white space before it away.
    return tuple(places.hide(part.strip()) for part in parts if part.strip())


def _holds(text: str, literals: Sequence[str]) -> bool:
    """Whether the literals stand in the text, one after the other."""
    place = 0
    for literal in literals:
        place = text.find(literal, place)
        if place < 0:
            return False
        place += len(literal)
    return True


def _missing(wanted: _Wanted, openings: Sequence[_Opening]) -> str:
    sides = (
        ("system prompt", wanted.system, [one.system for one in openings]),
        ("prompt", wanted.user, [one.user for one in openings]),
    )
    for name, literals, texts in sides:
        if not any(_holds(text, literals) for text in texts):
            lines = (line.strip() for literal in literals for line in literal.split("\n"))
            gone = (line for line in lines if line and not any(line in text for text in texts))
            line = next(gone, None)
            if line is None:
                return f"no recorded request has its {name} as it stands now"
            short = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
            return f"no recorded request has this line of its {name}: {short}"
    return "no recorded request has its system prompt and its prompt together"
