"""`--cluster`: address of the workers, and whether the connection is secure enough."""

import re
from ipaddress import ip_address
from itertools import starmap
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.phrases import backticked

MOST_WORKERS = 256
_LAST_PORT = 65535
_ADDRESS = re.compile(
    r"^(?P<scheme>[a-z]+)://(?P<host>\[[^\]]+\]|[^:/@\[\]]+):(?P<port>\d{1,5})/?$"
)
_EXAMPLES = "`local:4`, or `tls://host:8786`"
_CA, _CERT, _KEY = "--cluster-ca", "--cluster-cert", "--cluster-key"


@frozen
class Certificates:
    ca: Path
    cert: Path
    key: Path


@frozen
class ClusterAddress:
    """A number of local `workers` to start, or the `scheduler` of an existing cluster."""

    workers: int = 0
    scheduler: str = ""
    certificates: Certificates | None = None

    @property
    def is_local(self) -> bool:
        """True if this run starts the workers."""
        return not self.scheduler


def cluster_address(
    text: str, ca: Path | None = None, cert: Path | None = None, key: Path | None = None
) -> ClusterAddress:
    files = {_CA: ca, _CERT: cert, _KEY: key}
    if text.startswith("local:"):
        count = text.removeprefix("local:")
        if not re.fullmatch(r"[1-9]\d{0,2}", count) or int(count) > MOST_WORKERS:
            message = f"`--cluster {text}` has to name a number of workers from 1 to {MOST_WORKERS}"
            raise UsageError(message, hint="write `--cluster local:4`")
        _refuse_files(files, "`tls://host:8786`")
        return ClusterAddress(workers=int(count))
    match = _ADDRESS.match(text)
    if match is None or match["scheme"] not in {"tls", "tcp"} or int(match["port"]) > _LAST_PORT:
        raise UsageError(f"`--cluster {text}` is not a cluster", hint=f"write {_EXAMPLES}")
    scheduler = text.rstrip("/")
    if match["scheme"] == "tls":
        return ClusterAddress(scheduler=scheduler, certificates=_certificates(files))
    _refuse_files(files, "a `tls://` address")
    if not _is_here(match["host"]):
        raise UsageError(
            f"`--cluster {text}` is refused: items, keys and code would be sent unencrypted, "
            "and anyone who can reach the port could run programs on the workers",
            hint=f"`tls://{match['host']}:{match['port']}` with `{_CA}`, `{_CERT}` and `{_KEY}`",
        )
    return ClusterAddress(scheduler=scheduler)


def _refuse_files(files: dict[str, Path | None], of: str) -> None:
    for flag, path in files.items():
        if path is not None:
            raise UsageError(f"`{flag}` goes with {of}", hint="local workers need none")


def _certificates(files: dict[str, Path | None]) -> Certificates:
    missing = [flag for flag, path in files.items() if path is None]
    if missing:
        named = backticked(missing, by=" and ")
        message = f"`tls://` needs {named}"
        raise UsageError(message, hint="both ends authenticate with certificates")
    ca, cert, key = starmap(_there, files.items())
    return Certificates(ca, cert, key)


def _there(flag: str, path: Path | None) -> Path:
    assert path is not None
    if not path.is_file():
        raise UsageError(f"no such file: {path}", where=flag)
    return path.absolute()


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
