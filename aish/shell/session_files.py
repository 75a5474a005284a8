"""Files of `context.files` in a session: with its first question, then kept current.

They go out as attachments of a question, so that a question that is taken back, repeated or
exported has them like any other attachment. In a new or changed conversation they are shown again.
"""

from pathlib import Path

from aish.agent.runtime import AgentRuntime
from aish.config.model import Context
from aish.core.events import Place
from aish.engine.resources.resources import RunFiles
from aish.engine.steps.context_files.conversation_files import ConversationFiles
from aish.packs.parse_worker import ParseWorker
from aish.system.process.reaper import Reaper

NAME = "context.files"
"""The name of the attachment."""


class SessionFiles:
    """The files of a session, whose conversation may be replaced by another one."""

    def __init__(
        self,
        settings: Context,
        folder: Path,
        tag: str,
        runtime: AgentRuntime,
        reaper: Reaper,
        *,
        allow_broad_root: bool,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._worker = ParseWorker(reaper)
        self._run = RunFiles(tag, None, self._worker)
        self._runtime = runtime
        self._allow_broad_root = allow_broad_root
        self.current: ConversationFiles | None = None
        """Those of the conversation, once it has any."""

    async def with_question(self, place: Place) -> str:
        """Return what goes out with a question: all files, or what has changed in them since.

        Raises:
            StepFailedError: a named file cannot be read, or they are too many or too large.
        """
        if self.current is not None:
            return await self.current.after_round(place)
        files = ConversationFiles(
            self._settings,
            self._folder,
            self._run,
            self._runtime,
            place,
            allow_broad_root=self._allow_broad_root,
        )
        try:
            text = await files.opening()
        except BaseException:
            files.close()
            raise
        self.current = files
        return text

    def forget(self) -> None:
        if self.current is not None:
            self.current.close()
            self.current = None

    async def close(self) -> None:
        self.forget()
        await self._worker.close()
