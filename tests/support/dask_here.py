"""Whether Dask distributed is here; what needs it is skipped where it is not, and says so."""

from importlib.util import find_spec

import pytest

INSTALLED = all(find_spec(name) is not None for name in ("distributed", "cryptography"))
needs_dask = pytest.mark.skipif(
    not INSTALLED, reason="the extra `dask` is not installed: make test installs it"
)
