import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cassette_exchanges import HEAD, answer, chat, delta, exchange, message, streamed
from hypothesis import example, given
from hypothesis import strategies as st
from samples import each_case
from syrupy.assertion import SnapshotAssertion
from work import work_of

from aish.cassettes.format.file import load, parse, partial, show_path
from aish.cassettes.format.interaction import (
    LARGEST,
    Cassette,
    CassetteFileError,
    Chunk,
    Interaction,
    RecordingMetadata,
    Request,
    Response,
)
from aish.cassettes.format.layout import entry, head_text, whole
from aish.cassettes.record.file_writer import Recording
from aish.system.files import file_mode

NAMES = st.text(max_size=20).map(lambda text: f"x{text}").filter(lambda t: "\ud800" not in t)


def saved(interactions: list[Interaction], head: RecordingMetadata = HEAD) -> bytes:
    return whole(head, interactions).encode()


def refusal(data: bytes) -> str:
    with pytest.raises(CassetteFileError) as caught:
        parse(data, "c.yaml")
    return str(caught.value)


@pytest.mark.requirement("C10")
def test_a_cassette_is_laid_out_for_review(snapshot: SnapshotAssertion) -> None:
    talk = Interaction(
        chat("Du bist höflich 🙂", "Say:\n  hello"),
        replace(streamed([delta("Grüß "), delta("Gott")]), headers=(("set-cookie", "a"),)),
    )
    tool = Interaction(message(1), answer(b"\xff\x00\x01"))
    lost = Interaction(Request("GET", "http://h/x"), Response(503, "Gone", broken="no route"))

    assert whole(HEAD, [talk, tool, lost]) == snapshot


def test_interactions_come_back_as_they_were() -> None:
    kept = [exchange(), Interaction(message(2), streamed([b"a\xff", b"\r\n", "é".encode()]))]

    assert parse(saved(kept), "c.yaml") == Cassette(HEAD, tuple(kept))
    assert parse(saved([]), "c.yaml") == Cassette(HEAD, ())


@given(st.binary(), st.text(), st.text(), NAMES, st.text())
def test_any_content_comes_back_as_it_was(
    raw: bytes, text: str, value: str, name: str, env: str
) -> None:
    request = Request(value or "GET", value, ((name, value),), text.encode())
    responses = (Response(200, value, ((name, value), (name, text)), raw), answer(text))
    kept = tuple(Interaction(request, response) for response in responses)
    head = replace(HEAD, env={name: env})

    assert parse(saved(list(kept), head), "c.yaml") == Cassette(head, kept)


@given(st.text(alphabet=" \n\t:.#-'\"|>{[a\r\x85\u2028\ufeff"))
@example("...\n")
@example("a\n...\n\n")
def test_text_that_looks_like_yaml_comes_back_as_it_was(text: str) -> None:
    kept = Interaction(Request("POST", "u", body=text.encode()), answer(text, reason=text))

    assert parse(saved([kept]), "c.yaml").interactions == (kept,)


@each_case("text", ["null", "~", "", "true", "12", "1.5", "2026-01-01", "0x1", "no"])
def test_text_that_yaml_would_guess_at_is_quoted(text: str) -> None:
    kept = Interaction(Request("POST", "u", body=text.encode()), answer(text))

    data = saved([kept], replace(HEAD, env={"A": text}))

    row = yaml.safe_load(data)["interactions"][0]
    assert (row["request"]["body"], row["response"]["body"]["string"]) == (text, text)
    assert parse(data, "c.yaml").interactions == (kept,)


@given(st.binary())
def test_any_bytes_are_read_or_refused_in_words(data: bytes) -> None:
    with pytest.raises(CassetteFileError):
        parse(data, "c.yaml")


def test_a_file_that_is_cut_anywhere_is_refused() -> None:
    data = saved([exchange(), Interaction(chat("ü"), streamed([delta("x"), delta("y")]))])

    for end in range(len(data) - 1):
        refusal(data[:end])


