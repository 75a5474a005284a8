"""`aish logout FILE [SERVER]`."""

from pathlib import Path
from typing import Annotated

from aish.cli.commands.login import pick_servers, plan_of_logins, warn
from aish.cli.options import Argument
from aish.cli.printer import print_text
from aish.core.text import for_line
from aish.net.oauth.login_store import LoginStore, list_logins, remove_login

_RESULTS = {True: "logged out", False: "nobody was logged in"}


def command(
    file: Annotated[str, Argument("FILE", "The pipeline file, or a URL of `aish login --list`.")],
    server: Annotated[
        str | None, Argument("[SERVER]", "The server; by default each that wants a login.")
    ] = None,
) -> int:
    """Forget logins that `aish login` made.

    The tokens are deleted here, with the client if it was registered by itself; the authorization
    server is not asked.

    Example: aish logout notes.yaml
    """
    if file.startswith(("https://", "http://")):
        found = [path for path, login in list_logins(warn) if login.server == file]
        gone = [path for path in found if remove_login(path)]
        print_text(f"{for_line(file)}: {_RESULTS[bool(gone)]}")
        return 0
    for one in pick_servers(plan_of_logins(Path(file)), server):
        assert one.entry.url is not None, "a login is for a url"
        assert one.login is not None, "the server wants a login"
        was_kept = remove_login(LoginStore(one.entry.url, one.login.settings).path)
        print_text(f"{for_line(one.entry.alias)}: {_RESULTS[was_kept]}")
    return 0
