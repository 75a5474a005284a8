"""What holds in every test: a clean environment, no network but loopback, the real program."""

import fcntl
import gc
import ipaddress
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import pytest
import quick_syncs
from cli_process import Aish, clean_environment
from fork_server import ForkServer
from hypothesis import HealthCheck, settings
from model_endpoint import Answer, ModelEndpoint
from portable_forms import PORTABLE
from samples import COLLECTED, TURN, divide_by_cost, waiting_for_their_turn

# What `make test-all` does: many examples, all cases, and the tests marked `slow`.
_ALL = os.environ.get("AISH_TEST_ALL") == "1"
# What `make test-browser` does: the tests marked `browser`.
_BROWSER = os.environ.get("AISH_TEST_BROWSER") == "1"
# With it one test in so many starts the real executable, not only those marked `real_process`:
# always the same ones, and with 1 every test.
_REAL = int(os.environ.get("AISH_TEST_REAL") or 0)

# A slow machine is no failure: neither an example nor the making of examples is timed.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", _UNTIMED, max_examples=15)
settings.register_profile("many", _UNTIMED, max_examples=100)
settings.load_profile("many" if _ALL else "few")
if not _ALL:
    quick_syncs.install()

# What would change a run, or let a test reach somebody's account.
_SWITCHES = re.compile(
    r"(?:.*_(?:API_KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS|PROXY)|(?:https?|all|ftp|no)_proxy"
    r"|CI|GITHUB_.*|ACTIONS_.*|TF_BUILD|NO_COLOR|FORCE_COLOR|CLICOLOR(?:_FORCE)?|COLUMNS|LINES"
    r"|COLORTERM|TERM_PROGRAM.*|AISH_.*|XDG_.*|SSL_CERT_.*|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    r"|PYTHONIOENCODING|PYTHONUTF8|LC_.*|LANGUAGE)"
)
# A shell that starts `make test` in the background has all programs of it ignore the signals of the
# keyboard, and `nohup` that of a closed terminal.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)

_REAL_CONNECT = socket.socket.connect
_REAL_CONNECT_EX = socket.socket.connect_ex
_REAL_GETADDRINFO = socket.getaddrinfo


_LEFT_OUT = pytest.StashKey[int]()


class NetworkBlockedError(AssertionError):
    """A test tried to leave this machine."""


def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: more than there are cores, because tests wait for each other's ends."""
    return 2 * len(os.sched_getaffinity(0))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """No search for garbage while ten thousand tests are made that all stay."""
    gc.disable()
    try:
        with _one_compiles() if hasattr(session.config, "workerinput") else nullcontext():
            return (yield)
    finally:
        gc.enable()


@contextmanager
def _one_compiles() -> Generator[None]:
    """Let the first worker of a fresh clone compile the tests, and the others wait for that.

    Where each does it they need twice the CPU time.
    """
    folder = Path(__file__).parent / "__pycache__"
    compiled = folder / f"compiled-{sys.implementation.cache_tag}-{pytest.__version__}"
    if sys.dont_write_bytecode or compiled.exists():
        yield
        return
    folder.mkdir(exist_ok=True)
    with (folder / "compiling").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if compiled.exists():
            fcntl.flock(file, fcntl.LOCK_UN)
        try:
            yield
        finally:
            compiled.touch()


def pytest_collection_finish() -> None:
    """What was collected stays: no search for garbage in a test has to look through it."""
    gc.freeze()


@pytest.hookimpl(trylast=True)  # syrupy has seen all of them then
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = tuple(items)
    for item in items:
        if item.get_closest_marker("browser") is not None and not _BROWSER:
            item.add_marker(pytest.mark.skip(reason="drives Chromium (make test-browser runs it)"))
        if PORTABLE and item.get_closest_marker("linux_forms") is not None:
            item.add_marker(pytest.mark.skip(reason="needs calls that only Linux has"))
    if not _ALL:
        kept, left_out = divide_by_cost(items, waiting_for_their_turn())
        items[:] = kept
        config.stash[_LEFT_OUT] = len(left_out)
        config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a worker send how many tests it has left out; each of them has collected all."""
    if (sent := getattr(session.config, "workeroutput", None)) is not None:
        sent["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if count := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(
            f"{count} slow tests were left out (AISH_TEST_TURN={TURN}): AISH_TEST_ALL=1 runs them"
        )


@pytest.fixture
def anyio_backend() -> str:
    """Return the backend that the program runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A home folder with nothing in it."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session", autouse=True)  # ruff: ignore[pytest-fixture-autouse] - for all
