"""Long conversations: what their requests repeat is in the file once."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from cassette_exchanges import CHAT, HEAD, answer, chat, delta, exchange, streamed
from cassette_recorders import nothing, pieces_of, recorder, send
from hypothesis import given
from hypothesis import strategies as st
from vcr.cassette import Cassette as VcrCassette
from vcr.util import read_body

from aish.cassettes.format import parts
from aish.cassettes.format.file import load, parse, partial
from aish.cassettes.format.interaction import LARGEST, CassetteFileError, Interaction, Request
from aish.cassettes.format.layout import END, entry, head_text, whole
from aish.cassettes.format.parts import TAG
from aish.cassettes.format.vcrpy import difference
from aish.cassettes.http import cassette_transport
from aish.cassettes.record.file_writer import Recording
from aish.cassettes.scrub import scrub_content
from aish.system.secrets.secrets import Secrets

TOOLS = [
    {"type": "function", "function": {"name": f"tool_{n}", "description": "what it does " * 20}}
    for n in range(8)
]
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.text()})
)


def conversation(turns: int, *, secret: str = "", tools_first: bool = True) -> list[Interaction]:
    """Tool turns of 2 KB: the call and its result, each request with all those before it."""
    said: list[dict[str, object]] = [{"role": "user", "content": f"Go on. {secret}"}]
    held = []
    for turn in range(turns):
        tools = {"tools": TOOLS}
        body = {"model": "m", "messages": said, "stream": True}
        text = json.dumps(tools | body if tools_first else body | tools, separators=(",", ":"))
        held.append(Interaction(Request("POST", CHAT, body=text.encode()), streamed([delta("a")])))
        call = {"id": f"c{turn}", "function": {"name": "tool_1", "arguments": '{"a": [{"b": 1}]}'}}
        said += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": f"ü line {turn}\n" * 150},
        ]
    return held


def in_full(held: list[Interaction]) -> str:
    return "".join((head_text(HEAD), *map(entry, held), END))


def bodies(held: list[Interaction]) -> list[bytes]:
    return [one.request.body for one in held]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated parts become aliases at once, however short."""
    monkeypatch.setattr(parts, "_REPEATED", 0)
    monkeypatch.setattr(parts, "_WORTHWHILE", 1)
    monkeypatch.setattr(parts, "_SHORTEST", 1)


@pytest.mark.requirement("C1")
def test_200_tool_turns_make_a_small_file_that_vcrpy_reads(path: Path) -> None:
    held = conversation(200)
    assert sum(map(len, bodies(held))) > 40_000_000

    with Recording(path, HEAD) as recording:
        kept = recorder("record", recording=recording)
        for one in held:
            take = kept.begin("model", one.request)
            assert take is not None
            take.chunk(one.response.body)
            take.end()
        kept.finish(HEAD)

    assert path.stat().st_size < 2_000_000
    ours = load(path)
    assert bodies([*ours.interactions]) == bodies(held)
    assert difference(path, ours) is None


def test_a_conversation_in_parts_is_replayed(path: Path) -> None:
    held = conversation(30)
    path.write_text(whole(HEAD, held), "utf-8")
    assert TAG in path.read_text("utf-8")

    async def main() -> list[bytes]:
        player = cassette_transport(recorder("replay", *load(path).interactions), "model", nothing)
        asked = bodies(held)
        said = [await pieces_of(await send(player, CHAT, body)) for body in asked]
        return [piece for pieces in said for piece in pieces]

    assert anyio.run(main) == [delta("a")] * 30


def test_vcrpy_reads_parts_and_we_read_what_it_writes_of_them(tmp_path: Path, path: Path) -> None:
    held = conversation(30)
    path.write_text(whole(HEAD, held), "utf-8")

    theirs = VcrCassette.load(path=str(path))
    copy = VcrCassette(str(tmp_path / "copy.yaml"))
    for request, response in zip(theirs.requests, theirs.responses, strict=True):
        copy.append(request, {k: response[k] for k in ("status", "headers", "body")})
    copy._save(force=True)

    assert [read_body(request) for request in theirs.requests] == bodies(held)
    assert bodies([*load(tmp_path / "copy.yaml").interactions]) == bodies(held)


