"""Secrets, and the masks that keep them out of output and files.

A mask finds a value in every form in which it is likely to be printed: verbatim, escaped in JSON
(up to three times), escaped in a URL (any of its letters, up to four times), in base64 at each of
the three alignments. Overlapping forms are masked as one, so that masking never leaves the tail of
a second secret behind.
"""

import base64
import json
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from urllib.parse import quote, quote_plus

from aish.core.errors import UsageError
from aish.core.json import JsonValue
from aish.core.patterns import lazy_pattern

SHORTEST = 8
# Name parts that indicate credentials, however short the values are: at the end of a name, or
# before a word in `_WHICH`.
_CREDENTIAL = lazy_pattern(
    r"\w*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|PWD)\d*"
    r"|(?:PAT|CREDENTIALS?|AUTH|AUTHORIZATION|COOKIE|JWT|BEARER)\d*"
)
# One of these is in each of them.
_PARTS = (
    *("KEY", "TOKEN", "SECRET", "PASS", "PWD", "PAT", "CREDENTIAL", "AUTH", "COOKIE", "JWT"),
    "BEARER",
)
# Unambiguous ones, which more words may follow (`SECRET_KEY_BASE`).
_ANYWHERE = lazy_pattern(r"\w*(?:APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE)\d*")
_WHICH = lazy_pattern(
    r"V?\d+|PROD|PRODUCTION|DEV|DEVELOPMENT|STAGE|STAGING|STG|TEST|TESTING|QA|UAT|LIVE|LOCAL"
    r"|SANDBOX|OLD|NEW|PRIMARY|SECONDARY|BACKUP"
)
# Following words that make the value a property of a credential.
_ABOUT = frozenset(
    {
        *("ALGORITHM", "AUDIENCE", "BUCKET", "BUDGET", "CACHE", "CHARS", "COLUMN", "COUNT", "DIR"),
        *("ENABLED", "ENDPOINT", "ENV", "EXPIRES", "EXPIRY", "FIELD", "FILE", "FOLDER", "FORMAT"),
        *("HEADER", "HOST", "ID", "IDS", "INDEX", "ISSUER", "KIND", "LENGTH", "LIFETIME", "LIMIT"),
        *("MANAGER", "MAX", "METHOD", "MIN", "MODE", "NAME", "NAMES", "PARAM", "PATH", "POLICY"),
        *("PORT", "PREFIX", "PROMPT", "PROVIDER", "RATE", "REGION", "REQUIRED", "SCOPE", "SCOPES"),
        *("SECONDS", "SERVICE", "SIZE", "STORE", "SUFFIX", "TIMEOUT", "TTL", "TYPE", "URI", "URL"),
        *("USAGE", "USER", "VAR", "VERSION", "WINDOW"),
    }
)
# Words that merely end like one, and numbers of tokens.
_OTHERWISE = lazy_pattern(
    r"(?:HOT|MON|TUR|DON|HOC|JOC|WHIS)KEY|(?:BY|COM|ENCOM|SUR|TRES)PASS|OLDPWD"
    r"|(?:MAX|MIN|NUM)TOKEN"
)
_COUNTED = lazy_pattern(r"(?:\A|_)(?:MAX|MIN|NUM)_(?:[A-Z]+_)?TOKEN(?=_|\Z)")
_CAMEL = lazy_pattern(r"(?<=[a-z0-9])(?=[A-Z])")
# Variables that every machine has.
_EVERYWHERE = frozenset(
    {
        *("CI", "COLUMNS", "DISPLAY", "EDITOR", "HOME", "HOST", "HOSTNAME", "LANG", "LANGUAGE"),
        *("LINES", "LOGNAME", "OLDPWD", "PAGER", "PATH", "PORT", "PWD", "SHELL", "TEMP", "TERM"),
        *("TMP", "TMPDIR", "TZ", "USER", "USERNAME", "VISUAL"),
    }
)
_PATHS = lazy_pattern(r"(?:PATH|(?:\A|_)(?:DIR|DIRS|FOLDER|HOME|ROOT))\Z")
_PATH = lazy_pattern(r"(?:/|~|\.\.?(?:/|\Z))[^\0\n]*")
_SHORTEST_LINE = 16
_LONG_WORD, _FEW_DIGITS, _DIGITS = 16, 3, 6
_NESTED = 3
_DEEPEST = 200
# More than one letter takes in a URL at the maximum number of escapes.
_PERCENT_LETTER = 12

_Spelled = Callable[[str], Iterator[tuple[int, int, str]]]


