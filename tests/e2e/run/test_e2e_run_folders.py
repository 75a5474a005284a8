"""What stands in the folder of a run, and what happens where there can be none."""

import json

import pytest
from cli_process import Done, heeding_modes
from e2e_project import ModelEndpoints, Project, through
from model_endpoint import text_reply
from samples import sampled

KEY = "a-key-that-nobody-sees"


def test_a_plan_is_kept_of_the_resolved_file_without_its_secrets(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("Hello.")]))
    project.aish.env["GREETING_KEY"] = KEY
    project.write(
        "base.yaml",
        """
        aish: 1
        models:
          m:
            base_url: ${MODEL_URL}
            model: mock
            headers: {X-Key: "${GREETING_KEY}"}
        """,
    )
    project.write("p.yaml", "aish: 1\nextends: [base.yaml]\nprompt: Say hello\n")

    done = project.run("--set", "models.m.params.temperature=0")

    assert done.code == 0, done.stderr
    kept = (project.run_folders[0] / "plan.json").read_text()
    plan = json.loads(kept)
    assert plan["models"]["m"]["params"] == {"temperature": 0}
    assert plan["prompt"] == "Say hello"
    assert KEY not in kept


def test_where_no_folder_can_be_made_nothing_is_asked_and_it_is_said_how_to_do_without(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    prefix = heeding_modes()
    if prefix is None:
        pytest.skip("nothing is read-only for root here")
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")
    project.aish.python = (*prefix, *project.aish.python)
    project.folder.chmod(0o500)

    refused = project.run()
    asked = len(endpoint.requests)
    without = project.run("--ephemeral")
    project.folder.chmod(0o700)

    assert (refused.code, asked) == (2, 0)
    assert "cannot make the run folder: Permission denied" in refused.stderr
    assert "--ephemeral" in refused.stderr
    assert (without.code, without.stdout) == (0, "Hello.\n")


# --- What happens to it while the run begins ---------------------------------------------------


def meanwhile(project: Project, name: str, what: str, *arguments: str) -> Done:
    """`aish`, whose run folder is deleted, or behind a link, before the file is opened."""
    return through(project, "folder_driver.py", name, what, *arguments).finish()


@pytest.mark.parametrize(
    "what", sampled(["gone", "link"], often={0}, reason="cases of the same kind")
)
@pytest.mark.parametrize("name", ["plan.json", "events.jsonl"])
@pytest.mark.parametrize("command", ["run", "shell"])
def test_a_folder_that_vanishes_while_the_run_begins_is_a_clear_error(
    project: Project, model_endpoint: ModelEndpoints, command: str, name: str, what: str
) -> None:
    endpoint = model_endpoint([text_reply("Hello.")])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello")

    done = meanwhile(project, name, what, command, "p.yaml")

    assert done.code == 2, done.stderr
    assert "the run folder was deleted, moved or replaced by a link while" in done.stderr
    assert "`--run-dir DIR` puts it elsewhere" in done.stderr
    assert "bug in aish" not in done.stderr
    assert not endpoint.requests
