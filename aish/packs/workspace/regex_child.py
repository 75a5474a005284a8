"""The child that searches for a regular expression: texts in, matching lines out, as JSON lines.

Run as a script by `regex`, without imports of `aish`: it starts in a few milliseconds and is killed
when it takes too long.
"""

import json
import re
import sys


def main() -> None:
    """Read the question and the texts from stdin, write matches to stdout."""
    question = json.loads(sys.stdin.buffer.readline())
    try:
        pattern = re.compile(question["pattern"], re.IGNORECASE if question["ignore_case"] else 0)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stdout.write(json.dumps({"error": str(error)[:200]}) + "\n")
        return
    left = question["most"]
    for row in sys.stdin.buffer:
        path, text = json.loads(row)
        for number, line in enumerate(text.split("\n"), 1):
            if pattern.search(line):
                sys.stdout.write(json.dumps([path, number, line[: question["longest"]]]) + "\n")
                left -= 1
                if not left:
                    return


if __name__ == "__main__":
    main()
