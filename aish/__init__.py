"""Language-model pipelines from a YAML file, run where nobody is there to ask.

From Python: `aish.run`, and everything else that `aish.api` has; it is imported when it is used.
"""

from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from aish import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
