"""Pipeline files that are none: the sentence, the place, exit code 2, no traceback."""

from pathlib import Path

import pytest
from e2e_project import REPO, ModelEndpoints, Project
from syrupy.assertion import SnapshotAssertion

HEAD = "aish: 1\nmodels: {m: {base_url: 'http://x/v1', model: y}}\n"
TEN_BROKEN = {
    "tabs.yaml": "aish: 1\nmodels:\n\tm: {base_url: http://x/v1, model: y}\nprompt: Say hello\n",
    "template.yaml": HEAD + "prompt: {{ inputs.x }}\n",
    "twice.yaml": HEAD + "model: m\nmodel: n\nprompt: Say hello\n",
    "keys.yaml": """\
aish: 1
modles: {m: {base_url: "http://x/v1", model: y}}
steps:
  - id: One
    promt: Say hello
    timeout: 90
""",
    "names.yaml": """\
aish: 1
models: {fast: {base_url: "http://x/v1", model: y, fallback: [fats]}}
model: fasd
mcp:
  servers: {repo: {pack: [fs], root: .}}
  auto_approve: [rpeo__file_read, echo]
inputs: {unused: {type: string}, word: {type: string}}
steps:
  - {id: a, needs: [b], prompt: "{{ inputs.wrod }}"}
  - {id: b, needs: [a], call: repository__file_read}
""",
    "templates.yaml": """\
aish: 1
models: {m: {base_url: "http://x/v1", model: y}}
steps:
  - {id: a, prompt: "{{ nothing }} {{ steps.zzz.text }} {% if %}"}
outputs: {x: "{{ steps.a.txet }}"}
""",
    "schema.yaml": """\
aish: 1
models: {m: {base_url: "http://x/v1", model: y}}
steps:
  - id: a
    prompt: Say hello
    output: {schema: {type: objekt}}
""",
    "anchors.yaml": "aish: 1\nmodels: &a [*a]\nprompt: !!python/name:os.system x\n",
    "version.yaml": HEAD.replace("1", "2", 1) + "prompt: Say hello\n",
    "bases.yaml": "aish: 1\nextends: [missing.yaml, bases.yaml]\nprompt: Say hello\n",
}


@pytest.mark.requirement("F10")
def test_ten_broken_files_are_explained(project: Project, snapshot: SnapshotAssertion) -> None:
    for name, text in TEN_BROKEN.items():
        project.write(name, text)

    done = project.aish("validate", *TEN_BROKEN)

    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == snapshot


def test_the_same_as_json(project: Project, snapshot: SnapshotAssertion) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.write("names.yaml", TEN_BROKEN["names.yaml"])
    project.pipeline("prompt: Say hello", name="good.yaml")

    done = project.aish("check", "good.yaml", "names.yaml", "--format", "json")

    assert (done.code, done.stderr) == (2, "")
    assert done.stdout == snapshot


def make_odd(folder: Path, kind: str) -> Path:
    """A path that is not a pipeline file."""
    path = folder / "odd.yaml"
    match kind:
        case "folder":
            path.mkdir()
        case "empty":
            path.write_bytes(b"")
        case "binary":
            path.write_bytes(bytes(range(256)) * 4)
        case "nul":
            path.write_bytes(b"aish: 1\nname: a\0b\n")
        case "6 MB":
            path.write_bytes(b"aish: 1\n" + b"# " + b"x" * 6_000_000)
        case "latin-1":
            path.write_bytes("aish: 1\nname: café\n".encode("latin-1"))
        case "utf-16":
            path.write_bytes("aish: 1\nname: a\n".encode("utf-16"))
        case "deep":
            path.write_bytes(b"aish: 1\nname: " + b"[" * 5000 + b"]" * 5000)
        case "a list":
            path.write_bytes(b"- aish: 1\n")
        case "json of another program":
            path.write_bytes(b'{"mcpServers": {"a": {"command": "x"}}}')
        case "endless":
            return Path("/dev/zero")
    return path


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "kind",
    [
        *("folder", "missing", "empty", "binary", "nul", "6 MB", "latin-1", "utf-16"),
        *("deep", "a list", "json of another program", "endless"),
    ],
)
def test_what_is_no_pipeline_file_is_refused_in_a_sentence(
    project: Project, snapshot: SnapshotAssertion, kind: str
) -> None:
    path = make_odd(project.folder, kind)

    done = project.aish("run", path if path.is_absolute() and kind == "endless" else path.name)

    assert (done.code, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert not project.run_folders
    assert done.stderr == snapshot


@pytest.mark.requirement("X10")
def test_a_file_that_explodes_is_refused(project: Project) -> None:
    laughs = "aish: 1\na0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    project.write("p.yaml", laughs)

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert done.stderr.startswith("error: p.yaml:")


def test_all_commands_refuse_a_broken_file_alike(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint()
    project.uses(endpoint)
    project.pipeline("prompt: 'Say {{ nothing }}'")

    said = {
        (done.code, done.stdout, done.stderr)
        for done in (
            project.run(),
            project.aish("plan", "p.yaml"),
            project.aish("tools", "p.yaml"),
            project.aish("call", "p.yaml", "s__x"),
            project.aish("policy", "explain", "p.yaml", "--tool", "s__x"),
        )
    }

    ((code, stdout, stderr),) = said
    assert (code, stdout) == (2, "")
    assert stderr.startswith("error: p.yaml:3:9: prompt: ")
    assert endpoint.requests == []


def test_the_files_of_this_repository_are_valid(project: Project) -> None:
    files = sorted((REPO / "pipelines").glob("*.yaml"))

    done = project.aish("validate", *files)

    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == "".join(f"{file}: ok\n" for file in files)


def test_a_malformed_reference_in_an_address_is_one_error(project: Project) -> None:
    project.pipeline('models: {m: {base_url: "${}", model: x}}\nprompt: Say hello')

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert "`${}` is not a reference to a variable" in done.stderr
    assert done.stderr.endswith("p.yaml: 1 error\n")


@pytest.mark.parametrize("option", ["--replay", "--record", "--cassette"])
def test_a_pipeline_file_that_an_option_took_as_its_value_is_named(
    project: Project, option: str
) -> None:
    project.pipeline("prompt: Say hello")

    alone = project.aish("run", option, "p.yaml")
    project.pipeline("prompt: Say hello", "aish.yaml")
    beside = project.aish("run", option, "p.yaml")

    assert alone == beside
    assert (alone.code, alone.stdout) == (2, "")
    assert f"error: `p.yaml` is the value of `{option}` here, and a pipeline" in alone.stderr
    assert f"hint: `aish run p.yaml {option}`" in alone.stderr
