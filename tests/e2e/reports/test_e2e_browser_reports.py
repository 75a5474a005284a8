"""Reports as a browser shows them: axe finds nothing, light and dark, wide and narrow."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from browser_pages import NARROW, WIDE, link_of, open_browser, violations
from e2e_project import ModelEndpoints, Project
from live_runs import answer, live_run, pending, runtime_folder
from mcp_peers import free_port
from model_endpoint import text_reply, tool_reply

pytestmark = pytest.mark.browser

LOOKS = [(size, scheme) for size in (WIDE, NARROW) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


def found(browser: Any, link: Callable[[], str], wait_for: str = "h1") -> list[str]:
    """What axe finds on a page in each of its looks; and whether it is too wide."""
    told = []
    for size, scheme in LOOKS:
        # A button that changes its colour has, for a moment, neither of both.
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        page = context.new_page()
        page.goto(link())
        page.locator(wait_for).first.wait_for(timeout=30_000)
        told += [f"{scheme} {size['width']}: {one}" for one in violations(page)]
        if page.evaluate("document.documentElement.scrollWidth") > size["width"]:
            told.append(f"{size['width']}: too wide")
        context.close()
    return told


def test_the_page_of_a_run_is_for_everybody(
    project: Project, model_endpoint: ModelEndpoints, browser: Any
) -> None:
    """Issue 27, C: calls, long results, items that failed, a model of unknown price."""
    project.write("long.txt", "\n".join("a long line " * 30 for _ in range(60)))
    calls = [
        ("c1", "repo__file_read", json.dumps({"path": "long.txt"})),
        ("c2", "repo__file_read", json.dumps({"path": "none.txt"})),
        ("c3", "repo__file_write", json.dumps({"path": "a.txt", "content": "x"})),
    ]
    replies = [tool_reply([call]) for call in calls]
    project.uses(
        model_endpoint([*replies, text_reply("**It is** `long`.")] + [text_reply("no")] * 3)
    )
    project.pipeline(
        """
        name: pages
        on_denied: continue
        mcp: {servers: {repo: {pack: [fs], root: .}}, auto_approve: [repo__file_read]}
        steps:
          - {id: ask, prompt: "Look at it."}
          - {id: rows, foreach: "['a', 'b', 'c']", key: item, prompt: "{{ item }}",
             on_error: continue, expect: [{contains: yes}]}
        annotations: [{path: long.txt, line: 3, level: error, message: Too long.}]
        """
    )

    assert project.run("--html", "r.html").code == 1

    assert found(browser, (project.folder / "r.html").as_uri) == []


def test_the_table_of_live_tests_is_for_everybody(
    project: Project, model_endpoint: ModelEndpoints, browser: Any
) -> None:
    project.uses(model_endpoint([text_reply("yes")] * 4))
    project.pipeline(
        """
        prompt: Hi
        tests:
          - {name: good, expect: [{contains: yes}]}
          - {name: bad, expect: [{contains: nothing}]}
        """
    )
    project.write("broken.yaml", "aish: 1\nsteps: 3\ntests: [{name: x}]\n")

    project.aish("test", "--live", "p.yaml", "broken.yaml", "--html", "t.html")

    assert found(browser, (project.folder / "t.html").as_uri) == []


def test_the_page_of_a_live_run_is_for_everybody(project: Project, browser: Any) -> None:
    project.pipeline(
        """
        mcp: {servers: {repo: {pack: [fs], root: .}}}
        on_ask: wait
        steps: [{id: note, call: repo__file_write, with: {path: a.txt, content: "one\\ntwo"}}]
        """
    )
    control = "--control", f"127.0.0.1:{free_port()}"
    with runtime_folder(project), live_run(project, *control) as (running, client):
        assert found(browser, partial(link_of, project), "article.question") == []
        (question,) = pending(client)
        answer(client, question)
        running.finish()
