"""The line editor at a real terminal: what is typed, what is seen, what is left behind (S1)."""

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import clean_environment
from fork_server import ForkServer
from samples import sampled
from terminal_window import Window

DRIVER = Path(__file__).parents[2] / "support" / "shell_editor_driver.py"
CTRL_A, CTRL_C, CTRL_D, CTRL_R, CTRL_Z = "\x01", "\x03", "\x04", "\x12", "\x1a"
ESC_ENTER = "\x1b\r"
UP, LEFT = "\x1b[A", "\x1b[D"
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
PASTE_OFF = b"\x1b[?2004l"


class EditorScene:
    """Starts the editor in terminals, and gives it commands from the side."""

    def __init__(self, folder: Path, env: dict[str, str], warm: ForkServer | None) -> None:
        self.folder = folder
        self.env = env
        self.warm = warm
        self.windows: list[Window] = []
        os.mkfifo(folder / "commands")
        # Held open, so that a command waits for a program that is not there yet.
        self.commands = os.open(folder / "commands", os.O_RDWR)

    def open(
        self, *, rows: int = 24, columns: int = 80, wanted: str = "local>", **env: str
    ) -> Window:
        argv = [sys.executable, str(DRIVER), str(self.folder / "history"), "commands"]
        given = {**self.env, **env}
        window = Window(
            argv, cwd=self.folder, env=given, rows=rows, columns=columns, warm=self.warm
        )
        self.windows.append(window)
        window.wait_for(wanted)
        return window

    def command(self, text: str) -> None:
        os.write(self.commands, f"{text}\n".encode())


@pytest.fixture
def editor_scene(
    tmp_path: Path, empty_home: Path, warm: ForkServer | None
) -> Iterator[EditorScene]:
    editor_scene = EditorScene(tmp_path, clean_environment(empty_home), warm)
    yield editor_scene
    for window in editor_scene.windows:
        window.close()
    os.close(editor_scene.commands)