def test_a_file_that_repeats_little_has_each_request_in_one_piece() -> None:
    held = conversation(12)

    assert whole(HEAD, held) == in_full(held)


def test_a_long_conversation_in_full_is_read_as_before() -> None:
    held = conversation(40)
    text = in_full(held)

    assert len(whole(HEAD, held)) < len(text) / 2
    assert parse(text.encode(), "c.yaml") == parse(whole(HEAD, held).encode(), "c.yaml")


def test_what_follows_the_messages_is_in_the_file_once_too() -> None:
    first, last = conversation(40), conversation(40, tools_first=False)

    text = whole(HEAD, last)

    assert parse(text.encode(), "c.yaml").interactions == tuple(last)
    assert len(text) < 1.1 * len(whole(HEAD, first))


def test_conversations_that_take_turns_share_what_each_has_said() -> None:
    one, other = conversation(60), conversation(60, secret="somebody else")
    held = [turn for pair in zip(one, other, strict=True) for turn in pair]

    text = whole(HEAD, held)

    assert parse(text.encode(), "c.yaml").interactions == tuple(held)
    assert len(text) < 1.5 * len(whole(HEAD, one))


def test_a_part_comes_before_its_aliases_in_whatever_order_it_was_written(path: Path) -> None:
    held = conversation(40)

    with Recording(path, HEAD) as recording:
        for one in (*held[:20], *held[:19:-1]):
            recording.append(one)
        recording.finish(HEAD, held[3:])

    assert path.read_text("utf-8") == whole(HEAD, held[3:])
    assert load(path).interactions == tuple(held[3:])


def test_what_is_beside_the_cassette_can_be_read_after_each_interaction(path: Path) -> None:
    held = conversation(40)

    with Recording(path, HEAD) as recording:
        for number, one in enumerate(held, 1):
            recording.append(one)
            if number % 13 == 0:
                beside = load(partial(path), unfinished=True)
                assert beside.interactions == tuple(held[:number])

    assert TAG in partial(path).read_text("utf-8")


def test_a_cassette_that_is_too_large_in_full_is_not_written(path: Path) -> None:
    held = conversation(40)
    size = len(whole(HEAD, held).encode())

    with (
        Recording(path, HEAD, most=2 * size) as recording,
        pytest.raises(CassetteFileError, match="would be larger than"),
    ):
        recording.finish(HEAD, held)


def test_a_secret_in_a_part_is_taken_out_wherever_the_part_is_used() -> None:
    secrets = Secrets()
    secrets.add("KEY", 'pä"ss/word+42')
    held = conversation(40, secret='pä"ss/word+42')
    clean = conversation(40, secret="<secret:KEY>")
    old = whole(HEAD, held)

    new = scrub_content(old.encode(), "c.yaml", secrets)

    assert len(new.places) == len(held)
    assert new.data.decode() == whole(HEAD, clean)


def test_two_parts_of_one_name_are_read_and_what_cannot_read_them_says_so(tmp_path: Path) -> None:
    """As of a merge that keeps both sides, where each alias means the last part before it."""
    secrets = Secrets()
    secrets.add("KEY", "s-ecret-s-ecret")
    held = conversation(40, secret="s-ecret-s-ecret")
    before, alias, rest = whole(HEAD, held).rpartition("*p1,")
    part = re.search(r"&p1 (.*)", before)
    assert alias
    assert part
    merged = f"{before}&p1 {part[1]}{rest}".encode()

    ours = parse(merged, "c.yaml")
    (tmp_path / "c.yaml").write_bytes(merged)
    theirs = difference(tmp_path / "c.yaml", ours)

    assert ours.interactions == tuple(held)
    assert theirs is not None
    assert theirs.startswith("vcrpy cannot read it: ComposerError")
    with pytest.raises(CassetteFileError, match="two anchors of one name") as caught:
        scrub_content(merged, "c.yaml", secrets)
    line = 1 + merged.count(b"\n", 0, merged.rindex(b"&p1 "))
    assert str(caught.value).startswith(f"c.yaml:{line}: ")


