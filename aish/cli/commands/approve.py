"""`aish approve RUN CALL`: shows a call that waits for an answer, and records the answer."""

import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import anyio

from aish.cli.boundary import say
from aish.cli.options import Argument, AskingArgument, Option, PastRunDirOption
from aish.cli.printer import print_text
from aish.core.errors import AishError, UsageError
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.engine.run_folder import tame_name
from aish.features.approvals.answer import (
    LEAST_DIGEST,
    GivenAnswer,
    RunIsLiveError,
    find_question,
    record_answer,
    require_digest,
    require_open,
)
from aish.features.approvals.pending import find_asking, questions_of
from aish.features.approvals.questions import (
    HUB_ID,
    LONGEST_NOTE,
    ApprovalQuestion,
    as_asked,
    tags_of_secrets,
)
from aish.features.history.run_store import RunStore
from aish.system.secrets.secrets import SHORTEST, Secrets, names_credential
from aish.system.user import login_name
from aish.terminal.approver import Decision, ask_decision
from aish.terminal.tty import Turns

_PROGRAM = "a program gives `--yes --digest DIGEST`, or `--deny --yes`"


def command(
    run: AskingArgument,
    call: Annotated[
        str | None,
        Argument(
            "[CALL]",
            "The question: its id, or its first 8 or more digits.",
            completes="question_ids",
        ),
    ] = None,
    *,
    deny: Annotated[bool, Option("--deny", "Deny the call.")] = False,
    always: Annotated[
        bool, Option("--always", "With `--yes`: approve this call, and the same call later.")
    ] = False,
    yes: Annotated[
        bool, Option("--yes", "Do not ask; to approve, `--digest` is needed too.")
    ] = False,
    digest: Annotated[
        str | None,
        Option(
            "--digest DIGEST",
            f"The digest of the call, or its first {LEAST_DIGEST} or more digits.",
        ),
    ] = None,
    note: Annotated[str | None, Option("--note TEXT", "Record this text with the answer.")] = None,
    forget_sources: Annotated[
        str | None,
        Option(
            "--forget-sources CLIENT",
            "Instead of an answer: what this client of a server has read counts no more.",
        ),
    ] = None,
    run_dir: PastRunDirOption = None,
) -> int:
    """Answer a tool call that waits for approval.

    Shows the call and asks. A live run continues at once, any other with `aish run FILE --resume`.

    Example: aish approve latest 3f9a1c22
    """
    if forget_sources is not None:
        if any((call, deny, always, yes, digest, note)):
            raise UsageError("`--forget-sources` takes the server and nothing else")
        return _forget_sources(run, forget_sources, run_dir)
    if call is None:
        raise UsageError("the argument CALL is missing", hint="`aish runs pending` lists them")
    _check_answer(deny=deny, always=always, yes=yes, digest=digest, note=note)
    with ExitStack() as stack:
        store, id = find_asking(run_dir, run, stack)
        question = find_question(_questions(store, id), call, id)
        require_open(question)
        if digest is not None:
            require_digest(question, digest)
        if always and question.always is None:
            raise UsageError("`--always` is not offered for this call", where=question.id)
        if yes:
            decision: Decision = "deny" if deny else "always" if always else "approve"
        else:
            decision = _ask(question, deny=deny)
        if decision == "open":
            print_text(f"left open: {question.id}")
            return 0
        text = _mask_note(note, store, id) if note else ""
        answer = GivenAnswer(decision, login_name() or "unknown", "command", text)
        _record(store, question, answer)
    return 0


def _check_answer(
    *, deny: bool, always: bool, yes: bool, digest: str | None, note: str | None
) -> None:
    if yes and digest is None and not deny:
        text = "`--yes` approves a call only with its digest"
        raise UsageError(text, hint="`aish runs pending --format json` has it: `--digest DIGEST`")
    if always and (deny or not yes):
        raise UsageError("`--always` goes with `--yes --digest DIGEST`")
    if note is not None and len(note) > LONGEST_NOTE:
        raise UsageError(f"more than {LONGEST_NOTE:,} characters", where="--note")


def _forget_sources(server: str, client: str, run_dir: Path | None) -> int:
    from aish.control.live_run import forget_client_sources

    with ExitStack() as stack:
        store, id = find_asking(run_dir, server, stack)
        if not HUB_ID.match(id):
            raise UsageError("only a server has clients", where=id)
        sources = forget_client_sources(store, id, client)
    print_text(f"forgotten: {for_line(client)} had read {for_line(', '.join(sources))}")
    return 0


