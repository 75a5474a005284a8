"""The transport against real servers on the loopback: recorded, and played without them."""

import gzip
import socket
import ssl
from collections.abc import AsyncIterator
from itertools import pairwise

import anyio
import anyio.lowlevel
import httpx
import pytest
from cassette_exchanges import HEAD
from cassette_recorders import (
    END,
    EVENTS,
    OK,
    Step,
    catch,
    chunk,
    endpoint,
    json_answer,
    nothing,
    pieces_of,
    recorder,
    send,
)
from hypothesis import given
from hypothesis import strategies as st
from waits import waits_of

from aish.cassettes.format.interaction import (
    CassetteMissError,
    Chunk,
    Interaction,
    Request,
    Response,
)
from aish.cassettes.http import cassette_transport
from aish.cassettes.record.recorder import LEFT, CassetteRecorder
from aish.models.transport import body_of, read_start

pytestmark = pytest.mark.anyio
URL = "http://127.0.0.1:9/v1/chat/completions"


async def replayed(*kept: Interaction, url: str = URL, paced: bool = False) -> httpx.Response:
    return await send(
        cassette_transport(recorder("replay", *kept, paced=paced), "model", nothing), url
    )


def recorded(response: Response) -> Interaction:
    return Interaction(Request("POST", URL, body=b'{"a":1}'), response)


async def test_bytes_reach_the_caller_as_they_arrive_and_come_again_as_they_were_cut() -> None:
    more = anyio.Event()
    recording = recorder("record")
    script: list[Step] = [OK, chunk(b"one"), more, chunk(b"two"), chunk(b"three") + END]
    async with endpoint(script) as served:
        transport = cassette_transport(recording, "model", httpx.AsyncHTTPTransport)
        response = await send(transport, served.url)
        live = response.aiter_raw()
        assert await anext(live) == b"one"
        more.set()
        pieces = [b"one", *[piece async for piece in live]]
        await response.aclose()
        await transport.aclose()
    (kept,) = recording.finish(HEAD)

    again = await replayed(kept, url=served.url)

    assert (again.status_code, again.reason_phrase) == (200, "OK")
    assert again.headers["transfer-encoding"] == "chunked"
    assert await pieces_of(again) == pieces
    assert b"".join(pieces) == b"onetwothree"
    assert kept.response.broken is None
    times = [piece.seconds for piece in kept.response.chunks]
    assert all(before <= after for before, after in pairwise([0.0, *times]))


@given(st.lists(st.binary(min_size=1), max_size=20))
def test_however_a_body_is_cut_it_is_played_in_the_same_pieces(pieces: list[bytes]) -> None:
    class Scripted(httpx.AsyncBaseTransport, httpx.AsyncByteStream):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, stream=self)

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in pieces:
                await anyio.lowlevel.checkpoint()
                yield piece

    async def main() -> None:
        recording = recorder("record")
        live = await pieces_of(await send(cassette_transport(recording, "model", Scripted), URL))
        again = await pieces_of(await replayed(*recording.finish(HEAD)))
        assert live == again == pieces

    anyio.run(main)


@pytest.mark.parametrize("paced", [True, False])
def test_at_the_recorded_pace_each_piece_comes_at_its_time(*, paced: bool) -> None:
    chunks = (Chunk(1, 0.0), Chunk(1, 0.05), Chunk(1, 0.15))
    kept = recorded(Response(body=b"abc", chunks=chunks))

    async def play() -> list[bytes]:
        return await pieces_of(await replayed(kept, paced=paced))

    pieces, waits = waits_of(play)

    assert pieces == [b"a", b"b", b"c"]
    assert waits == (pytest.approx([0.05, 0.1]) if paced else [])


@pytest.mark.requirement("C2")
async def test_a_replay_opens_no_transport_and_the_body_can_be_read_as_the_models_room_does() -> (
    None
):
    response = await replayed(recorded(Response(404, "Not Here", (("x-a", "1"),), b"gone")))

    assert response.status_code == 404
    assert response.reason_phrase == "Not Here"
    assert response.headers.multi_items() == [("x-a", "1")]
    assert await read_start(response) == b"gone"
    assert isinstance(body_of(response), httpx.AsyncByteStream)
    await response.aclose()


async def test_a_whole_client_of_httpx_can_be_recorded_and_replayed() -> None:
    recording = recorder("record")
    async with (
        endpoint([json_answer(b'{"b": 2}')]) as served,
        httpx.AsyncClient(
            transport=cassette_transport(recording, "model", httpx.AsyncHTTPTransport)
        ) as client,
    ):
        live = (await client.post(served.url, json={"a": 1})).json()
    transport = cassette_transport(recorder("replay", *recording.finish(HEAD)), "model", nothing)
    async with httpx.AsyncClient(transport=transport) as client:
        again = (await client.post(served.url, json={"a": 1})).json()

    assert live == again == {"b": 2}


