"""Too many open files: no bug of ours, and something that a person can act on (B14)."""

import errno

MANY_FILES = "too many open files"
MANY_FILES_HINT = "lower `--concurrency`, or raise `ulimit -n`"

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def lacks_descriptors(error: BaseException) -> bool:
    """Whether this process may not open anything more, somewhere in the causes of an error."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, OSError) and one.errno in _NO_DESCRIPTORS:
            return True
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
    return False
