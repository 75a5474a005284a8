import errno
import json
import os
import signal
import stat
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from zlib import crc32

import pytest
from asking_runs import answered
from hypothesis import given
from jsonschema import Draft202012Validator
from scripted_events import any_event, ordinary_run, run_finished, run_started, stamped

from aish.core.errors import UsageError
from aish.core.events import (
    Notice,
    Place,
    RunFinished,
    RunStarted,
    Stamped,
    to_line,
    to_object,
)
from aish.core.json import JsonObject
from aish.journal.reader import JournalReading, read_journal
from aish.journal.writer import (
    Journal,
    JournalError,
    hold_journal,
    last_record,
    open_journal,
    open_record,
    seal,
)
from aish.system.durable import Disk
from aish.system.files import schema_text

SCHEMA = Draft202012Validator(json.loads(schema_text("events.schema.json")))
# Holds the journal of the folder that it is given until its stdin is closed.
HOLDER = """
import sys
from io import BytesIO
from pathlib import Path
from aish.journal.writer import open_journal
journal = open_journal(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def journaled() -> list[Stamped]:
    """A run as its journal has it: without deltas."""
    return [event for event in ordinary_run() if "Delta" not in type(event.event).__name__]


def written(folder: Path, events: list[Stamped]) -> Path:
    """A journal of these events."""
    journal = open_journal(folder)
    for event in events:
        journal(event)
    journal.close()
    return folder / "events.jsonl"


def records(path: Path) -> list[JsonObject]:
    with read_journal(path) as reading:
        return list(reading)


def refused(path: Path) -> JournalError:
    """The error of a journal that cannot be read."""
    with pytest.raises(JournalError) as caught, read_journal(path) as reading:
        list(reading)
    return caught.value


# --- Written ---------------------------------------------------------------------------------


def test_the_journal_has_one_record_a_line_for_its_owner_only(tmp_path: Path) -> None:
    run = journaled()

    path = written(tmp_path, run)

    assert records(path) == [json.loads(json.dumps(to_object(event))) for event in run]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@given(any_event())
def test_a_checksum_is_that_of_the_line_without_it(event: Stamped) -> None:
    record = seal(to_line(event))

    line = to_line(event).removesuffix(b"\n")
    last = b',"crc":"%08x"}\n' % crc32(line)
    assert record.endswith(last)
    assert record.removesuffix(last) + b"}" == line
    assert open_record(record[:-1]) == line
    SCHEMA.validate(json.loads(record))


def test_each_record_is_one_write(tmp_path: Path) -> None:
    writes: list[bytes] = []

    def write(descriptor: int, data: bytes) -> int:
        writes.append(data)
        return os.write(descriptor, data)

    journal = open_journal(tmp_path, Disk(write=write))
    for event in journaled():
        journal(event)
    journal.close()

    assert writes == [seal(to_line(event)) for event in journaled()]


def test_the_journal_wants_no_deltas() -> None:
    assert Journal.deltas is False


def test_what_is_over_is_synced_before_the_run_goes_on(tmp_path: Path) -> None:
    synced: list[int] = []
    journal = open_journal(tmp_path, Disk(sync=synced.append))
    first, *_, last = journaled()

    journal(first)
    assert not synced, "a beginning is only written"
    journal(last)

    assert len(synced) == 1
    journal.close()
    assert len(synced) == 1, "nothing was left to sync"


def test_the_names_of_a_journal_are_synced_before_its_first_record_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = tmp_path / "run"
    folder.mkdir()
    journal = open_journal(folder, Disk(sync=lambda _: synced.append("record")))

    first, *_, last = journaled()
    journal(first)
    assert synced == []
    for _ in range(2):
        journal(last)
    journal.close()

    assert synced[:3] == ["run", tmp_path.name, "record"]
    assert set(synced[3:]) == {"record"}


def test_a_link_in_the_place_of_the_journal_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "events.jsonl").symlink_to(target)

    with pytest.raises(UsageError):
        open_journal(tmp_path)

    assert not target.exists()
    target.write_bytes(b"")
    with pytest.raises(UsageError, match="link"):
        read_journal(tmp_path / "events.jsonl")


def test_a_full_disk_leaves_whole_records_only(tmp_path: Path) -> None:
    """A limit on the size of files makes `os.write` short, as a full disk does."""
    child = os.fork()
    if child == 0:
        os._exit(_fill(tmp_path))
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert [record["seq"] for record in records(tmp_path / "events.jsonl")] == [1, 2]


def _fill(folder: Path) -> int:
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
    journal = open_journal(folder)
    for seq in (1, 2):
        journal(Stamped(seq, 0.0, Notice(Place(), "info", "x", "y" * 100)))
    try:
        journal(Stamped(3, 0.0, Notice(Place(), "info", "x", "y" * 100)))
    except OSError:
        return 0
    return 1


def test_after_a_failed_write_what_was_written_before_is_synced(tmp_path: Path) -> None:
    full = False
    synced: list[int] = []

    def write(descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data[:10] if full else data)

    journal = open_journal(tmp_path, Disk(write, synced.append))
    begin, *_, end = journaled()
    journal(begin)
    full = True

    with pytest.raises(OSError, match="No space left"):
        journal(end)

    assert len(synced) == 1
    assert [record["type"] for record in records(tmp_path / "events.jsonl")] == ["run.started"]


# --- One writer ------------------------------------------------------------------------------


def test_a_second_writer_fails_and_names_the_first(tmp_path: Path) -> None:
    path = written(tmp_path, journaled())
    before = path.read_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"

        with pytest.raises(UsageError, match=f"is being written by process {holder.pid}"):
            open_journal(tmp_path)

        assert path.read_bytes() == before
        holder.kill()
    open_journal(tmp_path).close()


# --- Read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 20, -1], ids=["a byte", "a part", "all but the line end"])
def test_a_torn_tail_is_recognised_and_left_out(tmp_path: Path, kept: int) -> None:
    path = written(tmp_path, journaled())
    whole = path.read_bytes()
    tail = seal(to_line(stamped(run_finished())[0]))[:kept]
    path.write_bytes(whole + tail)

    with read_journal(path) as reading:
        found = list(reading)

    assert len(found) == len(journaled())
    assert reading.torn is not None
    assert (reading.torn.line, reading.torn.offset) == (len(found) + 1, len(whole))
    assert reading.torn.size == len(tail)
    assert path.read_bytes() == whole + tail, "who only reads changes nothing"


@pytest.mark.requirement("B2")
def test_a_torn_tail_is_cut_off_and_kept_before_anything_is_appended(tmp_path: Path) -> None:
    path = written(tmp_path, journaled())
    whole = path.read_bytes()
    for tail in (b'{"v":1,"se', b"x" * 200_000):
        path.write_bytes(whole + tail)
        open_journal(tmp_path).close()
        assert path.read_bytes() == whole

    torn = tmp_path / "events.jsonl.torn"
    assert torn.read_bytes() == b'{"v":1,"se\n' + b"x" * 200_000 + b"\n"
    assert stat.S_IMODE(torn.stat().st_mode) == 0o600


def test_a_journal_that_is_nothing_but_a_torn_tail_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"v":1')

    path = written(tmp_path, journaled())

    assert len(records(path)) == len(journaled())


def _flipped(line: bytes) -> bytes:
    return line.replace(b'"local"', b'"lokal"', 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_flipped, "is damaged: its checksum does not match"),
        (lambda line: line[:30] + b"\0" * 200 + b"\n", "has NUL bytes in it, and records after"),
        (lambda line: b"\0" * 4096 + line, "has NUL bytes in it, and records after"),
        (lambda _: b"hello\n", "has no checksum: it is not a record of a journal"),
        (lambda line: line + line, "has the number 3 after 3"),
        (lambda _: seal(b'{"v":1,"seq":0}\n'), "has the number 0 after 1"),
        (lambda _: seal(b'{"v":1,"seq":true}\n'), "has the number True after 1"),
        (lambda _: seal(b'{"v":1,"seq":}\n'), "is no record"),
        (lambda _: seal(b'{"v":2,"seq":3}\n'), "`v` is 2, not 1"),
        (lambda _: b'{"v":2,"seq":3,"sum":"another"}\n', "`v` is 2, not 1"),
        (lambda line: line.replace(b"\n", b"\r\n"), "the line ends were converted"),
    ],
)
def test_damage_in_the_middle_is_refused_with_its_place(
    tmp_path: Path, change: object, said: str
) -> None:
    path = written(tmp_path, journaled())
    lines = path.read_bytes().splitlines(keepends=True)
    assert callable(change)
    second = change(lines[2])
    path.write_bytes(b"".join([lines[0], second, *lines[3:]]))

    error = refused(path)

    place = len(lines[0]) + (len(lines[2]) if second == lines[2] * 2 else 0)
    assert said in error.message
    assert error.where == f"{path}:{3 if second == lines[2] * 2 else 2}"
    assert f"(at byte {place})" in error.message
    assert error.hint


def test_a_file_converted_to_crlf_is_told_for_what_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, journaled())
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    error = refused(path)

    assert "ends in CRLF: the line ends were converted" in error.message
    assert error.where == f"{path}:1"


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\0", id="a byte"),
        pytest.param(b"\0" * 100_000, id="blocks"),
        pytest.param(b'{"v":1,"se' + b"\0" * 70_000, id="half a record and blocks"),
        pytest.param(b'{"v":1,"se' + b"\0" * 70_000 + b'1"}\n', id="a record with a hole"),
        pytest.param(b'{"v":1\0\0"}\n' + b"\0" * 70_000, id="a hole and blocks"),
        pytest.param(b"\0\n\0\0\n", id="lines of nothing"),
    ],
)
def test_a_tail_of_nul_bytes_is_a_torn_tail(tmp_path: Path, tail: bytes) -> None:
    path = written(tmp_path, journaled())
    whole = path.read_bytes()
    path.write_bytes(whole + tail)

    with read_journal(path) as reading:
        found = list(reading)
    open_journal(tmp_path).close()

    assert len(found) == len(journaled())
    assert reading.torn is not None
    assert (reading.torn.offset, reading.torn.size) == (len(whole), len(tail))
    assert path.read_bytes() == whole
    assert (tmp_path / "events.jsonl.torn").read_bytes() == tail + b"\n"


def test_a_record_behind_nul_bytes_is_no_torn_tail(tmp_path: Path) -> None:
    path = written(tmp_path, journaled())
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + b"\0" * 4096 + lines[-1])

    assert "has NUL bytes in it, and records after them" in refused(path).message


def test_a_line_that_goes_on_without_end_takes_no_memory_without_end() -> None:
    reading = JournalReading(BytesIO(b"x" * 5000), "events.jsonl", longest=1000)

    with reading, pytest.raises(JournalError, match="is longer than 1000 bytes"):
        list(reading)


@pytest.mark.slow(reason="writes a long journal")
def test_a_long_journal_is_read_in_memory_that_does_not_grow(tmp_path: Path) -> None:
    import tracemalloc

    text = "y" * 1000
    journal = open_journal(tmp_path)
    for seq in range(1, 20_001):
        journal(Stamped(seq, 0.0, Notice(Place(), "info", "x", text)))
    journal.close()

    tracemalloc.start()
    with read_journal(tmp_path / "events.jsonl") as reading:
        count = sum(1 for _ in reading)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == 20_000
    assert peak < 2 * 1024 * 1024


def test_a_directory_or_a_pipe_is_no_journal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")

    with pytest.raises(UsageError, match="not a regular file"):
        read_journal(tmp_path / "events.jsonl")


def test_a_sync_that_failed_is_told_and_ends_the_journal(tmp_path: Path) -> None:
    def sync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = open_journal(tmp_path, Disk(sync=sync))
    journal(stamped(run_started())[0])

    with pytest.raises(OSError, match="Input/output error"):
        journal(stamped(run_started(), run_finished())[1])


def test_records_of_some_types_are_read_and_all_are_verified(tmp_path: Path) -> None:
    path = written(tmp_path, journaled())

    with read_journal(path) as reading:
        found = [record["type"] for record in reading.of_types([RunFinished, RunStarted])]
        assert reading.last_seq == journaled()[-1].seq

    assert found == ["run.started", "run.finished"]
    first, second, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((first, second.replace(b'"v":1', b'"v":3'), *rest)))
    with pytest.raises(JournalError, match="this line"), read_journal(path) as reading:
        list(reading.of_types([RunFinished]))


def test_the_last_number_is_that_of_a_record_that_was_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, journaled()[:-1])

    with read_journal(path) as reading:
        assert len(list(reading.of_types([RunStarted]))) == 1
        assert reading.last_seq == journaled()[-2].seq
        assert reading.last_seq == journaled()[-2].seq


@pytest.mark.parametrize("tail", [b"", b'{"v":1', b"\0" * 5000, b'{"v"\0\0\n\0\0'])
def test_the_last_record_is_found_from_the_end(tmp_path: Path, tail: bytes) -> None:
    path = written(tmp_path, journaled())
    with path.open("ab") as file:
        file.write(tail)

    with path.open("rb") as file:
        found = last_record(file.fileno())

    assert found is not None
    assert json.loads(found)["type"] == "run.finished"


@pytest.mark.parametrize("content", [b"", b"half", b'{"v":1,"crc":"00000000"}\n'])
def test_without_a_whole_record_there_is_no_last_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)

    with (tmp_path / "file").open("rb") as file:
        assert last_record(file.fileno()) is None


@pytest.mark.parametrize("fails", ["write", "sync"])
def test_a_record_that_cannot_be_appended_leaves_nothing_and_keeps_the_lock(
    tmp_path: Path, fails: str
) -> None:
    path = written(tmp_path, journaled()[:-1])
    before = path.read_bytes()
    *_, end = journaled()

    def write(descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data[:10] if fails == "write" else data)

    def sync(descriptor: int) -> None:
        del descriptor
        if fails == "sync":
            raise OSError(errno.EIO, "Input/output error")

    with hold_journal(tmp_path) as held:
        with pytest.raises(OSError, match=r"No space left|Input/output"):
            held.append(end, Disk(write, sync))
        assert path.read_bytes() == before
        with pytest.raises(UsageError, match="is being written"):
            open_journal(tmp_path)

        held.append(end)

    assert records(path)[-1]["seq"] == end.seq
    open_journal(tmp_path).close()


def test_an_answer_to_a_question_is_synced_before_it_counts(tmp_path: Path) -> None:
    written(tmp_path, journaled())
    synced: list[int] = []

    with hold_journal(tmp_path) as held:
        held.append(Stamped(99, 0.0, answered()), Disk(os.write, synced.append))
        assert len(synced) == 1
