"""The bounds of F6: what a template may cost, whatever data it is given.

The author of a template is trusted, the data is not: a text, a number or a list out of `inputs` or
`steps` must not become a text of gigabytes.
"""

import re
from collections.abc import Iterable, Mapping, Sized
from typing import Any

MAX_OUTPUT = 4 * 1024 * 1024
MAX_SECONDS = 5.0
"""What the text of a template may take."""
MAX_EXPRESSION_SECONDS = 60.0
"""What an expression may take, which may go over all items of a step."""
_MAX_BITS = 64 * 1024
_WIDTH = re.compile(r"\d{5,}")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_SEQUENCES = (str, bytes, list, tuple)


class TemplateLimitError(Exception):
    """A bound was reached; the message says which."""


def collected(chunks: Iterable[str]) -> str:
    """The chunks joined, counted as they come."""
    texts: list[str] = []
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_OUTPUT:
            raise TemplateLimitError(f"the text is larger than {MAX_OUTPUT // 1024**2} MiB")
        texts.append(chunk)
    return "".join(texts)


def joined(texts: Iterable[str], between: str = "") -> str:
    """The texts joined, counted before."""
    parts = list(texts)
    check_size(sum(map(len, parts)) + len(between) * len(parts))
    return between.join(parts)


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse `+`, `*`, `**` and `%` whose result would be huge.

    Raises:
        TemplateLimitError: it would.
    """
    if operator == "+" and isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
        check_size(len(left) + len(right))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(operator, left.bit_length() * max(right, 0))
    elif operator == "*":
        _check_product(left, right)
    elif operator == "%" and isinstance(left, str | bytes):
        check_format(str(left), (right,))


def check_call(function: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuse calls of text methods that pad, repeat or format without bound.

    Raises:
        TemplateLimitError: the call would.
    """
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if not isinstance(owner, str):
        return
    if name in _PADDING:
        check_numbers(*arguments, *named.values())
        if name == "expandtabs":
            width = next((n for n in (*arguments, *named.values()) if isinstance(n, int)), 8)
            check_size(len(owner) + owner.count("\t") * width)
    elif name == "replace" and len(arguments) > 1:
        check_replaced(owner, arguments[0], arguments[1])
    elif name == "join" and arguments and isinstance(arguments[0], Sized):
        check_size(len(owner) * len(arguments[0]))
    elif name == "translate":
        raise TemplateLimitError("`translate` is not available; use `replace`")


def check_numbers(*arguments: Any) -> None:
    """Refuse a width that is huge."""
    for argument in arguments:
        if isinstance(argument, int):
            check_size(argument)


def check_replaced(text: str, old: Any, new: Any) -> None:
    """Refuse a replacement that makes a small text a huge one."""
    check_size(len(text) + text.count(str(old)) * len(str(new)))


def check_format(form: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a format with a huge width: one of its own, or one among the arguments."""
    if _WIDTH.search(form):
        raise TemplateLimitError("a width in the format is too large")
    if "*" in form or ("{" in form and form.count("{") > form.count("}")) or _nested(form):
        for argument in arguments:
            check_numbers(*(argument if isinstance(argument, tuple | list) else (argument,)))


def check_size(size: int) -> None:
    """Refuse a text or list larger than a whole output may be."""
    if size > MAX_OUTPUT:
        raise TemplateLimitError(f"a text or list of {size:,} parts is too large")


def _nested(form: str) -> bool:
    """`{:{}}` takes its width from an argument."""
    return bool(re.search(r"\{[^}]*\{", form))


def _check_product(left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, _SEQUENCES) and isinstance(times, int):
            check_size(len(sequence) * times)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits("*", left.bit_length() + right.bit_length())


def _check_bits(operator: str, bits: int) -> None:
    if bits > _MAX_BITS:
        raise TemplateLimitError(f"the result of `{operator}` is too large")
