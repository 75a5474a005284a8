"""Keys that a command prints or a file holds, made at their first use; for runs that have any.

A key is a secret before anything else is done with it, and stays in memory.
"""

import os
import stat
from collections.abc import Callable, Mapping

import anyio.to_thread

from aish.core.errors import UnavailableError
from aish.core.patterns import lazy_pattern
from aish.core.phrases import counted
from aish.core.protocols import Clock
from aish.engine.environment import RunEnvironment
from aish.engine.plan.credentials import ResolvedKey
from aish.net.renewed_secret import RenewedSecret, Token, jwt_expiry, seconds_of_use
from aish.system.files import read_capped
from aish.system.offline import permit_attempts
from aish.system.process.child import CommandResult, run_command
from aish.system.process.reaper import Reaper
from aish.system.process.reaper_process import MARK
from aish.system.secrets.secrets import SHORTEST, Secrets

COMMAND_SECONDS = 30.0
LARGEST = 64 * 1024
_SHOWN = 400
_ALLOWED = lazy_pattern(r"[\t\x20-\x7e]+")
_ALONE = "it has to print the key alone: an option for its format, or `jq -r`, selects that"
_BY_HAND = "run it by hand, with no more of the environment than `env` and `secrets` of the file"


def made_key(
    key: ResolvedKey, secrets: Secrets, reaper: Reaper, environment: RunEnvironment
) -> RenewedSecret:
    """The secret of a source: one in a whole run, whoever uses it."""
    source = key.source
    made_by = (source.command, source.folder, source.file, source.seconds, *sorted(key.env.items()))
    if made_by not in environment.keys:
        clock = environment.clock
        make = _Maker(key, secrets, reaper, clock)
        environment.keys[made_by] = RenewedSecret(make, clock.monotonic)
    return environment.keys[made_by]


def made_headers(
    keys: Mapping[str, ResolvedKey], secrets: Secrets, reaper: Reaper, environment: RunEnvironment
) -> Mapping[str, tuple[str, RenewedSecret]]:
    """The secrets of headers by name, each after what stands before it there."""
    return {
        name: (key.source.scheme, made_key(key, secrets, reaper, environment))
        for name, key in keys.items()
    }


class _Maker:
    """Makes the key of one source, again and again."""

    def __init__(self, key: ResolvedKey, secrets: Secrets, reaper: Reaper, clock: Clock) -> None:
        self._key = key
        self._source = key.source
        self._secrets = secrets
        self._reaper = reaper
        self._clock = clock
        self._last = ""

    async def __call__(self) -> Token:
        """A new key.

        Raises:
            UnavailableError: there is none.
        """
        if self._key.stand_in is not None:
            return Token(self._key.stand_in)
        began = self._clock.monotonic()
        raw = await (self._print() if self._source.command else self._read())
        value = self._check(raw)
        self._secrets.add(self._source.place, value)
        limits = [] if self._source.seconds is None else [self._source.seconds]
        if (expiry := jwt_expiry(value)) is not None:
            left = expiry - self._clock.now()
            # A program may give the same one until it expires: asking it early is of no use then.
            limits.append(left if value == self._last else seconds_of_use(left))
        self._last = value
        left = min(limits, default=0.0) - (self._clock.monotonic() - began)
        # One that seems over already is tried: the clocks of two machines may differ.
        return Token(value, left if left > 0 else None)

    async def _print(self) -> bytes:
        program = self._source.command[0]
        try:
            with permit_attempts():
                result = await run_command(
                    self._source.command,
                    cwd=self._source.folder,
                    env={**self._key.env, MARK: os.urandom(16).hex()},
                    timeout=COMMAND_SECONDS,
                    limit_bytes=LARGEST,
                    reaper=self._reaper,
                )
        except OSError as error:
            why = error.strerror or str(error)
            hint = _BY_HAND if "/" in program else f"is `{program}` in a folder of `PATH`?"
            raise self._failure(f"cannot start `{program}`: {why}", hint) from error
        if result.timed_out:
            message = f"`{program}` did not end within {COMMAND_SECONDS:g} s"
            raise self._failure(
                message + self._stderr_end(result), "does it ask something? " + _BY_HAND
            )
        if result.stdout_bytes > LARGEST:
            raise self._failure(f"`{program}` printed more than {LARGEST >> 10} KiB", _ALONE)
        if result.exit_code != 0:
            code = result.exit_code
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise self._failure(f"`{program}` {how}{self._stderr_end(result)}", _BY_HAND)
        if not result.stdout.strip():
            raise self._failure(f"`{program}` printed nothing{self._stderr_end(result)}", _BY_HAND)
        return result.stdout

    async def _read(self) -> bytes:
        path = self._source.file
        assert path is not None, "a key has a command or a file"

        def read() -> bytes:
            if not stat.S_ISREG(path.stat().st_mode):
                raise self._failure(f"`{path}` is not a file", "name a file that holds the key")
            if path.stat().st_size > LARGEST:
                raise self._failure(f"`{path}` is larger than {LARGEST >> 10} KiB", _IN_FILE)
            return read_capped(path, LARGEST)

        try:
            raw = await anyio.to_thread.run_sync(read)
        except OSError as error:
            why = error.strerror or str(error)
            raise self._failure(f"cannot read `{path}`: {why}", "does it hold the key?") from error
        if not raw.strip():
            raise self._failure(f"`{path}` is empty", _IN_FILE)
        return raw

    def _check(self, raw: bytes) -> str:
        """The key in an output or a file.

        Raises:
            UnavailableError: it cannot be sent in a header, or could not be masked.
        """
        source = self._source
        is_command = bool(source.command)
        what = f"the output of `{source.command[0]}`" if is_command else f"`{source.file}`"
        hint = _ALONE if is_command else _IN_FILE
        try:
            value = raw.decode().strip()
        except UnicodeDecodeError:
            raise self._failure(f"{what} is not UTF-8", hint) from None
        lines = value.splitlines()
        if len(lines) > 1:
            raise self._failure(f"{what} has {counted(len(lines), 'line')}, and a key is one", hint)
        if not _ALLOWED.fullmatch(value):
            message = f"{what} has characters that are not allowed in a header"
            raise self._failure(message, hint)
        if len(value) < SHORTEST:
            message = f"{what} is shorter than {SHORTEST} characters"
            raise self._failure(message, "so short a key would be masked in ordinary text")
        return value

    def _stderr_end(self, result: CommandResult) -> str:
        """The end of the stderr of a failed command, without what it printed as the key."""
        printed = Secrets()
        for line in result.stdout.decode("utf-8", "replace").splitlines():
            if len(line.strip()) >= SHORTEST:
                printed.add(self._source.place, line.strip())
        text = self._secrets.mask(printed.mask(result.stderr.decode("utf-8", "replace"))).strip()
        return f"; its stderr ends with: {text[-_SHOWN:]}" if text else ""

    def _failure(self, message: str, hint: str) -> UnavailableError:
        mask: Callable[[str], str] = self._secrets.mask
        return UnavailableError(mask(message), where=self._source.place, hint=mask(hint))


_IN_FILE = "it has to hold the key alone, in one line"
