"""The environment of commands, from a file that a pipeline names.

```toml
[path]
prepend = ["${HOME}/.cargo/bin"]

[env]
CARGO_HOME = "${HOME}/.cargo"
```

`${NAME}` is expanded once, from the small environment that commands have anyway.
"""

import os
import re
import stat
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from aish.core.errors import UsageError
from aish.system.files import is_open_to_others
from aish.system.process.reaper_process import MARK

LARGEST = 64 * 1024
REFUSED = (
    *("PATH", "LD_*", "DYLD_*", "PYTHON*", "NODE_OPTIONS", "BASH_ENV", "ENV", "GIT_*", "PERL5*"),
    *("RUBYOPT", MARK),
)
"""Names that change which program runs, or what it loads."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\{([^}]*)\}?")


def refusal_of(name: str) -> str | None:
    """Return the reason to refuse a variable with this name."""
    if not _NAME.fullmatch(name):
        return f"`{name}` is not a valid name of a variable"
    if any(fnmatchcase(name, refused) for refused in REFUSED):
        return f"`{name}` must not be set: it decides which program runs, or what it loads"
    return None


def read_environment(path: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Read a file, and return the environment `base` with its additions.

    Raises:
        UsageError: it is missing or has forbidden entries; lists all problems.
    """
    tables = _tables(path)
    problems = [f"unknown table `[{name}]`" for name in tables if name not in {"path", "env"}]
    variables = dict(base)
    entries = _table(tables, "path", problems)
    problems += [f"unknown key `{key}` in `[path]`" for key in entries if key != "prepend"]
    folders = entries.get("prepend", [])
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        problems.append("`prepend` in `[path]` is not a list of texts")
        folders = []
    prepended = [_expand(folder, base, "prepend", problems) for folder in folders]
    problems += [problem for folder in prepended if (problem := _problem_of_folder(folder))]
    for name, value in _table(tables, "env", problems).items():
        if refusal := refusal_of(name):
            problems.append(refusal)
        elif not isinstance(value, str) or "\0" in value:
            problems.append(f"`{name}` in `[env]` is not a text")
        else:
            variables[name] = _expand(value, base, name, problems)
    if problems:
        raise UsageError("; ".join(problems), where=f"environment file `{path}`")
    variables["PATH"] = os.pathsep.join([*prepended, base.get("PATH", os.defpath)])
    return variables


def _tables(path: Path) -> dict[str, object]:
    # Imported here, because listing the tools of a pack reads no file.
    import tomllib

    where = f"environment file `{path}`"
    try:
        # A pipe without a writer would be waited for.
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError("it is not a regular file", where=where)
            data = file.read(LARGEST + 1)
    except OSError as error:
        why = (error.strerror or "input or output error").lower()
        raise UsageError(f"it cannot be read: {why}", where=where) from None
    if len(data) > LARGEST:
        raise UsageError(f"it has more than {LARGEST:,} bytes", where=where)
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"it is not valid TOML: {error}", where=where) from None


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _table(tables: Mapping[str, object], name: str, problems: list[str]) -> dict[str, object]:
    table = tables.get(name, {})
    if isinstance(table, dict):
        return table
    problems.append(f"`{name}` is not a table")
    return {}


def _expand(value: str, base: Mapping[str, str], name: str, problems: list[str]) -> str:
    """The value with each `${NAME}` replaced once."""

    def replacement(match: re.Match[str]) -> str:
        if not match[0].endswith("}"):
            problems.append(f"`{name}` has a `${{` that is not closed")
        elif match[1] not in base:
            known = ", ".join(sorted(base))
            problems.append(f"`{name}` names `${{{match[1]}}}`, and there are only: {known}")
        return base.get(match[1], "")

    return _REFERENCE.sub(replacement, value)


def _problem_of_folder(folder: str) -> str | None:
    """Return the reason to refuse a folder in PATH, to which other users could write."""
    if not folder.startswith("/") or os.pathsep in folder or "\0" in folder:
        return f"`{folder}` in `prepend` is not the absolute path of a folder"
    path = Path(folder)
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return f"the folder `{folder}` in `prepend` does not exist"
    if not resolved.is_dir():
        return f"`{folder}` in `prepend` is not a folder"
    for ancestor in (resolved, *resolved.parents):
        if is_open_to_others(ancestor.stat(), is_parent=ancestor != resolved):
            what = f"`{ancestor}`" if ancestor != resolved else "it"
            return f"the folder `{folder}` in `prepend` is not safe: other users can change {what}"
    return None
