"""Servers of package registries that are fetched, pinned, and started without a network."""

import hashlib
import io
import json
import os
import shutil
import signal
import tarfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from confined_servers import BUBBLEWRAP
from e2e_project import REPO, Project, of_type, wait_gone
from mcp_peers import clock_by_uvx
from package_registry import HAS_NPM, HAS_UV, LAUNCHERS, UV, PackageRegistry, archive_page
from web_server import Visit, WebServer, answer

from aish.mcp.transports.package_fetch import tree_digest

pytestmark = BUBBLEWRAP


@pytest.fixture
def registry(project: Project) -> Generator[PackageRegistry]:
    """Registries that the programs of the project ask, and an empty store."""
    with PackageRegistry() as registry:
        path = f"{UV.parent}{os.pathsep}{os.environ['PATH']}"
        cache = {"XDG_CACHE_HOME": str(project.folder / "cache"), "PATH": path}
        project.aish.env |= {**registry.environment, **cache}
        yield registry


def write(project: Project, launcher: str, version: str = "1.0.0", **server: Any) -> None:
    """A pipeline with the server `tiny`, confined unless `sandbox` says otherwise."""
    mark = {"npx": "@", "uvx": "=="}[launcher] if version else ""
    words = [launcher, *(["-y"] if launcher == "npx" else []), f"tiny-server{mark}{version}"]
    entry = {"command": words, "sandbox": "required", "protocol": "legacy", **server}
    mcp = {"servers": {"tiny": entry}, "auto_approve": ["tiny__*"]}
    project.pipeline(f"mcp: {json.dumps(mcp)}\nsteps: [{{id: a, call: tiny__version}}]\n")


def entries(project: Project) -> list[Path]:
    """The folders of all that is in the store."""
    return [path.parent for path in (project.folder / "cache").rglob("entry.json")]


def empty_store(project: Project) -> None:
    shutil.rmtree(project.folder / "cache")


def says(project: Project, *arguments: str) -> str:
    """What the server answers to a run."""
    done = project.run("-q", *arguments)
    assert done.code == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.requirement("T9")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_fetched_server_starts_without_launcher_and_network_confined_or_not(
    project: Project, registry: PackageRegistry, launcher: str
) -> None:
    registry.add(launcher, "1.0.0")
    # The store is in the folder that it reads: hidden, but for its own program.
    write(project, launcher, sandbox={"kind": "bubblewrap", "read": ["."]})

    fetched = project.aish("fetch", "p.yaml")
    asked = len(registry.web.targets)
    confined = says(project, "--no-fetch", "--run-dir", "a")
    write(project, launcher, sandbox="off")
    unconfined = says(project, "--no-fetch", "--run-dir", "b")
    again = project.aish("fetch", "p.yaml")

    assert fetched.code == again.code == 0, fetched.stderr
    assert "2 packages, fetched in" in fetched.stdout
    assert "2 packages, in the store" in again.stdout
    assert confined == unconfined == "1.0.0 with words"
    assert len(registry.web.targets) == asked
    (entry,) = entries(project)
    assert entry.stat().st_mode & 0o777 == 0o700
    assert not (entry.parent / "new").exists()


@pytest.mark.slow("the index of Python shows it in half the time")
@HAS_NPM
def test_the_registry_is_that_of_the_user_and_never_of_a_project(
    project: Project, registry: PackageRegistry
) -> None:
    registry.add("npx", "1.0.0")
    write(project, "npx")
    home = project.folder / "home"
    own = project.aish.env.pop("npm_config_registry")
    project.write("home/.npmrc", f"registry={own}\nignore-scripts=false\npackage-lock=false\n")
    project.write(".npmrc", "registry=http://127.0.0.1:9/\n")
    project.write("package.json", "{}")

    done = project.aish("fetch", "p.yaml", env={"HOME": str(home)})

    assert done.code == 0, done.stderr
    assert len(entries(project)) == 1


