"""`shell:` as declared: local commands in a session (design 2.1, 6)."""

from aish.core.frozen import frozen
from aish.core.rules import RuleEntry

PLATFORM_SHELL = ("/bin/sh", "-c")


@frozen
class Shell:
    """What a session does with local commands.

    `auto_approve` are rules about the words of a command line that a model proposes, `cmd_lines`
    says whether such proposals are looked for. `run` are the words before a command line.
    """

    auto_approve: tuple[RuleEntry, ...] = ()
    cmd_lines: bool = True
    run: tuple[str, ...] = PLATFORM_SHELL
