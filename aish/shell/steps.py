"""Steps of a session as events: each line that queries a model is one."""

from collections.abc import Generator
from contextlib import contextmanager

from aish.core.errors import AishError, BudgetError
from aish.core.events import Failure, Place, StepFinished, StepStarted, StepStatus
from aish.core.messages import Usage
from aish.engine.final import failure_of
from aish.shell.session import ShellSession

STOPPED = Failure("interrupted", "interrupted")


@contextmanager
def step(session: ShellSession, place: Place) -> Generator[None]:
    """A step of a model without a question of the person, such as a summary."""
    clock = session.open.environment.clock
    session.emit(StepStarted(place, "prompt"))
    begun = clock.monotonic()

    status: StepStatus = "failed"
    failure: Failure | None = STOPPED
    try:
        yield
        status, failure = "ok", None
    except AishError as error:
        status = "budget" if isinstance(error, BudgetError) else "failed"
        failure = failure_of(error)
        raise
    finally:
        finish(session, place, status, None, clock.monotonic() - begun, failure)


def finish(
    session: ShellSession,
    place: Place,
    status: StepStatus,
    text: str | None,
    seconds: float,
    failure: Failure | None,
) -> None:
    session.seconds += seconds
    used = session.following.spending.of(place)
    session.emit(
        StepFinished(
            place=place,
            status=status,
            text=text,
            output=None,
            usage=used.usage or Usage(),
            cost_usd=used.cost_usd,
            seconds=seconds,
            error=failure,
        )
    )
