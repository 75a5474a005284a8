"""Approval of a local command: by the rules, by typing it, or by an answer."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal

from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.protocols import Answer, Approver, Question
from aish.core.protocols import Asking as AskingHow
from aish.core.sources import NO_SOURCES, Sources
from aish.engine.resources.toolbox import SHELL_RUN, command_arguments
from aish.policy.decide import decide
from aish.policy.gate import Gate, Proposal
from aish.shell.input.lines import Lines
from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import ask_command
from aish.terminal.tty import Turns

PROPOSED = replace(SHELL_RUN, trusted=False)
"""The tool as a stranger wants it: only rules about its command line approve it."""

Reaction = Literal["no", "yes", "edit"]


class CommandAsking:
    """Asks the person about a command: `run '<command>'? [y/N/e]`, and the editor for `e`."""

    def __init__(self, lines: Lines, turns: Turns, secrets: Secrets) -> None:
        self._lines = lines
        self._turns = turns
        self._secrets = secrets

    async def ask(self, command: str, answered: Callable[[], str | None]) -> Reaction:
        """The answer; any but `y` and `e` means no. `answered` says who else has given one."""
        return await ask_command(command, self._turns, secrets=self._secrets, answered=answered)

    async def edit(self, command: str) -> str | None:
        """The command as edited by the person; `None` if that was cancelled."""
        return await self._lines.edit(command, "run: ")


class RepeatingApprover:
    """An approver that knows the person's earlier answer about a local command."""

    def __init__(self, other: Approver) -> None:
        self._other = other
        self._said: tuple[Place, Answer] | None = None

    @property
    def attended(self) -> bool:
        return self._said is not None or self._other.attended

    @contextmanager
    def answer_with(self, place: Place, answer: Answer | None) -> Generator[None]:
        """Within the block, `answer` is the person's answer for the call at `place`."""
        self._said = None if answer is None else (place, answer)
        try:
            yield
        finally:
            self._said = None

    async def ask(self, question: Question) -> Answer:
        """The earlier answer for this call; for any other the person is asked."""
        if self._said is not None and self._said[0] == question.place:
            return self._said[1]
        return await self._other.ask(question) if self._other.attended else "no"


@frozen
class LocalDecision:
    """A proposal, possibly edited, and the person's answer if they were asked."""

    command: str
    answer: Answer | None


async def settle(
    command: str,
    place: Place,
    gate: Gate,
    asking: CommandAsking | None,
    waiting: AskingHow,
    sources: Sources = NO_SOURCES,
) -> LocalDecision:
    """Ask about a proposal if the rules require it; an edited command is decided again.

    Somebody else may answer before the person does. `place` is where it would be run. What the
    text that it follows holds is asked about with the causes, when it is called.
    """
    while asking is not None:
        proposal = Proposal(PROPOSED, command_arguments(command), place, sources)
        ruling = decide(gate.policy, PROPOSED, proposal.arguments)
        if ruling.verdict != "ask" or gate.is_held(proposal):
            break
        reactions: list[Reaction] = []
        end = await gate.ask_ahead(
            proposal,
            partial(_react, asking, command, reactions),
            waiting,
        )
        if "edit" not in reactions:
            return LocalDecision(command, "yes" if end.approves else "no")
        edited = (await asking.edit(command) or "").strip()
        if not edited:
            return LocalDecision(command, "no")
        command = edited
    return LocalDecision(command, None)


async def _react(
    asking: CommandAsking, command: str, reactions: list[Reaction], question: Question
) -> Answer | None:
    """The answer to a question; `None` if the command is to be changed, and so another one."""
    reaction = await asking.ask(command, question.answered)
    reactions.append(reaction)
    return None if reaction == "edit" else reaction