@each_case(
    "old, new, said",
    [
        ("interactions:", "exchanges:", "it has no `interactions`"),
        ("version: 1\ninter", "version: 2\ninter", "is of version 2, and this program reads"),
        ("version: 1\n  run", "version: 9\n  run", "is of version 9, and this program reads"),
        ("complete: true", "complete: false", "was interrupted and is not complete"),
        ("  run: run-1\n", "", "`metadata` needs `run`, `clock` and `env`"),
        ("LANG: C", "LANG: [C]", "a value of `metadata.env` is not text"),
        ("code: 200", "code: fine", "c.yaml:10: interaction 1 cannot be used: its `status.code`"),
        ("method: POST", "verb: POST", "unknown key `verb`"),
        ("method: POST", "method: [POST]", "its `request.method` is not text"),
        (
            "method: POST",
            "method: POST\n    method: GET",
            "c.yaml:12: duplicate key `method`",
        ),
        ("- application/json", "- {a: b}", "`content-type` that is not text"),
        ("string: Hi", "string: [Hi]", "its `response.body.string` is not text"),
        ("string: Hi", "string: !!binary '%%'", "binary data is not valid base64"),
        ("string: Hi", "string: !!python/name:os.system ''", "the tag `tag:yaml.org,2002:python"),
        ("string: Hi", "string: !secret Hi", "the tag `!secret` is not allowed"),
        ("string: Hi", "string: *nowhere", "`*nowhere` refers to nothing before it"),
        ("string: Hi", "string: Hi\n    chunks: 1@0.5", "add up to 1 bytes, and its body has 2"),
        ("string: Hi", "string: Hi\n    chunks: 2@soon", "not a list of `size@seconds`"),
        ("string: Hi", "string: Hi\n    chunks: 2@nan", "not a list of `size@seconds`"),
        ("string: Hi", "string: Hi\n    chunks: -1@0.1 3@0.1", "not a list of `size@seconds`"),
        ("string: Hi", "string: 'Hi", "this is not a cassette: found unexpected"),
        ("  response:", "  answer:", "it has no `response`"),
        ("...\n", "---\n", "there is a second document"),
        ("...\n", "", "cut short: its last line is missing"),
    ],
)
def test_a_file_edited_by_hand_says_what_is_wrong(old: str, new: str, said: str) -> None:
    text = saved([exchange()]).decode()
    assert old in text

    assert said in refusal(text.replace(old, new, 1).encode())


@pytest.mark.parametrize(
    "data",
    [b"[" * 1_000_000, b"{a: " * 1_000_000, b"- " * 1_000_000, b"&a [*a]", b"? [a]\n: b", b"\x00"],
    ids=["flow", "maps", "block", "holds-itself", "key", "nul"],
)
def test_hostile_yaml_is_refused_in_words(data: bytes) -> None:
    assert refusal(data).startswith("c.yaml")


def test_aliases_that_stand_for_too_much_are_refused() -> None:
    levels = [b"a: &a [" + b"x," * 9 + b"x]"]
    for above, below in zip(b"abcdefgh", b"bcdefghi", strict=True):
        name, held = bytes([below]), b"*" + bytes([above])
        levels.append(name + b": &" + name + b" [" + b",".join([held] * 10) + b"]")

    assert "its aliases stand for too much" in refusal(b"\n".join(levels))


def test_an_empty_file_is_no_cassette() -> None:
    assert "the cassette is empty" in refusal(b"")


@pytest.mark.parametrize("kind", ["crlf", "bom", "utf-16"])
def test_what_git_or_an_editor_makes_of_the_letters_is_the_same_cassette(kind: str) -> None:
    kept = [
        Interaction(
            chat("Be brief\n  and kind\n", "é\ttab"), streamed([delta("Hello\n"), b"x\r\n"])
        ),
        Interaction(message(1), answer("one\n\ntwo\n \n")),
        Interaction(message(2), answer(b"\r\n\xff")),
    ]
    text = saved(kept).decode()
    made = {
        "crlf": text.replace("\n", "\r\n").encode(),
        "bom": b"\xef\xbb\xbf" + text.encode(),
        "utf-16": text.encode("utf-16"),
    }

    assert parse(made[kind], "c.yaml").interactions == tuple(kept)


