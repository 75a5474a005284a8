"""Tells somebody outside of the open questions of a run: a command, or an HTTP request.

Told are the run, the tools, and how and where to answer: never arguments, and never a token. What
cannot be told is a notice, and decides nothing.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from aish.config.model import NotifySettings
from aish.core.errors import UsageError
from aish.core.events import (
    NOWHERE,
    ApprovalAnswered,
    ApprovalAsked,
    AskEnded,
    AskReceived,
    Notice,
    RunStarted,
    Stamped,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject, json_text
from aish.core.phrases import counted, shorten
from aish.core.text import for_line
from aish.engine.environment import RunHandle
from aish.journal.questions import ASK
from aish.output.event_log import Sink
from aish.output.status import approve_command
from aish.system.process.child import child_environment, run_command
from aish.system.process.reaper import Reaper
from aish.system.secrets.secrets import Secrets

JOIN_SECONDS = 5.0
"""How long more questions are waited for after the first."""
SEND_SECONDS = 10.0
"""How long a command may run, and a request may take."""
MOST_QUESTIONS = 100
"""How many are told at once; the others follow."""
_OUTPUT_BYTES = 1 << 16
_LONGEST_NAME = 200
_LONGEST_SAID = 200
_REDIRECTS = range(300, 400)
_SUCCESS = range(200, 300)


@frozen
class ToldQuestion:
    """A question as notified; without a `command` no other process can answer it.

    `link` is the page of the run with this question, without a credential; none if it has no page.
    """

    id: str
    tool: str
    command: str | None
    link: str | None = None


@frozen
class QuestionsNotification:
    """Open questions of a run, told together."""

    run: str
    questions: tuple[ToldQuestion, ...]

    @property
    def variables(self) -> dict[str, str | None]:
        """The variables for a command: one question per line, in the same order in each."""
        commands = [question.command for question in self.questions if question.command is not None]
        links = [question.link for question in self.questions if question.link is not None]
        named = {
            "AISH_RUN": self.run,
            "AISH_TOOL": "\n".join(question.tool for question in self.questions),
            "AISH_APPROVAL": "\n".join(question.id for question in self.questions),
        }
        lists = {"AISH_COMMAND": commands, "AISH_LINK": links}
        return {**named, **{name: "\n".join(values) for name, values in lists.items() if values}}

    @property
    def body(self) -> JsonObject:
        """The same for a request."""
        return {
            "v": 1,
            "run": self.run,
            "questions": [
                {"approval": question.id, "tool": question.tool}
                | ({} if question.command is None else {"command": question.command})
                | ({} if question.link is None else {"link": question.link})
                for question in self.questions
            ],
        }


class NotifyError(Exception):
    """The notification failed; the message says why."""


Send = Callable[[QuestionsNotification], Awaitable[None]]
"""Tells somebody; raises `NotifyError`."""


class Notifier(Sink):
    """A sink of events that sends notifications in the background.

    `page` is the address of its page, if it has one.
    """

    name = "notifications"

    def __init__(self, run: str, send: Send, page: str | None = None) -> None:
        self._run = run
        self._page = page
        self._send = send
        self._started: RunStarted | None = None
        self._handle: RunHandle | None = None
        self._untold: dict[str, str] = {}
        self._asked = anyio.Event()
        self._ending = anyio.Event()
        self._idle = anyio.Event()

    def attach(self, handle: RunHandle) -> None:
        self._handle = handle

    def __call__(self, stamped: Stamped) -> None:
        """Take an event; secrets in it are masked."""
        match stamped.event:
            case RunStarted() as started:
                self._started = started
            case ApprovalAsked(id=id, tool=tool, expires=expires) if expires is not None:
                # Without an end it is for the terminal of the run, where somebody is.
                self._untold[id] = shorten(for_line(tool), _LONGEST_NAME)
                self._asked.set()
            case AskReceived(request_id=id):
                self._untold[id] = ASK
                self._asked.set()
            case ApprovalAnswered(id=id) | AskEnded(request_id=id):
                self._untold.pop(id, None)
            case _:
                pass

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        """Send in the block; what is being sent at its end is given up."""
        self._asked, self._ending, self._idle = anyio.Event(), anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tell_all)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()

    async def tell_the_rest(self) -> None:
        """The run is about to pause: nothing more is waited for, and all is told before."""
        self._ending.set()
        self._asked.set()
        await self._idle.wait()

    async def _tell_all(self) -> None:
        while self._untold or not self._ending.is_set():
            await self._asked.wait()
            with anyio.move_on_after(JOIN_SECONDS):
                await self._ending.wait()
            self._asked = anyio.Event()
            joined = tuple(self._untold)
            for first in range(0, len(joined), MOST_QUESTIONS):
                await self._tell(joined[first : first + MOST_QUESTIONS])
        self._idle.set()

    async def _tell(self, ids: Sequence[str]) -> None:
        # Others may have ended while the ones before them were told.
        tools = {id: self._untold.pop(id) for id in ids if id in self._untold}
        if not tools:
            return
        questions = tuple(
            ToldQuestion(id, tool, self._command(id), self._link(id)) for id, tool in tools.items()
        )
        try:
            await self._send(QuestionsNotification(self._run, questions))
        except NotifyError as error:
            text = f"nobody was notified of {counted(len(tools), 'question')}: {error}"
            assert self._handle is not None, "it asks, so it has begun"
            self._handle.emit(Notice(NOWHERE, "warning", "notify_failed", text))

    def _command(self, id: str) -> str | None:
        started = self._started
        return approve_command(id, started) if started is not None and started.folder else None

    def _link(self, id: str) -> str | None:
        return None if self._page is None else f"{self._page}#question={id}"


def make_notifier(
    settings: NotifySettings,
    run: str,
    cwd: Path,
    environ: Mapping[str, str],
    secrets: Secrets,
    page: str | None = None,
) -> Notifier:
    """Make the notifier that the file configures; its URL is a secret from here on.

    `page` is the address of the run's page.

    Raises:
        UsageError: the variable has no URL.
    """
    if settings.url_env is None:
        return Notifier(run, _by_command(settings.command, cwd, environ, secrets), page)
    text = environ.get(settings.url_env)
    if text:
        secrets.add(settings.url_env, text)
    url = _url_of(text, settings.url_env)
    return Notifier(run, _by_request(url, settings.url_env), page)


def _by_command(
    argv: Sequence[str], cwd: Path, environ: Mapping[str, str], secrets: Secrets
) -> Send:
    async def send(notification: QuestionsNotification) -> None:
        program = f"`{argv[0]}`"
        reaper = Reaper()
        try:
            result = await run_command(
                argv,
                cwd=cwd,
                env=child_environment(notification.variables, environ),
                timeout=SEND_SECONDS,
                limit_bytes=_OUTPUT_BYTES,
                reaper=reaper,
            )
        except (OSError, ValueError) as error:
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            raise NotifyError(f"cannot start {program}: {why}") from error
        finally:
            reaper.close()
        if result.timed_out:
            raise NotifyError(f"{program} took longer than {SEND_SECONDS:g} s")
        if result.exit_code:
            # Masked before it is cut.
            stderr = secrets.mask(result.stderr.decode("utf-8", "replace")).strip()
            first = stderr.partition("\n")[0]
            why = f": {shorten(first, _LONGEST_SAID)}" if first else ""
            raise NotifyError(f"{program} ended with exit code {result.exit_code}{why}")

    return send


def _by_request(url: str, variable: str) -> Send:
    async def send(notification: QuestionsNotification) -> None:
        from aish.net.post_request import PostError, post_json

        target = f"the URL in `{variable}`"
        try:
            status = await post_json(url, json_text(notification.body).encode(), SEND_SECONDS)
        except TimeoutError as error:
            raise NotifyError(f"{target} took longer than {SEND_SECONDS:g} s") from error
        except PostError as error:
            raise NotifyError(f"{target} cannot be reached: {error}") from error
        if status not in _SUCCESS:
            why = ", and redirects are not followed" if status in _REDIRECTS else ""
            raise NotifyError(f"{target} answered with status {status}{why}")

    return send


def _url_of(text: str | None, variable: str) -> str:
    from aish.net.http import is_web_url

    where = "control.notify.url_env"
    if not text:
        raise UsageError(f"`{variable}` is not set", where=where)
    if not is_web_url(text):
        # What it holds may be a secret in the wrong variable.
        raise UsageError(f"`{variable}` holds no `http://` or `https://` URL", where=where)
    return text
