"""From a session to files that `aish test` accepts: rehearsed, written, tested (S7)."""

import sys
from collections.abc import Mapping
from pathlib import Path

from aish.cassettes.interaction import Cassette, Head
from aish.cassettes.places import Places
from aish.cassettes.recording import Recording
from aish.cassettes.redact import redact_head
from aish.cassettes.refusal import refuse_secrets
from aish.errors import AishError, ExitCode, UsageError
from aish.run.execute import execute
from aish.run.folder import RunFolder
from aish.run.options import RunOptions
from aish.run.plan import load_checked, make_plan
from aish.run.surroundings import Surroundings
from aish.run.taping.borders import tape_of
from aish.run.taping.reel import Reel, TapeChoice
from aish.shell.exporting.deeds import Deeds, deeds_of
from aish.shell.exporting.matched import Matched, match, recorded
from aish.shell.exporting.pipeline import Source, pipeline_data
from aish.shell.exporting.rehearsal import Rehearsal
from aish.shell.recording import recordings
from aish.shell.session import Session
from aish.sinks.journal_reader import read_journal
from aish.sinks.yaml_text import yaml_text
from aish.system.children import Reaper, run_command
from aish.system.files import write_private
from aish.terminal.unattended import Unattended
from aish.vocab.events import Event, StepFinished
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject

_HEADER = """\
# Exported from a session of `aish shell`: its questions, the local commands whose output they took
# along, and the narrowest rules for the calls that were made. `aish test {name}` replays it.
"""
_HINT = "what the session did is in its journal, which `:log` names; nothing was written"
_READABLE = 0o644
_SECONDS = 120.0
_PRINTED = 1 << 16


class NotExportedError(AishError):
    """The session cannot be said as a pipeline; nothing was written."""

    code = "not_exported"


@frozen
class Exported:
    """What was written, and what of the session is not in it."""

    file: Path
    cassette: Path
    steps: int
    rules: int
    notes: tuple[str, ...]


async def export(session: Session, file: Path) -> Exported:
    """Write `file` and its cassette beside it, tested; where that fails, neither is there.

    Raises:
        UsageError: a file is in the way, or nothing was asked yet.
        NotExportedError: the pipeline would not do what the session did.
        CassetteFileError: the cassette would hold what looks like a secret.
    """
    cassette = file.with_name(f"{file.stem}.cassette.yaml")
    _require_free(file, cassette)
    deeds, matched = _done(session)
    data, untold = pipeline_data(_source(session), deeds, file, cassette)
    try:
        _write(file, _HEADER.format(name=file.name) + yaml_text(data))
        tape = await _rehearse(session, file, cassette, deeds, matched)
        _keep(session, tape, cassette)
        await _test(session, file)
    except BaseException:
        for path in (file, cassette):
            path.unlink(missing_ok=True)
        raise
    left = [f"`{line.text[:60]}` has no whole answer, and is left out" for line in deeds.left_out()]
    return Exported(file, cassette, len(deeds.kept()), _rules(data), (*left, *untold))


def _require_free(*paths: Path) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise UsageError(f"`{path}` is there already", hint="take another name, or delete it")


def _rules(data: JsonObject) -> int:
    mcp = data.get("mcp")
    rules = mcp.get("auto_approve") if isinstance(mcp, dict) else None
    return len(rules) if isinstance(rules, list) else 0


def _done(session: Session) -> tuple[Deeds, Matched]:
    """What the session did, and where it is recorded."""
    around = session.open.around
    folder = around.folder.path
    if folder is None or around.tape is None:
        raise UsageError(
            "an ephemeral session is not recorded", hint="`aish shell` without `--ephemeral` is"
        )
    with read_journal(folder / "events.jsonl") as reading:
        deeds = deeds_of(reading)
    if not deeds.kept():
        raise UsageError("there is nothing to export: no question has an answer yet")
    tape = tape_of(around.tape)
    earlier = [path for path in recordings(folder) if path != tape.reel.choice.path]
    matched = match([*recorded(earlier), *tape.so_far()], deeds)
    if matched.missing:
        lines = ", ".join(dict.fromkeys(matched.missing))
        raise NotExportedError(
            f"the answers to {lines} are not in the recording of the session",
            hint="a part of it that was killed, or held what looked like a secret, has none",
        )
    return deeds, matched


