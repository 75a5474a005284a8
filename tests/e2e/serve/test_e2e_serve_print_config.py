"""`aish serve --print-config`: each client's entry, read as the client does, and started."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e_project import Project, stdio
from samples import sampled
from served_hub import ServedHub

SECRET = "s3cret-of-the-server"
# How each client writes a variable in an entry.
REFERENCES = {
    "claude": re.compile(r"\$\{(\w+)\}"),
    "cursor": re.compile(r"\$\{env:(\w+)\}"),
    "vscode": re.compile(r"\$\{input:(\w+)\}"),
}
CLIENTS = ("claude", "cursor", "vscode", "codex")


def entry_of(client: str, text: str, variables: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """The name and the entry in what was printed, its references replaced as the client does."""
    if client == "codex":
        # What `env_vars` names is passed on as it is.
        ((name, entry),) = tomllib.loads(text)["mcp_servers"].items()
        entry["env"] = {name: variables[name] for name in entry.pop("env_vars", ())}
        return name, entry
    if client == "vscode":
        for one in json.loads(text).get("inputs", ()):
            assert one["type"] == "promptString"
            assert one["password"] is True
            assert one["id"] in variables
    text = REFERENCES[client].sub(lambda found: variables[found[1]], text)
    servers = json.loads(text)["servers" if client == "vscode" else "mcpServers"]
    ((name, entry),) = servers.items()
    return name, entry


@pytest.mark.parametrize("client", sampled(CLIENTS, often={0}, reason="cases of the same kind"))
def test_a_printed_command_starts_the_server_from_any_folder(
    project: Project, tmp_path_factory: pytest.TempPathFactory, client: str
) -> None:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    project.pipeline(
        f"""
        name: "team tools: größe"
        mcp:
          servers:
            s: {{command: {stdio()}, env: {{TOKEN: "${{SERVER_TOKEN}}"}}}}
            fs: {{pack: fs, root: .}}
          auto_approve: [fs__dir_list]
        serve: {{listen: ["unix:run/s", stdio]}}
        """
    )
    done = project.aish("serve", "p.yaml", "--plain", "--deny", "s__add", "--print-config", client)
    assert done.code == 0, done.stderr
    name, entry = entry_of(client, done.stdout, {"SERVER_TOKEN": SECRET})

    async def use() -> list[str]:
        parameters = StdioServerParameters(
            command=entry["command"],
            args=entry["args"],
            env=entry["env"],
            cwd=tmp_path_factory.mktemp("elsewhere"),
        )
        async with Client(stdio_client(parameters)) as mcp:
            listed = await mcp.list_tools()
            return [tool.name for tool in listed.tools]

    # Without the variable it would not start.
    names = anyio.run(use)

    assert name == "team-tools-gr-e"
    assert Path(entry["command"]).is_absolute()
    assert entry["command"] == sys.executable
    assert entry["env"] == {"SERVER_TOKEN": SECRET}
    assert SECRET not in done.stdout + done.stderr
    assert "echo" in names
    assert "dir_list" in names
    assert "add" not in names


def test_a_printed_command_has_every_option_that_was_given(project: Project) -> None:
    project.pipeline("name: team")
    given = ["--control", "--control", "unix:run/control", "--record", "c"]
    done = project.aish("serve", "p.yaml", *given, "--print-config", "claude")
    assert done.code == 0, done.stderr
    _, entry = entry_of("claude", done.stdout, {})

    socket = f"unix:{project.folder / 'run' / 'control'}"
    file, tape = str(project.folder / "p.yaml"), str(project.folder / "c")
    words = ["serve", file, "--stdio", "--record", tape, "--control", "--control", socket]
    assert entry["args"][-len(words) :] == words


@pytest.mark.parametrize("client", CLIENTS)
def test_a_printed_url_has_its_token_by_reference(project: Project, client: str) -> None:
    project.aish.env["TEAM_TOKEN"] = SECRET * 4
    project.pipeline(
        """
        name: team
        serve:
          listen: ["http://0.0.0.0:8123/team", stdio]
          clients: {ci: {token_env: TEAM_TOKEN}}
          hosts: [tools.example.org]
        """
    )
    urls = []
    for options in (
        ("--allow-remote", "--tls-cert", "c", "--tls-key", "k"),
        ("--allow-remote", "--behind-proxy"),
    ):
        done = project.aish("serve", "p.yaml", *options, "--print-config", client)
        assert done.code == 0, done.stderr
        name, entry = entry_of(client, done.stdout, {"TEAM_TOKEN": "it"})
        assert name == "team"
        urls.append(entry["url"])
        if client == "codex":
            assert entry["bearer_token_env_var"] == "TEAM_TOKEN"
        else:
            assert entry["headers"] == {"Authorization": "Bearer it"}
        assert entry.get("type") == {"claude": "http", "vscode": "http"}.get(client)
        assert SECRET not in done.stdout + done.stderr

    assert urls == ["https://127.0.0.1:8123/team", "https://tools.example.org/team"]


@pytest.mark.requirement("H26")
def test_what_no_client_can_use_is_not_printed(project: Project) -> None:
    for listen, said in (
        ("unix:run/s", "no client connects to these listeners by itself"),
        ("http+unix:run/s", "these clients cannot use HTTP over a socket file"),
        ("http://127.0.0.1:0", "port 0 is known only while the server runs"),
    ):
        project.pipeline(f"serve: {{listen: '{listen}'}}")
        done = project.aish("serve", "p.yaml", "--print-config", "claude")
        assert (done.code, done.stdout) == (2, "")
        assert said in done.stderr
    unknown = project.aish("serve", "p.yaml", "--print-config", "emacs")
    assert unknown.code == 2
    assert "emacs" in unknown.stderr


@pytest.mark.slow(reason="starts several servers")
def test_a_printed_url_is_that_of_the_running_server(project: Project) -> None:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    token = "team-token-" + "0" * 32
    project.aish.env["TEAM_TOKEN"] = token
    project.pipeline(
        """
        mcp: {servers: {fs: {pack: fs, root: .}}}
        serve:
          listen: ["unix:run/s", "http://127.0.0.1:0/team"]
          clients: {ci: {token_env: TEAM_TOKEN}}
        """
    )

    async def names(url: str, headers: dict[str, str]) -> list[str]:
        async with (
            create_mcp_http_client(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            return [tool.name for tool in (await client.list_tools()).tools]

    with ServedHub(project, "p.yaml") as hub:
        _, address = hub.addresses()
        found = {}
        for client in CLIENTS:
            done = project.aish("serve", "p.yaml", "--print-config", client)
            assert done.code == 0, done.stderr
            assert token not in done.stdout + done.stderr
            _, entry = entry_of(client, done.stdout, {"TEAM_TOKEN": token})
            variable = entry.get("bearer_token_env_var")
            bearer = {"Authorization": f"Bearer {project.aish.env[variable]}"} if variable else {}
            headers = entry.get("headers", bearer)
            found[client] = (entry["url"], anyio.run(names, entry["url"], headers))

    assert {url for url, _ in found.values()} == {address}
    assert all("fs__file_read" in tools for _, tools in found.values())
