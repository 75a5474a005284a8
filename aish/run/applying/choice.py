"""Which staged calls are applied now, and what stands against that: pure (B16)."""

from collections.abc import Mapping, Sequence

from aish.core.errors import AishError, UsageError, did_you_mean
from aish.core.frozen import frozen
from aish.core.text import counted
from aish.run.applying.log import State
from aish.run.staging.call import StagedCall

_SHOWN = 5
_UNSETTLED: tuple[tuple[State, str, str], ...] = (
    ("unknown", "begun before, and whether it took effect is not known", "--retry-unknown"),
    ("failed", "failed before", "--retry-failed"),
)


@frozen
class Wish:
    """What the command line says of calls: ids, or beginnings of them that fit one call only."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    retry_unknown: bool = False
    retry_failed: bool = False


class UnsettledError(AishError):
    """Calls of which an earlier attempt left it open whether they should be made."""

    code = "unsettled_calls"


def chosen(calls: Sequence[StagedCall], wish: Wish) -> tuple[StagedCall, ...]:
    """The calls that are meant, in the order of the file.

    Raises:
        UsageError: an id is that of no call, or of several.
    """
    only = {_named(id, calls, "--only") for id in wish.only}
    skip = {_named(id, calls, "--skip") for id in wish.skip}
    if both := only & skip:
        raise UsageError(f"`--only` and `--skip` both name `{min(both)}`")
    return tuple(c for c in calls if c.id not in skip and (not only or c.id in only))


def is_unsettled(state: State, wish: Wish, *, idempotent: bool) -> bool:
    """Whether a call in this state needs a word of the person before it is made again."""
    if state == "unknown":
        return not wish.retry_unknown and not idempotent
    return state == "failed" and not wish.retry_failed


def require_settled(
    calls: Sequence[StagedCall],
    states: Mapping[str, State],
    wish: Wish,
    idempotent: frozenset[str] = frozenset(),
) -> None:
    """Refuse to go on past calls that failed, or of which it is not known.

    Raises:
        UnsettledError: names them.
    """
    for state, said, flag in _UNSETTLED:
        found = [
            call
            for call in calls
            if states.get(call.digest, "open") == state
            and is_unsettled(state, wish, idempotent=call.digest in idempotent)
        ]
        if found:
            names = ", ".join(f"`{call.id}` ({call.name})" for call in found[:_SHOWN])
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise UnsettledError(
                f"{counted(len(found), 'staged call')} {said}: {names}{more}",
                hint=f"look what is there; then `{flag}` makes it again, `--skip ID` leaves it out",
            )


def _named(id: str, calls: Sequence[StagedCall], option: str) -> str:
    found = [call.id for call in calls if id and call.digest.startswith(id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"`{id}` fits {len(found)} calls", where=option)
    hint = did_you_mean(id, (call.id for call in calls))
    raise UsageError(f"no staged call has the id `{id}`", where=option, hint=hint)
