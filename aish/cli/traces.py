"""`--otel`: checks that traces can be sent, and the sink that sends them.

Imported only on request.
"""

import os
from contextlib import suppress

from aish.cli.boundary import say
from aish.cli.options import ReportOptions
from aish.core.errors import UsageError
from aish.engine.plan.plan import Played
from aish.reports.otel.export import Traces, credentials, open_exporter
from aish.system.secrets.secrets import Secrets


def check_traces(asked: ReportOptions, cassette: Played | None, secrets: Secrets) -> None:
    """Check before the run whether it can be traced, and mask the collector's credentials."""
    if cassette is not None and cassette.replays_models and cassette.replays_servers:
        raise UsageError(
            "`--otel` sends traces, and a replay has no network",
            hint="`aish runs report ID --otel` sends those of a run that has ended",
        )
    open_exporter(asked.otel_endpoint, os.environ).shutdown()
    for name, value in credentials(os.environ).items():
        # A value that is too short to be masked is not a usable secret.
        with suppress(UsageError):
            secrets.add(name, value)


def traces_of(asked: ReportOptions, run: str, secrets: Secrets) -> Traces:
    return Traces(
        run,
        asked.otel_endpoint,
        os.environ,
        lambda message: say(f"warning: {secrets.mask(message)}"),
        content=asked.otel_content,
    )
