import base64
import json
import urllib.parse
from collections.abc import Callable, Iterator
from itertools import cycle, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import each_case
from work import work_of

from aish.core.errors import UsageError
from aish.core.json import JsonValue
from aish.system.secrets.secrets import Secrets, StreamMask

VALUE = 's3cr/et+"va lue\\é\n<&>?='
AROUND = st.text('ab/+=% \n"\\é', max_size=8)


def secrets_of(**values: str) -> Secrets:
    secrets = Secrets()
    for name, value in values.items():
        secrets.add(name, value)
    return secrets


@pytest.mark.requirement("F15")
def test_a_short_secret_is_refused_without_being_shown() -> None:
    with pytest.raises(UsageError) as refused:
        Secrets().add("TOKEN", "sesame7")
    assert str(refused.value) == "the secret `TOKEN` is shorter than 8 characters"
    assert "sesame7" not in str(refused.value.hint)


def test_without_secrets_text_is_passed_on_untouched() -> None:
    text = "anything"
    assert Secrets().mask(text) is text
    assert StreamMask(Secrets()).feed(text) is text
    assert not Secrets()


@each_case(
    "written",
    [
        VALUE,
        VALUE.strip(),
        json.dumps(VALUE),
        json.dumps(VALUE, ensure_ascii=False),
        json.dumps(json.dumps({"key": VALUE})),
        json.dumps(VALUE).replace("/", "\\/"),
        json.dumps(VALUE).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        urllib.parse.quote(VALUE),
        urllib.parse.quote(VALUE, safe=""),
        urllib.parse.quote(VALUE, safe="").lower(),
        urllib.parse.urlencode({"q": VALUE}),
        f"https://user:{urllib.parse.quote(VALUE, safe='')}@host.example/path",
    ],
)
def test_a_secret_is_hidden_in_every_spelling(written: str) -> None:
    masked = secrets_of(TOKEN=VALUE).mask(f"before {written} after")
    assert "<secret:TOKEN>" in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")
    assert "s3cr" not in masked
    assert "lue" not in masked


@given(st.binary(max_size=6), st.binary(max_size=6), st.sampled_from(["std", "url"]))
def test_a_secret_is_hidden_in_base64_of_anything_around_it(
    before: bytes, after: bytes, alphabet: str
) -> None:
    encode = base64.b64encode if alphabet == "std" else base64.urlsafe_b64encode
    value = "p?~>ssw~ord>?12"
    written = encode(before + value.encode() + after).decode()
    masked = secrets_of(TOKEN=value).mask(written)
    assert "<secret:TOKEN>" in masked
    # What is left on either side is at most what shares a letter with its neighbours.
    left, right = masked.split("<secret:TOKEN>")
    assert len(left) <= (len(before) * 8 + 5) // 6 + 2
    assert len(right) <= (len(after) * 8 + 5) // 6 + 3


def test_the_longest_secret_wins() -> None:
    secrets = secrets_of(SHORT="password", LONG="password-and-more")
    assert secrets.mask("password-and-more password") == "<secret:LONG> <secret:SHORT>"


def test_overlapping_secrets_leave_no_tail() -> None:
    assert secrets_of(A="abcdefgh", B="ghijklmn").mask("-abcdefghijklmn-") == "-<secret:A>-"


def test_a_mask_leaves_command_path_and_host_to_be_seen() -> None:
    shown = secrets_of(TOKEN="hunter2hunter2").mask(
        "curl -H 'Authorization: Bearer hunter2hunter2' https://host.example/path"
    )
    assert shown == "curl -H 'Authorization: Bearer <secret:TOKEN>' https://host.example/path"


def test_each_line_of_a_key_is_a_secret_too() -> None:
    secrets = secrets_of(KEY="-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\nx\n-----END KEY-----\n")
    assert secrets.mask("+MIIEvQIBADANBgkqhkiG") == "+<secret:KEY>"
    assert secrets.mask("x") == "x"


def test_a_secret_named_like_its_value_is_masked_once() -> None:
    secrets = secrets_of(API_TOKEN="API_TOKEN")
    assert secrets.mask("API_TOKEN") == "<secret:API_TOKEN>"
    assert secrets.mask("<secret:API_TOKEN>") == "<secret:API_TOKEN>"


