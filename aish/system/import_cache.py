"""Optional modules of other libraries that are not there, remembered as such."""

import sys
from importlib import import_module
from typing import Any


def remember_absence(name: str) -> None:
    """Look for the module `name` once; if it is not there, later imports fail at once.

    Python forgets a failed import and searches the whole path again at the next. httpcore, which
    speaks to proxies, tries `sniffio` several times a request: a tenth of a tool turn without this.
    """
    if name in sys.modules:
        return
    try:
        import_module(name)
    except ImportError:
        modules: dict[str, Any] = sys.modules
        modules[name] = None
