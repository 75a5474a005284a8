"""Bytes in a file without a name."""

from pathlib import Path

import pytest

from aish.system.spool import Spool


def test_what_was_put_down_is_read_back_until_it_is_freed() -> None:
    spool = Spool()
    places = [spool.put(bytes([n]) * n) for n in range(5)]

    assert [spool.read(place) for place in places] == [bytes([n]) * n for n in range(5)]
    assert spool.take(places.pop()) == b"\4" * 4
    for place in places:
        spool.free(place)
    again = spool.put(b"from the start")
    assert again == (0, len(b"from the start"))
    assert spool.read(again) == b"from the start"
    spool.close()
    spool.close()


def test_it_has_no_name_and_where_there_is_no_room_bytes_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = Spool()
    place = spool.put(b"here")
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    other = Spool()
    kept = other.put(b"kept")

    assert kept == b"kept" == other.take(kept)
    assert spool.take(place) == b"here"
    spool.close()
    other.close()
