"""Commands that a model proposes: asked about, edited, approved by rules, refused."""

from pathlib import Path

import anyio
import pytest
from shell_local_scenes import Scene, ScriptedPerson, words

from aish.core.events import Event, Notice, ToolDecided, ToolOutput, ToolStarted
from aish.core.rules import RuleEntry
from aish.shell.local.shell import LocalShell, Ran


def proposed(scene: Scene, answer: str) -> tuple[Ran, ...]:
    async def play(shell: LocalShell) -> tuple[Ran, ...]:
        return await shell.propose(answer)

    return scene.run(play)


def test_each_proposal_is_asked_about_and_run_in_order(tmp_path: Path) -> None:
    scripted_person = ScriptedPerson(["yes", "no", "yes"])
    scene = Scene(tmp_path, scripted_person=scripted_person)

    ran = proposed(scene, "I would:\nCMD: echo 1\nCMD: touch made\n```\nCMD: x\n```\nCMD: echo 3")

    assert scripted_person.asked == ["echo 1", "touch made", "echo 3"]
    assert not (tmp_path / "made").exists()
    assert [one.record.status for one in ran] == ["ok", "denied", "ok"]
    assert scene.decisions() == [
        ("ask-yes", "the user"),
        ("ask-no", "the user"),
        ("ask-yes", "the user"),
    ]
    assert scene.waiting() == (
        "[local command: echo 1]\n1\n[exit code 0]\n\n"
        "[local command: touch made]\n[aish] not run: declined by the user\n\n"
        "[local command: echo 3]\n3\n[exit code 0]"
    )


def test_a_proposal_is_decided_on_before_it_is_run_and_told_as_a_step(tmp_path: Path) -> None:
    scene = Scene(tmp_path, scripted_person=ScriptedPerson(["yes"]))

    proposed(scene, "CMD: echo hi")

    assert scene.types() == [
        "step.started",
        "tool.decided",
        "tool.started",
        "tool.output stdout",
        "tool.finished",
        "step.finished",
    ]
    (decided,) = scene.events_of(ToolDecided)
    assert (decided.tool, decided.arguments) == ("shell__run", {"command": "echo hi"})


