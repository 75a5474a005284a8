"""The entries of `compat/*.yaml`: what was tried with aish, how, and what came of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

FOLDER = Path(__file__).resolve().parent
KINDS: Mapping[str, str] = {
    "servers": "MCP servers",
    "http-servers": "MCP servers over HTTP",
    "endpoints": "Model servers and gateways",
    "clients": "Clients of `aish serve`",
    "logins": "Authorization servers",
    "readers": "Readers of what a run writes",
    "sandboxes": "Servers in a sandbox",
}
RESULTS = ("works", "works, with care", "does not work")


class EntryError(Exception):
    """A file of entries is not as it should be; the message names the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that was tried, and the commands that try it again.

    `package` is `pypi:NAME==VERSION` or `npm:NAME@VERSION`, `tried` a date. `install` names the
    packages that are installed beforehand: what `uvx` or `npx` starts needs none. `files` are
    written into an empty folder, `pipeline` as `p.yaml`. `start` are programs that have to listen
    on `port` before `run`, whose first word is a program, mostly `aish`. The last command has to
    end with `exit` and to show each text of `shows`. `model` is the port of the scripted model of
    `model_server.py`, which is started before them. Both ports are replaced by free ones. `address`
    is the origin at which an endpoint usually listens, if no others do.
    """

    name: str
    kind: str = ""
    package: str
    tried: str
    result: str
    know: str = ""
    install: Sequence[str] = ()
    address: str = ""
    needs: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    pipeline: str = ""
    start: Sequence[Sequence[str]] = ()
    port: int | None = None
    model: int | None = None
    run: Sequence[Sequence[str]]
    exit: int = 0
    shows: Sequence[str] = ()

    @property
    def version(self) -> str:
        return self.package.rpartition("==" if self.package.startswith("pypi:") else "@")[2]

    @property
    def package_name(self) -> str:
        """The name on its registry."""
        _, _, spec = self.package.partition(":")
        return spec.rpartition("==" if self.package.startswith("pypi:") else "@")[0]


def read_entries(folder: Path = FOLDER) -> list[Entry]:
    """Return the entries of all files, sorted by kind and name.

    Raises:
        EntryError: an entry has another form, or its name is there twice.
    """
    entries = [entry for kind in KINDS for entry in _read_file(folder / f"{kind}.yaml", kind)]
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise EntryError(f"{entry.kind}.yaml: `{entry.name}` is there twice")
        seen.add(entry.name)
    return entries


def _read_file(path: Path, kind: str) -> Iterator[Entry]:
    if not path.is_file():
        return
    rows = YAML(typ="safe").load(path.read_text("utf-8")) or []
    for row in sorted(rows, key=lambda row: str(row.get("name")).lower()):
        yield _entry(row, kind, f"{path.name}: `{row.get('name')}`")


def _entry(row: Mapping[str, Any], kind: str, where: str) -> Entry:
    known = {one.name: one for one in fields(Entry)}
    required = {
        name
        for name, one in known.items()
        if one.default is MISSING and one.default_factory is MISSING
    }
    if wrong := row.keys() - known.keys():
        raise EntryError(f"{where}: unknown keys: {', '.join(sorted(wrong))}")
    if missing := required - row.keys():
        raise EntryError(f"{where}: without {', '.join(sorted(missing))}")
    entry = Entry(**{**row, "kind": kind, "tried": str(row["tried"])})
    if entry.result not in RESULTS:
        raise EntryError(f"{where}: `result` is one of {', '.join(RESULTS)}")
    if entry.result != RESULTS[0] and not entry.know:
        raise EntryError(f"{where}: `know` has to say what to take care of")
    return entry
