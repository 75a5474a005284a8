"""`aish` whose pauses are a fraction of what they are, as between two questions for a batch.

    python short_pauses_driver.py ARGUMENTS…

A pause of half a second and more takes a twentieth of its time; a shorter one a quarter, for what
collects requests until no more come has to see them on a busy machine too. Time-outs and deadlines
are what they are.
"""

import asyncio
import sys
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple, Unpack

import anyio

_Ts = TypeVarTuple("_Ts")
_LONG = 0.5
# By it alone a pause differs from a time-out.
_WAKE: Any = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]  # no stub has what is private


class _Loop(asyncio.SelectorEventLoop):
    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if callback is _WAKE:
            delay /= 20 if delay >= _LONG else 4
        return super().call_later(delay, callback, *args, context=context)


def main() -> None:
    if sys.argv[1:3] == ["-m", "aish"]:  # as the interpreter is called
        del sys.argv[1:3]
    options = {"loop_factory": _Loop}
    anyio.run = partial(anyio.run, backend_options=options)  # type: ignore[assignment]  # the same

    from aish.__main__ import main as aish

    aish()


if __name__ == "__main__":
    main()
