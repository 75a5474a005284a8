"""Attacks by text that a model obeys: each succeeds without flows, and none with them."""

import shutil
from collections.abc import Iterator, Sequence

import pytest
from flow_attacks import COMBINED, WAYS, Attack, Scene


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("attacks")) as scene:
        yield scene


def succeeding(scene: Scene, attacks: Sequence[Attack], *, defended: bool) -> list[str]:
    return [one.name for one in attacks if scene.succeeds(one, defended=defended)]


@pytest.mark.slow(reason="plays each attack undefended: it tests the attacks, which seldom change")
@pytest.mark.parametrize("attacks", [COMBINED, WAYS], ids=["sources", "ways"])
def test_attacks_succeed_without_flows(scene: Scene, attacks: Sequence[Attack]) -> None:
    assert succeeding(scene, attacks, defended=False) == [one.name for one in attacks]


@pytest.mark.requirement("T39")
@pytest.mark.parametrize(
    "attacks",
    [
        pytest.param(
            COMBINED, id="sources", marks=pytest.mark.slow(reason="plays each pair of sources")
        ),
        pytest.param(WAYS, id="ways"),
    ],
)
def test_no_attack_succeeds_with_flows(scene: Scene, attacks: Sequence[Attack]) -> None:
    assert succeeding(scene, attacks, defended=True) == []


KILLED = ("a file", "text of a step", "the memory of a server", "into a sub-pipeline")


def after_kills(scene: Scene, attack: Attack, *, defended: bool) -> Iterator[bool]:
    """Whether an attack succeeds in a run that was killed behind one of its events, and resumed."""
    file = scene.write(attack, defended=defended, label="killed")
    scene.play(attack, file)
    folder = file.parent
    (journal,) = folder.glob(".aish/runs/*/events.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    whole = folder.rename(folder.with_name(f"{folder.name}-whole"))
    for kept in range(1, len(lines)):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        journal.write_bytes(b"".join(lines[:kept]))
        scene.play(attack, file, journal.parent.name)
        yield scene.has_left(file)


@pytest.mark.slow(reason="resumes runs at each of their events")
@pytest.mark.parametrize("name", KILLED)
def test_no_attack_succeeds_in_a_run_that_was_killed_at_any_event(scene: Scene, name: str) -> None:
    attack = next(one for one in WAYS if one.name == name)

    undefended = list(after_kills(scene, attack, defended=False))
    defended = list(after_kills(scene, attack, defended=True))

    assert any(undefended)
    assert not any(defended)
