"""Keys that are written in the file itself: in no output and no file, whatever field has them."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from e2e_project import Project
from samples import sampled

KEY = "sk-proj-a1B2c3D4e5F6g7H8i9J0kLmN"
SHORT = "sk-1234-planted"
# Nothing listens there.
URL = "http://127.0.0.1:9"
FILE = f"""
aish: 1
description: what it does
inputs: {{topic: {{type: string, default: cats, description: of what}}}}
models: {{m: {{base_url: "{URL}/v1", model: x, headers: {{X-A: b}}, retry: {{attempts: 1}}}}}}
mcp:
  servers:
    w: {{url: "{URL}/mcp?a=b", headers: {{X-A: b}}, required: false}}
    s: {{command: ["false", "--a", b], args: [c], env: {{A: b}}, required: false}}
    f: {{pack: [fs, shell], root: ., options: {{fs: {{deny_names: ["*.key"]}}}}}}
  auto_approve: [f__file_read, {{tool: f__shell_run, command: [echo, hello]}}, shell__run]
  deny: [{{tool: f__dir_list, when: {{path: x}}}}]
steps:
- {{id: a, call: f__shell_run, with: {{command: echo hello}}, timeout: 10s, on_error: continue}}
- {{id: b, run: [echo, hi, "{{{{ steps.a.text }}}}"], env: {{B: c}}, on_error: continue}}
- {{id: d, prompt: say hi, system: you are, on_error: continue, attach: [p.yaml]}}
- {{id: e, foreach: "['x', 'y']", as: it, run: [echo, "{{{{ it }}}}"], key: it}}
- {{id: g, call: f__file_read, with: {{path: nothing.txt}}, on_error: continue}}
outputs: {{r: "{{{{ steps.b.text }}}} z"}}
"""
WHOLE: Any = yaml.safe_load(FILE)
Path = tuple[str | int, ...]


def fields(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of each value of the file."""
    if isinstance(value, (dict, list)):
        for part, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from fields(below, (*path, part))
    else:
        yield path


def planted(path: Path, *, inside: bool) -> str:
    """The file with the key in one place, alone or behind what is there."""
    whole = copy.deepcopy(WHOLE)
    place = whole
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = f"{place[path[-1]]} {KEY}" if inside else KEY
    return str(yaml.safe_dump(whole, sort_keys=False, width=1000))


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
@pytest.mark.parametrize(
    "path",
    sampled(
        [pytest.param(path, id=".".join(map(str, path))) for path in fields(WHOLE)],
        often=range(5, 45, 9),
        reason="cases of the same kind",
    ),
)
def test_a_key_in_any_field_is_neither_printed_nor_stored(
    project: Project, path: Path, *, inside: bool
) -> None:
    project.write("p.yaml", planted(path, inside=inside))

    for command in ("validate", "plan --offline", "plan --offline --format json", "run", "tools"):
        done = project.aish(*command.split(), "p.yaml")

        assert done.code != 70, done.stderr
        assert KEY not in done.stdout + done.stderr, command
    assert KEY not in project.everything_written()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "server",
    [
        f'{{url: "{URL}/mcp?api_key=KEY"}}',
        f'{{url: "{URL}/mcp?a=b#KEY"}}',
        f'{{url: "{URL}/mcp#token=KEY"}}',
        '{command: "srv --api-key KEY"}',
        '{command: "srv --token=KEY -v"}',
        "{command: [srv, --api-key, KEY]}",
        "{command: srv, args: [--password, KEY]}",
        "{command: srv, args: [API_TOKEN=KEY]}",
        "{command: [srv, -H, 'Authorization: Bearer KEY']}",
        f'{{command: [srv, "{URL}/x?access_token=KEY"]}}',
        "{command: [srv], env: {SRV_TOKEN: KEY}}",
        f"{{url: '{URL}/mcp', headers: {{Authorization: Bearer KEY}}}}",
    ],
)
@pytest.mark.parametrize("key", [SHORT, KEY])
def test_a_key_in_the_entry_of_a_server_is_masked(project: Project, server: str, key: str) -> None:
    entry = server.replace("KEY", key).removesuffix("}") + ", timeout: {connect: 300ms}}"
    project.pipeline(f"mcp: {{servers: {{w: {entry}}}}}\nprompt: Say hello\n")
    project.aish.env["MODEL_URL"] = f"{URL}/v1"

    checked = project.aish("validate", "p.yaml")
    planned = project.aish("plan", "p.yaml", "--offline")
    ran = project.run()

    seen = "".join(done.stdout + done.stderr for done in (checked, planned, ran))
    assert (checked.code, planned.code, ran.code) == (0, 0, 5)
    assert key not in seen + project.everything_written()
    assert "the file contains what looks like a key" in checked.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "entry",
    [
        "models: {m: {base_url: http://127.0.0.1:1/v1, model: x, key_env:KEY}}",
        "models:\n  m:\n    base_url: http://127.0.0.1:1/v1\n    key_env:KEY\n",
        "models:\n  m:\n    key_env:KEY\n    base_url: http://127.0.0.1:1/v1\n",
        "models:\n  m:\n    base_url: http://127.0.0.1:1/v1\n    model: x\n    key_env:KEY",
        "models:\n  m:\n    key_env:KEY\n",
        "models: {m: key_env:KEY}",
        "models: {m: KEY}",
    ],
)
def test_a_key_behind_a_colon_without_a_space_is_not_shown(project: Project, entry: str) -> None:
    project.pipeline(entry.replace("KEY", SHORT) + "\nprompt: Say hello\n")

    for command in ("validate", "plan", "run"):
        done = project.aish(command, "p.yaml")

        assert done.code == 2, done.stderr
        assert "error: p.yaml:" in done.stderr
        assert SHORT not in done.stdout + done.stderr


def test_text_that_is_no_key_is_allowed_in_the_file(project: Project) -> None:
    project.pipeline(
        f"cassette: {{path: c.yaml, allow: ['{KEY}']}}\n"
        f"mcp: {{auto_approve: [shell__run]}}\nrun: [echo, {KEY}]\n"
    )

    checked = project.aish("validate", "p.yaml", "--strict")
    done = project.run()

    assert (checked.code, done.code, done.stdout) == (0, 0, f"{KEY}\n")


@pytest.mark.parametrize(
    "entry",
    [
        'servers: {w: {command: "./none --token KEY"}}',
        "servers: {w: {command: [./KEY]}}",
        "servers: {w: {pack: fs, root: ./KEY}}",
        "auto_approve: [KEY]",
    ],
)
def test_no_message_about_what_cannot_start_or_match_has_a_key(
    project: Project, entry: str
) -> None:
    project.pipeline(f"mcp: {{{entry.replace('KEY', KEY)}}}\nprompt: Say hello\n")
    project.aish.env["MODEL_URL"] = f"{URL}/v1"

    for command in ("doctor", "doctor --format json", "validate", "plan --offline", "tools"):
        done = project.aish(*command.split(), "p.yaml")

        assert KEY not in done.stdout + done.stderr, command