async def test_two_tapes_at_the_same_time_do_not_mix() -> None:
    tapes = [recorder("record"), recorder("record")]
    async with endpoint([OK, chunk(b"x"), END]) as served, anyio.create_task_group() as tasks:

        async def ask(one: CassetteRecorder, name: bytes) -> None:
            transport = cassette_transport(one, "model", httpx.AsyncHTTPTransport)
            for number in range(5):
                response = await send(transport, served.url, b'{"%s": %d}' % (name, number))
                await pieces_of(response)
                await response.aclose()
            await transport.aclose()

        for one, name in zip(tapes, (b"a", b"b"), strict=True):
            tasks.start_soon(ask, one, name)
        while len(served.heard) < 10:
            await anyio.lowlevel.checkpoint()

    bodies = [[kept.request.body[:4] for kept in one.finish(HEAD)] for one in tapes]
    assert bodies == [[b'{"a"'] * 5, [b'{"b"'] * 5]


async def test_interactions_stand_in_the_order_in_which_they_were_asked() -> None:
    first, recording = anyio.Event(), recorder("record")
    async with (
        endpoint([OK, first, chunk(b"late"), END], [OK, chunk(b"early"), END]) as served,
        anyio.create_task_group() as tasks,
    ):
        transport = cassette_transport(recording, "model", httpx.AsyncHTTPTransport)

        async def ask(number: int) -> None:
            response = await send(transport, served.url, b"%d" % number)
            await pieces_of(response)
            await response.aclose()

        tasks.start_soon(ask, 1)
        while not served.heard:
            await anyio.lowlevel.checkpoint()
        await ask(2)
        first.set()

    assert [one.response.body for one in recording.finish(HEAD)] == [b"late", b"early"]


async def test_who_leaves_before_the_end_does_so_again() -> None:
    recording = recorder("record")
    async with endpoint([OK, chunk(b"one"), anyio.Event()]) as served:
        transport = cassette_transport(recording, "model", httpx.AsyncHTTPTransport)
        response = await send(transport, served.url)
        assert await anext(response.aiter_raw()) == b"one"
        await response.aclose()
        await transport.aclose()
    (kept,) = recording.finish(HEAD)
    assert kept.response.broken == LEFT

    again = (await replayed(kept, url=served.url)).aiter_raw()
    assert await anext(again) == b"one"
    with anyio.move_on_after(0.05) as scope:
        await anext(again)
    assert scope.cancelled_caught


async def test_who_leaves_before_the_head_does_so_again() -> None:
    recording = recorder("record")
    async with endpoint([anyio.Event()]) as served:
        transport = cassette_transport(recording, "model", httpx.AsyncHTTPTransport)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, transport, served.url)
            await served.asked.wait()
            tasks.cancel_scope.cancel()
        await transport.aclose()
    (kept,) = recording.finish(HEAD)

    assert kept.response.is_headless
    with anyio.move_on_after(0.05) as scope:
        await replayed(kept, url=served.url)
    assert scope.cancelled_caught


async def test_a_model_that_said_everything_has_an_end_whoever_hung_up() -> None:
    kept = recorded(Response(body=b"data: {}\n\ndata: [DONE]\n\n", broken=LEFT))

    assert await pieces_of(await replayed(kept)) == [b"data: {}\n\ndata: [DONE]\n\n"]


@pytest.mark.parametrize(
    "script",
    [
        [],
        [b"not http\r\n\r\n"],
        [OK, chunk(b"one")],
        [OK, chunk(b"one"), b"zz\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nfour"],
    ],
    ids=["no-head", "no-http", "cut-short", "no-chunk", "short-body"],
)
async def test_a_connection_that_broke_breaks_the_same_way(script: list[Step]) -> None:
    recording = recorder("record")
    async with endpoint(script) as served:
        transport = cassette_transport(recording, "model", httpx.AsyncHTTPTransport)
        pieces, failure = await catch(transport, served.url)
        await transport.aclose()

    transport = cassette_transport(recorder("replay", *recording.finish(HEAD)), "model", nothing)
    again, same = await catch(transport, served.url)

    assert (type(same), str(same)) == (type(failure), str(failure))
    assert again == pieces


async def test_an_endpoint_that_is_not_there_is_not_there_again() -> None:
    recording = recorder("record")
    with socket.socket() as held:  # so that nobody else listens at its port
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1/chat/completions"
        _, failure = await catch(
            cassette_transport(recording, "model", httpx.AsyncHTTPTransport), url
        )
    (kept,) = recording.finish(HEAD)

    _, same = await catch(cassette_transport(recorder("replay", kept), "model", nothing), url)

    assert type(failure) is type(same) is httpx.ConnectError
    assert str(same) == str(failure)
    assert (kept.response.status, kept.response.broken) == (599, f"ConnectError: {failure}")