@HAS_UV
def test_the_index_is_that_of_the_user_and_never_of_a_project(
    project: Project, registry: PackageRegistry
) -> None:
    registry.add("uvx", "1.0.0")
    write(project, "uvx")
    own = project.aish.env.pop("UV_DEFAULT_INDEX")
    index = f'[[index]]\nurl = "{own}"\ndefault = true\n'
    project.write("home/.config/uv/uv.toml", index)
    project.write("uv.toml", index.replace(own, "http://127.0.0.1:9"))

    done = project.aish("fetch", "p.yaml", env={"HOME": str(project.folder / "home")})

    assert done.code == 0, done.stderr
    assert len(entries(project)) == 1


@pytest.mark.slow(reason="starts an installer")
@HAS_NPM
def test_servers_of_a_pipeline_that_the_file_runs_are_fetched_too(
    project: Project, registry: PackageRegistry
) -> None:
    registry.add("npx", "1.0.0")
    write(project, "npx")
    project.write("outer.yaml", "aish: 1\nname: outer\nsteps: [{id: a, pipeline: p.yaml}]\n")

    done = project.aish("fetch", "outer.yaml", "--format", "json")

    (row,) = json.loads(done.stdout)["servers"]
    assert row["file"].endswith("p.yaml")
    assert (row["server"], row["problem"]) == ("tiny", None)
    assert len(entries(project)) == 1


@pytest.mark.slow("`make record` does this")
def test_the_shipped_clock_is_recorded_without_a_registry(
    project: Project, registry: PackageRegistry
) -> None:
    with clock_by_uvx() as environ:
        words = ("clock__get_current_time", "timezone=UTC")
        done = project.aish("call", REPO / "pipelines" / "mcp.yaml", *words, env=environ)

    assert done.code == 0, done.stderr
    assert not registry.web.targets


@pytest.mark.requirement("T11")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_run_fetches_a_confined_server_and_with_no_fetch_says_how(
    project: Project, registry: PackageRegistry, launcher: str
) -> None:
    registry.add(launcher, "1.0.0")
    write(project, launcher, timeout={"connect": "20s"})

    refused = project.run("--no-fetch", "--run-dir", "a")
    asked = registry.web.targets
    ran = project.run()

    assert refused.code == 5
    assert "it is not in the store, and `--no-fetch` was given" in refused.stderr
    assert "`aish fetch p.yaml` fetches it" in refused.stderr
    assert not asked
    assert ran.code == 0, ran.stderr
    assert ran.stdout.strip() == "1.0.0 with words"
    (notice,) = [one for one in of_type(project.journal, "notice") if one["code"] == "fetched"]
    assert notice["level"] == "info"
    assert "mcp tiny: fetched `tiny-server" in notice["text"]


@pytest.mark.requirement("T10")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_lock_pins_the_packages_and_exactly_these_are_installed_elsewhere(
    project: Project, registry: PackageRegistry, launcher: str
) -> None:
    registry.add(launcher, "1.0.0")
    write(project, launcher, version="")
    locked = project.aish("lock", "p.yaml")
    pin = json.loads((project.folder / "p.lock.json").read_text("utf-8"))["packages"]["tiny"]
    registry.add(launcher, "2.0.0")
    empty_store(project)

    fetched = project.aish("fetch", "p.yaml")
    old = says(project, "--run-dir", "a")
    unlocked = project.aish("fetch", "p.yaml", "--lock", "none")
    new = says(project, "--lock", "none", "--run-dir", "b")
    checked = project.aish("lock", "p.yaml", "--check")
    shown = project.aish("lock", "p.yaml", "--diff")
    updated = project.aish("lock", "p.yaml", "--update")

    assert locked.code == fetched.code == unlocked.code == updated.code == 0, fetched.stderr
    assert pin["spec"] == f"{launcher} tiny-server"
    names = [(row["name"], row["version"]) for row in pin["resolved"]]
    assert names == [("tiny-server", "1.0.0"), ("tiny-words", "1.0.0")]
    assert (old, new) == ("1.0.0 with words", "2.0.0 with words")
    assert checked.code == 0, checked.stderr
    assert shown.code == 7
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert lines == [
        "packages of tiny: changed",
        "tiny-server",
        "@@ line 1 @@",
        "- 1.0.0",
        "+ 2.0.0",
    ]
    assert says(project, "--run-dir", "c") == "2.0.0 with words"


