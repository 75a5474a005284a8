"""Tell URIs of attachments from paths of files.

Also match URIs with servers' URI templates (RFC 6570, as far as finding a server needs).

Templates are untrusted: they are not converted to regular expressions, and each part of the URI is
examined once for each part of the template.
"""

from collections.abc import Iterator

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern

# One letter before the colon is a drive, not a scheme.
_SCHEME = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]+:")


def is_uri(ref: str) -> bool:
    return _SCHEME.match(ref) is not None


@frozen
class _Gap:
    """The value of an expression: some text, with `/` in it if the template allows that."""

    slashes: bool

    def fits(self, text: str) -> bool:
        return bool(text) and (self.slashes or "/" not in text)


def matches(template: str, uri: str) -> bool:
    """Return true if `uri` is `template` with non-empty values for its expressions."""
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
        # The first match: a later one would only make the gap longer.
        before, match, rest = rest.partition(part) if gap is None else _after_one(rest, part)
        if not match or (before if gap is None else not gap.fits(before)):
            return False
        gap = None
    return gap is not None and gap.fits(rest)


def _after_one(text: str, part: str) -> tuple[str, str, str]:
    """`text` split at the first `part` that has something before it."""
    before, separator, rest = text[1:].partition(part)
    return text[:1] + before, separator, rest


def _parts(template: str) -> Iterator[str | _Gap]:
    """The texts and the expressions of a template; an unclosed brace is text."""
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
