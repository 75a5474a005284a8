import base64
import json
from collections.abc import Callable
from itertools import cycle
from urllib.parse import quote

import pytest
from cassette_exchanges import HEAD, answer, chat, delta, exchange, streamed
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import sampled
from work import work_of

from aish.cassettes.format.edits import Edit, apply_to_response, text_of
from aish.cassettes.format.interaction import Interaction, Request, Response
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.record.redact import SENSITIVE, hide_paths, redact, redact_head
from aish.cassettes.record.secret_scan import scan, scan_text
from aish.system.secrets.secrets import Secrets

VALUE = 'pä"ss/word+42'
TAG = "<secret:KEY>"


@pytest.fixture
def secrets() -> Secrets:
    secrets = Secrets()
    secrets.add("KEY", VALUE)
    return secrets


def forms() -> list[str]:
    coded = [base64.b64encode(b"x" * shift + VALUE.encode()).decode() for shift in range(3)]
    return [
        VALUE,
        json.dumps(VALUE)[1:-1],
        json.dumps(VALUE, ensure_ascii=False)[1:-1],
        quote(VALUE, safe=""),
        *[text.translate(str.maketrans("+/", "-_")) for text in coded],
        *coded,
    ]


def rests() -> list[str]:
    """What must not be left: the part of each form that does not depend on its surroundings."""
    return [form[2:-4] for form in forms()]


def redacted(response: Response, secrets: Secrets) -> Response:
    return redact(Interaction(chat("a"), response), secrets).response


@pytest.mark.parametrize("form", forms())
def test_a_secret_is_replaced_wherever_it_stands(form: str, secrets: Secrets) -> None:
    request = Request("POST", f"http://h/?k={form}", (("x-note", form),), f"a {form} b".encode())
    response = answer(f"it is {form}.", headers=(("x-note", form),), reason=f"no {form}")

    made = redact(Interaction(request, response), secrets)

    written = repr(made)
    assert TAG in written
    assert not [rest for rest in rests() if rest in written]


@pytest.mark.parametrize("form", forms())
def test_a_secret_split_over_chunks_is_replaced_and_the_cuts_fit(
    form: str, secrets: Secrets
) -> None:
    raw = f"before {form} after".encode()
    cuts = [raw[:9], raw[9:12], raw[12:13], raw[13:]]

    made = redacted(streamed(cuts), secrets)

    assert [piece for piece, _ in made.pieces() if TAG.encode() in piece]
    assert b"".join(piece for piece, _ in made.pieces()) == made.body
    assert not [rest for rest in rests() if rest in text_of(made.body)]
    assert made.pieces()[-1][1] == pytest.approx(0.04)


@pytest.mark.parametrize("form", forms())
def test_a_secret_spelled_over_several_deltas_is_replaced(form: str, secrets: Secrets) -> None:
    events = [delta("it is "), *(delta(letter) for letter in form), delta(" indeed ☃")]

    made = redacted(streamed(events), secrets)

    pieces = [piece for piece, _ in made.pieces()]
    said = [
        json.loads(piece.removeprefix(b"data: "))["choices"][0]["delta"]["content"]
        for piece in pieces
    ]
    assert len(pieces) == len(events)
    assert TAG in "".join(said)
    assert not [rest for rest in rests() if rest in "".join(said)]
    assert said[0] == "it is "
    assert said[-1] == " indeed ☃"


def test_calls_that_are_spelled_in_turns_are_put_together_apart(secrets: Secrets) -> None:
    def call(index: int, text: str) -> bytes:
        fragment = {"index": index, "function": {"arguments": text}}
        return f"data: {json.dumps({'delta': {'tool_calls': [fragment]}})}\r\n\r\n".encode()

    made = redacted(
        streamed([call(0, VALUE[:5]), call(1, "other"), call(0, VALUE[5:]), call(1, " text")]),
        secrets,
    )

    said = [json.loads(piece[6:])["delta"]["tool_calls"][0] for piece, _ in made.pieces()]
    assert [one["function"]["arguments"] for one in said] == [TAG, "other", "", " text"]


# What a writer of JSON may do, and ours would not: {} is where a secret stands.
ODD = [
    '{ "b": 1.10, "a": [ 1e3, -0.0, 12345678901234567890 ],\n  "z": "see {} there" }\n',
    '{"error":{"message":"caf\\u00e9 \\/ \\ud83d\\ude00 {} \\n","code": 400.0}}',
    '{"a": "{}", "a": "{} and {}", "b": "plain", "a":"last {}"}',
    '[ "{}",["\\"{}\\"", { "k\\u0065y" : "\\\\{}" }], null , true]',
    (
        '{"jsonrpc": "2.0", "id": 1.0, "result": {"text": "{\\"n\\": 1.10, \\"s\\": \\"{}\\"}"}}\n'
        '{"jsonrpc":"2.0",  "method":"n", "params":{"b":2,"a":"{}"}}\n'
    ),
    'data: { "n": 1.10, "s": "{}" }\r\n\r\ndata:{"b":1,\ndata: "a" : "{}"}\n\ndata: [DONE]\n\n',
    'data: {"delta": {"n": 1.10, "s": "{} and th',
]