def names_credential(name: str) -> bool:
    """Return true if the name of a variable, header or option indicates a credential."""
    letters = name.upper()
    if not any(part in letters for part in _PARTS):
        return False
    words = re.sub(r"[^A-Za-z0-9]+", "_", _CAMEL.sub("_", name)).strip("_").upper()
    if words == "PWD":
        return False
    at_end = True
    for part in reversed(_COUNTED.sub("", words).replace("API_KEY", "APIKEY").split("_")):
        if not _OTHERWISE.fullmatch(part):
            if _ANYWHERE.fullmatch(part) or (at_end and _CREDENTIAL.fullmatch(part)):
                return True
            if part in _ABOUT:
                return False
        at_end = at_end and _WHICH.fullmatch(part) is not None
    return False


def resembles_key(name: str) -> bool:
    """Return true if a text, instead of a variable's name, looks like a value: letters and digits.

    The names that people choose have shorter words, or fewer digits.
    """
    return any(
        len(word) >= _LONG_WORD
        and sum(map(str.isdigit, word)) >= (_DIGITS if word == word.upper() else _FEW_DIGITS)
        for word in re.split(r"[^A-Za-z0-9]+", name)
    )


def is_everywhere(name: str) -> bool:
    """Return true if every machine has a variable of this name."""
    return name in _EVERYWHERE or name.startswith(("LC_", "XDG_"))


def is_ordinary(name: str, value: str) -> bool:
    """Return true if a variable that is not a declared secret contains none.

    True for variables that every machine has, for paths in variables named as paths, and for values
    too short to be masked, unless the name indicates a credential.
    """
    if is_everywhere(name):
        return True
    if _PATHS.search(name) and all(map(_PATH.fullmatch, filter(None, value.split(":")))):
        return True
    return len(value) < SHORTEST and not names_credential(name)


