"""What looks like a secret is not written (C8): a refusal that names the places."""

from collections.abc import Iterable, Sequence

from aish.cassettes.errors import CassetteFileError
from aish.cassettes.interaction import Head, Interaction
from aish.cassettes.scan import scan_numbered, scan_text
from aish.core.phrases import first_lines

_SHOWN = 5


def refuse_secrets(
    head: Head,
    interactions: Iterable[tuple[int, Interaction]],
    allow: Sequence[str] = (),
    harmless: set[str] | None = None,
) -> None:
    """Look through what is to be written, with its numbers; `harmless` as in `scan_numbered`.

    Raises:
        CassetteFileError: something in it looks like a secret that nobody declared.
    """
    found = [*scan_numbered(interactions, allow, harmless)]
    for name, value in head.env.items():
        found += scan_text(f"the value of `{name}`", value, allow)
    if not found:
        return
    lines = "\n".join(first_lines([f"  {finding}" for finding in found], _SHOWN, "  "))
    raise CassetteFileError(
        f"the cassette is not written: it may hold a secret nobody declared\n{lines}",
        hint="name its variable under `secrets:`, or what is no secret under `cassette.allow`",
    )
