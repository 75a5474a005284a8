r"""Untrusted text, made safe for the place where it is shown.

There is one function for each kind of place, and no other way to print such text. Characters that
are invisible or move the cursor are escaped (`\x1b`, `\u202e`), so that each character is harmless
by itself, even if streaming splits a sequence. `suspicious` finds what users are warned about.
"""

import re

from aish.core.patterns import lazy_pattern

_BIDI = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = (
    r"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f"
    r"\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff"
)
# Emoji presentation selectors have a visible effect after a symbol and are everywhere in what
# models write; after anything else they are invisible.
_SYMBOL = r"\xa9\xae\u203c-\u205f\u2070-\u3163\u3165-\u3299\U0001f000-\U0001faff"
_SELECTOR = rf"(?<![{_SYMBOL}])[\ufe0e\ufe0f](?!\u20e3)"
_ODD = lazy_pattern(
    rf"\r\n|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_BIDI}{_INVISIBLE}]|{_SELECTOR}"
)
_SURROGATE = lazy_pattern(r"[\ud800-\udfff]")
# GitHub trims a line before it looks for `::`, and looks for `##[` anywhere in it, as Azure
# Pipelines does for `##vso[` and TeamCity for `##teamcity[`. Its comparison is culture-sensitive as
# in .NET: ignorable characters, which each release of Unicode extends, are skipped. So all
# non-ASCII characters are ignored here.
_CI_COMMAND = lazy_pattern(
    r"^([^\x21-\x7e\n]*):(?=[^\t-~]*:)|#(?=[^\t-~]*#(?:[^\t-~]|[A-Za-z])*\[)", re.MULTILINE
)
# Lines that begin as those that mark a text as ours, or the end of an enclosed one; what is not
# seen before it (a byte order mark, a colour) does not count.
_UNSEEN = (
    r"(?:\x1b\[[0-9;:?]*[A-Za-z]|"
    rf"[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f{_BIDI}{_INVISIBLE}\ufe0e\ufe0f])*"
)
_MARKER = lazy_pattern(
    r"(?:\A|(?<=[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]))"
    rf"(?={_UNSEEN}\[(?:aish|from |end of |end |explained by ))"
)
_NOT_XML = lazy_pattern(r"[\ufffe\uffff]")


def _spell(found: re.Match[str]) -> str:
    """A special character as an escape sequence; a line end is kept."""
    odd = found[0]
    if odd == "\r\n":
        return "\n"
    code = ord(odd)
    if odd == "\r":
        return "\\r"
    if code <= 0xFF:  # ruff: ignore[magic-value-comparison] - two digits
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # ruff: ignore[magic-value-comparison] - four


def for_terminal(text: str) -> str:
    r"""Text for a terminal: only `\n` and `\t` are passed through."""
    # Line ends are looked through: few texts have anything else that is not printable.
    if text.isascii() and (text.isprintable() or text.replace("\n", "").isprintable()):
        return text
    return _ODD.sub(_spell, text)


def for_line(text: str) -> str:
    """The same on one line: line ends show as `⏎`, tabs as a space."""
    return for_terminal(text).replace("\n", "⏎").replace("\t", " ")


def without_markers(text: str) -> str:
    """Text for a model, in which no line begins like one of our markers.

    Such lines get a leading space.
    """
    return _MARKER.sub(" ", text) if "[" in text else text


def for_ci_log(text: str) -> str:
    """The same for a CI log, where some lines would be interpreted as commands.

    Requires whole lines: a command split in two would not be recognized.
    """
    shown = for_terminal(text)
    # Only what is not ASCII may be between the two colons, or the two hashes, of a command.
    ascii_only = shown if shown.isascii() else shown.encode("ascii", "ignore").decode()
    if "::" not in ascii_only and "##" not in ascii_only:
        return shown
    return _CI_COMMAND.sub(lambda found: f"{found[1] or ''}\\x{ord(found[0][-1]):02x}", shown)


def _escape_markup(text: str) -> str:
    # `str.translate` takes four times as long: it looks each character up. `&` first: the others
    # bring some.
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("'", "&#x27;")


def for_html(text: str) -> str:
    """Text for the content or a quoted attribute of HTML."""
    return _escape_markup(for_terminal(text))


