"""Options of the pack `c`."""

from aish.core.frozen import frozen


@frozen
class COptions:
    """Options of the pack: `macros` are words that the parser may ignore, beside the usual ones.

    A word that ends in `()` is ignored with its arguments, one that ends in `:` with the colon.
    """

    macros: tuple[str, ...] = ()
    deny_names: tuple[str, ...] = ()