def tampered(data: bytes) -> bytes:
    """A gzipped archive, or a wheel, that is whole but for its checksum."""
    if not data.startswith(b"\x1f\x8b"):
        return data[:-2] + b"\x01\x00" + b"!"
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr] # all are files
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for member, content in members:
            member.size += 1
            tar.addfile(member, io.BytesIO(content + b"\n"))
    return archive.getvalue()


@pytest.mark.requirement("T43")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_of_an_altered_archive_nothing_starts(
    project: Project, registry: PackageRegistry, launcher: str
) -> None:
    registry.add(launcher, "1.0.0")
    write(project, launcher)
    assert project.aish("lock", "p.yaml").code == 0
    path = registry.archive(launcher, "1.0.0")
    page = registry.web.pages[path]
    assert isinstance(page, bytes)
    _, _, data = page.partition(b"\r\n\r\n")
    registry.replace(path, archive_page(tampered(data)))
    empty_store(project)

    locked = [project.aish("fetch", "p.yaml"), project.run()]
    (project.folder / "p.lock.json").unlink()
    unlocked = project.aish("fetch", "p.yaml")

    for done in (*locked, unlocked):
        assert done.code == 7, done.stderr
        assert "what the registry sent does not have its checksum" in done.stderr
    assert not entries(project)


@pytest.mark.slow("an altered archive of the registry itself is tried always")
@HAS_UV
@pytest.mark.parametrize("is_same", [True, False])
def test_an_archive_of_another_host_needs_the_checksum_too(
    project: Project, registry: PackageRegistry, *, is_same: bool
) -> None:
    registry.add("uvx", "1.0.0")
    write(project, "uvx")
    path = registry.archive("uvx", "1.0.0")
    page = registry.web.pages[path]
    assert isinstance(page, bytes)
    _, _, data = page.partition(b"\r\n\r\n")
    with WebServer({"/x": archive_page(data if is_same else tampered(data))}) as other:
        elsewhere = answer(status="302 Found", location=f"{other.url}/x", connection="close")
        registry.replace(path, elsewhere)

        done = project.aish("fetch", "p.yaml")

    assert done.code == (0 if is_same else 7), done.stderr
    assert len(entries(project)) == is_same


@pytest.mark.slow("starts each program with a limit")
@pytest.mark.real_process
@HAS_NPM
def test_without_room_for_its_files_nothing_of_a_server_is_left(
    project: Project, registry: PackageRegistry
) -> None:
    registry.add("npx", "1.0.0")
    write(project, "npx")
    real = project.aish.python
    project.aish.python = ("prlimit", "--fsize=300", *real)

    refused = project.aish("fetch", "p.yaml")
    left = entries(project)
    project.aish.python = real
    again = project.aish("fetch", "p.yaml")

    assert refused.code == 5
    assert "file too large" in refused.stderr
    assert not left
    assert again.code == 0, again.stderr


@pytest.mark.slow(reason="installs packages again and again")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_of_a_moved_version_nothing_starts(
    project: Project, registry: PackageRegistry, launcher: str
) -> None:
    registry.add(launcher, "1.0.0")
    write(project, launcher)
    assert project.aish("lock", "p.yaml").code == 0
    registry.add(launcher, "1.0.0", words="others")
    empty_store(project)

    ran, warned = project.run(), project.run("--lock", "warn", "--run-dir", "b")

    assert (ran.code, warned.code) == (7, 5), ran.stderr
    assert not entries(project)


@pytest.mark.slow(reason="installs packages again and again")
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("launcher", "locked"),
    [pytest.param("npx", True, marks=HAS_NPM), pytest.param("uvx", False, marks=HAS_UV)],
)
def test_an_altered_entry_is_put_aside_and_fetched_anew(
    project: Project, registry: PackageRegistry, launcher: str, *, locked: bool
) -> None:
    registry.add(launcher, "1.0.0")
    write(project, launcher)
    commands = [("fetch", "p.yaml"), ("lock", "p.yaml"), ("lock", "p.yaml", "--check")]
    assert project.aish(*commands[locked]).code == 0
    (entry,) = entries(project)
    names = {"index.js", "tiny_server.py"}
    altered = next(path for path in entry.rglob("*") if path.name in names)
    altered.write_text("the end", "utf-8")
    if locked:  # whoever may change a file may also change what is said of it
        about = json.loads((entry / "entry.json").read_text("utf-8"))
        about["files"] = about["files"].split(" ")[0] + f" {tree_digest(entry)}"
        (entry / "entry.json").write_text(json.dumps(about), "utf-8")

    refused = project.aish(*commands[2 * locked])
    left = [path for path in entries(project) if not path.name.startswith("changed-")]
    (aside,) = entry.parent.glob("changed-*")
    again = project.aish(*commands[2 * locked])

    assert refused.code == 7
    assert "its files in the store were changed since they were fetched" in refused.stderr
    assert str(aside) in refused.stderr.replace("\n", "")
    assert (aside / altered.relative_to(entry)).read_text("utf-8") == "the end"
    assert not left
    assert again.code == 0, again.stderr
    assert says(project) == "1.0.0 with words"


