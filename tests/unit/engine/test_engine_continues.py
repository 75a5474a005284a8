"""What a resumed run takes of conversations from a journal that was written by hand (B3)."""

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_events import run_started, stamped, step_finished
from turn_files import IMAGE, Files
from work import Work, work_of

from aish.agent.conversation import Conversation
from aish.agent.turn_recorder import TurnRecorder
from aish.core.errors import UsageError
from aish.core.events import Event, Failure, Place, Retry, StepStarted, TurnAdded, to_line
from aish.core.messages import AssistantTurn, History, Turn, UserTurn
from aish.engine.execution.fingerprint import fingerprint
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, load_checked, make_plan
from aish.engine.resume_state import ResumeState
from aish.engine.run_folder import read_kept
from aish.features.resume.state import read_resume_state

RUN = "20261121T120000Z-p-abcd"
CHAIN = """
steps:
  - {id: one, prompt: One}
  - {id: two, continues: one, prompt: Two}
  - {id: three, continues: two, prompt: Three}
"""
ONE: list[Turn] = [UserTurn("One"), AssistantTurn("1", origin="m")]
TWO: list[Turn] = [UserTurn("Two"), AssistantTurn("2", origin="m")]


def plan_of(folder: Path, text: str = CHAIN) -> Plan:
    path = folder / "p.yaml"
    models = "models: {m: {base_url: http://127.0.0.1:9, model: m}}\n"
    path.write_text(f"aish: 1\n{models}{text.lstrip()}", encoding="utf-8")
    return make_plan(load_checked(path, ()), RunOptions())


def taken(
    folder: Path, *events: Event, files: Files | None = None, text: str = CHAIN
) -> ResumeState:
    records = [json.loads(to_line(event)) for event in stamped(run_started(), *events)]
    read = (files or Files()).read
    return read_resume_state(records, plan_of(folder, text), RUN, read_file=read)


def told(step: str, *turns: Turn, files: Files | None = None) -> list[Event]:
    """The events of turns that were added to a step's conversation."""
    events: list[Event] = []
    teller = TurnRecorder(events.append, (files or Files()).keep, Place(step))
    for turn in turns:
        teller.add_turn(turn)
    return events


def done(step: str, *turns: Turn, files: Files | None = None) -> list[Event]:
    began = StepStarted(Place(step), "prompt")
    return [began, *told(step, *turns, files=files), step_finished(step)]


def history(found: ResumeState, step: str) -> list[Turn] | None:
    turns = found.steps[step].history
    return None if turns is None else list(turns)


def test_the_conversation_that_is_gone_on_with_comes_back(tmp_path: Path) -> None:
    found = taken(tmp_path, *done("one", *ONE))

    assert history(found, "one") == ONE


def test_a_conversation_that_went_on_has_the_turns_before_it(tmp_path: Path) -> None:
    found = taken(tmp_path, *done("one", *ONE), *done("two", *TWO))

    assert history(found, "two") == [*ONE, *TWO]
    # Nobody goes on with this one any more.
    assert history(found, "one") is None


def test_of_one_that_was_shortened_only_what_was_left_comes_back(tmp_path: Path) -> None:
    events: list[Event] = []
    teller = TurnRecorder(events.append, Files().keep, Place("two"))
    conversation = Conversation(History([*ONE]), teller)
    conversation.add(UserTurn("Two"))
    conversation.rewrite([UserTurn("In short")], "context_trimmed")
    conversation.add(AssistantTurn("2"))
    # What was said before it was not even written down.
    two = [StepStarted(Place("two"), "prompt"), *events, step_finished("two")]

    found = taken(tmp_path, *done("one"), *two)

    assert history(found, "two") == [UserTurn("In short"), AssistantTurn("2")]


