"""Fetches the servers of a file that launchers would fetch: to pin them, or before a run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio

from aish.config.model import Pipeline
from aish.core.errors import AishError, LockDiffersError, UnavailableError
from aish.core.frozen import frozen
from aish.mcp.transports.package_fetch import fetch
from aish.mcp.transports.package_store import PackageSpec, StoreEntry, find_entry, package_spec
from aish.policy.lock import PackagePin
from aish.system.process.reaper import Reaper


@frozen
class PackageResult:
    """A server that was fetched in so many `seconds`, was in the store, or could not be fetched."""

    alias: str
    spec: PackageSpec
    entry: StoreEntry | None = None
    seconds: float | None = None
    error: AishError | None = None


def package_specs(pipeline: Pipeline) -> Mapping[str, PackageSpec]:
    """The servers of a file that launchers would fetch, and that can be fetched before."""
    specs = {
        alias: package_spec(entry.command, entry.cwd or Path.cwd())
        for alias, entry in pipeline.servers.items()
    }
    return {alias: spec for alias, spec in specs.items() if spec is not None}


async def fetch_packages(
    pipeline: Pipeline,
    pins: Mapping[str, PackagePin],
    environ: Mapping[str, str],
    *,
    renew: bool = False,
    on_fetch: Callable[[str], None] = lambda _: None,
) -> Sequence[PackageResult]:
    """Fetch what is not in the store, exactly what is pinned, and check what is.

    What a file names without an exact version is resolved anew if it is not pinned; with `renew`
    also if it is. An entry that was changed is put aside. `on_fetch` hears of each that is not in
    the store.
    """
    results: dict[str, PackageResult] = {}
    specs, reaper = package_specs(pipeline), Reaper()

    async def fetch_one(alias: str, spec: PackageSpec) -> None:
        pin = pins.get(alias)
        if pin is not None and (pin.spec != spec.text or (renew and not spec.exact)):
            pin = None
        is_settled = pin is not None or spec.exact
        known = find_entry(spec, pin) if is_settled else None
        if known is None:
            on_fetch(f"fetching `{spec.requirement}` for server `{alias}`")
        began = anyio.current_time()
        try:
            entry = await fetch(spec, pin, environ, reaper, thorough=True)
        except (UnavailableError, LockDiffersError) as error:
            error.where = f"mcp server `{alias}`"
            results[alias] = PackageResult(alias, spec, error=error)
        else:
            seconds = None if known is not None else anyio.current_time() - began
            results[alias] = PackageResult(alias, spec, entry, seconds)

    try:
        async with anyio.create_task_group() as tasks:
            for alias, spec in specs.items():
                tasks.start_soon(fetch_one, alias, spec)
    finally:
        reaper.close()
    return [results[alias] for alias in specs]
