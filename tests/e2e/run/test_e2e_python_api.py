"""`aish.api`: a pipeline run by a Python program."""

import asyncio
import gc
import json
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, processes_in
from jsonschema import Draft202012Validator
from model_endpoint import Gate, Reply, hanging_reply, text_reply

from aish.api import AishError, PipelineError, Result, RunFailedError, UsageError, arun, run

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "schemas" / "result.schema.json").read_text("utf-8"))
EVENTS = json.loads((ROOT / "schemas" / "events.schema.json").read_text("utf-8"))
SHELL = "mcp: {auto_approve: [shell__run]}\n"
TASK = """\
aish: 1
name: task
models: {m: {base_url: "${MODEL_URL}", model: scripted, key_env: MODEL_KEY}}
inputs: {word: {type: string}, times: {type: integer, default: 1}}
prompt: "{{ inputs.times }} times {{ inputs.word }}"
outputs: {said: "{{ steps.main.text }}"}
"""
KEY = "sk-a-key-that-nobody-may-see"


def echo(request: Any) -> Reply:
    return text_reply(f"You said: {request['messages'][-1]['content']}")


def write(folder: Path, text: str, name: str = "task.yaml") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


@pytest.fixture
def environ(model_endpoint: ModelEndpoints) -> dict[str, str]:
    return {"MODEL_URL": model_endpoint(echo).base_url, "MODEL_KEY": KEY}


def as_object(result: Result) -> dict[str, Any]:
    names = {one.name for one in fields(result)} - {"value"}
    found = {name: getattr(result, name) for name in names}
    end = {one.name: getattr(result.exit, one.name) for one in fields(result.exit)}
    return json.loads(json.dumps(found | {"exit": end}))  # type: ignore[no-any-return]  # it is one


def test_a_run_gives_the_result_object(tmp_path: Path, environ: dict[str, str]) -> None:
    file = write(tmp_path, TASK)

    result = run(file, {"word": "hello"}, environ=environ)

    assert result.ok
    assert result.outputs == {"said": "You said: 1 times hello"}
    assert result.steps["main"]["text"] == "You said: 1 times hello"
    assert result.usage["input"] == 7
    assert result.folder is not None
    assert (Path(result.folder) / "events.jsonl").exists()
    Draft202012Validator(SCHEMA).validate(as_object(result))
    assert result.raise_for_exit() is result


def test_the_result_has_every_field_of_the_result_object(tmp_path: Path) -> None:
    text = "aish: 1\nrun: [echo, hello]\nannotations: [{path: a.py, line: 3, message: no}]\n"
    file = write(tmp_path, text + SHELL)

    result = run(file, ephemeral=True)

    # `calls` is of a run that was not resumed, which raises an error here.
    of_object = set(SCHEMA["properties"]) - {"calls"}
    assert {one.name for one in fields(Result)} == of_object | {"value"}
    (found,) = result.annotations
    assert (found["path"], found["line"], found["message"]) == ("a.py", 3, "no")


