"""Rules of `.gitignore` files, decided name by name while a tree is walked.

The patterns are those of git: `*`, `?`, `[a-z]`, `**`, `!`, a `/` at the end for folders only, one
elsewhere for a pattern of this folder only; the last one that matches decides. They are a hostile
repository's, so nothing becomes a regular expression: most are looked up, and all others are tried
at once, letter by letter of the name. What is below an excluded folder is not looked at.
"""

import os
import string
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern

FILE_NAME = ".gitignore"
LARGEST = 256 * 1024
"""Bytes of one file with patterns that are read."""
MOST_RULES = 2000
"""Patterns of one file that are followed."""
MOST_TRIED = 30_000
"""Characters of the patterns that have to be tried for each name."""
_LONGEST = 1000
_CLASSES: Mapping[str, str] = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, (*range(32), 127))),
    "digit": string.digits,
    "graph": string.ascii_letters + string.digits + string.punctuation,
    "lower": string.ascii_lowercase,
    "print": string.ascii_letters + string.digits + string.punctuation + " ",
    "punct": string.punctuation,
    "space": " \t\r\n",
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}

_Token = str | int
"""A letter, or a number whose bits are the letters that fit."""
_ANY = (1 << 256) - 1
_STAR = -1
_STARS = -2
_SLASH = "/"
_ESCAPED_SLASH = "\\/"


@frozen
class _NamePattern:
    """A pattern for one name: `literal`, or any with an `extension`, where it is that simple."""

    tokens: tuple[_Token, ...]
    literal: str | None
    extension: str | None


@frozen
class _IgnoreRule:
    """A pattern; a `None` among its segments is `**`.

    Without `anchored` it is one for a name at any depth.
    """

    order: int
    negated: bool
    only_folders: bool
    anchored: bool
    segments: tuple[_NamePattern | None, ...]

    @property
    def length(self) -> int:
        return sum(1 if name is None else len(name.tokens) for name in self.segments)


_Rules = tuple[_IgnoreRule, ...]
_Row = tuple[_IgnoreRule, int]
"""A rule, and which of its segments is next."""


class _Patterns:
    """Rules that are tried at once, each at one of its segments, in their order.

    Each place in their patterns is a bit of whole numbers: where they begin and end, where a `*`
    is, and in `find_rows` the places that the letters so far lead to. A letter takes a few
    operations, however many patterns there are.
    """

    def __init__(self, rows: Iterable[_Row] = ()) -> None:
        self.rows = tuple(rows)
        self._row_at: dict[int, _Row] = {}
        self._places: dict[_Token, list[int]] = defaultdict(list)
        self._masks: dict[str, int] = {}
        starts: list[int] = []
        place = 0
        for rule, segment in self.rows:
            name = rule.segments[segment]
            starts.append(place)
            for token in (_STAR,) if name is None else name.tokens:
                self._places[token].append(place)
                place += token != _STAR
            self._row_at[place] = (rule, segment)
            place += 1
        self._starts, self._stars = _bits(starts), _bits(self._places.pop(_STAR, ()))
        self._ends = _bits(self._row_at)
        self._about = {
            is_folder: _bits(
                place
                for place, (rule, segment) in self._row_at.items()
                if segment == len(rule.segments) - 1 and (is_folder or not rule.only_folders)
            )
            for is_folder in (False, True)
        }

    def find_rows(self, name: str) -> Iterator[_Row]:
        """The rows whose segment a name matches."""
        matched = self._states_after(name) & self._ends
        while matched:
            place = matched.bit_length() - 1
            yield self._row_at[place]
            matched ^= 1 << place

    def last(self, name: str, *, is_folder: bool) -> _IgnoreRule | None:
        """The last rule that is about an entry of that name."""
        matched = self._states_after(name) & self._about[is_folder]
        return self._row_at[matched.bit_length() - 1][0] if matched else None

    def _states_after(self, name: str) -> int:
        states = self._starts if self.rows else 0
        for letter in name:
            if not states:
                break
            states = (states & self._mask(letter)) << 1 | states & self._stars
        return states

    def _mask(self, letter: str) -> int:
        """The places from which a letter leads to the next one."""
        bits = self._masks.get(letter)
        if bits is None:
            places = (places for token, places in self._places.items() if _fits(token, letter))
            bits = self._masks[letter] = _bits(chain.from_iterable(places))
        return bits


