"""The scanner of the YAML library, held to YAML 1.2 where it reads something else.

A tab separates as a space does, but indents nothing; `?` is a letter unless a space follows it;
the first line of a block of text that is not empty has its indentation.
"""

from typing import Any

from ruamel.yaml.scanner import Scanner, ScannerError
from ruamel.yaml.tokens import ScalarToken

_LINE_ENDS = "\r\n"
_ENDS = "\0\r\n"
_BLANKS = " \t"
_FLOW = ",[]{}"


class PipelineScanner(Scanner):
    """Reads the tokens of a pipeline file."""

    def scan_to_next_token(self) -> None:
        """Skip what separates tokens.

        Raises:
            ScannerError: a tab indents one, or a `#` that follows one at once.
        """
        reader = self.reader
        if reader.index == 0 and reader.peek() == "\ufeff":
            reader.forward()
        while True:
            tab = None
            while reader.peek() in _BLANKS:
                tab = tab or (reader.get_mark() if reader.peek() == "\t" else None)
                reader.forward()
            before = reader.buffer[reader.pointer - reader.column : reader.pointer]
            if tab is not None and not before.strip(_BLANKS) and reader.peek() not in _ENDS:
                raise _scanner_error("\t", tab)
            if reader.peek() == "#":
                if before and before[-1] not in _BLANKS:
                    raise _scanner_error("#", reader.get_mark())
                while reader.peek() not in _ENDS:
                    reader.forward()
            if not self.scan_line_break():
                break
            self.allow_simple_key = self.allow_simple_key or not self.flow_level
        # Nor does a tab indent what begins within a line.
        self.allow_simple_key = self.allow_simple_key and (tab is None or bool(self.flow_level))

    def scan_plain_spaces(self, indent: Any, start_mark: Any) -> Any:
        """Keep the tabs between the words of a line."""
        reader = self.reader
        length = 0
        while reader.peek(length) in _BLANKS:
            length += 1
        blanks = reader.prefix(length)
        if "\t" not in blanks:
            return super().scan_plain_spaces(indent, start_mark)
        reader.forward(length)
        if reader.peek() in _LINE_ENDS:
            return super().scan_plain_spaces(indent, start_mark)
        return [blanks]

    def scan_block_scalar_indentation(self) -> Any:
        """The empty lines at the beginning, and the indentation of the first other one."""
        reader = self.reader
        ends: list[Any] = []
        deepest = 0
        end_mark = reader.get_mark()
        while True:
            while reader.peek() == " ":
                reader.forward()
            if reader.peek() not in _LINE_ENDS:
                break
            deepest = max(deepest, reader.column)
            ends.append(self.scan_line_break())
            end_mark = reader.get_mark()
        if self.indent < reader.column < deepest and reader.peek() != "\0":
            message = "an empty line is indented more than the text below it"
            raise ScannerError(None, None, message, reader.get_mark())
        return ends, max(deepest, reader.column), end_mark

    def check_key(self) -> bool:
        """Tell if a `?` is the sign of a key."""
        return self.reader.peek(1) in _BLANKS + _ENDS

    def check_value(self) -> bool:
        """Tell if a `:` is the sign of a value: after a quoted key it is whatever follows."""
        following = self.reader.peek(1)
        if following in _BLANKS + _ENDS or not self.flow_level:
            return following in _BLANKS + _ENDS
        last = self.tokens[-1] if self.flow_level in self.possible_simple_keys else None
        is_plain = isinstance(last, ScalarToken) and last.plain
        return following in _FLOW or not (last is None or is_plain)

    def check_plain(self) -> bool:
        """Tell if text begins here."""
        first, following = self.reader.prefix(2)
        if first in "-?:" and following not in _BLANKS + _ENDS:
            return not self.flow_level or following not in _FLOW
        return bool(super().check_plain())


def _scanner_error(character: str, mark: Any) -> ScannerError:
    message = f"found character {character!r} that cannot start any token"
    return ScannerError(None, None, message, mark)