def test_nothing_is_printed_or_taken_from_the_program(
    tmp_path: Path, environ: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, TASK.replace("{{ inputs.word }}", "{{ inputs.word | upper }}"))
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = [signal.getsignal(kind) for kind in kinds]
    seen: list[Any] = []
    signal.setitimer(signal.ITIMER_REAL, 3600)
    try:
        result = run(
            file,
            {"word": "hello"},
            environ=environ,
            ephemeral=True,
            on_event=lambda _: seen.append([signal.getsignal(kind) for kind in kinds[1:]]),
        )
        left, _ = signal.getitimer(signal.ITIMER_REAL)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

    assert result.outputs == {"said": "You said: 1 times HELLO"}
    assert left > 0
    assert [signal.getsignal(kind) for kind in kinds] == before
    assert all(one == before[1:] for one in seen)
    assert capfd.readouterr() == ("", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["task.yaml"]


def test_many_run_in_one_event_loop(tmp_path: Path, environ: dict[str, str]) -> None:
    file = write(tmp_path, TASK)

    async def main() -> list[Result]:
        calls = (arun(file, {"word": f"w{n}"}, environ=environ) for n in range(6))
        return list(await asyncio.gather(*calls))

    results = asyncio.run(main())

    said = [result.outputs for result in results]
    assert said == [{"said": f"You said: 1 times w{n}"} for n in range(6)]
    assert len({result.run for result in results}) == 6


def test_run_within_an_event_loop_says_what_to_do(tmp_path: Path) -> None:
    async def main() -> None:
        await asyncio.sleep(0)
        run(write(tmp_path, TASK))

    with pytest.raises(UsageError, match="would block the running event loop") as failed:
        asyncio.run(main())

    assert failed.value.hint == "`await aish.arun(…)`"
    assert failed.value.__notes__ == ["hint: `await aish.arun(…)`"]


def test_threads_may_run_at_the_same_time(tmp_path: Path, environ: dict[str, str]) -> None:
    file = write(tmp_path, TASK)

    def one(number: int) -> Result:
        return run(file, {"word": f"w{number}"}, environ=environ, ephemeral=True)

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(one, range(6)))

    assert [r.outputs for r in results] == [{"said": f"You said: 1 times w{n}"} for n in range(6)]
    assert results[0].folder is None


def test_all_that_is_wrong_with_a_file_is_raised_at_once(tmp_path: Path) -> None:
    text = (
        "aish: 1\nmodels: {m: {embedded: smollm2}}\n"
        "prompt: '{{ gone }}'\nexpect: [{contains: '{{ x }}'}]\n"
    )

    with pytest.raises(PipelineError) as failed:
        run(write(tmp_path, text))

    assert [problem.path for problem in failed.value.problems] == ["prompt", "expect[0].contains"]
    assert failed.value.problems[0].position.line == 3


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("inputs", "options", "said"),
    [
        ({}, {}, "the input `word` is missing"),
        ({"word": "a", "tmies": 2}, {}, "unknown input `tmies`, did you mean `times`"),
        ({"word": "a", "times": "x"}, {}, "the input `times`: "),
        ({"word": object()}, {}, "the input `word` is not a JSON value"),
        ({"word": "a"}, {"model": "n"}, "no model `n`"),
        ({"word": "a"}, {"replay": True}, "the file names no cassette"),
        ({"word": "a"}, {"replay": "a.yaml", "record": "b.yaml"}, "exclude each other"),
        ({"word": "a"}, {"replay": "gone.yaml"}, "gone.yaml"),
        ({"word": "a"}, {"timeout": "soon"}, "timeout: "),
    ],
)
def test_what_does_not_fit_is_a_usage_error(
    tmp_path: Path, environ: dict[str, str], inputs: Any, options: Any, said: str
) -> None:
    with pytest.raises(UsageError) as failed:
        run(write(tmp_path, TASK), inputs, environ=environ, **options)

    assert said in str(failed.value)
    assert not (tmp_path / ".aish").exists()


def test_an_unknown_option_is_a_type_error(tmp_path: Path) -> None:
    options: Any = {"modle": "m"}
    with pytest.raises(TypeError, match="unknown option: modle"):
        run(write(tmp_path, TASK), {"word": "a"}, **options)


def test_a_run_that_fails_is_a_result_and_an_exception_if_asked(tmp_path: Path) -> None:
    result = run(write(tmp_path, "aish: 1\nrun: [echo, hello]\n"), ephemeral=True)

    assert (result.ok, result.exit.code, result.exit.name) == (False, 3, "denied")
    with pytest.raises(RunFailedError, match="no rule approves shell__run") as failed:
        result.raise_for_exit()
    assert failed.value.result is result
    assert failed.value.exit_code == 3

    allowed = run(tmp_path / "task.yaml", allow=["shell__run"], ephemeral=True)
    assert allowed.ok


def test_items_are_in_the_result(tmp_path: Path) -> None:
    step = "{id: each, foreach: '[1, 2]', run: [echo, '{{ item }}']}"
    text = f"aish: 1\n{SHELL}steps:\n  - {step}\n"

    result = run(write(tmp_path, text), ephemeral=True)

    items: Any = result.steps["each"]["items"]
    assert [(row["index"], row["text"]) for row in items] == [(0, "1\n"), (1, "2\n")]


