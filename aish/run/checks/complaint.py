"""What a check has to say, before it is known where that stands in the file."""

from aish.vocab.frozen import frozen


@frozen
class Complaint:
    """`path` is the path in the file; the nearest thing that stands there gives the position."""

    path: str
    message: str
    hint: str | None = None
    warning: bool = False


def step_path(index: int, *, listed: bool) -> str:
    """Where the step of that number stands: a file of one step has it at the top."""
    return f"steps[{index}]" if listed else ""


def within(path: str, key: str) -> str:
    """The path of a key of what stands at `path`."""
    return f"{path}.{key}" if path else key
