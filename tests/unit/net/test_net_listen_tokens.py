"""Bearer tokens and codes: where they come from, how long they are good (H18, A2)."""

import fcntl
import hmac
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from work import work_of

from aish.core.errors import UsageError
from aish.net.listen.tokens import (
    ClientToken,
    Tokens,
    ensure_token,
    token_from_env,
    token_from_file,
)

SECRET = "s" * 31 + "1"
OTHER = "s" * 31 + "2"
READ = frozenset({"read"})
BOTH = frozenset({"read", "answer"})


class Clock:
    """The clock of a test: it moves when told."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


def private(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_tokens_come_from_the_environment_and_from_private_files(tmp_path: Path) -> None:
    file = private(tmp_path / "token", f"{OTHER}\n")

    first = token_from_env("ci", "CI_TOKEN", ["read"], {"CI_TOKEN": SECRET})
    second = token_from_file("phone", file, ["read", "answer"])

    assert (first.name, first.scopes, first.value) == ("ci", READ, SECRET)
    assert (second.scopes, second.value) == (BOTH, OTHER)
    assert SECRET not in f"{first!r} {first}"


@pytest.mark.parametrize(
    "value", ["", "tiny-x", "s" * 31, "s" * 40 + " x", "s" * 40 + "\n", "ä" * 40, "s" * 5000]
)
def test_what_is_no_token_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        token_from_env("ci", "CI_TOKEN", ["read"], {"CI_TOKEN": value} if value else {})

    assert "`ci`" in caught.value.message
    assert not value or value not in f"{caught.value} {caught.value.hint}"


def _readable(path: Path) -> Path:
    return private(path, SECRET, 0o640)


def _link(path: Path) -> Path:
    path.symlink_to(private(path.with_name("real"), SECRET))
    return path


def _hard_link(path: Path) -> Path:
    path.hardlink_to(private(path.with_name("real"), SECRET))
    return path


def _foreign(path: Path) -> Path:
    private(path, SECRET)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)
    return path


def _fifo(path: Path) -> Path:
    os.mkfifo(path, 0o600)
    return path


def _folder(path: Path) -> Path:
    path.mkdir(0o600)
    return path


@pytest.mark.parametrize(
    "plant", [_readable, _link, _hard_link, _foreign, _fifo, _folder, lambda path: path]
)
def test_a_file_that_others_could_have_made_or_read_is_refused(
    tmp_path: Path, plant: Callable[[Path], Path]
) -> None:
    path = plant(tmp_path / "token")

    with pytest.raises(UsageError):
        token_from_file("ci", path, ["read"])


def test_a_token_is_made_once_and_kept_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    before = os.umask(0)
    try:
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(lambda _: ensure_token("run", path, ["read"]), range(16)))
    finally:
        os.umask(before)

    assert len({token.value for token in made}) == 1
    assert len(made[0].value) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["token"]


def test_another_process_that_writes_there_to_a_busy_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two servers do that begin at the same moment."""
    other, pauses = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if sum(pauses) > 5:
            fcntl.flock(other, fcntl.LOCK_UN)

    monkeypatch.setattr("aish.system.file_lock.time", SimpleNamespace(sleep=sleep))
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        made = ensure_token("run", tmp_path / "token", ["read"])
    finally:
        os.close(other)

    assert made.value in (tmp_path / "token").read_text("ascii")
    assert 5 < sum(pauses) < 6


def test_a_planted_link_is_not_followed_when_a_token_is_made(tmp_path: Path) -> None:
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UsageError, match="link"):
        ensure_token("run", tmp_path / "token", ["read"])

    assert not (tmp_path / "elsewhere").exists()


def test_a_token_is_found_by_its_whole_value_only() -> None:
    tokens = Tokens([ClientToken("a", READ, SECRET), ClientToken("b", READ, OTHER)], Clock())

    found = [tokens.find(value) for value in (SECRET, OTHER)]

    assert [token and token.name for token in found] == ["a", "b"]
    for wrong in ("", SECRET[:-1], SECRET + "x", SECRET.upper(), "\udcff" * 40, "x" * 100_000):
        assert tokens.find(wrong) is None


def test_a_token_is_compared_with_all_whether_it_was_found_or_not() -> None:
    many = [ClientToken(str(n), READ, f"{n:040}") for n in range(50)]
    tokens = Tokens(many, Clock())

    compared = [
        work_of(lambda value=value: tokens.find(value)).calls[hmac.compare_digest.__qualname__]  # type: ignore[misc]  # the loop's value
        for value in (many[0].value, many[49].value, "wrong")
    ]

    assert compared == [50, 50, 50]


def test_two_clients_with_one_token_are_refused() -> None:
    with pytest.raises(UsageError, match="`a` and `b`"):
        Tokens([ClientToken("a", READ, SECRET), ClientToken("b", READ, SECRET)], Clock())


def test_configured_tokens_are_exchanged_at_once_and_issued_ones_stay() -> None:
    tokens = Tokens([ClientToken("a", READ, SECRET)], Clock())
    issued = tokens.issue("page", READ, 60)

    tokens.configure([ClientToken("b", READ, OTHER)])

    assert tokens.find(SECRET) is None
    assert tokens.find(OTHER) is not None
    assert tokens.find(issued.value) is not None


def test_a_code_is_good_once_and_for_sixty_seconds() -> None:
    clock = Clock()
    tokens = Tokens([], clock)
    used, late, good = (tokens.issue_code("page", ["read", "answer"]) for _ in range(3))
    first = tokens.redeem(used, 3600)
    second = tokens.redeem(used, 3600)

    clock.seconds += 59.9
    in_time = tokens.redeem(good, 3600)
    clock.seconds += 0.1
    too_late = tokens.redeem(late, 3600)

    assert first is not None
    assert (first.name, first.scopes) == ("page", BOTH)
    assert tokens.find(first.value) == first
    assert in_time is not None
    assert second is None
    assert too_late is None


def test_a_code_is_no_token_and_a_token_no_code() -> None:
    tokens = Tokens([ClientToken("a", READ, SECRET)], Clock())
    code = tokens.issue_code("page", READ)

    assert tokens.find(code) is None
    assert tokens.redeem(SECRET, 60) is None
    assert tokens.redeem(code, 60) is not None


def test_codes_cannot_be_guessed() -> None:
    tokens = Tokens([], Clock())
    code = tokens.issue_code("page", READ)

    for number in range(2000):
        assert tokens.redeem(f"{code[:-3]}{number:03}", 60) is None or code.endswith(f"{number:03}")
    assert len(code) >= 43


def test_an_issued_token_expires_and_their_number_is_bounded() -> None:
    clock = Clock()
    tokens = Tokens([], clock)
    first = tokens.issue("page", READ, 10)
    codes = [tokens.issue_code("page", READ) for _ in range(65)]
    clock.seconds += 10

    assert tokens.find(first.value) is None
    assert tokens.redeem(codes[0], 60) is None
    assert tokens.redeem(codes[1], 60) is not None
    issued = [tokens.issue("page", READ, 60) for _ in range(101)]
    assert tokens.find(issued[0].value) is None
    assert tokens.find(issued[1].value) is not None
