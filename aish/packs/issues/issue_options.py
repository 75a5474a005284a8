"""Options of the pack `issues`."""

from aish.core.frozen import frozen


@frozen
class IssuesOptions:
    """`prefix` begins the ids of new issues; empty for that of the issues there are."""

    prefix: str = ""
