"""Whether a run opens a socket, by its options and its file (A1, A7).

Imported only where one of both says something about that.
"""

from aish.cli.options import ControlOptions
from aish.config.model import ControlSettings
from aish.core.errors import UsageError
from aish.features.control.run_services import ControlRequest
from aish.net.listen.addresses import Exposure


def control_request(
    wanted: ControlOptions, settings: ControlSettings, *, waits: bool, replays: bool = False
) -> ControlRequest | None:
    """Where the run listens; `None` if nobody asked for it, and it `waits` for no answer.

    Raises:
        UsageError: the options do not fit together.
    """
    if wanted.control is None:
        is_named = bool(settings.listen)
        if wanted != ControlOptions() and not is_named:
            hint = "`--control HOST:PORT` is what they are about"
            raise UsageError("`--allow-remote` and `--tls-cert` go with `--control`", hint=hint)
        if replays or not (is_named or waits):
            return None
    elif replays:
        hint = "a replay waits for nobody: it gives the recorded answers"
        raise UsageError("`--control` and a replay exclude each other", hint=hint)
    exposure = Exposure(wanted.allow_remote, wanted.behind_proxy, wanted.tls_cert, wanted.tls_key)
    return ControlRequest(tuple(wanted.control or ()), exposure)
