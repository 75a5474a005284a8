"""Long texts cut to what a person reads at a glance, with a note of what was left out."""

from collections.abc import Iterator

from aish.core.text import for_ci_log

_LINES = 12
_LETTERS = 2_000


def folded(text: str, *, full: bool, indent: str = "  ") -> Iterator[str]:
    """The lines of a stranger's text, fit to be shown; with `full` all of them."""
    text = text.removesuffix("\n")
    shown = text if full else _beginning(text)
    for line in shown.split("\n"):
        yield for_ci_log(f"{indent}{line}").rstrip()
    if len(shown) < len(text):
        yield f"{indent}… {_left_out(text[len(shown) :])}; `--full` shows all"


def _beginning(text: str) -> str:
    lines = text[: _LETTERS + 1].split("\n")
    if len(lines) > _LINES:
        return "\n".join(lines[:_LINES])
    return text[:_LETTERS]


def _left_out(rest: str) -> str:
    lines = rest.strip("\n").count("\n") + 1
    letters = f"{len(rest)} more characters"
    return f"{letters} in {lines} lines" if lines > 1 else letters
