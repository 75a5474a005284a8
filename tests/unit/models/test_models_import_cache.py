"""A module that is not there is looked for once."""

import sys

import pytest

from aish.models.transport import remember_absence


def test_a_missing_module_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "aish_no_such_module"
    monkeypatch.delitem(sys.modules, name, raising=False)
    remember_absence(name)
    assert name in sys.modules
    with pytest.raises(ModuleNotFoundError):
        __import__(name)
    monkeypatch.delitem(sys.modules, name)


def test_a_module_that_is_there_stays_usable() -> None:
    remember_absence("json")
    assert sys.modules["json"].loads("1") == 1