def _bits(places: Iterable[int]) -> int:
    """The number in which these bits are set."""
    listed = list(places)
    data = bytearray(max(listed, default=0) // 8 + 1)
    for place in listed:
        data[place // 8] |= 1 << place % 8
    return int.from_bytes(data, "little")


@frozen
class IgnoreRules:
    """The patterns that matter in one folder.

    `literals` and `endings` are those for a name at any depth, by that name or by its extension,
    the later ones first; `others` those that have to be tried. `places` are patterns over several
    segments, at the segment that is next. `tried` is the length of `others` and of what `places`
    began with. `left_out` counts the patterns that are not followed, as they are too many or too
    long.
    """

    count: int = 0
    tried: int = 0
    literals: Mapping[str, _Rules] = field(default_factory=dict)
    endings: Mapping[str, _Rules] = field(default_factory=dict)
    others: _Patterns = field(default_factory=_Patterns)
    places: _Patterns = field(default_factory=_Patterns)
    left_out: int = 0

    def excludes(self, name: str, *, is_folder: bool) -> bool:
        """Tell if an entry of this folder is excluded."""
        if not name.isascii():
            # Git compares bytes.
            name = os.fsencode(name).decode("latin-1")
        dot = name.rfind(".")
        looked_up = (
            *self.literals.get(name, ()),
            *(self.endings.get(name[dot:], ()) if dot >= 0 else ()),
        )
        matching = [rule for rule in looked_up if is_folder or not rule.only_folders]
        for patterns in (self.others, self.places):
            rule = patterns.last(name, is_folder=is_folder)
            if rule is not None:
                matching.append(rule)
        return bool(matching) and not max(matching, key=lambda rule: rule.order).negated

    def below(self, folder: str) -> "IgnoreRules":
        """The rules in a folder of this one."""
        if not self.places.rows:
            return self
        folder = os.fsencode(folder).decode("latin-1")
        moved = {(rule.order, place): (rule, place) for rule, place in self._next_places(folder)}
        return replace(self, places=_Patterns(moved[key] for key in sorted(moved)))

    def _next_places(self, folder: str) -> Iterator[_Row]:
        for rule, place in self.places.find_rows(folder):
            if rule.segments[place] is None:
                yield from ((rule, after) for after in _closure(rule, place))
            elif place + 1 < len(rule.segments):
                yield from ((rule, after) for after in _closure(rule, place + 1))

    def with_rules(self, data: bytes) -> "IgnoreRules":
        """Add the rules of this folder's own file."""
        added, left_out = _parse_rules(data, self.count)
        literals, endings = dict(self.literals), dict(self.endings)
        others, places, tried = list(self.others.rows), list(self.places.rows), self.tried
        for rule in added:
            name = rule.segments[-1]
            if not rule.anchored and name is not None and name.literal is not None:
                _put_first(rule, literals, name.literal)
            elif not rule.anchored and name is not None and name.extension is not None:
                _put_first(rule, endings, name.extension)
            elif tried + rule.length <= MOST_TRIED:
                tried += rule.length
                if rule.anchored:
                    places.extend((rule, place) for place in _closure(rule, 0))
                else:
                    others.append((rule, 0))
            else:
                left_out += 1
        return IgnoreRules(
            self.count + len(added),
            tried,
            literals,
            endings,
            _Patterns(others),
            _Patterns(places),
            self.left_out + left_out,
        )


NOTHING_IGNORED = IgnoreRules()


def _put_first(rule: _IgnoreRule, table: dict[str, _Rules], key: str) -> None:
    """Put a rule before those of the same name; an earlier one of its kind decides nothing."""
    earlier = (one for one in table.get(key, ()) if one.only_folders != rule.only_folders)
    table[key] = (rule, *earlier)


def _closure(rule: _IgnoreRule, place: int) -> Iterator[int]:
    """A place in a rule and those that `**` reaches by being no folder at all."""
    yield place
    while place + 1 < len(rule.segments) and rule.segments[place] is None:
        place += 1
        yield place


def _parse_rules(data: bytes, first: int) -> tuple[list[_IgnoreRule], int]:
    """The rules of a file, and the number of its patterns that are not followed."""
    text = data[:LARGEST].removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    rules: list[_IgnoreRule] = []
    left_out = int(len(data) > LARGEST)
    for row in text.split("\n"):
        # To git a line ends with its first NUL.
        line = _without_end(row.removesuffix("\r").partition("\0")[0])
        if not line or line.startswith("#"):
            continue
        if len(rules) >= MOST_RULES or len(line) > _LONGEST:
            left_out += 1
        else:
            rules += _rules(line, first + len(rules))
    return rules, left_out


def _without_end(line: str) -> str:
    """A line without the spaces at its end, but for one after a backslash."""
    bare = line.rstrip(" ")
    slashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if slashes % 2 and len(bare) < len(line) else bare


def _rules(line: str, order: int) -> Sequence[_IgnoreRule]:
    """The rules of a pattern: none if it can match nothing."""
    negated = line.startswith("!")
    pattern = line[negated:]
    body = pattern.removesuffix("/")
    anchored = "/" in body
    rules: list[_IgnoreRule] = []
    for text in _readings(body.removeprefix("/")) if anchored else (body,):
        segments = _segments(text, anchored=anchored)
        # `**/name` is a name at any depth, as it would be without the `**`.
        is_name = not anchored or segments[:-1] == (None,)
        if segments:
            number = order + len(rules)
            segments = segments[-1:] if is_name else segments
            rules.append(_IgnoreRule(number, negated, body != pattern, not is_name, segments))
    return rules


# Git compares what is before the first special character by itself, and takes the rest for a
# pattern of its own: `a**/b` begins with `**`, as long as nothing but letters is before it.
_BEGINS_WITH_STARS = lazy_pattern(
    r"(?P<before>[^*?\[\\]*[^*?\[\\/])\*{2,}(?:(?P<slash>/(?:\*{2,}/)*)|\\/|\Z)"
)


def _readings(text: str) -> Iterator[str]:
    """The patterns that git reads in one that contains a slash, without that quirk."""
    match = _BEGINS_WITH_STARS.match(text)
    if match is None:
        yield text
        return
    before, rest = match["before"], text[match.end() :]
    if match.end() == len(text) and text.endswith("*"):
        yield f"{before}*"
        yield f"{before}*/**"
        return
    if match["slash"]:
        yield from _readings(before + rest)
    yield f"{before}*/**/{rest}"


def _segments(text: str, *, anchored: bool) -> tuple[_NamePattern | None, ...]:
    """The names of a pattern, `None` for `**`; nothing if it can match nothing."""
    segments: list[_NamePattern | None] = []
    part: list[_Token] = []
    for token in (*_tokens(text), _SLASH):
        if token not in {_SLASH, _ESCAPED_SLASH}:
            part.append(token)
            continue
        if not part:
            return ()
        is_deep = anchored and part == [_STARS]
        if not is_deep or token == _ESCAPED_SLASH:
            segments.append(_name(part))
        if is_deep and segments[-1:] != [None]:
            segments.append(None)
        part = []
    return tuple(segments)


def _tokens(text: str) -> Sequence[_Token]:
    """The parts of a pattern; none if it can match nothing."""
    tokens: list[_Token] = []
    place = 0
    while place < len(text):
        character = text[place]
        place += 1
        if character == "*":
            if tokens[-1:] == [_STAR]:
                tokens[-1] = _STARS
            elif tokens[-1:] != [_STARS]:
                tokens.append(_STAR)
        elif character == "?":
            tokens.append(_ANY)
        elif character == "[":
            fitting, place = _character_class(text, place)
            if fitting is None:
                return ()
            tokens.append(fitting)
        elif character == "\\":
            if place == len(text):
                return ()
            tokens.append(_ESCAPED_SLASH if text[place] == "/" else text[place])
            place += 1
        else:
            tokens.append(character)
    return tokens


def _name(part: Sequence[_Token]) -> _NamePattern:
    tokens = tuple(_STAR if token == _STARS else token for token in part)
    letters = "".join(token for token in tokens if isinstance(token, str))
    is_literal = len(letters) == len(tokens)
    is_extension = (tokens[0], len(letters)) == (_STAR, len(tokens) - 1) and letters.rfind(".") == 0
    return _NamePattern(tokens, letters if is_literal else None, letters if is_extension else None)


def _character_class(text: str, place: int) -> tuple[int | None, int]:
    """The bits of the class after the `[` before `place`, and its end; `None` if it is no class."""
    negated = text[place : place + 1] in {"!", "^"}
    place += negated
    bits = 0
    begin = place
    while place < len(text):
        if text[place] == "]" and place > begin:
            return bits ^ _ANY if negated else bits, place + 1
        end = text.find("]", place + 2) if text.startswith("[:", place) else 0
        if end < 0:
            break
        if end > place + 2 and text[end - 1] == ":":
            letters = _CLASSES.get(text[place + 2 : end - 1])
            if letters is None:
                break
            bits |= _bits(map(ord, letters))
            place = end + 1
            continue
        low, place = _member(text, place)
        high = low
        if text[place : place + 1] == "-" and text[place + 1 : place + 2] not in {"", "]"}:
            high, place = _member(text, place + 1)
        # The first letter fits even where the range is empty.
        bits |= 1 << low | max(0, (2 << high) - (1 << low))
    return None, place


def _member(text: str, place: int) -> tuple[int, int]:
    """A character of a class, which a backslash may be before."""
    place += text[place] == "\\" and place + 1 < len(text)
    return ord(text[place]), place + 1


def _fits(token: _Token, letter: str) -> bool:
    return token == letter if isinstance(token, str) else bool(token >> ord(letter) & 1)
