"""Keys that commands print and files hold: real programs, and what is said when there is none."""

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from key_scenes import TokenProgram, on_path, program, shell_program
from model_turns import Ticking
from waits import MovedClock

from aish.config.model import KeySource
from aish.core.errors import ExitCode, UnavailableError
from aish.engine.environment import RunEnvironment
from aish.engine.plan.credentials import ResolvedKey
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import load_checked, make_plan, own_files
from aish.engine.resources.made_keys import made_key
from aish.engine.run_folder import RunFolder
from aish.net.renewed_secret import RenewedSecret
from aish.system.process.child import child_environment
from aish.system.process.reaper import Reaper
from aish.system.secrets.secrets import Secrets
from aish.terminal.unattended import Unattended

pytestmark = pytest.mark.anyio

PLACE = "models.cloud.key_command"


class Scene:
    """A folder with programs in it, and the keys that they make."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = Secrets()
        self.clock = Ticking()
        self.reaper = Reaper()
        run = RunFolder(id="keys", path=None, mask=self.secrets.mask)
        self.environment = RunEnvironment(lambda _: None, Unattended(), self.clock, run, {})

    def key(self, *words: str, place: str = PLACE, seconds: float | None = None) -> RenewedSecret:
        environ = {**os.environ, "PATH": on_path(self.folder)}
        source = KeySource(place, words, self.folder, seconds=seconds)
        env = child_environment({}, environ)
        return self.of(ResolvedKey(source, env))

    def of(self, key: ResolvedKey) -> RenewedSecret:
        return made_key(key, self.secrets, self.reaper, self.environment)

    def sh(self, text: str) -> RenewedSecret:
        """The key that a shell script of this folder prints."""
        shell_program(self.folder / "make-key", text)
        return self.key("make-key")

    def file(self, content: bytes, seconds: float | None = None) -> RenewedSecret:
        (self.folder / "key.txt").write_bytes(content)
        path = self.folder / "key.txt"
        return self.of(ResolvedKey(KeySource("models.cloud.key_file", file=path, seconds=seconds)))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.reaper.close()


async def refusal(key: RenewedSecret) -> UnavailableError:
    with pytest.raises(UnavailableError) as caught:
        await key.current()
    assert caught.value.exit_code is ExitCode.UNAVAILABLE
    assert caught.value.hint
    return caught.value


async def test_what_a_command_prints_is_the_key_and_a_secret(scene: Scene) -> None:
    key = scene.sh("echo '  a-key-of-mine-42  '; echo; echo ignored >&2")
    assert (await key.current()).value == "a-key-of-mine-42"
    assert scene.secrets.mask("is a-key-of-mine-42") == f"is <secret:{PLACE}>"


async def test_a_command_runs_in_its_folder_with_a_small_environment(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_PROGRAM_TOKEN", "not-for-everybody")
    key = scene.sh('printf \'%s-%s\' "$PWD" "${OTHER_PROGRAM_TOKEN-nothing-else}"')
    assert (await key.current()).value == f"{scene.folder}-nothing-else"


async def test_models_with_the_same_command_share_its_key(scene: Scene, tmp_path: Path) -> None:
    maker = TokenProgram(tmp_path)
    first = scene.key("make-token", place="models.a.key_command")
    second = scene.key("make-token", place="models.b.key_command")
    assert (await first.current()) is (await second.current())
    assert maker.made == 1


async def test_a_key_is_made_anew_after_its_ttl(scene: Scene, tmp_path: Path) -> None:
    TokenProgram(tmp_path)
    key = scene.key("make-token", seconds=50 * 60)
    first = await key.current()
    await scene.clock.sleep(50 * 60 - 1)
    assert await key.current() is first
    await scene.clock.sleep(1)
    assert (await key.current()).value == "made-token-2-0123456789"


def jwt(expiry: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expiry}).encode()).rstrip(b"=")
    return f"eyJhbGciOiJub25lIn0.{claims.decode()}.c2lnbmF0dXJl"


async def test_a_jwt_is_made_anew_a_little_before_it_expires(scene: Scene) -> None:
    key = scene.file(jwt(scene.clock.now() + 100).encode())
    first = await key.current()
    scene.file(jwt(scene.clock.now() + 500).encode())
    await scene.clock.sleep(89)
    assert await key.current() is first
    await scene.clock.sleep(1)
    assert await key.current() is not first


async def test_a_jwt_that_stays_the_same_is_used_to_its_end_and_tried_after_it(
    scene: Scene,
) -> None:
    key = scene.file(jwt(scene.clock.now() + 100).encode())
    first = await key.current()
    await scene.clock.sleep(90)
    again = await key.current()
    await scene.clock.sleep(9)
    assert await key.current() is again
    await scene.clock.sleep(1)
    last = await key.current()
    await scene.clock.sleep(1000)
    assert await key.current() is last
    assert first.value == again.value == last.value


async def test_a_file_is_read_again_where_its_key_was_refused(scene: Scene) -> None:
    key = scene.file(b"the-first-key\n")
    first = await key.current()
    assert first.value == "the-first-key"
    scene.file(b"the-second-key\r\n")
    second = await key.replacement(first)
    assert second.value == "the-second-key"
    assert scene.secrets.mask("the-first-key the-second-key") == " ".join(
        ["<secret:models.cloud.key_file>"] * 2
    )


async def test_a_replay_makes_nothing(scene: Scene) -> None:
    source = KeySource(PLACE, ("no-such-program",), scene.folder)
    key = scene.of(ResolvedKey(source, stand_in=f"<secret:{PLACE}>"))
    assert (await key.current()).value == f"<secret:{PLACE}>"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "`make-key` ended with exit code 3"),
        ("echo 'please log in' >&2; exit 1", "exit code 1; its stderr ends with: please log in"),
        ("kill -9 $$", "`make-key` was ended by signal 9"),
        ("true", "`make-key` printed nothing"),
        ("echo; echo ' '", "`make-key` printed nothing"),
        ("echo first-line; echo second-line", "has 2 lines, and a key is one"),
        (r"printf 'a-key\rof-mine'", "has 2 lines, and a key is one"),
        (r"printf 'a-key-\377\376-of-mine'", "the output of `make-key` is not UTF-8"),
        (r"printf 'a-key-\033[0m-of-mine'", "has characters that are not allowed in a header"),
        ("echo schlüssel-von-mir", "has characters that are not allowed in a header"),
        (r"printf 'a-key\000-of-mine'", "has characters that are not allowed in a header"),
        ("echo short", "is shorter than 8 characters"),
        ("head -c 70000 /dev/zero | tr '\\0' x", "printed more than 64 KiB"),
    ],
)
async def test_a_command_without_a_usable_key_says_why(
    scene: Scene, script: str, message: str
) -> None:
    error = await refusal(scene.sh(script))
    assert message in error.message
    assert error.where == PLACE


async def test_a_program_that_is_missing_or_cannot_run_is_named(scene: Scene) -> None:
    error = await refusal(scene.key("no-such-program"))
    assert error.message == "cannot start `no-such-program`: No such file or directory"
    assert error.hint == "is `no-such-program` in a folder of `PATH`?"
    (scene.folder / "plain").write_text("text", "utf-8")
    assert "Permission denied" in (await refusal(scene.key("./plain"))).message


async def test_stderr_of_a_failed_command_shows_neither_its_key_nor_other_secrets(
    scene: Scene,
) -> None:
    scene.secrets.add("VAULT_TOKEN", "hvs.a-vault-token")
    key = scene.sh(
        "echo a-key-of-mine-42; echo 'got a-key-of-mine-42 by hvs.a-vault-token' >&2; exit 1"
    )
    error = await refusal(key)
    assert f"got <secret:{PLACE}> by <secret:VAULT_TOKEN>" in error.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"a-first-line\na-second-line\n", "has 2 lines"),
        (b"\xff\xfe-a-key-of-mine", "is not UTF-8"),
        (b"\xef\xbb\xbfa-key-of-mine", "not allowed in a header"),
        (b"x" * 70_000, "is larger than 64 KiB"),
        (b"short", "is shorter than 8 characters"),
    ],
)
async def test_a_file_without_a_usable_key_says_why(
    scene: Scene, content: bytes, message: str
) -> None:
    assert message in (await refusal(scene.file(content))).message


async def test_a_file_that_is_missing_or_none_is_named(scene: Scene) -> None:
    os.mkfifo(scene.folder / "pipe")
    for name, message in (("none", "No such file"), (".", "is not a file"), ("pipe", "is not a")):
        key = scene.of(ResolvedKey(KeySource(PLACE, file=scene.folder / name)))
        assert message in (await refusal(key)).message


HANGS = f"""\
#!{sys.executable}
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("almost a key", file=sys.stderr, flush=True)
with open("started.part", "w") as file:
    print(os.getpid(), child.pid, file=file)
