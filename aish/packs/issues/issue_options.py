"""Options of the pack `issues`."""

from aish.core.frozen import frozen


@frozen
class IssuesOptions:
    """Options of the pack: `prefix` begins the ids of new issues; empty for the existing prefix."""

    prefix: str = ""
