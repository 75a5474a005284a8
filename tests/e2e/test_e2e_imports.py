"""What a run imports before its first request; its speed rests on that (docs/performance.md)."""

import subprocess
import sys

from e2e_project import ModelEndpoints, Project
from model_endpoint import text_reply

HEAVY = {"jsonschema", "jinja2", "rich", "vcr", "pydantic", "importlib.metadata", "platformdirs"}


def imported(project: Project, *arguments: str) -> set[str]:
    """The modules that `aish ARGUMENTS` had imported when it ended."""
    script = (
        # Development tools bring `click`, and with it httpx imports rich; a user has none.
        "import sys; sys.modules['click'] = None; from aish.cli.main import run_command_line; "
        f"code = run_command_line({list(arguments)!r}); "
        "print(*sys.modules, sep='\\n', file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.folder,
        env=project.aish.env,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines())


def test_a_simple_run_imports_no_heavy_library_and_no_room_it_does_not_use(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline(
        """
        prompt: "Say hello to {{ inputs.name }}"
        inputs: {name: {type: string, default: you}}
        """
    )

    modules = imported(project, "run", "p.yaml")

    assert modules & HEAVY == set()
    assert not [
        name
        for name in modules
        if name.startswith(
            ("aish.mcp.", "aish.packs.pack", "aish.packs.fs", "aish.cassettes", "yaml")
        )
    ]


def test_validating_imports_neither_a_network_library_nor_a_schema_engine(project: Project) -> None:
    project.pipeline("prompt: Say hello\nmodels: {m: {embedded: smollm2}}")

    modules = imported(project, "validate", "p.yaml")

    assert modules & {*HEAVY, "httpx"} == set()
