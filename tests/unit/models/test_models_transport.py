"""Where bytes go and where they do not (L1, L10, X5, X6), against a real endpoint."""

import asyncio
import gzip
import itertools
import socket
import ssl
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx
import pytest
from model_endpoint import (
    CUT,
    RESET,
    Break,
    Gate,
    ModelEndpoint,
    Part,
    Pause,
    Reply,
    delta,
    json_reply,
    sse,
    stream_reply,
    text_reply,
    usage,
)
from model_turns import PLACE, a_model, a_request, an_entry, text_of, turn
from tls_files import make_tls_files
from waits import put_forward, waits_of

from aish.config.model import ModelEntry, ModelTimeout, RetryPolicy
from aish.core.errors import AishError, StepFailedError, UnavailableError, UsageError
from aish.core.messages import Delta, Finish, Served, TextPiece, Usage
from aish.models import transport
from aish.models.client import open_model
from aish.models.retry import AttemptError
from aish.models.transport import open_client
from aish.net.http import tls_context
from aish.system.secrets.secrets import Secrets
from aish.wire.chat.decode import ChatDecoder

pytestmark = pytest.mark.anyio

CERTIFICATE = Path(__file__).parent / "loopback-test-only.pem"
PING = b": still here\n\n"


def once(base_url: str, **changes: object) -> ModelEntry:
    """An entry that tries once."""
    return an_entry(base_url, retry=RetryPolicy(attempts=1), **changes)


async def failing(entry: ModelEntry, key: str | None = None) -> AishError:
    """What a turn fails with."""
    async with a_model(entry, key=key) as model:
        with pytest.raises(AishError) as caught:
            await turn(model)
    return caught.value


