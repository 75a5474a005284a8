"""Asking the model, and then doing what it proposes (S2)."""

from aish.shell.exchange import Answer, exchange
from aish.shell.session import Session


async def ask(session: Session, text: str) -> Answer:
    """Ask `text`; the `CMD:` lines of the answer are proposed when it is whole."""
    answer = await exchange(session, text)
    if answer.status == "ok" and session.open.plan.pipeline.shell.cmd_lines:
        # The last line of an answer that was cut off may be half a command.
        whole = answer.text.rpartition("\n")[0] if answer.cut else answer.text
        for ran in await session.open.local.propose(whole):
            session.note_command(ran.record, typed=False)
    return answer