def test_what_is_typed_arrives_under_the_name_of_the_model(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type("what is this?\r")
    window.wait_for('local> what is this?\ngot: "what is this?"\nlocal>')
    window.type("\r  \r:quit\r")
    assert window.finish() == 0
    assert "left\nended None sane=True" in window.text


def test_the_prompt_and_the_toolbar_change_while_a_line_is_typed(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type("half a ")
    editor_scene.command("toolbar docs: connecting")
    window.wait_for("local> half a\ndocs: connecting")
    window.type("line")
    editor_scene.command("toolbar docs: ready · \x1b[31m\u202e")
    window.wait_for("local> half a line\ndocs: ready · \\x1b[31m\\u202e")
    editor_scene.command("prompt large")
    window.wait_for("large> half a line")
    editor_scene.command("toolbar")
    window.wait_for(lambda: "docs" not in window.text)


def test_notices_appear_above_the_line_and_leave_it_whole(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type("half a line" + LEFT * 4)
    window.wait_for(lambda: window.cursor == (0, 14))
    editor_scene.command("above server docs failed")
    window.wait_for("server docs failed\nlocal> half a line")
    editor_scene.command("from-thread server notes failed")
    window.wait_for("server notes failed\nlocal> half a line")
    window.type("X\r")
    window.wait_for('got: "half a Xline"')


def test_half_a_line_waits_until_the_editing_is_done(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type("half")
    editor_scene.command("begin not yet")
    editor_scene.command("above told")
    window.wait_for("not yet\ntold\nlocal> half")
    editor_scene.command("begin the rest")
    editor_scene.command("toolbar state")
    window.wait_for("state")
    assert "the rest" not in window.text
    window.type("\r")
    window.wait_for("the rest")


def test_a_question_takes_the_line_away_and_gives_it_back(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type("half")
    window.wait_for("local> half")
    editor_scene.command("ask")
    window.wait_for("sure?")
    assert window.echoes
    window.type("yes\r")
    window.wait_for('yes\nanswered: "yes')
    window.wait_for("local> half")
    window.type(" a line\r")
    window.wait_for('got: "half a line"')


def test_a_line_that_is_put_aside_comes_back_with_its_cursor(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type("one two\x1b\rlast")
    window.wait_for("       last")
    window.type("\x1b[A")

    def is_above() -> bool:
        row, column = window.cursor
        return window.lines[row] == "local> one two" and column == len("       last")

    window.wait_for(is_above)
    editor_scene.command("interrupt")
    window.wait_for("put aside\nlocal> one two\n       last")
    window.wait_for(is_above)
    assert window.text.count("one two") == 1

    # Not while a question is on the screen: after it.
    window.mark()
    editor_scene.command("ask-interrupted")
    window.wait_for("sure?")
    window.type("y\r")
    window.wait_for(lambda: "put aside" in "\n".join(window.since))
    window.wait_for(lambda: window.lines[-2:] == ["local> one two", "       last"])
    window.type("!\r")
    window.wait_for('got: "one !two\\nlast"')


def test_several_lines_are_one_message(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type(f"one{ESC_ENTER}two\\\rthree\\\\\r")
    window.wait_for(f"got: {json.dumps(chr(10).join(['one', 'two', 'three' + chr(92) * 2]))}")


def test_ctrl_c_discards_the_line_and_ctrl_d_leaves_on_an_empty_one_only(
    editor_scene: EditorScene,
) -> None:
    window = editor_scene.open()
    window.type("never mind" + CTRL_C)
    window.wait_for("local> never mind\nlocal>")
    window.type(f"xkept{CTRL_A}{CTRL_D}\r")
    window.wait_for('got: "kept"')
    window.type(CTRL_D)
    assert window.finish() == 0
    assert "never mind" not in "".join(line for line in window.lines if "got" in line)


def test_a_paste_of_5000_lines_is_one_message(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    text = "".join(f"line {number} of a long text that was copied\r" for number in range(5000))
    window.type(f"{PASTE}{text}{PASTED}")
    window.wait_for("line 4999 of")
    window.type("end\r")
    expected = len(text) + len("end")
    window.wait_for(f"got: {expected} characters, 5001 lines")
    window.type("next\r")
    window.wait_for('got: "next"')


def test_a_paste_while_busy_is_one_message_too(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type(":busy\r")
    window.wait_for("\nbusy")
    text = "".join(f"line {number}\r" for number in range(5000))
    window.type(f"{PASTE}{text}{PASTED}\rsecond\r")
    editor_scene.command("done")
    window.wait_for('got: "second"')
    assert f"got: {len(text)} characters, 5001 lines" in window.text


def test_history_goes_on_in_the_next_session_without_what_is_private(
    editor_scene: EditorScene,
) -> None:
    window = editor_scene.open()
    window.type("first line\r my secret\rtoken s3cret\rfirst line\rfirst line\r")
    window.wait_for(lambda: window.text.count('got: "first line"') == 3)
    window.type(CTRL_D)
    assert window.finish() == 0
    file = editor_scene.folder / "history"
    assert file.read_text() == '"first line"\n"token ***"\n"first line"\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    again = editor_scene.open()
    again.type(UP + UP)
    again.wait_for("local> token ***")
    again.type(CTRL_C)
    again.wait_for("***\nlocal>")
    again.type(CTRL_R + "fir")
    again.wait_for("`fir': first line")
    again.type("\r\r")
    again.wait_for('got: "first line"')


def test_a_history_that_cannot_be_kept_is_told_and_no_more(editor_scene: EditorScene) -> None:
    (editor_scene.folder / "elsewhere").write_text("")
    (editor_scene.folder / "history").symlink_to("elsewhere")
    window = editor_scene.open()
    window.type("one\rtwo\r")
    window.wait_for('got: "two"')
    window.wait_for("notice: lines are not stored in")
    window.type(UP)
    window.wait_for("local> two")
    assert window.raw.count(b"notice:") == 1
    assert (editor_scene.folder / "elsewhere").stat().st_size == 0


def test_commands_and_arguments_are_completed_while_they_are_typed(
    editor_scene: EditorScene,
) -> None:
    window = editor_scene.open()
    window.type(":m")
    window.wait_for("shows or switches the model")
    assert "attach" not in window.text
    window.type("\t\t lo")
    window.wait_for(lambda: "local> :model lo" in window.text and "large" not in window.text)
    window.type("\t\r")
    window.wait_for('got: ":model local"')


def test_tools_and_paths_are_completed_on_tab(editor_scene: EditorScene) -> None:
    (editor_scene.folder / "a folder").mkdir()
    (editor_scene.folder / "a folder" / "notes.txt").touch()
    window = editor_scene.open()
    window.type("use repo")
    window.wait_for("use repo")
    assert "repo__file_read" not in window.text
    window.type("\t")
    window.wait_for("repo__file_write")
    window.type("\t\r")
    window.wait_for('got: "use repo__file_read')
    window.type(":attach a")
    window.wait_for(":attach a")
    window.type("\t")
    window.wait_for("attach a folder/")
    window.type("no")
    window.wait_for("folder/no")
    window.type("\t")
    window.wait_for("attach a folder/notes.txt")
    window.type(CTRL_C + "!cat a\t")
    window.wait_for("cat a\\ folder/")
    window.type("\t")
    window.wait_for("cat a\\ folder/notes.txt")


def test_while_busy_nothing_is_echoed_and_lines_wait_for_the_prompt(
    editor_scene: EditorScene,
) -> None:
    window = editor_scene.open()
    window.type(":busy\r")
    window.wait_for("\nbusy")
    assert not window.echoes
    window.type("typed ahead\rhalf a")
    editor_scene.command("above part of the answer")
    window.wait_for("part of the answer")
    assert "typed" not in window.text
    editor_scene.command("done")
    window.wait_for('free\nlocal> typed ahead\ngot: "typed ahead"\nlocal> half a')


def test_ctrl_c_while_busy_is_a_signal_and_drops_what_was_typed_ahead(
    editor_scene: EditorScene,
) -> None:
    window = editor_scene.open()
    window.type(":busy\r")
    window.wait_for("\nbusy")
    window.type("typed ahead\r")
    window.type(CTRL_C)
    window.wait_for("interrupted\nlocal>")
    window.type("next\r")
    window.wait_for('got: "next"')
    assert "ahead" not in window.text


@pytest.mark.parametrize("key", [" ", UP, f"{PASTE}{'text ' * 2000}{PASTED}"])
def test_any_key_halts_and_is_not_kept(editor_scene: EditorScene, key: str) -> None:
    window = editor_scene.open()
    window.type(":halt\r")
    window.wait_for("\nbusy")
    window.type(key)
    window.wait_for("free\nlocal>")
    if key.startswith(PASTE):
        # What is left of it stands there, for the person to send or to discard.
        window.wait_for("text")
        window.type(CTRL_C)
    window.type("next\r")
    window.wait_for('got: "next"')
    assert window.raw.count(b"got:") == 1


def test_what_was_typed_before_a_question_is_thrown_away(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type(":busy\r")
    window.wait_for("\nbusy")
    window.type(":ask\rtyped ahead\r")
    editor_scene.command("done")
    window.wait_for("sure?")
    window.wait_for(lambda: window.echoes)
    window.type("no\r")
    window.wait_for('answered: "no')
    assert "notice: input typed before the question was discarded" in window.text
    window.type("next\r")
    window.wait_for('got: "next"')
    assert window.raw.count(b"got:") == 1


def test_a_text_is_edited_and_typing_ahead_does_not_accept_it(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type(":busy\r")
    window.wait_for("\nbusy")
    window.type(":edit rm -r build\rtyped ahead\r")
    editor_scene.command("done")
    window.wait_for("edit: rm -r build")
    window.type("-tmp\r")
    window.wait_for('edited: "rm -r build-tmp"')
    window.wait_for('got: "typed ahead"')
    window.type(":edit ls\r")
    window.wait_for("edit: ls")
    window.type(CTRL_C)
    window.wait_for("edited: null")
    window.type(CTRL_D)
    window.finish()
    assert "build-tmp" not in (editor_scene.folder / "history").read_text()


def test_what_is_pasted_is_data_and_does_not_steer_the_terminal(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type(f"{PASTE}a\0b\x1b[2Jc\u202ed\te{PASTED}")
    window.wait_for("local> a\\x00b\\x1b[2Jc\\u202ed    e")
    window.type("f\r")
    window.wait_for(json.dumps("a\0b\x1b[2Jc\u202ed\tef"))
    assert b"\x1b[2J" not in window.raw
    assert "\u202e".encode() not in window.raw


def test_typing_that_is_not_utf8_is_replaced_and_told(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type(b"caf\xe9 \xff\r")
    window.wait_for('got: "caf\\ufffd \\ufffd"')
    assert "notice: the input is not valid UTF-8" in window.text


def test_the_terminal_is_never_asked_anything(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    editor_scene.command("toolbar some state")
    window.wait_for("some state")
    # An answer to somebody else's question is no typing.
    window.type("a\x1b[24;80Rb\r")
    window.wait_for('got: "ab"')
    window.type(CTRL_D)
    window.finish()
    for query in (b"\x1b[6n", b"\x1b[c", b"\x1b[>c", b"\x1b]10;?", b"\x1b]11;?", b"\x1b[5n"):
        assert query not in window.raw
    assert b"WARNING" not in window.raw


def test_without_colour_none_is_used(editor_scene: EditorScene) -> None:
    window = editor_scene.open(NO_COLOR="1")
    window.type(f"{PASTE}odd \x1b{PASTED}")
    window.wait_for("odd \\x1b")
    window.type(CTRL_C)
    window.wait_for("\\x1b\nlocal>")
    assert not window.styled


@pytest.mark.parametrize("columns", [40, 20])
def test_a_narrow_terminal_shows_the_whole_line(editor_scene: EditorScene, columns: int) -> None:
    window = editor_scene.open(columns=columns, rows=10)
    editor_scene.command("toolbar docs: connecting, notes: connecting, repo: ready")
    text = "a line that is far longer than the terminal is wide"
    window.type(text)
    window.wait_for(lambda: f"local> {text}" in "".join(window.lines))
    editor_scene.command("prompt a-model-with-a-very-long-name")
    window.wait_for(lambda: "a-model-" in window.text)
    window.type("\r")
    window.wait_for(lambda: f'got: "{text}"' in "".join(window.lines))


def test_a_terminal_of_three_rows_is_enough(editor_scene: EditorScene) -> None:
    window = editor_scene.open(rows=3, columns=20)
    editor_scene.command("toolbar state")
    window.type(":mod")
    window.wait_for("local> :mod")
    assert "too small" not in window.text
    window.type("el\r")
    window.wait_for('got: ":model"')


def test_resizing_keeps_what_is_typed(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    editor_scene.command("toolbar state")
    window.type("a line that will not fit into twenty columns")
    window.wait_for("columns\nstate")
    drawn = len(window.raw)
    window.resize(24, 20)
    window.wait_for(lambda: b"state" in window.raw[drawn:])
    window.type("!")
    window.wait_for(lambda: "columns!" in "".join(window.lines))
    window.resize(24, 80)
    window.type("\r")
    window.wait_for('got: "a line that will not fit into twenty columns!"')


def test_resizing_while_busy_is_seen_by_the_next_prompt(editor_scene: EditorScene) -> None:
    window = editor_scene.open()
    window.type(":busy\r")
    window.wait_for("\nbusy")
    window.resize(10, 20)
    editor_scene.command("done")
    window.wait_for("free\nlocal>")
    window.type("more than twenty columns of text")
    window.wait_for(lambda: "local> more than twenty columns of text" in "".join(window.lines))


@pytest.mark.parametrize(
    "number",
    sampled(
        [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], often={0}, reason="cases of the same kind"
    ),
)
@pytest.mark.parametrize("state", ["editing", "busy"])
def test_a_signal_leaves_the_terminal_as_it_was(
    editor_scene: EditorScene, number: signal.Signals, state: str
) -> None:
    window = editor_scene.open()
    before = window.echoes
    if state == "busy" and number is not signal.SIGINT:
        window.type(":busy\r")
        window.wait_for("\nbusy")
    window.send_signal(number)
    assert window.finish() == (130 if number is signal.SIGINT else 143)
    assert not before
    assert window.echoes
    assert window.raw.rfind(PASTE_OFF) > window.raw.rfind(b"\x1b[?2004h")


def test_a_signal_before_the_session_leaves_the_terminal_as_it_was(
    editor_scene: EditorScene,
) -> None:
    window = editor_scene.open(wanted="starting", STARTING="1")
    assert not window.echoes
    window.send_signal(signal.SIGTERM)
    assert window.finish() == -signal.SIGTERM
    assert window.echoes


@pytest.mark.parametrize("state", ["editing", "busy"])
def test_a_window_that_is_closed_ends_it(editor_scene: EditorScene, state: str) -> None:
    window = editor_scene.open()
    if state == "busy":
        window.type(":busy\r")
        window.wait_for("\nbusy")
    assert window.hang_up() in {0, 143}


def test_it_is_stopped_and_goes_on_under_a_shell(editor_scene: EditorScene) -> None:
    argv = ["/bin/bash", "--norc", "--noprofile", "-i"]
    window = Window(argv, cwd=editor_scene.folder, env={**editor_scene.env, "PS1": "shell$ "})
    editor_scene.windows.append(window)
    window.wait_for("shell$")
    window.type(f"{sys.executable} {DRIVER} - commands\r")
    window.wait_for("local>")
    window.type("half")
    window.wait_for("local> half")
    window.type(CTRL_Z)
    window.wait_for("Stopped")
    window.type("fg\r")
    window.wait_for(lambda: window.lines[-1] == "local> half")
    window.type(" a line\r:busy\r")
    window.wait_for("\nbusy")
    window.type(CTRL_Z)
    window.wait_for(lambda: window.text.count("Stopped") == 2)
    window.type("fg\r")
    window.wait_for(lambda: not window.echoes)
    window.type("ahead\r")
    editor_scene.command("done")
    window.wait_for('got: "ahead"')
    window.type(CTRL_D)
    window.wait_for("sane=True")
    window.type("exit\r")
    assert window.finish() == 0


@pytest.mark.parametrize("state", [":crash\r", "bug in the toolbar"])
def test_a_bug_leaves_the_terminal_as_it_was(editor_scene: EditorScene, state: str) -> None:
    window = editor_scene.open()
    if state == ":crash\r":
        window.type(state)
    else:
        editor_scene.command("toolbar bug")
    assert window.finish() == 1
    assert b"RuntimeError: a bug" in window.raw
    assert window.echoes
    assert window.raw.rfind(PASTE_OFF) > window.raw.rfind(b"\x1b[?2004h")
