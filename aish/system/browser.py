"""The browser of the person at this machine."""

import os
import sys

_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


def has_browser() -> bool:
    """Return true if there is a screen, and a browser for it."""
    if sys.platform != "darwin" and not any(map(os.environ.get, _SCREENS)):
        return False
    import webbrowser

    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def open_browser(address: str) -> bool:
    """Open an address in a browser; some run until they are closed."""
    import webbrowser

    return has_browser() and webbrowser.open(address)
