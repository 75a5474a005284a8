import base64
import json
from urllib.parse import quote

import pytest
import yaml
from cassette_exchanges import HEAD, answer, chat, delta, exchange, streamed

from aish.cassettes.format.file import parse
from aish.cassettes.format.interaction import CassetteFileError, Interaction, Request, Response
from aish.cassettes.format.layout import whole
from aish.cassettes.scrub import Scrubbed, scrub_content
from aish.system.secrets.secrets import Secrets

VALUE = 'pä"ss/word+42'
TAG = "<secret:KEY>"
PLAIN = """\
# a comment
interactions:
- request:
    body: null
    headers:
      Authorization: [Basic abcdefgh]
      X-Count: [1, two]
      x-plain: three
    method: GET
    uri: https://api.test/?key={value}
  response:
    body: {{string: !!python/unicode 'it is {value}'}}
    headers: {{content-length: 12, set-cookie: [a=b, c=d]}}
    status: {{code: 200, message: OK}}
    recorded: 2020-01-01
    note: 'see {value}'
version: 1
recorded_with: {{name: '{value}', 3: 4}}
"""


@pytest.fixture
def secrets() -> Secrets:
    secrets = Secrets()
    secrets.add("KEY", VALUE)
    return secrets


def scrub(data: str, secrets: Secrets) -> Scrubbed:
    return scrub_content(data.encode(), "old.yaml", secrets)


def forms() -> list[str]:
    coded = [base64.b64encode(b"x" * shift + VALUE.encode()).decode() for shift in range(3)]
    return [VALUE, json.dumps(VALUE)[1:-1], quote(VALUE, safe=""), *coded]


@pytest.mark.parametrize("form", forms())
def test_a_named_value_is_taken_out_in_every_encoding(form: str, secrets: Secrets) -> None:
    request = Request("POST", f"http://h/?k={form}", (("x-note", form),), form.encode())
    pieces = [b"a ", form[:5].encode(), form[5:].encode(), b" b"]
    old = whole(HEAD, [exchange(), Interaction(request, streamed(pieces)), exchange()])

    found = scrub(old, secrets)

    text = found.data.decode()
    assert form[2:-4] not in text
    assert text.count(TAG) == sum(place.count for place in found.places) == 4
    clean = parse(found.data, "new.yaml").interactions[1].response
    assert sum(chunk.size for chunk in clean.chunks) == len(clean.body)


def test_a_value_spelled_over_several_deltas_is_taken_out(secrets: Secrets) -> None:
    old = whole(HEAD, [Interaction(chat("a"), streamed(delta(letter) for letter in VALUE))])

    found = scrub(old, secrets)

    assert [place.where for place in found.places] == ["interaction 1, response body"]
    assert TAG in found.data.decode()


def test_headers_with_credentials_are_replaced_without_any_name() -> None:
    request = Request("GET", "http://h", (("X-API-Key", "k"), ("Cookie", "c"), ("accept", "x")))

    found = scrub(whole(HEAD, [Interaction(request, answer("x"))]), Secrets())

    assert [place.where for place in found.places] == [
        "interaction 1, request header `X-API-Key`",
        "interaction 1, request header `Cookie`",
    ]
    assert parse(found.data, "x").interactions[0].request.headers == (
        ("X-API-Key", "<secret:x-api-key>"),
        ("Cookie", "<secret:cookie>"),
        ("accept", "x"),
    )


def test_what_holds_no_secret_stays_byte_for_byte(secrets: Secrets) -> None:
    old = whole(HEAD, [exchange(), Interaction(chat("b"), answer(b"\xff\x00"))])

    assert scrub(old, secrets) == Scrubbed(old.encode(), ())


def test_the_rest_of_a_file_is_laid_out_as_before(secrets: Secrets) -> None:
    rows = [
        exchange(),
        Interaction(chat("b"), answer(b"\xff\x00\xfe")),
        exchange(reply="ä\n☃ \n\n"),
    ]
    secret = Interaction(chat("c"), answer(VALUE))

    found = scrub(whole(HEAD, [*rows, secret]), secrets)

    clean = Interaction(secret.request, answer(TAG))
    assert found.data.decode() == whole(HEAD, [*rows, clean])


def test_files_of_plain_vcrpy_keep_their_keys_and_types() -> None:
    value = "plain-word-4711"
    secrets = Secrets()
    secrets.add("KEY", value)

    found = scrub(PLAIN.format(value=value), secrets)

    made = yaml.safe_load(found.data)
    assert value not in found.data.decode()
    assert made["recorded_with"] == {"name": TAG, 3: 4}
    (row,) = made["interactions"]
    assert row["request"] == {
        "body": None,
        "headers": {
            "Authorization": ["<secret:authorization>"],
            "X-Count": [1, "two"],
            "x-plain": "three",
        },
        "method": "GET",
        "uri": f"https://api.test/?key={TAG}",
    }
    assert str(row["response"].pop("recorded")) == "2020-01-01"
    assert row["response"] == {
        "body": {"string": f"it is {TAG}"},
        "headers": {
            "content-length": str(len(f"it is {TAG}")),
            "set-cookie": ["<secret:set-cookie>"] * 2,
        },
        "status": {"code": 200, "message": "OK"},
        "note": f"see {TAG}",
    }
    assert sum(place.count for place in found.places) == 7


def test_the_head_is_searched_too(secrets: Secrets) -> None:
    head = HEAD.__class__(True, "run", "now", {"A": f"x{VALUE}"})

    found = scrub(whole(head, [exchange()]), secrets)

    assert [place.where for place in found.places] == ["`metadata`"]
    loaded = parse(found.data, "x").head
    assert loaded is not None
    assert loaded.env == {"A": f"x{TAG}"}


def test_what_is_compressed_is_named(secrets: Secrets) -> None:
    packed = Response(headers=(("Content-Encoding", "gzip"),), body=b"\x1f\x8b\x08\xff")

    found = scrub(whole(HEAD, [Interaction(chat("a"), packed)]), secrets)

    assert found.packed == ("interaction 1, response body",)


@pytest.mark.parametrize("text", ["", "a: 1", "interactions: [", "interactions: [1]\nversion: 1"])
def test_what_is_no_cassette_is_refused(text: str, secrets: Secrets) -> None:
    with pytest.raises(CassetteFileError):
        scrub(text, secrets)
