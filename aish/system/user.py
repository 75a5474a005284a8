"""The user of this process."""

import os
import pwd


def login_name() -> str | None:
    """The user's name in the user database; variables such as `USER` can say anything (K18)."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # A container may run as a number that no user has.
        return None
