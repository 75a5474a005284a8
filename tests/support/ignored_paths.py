"""What `.gitignore` files exclude, as the product reads them and as git does."""

import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from aish.packs.workspace.ignore_rules import NOTHING_IGNORED, IgnoreRules


def excluded(files: Mapping[str, bytes], paths: Iterable[str]) -> set[str]:
    """The paths that are excluded, or a folder on them; `files` are those with patterns."""

    @cache
    def rules_in(folder: str) -> IgnoreRules | None:
        above, _, name = folder.rpartition("/")
        rules = rules_in(above) if folder else NOTHING_IGNORED
        if rules is None or (folder and rules.excludes(name, is_folder=True)):
            return None
        data = files.get(f"{folder}/.gitignore".lstrip("/"))
        rules = rules.below(name) if folder else rules
        return rules if data is None else rules.with_rules(data)

    def is_excluded(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        rules = rules_in(folder)
        return rules is None or rules.excludes(name, is_folder=False)

    return set(filter(is_excluded, paths))


def excluded_by_git(root: Path, files: Mapping[str, bytes], paths: Iterable[str]) -> set[str]:
    """The same as git says; the paths need not exist."""
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "-z", "--stdin"],
        cwd=root,
        input="\0".join(paths).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    return set(done.stdout.decode().split("\0")) - {""}
