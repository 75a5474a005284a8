import ast
import json
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
from aish.cassettes.format.file import load, parse
from aish.cassettes.format.interaction import CassetteFileError, Interaction
from aish.cassettes.format.vcrpy import difference
from aish.cassettes.http import cassette_transport
from aish.cassettes.record.file_writer import Recording
from aish.cassettes.scrub import scrub_content
from aish.system.secrets.secrets import Secrets

PARTS = ["uri", "method", "body"]
EVENTS = [delta("Grüß "), delta("Gott 🙂"), b"data: [DONE]\n\n"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    talk = Interaction(chat("Be brief", "Say:\nhello"), streamed(EVENTS))
    with Recording(path, HEAD) as recording:
        recording.finish(HEAD, [talk, Interaction(message(1), answer(b"\xff\x00"))])
    return path


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


def test_what_vcrpy_reads_is_what_we_read(path: Path) -> None:
    ours = load(path)

    assert difference(path, ours) is None
    fewer = replace(ours, interactions=ours.interactions[:1])
    assert difference(path, fewer) == "vcrpy reads 2 exchanges where there are 1"
    other = replace(ours, interactions=ours.interactions[::-1])
    assert difference(path, other) == "vcrpy reads exchange 1 as something else"


def test_what_vcrpy_cannot_read_is_said(path: Path) -> None:
    ours = load(path)
    path.write_text("interactions: [{request: []}]\n", encoding="utf-8")

    assert str(difference(path, ours)).startswith("vcrpy cannot read it: ")


FORM = """
interactions:
- request:
    body: ASKED
    headers: {NAMED}
    method: METHOD
    uri: http://h/
  response:
    ANSWER
version: 1
"""
USUAL = {
    "ASKED": "Hi",
    "NAMED": "a: [b]",
    "METHOD": "POST",
    "ANSWER": "{status: {code: 200, message: OK}, headers: {c: [d]}, body: {string: Hello all}}",
}
BYTES = "!!binary YQ=="
FILE = f"!!python/object/new:_io.BytesIO {{state: !!python/tuple [{BYTES}, 0, null]}}"
PIECES = f"!!python/object/apply:builtins.iter {{args: !!python/tuple [[{BYTES}, b]], state: 0}}"
OLD = "{status_code: 201, http_version: HTTP/1.1, headers: {c: [d]}, content: "
PLAIN = ("Hi", (("a", "b"),), 200)
READ: dict[str, tuple[dict[str, str], tuple[object, ...]]] = {
    "urllib3": ({}, PLAIN),
    "botocore: bytes": ({"NAMED": f"a: [{BYTES}, b]"}, ("Hi", (("a", "a"), ("a", "b")), 200)),
    "a name of bytes": ({"NAMED": f"? {BYTES}\n: [b]"}, PLAIN),
    "requests: text": ({"NAMED": "a: b"}, PLAIN),
    "a number": ({"NAMED": "a: [12]"}, ("Hi", (("a", "12"),), 200)),
    "no value": ({"NAMED": "a: [null]"}, ("Hi", (("a", ""),), 200)),
    "a method of bytes": ({"METHOD": "!!binary UE9TVA=="}, PLAIN),
    "Python 2": ({"ASKED": "!!python/unicode 'Hi'"}, PLAIN),
    "Python 2, bytes": ({"ASKED": "!!python/str 'Hi'"}, PLAIN),
    "a file": ({"ASKED": FILE}, ("a", (("a", "b"),), 200)),
    "an iterator": ({"ASKED": PIECES}, ("ab", (("a", "b"),), 200)),
    "httpx before 5.0": ({"ANSWER": f"{OLD}Hello all}}"}, ("Hi", (("a", "b"),), 201)),
    "httpx, bytes": ({"ANSWER": f"{OLD}!!binary SGVsbG8gYWxs}}"}, ("Hi", (("a", "b"),), 201)),
    "aiohttp": ({"ANSWER": USUAL["ANSWER"].replace("headers", "url: x, headers")}, PLAIN),
    "no message": ({"ANSWER": USUAL["ANSWER"].replace("OK", "null")}, PLAIN),
    "no version": ({"version: 1": ""}, PLAIN),
}
REFUSED = {
    "before 1.0": ("- request: {body: null}\n", "recorded by vcrpy before 1.0"),
    "betamax": ('{"http_interactions": []}', "recorded by VCR for Ruby or by betamax"),
    "a HAR": ('{"log": {"entries": []}}', "recorded by a browser"),
    "go-vcr": ("version: 2\ninteractions: []\n", "is of version 2"),
    "an object": (
        FORM.replace("ASKED", "!!python/object:a.B {}"),
        "python/object:a.B` is not allowed",
    ),
    "parsed bodies": (FORM.replace("body: ASKED", "parsed_body: {}"), "unknown key `parsed_body`"),
    "a parsed answer": (
        FORM.replace("ANSWER", "{status: {code: 200}, parsed_body: {}}"),
        "no `body`",
    ),
    "a body of JSON": (FORM.replace("ASKED", "{state: [a]}"), "its `request.body` is not text"),
}


@pytest.mark.parametrize("form", READ)
def test_every_form_that_vcrpy_has_written_is_read(tmp_path: Path, form: str) -> None:
    """Issue 27, B7: recordings of others, with each of its versions and stubs."""
    changes, told = READ[form]
    text = FORM
    for word, value in (USUAL | changes).items():
        text = text.replace(word, value)
    path = tmp_path / "theirs.yaml"
    path.write_text(text, encoding="utf-8")

    (one,) = load(path).interactions

    asked, answer = one.request, one.response
    assert (asked.body.decode(), asked.headers, answer.status) == told
    assert (asked.method, answer.body) == ("POST", b"Hello all")
    secrets = Secrets()
    secrets.add("KEY", "Hello all")
    again = parse(scrub_content(text.encode(), "theirs", secrets).data, "scrubbed").interactions
    assert again == (replace(one, response=replace(answer, body=b"<secret:KEY>")),)


@pytest.mark.parametrize("body", [FILE, PIECES])
def test_a_body_that_was_a_file_or_an_iterator_is_compared(tmp_path: Path, body: str) -> None:
    text = FORM
    for word, value in (USUAL | {"ASKED": body}).items():
        text = text.replace(word, value)
    path = tmp_path / "theirs.yaml"
    path.write_text(text.replace(", b]", "]"), encoding="utf-8")

    assert difference(path, load(path)) is None


@pytest.mark.parametrize("form", REFUSED)
def test_a_recording_of_another_program_is_refused_in_words(tmp_path: Path, form: str) -> None:
    text, said = REFUSED[form]
    for word, value in USUAL.items():
        text = text.replace(word, value)
    path = tmp_path / "theirs.yaml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(CassetteFileError) as caught:
        load(path)

    assert said in f"{caught.value} {caught.value.hint}"


def test_a_recording_in_json_is_read_and_an_answer_that_was_decoded_is_played(
    tmp_path: Path,
) -> None:
    row = {
        "request": {"method": "GET", "uri": "http://h/", "headers": {"n": ["1"]}, "body": None},
        "response": {
            "status": {"code": 200, "message": "OK"},
            "headers": {"Content-Encoding": ["gzip"]},
            "body": {"string": "Grüß 🙂"},
        },
    }
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"version": 1, "interactions": [row]}), encoding="utf-8")
    store = recorder("replay", *load(path).interactions)

    async def played() -> bytes:
        transport = cassette_transport(store, "model", httpx.AsyncHTTPTransport)
        async with httpx.AsyncClient(transport=transport) as client:
            return (await client.get("http://h/")).content

    assert anyio.run(played).decode() == "Grüß 🙂"
