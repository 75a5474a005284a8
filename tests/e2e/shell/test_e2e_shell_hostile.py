"""A session before servers that want more than they are given."""

import json
import sys

from e2e_project import ModelEndpoints, Project
from mcp_emulators import Legacy, McpEndpoint
from shell_scene import obedient, piped


def test_no_server_gets_by_its_host_the_rules_of_one_that_is_missing(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(obedient))
    gone = json.dumps([sys.executable, "-c", "raise SystemExit(1)"])
    project.pipeline(
        f"mcp: {{servers: {{localhost: {{command: {gone}}}}}, auto_approve: ['localhost__*']}}"
    )
    with McpEndpoint(Legacy()) as end:
        url = end.url.replace("127.0.0.1", "localhost")
        done = piped(
            project, f":mcp connect {url}", 'CALL localhost2__add {"a": 1, "b": 2}', ":mcp list"
        )

    assert "localhost2 is connected" in done.stdout, done.stderr
    assert "[aish] tool call denied: no rule approves localhost2__add" in done.stdout
    assert "tools/call" not in end.methods
