"""`aish cassette scrub PATH`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from aish.cassettes.format.file import contents, require_cassette
from aish.cassettes.scrub import scrub_content
from aish.cli.boundary import say
from aish.cli.options import CassetteArgument, Option
from aish.cli.pipeline_options import read_stdin
from aish.cli.printer import print_text
from aish.core.errors import UsageError
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.system.files import atomic_write
from aish.system.secrets.secrets import Secrets

_HISTORY = "copies that were committed or sent still contain it: replace the secret itself"


def command(
    path: CassetteArgument,
    *,
    env: Annotated[
        list[str] | None, Option("--env NAME", "Remove the value of this variable.")
    ] = None,
    stdin: Annotated[bool, Option("--stdin", "Read NAME=VALUE lines from stdin.")] = False,
    in_place: Annotated[bool, Option("--in-place", "Change the file itself.")] = False,
    output: Annotated[Path | None, Option("-o --output OUT", "Write to another file.")] = None,
) -> int:
    """Remove secrets from a cassette.

    Removes named values (plain, escaped in JSON or in a URL, and in base64), and
    headers with credentials. The values come from the environment or from stdin, so
    that they are in no shell history.

    Example: aish cassette scrub tests/cassettes/old.yaml --env API_KEY --in-place
    """
    if (output is not None) == in_place:
        raise UsageError(
            "exactly one output is required", hint="either `--in-place` or `--output OUT`"
        )
    if in_place and path.is_symlink():
        raise UsageError(
            f"`{path}` is a link, and links are not followed here", hint="name the file"
        )
    if output is not None:
        require_cassette(output)
    target = output or path
    secrets = Secrets()
    for name, value in (*_from_environment(env or ()), *(_from_stdin() if stdin else ())):
        secrets.add(name, value)
    result = scrub_content(contents(path), str(path), secrets)
    if result.places or output is not None:
        try:
            atomic_write(target, result.data, shared=True)
        except OSError as error:
            raise UsageError(f"`{target}` cannot be written: {error.strerror}") from error
    for place in result.places:
        times = "" if place.count == 1 else f", {place.count} times"
        print_text(f"{for_line(place.where)}{times}")
    count = sum(place.count for place in result.places)
    if count:
        print_text(f"{counted(count, 'place')} changed in {target}")
        say(f"note: {_HISTORY}")
    else:
        print_text("nothing was found, and nothing changed")
    for where in result.packed:
        say(f"warning: {where} is compressed and was not searched")
    return 0


def _from_environment(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        value = os.environ.get(name)
        if not value:
            raise UsageError(f"the environment variable `{name}` is not set", where="--env")
        yield name, value


def _from_stdin() -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_stdin().splitlines(), 1):
        name, mark, value = line.partition("=")
        if not line.strip():
            continue
        if not (mark and name.strip() and value):
            # The value may be the secret: it is not repeated.
            raise UsageError("not `NAME=VALUE`", where=f"stdin:{number}")
        yield name.strip(), value
