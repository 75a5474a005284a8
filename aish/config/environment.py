"""`${VAR}` and `${VAR:-default}`, where a file may use them (F7).

Pure: what the environment holds is given, and what is missing is the caller's to say. As in a
shell, `:-` also replaces an empty value.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{"
)


def variables(text: str) -> tuple[tuple[str, str | None], ...]:
    """The names that `text` refers to, each with its default or `None`."""
    if "${" not in text:
        return ()
    return tuple(
        (found["name"], found["default"])
        for found in _REFERENCE.finditer(text)
        if found["name"] is not None
    )


def malformed(text: str) -> str | None:
    """The beginning of the first `${` that is no reference, if there is one."""
    for found in _REFERENCE.finditer(text):
        if found[0] == "${":
            return text[found.start() : found.start() + 20]
    return None


def expand(text: str, environ: Mapping[str, str]) -> str:
    """`text` with its variables replaced once, and `$${` made `${`.

    Raises:
        KeyError: a variable is not set and has no default.
    """

    def replace(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        name, default = found["name"], found["default"]
        if name is None:
            return found[0]
        value = environ.get(name)
        if default is not None:
            return value or default
        if value is None:
            raise KeyError(name)
        return value

    return _REFERENCE.sub(replace, text) if "${" in text else text
