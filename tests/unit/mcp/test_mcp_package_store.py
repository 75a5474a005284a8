"""How a file names a server of a package registry, and what the files of an installation are."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import anyio
import pytest
from samples import each_case

from aish.core.errors import UnavailableError
from aish.mcp.transports import package_fetch
from aish.mcp.transports.package_fetch import check_links, fetch, tree_digest
from aish.mcp.transports.package_store import (
    LOCK_FILE,
    PackageSpec,
    entry_text,
    find_entry,
    package_spec,
    remove_unused,
)
from aish.policy.lock import Package, PackagePin, package_difference, package_pin
from aish.system.file_lock import hold_lock
from aish.system.process.reaper import Reaper


@each_case(
    "words, text, arguments, exact",
    [
        ("npx tiny", "npx tiny", "", False),
        ("npx -y tiny@1.2.3 a -y", "npx tiny@1.2.3", "a -y", True),
        ("npx --yes @a/b@1.2.3-rc.1 --x", "npx @a/b@1.2.3-rc.1", "--x", True),
        ("npx @a/b@latest", "npx @a/b@latest", "", False),
        ("npx tiny@^1.2", "npx tiny@^1.2", "", False),
        ("uvx tiny", "uvx tiny", "", False),
        ("uvx tiny==1.2 --local-timezone UTC", "uvx tiny==1.2", "--local-timezone UTC", True),
        ("uvx tiny==1.*", "uvx tiny==1.*", "", False),
        ("uvx --from tiny[a,b]==1.2 serve x", "uvx tiny[a,b]==1.2 serve", "x", True),
        ("uvx --from tiny>=1,<2 tiny", "uvx tiny>=1,<2", "", False),
    ],
)
def test_a_command_of_the_usual_form_names_a_package(
    words: str, text: str, arguments: str, *, exact: bool
) -> None:
    spec = package_spec(words.split(), Path("/nowhere"))

    assert spec is not None
    assert (spec.text, " ".join(spec.arguments), spec.exact) == (text, arguments, exact)


@each_case(
    "words",
    [
        *("", "npx", "npx -y", "uvx", "uvx --from tiny", "/usr/bin/npx tiny", "bunx tiny"),
        *("npx -p tiny tiny", "npx --package=tiny x", "npx ./tiny", "npx tiny.tgz", "npx a/b"),
        *("npx tiny@file:x", "npx tiny@npm:other", "npx https://host/x.tgz", "npx ${NAME}"),
        *("npx tiny@${VERSION}", "uvx tiny@1.2", "uvx --python 3.12 tiny", "uvx --with a tiny"),
        *("uvx --from git+https://host/x tiny", "uvx --from ./x tiny", "uvx tiny==${VERSION}"),
        *("uvx --from tiny --help", "uvx --from tiny@1 tiny", "npm exec tiny", "uv tool run tiny"),
    ],
)
def test_a_command_of_any_other_form_names_none(words: str) -> None:
    assert package_spec(words.split(), Path("/nowhere")) is None


@pytest.mark.parametrize("place", ["node_modules/tiny/package.json", "node_modules/.bin/tiny"])
def test_what_npx_takes_from_a_project_is_of_no_registry(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    below = tmp_path / "deep" / "down"

    assert package_spec(["npx", "tiny"], below) is None
    assert package_spec(["npx", "tiny@1.0.0"], below) is None
    assert package_spec(["npx", "other"], below) is not None


def _append(path: Path) -> int:
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        return stream.write("x")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: _append(folder / "lib" / "a.py"),
        lambda folder: (folder / "lib" / "a.py").chmod(0o755),
        lambda folder: (folder / "lib" / "a.py").rename(folder / "lib" / "c.py"),
        lambda folder: (folder / "lib" / "b.py").unlink(),
        lambda folder: (
            (folder / "lib" / "__pycache__").mkdir()
            or _append(folder / "lib" / "__pycache__" / "a.pyc")
        ),
        lambda folder: (
            (folder / "bin" / "run").unlink() or (folder / "bin" / "run").symlink_to("../lib/b.py")
        ),
    ],
)
def test_each_change_of_a_file_changes_the_digest(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    for name in ("lib/a.py", "lib/b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, "utf-8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "run").symlink_to("../lib/a.py")
    before = tree_digest(tmp_path)

    (tmp_path / "pyvenv.cfg").write_text("home = /elsewhere\n", "utf-8")
    (tmp_path / "bin" / "python3.12").symlink_to("/elsewhere/python3.12")
    same = tree_digest(tmp_path)
    change(tmp_path)

    assert before == same != tree_digest(tmp_path)


def _pin(version: str = "1.0.0", integrity: str = "sha512-a", files: str = "linux f") -> PackagePin:
    packages = (Package("tiny", version, integrity), Package("b", "2.0.0", "sha512-b", "a/b"))
    return PackagePin("npx tiny", packages, files)


@each_case(
    "now, fields",
    [
        (_pin(), []),
        (_pin(files="other g"), []),
        (_pin(files="linux g"), ["files"]),
        (_pin("1.0.1", files="linux g"), ["tiny"]),
        (_pin(integrity="sha512-c"), ["tiny"]),
    ],
)
def test_packages_differ_by_version_checksum_or_by_files_of_one_platform(
    now: PackagePin, fields: list[str]
) -> None:
    difference = package_difference("s", _pin(), now)

    assert [change.field for change in difference.fields] == fields if difference else not fields
    assert package_pin(now.row) == now


@pytest.mark.parametrize(
    ("place", "target", "is_refused"),
    [
        ("lib/inner", "a.py", False),
        ("lib/outer", "../../else", True),
        ("bin/run", "/etc/hostname", True),
        ("bin/python3.12", "/usr/bin/python3.12", False),
        ("lib/python", "/usr/bin/python", True),
        ("lib/folder", "..", False),
    ],
)
def test_a_link_that_leads_out_of_its_package_is_refused(
    tmp_path: Path, place: str, target: str, *, is_refused: bool
) -> None:
    entry = tmp_path / "entry"
    for name in ("bin", "lib"):
        (entry / name).mkdir(parents=True, exist_ok=True)
    link = entry / place
    link.symlink_to(target)

    with pytest.raises(UnavailableError, match="leads out of it") if is_refused else nullcontext():
        check_links(entry)
    link.unlink()


def _add_entry(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[PackageSpec, Path, PackagePin]:
    """A server in a store of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    spec = package_spec(["npx", "tiny"], folder)
    assert spec is not None
    pin = _pin()
    entry = spec.folder / pin.digest
    entry.mkdir(parents=True)
    (entry / "entry.json").write_text(entry_text("node_modules/.bin/tiny", pin), "utf-8")
    return spec, entry, pin


