"""Attacks by text that a model obeys."""

from collections.abc import Iterator

import pytest
from flow_attacks import COMBINED, WAYS, Attack, Scene


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("attacks")) as scene:
        yield scene


def succeeding(scene: Scene, attacks: list[Attack], *, defended: bool) -> list[str]:
    return [one.name for one in attacks if scene.succeeds(one, defended=defended)]


@pytest.mark.parametrize("attacks", [COMBINED, WAYS], ids=["sources", "ways"])
def test_attacks_succeed_without_flows(scene: Scene, attacks: list[Attack]) -> None:
    assert succeeding(scene, attacks, defended=False) == [one.name for one in attacks]
