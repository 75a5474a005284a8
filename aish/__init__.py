"""Language-model pipelines from a YAML file, for unattended runs.

From Python: `aish.run`, and everything else that `aish.api` has; it is imported when it is used.
"""

import sys

# `typing` is not imported here: it takes a fifth of the time of `aish --version`.
TYPE_CHECKING = False  # ruff: ignore[non-empty-init-module] - `typing` has it for more time
if TYPE_CHECKING:
    from aish.api import (
        AishError,
        ExitCode,
        Options,
        PipelineError,
        Result,
        RunFailedError,
        UsageError,
        arun,
        run,
    )

__all__ = [
    "AishError",
    "ExitCode",
    "Options",
    "PipelineError",
    "Result",
    "RunFailedError",
    "UsageError",
    "arun",
    "run",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    if sys.platform == "win32":
        from aish.system.platform.forms import NOT_ON_WINDOWS

        raise ImportError(NOT_ON_WINDOWS)
    from aish import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
