"""Which file a session is on, and where sessions are kept (F8, S6)."""

from pathlib import Path

from aish.core.errors import UsageError
from aish.engine.run_folder import RunsPlace
from aish.system.paths import config_folder, state_folder

NAME = "aish.yaml"
SHELF = "sessions"


def session_file(given: Path | None) -> Path:
    """The file that was given, else `aish.yaml` here, else the person's own (F8).

    Raises:
        UsageError: there is none of them.
    """
    if given is not None:
        return given
    own = config_folder() / NAME
    for place in (Path(NAME), own):
        if place.exists():
            return place
    raise UsageError(
        f"no pipeline file was given, and there is neither `./{NAME}` nor `{own}`",
        hint="`aish init` writes one to begin with; `aish shell FILE` takes any other",
    )


def sessions_place(file: Path, wanted: Path | None) -> RunsPlace:
    """Where sessions on `file` are kept: in its project, or in the platform's folder for state."""
    if wanted is None and file.resolve().parent == config_folder().resolve():
        return RunsPlace(file.parent, state_folder() / SHELF)
    return RunsPlace(file.parent, wanted, SHELF)
