"""Packs that installed distributions offer: how they are found, checked, opened and called."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from distribution import DICE, NOISY, install
from pack_scenes import started_packs

from aish.core.errors import UsageError
from aish.packs.framework import outside
from aish.packs.framework.outside import load_pack
from aish.system import pack_index
from aish.system.pack_index import PackLoadError, find_offered_pack, options_class

HEAD = DICE.partition("@dataclass")[0]
ECHO = f'''{HEAD}
@tool(READS, result={{}})
async def echo_text(state: object, text: str) -> Answer:
    """Returns a text.

    Args:
        text: The text.
    """
    return Answer(text)
'''
CACHES = (
    *(pack_index.offered_packs, pack_index._import, pack_index.options_class),
    outside.load_pack,
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages that is searched first."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    for one in CACHES:
        one.cache_clear()
    yield folder
    for one in CACHES:
        one.cache_clear()


def offer(site: Path, module: str, text: str, entry: str = "PACK", **entries: str) -> None:
    """Install `acme-MODULE` 1.2 with a pack of the module's name."""
    points = {module: f"{module}:{entry}", **entries}
    install(site.parent, f"acme-{module}", "1.2", points, {f"{module}.py": text})


BAD: Mapping[str, tuple[str, str, str]] = {
    "bad_import": (
        "import nowhere_at_all\n",
        "cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_all' at ",
        "update `acme-bad_import`, or remove the pack from the file",
    ),
    "bad_syntax": ("def f(:\n", "cannot be imported: SyntaxError: ", "update"),
    "bad_exit": ("raise SystemExit(4)\n", "cannot be imported: SystemExit: 4 at ", "update"),
    "bad_name": ("pack = 1\n", "cannot be imported: AttributeError: ", "update"),
    "bad_kind": ("PACK = {}\n", "is declared as dict, and not as a `Pack`", "update"),
    "bad_tool": (
        ECHO.replace("Args:", "Arguments:"),
        "TypeError: parameter `text` of `echo_text` is not described",
        "update",
    ),
    "bad_tool_name": (
        ECHO.replace("echo_text", "echo__text") + "PACK = Pack(tools=(echo__text,))\n",
        "the tool `echo__text` is not named like `group_verb`, in lower case",
        "update",
    ),
    "bad_twice": (
        ECHO + "PACK = Pack(tools=(echo_text, echo_text))\n",
        "two tools are named `echo_text`",
        "update",
    ),
    "bad_schema": (
        ECHO
        + "from dataclasses import replace\n"
        + "bad = replace(echo_text, input_schema={'type': 'objekt'})\n"
        + "PACK = Pack(tools=(bad,))\n",
        "the tool `echo_text` has an invalid input schema: type: ",
        "update",
    ),
    "bad_default": (
        ECHO.replace("text: str", "text: str = object()") + "PACK = Pack(tools=(echo_text,))\n",
        "is not declared as it should be: TypeError: Object of type object is not JSON",
        "update",
    ),
    "bad_options": (
        ECHO + "PACK = Pack(tools=(echo_text,), options=dict)\n",
        "TypeError: must be called with a dataclass type or instance",
        "update",
    ),
    "bad_option_type": (
        ECHO
        + "@dataclass(frozen=True)\nclass Odd:\n    key: bytes = b''\n"
        + "PACK = Pack(tools=(echo_text,), options=Odd)\n",
        "the option `key` is of the type `<class 'bytes'>`",
        "update",
    ),
    "bad_required": (
        ECHO
        + "@dataclass(frozen=True)\nclass Odd:\n    key: str\n"
        + "PACK = Pack(tools=(echo_text,), options=Odd)\n",
        "TypeError: Odd.__init__() missing 1 required positional argument: 'key'",
        "update",
    ),
    "bad_service": (
        ECHO
        + "@asynccontextmanager\nasync def open_(option):\n    yield 1\n"
        + "PACK = Pack(tools=(echo_text,), lifespan=open_)\n",
        "its lifespan has the parameter `option`: did you mean `options`",
        "update",
    ),
    "bad_older": (
        ECHO.replace("result={}", "result={}, older_parameters={'t': 'text'}")
        + "PACK = Pack(tools=(echo_text,))\n",
        "the tool `echo_text` has older names, which only built-in tools can have",
        "update",
    ),
}


@pytest.mark.parametrize("module", BAD)
def test_a_pack_that_is_not_as_it_should_be_says_what_is_wrong_and_what_to_do(
    site: Path, module: str
) -> None:
    text, message, hint = BAD[module]
    offer(site, module, text)

    with pytest.raises(PackLoadError) as caught:
        load_pack(module)

    entry = f"`{module}:PACK` of acme-{module} 1.2"
    assert caught.value.message.startswith(f"the pack `{module}` ({entry}) ")
    assert message in caught.value.message
    assert (caught.value.hint or "").startswith(hint)


def test_an_import_that_does_not_end_is_given_up(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_index, "IMPORT_SECONDS", 0.2)
    offer(site, "bad_hang", "import threading\nthreading.Event().wait()\n")

    for _ in range(2):
        with pytest.raises(PackLoadError, match=r"is not imported in 0\.2 seconds"):
            load_pack("bad_hang")


def test_a_missing_library_of_an_extra_is_installed_by_its_name(site: Path) -> None:
    offer(site, "extra_pack", "import nowhere_at_all\n", entry="PACK [fast]")

    with pytest.raises(PackLoadError) as caught:
        load_pack("extra_pack")

    assert caught.value.hint == "pip install 'acme-extra_pack[fast]'"