def test_a_cassette_of_plain_vcrpy_can_be_read() -> None:
    foreign = b"""interactions:
- request:
    body: null
    headers: &id001
      accept: ['*/*']
    method: GET
    uri: http://h/
  response:
    body: {string: !!binary "/wA="}
    headers: *id001
    http_version: HTTP/1.1
    status: {code: 404, message: null}
- request: {body: !!python/unicode 'a', headers: {x: y}, method: PUT, uri: 'http://h/'}
  response:
    body: {string: ''}
    headers: {}
    status: {code: 200, message: OK}
version: 1
"""
    first, second = parse(foreign, "c.yaml").interactions

    assert parse(foreign, "c.yaml").head is None
    assert first.request == Request("GET", "http://h/", (("accept", "*/*"),))
    assert first.response == Response(404, "", (("accept", "*/*"),), b"\xff\x00")
    assert second.request == Request("PUT", "http://h/", (("x", "y"),), b"a")


def test_a_missing_cassette_is_named_and_an_interrupted_one_with_it(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"

    with pytest.raises(CassetteFileError, match="no such cassette") as caught:
        load(path)
    assert caught.value.hint == f"`aish record FILE -o {path}` records it, live"
    with Recording(path, HEAD) as recording:
        recording.append(exchange())
    with pytest.raises(CassetteFileError) as caught:
        load(path)
    assert caught.value.hint == (
        f"a recording was interrupted: `{path}.partial`; `aish record FILE -o {path}` records it,"
        " live"
    )


def test_a_huge_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    huge.touch()
    os.truncate(huge, 1 << 30)

    with pytest.raises(CassetteFileError, match=f"larger than {LARGEST >> 20} MB"):
        load(huge)
    with pytest.raises(CassetteFileError, match="is a folder, not a cassette"):
        load(tmp_path)


@pytest.mark.requirement("C9")
def test_a_recording_takes_its_place_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "c.yaml"
    other = exchange("two", "zwei")

    with Recording(path, HEAD) as recording:
        recording.append(other)
        recording.append(exchange())
        assert not path.exists()
        recording.finish(HEAD, [exchange(), other])

    assert load(path) == Cassette(HEAD, (exchange(), other))
    assert path.read_bytes() == saved([exchange(), other])
    assert "complete: true" in path.read_text()
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == file_mode(tmp_path / "none")


def test_an_interrupted_recording_stays_beside_and_is_never_replayed(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(saved([exchange("old")]))

    with Recording(path, HEAD) as recording:
        recording.append(exchange())

    assert load(path).interactions == (exchange("old"),)
    assert partial(path).read_text() == head_text(replace(HEAD, complete=False)) + entry(exchange())
    with pytest.raises(CassetteFileError, match="was interrupted and is not complete"):
        load(partial(path))


def test_a_recording_that_was_killed_is_no_obstacle_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    partial(path).write_text("x" * 9999)

    with Recording(path, HEAD) as recording:
        recording.finish(HEAD, [exchange()])

    assert load(path) == Cassette(HEAD, (exchange(),))


def test_a_cassette_is_named_as_a_person_would_type_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "pipelines").mkdir(parents=True)
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "far" / "away")
    monkeypatch.chdir(tmp_path / "here")

    assert show_path(Path("pipelines/../tests/c.yaml")) == "tests/c.yaml"
    assert show_path(tmp_path / "here" / "c.yaml") == "c.yaml"
    assert show_path(Path("../here/c.yaml")) == "c.yaml"
    assert show_path(Path("pipelines/../../c.yaml")) == "../c.yaml"
    assert show_path(tmp_path / "c.yaml") == str(tmp_path / "c.yaml")
    assert show_path(Path("link/../c.yaml")) == "link/../c.yaml"