async def test_a_turn_is_one_streaming_post_to_chat_completions() -> None:
    with ModelEndpoint([text_reply("hello there", pieces=["hello ", "there"])]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            said = await turn(model)
    request = endpoint.requests[0]
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.json["stream"] is True
    assert request.json["model"] == "m"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"
    assert text_of(said) == "hello there"
    served = Served("m", None, "chatcmpl-1")
    assert said[-1] == Finish("stop", Usage(7, 3), raw="stop", model="cloud", served=served)


async def test_turns_share_a_connection() -> None:
    with ModelEndpoint([text_reply("one"), text_reply("two"), text_reply("three")]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            for word in ("one", "two", "three"):
                assert text_of(await turn(model)) == word
        assert endpoint.connections == 1


async def test_pieces_are_handed_on_as_they_arrive() -> None:
    gate = Gate()
    first = sse([delta(content="first")], done=False)
    rest = sse([delta(content=" second"), delta("stop")])
    with ModelEndpoint([stream_reply(first, gate, rest)]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            batches = model.stream(a_request())
            assert await anext(batches) == [TextPiece("first")]
            gate.open()
            assert (await anext(batches))[0] == TextPiece(" second")
            assert [type(d) for batch in [b async for b in batches] for d in batch] == [Finish]


async def test_seventy_streams_have_a_connection_each_which_the_next_ones_use_again() -> None:
    opened: list[ModelEntry] = []

    def counting(entry: ModelEntry) -> httpx.AsyncBaseTransport:
        opened.append(entry)
        return open_client(entry)

    waiting = iter([Gate(opens_at=70)] * 70 + [Gate(opens_at=50)] * 50)
    with ModelEndpoint(lambda _: text_reply("hi").but(before_head=next(waiting))) as endpoint:
        entry = an_entry(endpoint.base_url)
        async with open_model(entry, None, secrets=Secrets(), make_client=counting) as model:
            for many in (70, 50):
                async with anyio.create_task_group() as tasks:
                    for _ in range(many):
                        tasks.start_soon(turn, model)
    assert len(opened) == 70
    assert endpoint.connections == 70


@pytest.mark.parametrize(
    ("suffix", "path"),
    [
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("", "/chat/completions"),
        ("/openai/d?api-version=7", "/openai/d/chat/completions?api-version=7"),
    ],
)
async def test_the_path_is_added_to_the_base_url(suffix: str, path: str) -> None:
    with ModelEndpoint([text_reply("hi")]) as endpoint:
        async with a_model(an_entry(endpoint.origin + suffix)) as model:
            await turn(model)
    assert endpoint.requests[0].path == path


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_error_and_nothing_goes_to_its_target(status: int) -> None:
    with ModelEndpoint([text_reply("stolen")]) as elsewhere:
        target = {"location": f"{elsewhere.base_url}/chat/completions"}
        with ModelEndpoint([json_reply(status, {}, target)]) as endpoint:
            error = await failing(once(endpoint.base_url), key="sk-planted-key")
    assert isinstance(error, StepFailedError)
    assert error.message.startswith(f"HTTP {status}: ")
    assert "redirects are not followed" in (error.hint or "")
    assert not elsewhere.requests


@pytest.mark.requirement("L1")
async def test_proxies_and_credentials_of_the_environment_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login planted password planted\n", encoding="ascii")
    netrc.chmod(0o600)
    with (
        ModelEndpoint([text_reply("stolen")]) as proxy,
        ModelEndpoint([text_reply("hi")]) as endpoint,
    ):
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.origin)
        monkeypatch.setenv("NETRC", str(netrc))
        monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-key")
        async with a_model(an_entry(endpoint.base_url)) as model:
            await turn(model)
    assert not proxy.requests
    assert "authorization" not in endpoint.requests[0].headers


async def test_the_proxy_that_the_entry_names_is_used() -> None:
    with ModelEndpoint([text_reply("by proxy")]) as proxy:
        async with a_model(an_entry("http://10.9.8.7/v1", proxy=proxy.origin)) as model:
            assert text_of(await turn(model)) == "by proxy"
    assert proxy.requests[0].path == "http://10.9.8.7/v1/chat/completions"


async def test_cookies_of_an_endpoint_are_not_sent_back() -> None:
    reply = text_reply("hi")
    with_cookie = reply.but(headers={**reply.headers, "set-cookie": "session=planted"})
    with ModelEndpoint([with_cookie, text_reply("hi")]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            await turn(model)
            await turn(model)
    assert "cookie" not in endpoint.requests[1].headers


async def test_a_certificate_nobody_vouches_for_is_refused_unless_the_file_says_otherwise() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with ModelEndpoint([text_reply("hi")], tls=context) as endpoint:
        error = await failing(once(endpoint.base_url))
        assert isinstance(error, UnavailableError)
        assert "certificate" in error.message
        assert "verify_tls" in (error.hint or "")
        assert not endpoint.requests
        async with a_model(once(endpoint.base_url, verify_tls=False)) as model:
            assert text_of(await turn(model)) == "hi"


async def test_an_entry_names_the_authorities_that_it_trusts(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    tls, other = make_tls_files(tmp_path), make_tls_files(tmp_path / "other")
    with ModelEndpoint([text_reply("hi")], tls=tls.serving) as endpoint:
        error = await failing(once(endpoint.base_url, verify_tls=other.authority))
        assert "is not trusted" in error.message
        error = await failing(once(endpoint.base_url, verify_tls=tmp_path / "none.pem"))
        assert "cannot be read: No such file" in error.message
        assert not endpoint.requests
        async with a_model(once(endpoint.base_url, verify_tls=tls.authority)) as model:
            assert text_of(await turn(model)) == "hi"


async def test_certificates_are_not_loaded_for_plain_http() -> None:
    tls_context.cache_clear()
    with ModelEndpoint([text_reply("hi")]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            await turn(model)
    assert tls_context.cache_info().misses == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with ModelEndpoint([text_reply("hi")] * 2, tls=context) as endpoint:
        for _ in range(2):
            async with a_model(once(endpoint.base_url, verify_tls=False)) as model:
                await turn(model)
    assert tls_context.cache_info().misses == 1


async def test_a_compressed_answer_is_refused_unread() -> None:
    reply = stream_reply(b"\x1f\x8b" + b"\0" * 200_000, headers={"content-encoding": "br"})
    with ModelEndpoint([reply]) as endpoint:
        error = await failing(once(endpoint.base_url))
    assert isinstance(error, StepFailedError)
    assert "compressed (br)" in error.message


@pytest.mark.parametrize("coding", ["gzip", "X-Gzip", "deflate", "raw"])
async def test_an_answer_that_is_compressed_unasked_is_read_as_it_arrives(coding: str) -> None:
    window = {"deflate": zlib.MAX_WBITS, "raw": -zlib.MAX_WBITS}.get(coding, zlib.MAX_WBITS | 16)
    packer = zlib.compressobj(wbits=window)
    first = packer.compress(sse([delta(content="Hel")], done=False))
    first += packer.flush(zlib.Z_SYNC_FLUSH)
    rest = packer.compress(sse([delta(content="lo"), delta("stop")])) + packer.flush()
    gate = Gate()
    name = "deflate" if coding == "raw" else coding
    reply = stream_reply(first, gate, rest[:3], rest[3:], headers={"content-encoding": name})
    with ModelEndpoint([reply, text_reply("again")]) as endpoint:
        async with a_model(once(endpoint.base_url)) as model:
            said: list[Delta] = []
            async for batch in model.stream(a_request()):
                said += batch
                gate.open()
            again = await turn(model)
    assert text_of(said) == "Hello"
    assert text_of(again) == "again"
    assert endpoint.connections == 1


@pytest.mark.requirement("Q67")
async def test_the_body_of_an_error_that_is_compressed_is_shown() -> None:
    reply = Reply(
        parts=(gzip.compress(b"no such model"),), status=400, headers={"content-encoding": "gzip"}
    )
    with ModelEndpoint([reply]) as endpoint:
        error = await failing(once(endpoint.base_url))
    assert error.message == "HTTP 400: no such model"


async def test_an_answer_that_is_compressed_beyond_the_cap_or_cut_is_an_error() -> None:
    whole = gzip.compress(sse([delta(content="x" * 500)]))
    huge = gzip.compress((b": " + b"x" * 1021 + b"\n") * (64 * 1024 + 1))
    headers = {"content-encoding": "gzip"}
    replies = [stream_reply(whole[:20], headers=headers), stream_reply(huge, headers=headers)]
    with ModelEndpoint(replies) as endpoint:
        cut = await failing(once(endpoint.base_url))
        too_large = await failing(once(endpoint.base_url))
    assert cut.message == "the connection broke: the answer is not valid gzip, or incomplete"
    assert "64 MiB" in too_large.message


@pytest.mark.requirement("X6")
async def test_all_bytes_of_a_body_count_however_fast_they_are_taken() -> None:
    body = transport.BodyBuffer()
    for _ in range(64):
        body.put(b"x" * 1024 * 1024)
        await body.take()
    with pytest.raises(AttemptError, match="64 MiB"):
        body.put(b"x")


async def test_the_body_of_a_compressed_error_is_not_shown() -> None:
    reply = json_reply(500, {}, {"content-encoding": "br"})
    with ModelEndpoint([reply]) as endpoint:
        error = await failing(once(endpoint.base_url))
    assert error.message == "HTTP 500: (compressed body)"


async def test_an_answer_that_never_ends_is_cut_at_64_mib() -> None:
    filler = b": " + b"x" * (512 * 1024) + b"\n\n"
    with ModelEndpoint([stream_reply().but(parts=itertools.repeat(filler))]) as endpoint:
        error = await failing(once(endpoint.base_url))
        await endpoint.requests[0].abort_seen()
    assert isinstance(error, StepFailedError)
    assert "64 MiB" in error.message


async def test_an_error_body_that_never_ends_is_cut() -> None:
    endless = Reply(parts=itertools.repeat(b"no " * 1000), status=400)
    with ModelEndpoint([endless]) as endpoint:
        error = await failing(once(endpoint.base_url))
        await endpoint.requests[0].abort_seen()
    assert len(error.message) <= len("HTTP 400: ") + 400


def hurried(**seconds: float) -> ModelTimeout:
    """Generous but for what is named."""
    return ModelTimeout(**({"connect": 60.0, "first_token": 60.0, "idle": 60.0} | seconds))


def dribble(part: bytes) -> Iterator[Part]:
    """One part again and again, for ever."""
    while True:
        yield part
        yield Pause(0.02)


def test_a_silent_endpoint_is_given_up_after_first_token() -> None:
    async def silent(endpoint: ModelEndpoint) -> AishError:
        error = await failing(once(endpoint.base_url, timeout=hurried(first_token=0.15)))
        await anyio.to_thread.run_sync(endpoint.wait_requests, 1)
        await endpoint.requests[0].abort_seen()
        return error

    # By a real clock the time could be over before the request is sent.
    with ModelEndpoint([text_reply("late").but(before_head=Gate())]) as endpoint:
        error, _ = waits_of(lambda: silent(endpoint))
    assert isinstance(error, UnavailableError)
    assert error.message == "no answer within 0.15 s"
    assert error.hint == "`models.cloud.timeout.first_token` sets this limit"


# Frames that carry nothing: no text, call, usage or reason (issue 27, B11).
NOTHING = {
    "a comment": PING,
    "a comment as data": b"data: : PROCESSING\n\n",
    "a ping as data": b"data: ping\n\n",
    "null": b"data: null\n\n",
    "a role": sse([delta(role="assistant", content="")], done=False),
    "empty text": sse([delta(content="")], done=False),
    "no text": sse([delta(content=None)], done=False),
    "an empty delta": sse([delta()], done=False),
    "empty fields": sse([delta(content="", tool_calls=[], reasoning="", refusal=None)], done=False),
    "an empty part": sse([delta(content=[{"type": "text", "text": ""}])], done=False),
    "an empty call": sse(
        [delta(tool_calls=[{"index": 0, "type": "function", "function": {"arguments": ""}}])],
        done=False,
    ),
    "no choice": sse([{"id": "c", "choices": [], "usage": None}], done=False),
    "no usage": sse([{"id": "c", "choices": [], "usage": {}}], done=False),
}


@pytest.mark.parametrize("frame", NOTHING.values(), ids=NOTHING)
async def test_frames_that_carry_nothing_do_not_pass_for_a_first_token(frame: bytes) -> None:
    with ModelEndpoint([stream_reply().but(parts=dribble(frame))]) as endpoint:
        error = await failing(once(endpoint.base_url, timeout=hurried(first_token=0.2)))
    assert error.message == "no answer within 0.2 s"


@pytest.mark.parametrize("frame", NOTHING.values(), ids=NOTHING)
async def test_frames_that_carry_nothing_do_not_keep_a_dead_stream_alive(frame: bytes) -> None:
    parts = itertools.chain([sse([delta(content="hal")], done=False)], dribble(frame))
    with ModelEndpoint([stream_reply().but(parts=parts)]) as endpoint:
        error = await failing(once(endpoint.base_url, timeout=hurried(idle=0.2)))
        await endpoint.requests[0].abort_seen()
    assert isinstance(error, UnavailableError)
    assert error.message == "the answer stopped: nothing new for 0.2 s"


async def test_the_same_counts_again_do_not_keep_a_dead_stream_alive() -> None:
    counts = sse([{"choices": [], "usage": {"prompt_tokens": 3}}], done=False)
    parts = itertools.chain([sse([delta(content="hal")], done=False)], dribble(counts))
    with ModelEndpoint([stream_reply().but(parts=parts)]) as endpoint:
        error = await failing(once(endpoint.base_url, timeout=hurried(idle=0.2)))
    assert error.message == "the answer stopped: nothing new for 0.2 s"


@pytest.mark.parametrize(
    ("frames", "count"),
    [
        (b"".join(NOTHING.values()), 0),
        (sse([delta(content="a"), delta(content=" ")], done=False), 2),
        (sse([delta(reasoning="a"), delta(refusal="no")], done=False), 2),
        (sse([delta(content=[{"type": "text", "text": "a"}])], done=False), 1),
        (sse([delta(tool_calls=[{"index": 0, "function": {"name": "a"}}])], done=False), 1),
        (sse([delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}])], done=False), 1),
        (sse([delta("stop"), usage()], done=False), 2),
    ],
    ids=["nothing", "text", "thinking and refusal", "a part", "a name", "arguments", "the end"],
)
def test_only_frames_that_carry_something_count_as_pieces(frames: bytes, count: int) -> None:
    decoder = ChatDecoder(place=PLACE)
    decoder.feed(frames)
    assert decoder.progress == count


def test_a_slow_but_steady_answer_is_not_idle() -> None:
    words = [sse([delta(content=f"{n} ")], done=False) for n in range(12)]
    gates = [Gate() for _ in words]
    parts = [part for both in zip(words, gates, strict=True) for part in both]
    patience = hurried(idle=90, turn=9000)

    async def read(base_url: str) -> list[Delta]:
        said: list[Delta] = []
        async with a_model(once(base_url, timeout=patience)) as model:
            waiting = iter(gates)
            async for batch in model.stream(a_request()):
                said.extend(batch)
                put_forward(60)  # each word comes so much later
                for gate in itertools.islice(waiting, 1):
                    gate.open()
        return said

    with ModelEndpoint([stream_reply(*parts, sse([delta("stop")]))]) as endpoint:
        said, _ = waits_of(lambda: read(endpoint.base_url))
    assert text_of(said).split() == [str(n) for n in range(12)]


def test_an_answer_that_goes_on_and_on_ends_with_the_turn() -> None:
    parts = dribble(sse([delta(content="and ")], done=False))
    patience = hurried(idle=900, turn=60)

    async def read(base_url: str) -> None:
        async with a_model(an_entry(base_url, timeout=patience)) as model:
            async for _ in model.stream(a_request()):
                put_forward(90)  # the time of the turn is over while more comes

    with ModelEndpoint([stream_reply().but(parts=parts)]) as endpoint:
        with pytest.raises(UnavailableError) as caught:
            waits_of(lambda: read(endpoint.base_url))
        assert len(endpoint.requests) == 1
    assert caught.value.message.startswith("the turn took longer than 60 s")


async def test_a_connection_that_does_not_come_about_is_given_up() -> None:
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # A listener whose queue is full takes no more connections and refuses none.
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        error = await failing(once(f"{origin}/v1", timeout=hurried(connect=0.2)))
    assert isinstance(error, UnavailableError)
    assert error.message == f"no connection to {origin}: none within 0.2 s"
    assert error.hint == f"is the server running at {origin}?"


def test_a_consumer_that_takes_its_time_is_not_interrupted() -> None:
    first = sse([delta(content="one")], done=False)
    rest = sse([delta(content=" two"), delta("stop")])
    sent = threading.Event()

    def parts() -> Iterator[Part]:
        yield first
        yield rest
        sent.set()

    async def read(base_url: str) -> list[Delta]:
        said: list[Delta] = []
        async with a_model(once(base_url, timeout=hurried(idle=60))) as model:
            async for batch in model.stream(a_request()):
                said.extend(batch)
                # The endpoint has said all, and it has arrived: only the consumer takes its time.
                await anyio.to_thread.run_sync(sent.wait, 20)
                await anyio.wait_all_tasks_blocked()
                put_forward(90)
        return said

    with ModelEndpoint([stream_reply().but(parts=parts())]) as endpoint:
        said, _ = waits_of(lambda: read(endpoint.base_url))
    assert text_of(said) == "one two"


@pytest.mark.parametrize("begun", [False, True])
async def test_cancelling_stops_a_stream_at_once_and_hangs_up(*, begun: bool) -> None:
    gate = Gate()
    parts = (sse([delta(content="hal")], done=False),) if begun else ()
    with ModelEndpoint([stream_reply(*parts, gate)]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(turn, model)
                    await gate.arrival()
                    tasks.cancel_scope.cancel()
            await endpoint.requests[0].abort_seen()
            endpoint.queue(text_reply("again"))
            assert text_of(await turn(model)) == "again"


async def test_leaving_a_stream_early_hangs_up() -> None:
    with ModelEndpoint([stream_reply(sse([delta(content="hal")], done=False), Gate())]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            batches = model.stream(a_request())
            await anext(batches)
            await batches.aclose()  # type: ignore[attr-defined]  # a generator, as it says
            await endpoint.requests[0].abort_seen()


async def test_an_outer_deadline_stays_an_outer_deadline() -> None:
    with ModelEndpoint([text_reply("late").but(before_head=Gate())]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            with anyio.move_on_after(0.1) as scope:
                await turn(model)
    assert scope.cancelled_caught


async def test_what_goes_wrong_around_an_open_model_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with a_model(an_entry("http://127.0.0.1:9/v1")):
            _ = 1 // 0


async def test_closing_a_model_hangs_up_on_streams_that_were_left_open() -> None:
    with ModelEndpoint([stream_reply(sse([delta(content="hal")], done=False), Gate())]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            batches = model.stream(a_request())
            await anext(batches)
        await endpoint.requests[0].abort_seen()
        await batches.aclose()  # type: ignore[attr-defined]  # a generator, as it says


async def test_pieces_that_arrive_together_are_handed_on_together() -> None:
    words = [sse([delta(content=f"{n} ")], done=False) for n in range(1000)]
    chunks = [b"%x\r\n%b\r\n" % (len(word), word) for word in (*words, sse([delta("stop")]))]
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    whole = b"".join([head, *chunks, b"0\r\n\r\n"])
    with ModelEndpoint([Reply(parts=(whole,), framing="raw")]) as endpoint:
        async with a_model(an_entry(endpoint.base_url)) as model:
            batches = [batch async for batch in model.stream(a_request())]
    assert len(batches) < 100
    assert text_of([piece for batch in batches for piece in batch]).split() == [
        str(n) for n in range(1000)
    ]


async def test_an_endpoint_that_does_not_hang_up_after_done_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "TRAILER_SECONDS", 0.1)
    body = sse([delta(content="hi"), delta("stop")])
    with ModelEndpoint([stream_reply(body, Gate())]) as endpoint:
        async with a_model(once(endpoint.base_url)) as model:
            with anyio.fail_after(60):
                said = await turn(model)
    assert isinstance(said[-1], Finish)


@pytest.mark.requirement("Q65")
async def test_after_finish_reason_and_usage_the_marker_is_waited_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "MARKER_SECONDS", 0.1)
    body = sse([delta(content="hi"), delta("stop"), usage()], done=False)
    with ModelEndpoint([stream_reply(body, Gate())]) as endpoint:
        async with a_model(once(endpoint.base_url)) as model:
            with anyio.fail_after(60):
                said = await turn(model)
    assert text_of(said) == "hi"
    assert isinstance(said[-1], Finish)
    assert said[-1].usage.input == 7


@pytest.mark.parametrize("end", [CUT, RESET])
async def test_a_kept_connection_that_is_dead_is_opened_anew_and_is_no_retry(end: Break) -> None:
    dead = Reply(parts=(end,), framing="raw")
    with ModelEndpoint([text_reply("one"), dead, text_reply("two"), dead]) as endpoint:
        async with a_model(once(endpoint.base_url)) as model:
            first, second = await turn(model), await turn(model)
        # Nothing was kept: the endpoint hangs up on new connections.
        error = await failing(once(endpoint.base_url))
    assert [text_of(first), text_of(second)] == ["one", "two"]
    assert [type(piece) for piece in second] == [TextPiece, Finish]
    assert len(endpoint.requests) == 4
    assert endpoint.connections == 3
    assert "the connection broke" in error.message


async def test_a_kept_connection_that_dies_within_an_answer_is_a_failure() -> None:
    begun = stream_reply(sse([delta(content="hal")], done=False), CUT)
    with ModelEndpoint([text_reply("one"), begun, text_reply("two")]) as endpoint:
        async with a_model(once(endpoint.base_url)) as model:
            await turn(model)
            with pytest.raises(AishError):
                await turn(model)
    assert len(endpoint.requests) == 2


async def test_a_base_url_that_is_none_fails_before_anything_is_sent() -> None:
    with pytest.raises(UsageError):
        async with a_model(an_entry("localhost:8080/v1")):
            pass


class LeavingInMidAnswer(httpx.AsyncBaseTransport):
    """Says one thing, and in the same turn of the loop its scope is cancelled."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The beginning of an answer."""
        return httpx.Response(200, content=self._parts())

    async def _parts(self) -> AsyncIterator[bytes]:
        asyncio.get_running_loop().call_soon(self._scope.cancel)
        yield sse([delta(content="Once")], done=False)
        await anyio.sleep_forever()


async def test_a_cancelled_turn_is_cancelled_and_no_failure_of_the_endpoint() -> None:
    scope = anyio.CancelScope()
    entry = an_entry("http://127.0.0.1:9/v1")

    with scope:
        async with open_model(
            entry, None, secrets=Secrets(), make_client=lambda _: LeavingInMidAnswer(scope)
        ) as model:
            await turn(model)

    assert scope.cancelled_caught