async def test_a_failure_of_another_kind_is_no_part_of_a_recording() -> None:
    class Broken(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise ssl.SSLError("a bug")

    recording = recorder("record")
    with pytest.raises(ssl.SSLError):
        await send(cassette_transport(recording, "model", Broken), URL)

    assert recording.finish(HEAD)[0].response.broken == LEFT


@pytest.mark.parametrize("words", ["ReadTimeout: slow", "Nonsense: x", "x", "SystemExit: 0"])
async def test_whatever_a_file_says_of_a_failure_is_a_failure_of_a_connection(words: str) -> None:
    with pytest.raises(httpx.TransportError):
        await pieces_of(await replayed(recorded(Response(broken=words))))


async def test_what_was_not_recorded_is_a_miss_that_nobody_can_swallow() -> None:
    missing = recorder("replay", recorded(Response()))

    with pytest.raises(CassetteMissError) as caught:
        await send(cassette_transport(missing, "model", nothing), URL, b'{"a": 2}')

    assert missing.missed == [caught.value]
    assert "a:\n  - 1\n  + 2" in caught.value.message


async def test_the_address_of_an_embedded_model_is_not_recorded() -> None:
    recording = recorder("record")
    async with endpoint([json_answer(b"{}")]) as served:
        transport = cassette_transport(
            recording, "model", httpx.AsyncHTTPTransport, origin="http://local.embedded"
        )
        await pieces_of(await send(transport, served.url))
        await transport.aclose()
    (kept,) = recording.finish(HEAD)

    assert kept.request.uri == "http://local.embedded/v1/chat/completions"
    assert str(served.port) not in repr(kept.request)
    assert (await replayed(kept, url="http://local.embedded/v1/chat/completions")).is_success


async def test_a_password_in_an_address_is_not_recorded() -> None:
    recording = recorder("record")
    async with endpoint([json_answer(b"{}")]) as served:
        url = served.url.replace("://", "://ann:hidden-word@")
        transport = cassette_transport(recording, "model", httpx.AsyncHTTPTransport)
        await pieces_of(await send(transport, url))
        await transport.aclose()

    assert recording.finish(HEAD)[0].request.uri == served.url


async def test_a_streamed_request_is_read_once_and_sent_whole() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b'{"a"', b": 1}"):
            await anyio.lowlevel.checkpoint()
            yield part

    recording = recorder("record")
    async with endpoint([json_answer(b"{}")]) as served:
        transport = cassette_transport(recording, "model", httpx.AsyncHTTPTransport)
        length = {"content-length": "8"}
        request = httpx.Request("POST", served.url, content=parts(), headers=length)
        await pieces_of(await transport.handle_async_request(request))
        await transport.aclose()

    assert served.heard[0].endswith(b'{"a": 1}')
    assert recording.finish(HEAD)[0].request.body == b'{"a": 1}'


async def test_a_binary_and_a_compressed_body_are_kept_byte_by_byte() -> None:
    packed = gzip.compress(b"x" * 99, mtime=0)
    recording = recorder("record")
    head = OK.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    async with endpoint([head, chunk(packed[:5]), chunk(packed[5:]), END]) as served:
        transport = cassette_transport(recording, "model", httpx.AsyncHTTPTransport)
        assert b"".join(await pieces_of(await send(transport, served.url))) == packed
        await transport.aclose()
    (kept,) = recording.finish(HEAD)

    again = await replayed(kept, url=served.url)
    assert again.headers["content-encoding"] == "gzip"
    assert b"".join(await pieces_of(again)) == packed


async def test_what_passes_by_the_tape_is_not_kept() -> None:
    live = recorder("live")
    async with endpoint([EVENTS, chunk(b"data: 1\n\n"), END]) as served:
        transport = cassette_transport(live, "model", httpx.AsyncHTTPTransport)
        assert await pieces_of(await send(transport, served.url)) == [b"data: 1\n\n"]
        await transport.aclose()

    assert live.finish(HEAD) == ()


async def test_what_is_extended_is_played_where_it_is_held_and_goes_live_where_not() -> None:
    held = recorded(Response(body=b"held"))
    extended = recorder("extend", held)
    async with endpoint([json_answer(b"live")]) as served:
        real = httpx.AsyncHTTPTransport
        transport = cassette_transport(extended, "model", real)
        assert await pieces_of(await send(transport, URL)) == [b"held"]
        assert await pieces_of(await send(transport, served.url)) == [b"live"]
        await transport.aclose()

    assert len(served.heard) == 1
    assert [one.response.body for one in extended.finish(HEAD)] == [b"held", b"live"]
