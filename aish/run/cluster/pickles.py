"""What travels between the driver and its workers, as bytes.

Only over connections that no one else has: TLS, with certificates on both ends, or a loopback
address that the person has named. Whoever could write there could run programs anyway.
"""

import pickle  # ruff: ignore[suspicious-pickle-import] - Dask itself carries nothing else
from typing import Any


def packed(thing: object) -> bytes:
    """`thing` for the way."""
    return pickle.dumps(thing)


def unpacked(data: bytes) -> Any:
    """What was packed at the other end."""
    return pickle.loads(data)  # ruff: ignore[suspicious-pickle-usage] - see above: it is ours