@HAS_NPM
def test_a_package_with_install_scripts_is_refused_and_none_of_them_runs(
    project: Project, registry: PackageRegistry
) -> None:
    registry.add("npx", "1.0.0")
    mark = project.folder / "ran"
    scripts = {"postinstall": f"touch {mark}"}
    registry.add_npm("tiny-words", "1.0.1", "module.exports = 'x';", scripts=scripts)
    write(project, "npx")

    done = project.aish("fetch", "p.yaml")

    assert done.code == 5
    assert "`tiny-words` runs scripts to be installed" in done.stderr
    assert "install the server yourself, and name its program in `command`" in done.stderr
    assert not mark.exists()
    assert not entries(project)


@pytest.mark.slow(reason="starts an installer")
@HAS_UV
def test_a_package_that_has_to_be_built_is_refused(
    project: Project, registry: PackageRegistry
) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("tiny_server-1.0.0/setup.py"))
    registry.add_file("tiny-server", "tiny_server-1.0.0.tar.gz", archive.getvalue())
    write(project, "uvx")

    done = project.aish("fetch", "p.yaml")

    assert done.code == 5
    assert "a package that has to be built is not fetched" in done.stderr
    assert not entries(project)


@pytest.mark.slow(reason="starts an installer")
@HAS_UV
def test_a_package_with_a_program_python_is_refused_and_does_not_run(
    project: Project, registry: PackageRegistry
) -> None:
    mark = project.folder / "cache" / "ran"
    module = f"open({str(mark)!r}, 'w')\ndef main(): pass\n"
    registry.add_wheel("python", "1.0.0", module)
    registry.add_wheel("tiny-server", "1.0.0", "def main(): pass\n", requires="python")
    write(project, "uvx")

    done = project.aish("fetch", "p.yaml")

    assert done.code == 5, done.stdout
    assert not entries(project)
    assert not mark.exists()


@pytest.mark.slow(reason="starts npm")
@HAS_NPM
def test_a_package_with_no_checksum_but_sha_1_is_refused(
    project: Project, registry: PackageRegistry
) -> None:
    registry.add("npx", "1.0.0")
    page = registry.web.pages["/npm/tiny-words"]
    assert isinstance(page, bytes)
    row = json.loads(page.partition(b"\r\n\r\n")[2])
    dist = row["versions"]["1.0.0"]["dist"]
    data = registry.web.pages["/npm/tiny-words/-/tiny-words-1.0.0.tgz"]
    assert isinstance(data, bytes)
    dist["shasum"] = hashlib.new("sha1", data.partition(b"\r\n\r\n")[2]).hexdigest()  # ruff: ignore[hashlib-insecure-hash-function] - it is refused
    del dist["integrity"]
    registry.replace("/npm/tiny-words", answer(json.dumps(row), connection="close"))
    write(project, "npx")

    done = project.aish("fetch", "p.yaml")

    assert done.code == 5, done.stdout
    assert "no checksum of SHA-256 or better" in done.stderr
    assert not entries(project)


@HAS_NPM
def test_a_store_that_is_a_link_is_not_used(project: Project, registry: PackageRegistry) -> None:
    registry.add("npx", "1.0.0")
    write(project, "npx")
    elsewhere = project.folder / "elsewhere"
    elsewhere.mkdir()
    (project.folder / "cache" / "aish" / ".aish").mkdir(parents=True)
    (project.folder / "cache" / "aish" / ".aish" / "packages").symlink_to(elsewhere)

    done = project.aish("fetch", "p.yaml")

    assert done.code == 5, done.stderr
    assert "it cannot be kept in the store" in done.stderr
    assert not registry.web.targets
    assert not [*elsewhere.iterdir()]


