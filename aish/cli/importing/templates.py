"""Templates of other programs, whose variables are inputs here."""

import re
from collections.abc import Iterator, Mapping

from aish.core.errors import UsageError
from aish.templates.render import references
from aish.templates.values import is_template

_QUIET = frozenset({"whitespace", "comment_begin", "comment", "comment_end"})


def rename_variables(source: str, names: Mapping[str, str]) -> str:
    """The template with these names replaced and everything else unchanged.

    Raises:
        UsageError: it is no template.
    """
    if not is_template(source):
        return source
    return "".join(_rename_tokens(source, names))


def free_names(source: str) -> frozenset[str]:
    """The names that a template reads and does not make itself.

    Raises:
        UsageError: it is no template.
    """
    return frozenset(path.split(".")[0] for path in references(source))


def verbatim(text: str) -> str:
    """A template that renders to this text."""
    if not is_template(text):
        return text
    parts = text.split("endraw")
    return "{{ 'endraw' }}".join(f"{{% raw %}}{part}{{% endraw %}}" for part in parts)


def with_raw(source: str) -> str:
    """A template in which each `{{ … }}` that is no expression is text."""
    from jinja2 import Environment, TemplateSyntaxError

    def one(match: re.Match[str]) -> str:
        try:
            Environment(autoescape=True).parse(match[0])
        except TemplateSyntaxError:
            return verbatim(match[0])
        return match[0]

    return source if "{% raw" in source else re.sub(r"\{\{.*?\}\}", one, source)


def _rename_tokens(source: str, names: Mapping[str, str]) -> Iterator[str]:
    from jinja2 import Environment, TemplateSyntaxError

    # Trailing newlines are part of a prompt.
    environment = Environment(keep_trailing_newline=True, autoescape=False)  # ruff: ignore[jinja2-autoescape-false] - nothing is rendered
    try:
        tokens = list(environment.lex(source))
    except TemplateSyntaxError as error:
        raise UsageError(error.message or "not a template", where=f"line {error.lineno}") from error
    for index, (_, kind, text) in enumerate(tokens):
        if kind == "name" and text in names and _is_variable(tokens, index):
            yield names[text]
        else:
            yield text


def _is_variable(tokens: list[tuple[int, str, str]], index: int) -> bool:
    """True for a name that is no attribute, filter, test or argument's name."""
    before = next((t for t in reversed(tokens[:index]) if t[1] not in _QUIET), None)
    after = next((t for t in tokens[index + 1 :] if t[1] not in _QUIET), None)
    if before is not None and (before[1:] in {("operator", "."), ("operator", "|")}):
        return False
    if before is not None and before[1:] == ("name", "is"):
        return False
    return after is None or after[1:] != ("operator", "=")
