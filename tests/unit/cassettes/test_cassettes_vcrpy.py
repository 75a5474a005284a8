import ast
from dataclasses import replace
from pathlib import Path

import anyio
import httpx
import pytest
import vcr
from cassette_exchanges import HEAD, answer, chat, delta, message, streamed
from cassette_recorders import END, Step, chunk, endpoint, pieces_of, recorder, send
from cassette_recorders import EVENTS as STREAM
from vcr.cassette import Cassette as VcrCassette
from vcr.errors import CannotOverwriteExistingCassetteException

import aish.cassettes
from aish.cassettes.format.file import load
from aish.cassettes.format.interaction import Interaction
from aish.cassettes.format.vcrpy import difference
from aish.cassettes.http import cassette_transport
from aish.cassettes.record.file_writer import Recording

PARTS = ["uri", "method", "body"]
EVENTS = [delta("Grüß "), delta("Gott 🙂"), b"data: [DONE]\n\n"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    talk = Interaction(chat("Be brief", "Say:\nhello"), streamed(EVENTS))
    with Recording(path, HEAD) as recording:
        recording.finish(HEAD, [talk, Interaction(message(1), answer(b"\xff\x00"))])
    return path


@pytest.mark.requirement("C1", "C13")
def test_plain_vcrpy_replays_the_models_part_of_a_cassette(path: Path) -> None:
    asked = chat("Be brief", "Say:\nhello")
    other = chat("Be brief", "Say:\ngoodbye")

    with (
        vcr.use_cassette(str(path), record_mode="none", match_on=PARTS) as cassette,
        httpx.Client() as client,
    ):
        played = client.post(asked.uri, content=asked.body, headers=dict(asked.headers))
        with pytest.raises(CannotOverwriteExistingCassetteException):
            client.post(other.uri, content=other.body, headers=dict(other.headers))

    assert played.status_code == 200
    assert played.content == b"".join(EVENTS)
    assert cassette.play_count == 1


@pytest.mark.requirement("C1", "C13")
def test_plain_vcrpy_reads_every_interaction_and_the_head(path: Path) -> None:
    cassette = VcrCassette.load(path=str(path))

    assert [request.uri for request in cassette.requests] == [
        "http://127.0.0.1:8080/v1/chat/completions",
        "mcp+stdio://files",
    ]
    assert cassette.requests[1].body == message(1).body
    assert cassette.responses[1]["body"]["string"] == b"\xff\x00"
    assert cassette.get_metadata("run", None) == "run-1"
    assert cassette.get_metadata("complete", None) is True


@pytest.mark.requirement("C1")
def test_a_recording_of_plain_vcrpy_can_be_replayed_by_us(tmp_path: Path, path: Path) -> None:
    theirs = VcrCassette.load(path=str(path))
    copy = VcrCassette(str(tmp_path / "copy.yaml"))
    for request, response in zip(theirs.requests, theirs.responses, strict=True):
        copy.append(request, {k: response[k] for k in ("status", "headers", "body")})
    copy._save(force=True)

    ours = load(tmp_path / "copy.yaml")

    assert ours.head is None
    assert [one.request for one in ours.interactions] == [
        one.request for one in load(path).interactions
    ]
    assert ours.interactions[0].response.body == b"".join(EVENTS)


@pytest.mark.requirement("C1", "C13")
def test_plain_vcrpy_replays_what_our_transport_recorded(tmp_path: Path) -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "Gr\xc3\xbc\xc3\x9fe"}]}'

    async def record() -> str:
        with Recording(tmp_path / "c.yaml", HEAD) as recording:
            kept = recorder("record", recording=recording)
            script: list[Step] = [STREAM, *(chunk(event) for event in EVENTS), END]
            async with endpoint(script) as served:
                transport = cassette_transport(kept, "model", httpx.AsyncHTTPTransport)
                await pieces_of(await send(transport, served.url, body))
                await transport.aclose()
            kept.begin("mcp", message(1))
            kept.finish(HEAD)
        return served.url

    url = anyio.run(record)

    with (
        vcr.use_cassette(str(tmp_path / "c.yaml"), record_mode="none", match_on=PARTS) as cassette,
        httpx.Client() as client,
    ):
        played = client.post(url, content=body)

    assert played.headers["content-type"] == "text/event-stream"
    assert played.content == b"".join(EVENTS)
    assert cassette.play_count == 1
    assert not cassette.dirty


@pytest.mark.slow(reason="parses each module")
@pytest.mark.requirement("C2")
def test_vcrpy_is_imported_for_checks_alone() -> None:
    package = Path(aish.cassettes.__file__ or "").parents[1]

    found = {
        path.name
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        if "vcr" in {alias.name.split(".")[0] for alias in node.names}
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vcr")
    }

    assert found == {"vcrpy.py"}


@pytest.mark.requirement("C1")
def test_what_vcrpy_reads_is_what_we_read(path: Path) -> None:
    ours = load(path)

    assert difference(path, ours) is None
    fewer = replace(ours, interactions=ours.interactions[:1])
    assert difference(path, fewer) == "vcrpy reads 2 exchanges where there are 1"
    other = replace(ours, interactions=ours.interactions[::-1])
    assert difference(path, other) == "vcrpy reads exchange 1 as something else"


@pytest.mark.requirement("C1")
def test_what_vcrpy_cannot_read_is_said(path: Path) -> None:
    ours = load(path)
    path.write_text("interactions: [{request: []}]\n", encoding="utf-8")

    assert str(difference(path, ours)).startswith("vcrpy cannot read it: ")
