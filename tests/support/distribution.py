"""Distributions as `pip install` leaves them, in a folder of installed packages of a test."""

from collections.abc import Mapping
from pathlib import Path


def install(
    folder: Path,
    name: str,
    version: str,
    entry_points: Mapping[str, str],
    modules: Mapping[str, str],
) -> Path:
    """Write modules and the metadata that offers packs; returns the folder for `sys.path`."""
    site = folder / "site-packages"
    about = site / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (about / "METADATA").write_text(metadata, "utf-8")
    rows = [f"{pack} = {value}" for pack, value in entry_points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[aish.packs]", *rows, ""]), "utf-8")
    for path, text in modules.items():
        (site / path).write_text(text, "utf-8")
    return site


DICE = '''
from dataclasses import dataclass
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

from aish.core.options import option
from aish.packs.framework.pack import CHANGES, READS, Bounds, Pack, tool
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer


@dataclass(frozen=True)
class Table:
    size: int
    felt: str = "green"


@dataclass(frozen=True)
class DiceOptions:
    sides: int = 6
    label: str = option("die", "literal")
    table: Table | None = None
    shape: Literal["cube", "ball"] = "cube"
    wait: float = 1.0
    log: Path | None = None
    token_env: str = option("", "variable")

    def problems(self):
        if self.sides < 2:
            yield "sides", "a die has two sides or more"
        if self.sides == 77:
            raise KeyError("no die has 77")


class Dice:
    def __init__(self, options, secrets):
        self.options, self.secrets = options, secrets


@asynccontextmanager
async def _open(options, notice, secrets):
    notice(f"opened with {options.sides} sides")
    yield Dice(options, secrets)


@tool(READS, result={"sides": "integer", "log": "string", "wait": "number"}, codes=("not_found",))
async def dice_sides(dice: Dice, name: str = "die") -> Answer:
    """Tells how many sides a die has.

    Args:
        name: The label of the die.
    """
    if name != dice.options.label:
        raise PackError("not_found", f"there is no die `{name}`")
    log = None if dice.options.log is None else str(dice.options.log)
    data = {"sides": dice.options.sides, "log": log, "wait": dice.options.wait}
    return Answer(f"{dice.options.sides} sides, {dict(dice.secrets)}", data)


@tool(CHANGES, result={})
async def dice_throw(dice: Dice, count: Annotated[int, Bounds(1, 5), "How many times."]) -> Answer:
    """Throws a die."""
    return Answer("4 " * count)


@tool(READS, result={"value": "any"})
async def dice_break(dice: Dice, how: str) -> Answer:
    """Fails.

    Args:
        how: The way it does.
    """
    if how == "exit":
        raise SystemExit(3)
    if how == "raise":
        raise ValueError("the die is broken")
    return Answer("odd", {"value": object()}) if how == "data" else how


PACK = Pack(
    tools=(dice_sides, dice_throw, dice_break), root="none", lifespan=_open, options=DiceOptions
)
'''

NOISY = '''
import sys
from asyncio import create_task, to_thread
from contextlib import asynccontextmanager

from aish.packs.framework.pack import READS, Pack, tool
from aish.packs.tool_results import Answer

print("import")
OUT = sys.stdout


@asynccontextmanager
async def _open(notice):
    print("open")
    notice("opened")
    yield print
    print("close")


@tool(READS, result={})
async def noise_make(say, text: str) -> Answer:
    """Makes noise.

    Args:
        text: The noise.
    """

    async def later():
        say("task", text)

    say("call", text)
    OUT.write(f"kept {text}\\n")
    sys.stdout.buffer.write(f"bytes {text}\\n".encode())
    sys.stdout.buffer.flush()
    await create_task(later())
    await to_thread(say, "thread", text)
    return Answer(f"heard {text}")


PACK = Pack(tools=(noise_make,), root="none", lifespan=_open)
'''