def test_turns_of_attempts_that_came_to_nothing_are_left_out(tmp_path: Path) -> None:
    began = StepStarted(Place("one"), "prompt")
    failed = step_finished("one", status="failed", error=Failure("failed", "no"))
    again = Retry(Place("one"), "step one", 2, 0.5, "no")
    request = Retry(Place("one", turn=1), "http://127.0.0.1:9", 2, 0.5, "503")
    other = UserTurn("Once")

    found = taken(
        tmp_path,
        *(began, *told("one", other), failed),
        *(began, *told("one", other), again),
        # A request that is sent again is one of the same conversation.
        *(*told("one", ONE[0]), request, *told("one", ONE[1])),
        step_finished("one"),
    )

    assert history(found, "one") == ONE


def test_a_conversation_that_was_not_written_down_is_not_made_up(tmp_path: Path) -> None:
    found = taken(tmp_path, *done("one"), *done("two", *TWO))

    assert history(found, "two") is None


@pytest.mark.parametrize("damage", [None, b"other"])
def test_an_image_that_is_gone_is_told_of(tmp_path: Path, damage: bytes | None) -> None:
    files = Files()
    events = done("one", UserTurn("Look", (IMAGE,)), AssistantTurn("1"), files=files)
    (name,) = files.content
    files.content = {} if damage is None else {name: damage}

    found = taken(tmp_path, *events, files=files)

    assert history(found, "one") == [
        UserTurn("Look\n[aish] no longer there: image/png"),
        AssistantTurn("1"),
    ]
    (notice,) = [one for one in found.notices if one.code == "media_lost"]
    assert (notice.place, notice.level) == (Place("one"), "warning")
    assert name in notice.text


def test_a_record_that_is_no_turn_is_refused(tmp_path: Path) -> None:
    broken = TurnAdded(Place("one"), {"role": "narrator"})

    with pytest.raises(UsageError, match="not a valid event"):
        taken(tmp_path, StepStarted(Place("one"), "prompt"), broken, step_finished("one"))


def test_what_nobody_needs_is_not_read(tmp_path: Path) -> None:
    broken = TurnAdded(Place("one"), {"role": "narrator"})
    one: list[Event] = [StepStarted(Place("one"), "prompt"), broken, step_finished("one")]

    found = taken(tmp_path, *one, text="steps: [{id: one, prompt: One}, {id: two, prompt: Two}]")

    assert history(found, "one") is None


def test_to_go_on_with_something_else_is_another_run(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    before = fingerprint(plan, RunOptions())

    now = fingerprint(
        plan_of(tmp_path, CHAIN.replace("continues: two", "continues: one")), RunOptions()
    )

    assert {path for path in before if before[path] != now[path]} == {"steps.three.continues"}


@pytest.mark.slow(reason="reads long conversations")
def test_long_conversations_come_back_in_time_that_does_not_grow_with_their_square(
    tmp_path: Path,
) -> None:
    def bring_back(count: int) -> Work:
        turns: list[Turn] = [turn for _ in range(count // 2) for turn in ONE]
        records: list[Any] = [
            json.loads(to_line(event))
            for event in stamped(run_started(), *done("one", *turns), *done("two", *TWO))
        ]
        plan = plan_of(tmp_path)
        found: list[Any] = []
        work = work_of(lambda: found.append(read_resume_state(records, plan, RUN)))
        assert len(history(found[0], "two") or ()) == count + 2
        return work

    few, many = bring_back(1_000), bring_back(10_000)
    assert many.steps < 15 * few.steps


@pytest.mark.parametrize(
    "name",
    [
        *("", "files", "files/", "files/.", "files/..", "files/../secret", "secret", "../secret"),
        *("/etc/hostname", "files/link", "files/folder", "files/not there", "files/a\0b"),
    ],
)
def test_only_files_that_a_run_kept_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "files" / "folder").mkdir(parents=True)
    (tmp_path / "files" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "files" / "0001-a").write_bytes(b"kept")

    assert read_kept(tmp_path, name) is None
    assert read_kept(tmp_path, "files/0001-a") == b"kept"


def test_a_folder_that_is_a_link_holds_no_files_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "0001-a").write_bytes(b"private")
    (tmp_path / "files").symlink_to("elsewhere")

    assert read_kept(tmp_path, "files/0001-a") is None
