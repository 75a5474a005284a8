"""The bounds of F6: what a template may cost, whatever data it is given."""

import re
import time
from collections.abc import Iterable
from typing import Any

MAX_OUTPUT = 4 * 1024 * 1024
MAX_SECONDS = 5.0
MAX_REPEAT = 1024 * 1024
_MAX_BITS = 64 * 1024
_WIDTH = re.compile(r"\d{5,}|\*")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_FORMATTING = frozenset({"format", "format_map"})


class TemplateLimitError(Exception):
    """A bound was reached; the message says which."""


def collected(chunks: Iterable[str]) -> str:
    """The chunks joined, counted as they come."""
    ends = time.monotonic() + MAX_SECONDS
    texts: list[str] = []
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_OUTPUT:
            raise TemplateLimitError(f"the text is larger than {MAX_OUTPUT // 1024**2} MiB")
        if time.monotonic() > ends:
            raise TemplateLimitError(f"rendering takes longer than {MAX_SECONDS:g} s")
        texts.append(chunk)
    return "".join(texts)


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse `*`, `**` and `%` whose result would be huge.

    Raises:
        TemplateLimitError: it would.
    """
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(operator, left.bit_length() * max(right, 0))
    elif operator == "*":
        _check_product(left, right)
    elif operator == "%" and isinstance(left, str | bytes):
        _check_widths(str(left))


def check_call(function: Any, arguments: tuple[Any, ...]) -> None:
    """Refuse calls of text methods that pad, repeat or format without bound.

    Raises:
        TemplateLimitError: the call would.
    """
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if not isinstance(owner, str):
        return
    if name in _PADDING:
        _check_numbers(arguments)
    elif name in _FORMATTING:
        _check_widths(owner)
    elif name == "replace" and len(arguments) > 1:
        _check_size((owner.count(str(arguments[0])) + 1) * len(str(arguments[1])))
    elif name == "join" and arguments and isinstance(arguments[0], str | list | tuple):
        _check_size(len(owner) * len(arguments[0]))


def check_numbers(*arguments: Any) -> None:
    """Refuse a filter's argument (a width) that is huge."""
    _check_numbers(arguments)


def _check_product(left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str | bytes | list | tuple) and isinstance(times, int):
            _check_size(len(sequence) * times)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits("*", left.bit_length() + right.bit_length())


def _check_bits(operator: str, bits: int) -> None:
    if bits > _MAX_BITS:
        raise TemplateLimitError(f"the result of `{operator}` is too large")


def _check_numbers(arguments: tuple[Any, ...]) -> None:
    for argument in arguments:
        if isinstance(argument, int):
            _check_size(argument)


def _check_widths(form: str) -> None:
    if _WIDTH.search(form):
        raise TemplateLimitError("a width in the format is too large")


def _check_size(size: int) -> None:
    if size > MAX_REPEAT:
        raise TemplateLimitError(f"a text or list of {size:,} parts is too large")
