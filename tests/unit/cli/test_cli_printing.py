import ast
from pathlib import Path

from e2e_project import REPO
from samples import each_case

WAYS = {"print", "write_text", "sys.stdout.write"}
COMMANDS = sorted((REPO / "aish" / "cli").rglob("*.py"))
# What is printed elsewhere: our schemas, JSON in pieces.
KNOWN = {"printer.py", "runs_show.py", "schema.py"}


@each_case("path", COMMANDS)
def test_commands_print_in_one_way(path: Path) -> None:
    found = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in WAYS
    ]

    assert path.name in KNOWN or found == []