def _mask_note(note: str, store: RunStore, id: str) -> str:
    """A note without the secrets that this environment has.

    That is what the pipeline's file names under `secrets:`, and what is named as a credential.
    """
    try:
        with os.fdopen(store.open_file(id, "plan.json"), "rb") as file:
            declared = json.loads(file.read()).get("secrets") or ()
    except (OSError, ValueError, AttributeError):
        declared = ()  # without the file the names alone tell
    secrets = Secrets()
    for name, value in os.environ.items():
        if (name in declared or names_credential(name)) and len(value) >= SHORTEST:
            secrets.add(name, value)
    return secrets.mask(note)


def _questions(store: RunStore, id: str) -> list[ApprovalQuestion]:
    try:
        return list(questions_of(store, id, time.time()))
    except FileNotFoundError:
        raise UsageError("the run has no journal", where=id) from None


def _ask(question: ApprovalQuestion, *, deny: bool) -> Decision:
    """The decision of the person at the terminal, who is shown the whole call."""
    turns = Turns()
    if not turns.attended:
        raise UsageError("there is no terminal to ask at", hint=_PROGRAM)
    asked, masked = as_asked(question), tags_of_secrets(question)
    details = tuple(_details(question))

    async def decide() -> Decision:
        return await ask_decision(asked, turns, deny=deny, details=details, masked=masked)

    try:
        return anyio.run(decide)
    except (RecursionError, ValueError) as error:
        message = "the call cannot be shown: its arguments are nested too deeply"
        raise AishError(message, where=question.id, hint="`--deny --yes` denies it") from error
    except OSError as error:
        message = f"the terminal was closed ({error.strerror}): no answer was recorded"
        raise AishError(message, where=question.id) from error


def _details(question: ApprovalQuestion) -> Iterator[tuple[str, str]]:
    yield "run", question.run
    yield "asked", question.asked
    if question.expires is not None:
        yield "until", question.expires
    yield "digest", question.digest


def _store_answer(
    store: RunStore, question: ApprovalQuestion, answer: GivenAnswer
) -> tuple[int, bool]:
    """Record the answer; return how many are still open, and whether the run itself took it."""
    if HUB_ID.match(question.run):
        return _record_at_hub(store, question, answer)
    try:
        return len(record_answer(store, question, answer, time.time())), False
    except RunIsLiveError as live:
        from aish.control.live_run import answer_live_run

        try:
            return len(answer_live_run(store, question, answer, live)), True
        except RunIsLiveError as unheard:
            # It may have ended meanwhile: then its journal takes the answer.
            try:
                return len(record_answer(store, question, answer, time.time())), False
            except RunIsLiveError:
                raise unheard from live


def _record_at_hub(
    store: RunStore, question: ApprovalQuestion, answer: GivenAnswer
) -> tuple[int, bool]:
    """The same for a server: over its socket if it has one, else in its state, where it looks."""
    from aish.control.live_run import answer_live_run
    from aish.features.control.live_process import live_process

    try:
        is_live, pid = live_process(store, question.run)
    except FileNotFoundError:
        is_live, pid = False, None
    if is_live:
        live = RunIsLiveError("the server is live", where=question.run, hint=None, pid=pid)
        with suppress(RunIsLiveError):
            return len(answer_live_run(store, question, answer, live)), True
    return len(record_answer(store, question, answer, time.time())), False


def _record(store: RunStore, question: ApprovalQuestion, answer: GivenAnswer) -> None:
    try:
        rest, is_live = _store_answer(store, question, answer)
    except OSError as error:
        message = f"cannot write the journal: {error.strerror}; no answer was recorded"
        raise AishError(message, where=question.run) from error
    done = "denied" if answer.answer == "deny" else "approved"
    print_text(f"{done}: {for_line(question.tool)}, question {question.id}")
    if answer.answer == "always":
        print_text(f"always: auto_approve {for_line(question.always or '')}, for this run")
    if rest:
        are = "is" if rest == 1 else "are"
        of = "server" if HUB_ID.match(question.run) else "run"
        say(f"note: {counted(rest, 'question')} of this {of} {are} still open")
    if HUB_ID.match(question.run):
        if answer.answer != "deny":
            say("note: the call is made once, when its client waits for it or makes it again")
    elif is_live:
        say("note: the run goes on by itself")
    else:
        say(f"hint: `{shlex.join(resume_words(store, question.run))}` continues the run")


def resume_words(store: RunStore, id: str) -> list[str]:
    """The words of the command that continues a run; one is `FILE` where that is not found."""
    project = store.path.parent.parent
    own = store.path.parts[-2:] == (".aish", "runs")
    name = id.partition("-")[2].rpartition("-")[0]
    files = [
        path
        for path in (sorted(project.iterdir()) if own else ())
        if path.suffix in {".yaml", ".yml"} and tame_name(path.stem) == name
    ]
    words = ["aish", "run", str(files[0]) if len(files) == 1 else "FILE", "--resume", id]
    return words if own else [*words, "--run-dir", str(store.path)]
