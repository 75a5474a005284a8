"""The guards every other test relies on."""

import os
import socket
from pathlib import Path

import pytest
from samples import divide_by_cost, spread


class _Case(pytest.Item):
    """An item that is never run."""

    def runtest(self) -> None:
        raise NotImplementedError


def test_a_connection_outside_loopback_is_refused() -> None:
    with socket.socket() as outside, pytest.raises(AssertionError, match=r"192\.0\.2\.1"):
        outside.connect(("192.0.2.1", 80))


def test_a_name_outside_loopback_is_not_looked_up() -> None:
    with pytest.raises(AssertionError, match=r"example\.org"):
        socket.create_connection(("example.org", 80))


def test_a_connection_to_loopback_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def test_no_switch_of_the_surroundings_reaches_a_test() -> None:
    assert not {"CI", "NO_COLOR", "FORCE_COLOR", "OPENAI_API_KEY"} & set(os.environ)


def test_a_sample_is_spread_over_its_table() -> None:
    assert spread(3, 31) == {0, 15, 30}
    assert spread(1, 5) == {0}
    assert spread(9, 4) == {0, 1, 2, 3}


def test_what_is_slow_and_cases_beyond_a_sample_are_left_out(
    request: pytest.FixtureRequest,
) -> None:
    sampled, requirement = pytest.mark.sampled(2), pytest.mark.requirement
    items = [
        _item(request, "unit/test_a.py", "test_quick"),
        _item(request, "unit/test_a.py", "test_slow", pytest.mark.slow(reason="takes long")),
        *(_item(request, "unit/test_a.py", f"test_table[{case}]") for case in range(3)),
        *(_item(request, "unit/test_a.py", f"test_sampled[{case}]", sampled) for case in range(4)),
        _item(request, "e2e/test_b.py", "test_alone"),
        *(_item(request, "e2e/test_b.py", f"test_cases[{case}]") for case in range(5)),
        *(_item(request, "e2e/test_b.py", f"test_sampled[{case}]", sampled) for case in range(4)),
        _item(request, "e2e/test_b.py", "test_browser[0]", pytest.mark.browser),
        _item(request, "e2e/test_b.py", "test_browser[1]", pytest.mark.browser),
        _item(request, "e2e/test_c.py", "test_numbers[0]", requirement("L7")),
        _item(request, "e2e/test_c.py", "test_numbers[1]", requirement("L8")),
        _item(request, "e2e/test_c.py", "test_numbers[2]", requirement("L9")),
    ]

    kept, left_out = divide_by_cost(items)

    names = [item.name for item in left_out]
    assert [item for item in items if item not in left_out] == kept
    assert names[:3] == ["test_slow", "test_sampled[1]", "test_sampled[2]"]
    assert len([name for name in names if name.startswith("test_cases")]) == 4
    assert names[-2:] == ["test_sampled[1]", "test_sampled[2]"]
    assert len(names) == 9


def test_a_costly_test_without_a_requirement_waits_for_its_turn(
    request: pytest.FixtureRequest,
) -> None:
    requirement = pytest.mark.requirement
    items = [
        _item(request, "unit/test_a.py", "test_table[0]"),
        _item(request, "unit/test_a.py", "test_table[1]", requirement("L7")),
        _item(request, "docs/test_d.py", "test_page[0]"),
        _item(request, "unit/test_a.py", "test_other"),
    ]
    waiting = {item.nodeid.partition("[")[0] for item in items[:3]}

    assert divide_by_cost(items, waiting) == (items[1:], items[:1])


def test_a_slow_test_says_why(request: pytest.FixtureRequest) -> None:
    with pytest.raises(ValueError, match="not enough values"):
        divide_by_cost([_item(request, "unit/test_a.py", "test_slow", pytest.mark.slow)])


def _item(
    request: pytest.FixtureRequest, file: str, name: str, *marks: pytest.MarkDecorator
) -> pytest.Item:
    path = Path(__file__).parents[1] / file
    module = pytest.Module.from_parent(request.session, path=path)
    item = _Case.from_parent(module, name=name)
    for mark in marks:
        item.add_marker(mark)
    return item