def _source(session: Session) -> Source:
    opened = session.open
    tools: dict[str, list[str]] = {}
    for tool in session.tools():
        tools.setdefault(tool.name.server, []).append(str(tool.name))
    pipeline = opened.plan.pipeline
    return Source(
        data=pipeline.data,
        folder=pipeline.file.parent,
        model=session.model_alias(),
        connected=session.connected,
        tools={alias: tuple(names) for alias, names in tools.items()},
        frame=opened.frame,
    )


def _write(file: Path, text: str) -> None:
    try:
        write_private(file, text.encode())
    except OSError as error:
        raise NotExportedError(f"cannot write it: {error.strerror}", where=str(file)) from error
    # A pipeline is no secret: whoever may read the folder may read it.
    file.chmod(_READABLE)


async def _rehearse(
    session: Session, file: Path, cassette: Path, deeds: Deeds, matched: Matched
) -> Rehearsal:
    """Run what was written, on what was recorded."""
    opened, clock = session.open, session.open.around.clock
    choice = TapeChoice(cassette)
    head = Head(False, "", "", dict(opened.plan.variables))
    pipeline = load_checked(file, ())
    places = Places(
        root=str(file.parent.resolve()), run="", home=opened.options.environ.get("HOME", "")
    )
    options = RunOptions(environ=opened.options.environ, lock="none")
    reel = Reel(choice, Cassette(head, matched.others))
    plan = make_plan(pipeline, options, reel=reel)
    tape = Rehearsal(matched, head, choice, places, plan.secrets, clock.monotonic)
    ends: dict[str | None, StepFinished] = {}

    def hear(event: Event) -> None:
        if isinstance(event, StepFinished):
            ends[event.place.step] = event

    folder = RunFolder(id="", path=None, mask=plan.secrets.mask)
    around = Surroundings(hear, Unattended(), clock, folder, options.environ, tape)
    with opened.interrupts.lent():
        end = await execute(plan, options, around)
    if end.code or tape.left:
        raise NotExportedError(_why(end.reason, deeds, ends), hint=_HINT)
    return tape


def _why(reason: str, deeds: Deeds, ends: Mapping[str | None, StepFinished]) -> str:
    """Where the pipeline does something else than the session did."""
    for line in deeds.kept():
        end = ends.get(line.id)
        if end is not None and end.status != "ok":
            said = end.error.message if end.error is not None else end.status
            return f"the pipeline would not do what the session did: `{line.id}`: {said}"
    said = reason.partition("\n")[0] or "answers are left that it does not ask for"
    return f"the pipeline would not do what the session did: {said}"


def _keep(session: Session, tape: Rehearsal, cassette: Path) -> None:
    """Write the cassette of the rehearsal, if nothing in it looks like a secret."""
    head = redact_head(
        Head(True, session.open.around.folder.id, "", dict(tape.head.env)),
        session.open.plan.secrets,
    )
    refuse_secrets(head, enumerate(tape.used, 1))
    with Recording(cassette, head) as recording:
        recording.finish(head, tape.used)


async def _test(session: Session, file: Path) -> None:
    """Have `aish test` say whether all of it holds together, in a process of its own."""
    reaper = Reaper()
    try:
        result = await run_command(
            [sys.executable, "-P", "-m", "aish", "test", file.name],
            cwd=file.parent.resolve(),
            env=dict(session.open.options.environ),
            timeout=_SECONDS,
            limit_bytes=_PRINTED,
            reaper=reaper,
        )
    finally:
        reaper.close()
    if result.exit_code != ExitCode.OK:
        said = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
        raise NotExportedError(f"`aish test` does not accept it:\n{said}", hint=_HINT)
