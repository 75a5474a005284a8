"""Options of packs that have nothing else to choose than which files are hidden."""

from aish.core.frozen import frozen


@frozen
class FilesOptions:
    """Options of all packs on a root; `deny_names` are globs of names to hide in addition."""

    deny_names: tuple[str, ...] = ()
