"""Comparison of two fingerprints, in words."""

from collections.abc import Iterator, Mapping

from aish.config.loader import lookup_position
from aish.config.model import Pipeline
from aish.core.events import Notice, Place
from aish.core.phrases import first_lines
from aish.engine.resume_state import ResumeRefusedError

_SHOWN = 20


def differences(
    before: Mapping[str, object], now: Mapping[str, object], pipeline: Pipeline
) -> tuple[str, ...]:
    """The differences, one line each: `p.yaml:4:5: steps[0].prompt changed`."""
    return tuple(_lines(before, now, pipeline))


def check_same(before: Mapping[str, object], now: Mapping[str, object], pipeline: Pipeline) -> None:
    """Check that the resumed run has an unchanged fingerprint.

    Raises:
        ResumeRefusedError: it differs; lists all differences.
    """
    if not before:
        said = "its journal does not record the inputs of the run"
        raise ResumeRefusedError(said, hint=f"start a new run, or {_FORCE}")
    found = differences(before, now, pipeline)
    if found:
        lines = "".join(f"\n  {line}" for line in first_lines(found, _SHOWN, "… "))
        hint = f"undo the change, start a new run without `--resume`, or {_FORCE}"
        raise ResumeRefusedError(f"the run would differ:{lines}", hint=hint)


def check_nothing_changed(
    run: str, before: Mapping[str, object], now: Mapping[str, object], pipeline: Pipeline
) -> None:
    """Check that the results of a complete run are not passed off as those of what changed since.

    Raises:
        ResumeRefusedError: something changed.
    """
    found = differences(before, now, pipeline)
    if found:
        changed = "; ".join(first_lines(found, _SHOWN, "… "))
        message = f"run {run} is complete, and `--force` adds nothing to it, although {changed}"
        raise ResumeRefusedError(message, hint="start a new run without `--resume`")


def notices_of_differences(
    before: Mapping[str, object], now: Mapping[str, object], pipeline: Pipeline
) -> tuple[Notice, ...]:
    """The notices of a run that is resumed despite differences."""
    found = differences(before, now, pipeline)
    if not found:
        return ()
    text = f"resumed with `--force`, although {'; '.join(first_lines(found, _SHOWN, '… '))}"
    return (Notice(Place(), "warning", "resume_forced", text),)


_FORCE = "`--force` continues an unfinished run with its results"


def _lines(
    before: Mapping[str, object], now: Mapping[str, object], pipeline: Pipeline
) -> Iterator[str]:
    steps = {step.id: number for number, step in enumerate(pipeline.steps)}
    told: set[str] = set()
    for path in (*now, *(path for path in before if path not in now)):
        # How requests are delivered is no difference, whoever says it.
        if before.get(path) == now.get(path) or path.startswith("--delivery "):
            continue
        step = path.split(".")[1] if path.startswith("steps.") else None
        if step is not None and _all_or_nothing(step, before, now):
            if step not in told:
                told.add(step)
                position = lookup_position(pipeline, f"steps[{steps.get(step)}]")
                is_new = f"{position}: the step `{step}` is new"
                yield is_new if step in steps else f"the step `{step}` is gone"
            continue
        what = "changed" if path in before else "is new"
        yield _line(path, what if path in now else "is gone", steps, pipeline)


def _all_or_nothing(step: str, before: Mapping[str, object], now: Mapping[str, object]) -> bool:
    """True if one of the two has nothing of the step."""
    start = f"steps.{step}."
    return any(not any(path.startswith(start) for path in side) for side in (before, now))


def _line(path: str, what: str, steps: Mapping[str, int], pipeline: Pipeline) -> str:
    first, _, rest = path.partition(" ")
    if first in _OUTSIDE:
        return f"{_OUTSIDE[first].format(rest)} {what}"
    head, _, tail = path.partition(".")
    if "/" in head:
        above, _, part = head.rpartition("/")
        return f"`{part}.{tail}` of the sub-pipeline `{above}` {what}"
    place = path
    if head == "steps":
        step, _, key = tail.partition(".")
        place = f"steps[{steps[step]}].{key}" if step in steps else path
    if place not in pipeline.positions or what == "is gone" or head == "inputs":
        return f"`{place}` {what}"
    return f"{lookup_position(pipeline, place)}: `{place}` {what}"


# Parts that are not in the file itself.
_OUTSIDE: Mapping[str, str] = {
    "file": "the file `{}`",
    "files": "which files `{}` means",
    "stdin": "what is piped in",
    "lock": "the lock file",
}
