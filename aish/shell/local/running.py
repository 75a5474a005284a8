"""What a local command is run in and how its output is told while it runs (S2, X8)."""

import codecs
from collections.abc import Mapping

from aish.config.model import Pipeline
from aish.core.events import Notice, Place, ToolOutput
from aish.core.protocols import Emit
from aish.engine.resources.local_commands import OUTPUT_LIMIT, SHELL_RUN
from aish.system.process.child import CommandResult, Stream
from aish.system.secrets.secrets import Secrets

_MIB = 1024 * 1024


def own_environment(
    environ: Mapping[str, str], pipeline: Pipeline, secrets: Secrets
) -> dict[str, str]:
    """The person's own environment without what holds a secret of the file.

    A command of one's own finds what it finds in any terminal, and no `env` that a model proposes
    prints a key.
    """
    named = {model.key_env for model in pipeline.models.values()}
    named |= {server.auth_env for server in pipeline.servers.values()}
    return {
        name: value
        for name, value in environ.items()
        if name not in named and secrets.mask(value) == value
    }


class Output:
    """Tells what a command prints as it comes, and has it all at the end."""

    def __init__(self, place: Place, emit: Emit) -> None:
        self._place = place
        self._emit = emit
        self._texts: dict[Stream, list[str]] = {"stdout": [], "stderr": []}
        # A character may come in two pieces.
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder("replace") for stream in self._texts}

    @property
    def stdout(self) -> str:
        """What has come so far."""
        return "".join(self._texts["stdout"])

    @property
    def stderr(self) -> str:
        """Likewise."""
        return "".join(self._texts["stderr"])

    def printed(self, stream: Stream, data: bytes) -> None:
        """Some bytes of it."""
        self._tell(stream, self._decoders[stream].decode(data))

    def ended(self, result: CommandResult) -> None:
        """It has ended by itself."""
        self.close()
        if result.truncated:
            total = max(result.stdout_bytes, result.stderr_bytes)
            text = f"the first {OUTPUT_LIMIT // _MIB} MiB of {total:,} bytes of output were kept"
            self._emit(Notice(self._place, "warning", "output_cut", text))

    def close(self) -> None:
        """Nothing more comes: half a character is one that cannot be read."""
        for stream, decoder in self._decoders.items():
            self._tell(stream, decoder.decode(b"", final=True))

    def _tell(self, stream: Stream, text: str) -> None:
        if text:
            self._texts[stream].append(text)
            self._emit(ToolOutput(self._place, str(SHELL_RUN.name), text, stream))
