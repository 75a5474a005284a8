"""Checks the cassettes of a repository.

Which cassettes are selected, whether they can be read, possible secrets in them, and compatibility
with other readers of the format. Whether one matches its pipeline is checked by a replay.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from aish.cassettes.format.file import load, partial
from aish.cassettes.format.interaction import Cassette, Headers
from aish.cassettes.record.redact import SENSITIVE
from aish.cassettes.record.secret_scan import scan, scan_text
from aish.config.model import CassetteSettings, Pipeline
from aish.core.errors import AishError, UsageError
from aish.core.frozen import frozen
from aish.engine.plan.case_rows import with_rows
from aish.engine.plan.plan import load_checked
from aish.features.yaml_files import SUFFIXES, files_below, is_cassette, is_pipeline

PARTIAL = ".partial"
"""How the names of recordings end that are not complete."""


@frozen
class LintResult:
    """The findings; `unreadable` is the reason if the cassette could not be checked."""

    path: Path
    exchanges: int = 0
    findings: tuple[str, ...] = ()
    unreadable: AishError | None = None


def settings_of(pipeline: Pipeline) -> tuple[CassetteSettings, ...]:
    """The cassettes that a pipeline and its tests name, without duplicates."""
    named = (pipeline.cassette, *(case.cassette for case in with_rows(pipeline).tests))
    return _once(settings for settings in named if settings is not None)


def _once(named: Iterable[CassetteSettings]) -> tuple[CassetteSettings, ...]:
    """Each cassette once, with everything that is allowed in it."""
    settings: dict[Path, CassetteSettings] = {}
    for entry in named:
        known = settings.setdefault(entry.path.resolve(), entry)
        allow = tuple(dict.fromkeys((*known.allow, *entry.allow)))
        settings[entry.path.resolve()] = replace(known, allow=allow)
    return tuple(settings.values())


def check(subject: CassetteSettings, allow: Sequence[str] = ()) -> LintResult:
    path = subject.path
    if path.name.endswith(PARTIAL) and path.exists():
        return LintResult(path, findings=("this recording was interrupted and cannot be replayed",))
    try:
        cassette = load(path)
    except AishError as error:
        return LintResult(path, unreadable=error)
    secrets = _secrets(cassette, (*subject.allow, *allow))
    beside = partial(path)
    left = [f"`{beside.name}`: a recording of it was interrupted"] if beside.exists() else []
    return LintResult(
        path,
        len(cassette.interactions),
        (*(f"may be a secret: {text}" for text in secrets), *_for_others(path, cassette), *left),
    )


def _for_others(path: Path, cassette: Cassette) -> Iterator[str]:
    """Compatibility problems with other readers of the format."""
    from aish.cassettes.format.vcrpy import difference

    if (text := difference(path, cassette)) is not None:
        yield text


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
    """Headers whose value should have been replaced, without duplicates."""
    return dict.fromkeys(
        name
        for name, value in headers
        if name.lower() in SENSITIVE and value and not value.startswith("<secret:")
    )


def subjects(paths: Sequence[Path], pipeline: Pipeline | None) -> tuple[CassetteSettings, ...]:
    """The cassettes that the paths name: directly, in a folder, or in a pipeline file.

    What `pipeline` allows in its own cassettes counts too.
    """
    settings = _once(_cassettes_at(paths))
    own = {} if pipeline is None else {one.path.resolve(): one for one in settings_of(pipeline)}
    return _once(
        one for subject in settings for one in (subject, own.get(subject.path.resolve(), subject))
    )


def _cassettes_at(paths: Sequence[Path]) -> Iterator[CassetteSettings]:
    for path in paths:
        if path.is_file() and is_pipeline(path):
            yield from _of_pipeline(path)
        elif path.is_dir():
            yield from _of_folder(path)
        else:
            yield CassetteSettings(path)


def _of_folder(folder: Path) -> Iterator[CassetteSettings]:
    """Its cassettes, and those that its pipelines name."""
    has_cassette = False
    for path in _within(folder):
        if is_pipeline(path):
            named = settings_of(load_checked(path, (), locked=False))
            yield from named
            has_cassette = has_cassette or bool(named)
        else:
            yield CassetteSettings(path)
            has_cassette = True
    if not has_cassette:
        raise UsageError(
            f"there are no cassettes in `{folder}`, and no pipelines that name some",
            hint="give files, or folders of cassettes or pipelines",
        )


def _of_pipeline(path: Path) -> Iterator[CassetteSettings]:
    settings = settings_of(load_checked(path, (), locked=False))
    if not settings:
        raise UsageError(
            f"`{path}` has no cassette", hint="`cassette: FILE` at its top, or in one of its tests"
        )
    yield from settings


def _within(folder: Path) -> Iterator[Path]:
    """The cassettes, including interrupted ones, and pipelines below a folder; no hidden ones."""
    for path in files_below(folder):
        whole = path.with_name(path.name.removesuffix(PARTIAL))
        if whole.suffix not in SUFFIXES:
            continue
        if whole != path and whole.exists():
            continue  # reported together with its cassette
        if is_cassette(path) or is_pipeline(path):
            yield path