def test_a_pipeline_is_told_from_a_cassette(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("aish: 1\nname: p\n")

    with pytest.raises(CassetteFileError, match="this is a pipeline, not a cassette"):
        load(tmp_path / "p.yaml")


def test_two_recordings_of_one_cassette_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"

    with Recording(path, HEAD) as first:
        with pytest.raises(CassetteFileError, match="is being recorded by another run"):
            Recording(path, HEAD)
        first.append(exchange())
        first.finish(HEAD, [exchange()])
    with Recording(path, HEAD):
        assert load(path).interactions == (exchange(),)


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    planted = tmp_path / "c.yaml.partial"
    planted.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(CassetteFileError, match="cannot be written: File exists"):
        Recording(tmp_path / "file" / "c.yaml", HEAD)
    with pytest.raises(CassetteFileError, match="is a folder"):
        Recording(tmp_path, HEAD)
    with pytest.raises(CassetteFileError, match="cannot be written: Too many levels"):
        Recording(tmp_path / "c.yaml", HEAD)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_with_a_second_name_is_not_written_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    (tmp_path / "c.yaml.partial").hardlink_to(precious)
    os.mkfifo(tmp_path / "d.yaml.partial")

    for name in ("c.yaml", "d.yaml"):
        with pytest.raises(CassetteFileError):
            Recording(tmp_path / name, HEAD)
    assert precious.read_text() == "as it was"


def test_an_empty_name_is_the_folder_that_one_is_in() -> None:
    with pytest.raises(CassetteFileError, match="is a folder, not a cassette"):
        Recording(Path(), HEAD)


@pytest.mark.parametrize(
    "content", ["aish: 1\nname: a\n", "# A page\n", "\0" * 99, "the older interactions: none"]
)
def test_a_recording_never_takes_the_place_of_what_is_no_cassette(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(content)

    with pytest.raises(CassetteFileError, match="is not a cassette") as caught:
        Recording(path, HEAD)

    assert caught.value.hint == "give another path, or delete the file first"
    assert path.read_text() == content
    assert not partial(path).exists()


@pytest.mark.parametrize(
    "content", ["", "\n", "interactions:\n- cut sho", "# By hand\r\nmetadata:\r\n"]
)
def test_a_recording_takes_the_place_of_a_cassette_even_a_broken_one(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)

    with Recording(path, HEAD) as recording:
        recording.finish(HEAD, [exchange()])

    assert load(path).interactions == (exchange(),)


def test_a_recording_is_not_put_in_the_place_of_a_pipe_or_of_a_recording(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(CassetteFileError, match="is not a regular file"):
        Recording(pipe, HEAD)
    with pytest.raises(CassetteFileError, match="an unfinished recording") as caught:
        Recording(tmp_path / "c.yaml.partial", HEAD)

    assert caught.value.hint == f"name the cassette itself: `{tmp_path / 'c.yaml'}`"
    assert pipe.is_fifo()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_is_read_only_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(CassetteFileError, match="cannot be written: Permission denied"):
        Recording(tmp_path / "c.yaml", HEAD)


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    partial(tmp_path / "c.yaml").symlink_to(full)

    with pytest.raises(CassetteFileError, match="cannot be written"):
        Recording(tmp_path / "c.yaml", HEAD)


@pytest.mark.slow(reason="writes a big cassette")
def test_a_big_cassette_loads_within_its_time() -> None:
    prompt = "A line of a prompt as long as they are\n" * 8
    events = [delta(f"word {n}") for n in range(22)]
    big = [Interaction(chat("Be brief", f"{prompt}{n}"), streamed(events)) for n in range(2_000)]
    data = saved(big)
    assert len(data) > 5_000_000

    work = work_of(lambda: parse(data, "c.yaml"))
    assert work.steps < 2_500 * len(big)
    assert work.text < 3 * len(data)


def test_nothing_is_recorded_that_no_replay_would_read(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(saved([exchange("old")]))
    large = Interaction(chat("a"), answer("x" * (1 << 20)))

    with Recording(path, HEAD, most=1 << 20) as recording:
        recording.append(exchange())
        with pytest.raises(CassetteFileError, match="would be larger than 1 MB"):
            recording.append(large)
        with pytest.raises(CassetteFileError, match="would be larger than 1 MB"):
            recording.finish(HEAD, [exchange(), large])

    assert load(path).interactions == (exchange("old"),)
    assert partial(path).read_text() == head_text(replace(HEAD, complete=False)) + entry(exchange())


def test_times_are_kept_to_the_microsecond() -> None:
    kept = Interaction(chat("a"), Response(body=b"ab", chunks=(Chunk(1, 1e-6), Chunk(1, 12.5))))

    assert parse(saved([kept]), "c.yaml").interactions == (kept,)


def test_a_recording_that_was_never_put_in_its_place_is_not_played_however_whole(
    tmp_path: Path,
) -> None:
    path = partial(tmp_path / "c.yaml")
    path.write_bytes(saved([exchange()]))

    with pytest.raises(CassetteFileError, match="interrupted and is not complete"):
        load(path)
    assert len(load(path, unfinished=True).interactions) == 1
