"""Whether what is to be attached is a URI, or the path of a file."""

import re

# One letter before the colon is a drive, not a scheme.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def is_uri(ref: str) -> bool:
    """Whether it begins with a scheme."""
    return _SCHEME.match(ref) is not None
