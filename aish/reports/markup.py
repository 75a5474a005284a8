"""HTML that cannot be made with a stranger's markup in it (X2, X3).

What is plain `str` is escaped, always; only what `tag` returned is taken as it is. Each character
that would be invisible or turn the text around is spelled out.
"""

from collections.abc import Iterable

from aish.core.phrases import counted
from aish.core.text import for_html

_VOID = frozenset({"br", "hr", "meta", "input", "col"})


class Markup(str):  # ruff: ignore[subclass-builtin] - it is text, and joins as text does
    """HTML of our own making."""

    __slots__ = ()


NOTHING = Markup()


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Markup:
    """An element. An attribute that is `None` or `False` is left out; `class_` is `class`."""
    opening = name
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        opening += f" {spelled}" if value is True else f' {spelled}="{for_html(str(value))}"'
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{joined(children)}</{name}>")


def joined(children: Iterable[str | None]) -> Markup:
    """Children one after the other."""
    return Markup(
        "".join(child if type(child) is Markup else for_html(child) for child in children if child)
    )


def block(text: str, most: int, **attributes: str | bool | None) -> Markup:
    """A stranger's text as it was written; of a long one, the beginning and how much is left."""
    left = len(text) - most
    if left <= 0:
        return tag("pre", text, **attributes)
    note = tag("p", f"… and {counted(left, 'character')} more, left out here", class_="cut")
    return joined([tag("pre", text[:most], **attributes), note])
