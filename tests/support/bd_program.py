"""A stand-in for the program `bd`, with the command lines and answers of beads 1.2.

Its issues are in `.beads/embeddeddolt/issues.json`; `.beads/calls.json` gets the words, folder and
names of variables of each call. `.beads/says` has an answer instead: how it ends, then a text.
"""

import sys
from pathlib import Path

PROGRAM = """#!{python} -I
import json, os, sys

folder = os.environ["BEADS_DIR"]
store = os.path.join(folder, "embeddeddolt", "issues.json")
told = [sys.argv[1:], os.getcwd(), sorted(os.environ)]
with open(os.path.join(folder, "calls.json"), "a") as file:
    file.write(json.dumps(told) + "\\n")
if os.path.exists(os.path.join(folder, "says")):
    said = open(os.path.join(folder, "says")).read()
    kind, _, text = said.partition("\\n")
    if kind == "sleep":
        import time
        time.sleep(1000)
    print(text, file=sys.stderr if kind.isdigit() else sys.stdout)
    sys.exit(int(kind) if kind.isdigit() else 0)
with open(store) as file:
    issues = json.load(file)
verb, *words = sys.argv[1:]
options = [word for word in words if word.startswith("--") and "=" in word]
given = dict(word[2:].partition("=")[::2] for word in options)
last = words[words.index("--") + 1] if "--" in words else ""
assert "--json" in words
if verb == "list":
    found = [one for one in issues if given.get("status") in (None, one["status"])]
    answer = found[: int(given["limit"])]
elif verb == "ready":
    answer = [one for one in issues if one["status"] == "open"]
elif verb == "create":
    answer = {{"id": f"db-{{len(issues) + 1}}", "title": last, "status": "open", "priority": 2,
              "issue_type": "task", "description": given.get("description", "")}}
    issues.append(answer)
elif verb == "update":
    answer = [one for one in issues if one["id"] == last]
    for one in answer:
        one["status"] = given["status"]
    if not answer:
        print(f"Error resolving {{last}}: no issue found matching {{last!r}}", file=sys.stderr)
        sys.exit(0)
with open(store, "w") as file:
    json.dump(issues, file)
print(json.dumps(answer, indent=2))
"""


def put_bd(folder: Path) -> Path:
    """The program in a folder, which it returns, for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "bd"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    return folder
