"""The tape of a run: what is kept, in which order, and what is refused."""

import base64
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import anyio
import anyio.lowlevel
import httpx
import pytest
from cassette_exchanges import CHAT, HEAD, answer, chat, delta, exchange, message
from cassette_recorders import nothing, pieces_of, recorder, send
from hypothesis import given, settings
from hypothesis import strategies as st
from work import work_of

from aish.cassettes.format.file import load, partial
from aish.cassettes.format.interaction import (
    CassetteFileError,
    CassetteMissError,
    Interaction,
    Request,
    Response,
)
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.http import cassette_transport
from aish.cassettes.record.file_writer import Recording
from aish.cassettes.record.recorder import LEFT, CassetteRecorder, Kind, Way
from aish.system.secrets.secrets import Secrets

VALUE = 'pä"ss/word+42'
TAG = "<secret:KEY>"


def secrets() -> Secrets:
    made = Secrets()
    made.add("KEY", VALUE)
    return made


def keep(one: CassetteRecorder, request: Request, *pieces: bytes) -> None:
    take = one.begin("model", request)
    assert take is not None
    for piece in pieces:
        take.chunk(piece)
    take.end()


def forms() -> list[str]:
    """Every encoding of C8."""
    coded = [base64.b64encode(b"x" * shift + VALUE.encode() + b"yz").decode() for shift in range(3)]
    return [
        VALUE,
        json.dumps(VALUE)[1:-1],
        json.dumps(VALUE, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(VALUE))[3:-3],
        quote(VALUE, safe=""),
        *coded,
        *[text.translate(str.maketrans("+/", "-_")) for text in coded],
    ]


def traces() -> list[bytes]:
    """What of the encodings does not depend on what stands beside the secret."""
    return [form[3:-5].encode() for form in forms()] + [b"word", b"cGF"]


