"""`:model` and `:norris`."""

from aish.errors import UsageError
from aish.run.opening import model_name, origin
from aish.shell.command import Command
from aish.shell.models import known_model
from aish.shell.norris import STEPS
from aish.shell.session import Session


async def _model(session: Session, rest: str) -> None:
    opened = session.open
    if not rest:
        opened.out.rows(
            [
                (f"{'*' if alias == session.model else ' '} {alias}", model_name(one), origin(one))
                for alias, one in opened.plan.pipeline.models.items()
            ]
        )
        return
    alias = known_model(rest, opened.plan)
    # Opened now: what it lacks is known before anything is asked.
    await opened.models.get(alias)
    session.model = alias
    opened.out.show(f"the model is now {alias}")


async def _norris(session: Session, rest: str) -> None:
    word, _, number = rest.partition(" ")
    if word == "off" and not number:
        session.norris.left = 0
        session.open.out.show("norris is off: what no rule approves is asked about")
        return
    if word == "on" and (not number or number.isdecimal()):
        session.norris.left = int(number or STEPS)
        if session.norris.on:
            session.open.out.show(
                f"norris is on for {session.norris.left} calls: tools of trusted servers that call"
                " themselves harmless run unasked; any key halts"
            )
            return
    if not rest:
        left = session.norris.left
        session.open.out.show(f"norris is on for {left} more calls" if left else "norris is off")
        return
    raise UsageError("`:norris` takes `on`, `on N` or `off`")


MODEL = Command(
    "model",
    "[ALIAS]",
    "shows the models, or switches to one",
    _model,
    details="The conversation goes on with the other model. Its key is looked up now.",
    completes="model",
)
NORRIS = Command(
    "norris",
    "on [N]|off",
    "autonomous mode: harmless tools of trusted servers run unasked",
    _norris,
    details=(
        "Tools of servers with `trust: true` that call themselves read-only or non-destructive\n"
        f"run unasked, N of them (else {STEPS}); any key halts. Deny and ask rules hold, what is\n"
        "left is asked about, and so are `CMD:` lines."
    ),
    completes="switch",
)
