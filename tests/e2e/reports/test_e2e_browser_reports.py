"""Reports as a browser shows them: axe finds nothing, light and dark, wide and narrow."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browser_pages import NARROW, WIDE, link_of, open_browser, violations
from e2e_project import ModelEndpoints, Project
from live_runs import answer, live_run, pending, runtime_folder
from mcp_peers import free_port
from model_endpoint import text_reply, tool_reply
from report_pages import MARKUP, live_results, page_of, valued_run
from scripted_events import run_finished, run_started, stamped, step_finished

from aish.core.events import ChangedFile, FilesChanged, Place, StepStarted
from aish.reports.html.cases import cases_page

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


def written(path: Path, text: str) -> str:
    """Write a page; the link to it."""
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


def watched(context: Any) -> tuple[Any, list[str]]:
    """A page, and what must not happen in it: errors, and requests for anything else."""
    page, told = context.new_page(), []
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("console", lambda message: told.append(message.text))
    page.on("request", lambda request: told.append(request.url))
    return page, told


def focus(page: Any, name: str) -> None:
    """Go to a control by the Tab key alone."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == name:
            return
    raise AssertionError(f"no Tab leads to {name!r}")


def test_the_page_of_a_batch_needs_no_mouse(browser: Any, tmp_path: Path) -> None:
    """The address remembers what was chosen; texts stay texts."""
    link = written(tmp_path / "batch.html", page_of(valued_run(120, mark=MARKUP)).text)
    context = browser.new_context(viewport=WIDE)
    page, told = watched(context)
    page.goto(link)
    rows, told_count = page.locator("tr.row"), page.locator(".pager span")
    assert rows.first.locator("td").nth(1).text_content() == "failed"

    focus(page, "k3")
    page.keyboard.press("Enter")
    assert "--resume --retry-failed" in page.locator("tr.detail").text_content()
    page.keyboard.press("Enter")
    assert page.locator("tr.detail").count() == 0
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator(".filters button").text_content() == "city: Ulm ✕"
    focus(page, "city: Ulm ✕")
    page.keyboard.press("Enter")

    page.keyboard.type("about 1")
    assert told_count.text_content() == "1\u201331 of 31"
    focus(page, "Columns")
    page.keyboard.press("Enter")
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]
    # A box is no wider than a letter or two: it once took the place of its name.
    assert page.locator(".columns input").first.bounding_box()["width"] <= 20
    page.set_viewport_size(WIDE)
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Escape")
    assert page.locator("th").first.text_content() == "#"
    focus(page, "Item")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert rows.first.locator("button").first.text_content() == "k119"
    focus(page, "praise")
    page.keyboard.press("Enter")
    assert told_count.text_content() == "No item is like that"

    page.reload()
    assert page.locator(".filters button").text_content() == "kind: praise ✕"
    assert page.locator("th").first.text_content() == "#"
    focus(page, "kind: praise ✕")
    page.keyboard.press("Enter")
    assert rows.first.locator("button").first.text_content() == "k119"
    assert {one for one in told if one.partition("#")[0] != link} == set()
    context.close()


def test_the_pages_of_a_run_and_of_live_tests_need_no_mouse(browser: Any, tmp_path: Path) -> None:
    change = FilesChanged(".", (ChangedFile("a.py", "changed", 1, 1),), patch="-a\n+b\n")
    run = stamped(
        run_started(), StepStarted(Place("read"), "prompt"), step_finished(), change, run_finished()
    )
    context = browser.new_context(viewport=WIDE)
    page, told = watched(context)
    page.goto(written(tmp_path / "run.html", page_of(run).text))
    focus(page, "Theme: auto")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    focus(page, "The difference")
    page.keyboard.press("Enter")
    assert page.locator("#changes pre").is_visible()

    page.goto(written(tmp_path / "live.html", cases_page(live_results()).decode()))
    focus(page, "p.yaml: flaky")
    page.keyboard.press("Enter")
    assert "against run 1" in page.locator("tr.detail").text_content()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "p.yaml: good"
    assert [one for one in told if not one.startswith("file:")] == []
    context.close()

    # Of each, axe finds nothing either.
    for name in ("run.html", "live.html"):
        assert found(browser, (tmp_path / name).as_uri) == []


def test_the_page_of_a_batch_is_for_everybody(browser: Any, tmp_path: Path) -> None:
    link = written(tmp_path / "batch.html", page_of(valued_run(8)).text)

    assert found(browser, lambda: link, ".grid") == []