os.rename("started.part", "started")
child.wait()
"""


async def wait_started(folder: Path) -> list[int]:
    """The processes of a hanging command, once they are there."""
    while not (folder / "started").exists():
        await anyio.lowlevel.checkpoint()
    return [int(word) for word in (folder / "started").read_text("utf-8").split()]


def are_gone(processes: list[int]) -> bool:
    return not any(_is_running(pid) for pid in processes)


def _is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    clock = MovedClock()
    program(tmp_path / "make-key", HANGS)

    async def main() -> None:
        scene = Scene(tmp_path)
        key = scene.key("make-key")

        async def run_out() -> None:
            processes.extend(await wait_started(tmp_path))
            clock.run_out(30)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_out)
            error = await refusal(key)
        assert "`make-key` did not end within 30 s; its stderr ends with: almost" in error.message
        scene.reaper.close()

    processes: list[int] = []
    anyio.run(main, backend_options={"loop_factory": clock.loop})
    assert processes
    assert are_gone(processes)


async def test_a_command_is_ended_with_the_request_that_waits_for_it(scene: Scene) -> None:
    program(scene.folder / "make-key", HANGS)
    key = scene.key("make-key")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(key.current)
        processes = await wait_started(scene.folder)
        tasks.cancel_scope.cancel()
    assert are_gone(processes)


def test_no_tool_writes_the_file_of_a_key(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "aish: 1\n"
        "mcp: {servers: {a: {url: 'http://nobody.test/mcp', auth_file: a.key}, b: {url:"
        " 'http://nobody.test/mcp', oauth: {client_id: c, private_key_file: b.pem}}}}\n"
        "call: a__find\n",
        "utf-8",
    )
    plan = make_plan(load_checked(file, ()), RunOptions(environ={}))
    assert own_files(plan) >= {tmp_path.resolve() / "a.key", tmp_path.resolve() / "b.pem"}