def test_keys_strings_and_numbers_of_json_are_masked() -> None:
    secrets = secrets_of(TOKEN="12345678", OTHER="abcdefgh")
    value: JsonValue = {"abcdefgh": ["x 12345678 y", 12345678, 1, None, True, {"k": "abcdefgh"}]}
    masked: JsonValue = {
        "<secret:OTHER>": [
            "x <secret:TOKEN> y",
            "<secret:TOKEN>",
            1,
            None,
            True,
            {"k": "<secret:OTHER>"},
        ]
    }
    assert secrets.mask_json(value) == masked


def test_json_nested_beyond_reason_is_not_shown_at_all() -> None:
    value: JsonValue = "abcdefgh"
    for _ in range(100_000):
        value = [value]
    masked = secrets_of(TOKEN="abcdefgh").mask_json(value)
    assert "abcdefgh" not in str(masked)


@given(st.lists(st.text("abc", min_size=1, max_size=12), max_size=20))
@example(["abcabcab", "cabcabc", "cab"])
@example(["aaaaaaaaaaaaaaaaaaaaaaaa", "aaaa", "b"])
def test_a_stream_is_masked_as_the_whole_would_be(pieces: list[str]) -> None:
    secrets = secrets_of(A="abcabcab", B="cabcabcabc", C="aaaaaaaa", D="bcabcabcabcab")
    mask = StreamMask(secrets)
    shown = "".join([*map(mask.feed, pieces), mask.flush()])
    assert shown == secrets.mask("".join(pieces))


@given(AROUND, AROUND, st.integers(0, 60), st.sampled_from([json.dumps, urllib.parse.quote, str]))
def test_a_secret_cut_anywhere_never_shows(
    before: str, after: str, cut: int, form: Callable[[str], str]
) -> None:
    written = before + form(VALUE) + after
    secrets = secrets_of(TOKEN=VALUE)
    mask = StreamMask(secrets)
    shown = mask.feed(written[:cut]) + mask.feed(written[cut:]) + mask.flush()
    assert shown == secrets.mask(written)
    assert "s3cr" not in shown


def percent_encoded(text: str, turns: Iterator[int]) -> str:
    """Each byte as it is, or escaped in upper or lower case, once or more often."""
    spelled = ""
    for letter in text:
        raw = letter.encode()
        way = next(turns)
        if way == 0 and len(raw) == 1 and letter != "%":
            spelled += letter
            continue
        for byte in raw:
            code = f"{byte:02X}" if way % 2 else f"{byte:02x}"
            spelled += f"%{'25' * (way // 2)}{code}"
    return spelled


DASHED = "sk-live_9.é~☃/a+b"
WAYS = st.lists(st.integers(0, 7), min_size=1, max_size=40)


@pytest.mark.parametrize("ways", [[1], [2], [0, 1], [2, 1, 0, 3], [7, 1]])
def test_a_secret_is_hidden_however_its_letters_are_percent_encoded(ways: list[int]) -> None:
    written = percent_encoded(DASHED, cycle(ways))
    secrets = secrets_of(TOKEN=DASHED)

    assert "%2" in written
    assert secrets.mask(f"100% {written}%2 of it") == "100% <secret:TOKEN>%2 of it"


@given(WAYS, st.text("%25k-s☃ ", max_size=6), st.text("%25k-s☃ ", max_size=6), st.data())
@settings(deadline=None)
def test_a_percent_encoded_secret_in_a_stream_is_masked_as_in_the_whole(
    ways: list[int], before: str, after: str, data: st.DataObject
) -> None:
    written = f"{before}{percent_encoded(DASHED, cycle(ways))}{after}{DASHED[:5]}"
    cuts = sorted(data.draw(st.sets(st.integers(0, len(written)), max_size=6)))
    secrets = secrets_of(TOKEN=DASHED)
    mask = StreamMask(secrets)

    pieces = [written[start:end] for start, end in pairwise([0, *cuts, len(written)])]
    shown = "".join([*map(mask.feed, pieces), mask.flush()])

    assert shown == secrets.mask(written)


def test_a_letter_that_is_cut_within_its_percent_encoding_is_held_back() -> None:
    mask = StreamMask(secrets_of(TOKEN="é" * 8))

    assert mask.feed("a%C") == "a"
    assert not any(mask.feed(piece) for piece in ("3", "%25", "25a9"))
    assert mask.feed("%c3%28 b") == "%C3%2525a9%c3%28 b"


@pytest.mark.parametrize("piece", ["%25", "%41", "%", "%C3", "%2541"])
def test_percent_encoding_without_end_is_neither_held_nor_slow(piece: str) -> None:
    mask = StreamMask(secrets_of(TOKEN=DASHED))
    text = piece * 50_000

    shown = mask.feed(text)

    assert len(text) - len(shown) <= 40
    assert shown + mask.flush() == text