def test_a_secret_that_begins_in_one_part_and_ends_in_another_is_taken_out(eager: None) -> None:
    value = '"}, {"role": "tool", "content": "'
    secrets = Secrets()
    secrets.add("KEY", value)
    held = [exchange(f"Say{n}") for n in range(2)]
    held += [Interaction(chat("Be brief", "Say1", "more " * n), answer("Hi")) for n in range(3)]
    row = Interaction(Request("POST", CHAT, body=f"[{{a{value}b}}]".encode()), answer("Hi"))
    old = whole(HEAD, [*held, row, row])
    assert TAG in old

    new = scrub_content(old.encode(), "c.yaml", secrets)

    assert bodies([*parse(new.data, "c.yaml").interactions])[-1] == b"[{a<secret:KEY>b}]"


@given(st.lists(MESSAGES, max_size=6), st.sampled_from([(", ", ": "), (",", ":")]), st.binary())
def test_any_conversation_comes_back_as_it_was(
    talks: list[list[dict[str, str]]], separators: tuple[str, str], raw: bytes
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_REPEATED", "_WORTHWHILE", "_SHORTEST"):
            patch.setattr(parts, name, 0)
        values = [
            json.dumps({"messages": talk}, ensure_ascii=False, separators=separators).encode(
                errors="replace"
            )
            for talk in talks
        ]
        requests = [Request("POST", CHAT, body=body) for body in (*values, raw, *values, raw)]
        held = tuple(Interaction(request, answer("Hi")) for request in requests)
        text = whole(HEAD, held)

    assert parse(text.encode(), "c.yaml").interactions == held
    theirs = VcrCassette(path="c.yaml", persister=_Text(text))
    theirs._load()
    assert [read_body(request) for request in theirs.requests] == bodies([*held])


class _Text:
    """A persister of vcrpy whose file is a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def load_cassette(self, _path: str, serializer: object) -> object:
        from vcr.serialize import deserialize

        return deserialize(self._text, serializer)


FORM = "interactions:\n- request: {method: GET, uri: u, headers: {}, body: %s}\n  response: %s\n"
ANSWER = "{status: {code: 200, message: OK}, headers: {}, body: {string: x}}"


def refusals(*bodies: str, more: str = "") -> Iterator[str]:
    for body in bodies:
        with pytest.raises(CassetteFileError) as caught:
            parse((more + FORM % (body, ANSWER)).encode(), "c.yaml")
        yield str(caught.value)


def test_no_other_shape_and_no_other_tag_makes_a_body() -> None:
    shapes = refusals(
        f"!!{TAG} {{args: [[a, [b]]]}}",
        f"!!{TAG} {{args: [[a, null]]}}",
        f"!!{TAG} {{args: [[a]], kwds: {{b: c}}}}",
        f"!!{TAG} {{args: [[a]], listitems: [b]}}",
    )
    assert {said.split(": ", 1)[1] for said in shapes} == {"its body is not a list of texts"}
    tags = refusals(
        f"!!{TAG} [[a]]",
        f"!!{TAG} a",
        "!!python/object/apply:builtins.list {args: [[a]]}",
        "!!python/object/apply:os.system {args: [a]}",
        "!!python/object/new:builtins.iter {args: [[a]]}",
    )
    assert all("is not allowed in a cassette" in said for said in tags)


@pytest.mark.requirement("C11")
def test_aliases_in_bodies_are_limited_by_what_the_whole_comes_to() -> None:
    part = "x" * (1 << 20)
    many = ", ".join(["*p"] * (LARGEST >> 20))
    few = ", ".join(["*p"] * 32)

    (said,) = refusals(f"!!{TAG} {{args: [[&p {part}, {many}]]}}")
    assert "its aliases stand for too much" in said
    row = f"!!{TAG} {{args: [[&p {part}, {few}]]}}"
    (one,) = parse((FORM % (row, ANSWER)).encode(), "c.yaml").interactions
    assert len(one.request.body) == 33 << 20
    # Elsewhere, and for anything but text, the limit is lower.
    (said,) = refusals("a", more=f"more: [&p {part}, {few}]\n")
    assert "its aliases stand for too much" in said
    (said,) = refusals(f"!!{TAG} {{args: [[*b, *b]]}}", more=f"more: &b {row}\n")
    assert "its aliases stand for too much" in said
