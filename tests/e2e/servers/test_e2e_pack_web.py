"""The pack `web` from the command line: allowed addresses, recordings, secrets, start-up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import without_network
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import text_reply, tool_reply
from web_server import WebServer, answer, redirect

PAGE = "<title>Manual</title><h1>Answer</h1><p>It is <b>42</b>.\n[end of nothing]</p>"
ROW = {"title": "Manual", "url": "https://manual.test/", "content": "All of it"}


def found(*rows: object) -> bytes:
    return answer(json.dumps({"results": rows}), "application/json")


def box(options: object) -> str:
    return f"""
        mcp:
          servers: {{box: {{pack: [web], options: {{web: {json.dumps(options)}}}}}}}
          auto_approve: ["box__web_*"]
        """


def calling(url: str) -> list[tuple[str, str, str]]:
    return [
        ("c1", "box__web_search", '{"query": "the answer"}'),
        ("c2", "box__fetch_url", json.dumps({"url": url, "format": "text"})),
        ("c3", "box__web_fetch", json.dumps({"url": url})),
        ("c4", "box__web_fetch", json.dumps({"url": f"{url}away"})),
    ]


def test_a_model_searches_and_reads_and_a_replay_asks_nobody(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    with WebServer({"/": answer(PAGE), "/away": redirect("http://127.0.0.1/")}) as server:
        server.pages["/search"] = found(ROW)
        endpoint = model_endpoint([tool_reply(calling(f"{server.url}/")), text_reply("42")])
        project.uses(endpoint)
        options = {"search": [{"searxng": server.url}], "allow": [server.destination]}
        project.pipeline(f"{box(options)}\n        prompt: Find the answer\n")
        recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
        assert (recorded.code, recorded.stdout) == (0, "42\n"), recorded.stderr
        assert sorted(server.targets) == [
            *("/", "/", "/away", "/search?q=the+answer&format=json"),
        ]
        asked = [one["content"] for one in endpoint.asked[1]["messages"] if one["role"] == "tool"]
        assert asked[0] == (
            "[from searxng]\n1. Manual\n   https://manual.test/\n   All of it\n[end of searxng]"
        )
        assert asked[1] == (
            f"[from {server.url}/]\nManual\n\nAnswer\n\nIt is 42. [end of nothing]\n"
            f"[end of {server.url}/]"
        )
        assert "# Answer" in asked[2] or "[degraded: " in asked[2]
        assert "`127.0.0.1` is not a public address" in asked[3]
        calls = of_type(project.journal, "tool.started")
        assert {event["tool"] for event in calls} == {"box__web_search", "box__web_fetch"}
    endpoint.close()

    prefix = without_network()
    if prefix is not None:
        project.aish.python = (*prefix, str(Path(sys.executable).absolute()))
    replayed = project.run("--replay", "c.yaml", env={"PATH": "", "MODEL_URL": ""})
    assert (replayed.code, replayed.stdout) == (0, "42\n"), replayed.stderr


@pytest.mark.requirement("K46")
def test_the_key_of_a_search_service_is_in_nothing_that_is_written(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    key = "BSA-0123456789abcdef"
    endpoint = model_endpoint(
        [
            tool_reply([("c1", "box__web_search", json.dumps({"query": f"what is {key}"}))]),
            text_reply(f"It is {key}."),
        ]
    )
    project.uses(endpoint)
    with WebServer({"/search": found({**ROW, "title": f"Key {key}"})}) as server:
        options = {"search": [{"searxng": server.url}, {"brave": "BRAVE_KEY"}]}
        project.pipeline(f"{box(options)}\n        prompt: Search\n")
        done = project.aish("record", "p.yaml", "-o", "c.yaml", env={"BRAVE_KEY": key})
        assert done.code == 0, done.stderr
        assert server.connections == 1
    assert key not in project.everything_written()
    assert key not in (project.folder / "c.yaml").read_text()
    assert key not in done.stderr


def test_a_missing_key_is_told_before_anything_is_asked(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("x")])
    project.uses(endpoint)
    project.pipeline(f"{box({'search': [{'brave': 'BRAVE_KEY'}]})}\n        prompt: Search\n")
    done = project.run()
    assert done.code == 2
    assert "BRAVE_KEY" in done.stderr
    assert endpoint.asked == []


def test_an_option_that_cannot_be_used_is_an_error_of_the_file(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([]))
    wrong: list[dict[str, list[object]]] = [
        {"allow": ["http://localhost:80"]},
        {"allow": ["localhost"]},
        {"allow": ["localhost:99999"]},
        {"hosts": ["https://docs.test/"]},
        {"search": [{"searxng": "localhost:80"}]},
        {"search": [{"searxng": "http://u:p@localhost/"}]},
        {"search": ["google"]},
        {"block": []},
    ]
    for options in wrong:
        project.pipeline(f"{box(options)}\n        prompt: Search\n")
        done = project.aish("validate", "p.yaml")
        assert done.code == 2, options
        (name,) = options
        assert f"mcp.servers.box.options.web.{name}" in done.stderr


@pytest.mark.requirement("K43")
def test_a_step_fetches_a_page_and_another_uses_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Read.")])
    project.uses(endpoint)
    with WebServer({"/a.json": answer('{"answer": 42}', "application/json")}) as server:
        steps = f"""
        steps:
          - {{id: page, call: box__web_fetch, with: {{url: "{server.url}/a.json"}}}}
          - {{id: read, prompt: "Read: {{{{ steps.page.text }}}}"}}
        """
        project.pipeline(box({"allow": [server.destination]}).rstrip(" ") + steps.lstrip("\n"))
        done = project.run()
        assert (done.code, done.stdout) == (0, "Read.\n"), done.stderr
        prompt = endpoint.asked[0]["messages"][-1]["content"]
        assert prompt == (
            f'Read: [from {server.url}/a.json]\n{{"answer": 42}}\n[end of {server.url}/a.json]'
        )


@pytest.mark.requirement("K45")
def test_listing_the_tools_of_the_pack_imports_no_http() -> None:
    code = (
        "import sys, aish.packs.web.tools;"
        "print({'httpx', 'html_to_markdown', 'html.parser'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
