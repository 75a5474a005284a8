"""JSON as the standard has it, and as text that is safe to print anywhere.

Read so that nothing is guessed, written of read-only values too.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from aish.core.frozen import values_of
from aish.core.patterns import lazy_pattern
from aish.core.text import for_terminal

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
JsonObject = Mapping[str, JsonValue]


def strict_json(text: str) -> JsonValue:
    """Parse JSON strictly: no key twice, no `NaN`, no number that is too large.

    How deep it may be is for the caller to say.

    Raises:
        ValueError: it is something else; a `JSONDecodeError` where it is no JSON at all.
        RecursionError: it is nested without end.
    """
    value: JsonValue = _DECODER.decode(text)
    return value


def strict_json_at(text: str, start: int) -> tuple[JsonValue, int]:
    """The value that begins at `start`, and where it ends; what follows is not looked at.

    Raises:
        ValueError: it is something else; a `JSONDecodeError` where it is no JSON at all.
        RecursionError: it is nested without end.
    """
    value, end = _DECODER.raw_decode(text, start)
    return value, end


def writable(value: object) -> object:
    """Read-only mappings and other sequences as what `json` writes: its `default`.

    Raises:
        TypeError: it is nothing that JSON knows.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"not JSON: {type(value).__name__}")


def _unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key `{key}`")
            seen.add(key)
    return made


def _constant(word: str) -> float:
    raise ValueError(f"`{word}` is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"`{digits[:20]}` is too large a number")
    return number


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        # The interpreter's bound on digits, which it would explain in its own terms.
        raise ValueError(f"a number of {len(digits)} digits is too large") from None


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_constant, parse_float=_finite, parse_int=_whole
)


def make_encoder(
    default: Callable[[Any], object],
    *,
    in_ascii: bool = False,
    sort_keys: bool = False,
    allow_nan: bool = True,
    separators: tuple[str, str] = (",", ":"),
) -> Callable[[Any], str]:
    """An encoder of JSON on one line.

    `json` makes one for each value, which takes as long as encoding a short one. A circular value
    ends in a RecursionError.
    """
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return json.JSONEncoder(
            ensure_ascii=in_ascii,
            check_circular=False,
            allow_nan=allow_nan,
            sort_keys=sort_keys,
            separators=separators,
            default=default,
        ).encode
    quote = json.encoder.encode_basestring_ascii if in_ascii else json.encoder.encode_basestring
    comma, colon = separators
    encode = make(None, default, quote, None, colon, comma, sort_keys, False, allow_nan)
    return lambda value: "".join(encode(value, 0))


_canonical = make_encoder(writable, in_ascii=True, sort_keys=True)


def canonical(value: JsonValue) -> str:
    """JSON with sorted keys and without spaces, ASCII only, so that equal values are equal text."""
    return _canonical(value)


# As in `for_ci_log`; no line of JSON begins with a colon.
_CI_COMMAND = lazy_pattern(r"#(?=[^\t-~]*#(?:[^\t-~]|[A-Za-z])*\[)")
_DEEPEST = 100
_FENCE = "```"


def json_text(value: JsonValue, *, indent: int | None = None, spaced: bool = False) -> str:
    """The value as JSON, on one line unless it is indented; `spaced` is for people."""
    encode = _SPACED if spaced else _COMPACT
    if indent is not None and _is_flat(value):
        # An encoder that indents is written in Python, and takes ten times as long.
        encode = partial(_indent_flat, indent=indent)
    elif indent is not None:
        encode = json.JSONEncoder(
            ensure_ascii=False,
            check_circular=False,
            allow_nan=False,
            indent=indent,
            default=_object,
        ).encode
    try:
        text = encode(value)
    except (ValueError, RecursionError):
        text = encode(_tame(value, 0))
    return safe_json(text)


def _is_flat(value: JsonValue) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and (one is None or isinstance(one, str | int | float))
        for key, one in value.items()
    )


def _indent_flat(value: JsonValue, indent: int) -> str:
    """An object of scalars, as the encoder that indents would write it."""
    if not isinstance(value, dict) or not value:
        return "{}"
    rows = (f"{' ' * indent}{_COMPACT(key)}: {_COMPACT(one)}" for key, one in value.items())
    return "{\n" + ",\n".join(rows) + "\n}"


def objects_in(value: JsonValue) -> list[JsonObject]:
    """The objects in a list of a document, which may hold anything else; none in another value."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def parse_structured(text: str) -> JsonValue:
    """The object or list that a text is as JSON, maybe in a code fence; else the text."""
    inner = text.strip()
    if inner.startswith(_FENCE) and inner.endswith(_FENCE):
        inner = inner.partition("\n")[2].removesuffix(_FENCE).strip()
    if not inner.startswith(("{", "[")):
        return text
    try:
        value = strict_json(inner)
    except (ValueError, RecursionError):
        return text
    return text if not value or _is_deeper(value, _DEEPEST) else value


def _is_deeper(value: JsonValue, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not levels or any(_is_deeper(one, levels - 1) for one in inner)


def string_text(text: str) -> str:
    """A string as JSON; the fast way for what is written most."""
    return safe_json(json.encoder.encode_basestring(text))


def safe_json(text: str, wide: Callable[[str], str] | None = None) -> str:
    """JSON text of an encoder, which says the same and can be printed.

    `wide` escapes a character beyond the first plane, where two escapes of JSON would not do.
    """
    if "#" in text:
        text = _CI_COMMAND.sub(r"\\u0023", text)
    # Of ASCII, the encoder has escaped all that cannot be printed but one character.
    if (text.isascii() and "\x7f" not in text) or for_terminal(text) == text:
        return text
    return "".join(_escape_character(character, wide or _pair) for character in text)


def _object(value: Any) -> dict[str, Any]:
    """A mapping, or the fields of a frozen class."""
    names: tuple[str, ...] | None = getattr(value, "__match_args__", None)
    return dict(value) if names is None else dict(zip(names, values_of(value), strict=True))


_COMPACT = make_encoder(_object, allow_nan=False)
_SPACED = make_encoder(_object, allow_nan=False, separators=(", ", ": "))


def _tame(value: JsonValue, depth: int) -> JsonValue:
    """The value without what JSON cannot say, or cannot say within bounds."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if depth > _DEEPEST:
        return "[aish] nested too deeply to be written"
    if isinstance(value, (list, tuple)):
        return [_tame(item, depth + 1) for item in value]
    return {key: _tame(item, depth + 1) for key, item in _object(value).items()}


def _escape_character(character: str, wide: Callable[[str], str]) -> str:
    if character.isascii() and character != "\x7f":
        return character
    if for_terminal(character) == character:
        return character
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"
    if character <= "\uffff":
        return f"\\u{ord(character):04x}"
    return wide(character)


def _pair(character: str) -> str:
    return json.dumps(character)[1:-1]
