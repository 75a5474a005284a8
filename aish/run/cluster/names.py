"""What the queues and the tasks of a run are called on a scheduler."""


def desk_of(run: str) -> str:
    """Where all sessions of a run write to the driver."""
    return f"aish-{run}-desk"


def letters_of(run: str, session: str) -> str:
    """Where the driver writes to one session."""
    return f"aish-{run}-{session}"


def closed_of(run: str) -> str:
    """Where each session says that it has closed what it had open."""
    return f"aish-{run}-closed"


def task_of(run: str, number: int) -> str:
    """A task: several items."""
    return f"aish-{run}-task-{number}"
