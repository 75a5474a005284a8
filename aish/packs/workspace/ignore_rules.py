"""What `.gitignore` files exclude (K23), decided name by name while a tree is walked.

The patterns are those of git: `*`, `?`, `[a-z]`, `**`, `!`, a `/` at the end for folders only, one
elsewhere for a pattern of this folder only; the last one that matches decides. They are a hostile
repository's, so nothing becomes a regular expression: most are looked up, and all others are tried
at once, letter by letter of the name. What is below an excluded folder is not looked at.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from itertools import chain
from typing import Literal

from aish.core.frozen import frozen

FILE_NAME = ".gitignore"
LARGEST = 256 * 1024
"""Bytes of one file with patterns that are read."""
MOST_RULES = 2000
"""Patterns of one file that are followed."""
MOST_TRIED = 30_000
"""Characters of the patterns that have to be tried for each name."""
_LONGEST = 1000
_CLASSES: Mapping[str, str] = {
    "alnum": "isalnum",
    "alpha": "isalpha",
    "digit": "isdigit",
    "lower": "islower",
    "space": "isspace",
    "upper": "isupper",
}


@frozen
class _CharacterClass:
    """A `[…]`: characters, ranges of them, and the names of methods of `str`."""

    negated: bool
    ranges: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    def has(self, character: str) -> bool:
        found = any(low <= character <= high for low, high in self.ranges) or any(
            character.isascii() and getattr(character, test)() for test in self.tests
        )
        return found is not self.negated


_Token = str | _CharacterClass | Literal[0, 1]
_STAR: Literal[0] = 0
_ANY: Literal[1] = 1


@frozen
class _Name:
    """A pattern for one name: `literal` or `ending` where it is that simple."""

    length: int
    tokens: tuple[_Token, ...]
    literal: str | None
    ending: str | None

    @property
    def is_extension(self) -> bool:
        return self.ending is not None and self.ending.rfind(".") == 0


@frozen
class _Rule:
    """One pattern; a `None` among its segments is `**`.

    Without `anchored` it is one for a name at any depth.
    """

    order: int
    negated: bool
    only_folders: bool
    anchored: bool
    segments: tuple[_Name | None, ...]

    @property
    def length(self) -> int:
        return sum(1 if name is None else name.length for name in self.segments)


_Rules = tuple[_Rule, ...]
_Row = tuple[_Rule, int]
"""A rule, and which of its segments is next."""


class _Patterns:
    """Rules that are tried at once, each at one of its segments, in their order.

    Each place in their patterns is a bit of whole numbers: where they begin and end, where a `*`
    is, and in `matching` the places that the letters so far lead to. A letter takes a few
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

    def matching(self, name: str) -> Iterator[_Row]:
        """The rows whose segment a name matches."""
        matched = self._reached(name) & self._ends
        while matched:
            place = matched.bit_length() - 1
            yield self._row_at[place]
            matched ^= 1 << place

    def last(self, name: str, *, is_folder: bool) -> _Rule | None:
        """The last rule that is about an entry of that name."""
        matched = self._reached(name) & self._about[is_folder]
        return self._row_at[matched.bit_length() - 1][0] if matched else None

    def _reached(self, name: str) -> int:
        states = self._starts if self.rows else 0
        for letter in name:
            if not states:
                break
            states = (states & self._mask(letter)) << 1 | states & self._stars
        return states

    def _mask(self, letter: str) -> int:
        """The places from which a letter leads to the next one."""
        found = self._masks.get(letter)
        if found is None:
            places = (places for token, places in self._places.items() if _fits(token, letter))
            found = self._masks[letter] = _bits(chain.from_iterable(places))
        return found


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
        moved = {(rule.order, place): (rule, place) for rule, place in self._moved(folder)}
        return replace(self, places=_Patterns(moved[key] for key in sorted(moved)))

    def _moved(self, folder: str) -> Iterator[_Row]:
        for rule, place in self.places.matching(folder):
            if rule.segments[place] is None:
                yield from ((rule, after) for after in _closed(rule, place))
            elif place + 1 < len(rule.segments):
                yield from ((rule, after) for after in _closed(rule, place + 1))

    def extended(self, data: bytes) -> "IgnoreRules":
        """With the rules of this folder's own file."""
        added, left_out = _parsed(data, self.count)
        literals, endings = dict(self.literals), dict(self.endings)
        others, places, tried = list(self.others.rows), list(self.places.rows), self.tried
        for rule in added:
            name = rule.segments[-1]
            if not rule.anchored and name is not None and name.literal is not None:
                _put_first(rule, literals, name.literal)
            elif not rule.anchored and name is not None and name.is_extension:
                _put_first(rule, endings, str(name.ending))
            elif tried + rule.length <= MOST_TRIED:
                tried += rule.length
                if rule.anchored:
                    places.extend((rule, place) for place in _closed(rule, 0))
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