def test_nothing_runs_while_the_question_stands(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.scripted_person = ScriptedPerson(["no"], before=lambda _: seen.extend(scene.types()))
    seen: list[str] = []

    proposed(scene, "CMD: echo hi")

    assert seen == []
    assert scene.events_of(ToolStarted) == []


@pytest.mark.requirement("S2")
def test_an_edited_command_is_asked_about_again(tmp_path: Path) -> None:
    scripted_person = ScriptedPerson(["edit", "edit", "yes"], edits=["echo second", "echo third "])
    scene = Scene(tmp_path, scripted_person=scripted_person)

    (ran,) = proposed(scene, "CMD: echo first")

    assert scripted_person.asked == ["echo first", "echo second", "echo third"]
    assert scripted_person.edited == ["echo first", "echo second"]
    assert (ran.command, ran.record.text) == ("echo third", "third\n")
    assert [event.arguments for event in scene.events_of(ToolDecided)] == [
        {"command": "echo third"}
    ]


def test_an_edited_command_is_decided_on_as_it_is_now(tmp_path: Path) -> None:
    scripted_person = ScriptedPerson(["edit"], edits=["rm -r x"])
    denying = Scene(tmp_path, scripted_person=scripted_person, deny=(words("rm **"),))
    (ran,) = proposed(denying, "CMD: ls x")
    assert ran.record.status == "denied"
    assert denying.decisions() == [("deny", 'shell__run command ["rm", "**"]')]

    scripted_person = ScriptedPerson(["edit"], edits=["echo fine"])
    approving = Scene(tmp_path, scripted_person=scripted_person, auto=(words("echo **"),))
    (ran,) = proposed(approving, "CMD: touch made")
    assert (ran.command, ran.record.status) == ("echo fine", "ok")
    assert scripted_person.asked == ["touch made"]


@pytest.mark.parametrize("edited", [None, "", "  "])
def test_an_edit_that_is_given_up_is_a_no(edited: str | None, tmp_path: Path) -> None:
    scene = Scene(tmp_path, scripted_person=ScriptedPerson(["edit"], edits=[edited]))

    (ran,) = proposed(scene, "CMD: touch made")

    assert (ran.command, ran.record.status) == ("touch made", "denied")
    assert not (tmp_path / "made").exists()


def test_a_rule_about_the_words_approves_without_asking(tmp_path: Path) -> None:
    scripted_person = ScriptedPerson(["no", "no", "no"])
    scene = Scene(tmp_path, scripted_person=scripted_person, auto=(words("echo **"),))

    proposed(scene, "CMD: echo a b\nCMD: echo a; touch made\nCMD: echo $(touch made)\nCMD: ls")

    assert scripted_person.asked == ["echo a; touch made", "echo $(touch made)", "ls"]
    assert scene.decisions()[0] == ("auto", 'shell__run command ["echo", "**"]')
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("glob", ["shell__run", "shell__*", "*__*"])
def test_what_approves_the_commands_of_a_file_approves_none_of_a_model(
    glob: str, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, scripted_person=ScriptedPerson(["no"]), auto=(RuleEntry(glob),))

    (ran,) = proposed(scene, "CMD: touch made")

    assert ran.record.status == "denied"
    assert not (tmp_path / "made").exists()


def test_ask_rules_and_deny_rules_of_servers_hold_for_proposals(tmp_path: Path) -> None:
    scripted_person = ScriptedPerson(["no"])
    scene = Scene(
        tmp_path,
        scripted_person=scripted_person,
        auto=(words("**"),),
        ask=(words("git push **"),),
        deny=(words("git reset **"),),
    )

    ran = proposed(scene, "CMD: git reset --hard\nCMD: git push\nCMD: echo fine")

    assert scripted_person.asked == ["git push"]
    assert [one.record.status for one in ran] == ["denied", "denied", "ok"]


def test_without_a_person_only_rules_approve(tmp_path: Path) -> None:
    scene = Scene(tmp_path, auto=(words("echo **"), RuleEntry("shell__run")))

    ran = proposed(scene, "CMD: touch made\nCMD: echo hi")

    assert [one.record.status for one in ran] == ["denied", "ok"]
    assert scene.decisions()[0] == ("ask-no", "nobody to ask")
    assert scene.waiting().startswith(
        "[local command: touch made]\n[aish] tool call denied: no rule approves shell__run"
        " (rule shell__run: a model proposes it: only a rule about its command)\n\n"
    )


def test_what_cannot_be_seen_is_never_run_unasked(tmp_path: Path) -> None:
    odd = [
        "echo a\u202eb",
        "echo a\x1b[2J",
        "echo a\u200bb",
        "echo a\u3164b",
        "echo a\ufe0fb",
        "echo a\u3000b",
    ]
    scripted_person = ScriptedPerson(["no"] * len(odd))
    scene = Scene(tmp_path, scripted_person=scripted_person, auto=(words("echo **"), words("**")))

    proposed(scene, "\n".join(f"CMD: {command}" for command in odd))

    assert scripted_person.asked == odd
    assert scene.events_of(ToolStarted) == []


@pytest.mark.parametrize("odd", ["\0", "\r", "\v", "\u2028"])
def test_a_hidden_line_end_is_refused_and_not_asked_about(odd: str, tmp_path: Path) -> None:
    scripted_person = ScriptedPerson(["yes"])
    scene = Scene(tmp_path, scripted_person=scripted_person, auto=(words("**"),))

    assert proposed(scene, f"CMD: echo a{odd}touch made") == ()

    assert scripted_person.asked == []
    assert scene.types() == ["notice"]
    (notice,) = scene.events_of(Notice)
    assert "is not run: it has a" in notice.text
    assert odd not in notice.text
    assert "[aish] not run: it has a" in scene.waiting()


def test_of_very_many_proposals_the_first_are_asked_about(tmp_path: Path) -> None:
    scripted_person = ScriptedPerson(["no"] * 20)
    scene = Scene(tmp_path, scripted_person=scripted_person)

    proposed(scene, "\n".join(f"CMD: echo {number}" for number in range(23)))

    assert scripted_person.asked == [f"echo {number}" for number in range(20)]
    said = "3 more `CMD:` lines not run: at most 20 of an answer are offered"
    assert scene.events_of(Notice)[-1].text == said
    assert scene.waiting().endswith(f"[aish] {said}")


def test_proposals_can_be_switched_off(tmp_path: Path) -> None:
    scripted_person = ScriptedPerson(["yes"])
    scene = Scene(tmp_path, scripted_person=scripted_person, cmd_lines=False, auto=(words("**"),))

    assert proposed(scene, "CMD: touch made") == ()

    assert (scripted_person.asked, scene.events) == ([], [])
    assert not scene.waiting()


def test_an_interrupted_question_runs_nothing_and_asks_no_more(tmp_path: Path) -> None:
    scripted_person = ScriptedPerson(["yes", "yes"])
    scene = Scene(tmp_path, scripted_person=scripted_person)

    async def play(shell: LocalShell) -> None:
        with anyio.CancelScope() as scope:
            scripted_person.before = lambda _: scope.cancel()
            await shell.propose("CMD: touch made\nCMD: touch made")
        assert scope.cancelled_caught

    scene.run(play)

    assert len(scripted_person.asked) == 1
    assert not (tmp_path / "made").exists()
    # Nothing is a step that was not decided on; what is skipped is told, and to nobody else.
    (event,) = scene.events
    assert isinstance(event, Notice)
    assert event.text == "`touch made` and 1 more `CMD:` line are not run: interrupted"
    assert not scene.waiting()


def test_after_an_interrupted_proposal_those_behind_it_are_named(tmp_path: Path) -> None:
    scene = Scene(tmp_path, scripted_person=ScriptedPerson(["yes"]))

    async def play(shell: LocalShell) -> None:
        with anyio.CancelScope() as scope:
            scene.on_event = lambda event: scope.cancel() if _is_output(event) else None
            await shell.propose("CMD: echo up; sleep 1000\nCMD: echo never")
        assert scope.cancelled_caught

    scene.run(play)

    (notice,) = scene.events_of(Notice)
    assert notice.text == "`echo never` is not run: interrupted"


def _is_output(event: Event) -> bool:
    return isinstance(event, ToolOutput)


def test_an_answer_to_one_command_is_none_to_another(tmp_path: Path) -> None:
    """The answer is bound to the place of the call; whatever else is asked goes to the person."""
    scene = Scene(tmp_path, scripted_person=ScriptedPerson(["yes", "no"]))

    ran = proposed(scene, "CMD: touch a\nCMD: touch b")

    assert [one.record.status for one in ran] == ["ok", "denied"]
    assert scene.person.questions == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