@pytest.mark.parametrize("body", ODD)
@pytest.mark.parametrize(
    "spell",
    [
        lambda text: json.dumps(text)[1:-1],
        lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
        lambda text: "".join(f"\\u{ord(letter):04x}" for letter in text),
    ],
    ids=["ascii", "plain", "escaped"],
)
def test_only_the_secret_in_a_json_body_changes(
    body: str, spell: Callable[[str], str], secrets: Secrets
) -> None:
    made = redacted(answer(body.replace("{}", spell(VALUE))), secrets)

    assert text_of(made.body) == body.replace("{}", TAG)


@pytest.mark.parametrize("body", ODD)
def test_only_the_folder_in_a_json_body_changes(body: str) -> None:
    places = PathPlaceholders(root="/work/my project", home="/home/ann")
    said = body.replace("{}", "/work/my project/x")
    response = answer(said)

    made = hide_paths(Interaction(chat("a"), response), places).response
    shown = apply_to_response(made, places.showings(text_of(made.body)))

    assert text_of(made.body) == body.replace("{}", "<root>/x")
    assert text_of(shown.body) == said


def test_of_strings_that_hold_parts_of_a_secret_only_the_parts_change(secrets: Secrets) -> None:
    first, second, third = VALUE[:4], VALUE[4:9], VALUE[9:]
    event = 'data: {{ "n": 1.10, "delta": "{}" , "a":null }}\n\n'
    parts = (f"caf\\u00e9 {first}", second, f"{third} \\u2603")
    raw = "".join(event.format(part.replace('"', '\\"')) for part in parts)

    made = redacted(answer(raw), secrets)

    kept = (f"caf\\u00e9 {TAG}", "", " \\u2603")
    assert text_of(made.body) == "".join(event.format(part) for part in kept)


SPELLED = st.sampled_from(["\\", '"', "\n", "é", "☃", "😀", "x", " ", "/"])


@given(
    st.lists(st.one_of(SPELLED, st.just(VALUE)), max_size=8),
    st.lists(st.booleans(), min_size=40, max_size=40),
)
@settings(deadline=None)
def test_escapes_beside_a_secret_stay_as_they_are(pieces: list[str], ways: list[bool]) -> None:
    secrets = Secrets()
    secrets.add("KEY", VALUE)
    turns = cycle(ways)

    def spelled(text: str) -> str:
        return "".join(json.dumps(one, ensure_ascii=next(turns))[1:-1] for one in text)

    raws = [spelled(piece) for piece in pieces]
    body = '{{"n": 1.10, "text": "{}"}}'
    request = Request("POST", "http://h", body=body.format("".join(raws)).encode())
    expected = "".join(
        TAG if piece == VALUE else raw for piece, raw in zip(pieces, raws, strict=True)
    )

    made = redact(Interaction(request, answer(request.body)), secrets)

    assert text_of(made.response.body) == body.format(expected)
    assert text_of(made.request.body) == body.format(expected)


@pytest.mark.parametrize("name", sorted(SENSITIVE))
def test_headers_that_carry_credentials_are_replaced_by_name(name: str) -> None:
    headers = ((name.title(), "anything"), ("accept", "*/*"))

    made = redact(
        Interaction(Request("GET", "http://h", headers), answer("", headers=headers)), Secrets()
    )

    kept = ((name.title(), f"<secret:{name}>"), ("accept", "*/*"))
    assert made.request.headers == kept
    assert made.response.headers == kept


def test_the_head_and_a_broken_exchange_are_searched_too(secrets: Secrets) -> None:
    head = redact_head(HEAD.__class__(True, "r", "now", {"A": f"x{VALUE}"}), secrets)
    made = redacted(Response(broken=f"no route to {VALUE}"), secrets)

    assert head.env == {"A": f"x{TAG}"}
    assert made.broken == f"no route to {TAG}"


def test_the_length_in_the_headers_is_that_of_what_is_written(secrets: Secrets) -> None:
    made = redacted(answer(VALUE, headers=(("Content-Length", "14"),)), secrets)

    assert made.headers == (("Content-Length", str(len(made.body))),)


def test_bytes_that_are_no_text_survive(secrets: Secrets) -> None:
    raw = b"\xff\x00" + VALUE.encode() + b"\xfe"

    made = redacted(answer(raw), secrets)

    assert made.body == b"\xff\x00" + TAG.encode() + b"\xfe"


def test_without_secrets_nothing_changes() -> None:
    interaction = Interaction(chat("a"), streamed([delta("x"), b"\xff"]))

    assert redact(interaction, Secrets()) == interaction