def test_a_key_that_is_there_twice_is_found_before_anything_is_asked(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "rows.csv").write_text("id\na\nb\na\n")
    text = TASK.replace("prompt:", "foreach: {file: rows.csv}\nkey: item.id\nprompt:")
    text = text.partition("outputs:")[0]
    heard: list[Any] = []

    with pytest.raises(UsageError, match="the key `a` is that of line 2 too"):
        run(write(tmp_path, text), {"word": "x"}, environ=environ, on_event=heard.append)

    assert heard == []
    assert not (tmp_path / ".aish").exists()


def test_events_are_heard_with_secrets_masked(tmp_path: Path, environ: dict[str, str]) -> None:
    heard: list[Any] = []
    file = write(tmp_path, TASK)

    result = run(file, {"word": KEY}, environ=environ, on_event=heard.append)

    validator = Draft202012Validator(EVENTS)
    for event in heard:
        validator.validate(event)
    kinds = [event["type"] for event in heard]
    assert (kinds[0], kinds[-1]) == ("run.started", "run.finished")
    assert "text.delta" in kinds
    assert result.outputs == {"said": "You said: 1 times <secret:MODEL_KEY>"}
    assert KEY not in json.dumps(heard)


def test_an_error_of_the_listener_ends_the_run_and_comes_back(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    def hear(event: Any) -> None:
        if event["type"] == "turn.started":
            raise LookupError("not mine")

    with pytest.raises(LookupError, match="not mine"):
        run(write(tmp_path, TASK), {"word": "a"}, environ=environ, on_event=hear)

    (journal,) = tmp_path.glob(".aish/runs/*/events.jsonl")
    assert '"type":"run.finished"' in journal.read_text("utf-8")


def test_a_replay_leaves_the_network_to_the_rest_of_the_program(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    file = write(tmp_path, f"{TASK}cassette: c.yaml\n")
    run(file, {"word": "a"}, environ=environ, record=True, ephemeral=True)
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    reached: list[str] = []

    def reach() -> None:
        with socket.create_connection(("127.0.0.1", port)):
            reached.append("thread")

    def hear(event: Any) -> None:
        if event["type"] == "turn.started":
            thread = threading.Thread(target=reach)
            thread.start()
            thread.join()

    async def main() -> Result:
        async def other() -> None:
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            reached.append("task")

        replay = arun(file, {"word": "a"}, replay=True, ephemeral=True, on_event=hear)
        result, _ = await asyncio.gather(replay, other())
        return result

    with server:
        result = asyncio.run(main())

    assert result.ok, result.exit
    assert result.cassette is not None
    assert result.cassette["use"] == "replayed"
    assert sorted(reached) == ["task", "thread"]


def test_a_cancelled_run_ends_with_its_children(tmp_path: Path) -> None:
    text = f"aish: 1\n{SHELL}run: [sleep, '98765.4321']\n"
    file = write(tmp_path, text)

    async def main() -> None:
        begun = asyncio.Event()

        def hear(event: Any) -> None:
            if event["type"] == "tool.started":
                begun.set()

        task = asyncio.create_task(arun(file, on_event=hear))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert processes_in(tmp_path) == []
    (journal,) = tmp_path.glob(".aish/runs/*/events.jsonl")
    assert "run.finished" not in journal.read_text("utf-8")


def test_a_run_whose_journal_is_lost_has_failed(tmp_path: Path) -> None:
    text = f"aish: 1\n{SHELL}run: [seq, '2000']\n"
    program = (
        "import resource, signal, sys\n"
        "from aish.api import run\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "result = run(sys.argv[1])\n"
        "print(result.exit.code, result.status, result.exit.reason)\n"
    )

    done = subprocess.run(
        [sys.executable, "-B", "-c", program, str(write(tmp_path, text))],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.startswith("1 failed cannot write the journal: "), done.stderr


def test_a_cassette_that_cannot_be_recorded_leaves_nothing_open(tmp_path: Path) -> None:
    file = write(tmp_path, f"aish: 1\n{SHELL}run: 'true'\n")
    (tmp_path / "file").touch()
    opened = Path("/proc/self/fd")
    gc.collect()  # what earlier tests have left open is not closed between two counts

    def refused() -> int:
        with pytest.raises(AishError):
            run(file, record=tmp_path / "file" / "tape.yaml")
        return len(list(opened.iterdir()))

    assert refused() == refused() == refused()
    assert not list(tmp_path.glob(".aish/runs/*/events.jsonl"))


def test_the_time_limit_of_a_call_holds(
    tmp_path: Path, environ: dict[str, str], model_endpoint: ModelEndpoints
) -> None:
    slow = model_endpoint(lambda _: hanging_reply(Gate()))

    result = run(
        write(tmp_path, TASK),
        {"word": "a"},
        environ=environ | {"MODEL_URL": slow.base_url},
        timeout=0.5,
        ephemeral=True,
    )

    assert (result.exit.code, result.status) == (4, "budget")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("run: [echo, hello]\n", "hello\n"),
        (
            "run: [echo, hello]\noutputs: {said: '{{ steps.main.text | trim }}'}\n",
            {"said": "hello"},
        ),
        ("foreach: '[1, 2]'\nas: n\nrun: [echo, '{{ n }}']\n", ["1\n", "2\n"]),
        ("run: [echo, hello]\nwhen: '1 == 2'\n", None),
        ("steps: [{id: a, run: ['false']}, {id: b, needs: [a], run: [echo, b]}]\n", None),
    ],
)
def test_the_value_is_what_the_command_prints(tmp_path: Path, text: str, value: object) -> None:
    result = run(write(tmp_path, f"aish: 1\n{SHELL}{text}"), ephemeral=True)

    assert result.value == value


def test_the_value_of_an_answer_in_a_schema_is_its_value(
    tmp_path: Path, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply('{"kind": "wish"}')])
    model = f"models: {{m: {{base_url: '{endpoint.base_url}', model: x}}}}\n"
    text = f"aish: 1\n{model}prompt: Which kind is it?\noutput: {{schema: {{type: object}}}}\n"

    assert run(write(tmp_path, text), ephemeral=True).value == {"kind": "wish"}


