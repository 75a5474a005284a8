"""The user of this process."""

import os
import pwd


def login_name(uid: int | None = None) -> str | None:
    """The name of a user, by default of this one, in the user database.

    Variables such as `USER` can say anything.
    """
    try:
        return pwd.getpwuid(os.getuid() if uid is None else uid).pw_name
    except KeyError:
        # A container may run as a number that no user has.
        return None


def name_of_user(uid: int) -> str:
    """The login name of a user, or the number of one who has none."""
    return login_name(uid) or f"uid {uid}"
