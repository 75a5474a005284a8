"""What `.gitignore` files exclude (K23), decided name by name while a tree is walked.

The patterns are those of git: `*`, `?`, `[a-z]`, `**`, `!`, a `/` at the end for folders only, one
elsewhere for a pattern of this folder only; the last one that matches decides. They are a hostile
repository's, so nothing becomes a regular expression: most are looked up, and each of the others
takes time bounded by the product of its length and the name's. What is below an excluded folder is
not looked at.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Literal

from aish.core.frozen import frozen

FILE_NAME = ".gitignore"
LARGEST = 256 * 1024
"""Bytes of one file with patterns that are read."""
MOST_RULES = 2000
"""Patterns of one file that are followed."""
MOST_TOKENS = 30_000
"""Characters and wildcards of the patterns that have to be tried for each name."""
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

    tokens: tuple[_Token, ...]
    literal: str | None
    ending: str | None

    @property
    def is_extension(self) -> bool:
        return self.ending is not None and self.ending.rfind(".") == 0

    def matches(self, name: str) -> bool:
        if self.literal is not None:
            return name == self.literal
        if self.ending is not None:
            return name.endswith(self.ending)
        return _matches(self.tokens, name)


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
    def tokens(self) -> int:
        return sum(1 if name is None else len(name.tokens) for name in self.segments)

    def fits(self, place: int, name: str, *, is_folder: bool) -> bool:
        """Whether an entry is what the rule is about, with all segments before `place` passed."""
        if place != len(self.segments) - 1 or (self.only_folders and not is_folder):
            return False
        segment = self.segments[place]
        return segment is None or segment.matches(name)


_Rules = tuple[_Rule, ...]


@frozen
class IgnoreRules:
    """The patterns that matter in one folder, the later ones first.

    `literals` and `endings` are those for a name at any depth, by that name or by its extension;
    `others` those that have to be tried. `places` are patterns over several segments, and how far
    they have come. `tokens` is the size of `others` and of what `places` began with.
    """

    count: int = 0
    tokens: int = 0
    literals: Mapping[str, _Rules] = field(default_factory=dict)
    endings: Mapping[str, _Rules] = field(default_factory=dict)
    others: _Rules = ()
    places: tuple[tuple[_Rule, int], ...] = ()

    def excludes(self, name: str, *, is_folder: bool) -> bool:
        """Whether an entry of this folder is excluded."""
        if not name.isascii():
            # Git compares bytes.
            name = os.fsencode(name).decode("latin-1")
        best: _Rule | None = None
        dot = name.rfind(".")
        lists = (
            self.literals.get(name, ()),
            self.endings.get(name[dot:], ()) if dot >= 0 else (),
            self.others,
        )
        for rules in lists:
            for rule in rules:
                if best is not None and rule.order < best.order:
                    break
                if rule.fits(len(rule.segments) - 1, name, is_folder=is_folder):
                    best = rule
                    break
        for rule, place in self.places:
            later = best is None or rule.order > best.order
            if later and rule.fits(place, name, is_folder=is_folder):
                best = rule
        return best is not None and not best.negated

    def below(self, folder: str) -> "IgnoreRules":
        """The rules in a folder of this one."""
        if not self.places:
            return self
        folder = os.fsencode(folder).decode("latin-1")
        moved = {(rule.order, place): (rule, place) for rule, place in _moved(self.places, folder)}
        return replace(self, places=tuple(moved.values()))

    def extended(self, data: bytes) -> "IgnoreRules":
        """With the rules of this folder's own file."""
        added = list(_parsed(data[:LARGEST], self.count))
        if not added:
            return self
        literals, endings = dict(self.literals), dict(self.endings)
        others, places, tokens = list(self.others), list(self.places), self.tokens
        for rule in added:
            name = rule.segments[-1]
            if not rule.anchored and name is not None and name.literal is not None:
                literals[name.literal] = (rule, *literals.get(name.literal, ()))
            elif not rule.anchored and name is not None and name.is_extension:
                endings[str(name.ending)] = (rule, *endings.get(str(name.ending), ()))
            elif tokens + rule.tokens <= MOST_TOKENS:
                tokens += rule.tokens
                if rule.anchored:
                    places.extend((rule, place) for place in _closed(rule, 0))
                else:
                    others.insert(0, rule)
        count = self.count + len(added)
        return IgnoreRules(count, tokens, literals, endings, tuple(others), tuple(places))


NOTHING_IGNORED = IgnoreRules()


def _moved(places: tuple[tuple[_Rule, int], ...], folder: str) -> Iterator[tuple[_Rule, int]]:
    for rule, place in places:
        segment = rule.segments[place]
        if segment is None:
            yield rule, place
            yield from ((rule, after) for after in _closed(rule, place))
        elif place + 1 < len(rule.segments) and segment.matches(folder):
            yield from ((rule, after) for after in _closed(rule, place + 1))


def _closed(rule: _Rule, place: int) -> Iterator[int]:
    """A place in a rule and those that `**` reaches by being no folder at all."""
    yield place
    while place + 1 < len(rule.segments) and rule.segments[place] is None:
        place += 1
        yield place


def _parsed(data: bytes, first: int) -> Iterator[_Rule]:
    text = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    order = first
    for row in text.split("\n")[: 10 * MOST_RULES]:
        rule = _rule(_without_end(row.removesuffix("\r")), order)
        if rule is not None:
            yield rule
            order += 1
        if order - first >= MOST_RULES:
            return


def _without_end(line: str) -> str:
    """A line without the spaces at its end, but for one after a backslash."""
    bare = line.rstrip(" ")
    slashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if slashes % 2 and len(bare) < len(line) else bare


def _rule(line: str, order: int) -> _Rule | None:
    if not line or line.startswith("#") or len(line) > _LONGEST:
        return None
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
    return _Name(tuple(tokens), literal, "".join(letters) if ends else None)


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


def _matches(tokens: tuple[_Token, ...], name: str) -> bool:
    """Whether a whole name matches; goes back to the last star only."""
    here = place = 0
    star, resume = -1, 0
    while place < len(name):
        token = tokens[here] if here < len(tokens) else None
        if token == _STAR and not isinstance(token, str):
            star, resume = here, place
            here += 1
        elif token is not None and _fits(token, name[place]):
            here += 1
            place += 1
        elif star >= 0:
            resume += 1
            here, place = star + 1, resume
        else:
            return False
    return all(token == _STAR for token in tokens[here:])


def _fits(token: _Token, character: str) -> bool:
    if isinstance(token, str):
        return token == character
    return token == _ANY or (isinstance(token, _CharacterClass) and token.has(character))