def test_a_result_is_shown_in_one_short_line(tmp_path: Path) -> None:
    long = write(tmp_path, f"aish: 1\nname: long\n{SHELL}run: [echo, {'x' * 4000}]\n")
    denied = write(tmp_path, "aish: 1\nname: task\nrun: [echo, hello]\n", "denied.yaml")

    shown = repr(run(long, ephemeral=True))

    assert shown.startswith("<Result of long: ok, 'xxx")
    assert len(shown) < 120
    assert repr(run(denied, ephemeral=True)).startswith("<Result of task: denied, step `main`: ")


def test_what_to_do_is_a_note_of_the_exception(tmp_path: Path) -> None:
    file = write(tmp_path, "aish: 1\nprompt: Say hello\nmodels: {m: {embedded: nothing}}\n")

    with pytest.raises(PipelineError) as failed:
        run(file)

    (problem,) = failed.value.problems
    assert problem.hint is not None
    assert failed.value.__notes__ == [f"hint: {problem.hint}"]


def test_import_aish_is_enough_and_loads_little(tmp_path: Path) -> None:
    write(tmp_path, f"aish: 1\n{SHELL}run: [echo, hello]\n")
    program = """if True:
        import sys
        import aish
        assert sorted(one for one in sys.modules if one.startswith("aish")) == ["aish"]
        assert {"run", "arun", "Result", "UsageError"} <= set(dir(aish))
        assert "aish.api" not in sys.modules
        print(aish.run("task.yaml", ephemeral=True).value, end="")
        try:
            aish.nothing
        except AttributeError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "hello\nmodule 'aish' has no attribute 'nothing'\n"