def test_two_distributions_with_one_pack_are_both_named(site: Path) -> None:
    offer(site, "twin_one", ECHO + "PACK = Pack(tools=(echo_text,))\n", twin="twin_one:PACK")
    offer(site, "twin_two", ECHO + "PACK = Pack(tools=(echo_text,))\n", twin="twin_two:PACK")

    for find in (find_offered_pack, load_pack, options_class):
        with pytest.raises(UsageError) as caught:
            find("twin")
        assert "`acme-twin_one==1.2`" in caught.value.message
        assert "`acme-twin_two==1.2`" in caught.value.message

    assert find_offered_pack("twin_one") is not None


def test_a_folder_of_a_project_offers_nothing(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del site
    install(tmp_path / "in", "acme-here", "1", {"here": "here:PACK"}, {"here.py": "x = 1 / 0\n"})
    (tmp_path / "in" / "site-packages").rename(tmp_path / "project")
    monkeypatch.syspath_prepend(str(tmp_path / "project"))

    assert find_offered_pack("here") is None


def test_a_pack_is_opened_with_the_services_that_it_names_and_no_others(site: Path) -> None:
    offer(site, "dice_one", DICE)
    told: list[tuple[str, str]] = []

    async def scene() -> list[Any]:
        kind: Any = options_class("dice_one")
        options = {"dice_one": kind(sides=20, token_env="MINE")}
        services = {
            "secrets": {"MINE": "mine", "OTHER": "not mine"},
            "notice": lambda code, text: told.append((code, text)),
        }
        async with started_packs(["dice_one"], None, options, **services) as packs:
            return [
                await packs.call("dice_sides", {}),
                await packs.call("dice_sides", {"name": "coin"}),
                await packs.call("dice_throw", {"count": 9}),
            ]

    sides, failed, refused = anyio.run(scene)

    assert told == [("pack", "pack `dice_one`: opened with 20 sides")]
    assert sides["content"][0]["text"] == "20 sides, {'MINE': 'mine'}"
    assert sides["structuredContent"]["sides"] == 20
    assert failed["structuredContent"]["error"]["code"] == "not_found"
    assert refused["structuredContent"]["error"]["code"] == "bad_arguments"


def test_what_an_import_prints_is_no_output(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offer(site, "noisy", f"{ECHO}print('hello')\nPACK = Pack(tools=(echo_text,), root='none')\n")

    load_pack("noisy")

    assert capsys.readouterr() == ("", "hello\n")


def test_what_an_import_keeps_of_stdout_is_stderr_also_for_others(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = f"{ECHO}import sys\nOUT = sys.stdout\nPACK = Pack(tools=(echo_text,), root='none')\n"
    offer(site, "noisy_log", kept)

    load_pack("noisy_log")
    # As the handler of a logger does, whoever it is that logs.
    print("logged", file=sys.modules["noisy_log"].OUT, flush=True)

    assert capsys.readouterr() == ("", "logged\n")


def test_what_a_pack_prints_is_no_output_and_what_others_print_meanwhile_is(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(site, "noisy_two", NOISY)

    async def print_own(calls: list[anyio.Event]) -> None:
        for called in calls:
            await called.wait()
            print("own", flush=True)

    def note(code: str, text: str) -> None:
        print(code, text, flush=True)

    async def scene() -> None:
        calls = [anyio.Event(), anyio.Event()]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(print_own, calls)
            async with started_packs(["noisy_two"], None, {}, notice=note) as packs:
                for number, called in enumerate(calls):
                    called.set()
                    await packs.call("noise_make", {"text": str(number)})
        print("end")

    anyio.run(scene)

    told = capsys.readouterr()
    assert told.out == "pack pack `noisy_two`: opened\nown\nown\nend\n"
    ways = ("call", "kept", "bytes", "task", "thread")
    wanted = [f"{way} {number}" for number in (0, 1) for way in ways]
    assert sorted(told.err.splitlines()) == sorted(["import", "open", *wanted, "close"])


@pytest.mark.parametrize("how", ["exit", "raise", "data", "text"])
def test_a_tool_that_breaks_fails_its_call_and_no_more(site: Path, how: str) -> None:
    offer(site, "dice_two", DICE)

    async def scene() -> Any:
        async with started_packs(["dice_two"], None, {}) as packs:
            with pytest.raises((RuntimeError, ValueError, TypeError, AttributeError)):
                await packs.call("dice_break", {"how": how})
            return await packs.call("dice_sides", {})

    assert anyio.run(scene)["structuredContent"]["sides"] == 6


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('no dice')", "cannot be opened: ValueError: no dice"),
        ("raise SystemExit(1)", "cannot be opened: SystemExit: 1"),
        ("return", "cannot be opened: RuntimeError: generator didn't yield"),
    ],
)
def test_a_lifespan_that_fails_is_a_failure_of_the_pack(
    site: Path, body: str, message: str
) -> None:
    module = f"lifespan_{len(body)}"
    text = f"@asynccontextmanager\nasync def open_():\n    {body}\n    yield 1\n"
    pack = "PACK = Pack(tools=(echo_text,), root='none', lifespan=open_)\n"
    offer(site, module, ECHO + text + pack)

    async def scene() -> None:
        async with started_packs([module], None, {}):
            pass

    with pytest.raises(BaseException) as caught:  # ruff: ignore[pytest-raises-too-broad] - it comes in a group
        anyio.run(scene)

    error: Any = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, PackLoadError)
    assert message in error.message


def test_a_pack_that_needs_a_root_and_has_none_says_so(site: Path) -> None:
    offer(site, "rooted", f"{ECHO}PACK = Pack(tools=(echo_text,))\n")

    async def scene() -> None:
        async with started_packs(["rooted"], None, {}):
            pass

    with pytest.raises(BaseException) as caught:  # ruff: ignore[pytest-raises-too-broad] - it comes in a group
        anyio.run(scene)

    error: Any = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert "needs a `root`, the folder for its tools" in error.message