def _clean_environment(empty_home: Any) -> Iterator[None]:
    """Once for all tests: what one of them changes after that, it takes back itself."""
    with (
        TemporaryDirectory(prefix="aish-") as runtime,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        for name in list(os.environ):
            if _SWITCHES.fullmatch(name):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(empty_home))
        # That of the user is one for all workers, and the path of a socket must be short.
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        monkeypatch.setenv("LANG", "C.UTF-8")
        monkeypatch.setenv("TERM", "xterm-256color")
        yield


@pytest.fixture(scope="session", autouse=True)  # ruff: ignore[pytest-fixture-autouse] - for all
def _loopback_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(socket.socket, "connect", _connect)
        monkeypatch.setattr(socket.socket, "connect_ex", _connect_ex)
        monkeypatch.setattr(socket, "getaddrinfo", _getaddrinfo)
        yield


@pytest.fixture(scope="session")
def fork_server(empty_home: Any) -> Iterator[ForkServer]:
    """What has imported `aish` already; it starts with the first test that needs it."""
    with ForkServer(clean_environment(empty_home), syncs=_ALL) as server:
        yield server


@pytest.fixture
def warm(request: pytest.FixtureRequest, fork_server: ForkServer) -> ForkServer | None:
    """What forks the processes of a test; none where it is to start the real executable."""
    chosen = _REAL and crc32(request.node.nodeid.encode()) % _REAL == 0
    real = chosen or request.node.get_closest_marker("real_process") is not None
    return None if real else fork_server


@pytest.fixture
def run_aish(tmp_path: Any, empty_home: Any, warm: ForkServer | None) -> Iterator[Aish]:
    """The command line as a person or a CI job would start it, in an empty folder.

    It has a runtime folder of its own, or a client would find the runs of other tests.
    """
    with TemporaryDirectory(prefix="aish-") as runtime:
        env = {**clean_environment(empty_home), "XDG_RUNTIME_DIR": runtime}
        aish = Aish(cwd=tmp_path, env=env, warm=warm)
        yield aish
        aish.close()


ModelEndpoints = Callable[..., ModelEndpoint]


@pytest.fixture
def model_endpoint() -> Iterator[ModelEndpoints]:
    """A function that starts a scripted model endpoint, closed after the test."""
    with ExitStack() as stack:

        def start(
            replies: Sequence[Answer] | Callable[[Any], Any] = (), **options: Any
        ) -> ModelEndpoint:
            return stack.enter_context(ModelEndpoint(replies, **options))

        yield start


def _connect(self: socket.socket, address: Any) -> None:
    _check(self.family, address)
    _REAL_CONNECT(self, address)


def _connect_ex(self: socket.socket, address: Any) -> int:
    _check(self.family, address)
    return _REAL_CONNECT_EX(self, address)


def _getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
    if not _is_loopback(host):
        raise NetworkBlockedError(f"a test asked for the address of {host!r}")
    return _REAL_GETADDRINFO(host, *arguments, **options)


def _check(family: int, address: Any) -> None:
    if family in {socket.AF_INET, socket.AF_INET6} and not _is_loopback(address[0]):
        raise NetworkBlockedError(f"a test tried to connect to {address!r}")


def _is_loopback(host: Any) -> bool:
    if host in {None, "", "localhost", b"localhost"}:
        return True
    text = host.decode() if isinstance(host, bytes) else str(host)
    try:
        return ipaddress.ip_address(text.split("%")[0]).is_loopback
    except ValueError:
        return text.endswith(".localhost")
