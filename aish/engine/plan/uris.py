"""Whether what is to be attached is a URI, or the path of a file.

Whether a URI may come of a server's URI template (RFC 6570, as far as finding a server needs).

Templates are a stranger's text: no regular expression is made of one, and each piece of the URI is
looked at once for each piece of the template.
"""

from collections.abc import Iterator

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern

# One letter before the colon is a drive, not a scheme.
_SCHEME = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]+:")


def is_uri(ref: str) -> bool:
    """Whether it begins with a scheme."""
    return _SCHEME.match(ref) is not None


@frozen
class _Gap:
    """What an expression stands for: some text, with `/` in it where the template says so."""

    slashes: bool

    def fits(self, text: str) -> bool:
        """Whether it can stand for `text`."""
        return bool(text) and (self.slashes or "/" not in text)


def matches(template: str, uri: str) -> bool:
    """Whether `uri` is `template` with its expressions filled in; none of them is empty."""
    parts = list(_parts(template))
    last = parts.pop() if parts and isinstance(parts[-1], str) else ""
    assert isinstance(last, str)
    if not parts:
        return uri == last
    if not uri.endswith(last):
        return False
    rest, gap = uri[: len(uri) - len(last)], None
    for part in parts:
        if isinstance(part, _Gap):
            gap = _Gap(part.slashes or (gap is not None and gap.slashes))
            continue
        # The first place that fits: a later one would only make the gap longer.
        before, found, rest = rest.partition(part) if gap is None else _after_one(rest, part)
        if not found or (before if gap is None else not gap.fits(before)):
            return False
        gap = None
    return gap is not None and gap.fits(rest)


def _after_one(text: str, part: str) -> tuple[str, str, str]:
    """`text` parted at the first `part` that has something before it."""
    before, found, rest = text[1:].partition(part)
    return text[:1] + before, found, rest


def _parts(template: str) -> Iterator[str | _Gap]:
    """The texts and the expressions of a template; a brace that is never closed is a text."""
    rest = template
    while rest:
        text, brace, inner = rest.partition("{")
        if brace and "}" not in inner:
            yield rest
            return
        if text:
            yield text
        expression, _, rest = inner.partition("}")
        if brace:
            yield _Gap(expression[:1] in {"+", "#", "/"} or expression.endswith("*"))