def _put_first(rule: _Rule, table: dict[str, _Rules], key: str) -> None:
    """Put a rule before those of the same name; an earlier one of its kind decides nothing."""
    earlier = (one for one in table.get(key, ()) if one.only_folders != rule.only_folders)
    table[key] = (rule, *earlier)


def _closed(rule: _Rule, place: int) -> Iterator[int]:
    """A place in a rule and those that `**` reaches by being no folder at all."""
    yield place
    while place + 1 < len(rule.segments) and rule.segments[place] is None:
        place += 1
        yield place


def _parsed(data: bytes, first: int) -> tuple[list[_Rule], int]:
    """The rules of a file, and the number of its patterns that are not followed."""
    text = data[:LARGEST].removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    rules: list[_Rule] = []
    left_out = int(len(data) > LARGEST)
    for row in text.split("\n"):
        line = _without_end(row.removesuffix("\r"))
        if not line or line.startswith("#"):
            continue
        if len(rules) == MOST_RULES or len(line) > _LONGEST:
            left_out += 1
        elif (rule := _rule(line, first + len(rules))) is not None:
            rules.append(rule)
    return rules, left_out


def _without_end(line: str) -> str:
    """A line without the spaces at its end, but for one after a backslash."""
    bare = line.rstrip(" ")
    slashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if slashes % 2 and len(bare) < len(line) else bare


def _rule(line: str, order: int) -> _Rule | None:
    negated = line.startswith("!")
    pattern = line[negated:]
    body = pattern.removesuffix("/")
    parts = body.removeprefix("/").split("/")
    segments: list[_Name | None] = []
    for part in parts:
        if part == "**" and len(parts) > 1:
            if segments[-1:] != [None]:
                segments.append(None)
            continue
        name = _name(part)
        if name is None:
            return None
        segments.append(name)
    if len(segments) == 2 and segments[0] is None:  # ruff: ignore[magic-value-comparison] - `**/name`
        # A name at any depth, as it would be without the `**`.
        return _Rule(order, negated, body != pattern, anchored=False, segments=(segments[1],))
    return _Rule(order, negated, body != pattern, "/" in body, tuple(segments))


def _name(part: str) -> _Name | None:
    """The pattern for one segment; `None` if it can match nothing."""
    tokens: list[_Token] = []
    place = 0
    while place < len(part):
        character = part[place]
        place += 1
        if character == "*":
            if tokens[-1:] != [_STAR]:
                tokens.append(_STAR)
        elif character == "?":
            tokens.append(_ANY)
        elif character == "[":
            found, place = _character_class(part, place)
            if found is None:
                return None
            tokens.append(found)
        elif character == "\\":
            if place == len(part):
                return None
            tokens.append(part[place])
            place += 1
        else:
            tokens.append(character)
    if not tokens:
        return None
    letters = [token for token in tokens if isinstance(token, str)]
    literal = "".join(letters) if len(letters) == len(tokens) else None
    ends = tokens[0] == _STAR and len(letters) == len(tokens) - 1
    return _Name(len(part), tuple(tokens), literal, "".join(letters) if ends else None)


def _character_class(part: str, place: int) -> tuple[_CharacterClass | None, int]:
    """The class whose `[` is before `place`, and where it ends; `None` if it does not end."""
    negated = part[place : place + 1] in {"!", "^"}
    place += negated
    ranges: list[tuple[str, str]] = []
    tests: list[str] = []
    begin = place
    while place < len(part):
        character = part[place]
        if character == "]" and place > begin:
            return _CharacterClass(negated, tuple(ranges), tuple(tests)), place + 1
        if character == "[" and part[place + 1 : place + 2] == ":":
            end = part.find(":]", place)
            test = _CLASSES.get(part[place + 2 : end]) if end > 0 else None
            if test is None:
                return None, place
            tests.append(test)
            place = end + 2
            continue
        low, place = _member(part, place)
        high = low
        if part[place : place + 1] == "-" and part[place + 1 : place + 2] not in {"", "]"}:
            high, place = _member(part, place + 1)
        ranges.append((low, high))
    return None, place


def _member(part: str, place: int) -> tuple[str, int]:
    """A character of a class, which a backslash may be before."""
    if part[place] == "\\" and place + 1 < len(part):
        return part[place + 1], place + 2
    return part[place], place + 1


def _fits(token: _Token, character: str) -> bool:
    if isinstance(token, str):
        return token == character
    return token == _ANY or (isinstance(token, _CharacterClass) and token.has(character))
