"""How a run ends that has a cassette: misses, leftovers, the file, the comparison (C5, C7, C9).

Imported only by runs that have a tape. By now everything that was open is closed.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from aish.cassettes.errors import CassetteFileError
from aish.cassettes.file import failed, partial, shown
from aish.cassettes.interaction import Interaction
from aish.cassettes.tape import kind_of
from aish.core.errors import AishError, ExitCode
from aish.core.events import NOWHERE, CassetteUse, Event, Level, Notice
from aish.core.frozen import frozen
from aish.core.protocols import Emit
from aish.run.final import NAMES, FinalState, decide_exit
from aish.run.surroundings import AnyTape
from aish.run.taping.borders import tape_of
from aish.run.taping.reel import RunTape

_CUT_OFF = frozenset({ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.INTERNAL})
_SHOWN = 5


class LeftoverError(AishError):
    """A replay under `strict` did not use all of its cassette (C5)."""

    exit_code = ExitCode.CASSETTE
    code = "cassette_leftovers"


class NotRecordedError(AishError):
    """The run is over, and its cassette could not be written."""

    code = "not_recorded"


@frozen
class TapeEnd:
    """What the end of a tape adds to the final state, and what became of the cassette."""

    errors: tuple[AishError, ...]
    use: CassetteUse | None


def end_tape(tape: AnyTape, state: FinalState, emit: Emit) -> TapeEnd:
    """Write the cassette, or say how the one that was played fits."""
    found = tape_of(tape)
    missed = _missed(found)
    code = ExitCode(decide_exit(replace(state, others=(*state.others, *missed))).code)
    if found.reel.records:
        return _recorded(found, code, emit)
    played = [one for one in _interactions(found) if found.way(kind_of(one.request)) == "replay"]
    left = found.leftovers()
    use = CassetteUse(found.reel.shown, "replayed", len(played) - len(left))
    if found.following is not None:
        if code not in _CUT_OFF:
            emit(_notice("info", "comparison", _compared(found)))
        return TapeEnd(missed, use)
    if missed or not left or code in _CUT_OFF:
        return TapeEnd(missed, use)
    # Of a run that failed by itself, what it did not come to is no second failure.
    if found.reel.choice.strict and code is ExitCode.OK:
        return TapeEnd((_leftover(found, left),), use)
    emit(_notice("info", "unused_interactions", str(_leftover(found, left))))
    return TapeEnd((), use)


def _compared(tape: RunTape) -> str:
    """What the live model did otherwise than the recorded one (C7)."""
    # Only here: these take milliseconds, and hardly any run compares.
    from aish.cassettes.comparison_text import comparison_lines
    from aish.cassettes.trajectory import compare
    from aish.run.taping.trajectories import Following, asked_for

    following = tape.following
    assert isinstance(following, Following), "`RunTape.followed` makes them"
    recorded = asked_for(_interactions(tape), tape.entries)
    title = f"`{tape.reel.choice.live_model}` compared with {tape.reel.shown}"
    return "\n".join((title, *comparison_lines(compare(recorded, following.trajectory))))


def _interactions(tape: RunTape) -> tuple[Interaction, ...]:
    cassette = tape.reel.cassette
    return cassette.interactions if cassette is not None else ()


def _missed(tape: RunTape) -> tuple[AishError, ...]:
    """The first miss; the others follow from it more often than not."""
    if not tape.missed:
        return ()
    first, more = tape.missed[0], len(tape.missed) - 1
    return (first,) if not more else (_with_more(first, more),)


def _with_more(miss: AishError, more: int) -> AishError:
    said = "1 more request was missed" if more == 1 else f"{more} more requests were missed"
    return type(miss)(f"{miss.message}\n{said} after it", where=miss.where, hint=miss.hint)


def _recorded(tape: RunTape, code: ExitCode, emit: Emit) -> TapeEnd:
    choice = tape.reel.choice
    place = choice.path
    if code not in choice.accepted:
        if not choice.keep_failed:
            return _not_kept(tape, code, emit)
        place = failed(place)
    left = tape.leftovers()
    try:
        done = tape.finish(tape.head, place)
    except CassetteFileError as error:
        # In full, whatever else the run failed by; its reason is the first line.
        emit(_notice("error", NotRecordedError.code, str(error)))
        said = error.message.partition("\n")[0]
        return TapeEnd((NotRecordedError(said, where=error.where, hint=error.hint),), None)
    if left:
        emit(_notice("warning", "unused_interactions", str(_leftover(tape, left))))
    return TapeEnd((), CassetteUse(shown(place), "recorded", len(done)))


def _not_kept(tape: RunTape, code: ExitCode, emit: Emit) -> TapeEnd:
    """The older cassette stays; what was recorded only where the run was cut off (C9)."""
    path, there = tape.reel.choice.path, partial(tape.reel.choice.path)
    kept = f"`{tape.reel.shown}` is kept as it was" if path.exists() else "no cassette is written"
    said = f"the run ended with {int(code)} ({NAMES[code]}), so {kept}"
    if code not in _CUT_OFF:
        tape.discard()
        said += f"; `--keep-failed` writes the recording to `{shown(failed(path))}`"
    elif there.exists():
        said += f"; what was recorded is in `{shown(there)}`"
    emit(_notice("warning", "recording_incomplete", said))
    return TapeEnd((), None)


def _leftover(tape: RunTape, left: Sequence[tuple[int, Interaction]]) -> LeftoverError:
    one, many = "interaction of {} was not used", "interactions of {} were not used"
    said = (one if len(left) == 1 else many).format(tape.reel.shown)
    lines = [f"{len(left)} {said}"]
    lines += [f"{number}: {_named(other)}" for number, other in left[:_SHOWN]]
    if len(left) > _SHOWN:
        lines.append(f"and {len(left) - _SHOWN} more")
    hint = f"if the change is meant, `{tape.reel.choice.renewal}` records it again"
    return LeftoverError("\n".join(lines), hint=hint)


def _named(one: Interaction) -> str:
    """An interaction as a person knows it: where it went, and what for."""
    request = one.request
    said = ""
    if kind_of(request) == "mcp":
        try:
            message = json.loads(request.body)
            said = f" {message['method']}"
            said += f" {message['params']['name']}"
        except (ValueError, RecursionError, KeyError, TypeError):
            # The parts that it has are told.
            pass
    return f"{request.method} {request.uri}{said}"


def _notice(level: Level, code: str, text: str) -> Event:
    return Notice(NOWHERE, level, code, text)
