"""Options of the pack `c`."""

from aish.core.frozen import frozen


@frozen
class COptions:
    """`macros` are words that a parser may ignore, beside the usual ones.

    One that ends in `()` is ignored with its arguments, one that ends in `:` with the colon.
    """

    macros: tuple[str, ...] = ()
    deny_names: tuple[str, ...] = ()
