"""The function that Dask runs on a worker: several items, in the event loop of their run (B7)."""

import threading

from distributed import get_worker, secede

from aish.run.cluster.pickles import unpacked
from aish.run.cluster.session import Session

_sessions: dict[str, Session] = {}
_lock = threading.Lock()


def work(run: str, load: bytes) -> None:
    """Run the items of `load`; all that comes of them goes to the driver on its own way.

    It gives its thread back to Dask: this only waits.
    """
    worker = get_worker()
    secede()
    with _lock:
        session = _sessions.get(run)
        if session is None or not session.is_alive():
            session = _sessions[run] = Session(run, worker)
            session.start()
    session.work(unpacked(load))