class Secrets:
    """The secrets of a run; more may be added at any time."""

    def __init__(self) -> None:
        self._tags: dict[str, str] = {}
        self._values: dict[tuple[str, str], None] = {}
        self._spellings: _Spelled | None = None
        self._forms: list[str] = []
        self._by_head: dict[str, list[str]] = {}
        self._starts: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._longest = 0

    def __bool__(self) -> bool:
        return bool(self._tags)

    def __len__(self) -> int:
        self._compile_pattern()
        return len(self._tags)

    def add(self, name: str, value: str) -> None:
        """Mask `value` as `<secret:name>` from now on.

        Raises:
            UsageError: the value is too short to be distinguished from ordinary text.
        """
        if len(value) < SHORTEST:
            raise UsageError(
                f"the secret `{name}` is shorter than {SHORTEST} characters",
                hint="a short secret would be masked in ordinary text",
            )
        tag = f"<secret:{name}>"
        if (tag, value) in self._values:
            return
        for form in _forms(value):
            self._tags.setdefault(form, tag)
        self._values[tag, value] = None
        self._spellings = self._pattern = None

    def named(self) -> tuple[tuple[str, str], ...]:
        """The name and the value of each, in the order in which they were added."""
        return tuple((tag[len("<secret:") : -1], value) for tag, value in self._values)

    def plain(self) -> Iterator[str]:
        """Each secret verbatim; of one with several lines, each longer line of it."""
        values = (text for _, value in self._values for text in sorted(_plain(value)))
        return (text for text in dict.fromkeys(values) if not {"\r", "\n"} & set(text))

    def mask(self, text: str) -> str:
        """The text with every secret replaced by its tag."""
        if not self._tags:
            return text
        pieces: list[str] = []
        end = 0
        for start, stop, tag in self.spans(text):
            pieces += (text[end:start], tag)
            end = stop
        return "".join((*pieces, text[end:])) if end else text

    def mask_json(self, value: JsonValue) -> JsonValue:
        """The value with every secret in its strings, keys and numbers replaced."""
        return self._mask_json(value, 0) if self._tags else value

    def restore_json(self, value: JsonValue) -> JsonValue:
        """The value with each tag of a secret replaced by the secret, as it is.

        Only for what `is_restorable` said so of: a text from outside may have the same tags.
        """
        if isinstance(value, str):
            for tag, secret in self._values:
                value = value.replace(tag, secret)
            return value
        if isinstance(value, Mapping):
            return {self.restore_text(k): self.restore_json(v) for k, v in value.items()}
        if isinstance(value, Sequence):
            return [self.restore_json(item) for item in value]
        return value

    def restore_text(self, text: str) -> str:
        """A text with each tag replaced by its secret."""
        restored = self.restore_json(text)
        assert isinstance(restored, str), "a text stays one"
        return restored

    def has(self, name: str) -> bool:
        tag = f"<secret:{name}>"
        return any(other == tag for other, _ in self._values)

    def is_restorable(self, value: JsonValue) -> bool:
        """Return true if a value has secrets, and comes back from its masked form unchanged."""
        masked = self.mask_json(value)
        return masked != value and self.restore_json(masked) == value

    def spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Positions of secrets: start, end, tag; overlapping ones joined under the first tag."""
        spans = self._plain_spans(text)
        if "%" in text and (encoded := self._percent_spans(text)):
            return _join_spans((*spans, *encoded))
        return spans

    def _percent_spans(self, text: str) -> list[tuple[int, int, str]]:
        """Their positions with any letter escaped as in a URL."""
        if not _percent().search(text):
            return []
        from aish.system.secrets.encodings import percent_decode, percent_decode_with_places

        if self._find(percent_decode(text), 0) is None:
            return []
        plain = percent_decode_with_places(text)
        spans = self._plain_spans(plain.text)
        return [(plain.place(begin), plain.place(end), tag) for begin, end, tag in spans]

    def _plain_spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        found = self._find(text, 0)
        while found is not None:
            begin, form = found
            end, tag = begin + len(form), self._tags[form]
            found = self._find(text, begin + 1)
            while found is not None and found[0] < end:
                begun, form = found
                end = max(end, begun + len(form))
                found = self._find(text, begun + 1)
            yield begin, end, tag

    def _find(self, text: str, at: int) -> tuple[int, str] | None:
        """The first place of a secret from there on, and the longest form of one that is there."""
        pattern = self._compile_pattern()
        while match := pattern.search(text, at):
            at = match.start()
            for form in self._by_head[match[0]]:
                if text.startswith(form, at):
                    return at, form
            at += 1
        return None

    def spans_in_any_spelling(self, text: str) -> Iterator[tuple[int, int, str]]:
        """The same, in any spelling of single letters: slower, for data that is kept."""
        if self._spellings is None:
            # Most runs keep nothing that needs every spelling.
            from aish.system.secrets.encodings import Spellings

            known = Spellings()
            for tag, value in self._values:
                for spelling in _plain(value):
                    known.add(tag, spelling, _in_base64(spelling))
            self._spellings = known.spans
        yield from _join_spans((*self.spans(text), *self._spellings(text)))

    def partial_secret_start(self, text: str) -> int:
        """Start of the longest suffix of the text that may be the beginning of a secret."""
        place = self._plain_beginning(text)
        # Each letter may be escaped.
        near = max(0, len(text) - _PERCENT_LETTER * self._longest)
        percent = text.find("%", near)
        if percent < 0 or not ("%" in text[-2:] or _percent().search(text, percent)):
            return place
        from aish.system.secrets.encodings import percent_begun, percent_decode_with_places

        begun = percent_begun(text)
        tail = percent_decode_with_places(text[near:begun])
        encoded = near + tail.place(self._plain_beginning(tail.text))
        return min(place, begun, encoded)

    def _plain_beginning(self, text: str) -> int:
        self._compile_pattern()
        for place in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[place : place + 2] not in self._starts:
                continue
            tail = text[place:]
            index = bisect_left(self._forms, tail)
            if index < len(self._forms) and self._forms[index].startswith(tail):
                if len(self._forms[index]) > len(tail):
                    return place
                following = self._forms[index + 1 : index + 2]
                if following and following[0].startswith(tail):
                    return place
        return len(text)

    def _compile_pattern(self) -> re.Pattern[str]:
        if self._pattern is None:
            # A value that is part of a tag must not be masked again within the tag.
            for tag in set(self._tags.values()):
                if any(part in self._tags for part in _parts(tag)):
                    self._tags[tag] = tag
            self._forms = sorted(self._tags)
            self._longest = max(map(len, self._forms), default=0)
            self._starts = frozenset(form[:n] for form in self._forms for n in (1, 2))
            # Only their heads: a run of days makes hundreds of long tokens, and compiling all of
            # them again with each would take seconds.
            size = min(map(len, self._forms), default=0)
            self._by_head = {}
            for form in sorted(self._forms, key=len, reverse=True):
                self._by_head.setdefault(form[: min(size, SHORTEST)], []).append(form)
            self._pattern = re.compile("|".join(map(re.escape, self._by_head)))
        return self._pattern

    def _mask_json(self, value: JsonValue, depth: int) -> JsonValue:
        if isinstance(value, str):
            return self.mask(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            text = str(value)
            masked = self.mask(text)
            return value if masked == text else masked
        if depth > _DEEPEST:
            return "<nested too deeply to be searched for secrets>"
        if isinstance(value, Mapping):
            return {self.mask(k): self._mask_json(v, depth + 1) for k, v in value.items()}
        return [self._mask_json(item, depth + 1) for item in value]


class StreamMask:
    """Masks a text that arrives in pieces; the result equals `mask` of the whole text."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = ""
        self._covered = 0
        self._released = 0

    def feed(self, text: str) -> str:
        """The text that can be shown so far: all but a possible beginning of a secret."""
        if not self._secrets:
            return text
        return self._take(self._held + text, ended=False)

    def flush(self) -> str:
        """The rest, at the end of the text."""
        return self._take(self._held, ended=True)

    def release(self, most: int) -> str:
        """Return the text held back, if at most `most` characters of it could begin a secret.

        For text that somebody waits for. If it does begin one, the rest of that is masked.
        """
        if len(self._held) > most:
            return ""
        text = self._held[self._covered :]
        self._covered = len(self._held)
        return text

    def _take(self, text: str, *, ended: bool) -> str:
        """Mask the decided part.

        `_covered` characters of the buffer are out already, those from `_released` on as they are,
        those before it masked.
        """
        hold = len(text) if ended else self._secrets.partial_secret_start(text)
        pieces: list[str] = []
        end = self._covered
        for start, stop, tag in self._secrets.spans(text) if self._secrets else ():
            if start >= hold:
                break
            if start >= end or start >= self._released:
                pieces += (text[end:start], tag)
            end = max(end, stop)
        pieces.append(text[end:hold])
        self._held = text[hold:]
        released = self._released if end == self._covered else end
        self._covered = max(0, end - hold)
        self._released = min(max(0, released - hold), self._covered)
        return "".join(pieces)


