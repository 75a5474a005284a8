"""What is done with each letter of a worker; those of an item that it lost are not read (B7)."""

from dataclasses import dataclass
from typing import Protocol

from anyio.abc import TaskGroup

from aish.run.cluster.desk import Desk, end_hold
from aish.run.cluster.errand import Errand
from aish.run.cluster.letters import (
    Answer,
    Asked,
    Begin,
    Broken,
    Done,
    FromWorker,
    HoldEnded,
    Kept,
    Opened,
    Redeemed,
    Told,
)
from aish.run.cluster.visit import Visit


class Door(Protocol):
    """The reception, to the clerk."""

    def lose(self, visit: Visit) -> None:
        """A worker is gone."""
        ...


@dataclass(slots=True)
class Clerk:
    """Hands letters on, to the desk or to the item they are of."""

    desk: Desk
    errands: dict[int, Errand]

    def take(self, letter: FromWorker, visit: Visit, door: Door, tasks: TaskGroup) -> None:
        """One letter.

        Raises:
            AishError: the worker cannot open what the run needs.
        """
        match letter:
            case Told() | Redeemed() | Done() | Broken():
                self._of_item(letter, visit)
            case HoldEnded():
                end_hold(letter, visit)
            case Kept():
                self.desk.keep(letter)
            case Asked(_, _, Begin()):
                self._wants_to_begin(letter, visit, door)
            case Asked():
                tasks.start_soon(self._answer, letter, visit)
            case Opened(error) if error is not None:
                error.where = " on ".join(part for part in (error.where, visit.address) if part)
                raise error
            case _:
                pass

    def _of_item(self, letter: Told | Redeemed | Done | Broken, visit: Visit) -> None:
        errand = None if letter.ticket is None else self._of(letter.ticket, visit)
        if letter.ticket is not None and errand is None:
            return
        match letter:
            case Told():
                self.desk.tell(letter, errand)
            case Redeemed():
                self.desk.redeem(letter)
            case Done(_, record) if errand is not None:
                errand.record = record
                errand.stir()
            case Broken(_, said) if errand is not None:
                errand.broken = said
                errand.stir()
            case _:
                pass

    def _of(self, ticket: int, visit: Visit) -> Errand | None:
        """The item, if it is this session that runs it."""
        errand = self.errands.get(ticket)
        return errand if errand is not None and errand.owner is visit else None

    def _wants_to_begin(self, asked: Asked, visit: Visit, door: Door) -> None:
        errand = self.errands.get(asked.ticket or 0)
        if errand is None or errand.ended:
            visit.order(Answer(asked.number))
            return
        if errand.owner is not None:
            # Dask runs a task again only where the worker that had it is gone.
            door.lose(errand.owner)
        errand.wanted_by = visit, asked.number
        errand.stir()

    async def _answer(self, asked: Asked, visit: Visit) -> None:
        errand = None if asked.ticket is None else self._of(asked.ticket, visit)
        if asked.ticket is not None and errand is None:
            return
        with visit.work.held() if errand is None else errand.answers.held():
            await self.desk.answer(asked, visit)
