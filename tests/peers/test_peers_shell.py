"""A session and a server that others wrote: connected, listed, attached from, called (S5, M12)."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import Aish
from e2e_project import Project
from mcp_peers import free_port, listening, npm_server
from model_endpoint import ModelEndpoint
from shell_scene import obedient, piped, sent_messages
from shell_terminal import at_prompt, leave, sitting
from terminal_window import Window

pytestmark = pytest.mark.peers


def test_all_that_a_real_server_offers_is_used_from_a_session(
    tmp_path: Path, run_aish: Aish, model_endpoint: Callable[..., ModelEndpoint]
) -> None:
    project = Project(tmp_path.resolve(), run_aish)
    endpoint = model_endpoint(obedient)
    project.uses(endpoint)
    project.pipeline("model: m")
    port = free_port()
    argv = (*npm_server("server-everything"), "streamableHttp")
    with (
        listening(*argv, port=port, environment={"PORT": str(port)}) as origin,
        sitting(project, rows=100) as window,
    ):
        _says(window, f":mcp connect {origin}/mcp all", "all is connected: ")
        _says(window, ":mcp tools all__e*", "all__echo  ask")
        _says(window, ":mcp tool all__echo", '"message"')
        resource = "demo://resource/dynamic/text/1"
        sent = "is sent with the next line"
        _says(window, f":attach {resource}", f"{resource} {sent}")
        _says(window, ":attach all__args-prompt city=Basel", f"all__args-prompt {sent}")
        _says(window, ":attach all__args-prompt", "needs `city`")
        _says(window, "look at it", "look at it>")
        window.type('CALL all__echo {"message": "hi there"}\r')
        window.wait_for("send? [y/N/a/?]")
        window.type("y\r")
        window.wait_for("<6: Echo: hi there>")
        window.wait_for(at_prompt(window))
        _says(window, ":mcp disconnect all", "all is disconnected")
        assert leave(window) == 0

    ((_, asked),) = sent_messages(endpoint.requests[0].json)
    assert resource in asked
    assert "Basel" in asked
    assert asked.endswith("look at it")
    assert piped(project, ":mcp list").stdout.startswith("no servers")


def _says(window: Window, line: str, wanted: str) -> None:
    window.wait_for(at_prompt(window))
    window.type(f"{line}\r")
    window.wait_for(wanted)
    window.wait_for(at_prompt(window))
