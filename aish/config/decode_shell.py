"""`shell:` into what a session does with local commands (P1, S2)."""

from aish.config.nodes import ListNode, Node, ScalarNode
from aish.config.reading import Table
from aish.config.shell import PLATFORM_SHELL, Shell
from aish.core.errors import Problem
from aish.core.rules import RuleEntry

_TOOL = "shell__run"


def decode_shell(shell: Table) -> Shell:
    """The settings under `shell`."""
    return Shell(
        auto_approve=tuple(_rule(node, path, shell) for path, node in shell.items("auto_approve")),
        cmd_lines=shell.flag("cmd_lines", default=True),
        run=_run(shell),
    )


def _run(shell: Table) -> tuple[str, ...]:
    """The words before a command line; a program alone is given `-c`."""
    if not shell.has("run"):
        return PLATFORM_SHELL
    program = shell.text("run")
    return shell.texts("run") if program is None else (program, "-c")


def _rule(node: Node, path: str, shell: Table) -> RuleEntry:
    return RuleEntry(tool=_TOOL, command=_words(node, path, shell), path=path)


def _words(node: Node, path: str, shell: Table) -> tuple[str, ...]:
    """The words of a glob over a command line, quoted as in a shell, or listed."""
    if isinstance(node, ListNode):
        return tuple(str(item.value) for item in node.items if isinstance(item, ScalarNode))
    assert isinstance(node, ScalarNode)
    import shlex

    try:
        words = tuple(shlex.split(str(node.value)))
    except ValueError:
        words = ()
    if not words:
        message = f"`{node.value}` is not a command line"
        hint = "close its quotes, or write its words as a list"
        shell.problems.append(Problem(node.position, path, message, hint))
    return words
