"""Snapshots: an expected result, stored in a file of its own.

The file is named by the pipeline and belongs to the project. The check reads it; it is written only
on request (`aish test --update-snapshots`).
"""

import json
import os
from pathlib import Path

from aish.config.documents import REFERENCED_LIMIT, UnreadableError, read_text, reason
from aish.config.model import Expectation
from aish.core.errors import UsageError
from aish.core.json import JsonValue
from aish.core.text import safe_utf8
from aish.engine.expectations.subject import Mask, NotThereError, Subject, about, instead
from aish.system.files import atomic_write
from aish.templates.values import ProjectNames, is_template

_RENEW = "`aish test --update-snapshots`"
_MARKS = (".git", ".hg", "pyproject.toml", "package.json")


def snapshot(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """The text equals the content of the file."""
    file = _file(expectation)
    words = f"{about(expectation.path)} to be that of the snapshot `{file.name}`"
    got = snapshot_text(_value(expectation, subject), subject.mask)
    if is_template(str(expectation.value)) and isinstance(subject.names, ProjectNames):
        # A row or an answer may have chosen the name: it must not reveal other files.
        try:
            check_place(file, project_of(subject.names.root / "_"))
        except UsageError as error:
            return words, error.message
    try:
        before = _even(read_text(file, REFERENCED_LIMIT))
    except UnreadableError as error:
        return words, f"nothing there: `{file.name}` {reason(error)}; {_RENEW} writes it"
    if before == got:
        return words, None
    return words, f"{instead(before, got, subject.mask)}\n  {_RENEW} accepts it"


def snapshot_text(value: JsonValue, mask: Mask = str) -> str:
    """A value in snapshot form: text unchanged, anything else as JSON; ends with one LF."""
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, indent=2, default=dict)
    return _even(safe_utf8(mask(value)))


def write_snapshot(
    expectation: Expectation, subject: Subject, project: Path, mask: Mask = str
) -> bool:
    """Write the expectation's file; returns whether it changed.

    The file is written atomically, in `project` or below it, and through no link.

    Raises:
        NotThereError: there is no value to store.
    """
    file = _file(expectation)
    text = snapshot_text(_value(expectation, subject), mask)
    try:
        check_place(file, project)
        if file.is_file() and file.read_bytes() == text.encode():
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, text.encode(), shared=True)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"the snapshot cannot be written: {why}", where=str(file)) from error
    return True


def project_of(file: Path) -> Path:
    """The root folder of a pipeline's project: of its repository or package."""
    folder = Path(os.path.normpath(Path.cwd() / file.parent))
    for place in (folder, *folder.parents):
        if any((place / mark).exists() for mark in _MARKS):
            return place
    return Path.cwd() if folder.is_relative_to(Path.cwd()) else folder


def check_place(file: Path, project: Path, subject: str = "snapshots have") -> None:
    """Refuse a path outside the project, and one that a link leads to.

    Raises:
        UsageError: it is one; `subject` begins the message.
    """
    place, base = Path(os.path.normpath(file)), Path(os.path.normpath(project))
    if not place.is_relative_to(base):
        hint = f"the project is `{base}`"
        raise UsageError(f"{subject} to be inside the project", where=str(file), hint=hint)
    step = base
    for part in place.relative_to(base).parts:
        step /= part
        if step.is_symlink():
            raise UsageError(f"`{step}` is a link, and links are not followed here")
    if place.exists() and not place.is_file():
        raise UsageError(f"`{place}` is not a regular file")


def _even(text: str) -> str:
    """The text independent of line-end conversion by a checkout."""
    return text.replace("\r\n", "\n").rstrip("\n") + "\n"


def _value(expectation: Expectation, subject: Subject) -> JsonValue:
    value = subject.at(expectation.path)
    if value is None and expectation.path is None:
        raise NotThereError("no text at all")
    return value


def _file(expectation: Expectation) -> Path:
    assert expectation.file is not None
    return expectation.file
