"""Logs a person in at a server of a plan, in a browser: for `aish login` and `:mcp connect`."""

from collections.abc import Callable
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from aish.core.errors import UnavailableError
from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.core.phrases import duration as duration_text
from aish.core.text import for_line
from aish.engine.plan.credentials import ResolvedServer
from aish.mcp.transports.factory import login_site
from aish.net.oauth.failure import LoginError, quote
from aish.net.oauth.fresh_login import log_in_person
from aish.net.oauth.login_store import KeptLogin, place_of
from aish.net.oauth.person_login import PERSON_SECONDS, Person, PersonLogin
from aish.system.browser import has_browser, open_browser
from aish.system.secrets.secrets import Secrets

_INSTALL: Final = "pip install 'aish-pipelines[keyring]'"


@frozen
class LoginDialog:
    """The side of a login that a person sees, and how long it waits for them.

    `show` gets the address and the result, whose lines must not be folded, and `say` what happens
    meanwhile.
    """

    show: Callable[[str], None]
    say: Callable[[str], None]
    seconds: float = PERSON_SECONDS
    opens_browser: bool = True


async def log_in_at(server: ResolvedServer, secrets: Secrets, dialog: LoginDialog) -> None:
    """Have a person log in at a server; the login is kept for this run and later ones.

    Raises:
        UnavailableError: there is no login; nothing was kept.
    """
    entry = server.entry

    def show(address: str, back: str) -> None:
        opened = dialog.opens_browser and _open_browser(address)
        doing = "opened in the browser" if opened else "open this address in a browser"
        dialog.show(f"{for_line(entry.alias)}: {doing}:\n\n  {address}\n")
        waits = f"waiting {duration_text(dialog.seconds)} for it to return to {back}"
        dialog.say(f"{waits}; Ctrl-C gives up")

    def warn(_code: str, text: str) -> None:
        dialog.say(secrets.mask(f"warning: {text}"))

    try:
        site = login_site(entry, server.login, secrets, warn)
        flow = PersonLogin(site, Person(show, dialog.seconds, fresh=True))
        login = await log_in_person(
            flow,
            headers=entry.headers,
            verify_server=entry.verify_tls,
            seconds=entry.timeout.connect,
        )
    except LoginError as error:
        raise UnavailableError(secrets.mask(f"mcp server `{entry.alias}`: {error}")) from error
    dialog.show(f"{for_line(entry.alias)}: {_describe(login)}")
    dialog.say(_describe_place(login, flow.store.path))


def _describe(login: KeptLogin) -> str:
    scopes = login.asked if login.granted is None else login.granted
    for_ = f" for {backticked(map(quote, scopes))}" if scopes else ""
    return f"logged in at `{quote(login.issuer)}`{for_}"


def _describe_place(login: KeptLogin, path: Path) -> str:
    renews = "it is renewed by itself" if login.secrets.refresh_token else _describe_end(login)
    place = f"the login is kept in {place_of(login, path)}; {renews}"
    # With the extra, this machine has no keyring, or it has been told why it is not used.
    is_installed = find_spec("keyring") is not None
    return place if is_installed else f"{place}\nhint: `{_INSTALL}` keeps it in the keyring"


def _describe_end(login: KeptLogin) -> str:
    if login.expires is None:
        return "it lasts until the server refuses it"
    return f"it ends at {datetime.fromtimestamp(login.expires).astimezone():%Y-%m-%d %H:%M}"


def _open_browser(address: str) -> bool:
    """Open the address in a browser, if there is a screen for one."""
    if not has_browser():
        return False
    import threading

    # Some browsers run until they are closed, and the login is answered meanwhile.
    threading.Thread(target=open_browser, args=(address,), daemon=True).start()
    return True
