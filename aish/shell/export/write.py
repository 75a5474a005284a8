"""Writes the session to files that `aish test` accepts: rehearsed, written, tested."""

import sys
from collections.abc import Sequence
from pathlib import Path

from aish.cassettes.format.file import partial
from aish.cassettes.format.interaction import Interaction, RecordingMetadata
from aish.cassettes.record.file_writer import Recording
from aish.cassettes.record.redact import redact_head
from aish.cassettes.record.secret_scan import refuse_secrets
from aish.core.errors import ExitCode, UsageError
from aish.core.frozen import frozen
from aish.features.recording.session import recorder_of
from aish.journal.reader import read_journal
from aish.shell.export.match_recordings import Matched, exchanges_of_parts, match
from aish.shell.export.pipeline import NotExportedError, PipelineDraft, SessionSource, draft, layout
from aish.shell.export.rehearsal import HINT, rehearse
from aish.shell.export.session_log import SessionLog, session_log_of
from aish.shell.recording import recordings
from aish.shell.session import ShellSession
from aish.system.files import file_mode, write_private
from aish.system.process.child import run_command
from aish.system.process.reaper import Reaper

_SECONDS = 120.0
_PRINTED = 1 << 16


@frozen
class ExportedFiles:
    file: Path
    cassette: Path
    steps: int
    rules: int
    notes: tuple[str, ...]


async def export(session: ShellSession, file: Path) -> ExportedFiles:
    """Write `file` and a tested cassette next to it; on failure neither remains.

    Raises:
        NotExportedError: the pipeline would not do the same as the session.
        CassetteFileError: the cassette would contain what looks like a secret.
    """
    cassette = file.with_name(f"{file.stem}.cassette.yaml")
    for path in (file, cassette, partial(cassette)):
        if path.exists() or path.is_symlink():
            raise UsageError(f"`{path}` already exists", hint="use another name, or delete it")
    log, matched = _done(session)
    content = draft(_source(session), log, matched.ran, file, cassette.name)
    text = layout(content, file.name)
    if session.open.plan.secrets.mask(text) != text:
        raise NotExportedError(
            "the file would contain a secret", hint="a variable in the file of the session hides it"
        )
    _write(file, text)
    try:
        rehearsal = await rehearse(session, file, log, matched, content)
        _keep(session, rehearsal.used, cassette)
        await _test(session, file)
    except BaseException:
        for path in (file, cassette, partial(cassette)):
            path.unlink(missing_ok=True)
        raise
    notes = (*_notes(log, content), *rehearsal.notes)
    return ExportedFiles(
        file, cassette, len(log.complete_lines()), len(content.suggestion.rules), notes
    )


def _notes(log: SessionLog, content: PipelineDraft) -> Sequence[str]:
    notes = [
        f"`{line.text[:60]}` has no complete answer, and is left out" for line in log.open_lines()
    ]
    if log.shortened:
        notes.append("the file sends the full conversation, which the session had shortened")
    return notes + [f"{entry.call.tool}: {entry.why}" for entry in content.suggestion.left_out]


def _done(session: ShellSession) -> tuple[SessionLog, Matched]:
    environment = session.open.environment
    folder = environment.folder.path
    if folder is None or environment.recorder is None:
        raise UsageError(
            "an ephemeral session is not recorded", hint="`aish shell` without `--ephemeral` is"
        )
    with read_journal(folder / "events.jsonl") as reading:
        log = session_log_of(reading)
    if log.given:
        raise NotExportedError(
            "the conversation begins with turns that were put in over the control API",
            hint="`:clear` starts one that can be exported",
        )
    if not log.complete_lines():
        raise UsageError("there is nothing to export: no question has an answer yet")
    recorder = recorder_of(environment.recorder)
    earlier = [path for path in recordings(folder) if path != recorder.session.choice.path]
    matched = match([*exchanges_of_parts(earlier), recorder.so_far()], log)
    if matched.missing:
        lines = ", ".join(dict.fromkeys(matched.missing))
        raise NotExportedError(
            f"the answers to {lines} are not in the recording of the session",
            hint="a part of it that was killed, or held what looked like a secret, has none",
        )
    return log, matched


def _source(session: ShellSession) -> SessionSource:
    opened = session.open
    tools: dict[str, list[str]] = {}
    for tool in session.tools():
        tools.setdefault(tool.name.server, []).append(str(tool.name))
    pipeline = opened.plan.pipeline
    return SessionSource(
        data=pipeline.data,
        folder=pipeline.file.parent,
        here=Path.cwd(),
        connected=session.connected,
        tools={alias: tuple(names) for alias, names in tools.items()},
        frame=opened.frame,
        shell=pipeline.shell.run,
    )


def _write(file: Path, text: str) -> None:
    mode = file_mode(file)
    try:
        write_private(file, text.encode())
    except OSError as error:
        raise NotExportedError(f"cannot write it: {error.strerror}", where=str(file)) from error
    # A pipeline contains no secrets.
    file.chmod(mode)


def _keep(session: ShellSession, used: Sequence[Interaction], cassette: Path) -> None:
    """Write the cassette of the rehearsal, unless something in it looks like a secret."""
    opened = session.open
    secrets = opened.plan.secrets
    whole = RecordingMetadata(True, opened.environment.folder.id, "", dict(opened.plan.variables))
    head = redact_head(whole, secrets)
    refuse_secrets(head, enumerate(used, 1))
    with Recording(cassette, head) as recording:
        recording.finish(head, used)


async def _test(session: ShellSession, file: Path) -> None:
    """Run `aish test` on the result in a process of its own."""
    reaper = Reaper()
    try:
        result = await run_command(
            [sys.executable, "-P", "-m", "aish", "test", f"./{file.name}"],
            cwd=file.parent.resolve(),
            env=dict(session.open.options.environ),
            timeout=_SECONDS,
            limit_bytes=_PRINTED,
            reaper=reaper,
        )
    finally:
        reaper.close()
    if result.exit_code != ExitCode.OK:
        output = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
        raise NotExportedError(f"`aish test` does not accept it:\n{output}", hint=HINT)