def markdown_code(text: str) -> str:
    """Text as a code span of Markdown, in which markup, links, images and mentions are inert."""
    shown = for_ci_log(for_line(text))
    ticks = "`" * (_longest_ticks(shown) + 1)
    space = " " if "`" in shown or not shown.strip() else ""
    return f"{ticks}{space}{shown}{space}{ticks}"


def markdown_block(text: str) -> str:
    """The same as a fenced block, whose lines can be read as they are."""
    shown = for_ci_log(text)
    fence = "`" * max(3, _longest_ticks(shown) + 1)
    return f"{fence}\n{shown.removesuffix(chr(10))}\n{fence}"


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)


def for_xml(text: str) -> str:
    """Text for the content or a quoted attribute of XML 1.0, which forbids some characters."""
    return _escape_markup(_NOT_XML.sub(_spell, for_terminal(text)))


def safe_utf8(text: str) -> str:
    """The same text with lone surrogates replaced, so that it can be encoded."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


_NOT_LATIN = r"\u0370-\u03ff\u0400-\u052f\u0531-\u058f"
# Full-width marks and digits, and circled digits: usual beside Chinese, Japanese and Korean.
_WIDE = r"\uff01-\uff20\uff3b-\uff40\uff5b-\uff5e\u2460-\u249b\u24ea-\u24ff"
_EAST_ASIAN = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
_LOOKALIKE = (
    r"[\uff21-\uff3a\uff41-\uff5a\u249c-\u24e9\U0001d400-\U0001d7ff\U0001f130-\U0001f189]"
    rf"|\A(?![\s\S]*[{_EAST_ASIAN}])[\s\S]*?[{_WIDE}]"
    rf"|[A-Za-z][{_NOT_LATIN}]|[{_NOT_LATIN}][A-Za-z]"
)
_SIGNS: tuple[tuple[str, str], ...] = (
    ("escape sequence", r"[\x1b\x9b\x9d\x90\x9e\x9f]"),
    ("control character", r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]|\r(?!\n)"),
    ("bidi control", rf"[{_BIDI}]"),
    ("tag character", r"[\U000e0000-\U000e007f]"),
    ("invisible character", rf"[{_INVISIBLE}\u2028\u2029]|{_SELECTOR}"),
    ("lone surrogate", _SURROGATE.pattern),
    ("lookalike letters", _LOOKALIKE),
    ("text pushed out of sight", r"\n[ \t]*(?:\n[ \t]*){9}|[ \t]{40}"),
)
# Applied to the text after folding compatibility forms and removing invisible characters.
_POISON: tuple[tuple[str, str], ...] = (
    ("hidden markup", r"<!--|</?(?:important|system|secret|instructions?|hidden)\b"),
    (
        "orders to the model",
        (
            r"\b(?:ignore|disregard|forget|override)\b.{0,40}"
            r"\b(?:instructions?|rules|prompts?|guidelines|above|previous|prior)\b"
            r"|\byou (?:must|should) (?:always|never|first)\b|\bsystem prompt\b"
            r"|\b(?:before|after|instead of) (?:using|calling|running|invoking)"
            r" (?:this|any|other|the)\b"
        ),
    ),
    (
        "secrecy",
        (
            r"\b(?:do not|don't|never|without)\b.{0,20}"
            r"\b(?:tell|telling|mention|mentioning|inform|informing|reveal|notify|notifying)\b"
        ),
    ),
    (
        "private files",
        (
            r"\.(?:ssh|aws|gnupg|netrc|kube|env)\b|\bid_(?:rsa|ed25519)\b|/etc/(?:passwd|shadow)"
            r"|\bmcp\.json\b"
        ),
    ),
    ("encoded block", r"[A-Za-z0-9+/_-]{120}"),
)


def suspicious(text: str) -> tuple[str, ...]:
    """The names of suspicious features in a server's description of itself."""
    from aish.core.normal_form import compatible_form

    signs = [name for name, sign in _SIGNS if re.search(sign, text)]
    folded = compatible_form(_ODD.sub("", text))
    flags = re.IGNORECASE | re.DOTALL
    signs += [name for name, sign in _POISON if re.search(sign, folded, flags)]
    return tuple(signs)
