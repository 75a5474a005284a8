"""Structured content is told without what the text of its result says, and read back whole."""

import json
from collections.abc import Callable

import pytest

from aish.agent.turn_json import structured_from_event, structured_to_event
from aish.core.events import TextSpan, plain
from aish.core.json import JsonObject, JsonValue

LONG = "".join(f"{n:03} bottles of beer on the wall\n" for n in range(9))
OTHER = LONG.replace("beer", "lemonade")
LIMIT = 10_000


def mask(text: str) -> str:
    return text.replace("hush-hush", "<secret:KEY>")


class Files:
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def keep(self, data: bytes) -> str:
        name = f"files/{len(self.kept)}"
        self.kept[name] = mask(data.decode()).encode()
        return name


def written(
    structured: JsonValue,
    text: str,
    files: Files,
    *,
    in_file: bool = False,
    mask: Callable[[str], str] = mask,
) -> JsonObject:
    """The event as the journal has it."""
    full = files.keep(text.encode()) if in_file else None
    content = "cut" if in_file else text
    told = structured_to_event(structured, text, full, limit=LIMIT, keep=files.keep, mask=mask)
    event = {
        "content": content,
        "full": full,
        "structured": told.value,
        "structured_in": told.place,
        "structured_spans": plain(told.spans),
    }
    found: JsonObject = json.loads(mask(json.dumps(event)))
    return found


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize(
    ("structured", "text"),
    [
        ({"exit_code": 0, "stdout": LONG, "stderr": OTHER}, f"{LONG.rstrip()}\n[stderr]\n{OTHER}"),
        ({"content": LONG, "lines": 9, "more": None}, f"{LONG}[truncated: true]"),
        ({"list": [{"text": LONG}, OTHER.rstrip(), 1.5]}, f"a: {LONG}b: {OTHER}"),
        ({"result": LONG, "again": LONG}, LONG),
        (LONG, LONG),
        ({"key": f"of hush-hush {LONG}"}, f"hush-hush: of hush-hush {LONG}"),
        ({"a": {"b": LONG}}, json.dumps({"a": {"b": LONG}}, indent=2)),
    ],
    ids=["command", "file", "list", "twice", "plain", "secret", "JSON"],
)
def test_a_text_is_told_once_and_read_back(
    structured: JsonValue, text: str, *, in_file: bool
) -> None:
    files = Files()

    event = written(structured, text, files, in_file=in_file)

    everything = json.dumps(event) + "".join(data.decode() for data in files.kept.values())
    assert everything.count("004 bottles of beer") == 1
    found = structured_from_event(event, None, files.kept.get)
    assert found == json.loads(mask(json.dumps(structured)))
    # Reading changes nothing of what was read.
    assert structured_from_event(event, None, files.kept.get) == found


@pytest.mark.parametrize(
    "structured",
    [
        {"text": "short"},
        {"text": LONG.upper()},
        {"hush-hush": LONG},
        {"sum": 3, "list": [None, True]},
    ],
    ids=["short", "other", "secret key", "no text"],
)
def test_what_the_text_does_not_have_is_told_as_it_is(structured: JsonValue) -> None:
    event = written(structured, f"short {LONG}", Files())

    assert event["structured_spans"] == []
    assert event["structured"] == json.loads(mask(json.dumps(structured)))


def test_places_that_a_second_masking_would_move_are_not_used() -> None:
    def twice(text: str) -> str:
        return text.replace("key", "<secret:key>")

    structured = {"text": f"key {LONG}"}

    event = written(structured, f"key {LONG}", Files(), mask=twice)

    assert event["structured_spans"] == []


def test_what_is_long_without_its_text_too_is_a_file() -> None:
    files = Files()
    structured: JsonValue = {"text": LONG, "other": "x" * LIMIT}

    event = written(structured, LONG, files)

    assert (event["structured"], event["structured_in"]) == (None, "files/0")
    assert json.loads(files.kept["files/0"]) == {"text": "\n", "other": "x" * LIMIT}
    assert structured_from_event(event, None, files.kept.get) == structured


@pytest.mark.parametrize("kept", [None, b"short", b"\xff" * 9999], ids=["gone", "short", "odd"])
def test_nothing_is_read_where_the_file_is_not_as_it_was(kept: bytes | None) -> None:
    files = Files()
    event = written({"text": LONG}, f"{LONG}and more", files, in_file=True)

    assert structured_from_event(event, None, lambda _: kept) is None


def test_an_event_that_was_written_before_there_were_spans_is_read() -> None:
    event: JsonObject = {"content": LONG, "structured": {"text": LONG}, "structured_in": None}

    assert structured_from_event(event, None, lambda _: None) == {"text": LONG}


def test_a_great_many_texts_are_looked_for_in_bounded_work() -> None:
    text = "x" * 8_000_000
    many: JsonValue = [f"{n:064}" for n in range(100_000)]

    told = structured_to_event(many, text, None, limit=LIMIT, keep=lambda _: "f", mask=mask)

    assert (told.place, told.spans) == ("f", ())


def test_a_span_names_the_path_and_the_place() -> None:
    told = structured_to_event(
        {"a": [LONG]}, f"see {LONG}", None, limit=LIMIT, keep=lambda _: None, mask=mask
    )

    assert told.spans == (TextSpan(("a", 0), 4, 3 + len(LONG)),)
    assert told.value == {"a": ["\n"]}