@pytest.mark.parametrize("is_used", [True, False])
def test_a_server_that_runs_is_not_removed_however_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_used: bool
) -> None:
    spec, path, _ = _add_entry(tmp_path, monkeypatch)
    entry = find_entry(spec, None)
    assert entry is not None
    if is_used:
        entry.note_use()
    os.utime(path, (0, 0))

    removed = remove_unused()

    assert list(removed) == ([] if is_used else ["npx tiny"])
    assert path.exists() == is_used


def test_a_fetch_that_waits_for_another_one_can_be_ended_and_says_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one in the store was changed meanwhile."""
    spec, _, pin = _add_entry(tmp_path, monkeypatch)
    reaper = Reaper()

    async def wait() -> None:
        with hold_lock(spec.folder / LOCK_FILE, 0), anyio.move_on_after(0.1):
            await fetch(spec, pin, {}, reaper, thorough=True)
        monkeypatch.setattr(package_fetch, "FETCH_SECONDS", 0.1)
        with hold_lock(spec.folder / LOCK_FILE, 0):
            await fetch(spec, pin, {}, reaper, thorough=True)

    with pytest.raises(UnavailableError) as error:
        anyio.run(wait)
    reaper.close()

    assert error.value.message.startswith("`tiny` is not fetched: ")
    assert f"process {os.getpid()} fetches it" in error.value.message


@pytest.mark.parametrize("above", range(3))
@pytest.mark.parametrize("change", ["mode", "link"])
def test_nothing_starts_that_another_user_can_have_put_into_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: int, change: str
) -> None:
    spec, entry, pin = _add_entry(tmp_path, monkeypatch)
    assert find_entry(spec, None) is not None
    assert find_entry(spec, pin) is not None
    folder = (entry, *entry.parents)[above]

    if change == "mode":
        folder.chmod(0o777)
    else:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")

    assert find_entry(spec, None) is None
    assert find_entry(spec, pin) is None
