"""A process that draws an answer of so many deltas on a terminal: `COUNT plain|markdown`."""

import os
import pty
import subprocess
import sys

from aish.core.events import Place, Stamped, TextDelta, TurnFinished
from aish.core.messages import Usage
from aish.output.presenter import SESSION, Presenter
from aish.output.screen import Screen
from aish.output.style import look_of

SECTION = """\
## What the rules of section {n} are for

A rule *approves* a call or **denies** it; [the guide](https://example.org/guide/{n}) has more of
them, and `aish policy explain` says which one it was that let a call pass, and where it stands.

Nobody is asked where a rule has decided, and in a job that runs with nobody at a terminal no one
can be: what would be asked is denied there, and the exit code of the run says that it was so.

- rules of the file come first, and of these the ones that deny
- rules of the session come next
  - each as narrow as it can be
  - with the name of who made it
- a person comes last

```python
def decide(call: Call, rules: Sequence[Rule]) -> Verdict:
    for rule in rules:
        if rule.matches(call):
            return rule.verdict
    return "ask"
```

1. The call is shown as it will be sent.
2. The person says *yes*, *no* or *always*.

| verdict | what it means | how often |
| :-- | :-- | --: |
| `auto` | a rule said yes | {n} |
| `deny` | a rule said no | 3 |

"""
PLACE = Place("line-1", turn=1)


def answer(count: int) -> str:
    """A text of so many deltas."""
    text = ""
    while len(text) < 4 * count:
        text += SECTION.format(n=len(text))
    return text[: 4 * count]


def main() -> None:
    count, manner = int(sys.argv[1]), sys.argv[2]
    text = answer(count)
    pieces = [text[at : at + 4] for at in range(0, 4 * count, 4)]
    terminal, inner = pty.openpty()
    reader = subprocess.Popen(["cat"], stdin=terminal, stdout=subprocess.DEVNULL)
    with os.fdopen(inner, "w", encoding="utf-8") as out:
        screen = Screen(out, look_of(out, {"TERM": "xterm-256color", "COLUMNS": "80"}))
        talk = Presenter(screen, SESSION, markdown=manner != "plain")
        for number, piece in enumerate(pieces):
            talk(Stamped(number, 0.0, TextDelta(PLACE, piece)))
        finished = TurnFinished(PLACE, "mock", "stop", text, (), Usage(), None, 1.0)
        talk(Stamped(count, 0.0, finished))
        talk.close()
    reader.kill()


if __name__ == "__main__":
    main()