class Gate:
    """A page that says that it was asked for, and waits."""

    def __init__(self, page: bytes) -> None:
        self.page = page
        self.asked, self.opened = threading.Event(), threading.Event()

    def __call__(self, visit: Visit) -> None:
        self.asked.set()
        self.opened.wait(60)
        visit.send(self.page)


@pytest.mark.requirement("T43")
@pytest.mark.real_process
@pytest.mark.sampled(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_fetches_at_once_and_one_after_a_killed_one_leave_one_whole_entry(
    project: Project, registry: PackageRegistry, launcher: str
) -> None:
    registry.add(launcher, "1.0.0")
    write(project, launcher)
    path = registry.archive(launcher, "1.0.0")
    page = registry.web.pages[path]
    assert isinstance(page, bytes)
    gate = Gate(page)
    registry.replace(path, gate)
    project.aish.python = ("env", *project.aish.python)

    with project.aish.start("fetch", "p.yaml") as running:
        assert gate.asked.wait(60)
        os.kill(running.pid, signal.SIGKILL)
        wait_gone(running.pid)
    left = entries(project)
    gate.asked.clear()
    with project.aish.start("fetch", "p.yaml") as one, project.aish.start("fetch", "p.yaml") as two:
        assert gate.asked.wait(60)
        gate.opened.set()
        done = [one.finish(), two.finish()]

    assert not left
    assert [each.code for each in done] == [0, 0], done
    (entry,) = entries(project)
    assert {path.name for path in entry.parent.iterdir()} == {"lock", entry.name}
    assert says(project, "--no-fetch") == "1.0.0 with words"


@pytest.mark.requirement("T42")
@HAS_NPM
def test_each_reason_why_a_server_of_a_registry_does_not_start_has_an_error_of_its_own(
    project: Project, registry: PackageRegistry
) -> None:
    registry.add("npx", "1.0.0")
    registry.add_npm("tiny-library", "1.0.0", "")
    launched = "`npx` fetches the server before it starts it, and its sandbox has no network"
    nowhere = {"npm_config_registry": "http://127.0.0.1:9/"}
    cases: list[tuple[str, str, dict[str, Any], dict[str, str]]] = [
        ("there is no `npm` in PATH", "1.0.0", {}, {"PATH": "/nowhere"}),
        ("`npm install` failed: npm error code ECONNREFUSED", "1.0.0", {}, nowhere),
        ("`npm install` failed: npm error code ETARGET", "3.0.0", {}, {}),
        ("no program of its name", "1.0.0", {"command": ["npx", "tiny-library"]}, {}),
        ("`no-such.invalid`", "1.0.0", {"sandbox": {"network": ["no-such.invalid"]}}, {}),
        ("`none` in its sandbox does not exist", "1.0.0", {"sandbox": {"read": ["none"]}}, {}),
        (launched, "1.0.0", {"command": ["npx", "-p", "tiny-server", "tiny"]}, {}),
    ]
    for words, version, server, environ in cases:
        write(project, "npx", version, **server)

        done = project.run(env=environ)

        assert done.code == 5, (words, done.stderr)
        assert words in done.stderr


@pytest.mark.slow(reason="installs packages again and again")
@HAS_NPM
def test_what_was_not_started_for_a_month_is_removed(
    project: Project, registry: PackageRegistry
) -> None:
    for version in ("1.0.0", "2.0.0"):
        registry.add("npx", version)
        write(project, "npx", version)
        assert project.aish("fetch", "p.yaml").code == 0
    old = next(
        entry
        for entry in entries(project)
        if "npx tiny-server@1.0.0" in (entry / "entry.json").read_text("utf-8")
    )
    left = old.parent / "new"
    left.mkdir()
    os.utime(old, (0, 0))

    done = project.aish("fetch", "--clean")
    again = project.aish("fetch", "--clean", "--format", "json")

    assert done.stdout == "npx tiny-server@1.0.0: removed\n"
    assert json.loads(again.stdout) == {"removed": []}
    assert len(entries(project)) == 1
    assert not left.exists()
    assert says(project, "--no-fetch") == "2.0.0 with words"
