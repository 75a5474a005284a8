"""Secrets that are spelled as nobody would: letter by letter, in pieces, in lines (C8)."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import quote, unquote

import pytest
from samples import each_case, sampled
from work import work_of

from aish.cassettes.format.interaction import Interaction, Request, Response
from aish.cassettes.record.redact import redact
from aish.system.secrets.secrets import Secrets

Way = Callable[[str], str]
VALUES = ("sk-planted/0123", 'q"uo\\te\nnew+line=ü/x', "Bearer+/=&?x y~%41z", "<tag>&'quote'12🙂")


def in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def numbered(text: str) -> str:
    """Each letter by its number."""
    return "".join(number(c) if c <= "~" else in_json(c) for c in text)


def number(letter: str) -> str:
    return f"\\u{ord(letter):04X}"


def every_other(text: str) -> str:
    return "".join(number(c) if i % 2 and c <= "~" else in_json(c) for i, c in enumerate(text))


def percent(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def in_both_cases(text: str) -> str:
    coded = (quote(bytes([byte]), safe="") for byte in text.encode())
    return "".join(one.lower() if i % 2 else one for i, one in enumerate(coded))


def in_base64(text: str) -> str:
    return base64.b64encode(b"x" + text.encode() + b"yz").decode()


def in_lines(text: str) -> str:
    return base64.encodebytes(b"x" * 50 + text.encode() + b"y" * 40).decode()


def document(text: str) -> str:
    return base64.b64encode(json.dumps({"k": text}).encode()).decode()


WITHIN: dict[str, Way] = {
    "as it is": str,
    "in JSON": in_json,
    "in JSON twice": lambda text: in_json(in_json(text)),
    "by numbers": numbered,
    "by numbers here and there": every_other,
    "by bytes": percent,
    "by bytes in both cases": in_both_cases,
    "by bytes twice": lambda text: quote(quote(text, safe=""), safe=""),
    "base64": in_base64,
    "base64 in lines": in_lines,
    "a document in base64": document,
}
AROUND: dict[str, Way] = {
    "JSON": in_json,
    "numbers": numbered,
    "some numbers": every_other,
    "slashes": lambda text: in_json(text).replace("/", "\\/"),
}


def bodies(text: str, spelled: Way) -> Iterator[str]:
    """The text whole and in pieces, in documents, lines and events."""
    yield f'{{"jsonrpc":"2.0","id":1,"result":{{"text":"{spelled(text)}"}}}}'
    for size in (1, 2, 5):
        pieces = [spelled(text[start : start + size]) for start in range(0, len(text), size)]
        said = [
            f'{{"jsonrpc":"2.0","method":"said","params":{{"data":"{one}"}}}}' for one in pieces
        ]
        yield "\n".join(said)
        for field in ("content", "reasoning_content", "name"):
            deltas = [f'{{"choices":[{{"delta":{{"{field}":"{one}"}}}}]}}' for one in pieces]
            yield "".join(f"data: {one}\n\n" for one in deltas)


def revealed(body: str) -> Iterator[str]:
    """What a reader gets out of a body."""
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line]
    texts = [text for line in lines for text in strings(json.loads(line))]
    yield from decoded(body, 2)
    yield from decoded("".join(text for text in texts if text not in {"2.0", "said"}), 2)


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for below in value.values() if isinstance(value, dict) else value:
            yield from strings(below)


def decoded(text: str, depth: int) -> Iterator[str]:
    yield text
    if depth:
        words = text.replace("\n", "").replace('"', " ").replace(":", " ").split()
        found = {unquote(text)}
        for word in words:
            raw = word.rstrip("=")
            if raw.replace("+", "").replace("/", "").isalnum() and len(raw) % 4 != 1:
                padded = raw + "=" * (-len(raw) % 4)
                found.add(base64.b64decode(padded).decode("utf-8", "replace"))
        with suppress(ValueError):
            found.add(json.loads(f'"{text}"'))
        with suppress(ValueError):
            found.update(strings(json.loads(text)))
        for one in found - {text}:
            yield from decoded(one, depth - 1)


@pytest.mark.parametrize("value", sampled(VALUES, often={0, 1}, reason="cases of the same kind"))
@pytest.mark.parametrize("within", WITHIN)
def test_no_spelling_and_no_cut_hides_a_secret(value: str, within: str) -> None:
    secrets = Secrets()
    secrets.add("KEY", value)
    text = f"say {WITHIN[within](value)} again"
    for around in AROUND.values():
        for body in bodies(text, around):
            assert any(value in one for one in revealed(body)), "the test can read it"
            asked = Request("POST", "http://x/y")
            clean = redact(Interaction(asked, Response(body=body.encode())), secrets)
            assert not any(value in one for one in revealed(clean.response.body.decode()))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("within", WITHIN)
def test_requests_headers_and_reasons_hold_none_either(value: str, within: str) -> None:
    secrets = Secrets()
    secrets.add("KEY", value)
    said = WITHIN[within](value)
    for around in AROUND.values():
        body = f'{{"a":"{around(said)}"}}'
        asked = Request("POST", f"http://x/{said}", ((said, said),), body.encode())
        made = Response(200, said, ((said, said),), b"", broken=f"ReadError: {said}")
        clean = redact(Interaction(asked, made), secrets)
        request, response = clean.request, clean.response
        texts = (request.uri, *request.headers[0], response.reason, *response.headers[0])
        for text in (*texts, response.broken or "", request.body.decode()):
            assert not any(value in one for one in decoded(text, 3)), text


@each_case("within", WITHIN)
def test_a_secret_that_begins_with_another_keeps_its_name(within: str) -> None:
    shorter, longer = "sk-planted-0123", "sk-planted-0123-and-more"
    secrets = Secrets()
    secrets.add("SHORTER", shorter)
    secrets.add("LONGER", longer)
    said = f"{WITHIN[within](longer)} {WITHIN[within](shorter)} 100%25"
    asked = Request("POST", "http://x/y", body=json.dumps({"a": said}).encode())
    deltas = "".join(f"data: {json.dumps({'a': one})}\n\n" for one in said)
    clean = redact(Interaction(asked, Response(body=deltas.encode())), secrets)

    joined = "".join(text for line in deltas_of(clean) for text in strings(json.loads(line)))
    for text in (clean.request.body.decode(), joined):
        first, tag, rest = text.partition("<secret:LONGER>")
        assert tag, text
        assert "SHORTER" not in first
        assert "<secret:SHORTER>" in rest


@each_case("cut", range(1, 40))
def test_a_stream_that_breaks_off_within_a_secret_leaves_none_of_it(cut: int) -> None:
    value = "sk-planted-ü-0123456789"
    secrets = Secrets()
    secrets.add("KEY", value)
    whole = [{"c": [{"delta": {"content": one}}]} for one in ("it is sk-plan", f"{value[7:]} now")]
    first, second = (f"data: {json.dumps(one)}\n\n" for one in whole)
    asked = Request("POST", "http://x/y")

    clean = redact(Interaction(asked, Response(body=(first + second[:-cut]).encode())), secrets)

    body = clean.response.body.decode()
    if value[-3:] in second[:-cut]:
        assert "<secret:KEY>" in body
        assert "sk-plan" not in body
        assert value[-6:] not in body
    replayed = redact(Interaction(asked, Response(body=(first + second).encode())), secrets)
    assert b"sk-plan" not in replayed.response.body


def deltas_of(interaction: Interaction) -> list[str]:
    lines = interaction.response.body.decode().splitlines()
    return [line.removeprefix("data: ") for line in lines if line]


@pytest.mark.parametrize(
    "text", ["\\" * 400_000, "%5" * 200_000, '\\"' * 200_000, "%25" * 130_000, "sk-" * 130_000]
)
def test_no_text_makes_the_search_slow(text: str) -> None:
    secrets = Secrets()
    for number_ in range(3):
        secrets.add(f"KEY{number_}", f'sk-\\"\\"\\"\\"%25%25"""\\\\\\sk-sk-{number_}')
    work_of(lambda: list(secrets.spans_in_any_spelling(f"%20\\u0041{text}")), most=2_000_000)
