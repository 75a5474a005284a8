"""`make compat`: try again what docs/reference/compatibility.md says, each in a temporary folder.

    python compat/try_entries.py [WORD…]

Each word selects the entries whose name, package or kind holds it. An entry that does not hold any
more is told with what it shows now, and the exit code is 1.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from compat_entries import FOLDER, Entry, EntryError, read_entries

COMMAND_SECONDS = 300
START_SECONDS = 180
PROGRAMS = Path(sys.executable).parent


class DoesNotHoldError(Exception):
    """An entry is not true now; the message says what was seen."""


def main(words: Sequence[str]) -> int:
    try:
        entries = [entry for entry in read_entries() if is_selected(entry, words)]
    except EntryError as error:
        print(error, file=sys.stderr)
        return 2
    if not entries:
        print(f"no entry has `{' '.join(words)}` in its name, package or kind", file=sys.stderr)
        return 2
    counts = {"holds": 0, "left out": 0, "DOES NOT HOLD": 0}
    with tempfile.TemporaryDirectory(prefix="compat-") as caches:
        for entry in entries:
            began = time.monotonic()
            state, text = try_entry(entry, Path(caches))
            counts[state] += 1
            print(f"{state:13}  {entry.name} {entry.version}  {time.monotonic() - began:.0f} s")
            if text:
                print(re.sub(r"(?m)^", "    ", text.rstrip()), flush=True)
    print(", ".join(f"{count} {state}" for state, count in counts.items() if count))
    return 1 if counts["DOES NOT HOLD"] else 0


def is_selected(entry: Entry, words: Sequence[str]) -> bool:
    text = f"{entry.name} {entry.package} {entry.kind}".lower()
    return not words or any(word.lower() in text for word in words)


def try_entry(entry: Entry, caches: Path) -> tuple[str, str]:
    """Return `holds`, `left out` or `DOES NOT HOLD`, and what to say of it."""
    missing = [program for program in entry.needs if shutil.which(program) is None]
    if missing:
        return "left out", f"it needs {', '.join(missing)}"
    with tempfile.TemporaryDirectory(prefix="compat-") as name:
        folder = Path(name)
        (folder / "work").mkdir()
        env = environment(folder, caches)
        try:
            install(entry, folder, env)
            run_entry(entry, folder / "work", env)
        except DoesNotHoldError as error:
            return "DOES NOT HOLD", str(error)
    return "holds", ""


def environment(folder: Path, caches: Path) -> dict[str, str]:
    """The environment with a home of its own, whose caches are those of all entries.

    A server sees little of it, so what uv and npm need to trust is in files of the home.
    """
    home = folder / "home"
    (home / ".config" / "uv").mkdir(parents=True)
    for place in (".cache", ".npm"):
        (caches / place).mkdir(exist_ok=True)
        (home / place).symlink_to(caches / place)
    if authorities := os.environ.get("SSL_CERT_FILE"):
        (home / ".config" / "uv" / "uv.toml").write_text("system-certs = true\n")
        (home / ".npmrc").write_text(f"cafile={authorities}\n")
    places = [folder / "venv" / "bin", folder / "node_modules" / ".bin", PROGRAMS]
    path = os.pathsep.join([*map(str, places), os.environ["PATH"]])
    return os.environ | {"PATH": path, "HOME": str(home), "NO_COLOR": "1"}


def install(entry: Entry, folder: Path, env: Mapping[str, str]) -> None:
    """Install the packages that an entry names, exactly these."""
    python = [one.removeprefix("pypi:") for one in entry.install if one.startswith("pypi:")]
    node = [one.removeprefix("npm:") for one in entry.install if one.startswith("npm:")]
    if python:
        venv = str(folder / "venv")
        run_well(["uv", "venv", "--quiet", "--python", sys.executable, venv], folder, env)
        words = ["uv", "pip", "install", "--quiet", "--python", f"{venv}/bin/python", *python]
        run_well(words, folder, env)
    if node:
        words = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *node]
        run_well(words, folder, env)


def run_well(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
    code, text = run(words, folder, env)
    if code:
        raise DoesNotHoldError(f"{shlex.join(words)} ended with {code}:\n{last_lines(text)}")


def run_entry(entry: Entry, folder: Path, env: Mapping[str, str]) -> None:
    """Run the commands of an entry in a folder with its files.

    Raises:
        DoesNotHoldError: a command ends in another way, or shows something else.
    """
    ports = {str(port): str(free_port()) for port in (entry.model, entry.port) if port}

    def fill(text: str) -> str:
        for port, free in ports.items():
            text = text.replace(port, free)
        return text

    files = {**entry.files, **({"p.yaml": entry.pipeline} if entry.pipeline else {})}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text), "utf-8")
    model = [sys.executable, str(FOLDER / "model_server.py"), str(entry.model)]
    with (
        started(
            [list(map(fill, model))] if entry.model else [], fill(f"{entry.model}"), folder, env
        ),
        started(
            [list(map(fill, words)) for words in entry.start], fill(f"{entry.port}"), folder, env
        ),
    ):
        if "[uvx, " in entry.pipeline or "[npx, " in entry.pipeline:
            # What cannot be fetched is told where it starts.
            run(["aish", "fetch", "p.yaml"], folder, env)
        *before, last = [[fill(word) for word in words] for words in entry.run]
        for words in before:
            run_well(words, folder, env)
        code, text = run(last, folder, env)
    if code != entry.exit:
        message = f"{shlex.join(last)} ended with {code}, not {entry.exit}:\n{last_lines(text)}"
        raise DoesNotHoldError(message)
    for wanted in entry.shows:
        if fill(wanted) not in text:
            message = f"{shlex.join(last)} does not show `{wanted}`:\n{last_lines(text)}"
            raise DoesNotHoldError(message)


@contextmanager
def started(
    programs: Sequence[Sequence[str]], port: str, folder: Path, env: Mapping[str, str]
) -> Generator[None]:
    """Programs that run meanwhile, the last of which listens on the port."""
    log = folder.parent / "log"
    children: list[subprocess.Popen[bytes]] = []
    try:
        for words in programs:
            with log.open("ab") as output:
                children.append(
                    subprocess.Popen(
                        words,
                        cwd=folder,
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        if children:
            wait_until_listening(children[-1], int(port), log)
        yield
    finally:
        for child in children:
            end_group(child)


def wait_until_listening(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if child.poll() is not None:
            break
        time.sleep(0.1)
    text = last_lines(log.read_text("utf-8", "replace"))
    raise DoesNotHoldError(f"nothing listens on its port after its start:\n{text}")


def end_group(child: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 30)):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def run(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Return the exit code of a command, and what it wrote."""
    child = subprocess.Popen(
        words,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        end_group(child)
        message = f"{shlex.join(words)} did not end within {COMMAND_SECONDS} s"
        raise DoesNotHoldError(message) from None
    return child.returncode, output.decode("utf-8", "replace")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def last_lines(text: str, count: int = 25) -> str:
    return "\n".join(text.rstrip().splitlines()[-count:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
