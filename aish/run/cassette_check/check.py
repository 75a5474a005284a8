"""Cassettes of a repository, held against what may be in them and what they were made of (C8)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from aish.cassettes.file import load, partial
from aish.cassettes.interaction import Cassette, Headers
from aish.cassettes.redact import SENSITIVE
from aish.cassettes.scan import scan, scan_text
from aish.config.expected import CassetteSettings
from aish.config.pipeline import Pipeline
from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.engine.plan.case_rows import with_rows
from aish.run.cassette_check.staleness import Staleness, staleness

PARTIAL = ".partial"
"""How the names of recordings end that are not complete."""


@frozen
class Subject:
    """A cassette to be looked at, with the pipeline that plays it, if that is known."""

    settings: CassetteSettings
    pipeline: Pipeline | None = None


@frozen
class Checked:
    """What was found; `unreadable` says why there is no more to say."""

    path: Path
    exchanges: int = 0
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unreadable: AishError | None = None


def named_in(pipeline: Pipeline) -> tuple[Subject, ...]:
    """The cassettes that a pipeline and its tests name, each once.

    Raises:
        UsageError: the rows of a test cannot be read.
    """
    settings: dict[Path, CassetteSettings] = {}
    for one in (pipeline.cassette, *(case.cassette for case in with_rows(pipeline).tests)):
        if one is not None:
            known = settings.get(one.path, one)
            allow = tuple(dict.fromkeys((*known.allow, *one.allow)))
            settings[one.path] = replace(known, allow=allow)
    return tuple(Subject(one, pipeline) for one in settings.values())


def check(subject: Subject, allow: Sequence[str] = ()) -> Checked:
    """Look at one cassette."""
    path = subject.settings.path
    if path.name.endswith(PARTIAL) and path.exists():
        return Checked(path, findings=("this recording was interrupted: nothing plays it",))
    try:
        cassette = load(path)
    except AishError as error:
        return Checked(path, unreadable=error)
    stale = Staleness()
    if subject.pipeline is not None:
        stale = staleness(subject.pipeline, subject.settings, cassette)
    secrets = _secrets(cassette, (*subject.settings.allow, *allow))
    beside = partial(path)
    left = [f"`{beside.name}`: a recording of it was interrupted"] if beside.exists() else []
    return Checked(
        path,
        len(cassette.interactions),
        (
            *(f"may be a secret: {text}" for text in secrets),
            *(f"stale: {text}" for text in stale.findings),
            *_for_others(path, cassette),
            *left,
        ),
        stale.notes,
    )


def _for_others(path: Path, cassette: Cassette) -> Iterator[str]:
    """What other readers of the format would make of it (C1)."""
    from aish.cassettes.vcrpy import difference

    if (said := difference(path, cassette)) is not None:
        yield said


def _secrets(cassette: Cassette, allow: Sequence[str]) -> Iterator[str]:
    for finding in scan(cassette.interactions, allow):
        yield str(finding)
    for name, value in (cassette.head.env if cassette.head is not None else {}).items():
        for finding in scan_text(f"the value of `{name}`", value, allow):
            yield str(finding)
    for number, one in enumerate(cassette.interactions, 1):
        for side, headers in (("request", one.request.headers), ("response", one.response.headers)):
            for name in _bare(headers):
                yield f"interaction {number}, {side} header `{name}`: it carries credentials"


def _bare(headers: Headers) -> Iterable[str]:
    """The headers whose value should have been replaced, each once."""
    return dict.fromkeys(
        name
        for name, value in headers
        if name.lower() in SENSITIVE and value and not value.startswith("<secret:")
    )