@pytest.mark.parametrize("form", forms())
@given(cuts=st.lists(st.integers(0, 120), max_size=6), streamed=st.booleans())
@settings(max_examples=15, deadline=None)
def test_no_secret_is_written_however_it_is_spelled_and_cut(
    form: str, cuts: list[int], *, streamed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cassette")
    text = f"before {form} after"
    if streamed:
        parts = [text[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True)]
        raw = b"".join(delta(part) for part in parts)
    else:
        raw = text.encode()
    places = [0, *sorted(cuts), len(raw)]
    pieces = [raw[a:b] for a, b in pairwise(places)]
    request = Request("POST", f"{CHAT}?k={form}", (("x-note", form),), text.encode())

    with Recording(folder / "c.yaml", HEAD) as recording:
        kept = recorder("record", recording=recording, secrets=secrets())
        keep(kept, request, *pieces)
        before = partial(folder / "c.yaml").read_bytes()
        kept.finish(HEAD)

    written = before + (folder / "c.yaml").read_bytes()
    assert TAG.encode() in written
    assert not [trace for trace in traces() if trace in written]
    # What a reader hears once the pieces are put together holds nothing either.
    (one,) = load(folder / "c.yaml").interactions
    said = "".join(
        json.loads(f'"{word}"')
        for word in re.findall(r'"content":"(.*?)"}', one.response.body.decode())
    )
    assert not [trace for trace in traces() if trace in said.encode()]


def test_a_live_secret_matches_the_tag_that_was_written_for_it() -> None:
    recording = recorder("record", secrets=secrets())
    keep(recording, chat(f"The key is {VALUE}", uri=f"{CHAT}?k={quote(VALUE, safe='')}"), b"ok")
    replay = recorder("replay", *recording.finish(HEAD), secrets=secrets())
    without = recorder("replay", *recording.finish(HEAD))

    asked = chat(f"The key is {VALUE}", uri=f"{CHAT}?k={quote(VALUE, safe='')}")
    tagged = chat(f"The key is {TAG}", uri=f"{CHAT}?k={TAG}")

    assert replay.recorded("model", asked) is not None
    assert without.recorded("model", tagged) is not None


def test_a_secret_with_a_folders_name_in_it_is_still_a_secret() -> None:
    held = Secrets()
    held.add("KEY", "/home/ann/very-hidden")
    recording = recorder("record", secrets=held, places=PathPlaceholders(home="/home/ann"))
    keep(recording, chat("see /home/ann/very-hidden and /home/ann/x"), b"ok")

    (kept,) = recording.finish(HEAD)

    assert b"see <secret:KEY> and <home>/x" in kept.request.body


def test_what_looks_like_a_secret_is_written_nowhere_and_its_place_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    found = "sk-" + "a1B2c3D4" * 4
    with Recording(path, HEAD) as recording:
        kept = recorder("record", recording=recording)
        keep(kept, chat("one"), b"fine")
        keep(kept, chat("two"), f"use\n{found}".encode())
        with pytest.raises(CassetteFileError) as caught:
            kept.finish(HEAD)

    assert "interaction 2, response body, line 2, column 1: an API key" in caught.value.message
    assert found not in caught.value.message
    assert not path.exists()
    assert b"fine" in partial(path).read_bytes()
    assert found.encode() not in partial(path).read_bytes()


def test_what_only_looks_like_a_secret_can_be_allowed(tmp_path: Path) -> None:
    with Recording(tmp_path / "c.yaml", HEAD) as recording:
        kept = recorder("record", recording=recording, allow=("sk-example*",))
        keep(kept, chat("one"), b"sk-example-0000000000000000")
        kept.finish(HEAD)

    assert len(load(tmp_path / "c.yaml").interactions) == 1


def test_what_is_still_open_at_the_end_was_left(tmp_path: Path) -> None:
    with Recording(tmp_path / "c.yaml", HEAD) as recording:
        kept = recorder("record", recording=recording)
        take = kept.begin("model", chat("one"))
        assert take is not None
        take.chunk(b"half")
        done = kept.finish(HEAD)
        take.chunk(b"late")
        take.end()

    assert done[0].response.broken == LEFT
    assert load(tmp_path / "c.yaml").interactions[0].response.body == b"half"


def test_the_order_is_that_of_the_questions_and_the_partial_one_that_of_the_answers(
    tmp_path: Path,
) -> None:
    with Recording(tmp_path / "c.yaml", HEAD) as recording:
        kept = recorder("record", recording=recording)
        first, second = kept.begin("model", chat("1")), kept.begin("mcp", message(1))
        assert first is not None
        assert second is not None
        second.end()
        first.end()
        early = partial(tmp_path / "c.yaml").read_text()
        kept.finish(HEAD)

    late = (tmp_path / "c.yaml").read_text()
    assert early.index("mcp+stdio") < early.index("chat/completions")
    assert late.index("mcp+stdio") > late.index("chat/completions")


def test_what_is_left_over_is_counted_for_what_is_played_only() -> None:
    held = [
        exchange(),
        Interaction(message(1), answer("")),
        Interaction(Request("POST", "exec://s"), answer("")),
    ]
    cases: dict[str, dict[Kind, Way]] = {
        "all": {},
        "live tools": {"mcp": "live", "exec": "live"},
        "live model": {"model": "live"},
    }
    numbers = {
        name: [number for number, _ in recorder("replay", *held, ways=ways).leftovers()]
        for name, ways in cases.items()
    }

    assert numbers == {"all": [1, 2, 3], "live tools": [1], "live model": [2, 3]}
    assert recorder("replay").offline
    assert not recorder("replay", ways={"exec": "live"}).offline


def test_only_a_tools_miss_can_be_forgiven() -> None:
    lenient = recorder("replay", lenient=True)

    with pytest.raises(CassetteMissError):
        lenient.recorded("exec", Request("POST", "exec://s"))
    assert lenient.missed == []
    with pytest.raises(CassetteMissError):
        lenient.recorded("model", chat("a"))
    assert len(lenient.missed) == 1


@pytest.mark.parametrize("root", ["/srv/a b", '/srv/a"b', "/srv/a\\b", "/srv/ä🙂", "/srv/plain"])
def test_a_folder_with_any_name_is_the_same_folder_elsewhere(root: str) -> None:
    arguments = json.dumps({"path": f"{root}/x.txt"})
    spellings = [True, False]
    here, there = PathPlaceholders(root=root), PathPlaceholders(root="/other/place")
    for ascii_only in spellings:
        call = {"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}
        body = {"messages": [{"content": f"in {root}, {root}/x"}, call]}
        asked = Request("POST", CHAT, body=json.dumps(body, ensure_ascii=ascii_only).encode())
        said = {"delta": {"content": f"see {root}/x", "arguments": arguments}}
        recording = recorder("record", places=here)
        keep(recording, asked, json.dumps(said, ensure_ascii=ascii_only).encode())

        (kept,) = recording.finish(HEAD)
        assert b"srv" not in kept.request.body + kept.response.body
        moved = json.loads(asked.body)
        moved["messages"][0]["content"] = "in /other/place, /other/place/x"
        moved["messages"][1]["tool_calls"][0]["function"]["arguments"] = json.dumps(
            {"path": "/other/place/x.txt"}
        )
        again = recorder("replay", kept, places=there).recorded(
            "model", Request("POST", CHAT, body=json.dumps(moved).encode())
        )
        same = recorder("replay", kept, places=here).recorded("model", asked)

        assert again is not None
        assert same is not None
        played = json.loads(same.body)["delta"]
        assert played["content"] == said["delta"]["content"]
        assert json.loads(played["arguments"]) == json.loads(arguments)
        assert json.loads(json.loads(again.body)["delta"]["arguments"]) == {
            "path": "/other/place/x.txt"
        }


def test_a_folder_that_a_model_spells_in_pieces_is_found() -> None:
    recording = recorder("record", places=PathPlaceholders(root="/srv/work"))
    keep(recording, chat("where"), delta("in /sr"), delta("v/wo"), delta("rk/x.txt"))
    (kept,) = recording.finish(HEAD)

    again = recorder("replay", kept, places=PathPlaceholders(root="/elsewhere")).recorded(
        "model", chat("where")
    )

    assert again is not None
    pieces = [json.loads(piece[6:]) for piece, _ in again.pieces()]
    said = [piece["choices"][0]["delta"]["content"] for piece in pieces]
    assert said == ["in /elsewhere", "", "/x.txt"]


@pytest.mark.requirement("C11")
def test_a_long_conversation_is_replayed_within_its_time() -> None:
    """200 turns, each with all that was said before."""
    line = "a line of what a tool gave back, as they are\n"
    turns: list[dict[str, object]] = []
    requests: list[Request] = []
    for number in range(200):
        call = {"id": f"c{number}", "function": {"arguments": '{"path": "/srv/work/a"}'}}
        turns += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": line * 18},
        ]
        body = json.dumps({"model": "m", "messages": turns}).encode()
        requests.append(Request("POST", CHAT, body=body))
    assert len(requests[-1].body) > 180_000
    places = PathPlaceholders(root="/srv/work", home="/home/ann")
    events = b"".join(delta(f"word {number}") for number in range(20))
    held = [Interaction(request, answer(events)) for request in requests]

    async def main() -> None:
        player = cassette_transport(
            recorder("replay", *held, places=places, secrets=secrets()), "model", nothing
        )
        for request in requests:
            await pieces_of(await send(player, CHAT, request.body))

    work = work_of(lambda: anyio.run(main))
    assert work.steps < 5_000 * len(requests)
    assert work.text < 15 * sum(len(request.body) for request in requests)


def test_no_yaml_is_imported_before_the_first_answer_is_complete(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from aish.cassettes.http import cassette_transport\n"
        "from aish.cassettes.record.file_writer import Recording\n"
        "from aish.cassettes.format.interaction import RecordingMetadata\n"
        "with Recording(pathlib.Path(sys.argv[1]), RecordingMetadata(False, 'r', 'c')):\n"
        "    print('yaml' in sys.modules, 'vcr' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "c.yaml"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["False", "False"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
async def test_what_has_ended_is_beside_the_cassette_before_anything_else_is_asked(
    tmp_path: Path,
) -> None:
    with Recording(tmp_path / "c.yaml", HEAD) as recording:
        kept = recorder("record", recording=recording)
        keep(kept, chat("first"), b"one")
        before = partial(tmp_path / "c.yaml").read_text()
        await anyio.lowlevel.checkpoint()
        kept.begin("model", chat("second"))
        after = partial(tmp_path / "c.yaml").read_text()

    assert not before
    assert "complete: false" in after
    assert "first" in after
    assert "second" not in after


def test_a_recording_that_is_killed_leaves_what_it_had_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    code = (
        "import os, pathlib, signal, sys\n"
        "from cassette_exchanges import HEAD, exchange\n"
        "from aish.cassettes.record.file_writer import Recording\n"
        "Recording(pathlib.Path(sys.argv[1]), HEAD).append(exchange())\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    support = Path(__file__).parents[2] / "support"
    environment = {**os.environ, "PYTHONPATH": str(support)}
    done = subprocess.run([sys.executable, "-c", code, path], env=environment, check=False)
    assert done.returncode == -9

    assert not path.exists()
    assert partial(path).stat().st_size > 0
    with pytest.raises(CassetteFileError) as caught:
        load(path)
    assert caught.value.hint is not None
    with Recording(path, HEAD) as recording:
        recording.finish(HEAD, [exchange()])
    assert load(path).interactions == (exchange(),)


@pytest.mark.parametrize("place", ["/proc/c.yaml", "/dev/null/c.yaml", "/sys/kernel/c.yaml"])
def test_a_place_where_nobody_can_write_is_said(place: str) -> None:
    with pytest.raises(CassetteFileError, match="cannot be written") as caught:
        Recording(Path(place), HEAD)

    assert caught.value.exit_code == 2


def test_a_broken_connection_can_carry_a_secret_in_its_words() -> None:
    class Leaking(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError(f"no route to {VALUE}")

    async def main() -> tuple[Interaction, ...]:
        recording = recorder("record", secrets=secrets())
        with pytest.raises(httpx.ConnectError):
            await send(cassette_transport(recording, "model", Leaking), CHAT)
        return recording.finish(HEAD)

    (kept,) = anyio.run(main)
    assert kept.response.broken == f"ConnectError: no route to {TAG}"


def test_a_response_without_chunks_is_one_piece() -> None:
    assert Response(body=b"ab").pieces() == ((b"ab", 0.0),)