def _join_spans(spans: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Spans in order, overlapping ones as one, with the first one's tag."""
    # The longest first: it may begin with another secret.
    queue = deque(sorted(spans, key=lambda span: (span[0], -span[1])))
    while queue:
        begin, end, tag = queue.popleft()
        while queue and queue[0][0] < end:
            end = max(end, queue.popleft()[1])
        yield begin, end, tag


@cache
def _percent() -> re.Pattern[str]:
    return re.compile(r"%[0-9a-fA-F]{2}")


def _parts(tag: str) -> Iterator[str]:
    """The parts of a tag that are as long as a secret."""
    lengths = range(SHORTEST, len(tag))
    return (tag[at : at + length] for length in lengths for at in range(len(tag) - length + 1))


def _forms(value: str) -> set[str]:
    forms: set[str] = set()
    for text in _plain(value):
        forms.update(_escape_forms(text), _in_base64(text))
        # The base64 form of a document that contains the value.
        for again in _in_json(text) - {text}:
            forms.update(_in_base64(again))
    return forms


def _plain(value: str) -> set[str]:
    """The value, and its longer lines: each may occur alone."""
    lines = value.splitlines()
    plain = {value, value.strip()}
    if len(lines) > 1:
        plain.update(line.strip() for line in lines if len(line.strip()) >= _SHORTEST_LINE)
    return {text for text in plain if len(text) >= SHORTEST}


def _escape_forms(text: str) -> set[str]:
    # A JSON document within the arguments of a call, which are JSON within a JSON body.
    forms = {text}
    for _ in range(_NESTED):
        forms |= {again for form in forms for again in _in_json(form)}
    return forms | _in_url(text)


def _in_json(text: str) -> set[str]:
    forms = {json.dumps(text, ensure_ascii=plain)[1:-1] for plain in (True, False)}
    forms |= {form.replace("/", "\\/") for form in forms}
    # Go and many web frameworks escape these in JSON text.
    escaped: dict[str, str | int | None] = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
    return forms | {form.translate(str.maketrans(escaped)) for form in forms}


def _in_url(text: str) -> set[str]:
    """With every common set of unreserved characters, in both cases of hex digits."""
    raw = text.encode("utf-8", "surrogatepass")
    forms = {quote(raw, safe=safe) for safe in ("", "/", "!'()*~", "!$&'()*+,;=:@/", "/:?=&@+,;$!")}
    forms |= {quote_plus(raw), quote_plus(raw, safe="*")}
    return forms | {re.sub(r"%[0-9A-F]{2}", lambda hexed: hexed[0].lower(), form) for form in forms}


def _in_base64(text: str) -> set[str]:
    """The part that is the same at any offset in the encoded text."""
    raw = text.encode("utf-8", "surrogatepass")
    whole = base64.b64encode(raw)
    forms = {whole}
    for shift in range(3):
        coded = base64.b64encode(bytes(shift) + raw)
        forms.add(coded[(shift * 8 + 5) // 6 : (shift + len(raw)) * 8 // 6])
    forms |= {form.translate(bytes.maketrans(b"+/", b"-_")) for form in forms}
    texts = {form.decode() for form in forms}
    return texts | {quote(form, safe="") for form in texts}
