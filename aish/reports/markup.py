"""HTML that cannot contain untrusted markup.

Plain `str` is always escaped; only results of `tag` are used unchanged. Each character that would
be invisible or reverse the text direction is written as its escape.
"""

from collections.abc import Iterable
from functools import lru_cache

from aish.core.phrases import counted
from aish.core.text import for_html

# What fits into a `pre` on a narrow screen: lines, and characters of each.
_LINES, _NARROW = 20, 28
_VOID = frozenset({"br", "hr", "meta", "input", "col"})


class Markup(str):  # ruff: ignore[subclass-builtin] - it is text, and joins as text does
    __slots__ = ()


NOTHING = Markup()


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Markup:
    """An element. An attribute that is `None` or `False` is left out; `class_` is `class`."""
    opening = name
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        opening += _attribute(key, value)
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{concat(children)}</{name}>")


@lru_cache(maxsize=512, typed=True)
def _attribute(key: str, value: object) -> str:
    """Cached because most attributes are few words of ours."""
    spelled = key.rstrip("_").replace("_", "-")
    return f" {spelled}" if value is True else f' {spelled}="{for_html(str(value))}"'


def concat(children: Iterable[str | None]) -> Markup:
    return Markup(
        "".join(
            [child if type(child) is Markup else for_html(child) for child in children if child]
        )
    )


Attributes = dict[str, str | bool | None]


def group_attributes(*, scrolls: bool = True, **attributes: str | bool | None) -> Attributes:
    """The attributes of an element without a role: its label is read only with one.

    Where it `scrolls`, the keyboard has to reach it, and it has a name.
    """
    if scrolls:
        attributes = {"tabindex": "0", "aria_label": "text", **attributes}
    return {"role": "group", **attributes} if attributes.get("aria_label") else attributes


def pre(text: str, *children: str, **attributes: str | bool | None) -> Markup:
    """A preformatted text, or markup made of it; a long one scrolls."""
    scrolls = sum(1 + len(line) // _NARROW for line in text.split("\n")) > _LINES
    return tag("pre", *(children or (text,)), **group_attributes(scrolls=scrolls, **attributes))


def block(text: str, most: int, **attributes: str | bool | None) -> Markup:
    """Untrusted text as it was written; of a long one, the beginning and the size of the rest."""
    left = len(text) - most
    if left <= 0:
        return pre(text, **attributes)
    note = tag("p", f"… and {counted(left, 'character')} more, left out here", class_="cut")
    return concat([pre(text[:most], **attributes), note])
