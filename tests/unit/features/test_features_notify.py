"""What tells of open questions: joined, in time, and without a word too many (A12)."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from asking_runs import RUN, answered, asked
from scripted_events import run_started
from web_server import Visit, WebServer

from aish.config.model import NotifySettings
from aish.core.events import Event, Notice, Stamped
from aish.engine.environment import RunHandle
from aish.features.control import notify
from aish.features.control.notify import Notifier, NotifyError, QuestionsNotification, make_notifier
from aish.policy.questions import Questions
from aish.system.secrets.secrets import Secrets

IDS = tuple(f"{number:032x}" for number in range(205))


def told_by(notifier: Notifier, main: Callable[[], Awaitable[None]]) -> list[Event]:
    """What the run was told while `main` ran beside the notifier."""
    emitted: list[Event] = []
    notifier.attach(RunHandle(Questions(), emitted.append, lambda _: None))
    notifier(Stamped(1, 0.0, run_started(folder=f".aish/runs/{RUN}")))

    async def served() -> None:
        with anyio.fail_after(60):
            async with notifier.serve():
                await main()

    anyio.run(served)
    return emitted


def test_questions_are_joined_and_those_with_an_answer_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "JOIN_SECONDS", 0.01)
    sent: list[QuestionsNotification] = []
    arrived = anyio.Event()

    async def send(notification: QuestionsNotification) -> None:
        await anyio.lowlevel.checkpoint()
        sent.append(notification)
        arrived.set()

    notifier = Notifier(RUN, send)

    async def main() -> None:
        for event in (
            asked(IDS[0]),
            asked(IDS[1], tool="repo__\u202e\nx" + "y" * 500),
            asked(IDS[2], expires=None),
            asked(IDS[3]),
            answered(IDS[3]),
        ):
            notifier(Stamped(2, 0.0, event))
        await arrived.wait()

    assert told_by(notifier, main) == []
    (only,) = sent
    assert [one.id for one in only.questions] == list(IDS[:2])
    assert only.questions[0].command == f"aish approve {RUN} {IDS[0][:8]}"
    assert only.questions[1].tool.startswith("repo__\\u202e")
    assert len(only.questions[1].tool) <= 201
    assert "\n" not in only.questions[1].tool


def test_the_end_waits_for_all_that_was_not_told() -> None:
    sent: list[QuestionsNotification] = []

    async def taking(notification: QuestionsNotification) -> None:
        sent.append(notification)
        if len(sent) == 1:
            # Asked while somebody is told.
            notifier(Stamped(3, 0.0, asked("f" * 32)))
        await anyio.lowlevel.checkpoint()

    notifier = Notifier(RUN, taking)

    async def main() -> None:
        for id in IDS:
            notifier(Stamped(2, 0.0, asked(id)))
        await notifier.tell_the_rest()

    assert told_by(notifier, main) == []
    assert [len(one.questions) for one in sent] == [100, 100, 5, 1]
    assert [one.id for part in sent for one in part.questions] == [*IDS, "f" * 32]


def test_a_failure_is_a_notice_and_the_next_is_sent() -> None:
    calls = 0

    async def send(_: QuestionsNotification) -> None:
        nonlocal calls
        calls += 1
        await anyio.lowlevel.checkpoint()
        raise NotifyError("it is broken")

    notifier = Notifier(RUN, send)

    async def main() -> None:
        for id in IDS[:101]:
            notifier(Stamped(2, 0.0, asked(id)))
        await notifier.tell_the_rest()

    said = told_by(notifier, main)

    assert calls == 2
    assert [one.text for one in said if isinstance(one, Notice)] == [
        "nobody was notified of 100 questions: it is broken",
        "nobody was notified of 1 question: it is broken",
    ]


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "SEND_SECONDS", 0.5)
    line = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
    settings = NotifySettings((sys.executable, "-c", line))

    said = hung(settings, tmp_path, {"PATH": "/usr/bin:/bin"})

    assert said == (f"nobody was notified of 1 question: `{sys.executable}` took longer than 0.5 s")


def test_a_url_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "SEND_SECONDS", 0.5)

    def hang(visit: Visit) -> None:
        visit.gone.wait()

    with WebServer({"/hook": hang}) as server:
        settings = NotifySettings(url_env="HOOK")
        said = hung(settings, tmp_path, {"HOOK": f"{server.url}/hook"})

    assert said == "nobody was notified of 1 question: the URL in `HOOK` took longer than 0.5 s"


def hung(settings: NotifySettings, cwd: Path, environ: dict[str, str]) -> str:
    """What is said of one question that could not be told."""
    notifier = make_notifier(settings, RUN, cwd, environ, Secrets())

    async def main() -> None:
        notifier(Stamped(2, 0.0, asked()))
        await notifier.tell_the_rest()

    (notice,) = told_by(notifier, main)
    assert isinstance(notice, Notice)
    return notice.text
