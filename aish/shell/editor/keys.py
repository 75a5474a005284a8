"""The keys that differ from what Emacs and readline have."""

from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent


def key_bindings() -> KeyBindings:
    """Enter sends, Escape and Enter begin another line, Tab completes."""
    keys = KeyBindings()

    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter", filter=_after_backslash)
    def go_on(event: KeyPressEvent) -> None:
        event.current_buffer.delete_before_cursor()
        event.current_buffer.insert_text("\n")

    return keys


@Condition
def _after_backslash() -> bool:
    document = get_app().current_buffer.document
    before = document.text_before_cursor
    odd = (len(before) - len(before.rstrip("\\"))) % 2
    return document.is_cursor_at_the_end and bool(odd) and not before.startswith(":")