def test_ordinary_text_is_not_held_back() -> None:
    mask = StreamMask(secrets_of(TOKEN="zyxwvuts"))
    assert mask.feed("an ordinary piece!") == "an ordinary piece!"
    assert mask.feed("ends in zyx") == "ends in "
    assert mask.feed("!") == "zyx!"
    assert not mask.flush()


def test_the_first_letters_of_a_secret_are_shown_to_who_waits_and_the_rest_is_masked() -> None:
    mask = StreamMask(secrets_of(TOKEN="zyxwvuts"))
    assert mask.feed("ends in zy") + mask.release(3) == "ends in zy"
    assert not mask.release(3)
    assert not mask.feed("xw") + mask.release(3)
    assert mask.feed("vuts, and more") + mask.release(3) == "<secret:TOKEN>, and more"
    assert mask.feed("z") + mask.release(3) == "z"
    assert mask.feed("!") + mask.flush() == "!"


@given(st.lists(st.text("abc", min_size=1, max_size=12), max_size=20), st.integers(0, 3))
@example(["a", "b", "c", "a", "b", "c", "a", "b"], 3)
@example(["cab", "cabcabcabc", "a"], 3)
def test_a_stream_that_somebody_waits_for_shows_a_few_letters_of_a_secret_at_most(
    pieces: list[str], most: int
) -> None:
    secrets = secrets_of(A="abcabcab", B="cabcabcabc", C="aaaaaaaa", D="bcabcabcabcab")
    mask, shown = StreamMask(secrets), ""
    for piece in pieces:
        shown += mask.feed(piece) + mask.release(most)
    shown += mask.flush()
    plain = "".join(pieces)
    # Each tag may have up to `most` first letters of its secret before it.
    parts = secrets.mask(plain).split("<secret:")
    found = shown.split("<secret:")
    assert len(found) == len(parts)
    for ours, theirs in zip(found, parts, strict=True):
        assert ours.startswith(theirs)
        assert len(ours) - len(theirs) <= most


def test_a_stream_that_never_ends_is_not_held_for_ever() -> None:
    mask = StreamMask(secrets_of(TOKEN="aaaaaaaa"))
    shown = "".join(mask.feed("aaaa") for _ in range(1000))
    assert shown == "<secret:TOKEN>"
    assert not mask.flush()
    assert mask.feed("b") == "b"


@given(st.lists(st.text("abé/+ ", min_size=8, max_size=14), min_size=1, max_size=4), st.data())
def test_masking_twice_changes_nothing(values: list[str], data: st.DataObject) -> None:
    secrets = secrets_of(**{f"N{number}": value for number, value in enumerate(values)})
    text = "".join(data.draw(st.lists(st.one_of(AROUND, st.sampled_from(values)))))
    assert secrets.mask(secrets.mask(text)) == secrets.mask(text)


@given(st.text('"\\/<é ab', min_size=8, max_size=14).filter(str.strip))
def test_a_document_within_arguments_within_a_body_is_masked(value: str) -> None:
    secrets = secrets_of(KEY=value)
    content = json.dumps({"key": value})
    body = json.dumps({"arguments": json.dumps({"content": content})})

    assert json.dumps(json.dumps(json.dumps(value)[1:-1])[1:-1])[1:-1] not in secrets.mask(body)


def test_the_work_of_adding_secrets_grows_with_their_number_only() -> None:
    def added(count: int) -> int:
        secrets = Secrets()

        def add() -> None:
            for number in range(count):
                secrets.add(f"NAME_{number}", f"value/of number {number}")
            assert secrets.mask(f"value/of number {count - 1}") == f"<secret:NAME_{count - 1}>"

        return work_of(add).steps

    few, many = added(20), added(200)

    assert many < few * 15


def test_tokens_with_one_beginning_are_told_apart() -> None:
    secrets = Secrets()
    values = [f"eyJhbGciOiJSUzI1NiJ9.{number:03}" * 20 for number in range(300)]
    for number, value in enumerate(values):
        secrets.add(f"t{number}", value)
    secrets.add("short", "eyJhbGciOiJSUzI1NiJ9.007")
    text = f"{values[7]} {values[299]} {values[7][:24]} {values[7][:23]} eyJhbGci"
    assert secrets.mask(text) == (
        "<secret:t7> <secret:t299> <secret:short> eyJhbGciOiJSUzI1NiJ9.00 eyJhbGci"
    )
