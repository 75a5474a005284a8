"""Options in groups: flat to the command line, grouped to the command."""

import inspect
from typing import Annotated

import typer

from aish.cli.grouping import grouped
from aish.core.frozen import frozen


@frozen
class Size:
    """Two options."""

    width: Annotated[int, typer.Option("--width")]
    height: Annotated[int, typer.Option("--height")] = 3


def test_a_command_is_given_its_groups_and_the_command_line_sees_their_options() -> None:
    seen: list[object] = []

    @grouped
    def command(name: str, size: Size, *, loud: bool = False) -> int:
        """Draw."""
        seen.extend((name, size, loud))
        return 5

    parameters = inspect.signature(command).parameters

    assert list(parameters) == ["name", "width", "height", "loud"]
    assert parameters["width"].default is inspect.Parameter.empty
    assert parameters["height"].default == 3
    assert inspect.getdoc(command) == "Draw."
    assert command(name="a", width=2, height=4, loud=True) == 5
    assert seen == ["a", Size(2, 4), True]
