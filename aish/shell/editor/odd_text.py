"""Characters that would be invisible or steer the terminal, spelled out while a line is edited.

The line itself keeps them: they are data.
"""

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments

from aish.core.text import for_terminal

_TAB = "    "
_SELECTORS = frozenset("\ufe0e\ufe0f")


class OddText(Processor):
    """Shows what `aish.core.text` would, one character at a time: the cursor stays right."""

    def apply_transformation(  # ruff: ignore[no-self-use] - what prompt_toolkit calls
        self, transformation_input: TransformationInput
    ) -> Transformation:
        """Spell out what is odd in one line."""
        fragments = transformation_input.fragments
        line = "".join(fragment[1] for fragment in fragments)
        if "\t" not in line and for_terminal(line) == line:
            return Transformation(fragments)
        shown: StyleAndTextTuples = []
        places = [0]
        for fragment in explode_text_fragments(fragments):
            text = _shown(fragment[1])
            odd = "" if text == fragment[1] else " class:odd"
            shown.append((fragment[0] + odd, text))
            places.append(places[-1] + len(text))
        places.append(places[-1] + 1)
        return Transformation(
            shown,
            source_to_display=lambda at: places[min(at, len(places) - 1)],
            display_to_source=lambda at: sum(1 for place in places[1:] if place <= at),
        )


def _shown(character: str) -> str:
    if character == "\t":
        return _TAB
    # What makes an emoji of a symbol is only odd elsewhere, and one character cannot tell.
    return character if character in _SELECTORS else for_terminal(character)
