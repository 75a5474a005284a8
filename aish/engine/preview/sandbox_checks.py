"""Findings of `aish doctor` on the sandboxes of servers: each kind and each part, tried."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from aish.engine.preview.checkup import CheckResult
from aish.system.process.sandbox import NAMES, try_server_parts

_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_APPARMOR_HINT = (
    "AppArmor forbids user namespaces (sysctl `kernel.apparmor_restrict_unprivileged_userns`): load"
    " its profile `bwrap-userns-restrict`, or, on a CI machine that is thrown away,"
    " `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`; without either, Landlock"
    " does all but take single files out of a folder and allow single hosts"
)
_INSTALL_HINT = "apt-get install bubblewrap"


def check_server_sandboxes(
    environ: Mapping[str, str], apparmor: Path = _APPARMOR
) -> Iterator[CheckResult]:
    """Yield a finding for each kind of sandbox: the parts that work, and why others do not."""
    for kind, parts in try_server_parts(environ).items():
        works = [part for part, problem in parts.items() if not problem]
        problems = dict.fromkeys(problem for problem in parts.values() if problem)
        subject = f"server sandbox {NAMES[kind]}"
        if not problems:
            yield CheckResult(subject, "ok", ", ".join(works))
            continue
        text = "; ".join((", ".join(works) or "nothing works", *problems))
        hint = None
        if kind == "bubblewrap":
            is_installed = not any("not installed" in problem for problem in problems)
            hint = _cure(apparmor) if is_installed else _INSTALL_HINT
        yield CheckResult(subject, "--", text, hint)


def _cure(apparmor: Path) -> str | None:
    """Say how namespaces are allowed, if AppArmor is what forbids them."""
    with suppress(OSError):
        if apparmor.read_text("ascii").strip() == "1":
            return _APPARMOR_HINT
    return None
