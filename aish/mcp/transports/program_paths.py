"""Finds what a server needs to run: program, interpreter, environment and installed package.

Nothing is executed to find out. What is not found here, an editable install for example, has to be
named by `read`.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix")
_INTERPRETERS = re.compile(
    r"(?:python|pypy|node|nodejs|deno|bun|ruby|perl|php|java|sh|bash|dash|tsx|ts-node)[\d.]*\Z"
)
_LAUNCHERS = frozenset({"npx", "uvx", "bunx", "pnpx", "pipx"})
_LAUNCHING_WORDS = {"npm": ("exec", "x"), "uv": ("run", "tool"), "pnpm": ("dlx",), "bun": ("x",)}
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*\Z")
_JAVASCRIPT_PROGRAMS = ("node", "npm", "npx")
_FIRST_LINE = 256
_HOME = re.compile(r"(?m)^home\s*=\s*(.+?)\s*$")


def find_program(word: str, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file that a command starts, by `PATH` or relative to its folder."""
    if "/" in word:
        path = cwd / word
        return path if path.is_file() and os.access(path, os.X_OK) else None
    found = shutil.which(word, path=environ.get("PATH", os.defpath))
    return None if found is None else cwd / found


def program_paths(
    command: Sequence[str], environ: Mapping[str, str], cwd: Path
) -> tuple[Path, ...]:
    """The files and folders beside the system's that the program of a command consists of."""
    program = find_program(command[0], environ, cwd)
    if program is None:
        return ()
    paths: dict[Path, None] = {}
    _add(program, environ, paths)
    if _INTERPRETERS.match(program.name):
        script = next((cwd / word for word in command[1:] if not word.startswith("-")), None)
        with suppress(OSError, ValueError):  # the text of a program, which is no path
            if script is not None and script.is_file():
                _add(script, environ, paths)
    return tuple(path for path in paths if not any(above in paths for above in path.parents))


def launcher_of(command: Sequence[str]) -> str | None:
    """The program that fetches the server before it starts it, if the command is one."""
    name = Path(command[0]).name
    words = _LAUNCHING_WORDS.get(name, ())
    return name if name in _LAUNCHERS or (command[1:2] and command[1] in words) else None


def unwanted_programs(
    command: Sequence[str], environ: Mapping[str, str], cwd: Path
) -> tuple[Path, ...]:
    """JavaScript's programs in `PATH`, for a server in Python.

    Libraries of Python that find them start an installer, which waits for a network in vain.
    """
    program = find_program(command[0], environ, cwd)
    if program is None or not _is_python(program, environ):
        return ()
    found = (shutil.which(name, path=environ.get("PATH", "")) for name in _JAVASCRIPT_PROGRAMS)
    paths = (Path(path).resolve() for path in found if path is not None)
    return tuple(path for path in paths if _is_of_system(path))


def _is_of_system(path: Path) -> bool:
    return path.as_posix().startswith(tuple(f"{folder}/" for folder in _SYSTEM))


def _is_python(program: Path, environ: Mapping[str, str]) -> bool:
    if (program.parent.parent / "pyvenv.cfg").is_file():
        return True
    interpreter = _interpreter_of(program, environ)
    return any(
        path is not None and _PYTHON.match(path.name) is not None for path in (program, interpreter)
    )


def _add(file: Path, environ: Mapping[str, str], paths: dict[Path, None]) -> None:
    """Add a program, what it is installed with, and its interpreter."""
    for path in dict.fromkeys((file, file.resolve())):
        if not _is_of_system(path):
            paths.update(dict.fromkeys(_installation(path)))
    interpreter = _interpreter_of(file, environ)
    if interpreter is not None and interpreter not in paths and interpreter != file:
        _add(interpreter, environ, paths)


def _installation(program: Path) -> Iterator[Path]:
    """The folder that a program is installed in with what it loads, or the program alone."""
    parts = program.parts
    if "node_modules" in parts:
        yield Path(*parts[: parts.index("node_modules") + 1])
        return
    prefix = program.parent.parent
    if program.parent.name == "shims":  # of pyenv and its like: a script that finds a version
        yield prefix
    elif (prefix / "pyvenv.cfg").is_file():
        yield prefix
        yield from _base_of(prefix / "pyvenv.cfg")
    elif program.parent.name == "bin" and _is_own_prefix(prefix):
        yield prefix
    else:
        yield program


def _base_of(config: Path) -> Iterator[Path]:
    """The installation that a virtual environment was made of."""
    with suppress(OSError, UnicodeDecodeError):
        match = _HOME.search(config.read_text("utf-8"))
        prefix = None if match is None else Path(match[1]).resolve().parent
        if prefix is not None and _is_own_prefix(prefix):
            yield prefix


def _is_own_prefix(prefix: Path) -> bool:
    """Return true if a prefix holds one installation only, and not the files of a person."""
    home = Path.home()
    shared = (home, home / ".local", Path("/"), Path("/usr"), Path("/usr/local"))
    return prefix not in shared and prefix not in home.parents and (prefix / "lib").is_dir()


def _interpreter_of(file: Path, environ: Mapping[str, str]) -> Path | None:
    """The interpreter that the first line of a script names."""
    try:
        with file.open("rb") as stream:
            line = stream.read(_FIRST_LINE).partition(b"\n")[0]
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = os.fsdecode(line[2:]).split()
    if words and Path(words[0]).name == "env":
        name = next((word for word in words[1:] if not word.startswith("-")), "")
        return find_program(name, environ, Path("/")) if name else None
    return Path(words[0]) if words and Path(words[0]).is_file() else None
