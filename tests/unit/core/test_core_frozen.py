"""`frozen` and `slotted` classes behave as dataclasses with slots do."""

import copy
import pickle  # ruff: ignore[suspicious-pickle-import] - our own bytes
import re
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest
from work import work_of

from aish.core.frozen import frozen, slotted
from aish.core.frozen import replace as frozen_replace


@frozen
class Ours:
    number: int
    text: str = "x"
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Theirs:
    number: int
    text: str = "x"
    rows: list[int] = field(default_factory=list)


def test_it_is_a_dataclass_to_everybody_who_asks() -> None:
    assert [f.name for f in fields(Ours)] == [f.name for f in fields(Theirs)]
    assert replace(Ours(1), text="y") == Ours(1, "y")
    match Ours(1, "y"):
        case Ours(number, text):
            assert (number, text) == (1, "y")
    assert is_dataclass(Ours)


@pytest.mark.parametrize("copy_with", [replace, frozen_replace])
def test_a_copy_has_other_values_in_some_fields(copy_with: Any) -> None:
    one = Ours(1, "x", [2])
    assert copy_with(one, text="y", number=3) == Ours(3, "y", [2])
    assert copy_with(one).rows is one.rows
    with pytest.raises(TypeError, match="other"):
        copy_with(one, other=1)


def test_it_shows_compares_and_hashes_as_the_standard_one() -> None:
    assert repr(Ours(1)) == repr(Theirs(1)).replace("Theirs", "Ours")
    assert Ours(1) == Ours(1)
    assert Ours(1) != Ours(2)
    theirs: object = Theirs(1)
    assert Ours(1) != theirs
    with pytest.raises(TypeError):
        hash(Ours(1))

    @frozen
    class Plain:
        number: int

    assert len({Plain(1), Plain(1), Plain(2)}) == 2


def test_each_instance_has_its_own_default_list() -> None:
    assert Ours(1).rows is not Ours(1).rows


def test_nothing_can_be_changed_or_added() -> None:
    one = Ours(1)
    with pytest.raises(FrozenInstanceError):
        one.number = 2  # type: ignore[misc]  # that it is refused is the point
    with pytest.raises(FrozenInstanceError):
        del one.text
    assert not hasattr(one, "__dict__")


def test_wrong_arguments_are_type_errors() -> None:
    with pytest.raises(TypeError, match="number"):
        Ours()  # type: ignore[call-arg]  # that it is refused is the point


def test_it_survives_copies_and_pickles() -> None:
    one = Ours(1, "y", [2])
    assert pickle.loads(pickle.dumps(one)) == one  # ruff: ignore[suspicious-pickle-usage] - our own bytes
    assert copy.deepcopy(one) == one


@slotted
class Growing:
    number: int
    rows: list[int] = field(default_factory=list)


@dataclass(slots=True)
class GrowingToo:
    number: int
    rows: list[int] = field(default_factory=list)


def test_one_that_may_change_is_like_the_standard_one() -> None:
    one = Growing(1)
    one.number = 2
    one.rows.append(3)

    assert one == Growing(2, [3])
    assert Growing(2).rows == []
    assert repr(one) == repr(GrowingToo(2, [3])).replace("GrowingToo", "Growing")
    assert replace(one, number=4) == Growing(4, [3])
    assert copy.copy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one  # ruff: ignore[suspicious-pickle-usage] - our own bytes
    with pytest.raises(TypeError):
        hash(one)
    with pytest.raises(AttributeError):
        one.other = 1  # type: ignore[attr-defined]  # that it is refused is the point


def test_classes_with_as_many_fields_are_compiled_once() -> None:
    def made(number: int) -> type:
        notes = dict.fromkeys((f"one{number}", f"two{number}", f"three{number}"), int)
        return frozen(type(f"C{number}", (), {"__annotations__": notes}))

    classes = [made(number) for number in range(50)]

    work = work_of(lambda: [kind(1, 2, three) for three, kind in enumerate(classes)])

    assert work.calls["exec"] <= 1
    assert [f.name for f in fields(classes[7])] == ["one7", "two7", "three7"]
    assert repr(classes[7](1, two7=2, three7=3)).endswith("C7(one7=1, two7=2, three7=3)")


def test_a_field_without_a_default_behind_one_with_a_default_is_refused() -> None:
    with pytest.raises(TypeError, match="'second'"):

        @frozen
        class Wrong:
            first: int = 1
            second: int  # type: ignore[misc]  # what is looked at


def test_instances_beyond_the_first_ones_are_made_as_the_first() -> None:
    @frozen
    class Pair:
        one: int
        two: list[int] = field(default_factory=list)
        three: str = "x"

    for number in range(30):
        assert Pair(number) == Pair(number, [], three="x") == Pair(two=[], one=number)
        assert Pair(number).two is not Pair(number).two


@pytest.mark.parametrize("earlier", [0, 30])
@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ((), {}, "missing 1 required positional argument: 'one'"),
        ((1, 2, 3), {}, "takes from 2 to 3 positional arguments but 4 were given"),
        ((1,), {"one": 1}, "got multiple values for argument 'one'"),
        ((1,), {"other": 1}, "got an unexpected keyword argument 'other'"),
    ],
)
def test_wrong_arguments_are_refused_whenever_they_come(
    earlier: int, values: tuple[int, ...], named: dict[str, int], message: str
) -> None:
    @frozen
    class Pair:
        one: int
        two: int = 0

    for number in range(earlier):
        Pair(number)

    make: Any = Pair
    with pytest.raises(TypeError, match=re.escape(message)):
        make(*values, **named)