@given(st.lists(st.binary(min_size=1), min_size=1), st.data())
def test_edits_keep_chunks_that_add_up(pieces: list[bytes], data: st.DataObject) -> None:
    response = streamed(pieces)
    text = text_of(response.body)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = list(zip(places[::2], places[1::2], strict=False))
    edits = [Edit(start, end, data.draw(st.text(max_size=4))) for start, end in spans]

    made = apply_to_response(response, edits)

    assert sum(chunk.size for chunk in made.chunks) == len(made.body)
    assert all(chunk.size > 0 for chunk in made.chunks)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("sk-" + "proj-abcdefABCDEF0123456789", "an API key"),
        ("ghp_" + "a1B2" * 9, "a GitHub token"),
        ("AKIA" + "ABCDEFGH12345678", "an AWS access key"),
        ("-----BEGIN RSA PRIVATE KEY-----", "a private key"),
        ("hf_" + "aBcD1234" * 4, "a Hugging Face token"),
        ("Authorization: Bearer " + "abcdefghij0123456789", "a bearer token"),
        ("zX8kQ2mW9pL4vR7tY1nB6cJ3hF5gD0sAuE", "text as random as a key"),
    ],
)
def test_what_looks_like_a_key_is_found_and_its_place_is_named(text: str, kind: str) -> None:
    found = scan([exchange(), Interaction(chat("a"), answer(f"one\ntwo\nsee {text}"))])

    assert [one.kind for one in found] == [kind]
    assert found[0].place.startswith("interaction 2, response body, line 3, column ")
    assert text not in str(found[0])


def test_a_key_spelled_over_several_deltas_is_found() -> None:
    key = "sk-" + "abcdefghijABCDEFGHIJ0123456789"

    found = scan([Interaction(chat("a"), streamed(delta(letter) for letter in key))])

    assert [one.place for one in found] == [
        "interaction 1, response stream `choices.0.delta.content`, column 1"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        "123e4567-e89b-12d3-a456-426614174000",
        "chatcmpl-zX8kQ2mW9pL4vR7tY1nB6cJ3hF5gD0sA",
        "AVeryLongNameOfSomeClassThatNobodyLikesToReadTwice",
        "/usr/lib/python3/dist-packages/A1/b2/C3/d4/E5",
        "a long sentence, 42 words, and Nothing Secret in it",
    ],
)
def test_what_is_no_key_is_not_reported(text: str) -> None:
    assert scan([Interaction(chat(text), answer(text))]) == ()


def test_what_is_allowed_is_not_reported() -> None:
    key = "sk-" + "test-0123456789abcdefghij"

    assert scan([exchange(reply=key)], allow=["sk-test-*"]) == ()
    assert len(scan([exchange(reply=key)], allow=["sk-live-*"])) == 1
    assert scan_text("env `A`", key, allow=[key]) == ()
    assert scan_text("env `A`", key)[0].place == "env `A`, column 1"


RANDOM = "Y9MBSCq2tLk7Vw0xZr4HnJ8dEf1GuPaQ"


@pytest.mark.parametrize(
    "text",
    [
        f'{{"tool_calls": [{{"index": 0, "id": "{RANDOM}"}}]}}',
        f'{{"role": "tool", "tool_call_id":"{RANDOM}"}}',
        f'"arguments": "{{\\"call_id\\": \\"{RANDOM}\\"}}"',
        "see .aish/runs/20261121T133736Z-quickstart-ll58 for more",
    ],
)
def test_an_id_made_at_random_is_a_name_and_no_secret(text: str) -> None:
    assert scan_text("body", text) == ()
    assert len(scan_text("body", f'"grid": "{RANDOM}", "id_key": "{RANDOM}"')) == 2


def test_addresses_and_headers_are_scanned() -> None:
    key = "sk-" + "abcdefghijABCDEFGHIJ0123456789"
    request = Request("GET", f"http://h/{key}", (("x-note", key),))

    places = [one.place for one in scan([Interaction(request, answer(""))])]

    assert places == [
        "interaction 1, request uri, column 10",
        "interaction 1, request header `x-note`, column 1",
    ]


@pytest.mark.parametrize(
    "text",
    sampled(
        ["eyJ-" * 200_000, "sk-" * 300_000, "bearer " * 100_000],
        often={0},
        reason="cases of the same kind",
    ),
)
def test_a_hostile_body_is_scanned_in_bounded_time(text: str) -> None:
    work_of(lambda: scan([Interaction(chat("a"), answer(text))]), most=5 * len(text))


def test_of_very_many_findings_the_first_hundred_are_named() -> None:
    keys = "\n".join(f"sk-{n:020}" for n in range(1_000))

    found = scan([exchange(reply=keys)])

    assert len(found) == 100
    assert found[99].place == "interaction 1, response body, line 100, column 1"
