"""How a cassette can fail."""

from aish.core.errors import AishError, ExitCode, UsageError


class CassetteFileError(UsageError):
    """A cassette file that cannot be read or written; nothing was contacted."""

    code = "invalid_cassette"


class CassetteMissError(AishError):
    """Replay met a request that the cassette does not hold (C5); the message has the diff."""

    exit_code = ExitCode.CASSETTE
    code = "cassette_miss"
