"""What a model reads of a local command with the next question (L14, S2). Pure.

An exported pipeline has to send the same bytes, so that there are two of it: the text, and the
template that makes the same text of a `run` step's output.
"""

import json

from aish.agent.wording import NO_OUTPUT
from aish.core.text import safe_utf8
from aish.templates.values import is_template

INTERRUPTED = "[aish] interrupted"

_OUTPUT_TEMPLATE = (
    "{% if ran.stdout %}{{ ran.stdout.rstrip('\\n') }}\n{% endif %}"
    "{% if ran.stderr %}[stderr]\n{{ ran.stderr.rstrip('\\n') }}\n{% endif %}"
    f"{{% if not ran.stdout and not ran.stderr %}}{NO_OUTPUT}\n{{% endif %}}"
    "[exit code {{ ran.exit_code }}]"
)


def handed_over(command: str, exit_code: int, stdout: str, stderr: str) -> str:
    """The command, all that it printed, and how it ended."""
    return f"{_head(command)}\n{_printed(stdout, stderr)}[exit code {exit_code}]"


def handed_over_template(step: str, command: str) -> str:
    """The template that gives the text of `handed_over` from what `step` has printed."""
    output = f"{{% set ran = steps['{step}'].output %}}"
    return f"{output}{literal(_head(command))}\n{_OUTPUT_TEMPLATE}"


def cut_short(command: str, stdout: str, stderr: str) -> str:
    """The same of a command that was ended before it ended."""
    return f"{_head(command)}\n{_printed(stdout, stderr)}{INTERRUPTED}"


def not_run(command: str, why: str) -> str:
    """The same of a command that was not run."""
    return f"{_head(command)}\n{safe_utf8(why)}"


def literal(text: str) -> str:
    """The template that is rendered as `text`, whatever stands in it."""
    if is_template(text) or "\r" in text or text.endswith("{"):
        # Jinja2 makes every line end a LF, but not those that are spelled out.
        return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}"
    return text


def _head(command: str) -> str:
    return f"[local command: {safe_utf8(command)}]"


def _printed(stdout: str, stderr: str) -> str:
    lines = ""
    if stdout:
        lines = stdout.rstrip("\n") + "\n"
    if stderr:
        lines += "[stderr]\n" + stderr.rstrip("\n") + "\n"
    return lines or f"{NO_OUTPUT}\n"
