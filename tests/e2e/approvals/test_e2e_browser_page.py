"""The page of a live run in a real Chromium: 8.11 of the design, item 3 (A14 to A17)."""

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pytest
from browser_pages import Tab, link_of, open_browser, open_tab
from e2e_project import REPO, ModelEndpoints, Project, of_type, stdio, wait_file
from live_runs import (
    WAITS,
    answer,
    control_file,
    ledger,
    live_run,
    pending,
    runtime_folder,
)
from mcp_peers import free_port
from model_endpoint import Gate, Reply, delta, sse, stream_reply, text_reply, usage
from served_hub import ServedHub, text_of

from aish.core.text import for_line, for_terminal

pytestmark = pytest.mark.browser

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])

BUSY = f"""
    name: release
    mcp:
      servers: {{box: {{command: {SERVER}}}}}
      auto_approve: [{{tool: box__write, when: {{text: "item-*"}}}}]
    on_ask: wait
    on_denied: continue
    steps:
      - id: each
        foreach: {{glob: "item-*"}}
        call: box__write
        with: {{text: "{{{{ item }}}}"}}
      - {{id: first, call: box__write, with: {{text: one}}}}
      - {{id: hold, needs: [each], prompt: Write.}}
      - {{id: second, needs: [hold], call: box__write, with: {{text: two}}}}
    """


NOTIFYING = f"""
    name: release
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: wait
    steps:
      - {{id: first, call: box__write, with: {{text: one}}}}
      - {{id: hold1, needs: [first], prompt: Write.}}
      - {{id: second, needs: [hold1], call: box__write, with: {{text: two}}}}
      - {{id: hold2, needs: [second], prompt: Write.}}
      - {{id: third, needs: [hold2], call: box__write, with: {{text: three}}}}
      - {{id: hold3, needs: [third], prompt: Write.}}
      - {{id: fourth, needs: [hold3], call: box__write, with: {{text: four}}}}
    """


def at_port() -> tuple[str, str]:
    """Where a run listens; its page goes on asking there after its end, and reaches nobody else."""
    return "--control", f"127.0.0.1:{free_port()}"


def held_reply(first: str, gate: Gate, rest: str) -> Reply:
    """An answer of which the rest comes once the gate is opened."""
    head = sse([delta(role="assistant", content=""), delta(content=first)], done=False)
    return stream_reply(head, gate, sse([delta(content=rest), delta("stop"), usage()]))


def asking(*texts: str, more: str = "") -> str:
    """A pipeline with a call that waits for each text, side by side."""
    steps = [
        {"id": f"note{number}", "call": "box__write", "needs": [], "with": {"text": text}}
        for number, text in enumerate(texts, 1)
    ]
    return dedent(f"""
        name: release
        mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
        on_ask: wait
        on_denied: continue
        {more}
        steps: {json.dumps(steps)}
        """)


CHIPS = "(chips) => chips.map((one) => [one.textContent, one.className])"
"""What chips say, and in which colour."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def waiting(project: Project) -> Iterator[Project]:
    """A project whose run has one call that waits."""
    with runtime_folder(project):
        project.pipeline(asking("one"))
        for name in ("item-a", "item-b"):
            project.write(name, "")
        yield project


def test_a_call_is_approved_after_half_a_second_of_looking(waiting: Project, browser: Any) -> None:
    with live_run(waiting, *at_port()) as (running, client), open_tab(browser, still=True) as tab:
        (question,) = pending(client)
        tab.open(link_of(waiting))
        tab.seen()
        assert "#" not in tab.page.url
        card = tab.page.locator("article.question")
        for text in ("box__write", "step note1", "no rule approves", question["digest"]):
            tab.has(text, "article.question")
        tab.has("the call waits for this answer", "article.question")
        rows = card.locator(".row").all_inner_texts()
        assert rows == ["{", '  "text": "one"', "}"]
        assert card.locator("dl.facts + p + .arguments").count() == 1
        assert not card.get_by_text(question["digest"]).is_visible()
        assert tab.page.title() == "(1) release · waiting"
        assert tab.page.locator("#steps .chip").evaluate_all(CHIPS) == [["waiting", "chip warn"]]
        assert tab.page.locator("#state").evaluate_all(CHIPS) == [["waiting", "chip warn"]]

        tab.page.clock.run_for(499)
        assert not tab.is_enabled("Approve")
        assert not tab.is_enabled("Always approve")
        tab.page.clock.run_for(1)
        assert tab.is_enabled("Approve")
        card.get_by_text("Add a note").click()
        card.get_by_role("textbox").fill("read <b>twice</b>")
        tab.button("Approve").click()
        tab.has("Approved by you", "article.question")
        tab.has("The run has ended, exit code 0")
        done = running.finish()
        tab.has("read <b>twice</b>", "#past")
        assert tab.page.title() == "release · ok"
        tab.keep("approved")

    assert done.code == 0, done.stderr
    assert ledger(waiting) == ["one"]
    (ended,) = of_type(waiting.journal, "approval.answered")
    assert (ended["answer"], ended["way"]) == ("approve", "page")
    assert ended["note"] == "read <b>twice</b>"


def test_the_question_of_another_program_is_answered_on_the_page(
    waiting: Project, browser: Any
) -> None:
    with live_run(waiting, *at_port()) as (running, client), open_tab(browser) as tab:
        tab.open(link_of(waiting))
        with ThreadPoolExecutor(2) as pool:
            asked = [
                pool.submit(client.post, "ask", json={"title": f"Deploy {number}?"})
                for number in (1, 2)
            ]
            tab.page.locator("article.question").nth(2).wait_for(timeout=30_000)
            for text in ("Another program asks", "Deploy", "the program waits for this answer"):
                tab.has(text, "article.question")
            tab.until_enabled("Approve", 1)
            tab.button("Approve", 1).click()
            tab.has("Approved by you", "article.question")
            elsewhere = next(one for one in pending(client) if one["tool"] == "ask")
            assert answer(client, elsewhere, "deny").status_code == 200
            tab.has("Denied", "article.question")
            said = [one.result().json()["response"] for one in asked]
        (call,) = pending(client)
        answer(client, call)
        running.finish()
        tab.has("ask", "#past")

    assert sorted(said, key=str) == [{"approved": False}, {"approved": True}]
    ended = of_type(waiting.journal, "ask_ended")
    assert [one["way"] for one in ended] == ["page", "api"]


def test_denied_and_expired_calls_say_so(waiting: Project, browser: Any) -> None:
    # What expires was shown before: there is time for that. The other one does not expire.
    waiting.pipeline(asking("one", "two").replace('"note1",', '"note1", "ask_timeout": "12s",'))
    with live_run(waiting, *at_port()) as (running, client), open_tab(browser) as tab:
        lasting = [one["step"] for one in all_of(client, 2)].index("note2")
        tab.open(link_of(waiting))
        tab.until_enabled("Deny", lasting)
        tab.button("Deny", lasting).click()
        tab.has("Denied by you", "article.question.decided")
        # It stays where it was, and so does the other.
        assert tab.page.locator("article.question").count() == 2
        assert tab.page.locator("#texts-title").is_visible()  # it may have some
        tab.has("Expired · nobody answered in time", "article.question.decided")
        done = running.finish()
        tab.keep("expired")

    assert done.code == 0, done.stderr
    assert ledger(waiting) == []
    ends = {one["id"]: one["answer"] for one in of_type(waiting.journal, "approval.answered")}
    assert sorted(ends.values()) == ["deny", "expired"]


def test_of_two_tabs_the_first_answers_and_the_other_says_whose_it_was(
    waiting: Project, browser: Any
) -> None:
    waiting.pipeline(asking("one", "two"))
    with (
        live_run(waiting, *at_port()) as (running, client),
        open_tab(browser) as first,
        open_tab(browser) as second,
        open_tab(browser) as third,
    ):
        link = link_of(waiting)
        first.open(link)
        second.open(link_of(waiting))
        # The link was used.
        third.open(link)
        third.has("the link is not valid any more")
        assert not third.page.locator("#content").is_visible()
        third.page.get_by_label("Code of a link, or a token").fill(link_of(waiting))
        third.page.get_by_role("button", name="Open").click()
        third.has("Connected")

        first.until_enabled("Approve", 0)
        first.button("Approve", 0).click()
        first.has("Approved by you")
        second.has("Approved · by ")
        assert "from the page" in second.page.locator("article.question").first.inner_text()

        # Somebody else answers while the answer of this page is on its way.
        question = pending(client)[0]
        second.until_enabled("Deny", 1)

        def overtaken(route: Any) -> None:
            assert answer(client, question, way="api").status_code == 200
            route.continue_()

        second.page.route("**/api/v1/approvals/*", overtaken, times=1)
        second.button("Deny", 1).click()
        second.has("from the API")
        done = running.finish()

    assert done.code == 0, done.stderr
    assert sorted(ledger(waiting)) == ["one", "two"]


def test_all_of_a_large_call_has_to_be_opened_before_it_is_approved(
    waiting: Project, browser: Any
) -> None:
    text = "".join(f"row {number}: {'x' * 60}\n" for number in range(2900))
    assert len(text) > 200_000
    waiting.pipeline(asking(text))
    with live_run(waiting, *at_port()) as (running, client), open_tab(browser, narrow=True) as tab:
        (question,) = pending(client)
        tab.open(link_of(waiting))
        tab.until_enabled("Deny")
        assert not tab.is_enabled("Approve")
        tab.has("Show all rows before you approve", "article.question")
        shown = tab.page.locator("article.question .row").count()
        assert shown == 60
        # They are as wide as the window allows, so that none is broken again.
        heights = tab.page.locator("article.question .row").evaluate_all(
            "(rows) => rows.map((row) => row.getBoundingClientRect().height)"
        )
        assert len(set(heights)) == 1, heights
        tab.page.keyboard.press("a")
        tab.page.keyboard.press("Enter")
        tab.keep("large")
        tab.page.evaluate("scrollTo(0, 0)")
        before = tab.button("Approve").bounding_box()
        tab.page.get_by_role("button", name=re.compile(r"^Show all [0-9,]+ rows$")).click()
        rows = tab.page.locator("article.question .row").all_text_contents()
        assert "".join(rows) == json.dumps(question["arguments"], indent=2).replace("\n", "")
        # They stay at the lower edge, and approve nothing before the end was shown.
        assert tab.button("Approve").bounding_box() == before
        tab.page.wait_for_function(
            "() => !document.querySelector('article.question .deny').disabled"
        )
        tab.has("Read to the end before you approve", "article.question")
        assert not tab.is_enabled("Approve")
        tab.keep("large-opened", whole=False)
        tab.button("Go to the end").click()
        tab.page.wait_for_function(
            "() => !document.querySelector('article.question .approve').disabled"
        )
        tab.keep("large-end", whole=False)
        tab.button("Approve").click()
        done = running.finish()

    assert done.code == 0, done.stderr
    assert ledger(waiting) == [text]


@pytest.mark.parametrize("narrow", [False, True])
def test_the_buttons_at_the_top_go_from_question_to_question(
    waiting: Project, browser: Any, *, narrow: bool
) -> None:
    waiting.pipeline(asking("one", "two", "three"))
    with (
        live_run(waiting, *at_port()) as (running, client),
        open_tab(browser, narrow=narrow) as tab,
    ):
        all_of(client, 3)
        tab.open(link_of(waiting))
        tab.has("1 of 3", "#walk")
        later = tab.page.get_by_role("button", name="Next question")
        earlier = tab.page.get_by_role("button", name="Previous question")
        assert earlier.is_disabled()
        later.click()
        tab.has("2 of 3", "#walk")
        tab.keep(f"walk-{'narrow' if narrow else 'wide'}", whole=False)
        later.click()
        assert later.is_disabled()
        earlier.click()
        tab.has("2 of 3", "#walk")
        card = tab.page.locator("article.question").nth(1)
        assert "current" in card.get_attribute("class")
        # Its head stands below the top, and its buttons are there.
        head, bar = card.locator("h3").bounding_box(), tab.page.locator(".bar").bounding_box()
        assert bar["height"] <= head["y"] < bar["height"] + 80
        assert card.locator(".actions").bounding_box()["y"] < tab.page.viewport_size["height"]
        assert tab.width() <= tab.page.viewport_size["width"]
        assert sizes(tab) == []
        tab.until_enabled("Deny", 1)
        tab.button("Deny", 1).click()
        tab.has("of 2", "#walk")
        for question in pending(client):
            answer(client, question, "deny")
        running.finish()


def test_by_keyboard_a_yes_takes_two_keys_and_a_no_one(waiting: Project, browser: Any) -> None:
    waiting.pipeline(asking("one", "two", "three"))
    with live_run(waiting, *at_port()) as (running, client), open_tab(browser, still=True) as tab:
        all_of(client, 3)
        keyboard = tab.page.keyboard
        tab.open(link_of(waiting))
        tab.page.locator("article.question").nth(2).wait_for()
        tab.seen()
        keyboard.press("a")
        keyboard.press("Enter")
        keyboard.press("d")
        tab.page.clock.run_for(500)  # what was pressed before counts for nothing
        assert tab.button("Approve").is_enabled()

        # Pasted, and held down.
        tab.page.evaluate("document.activeElement.blur()")
        keyboard.insert_text("a\nd")
        keyboard.press("Control+a")
        keyboard.press("Enter")
        keyboard.down("Enter")
        keyboard.press("a")
        keyboard.down("Enter")  # it was down before: a repeated key
        assert tab.page.locator("button.staged").count() == 1
        keyboard.up("Enter")
        keyboard.press("Escape")
        assert tab.page.locator("button.staged").count() == 0
        keyboard.press("a")
        tab.page.clock.run_for(10_000)  # too late
        keyboard.press("Enter")
        # Nor does a button that has the focus take one key for a yes.
        tab.button("Approve").focus()
        keyboard.press("Enter")
        assert tab.page.locator("button.staged").inner_text() == "Press Enter"
        tab.keep("staged")
        keyboard.press("x")
        keyboard.press("Space")
        keyboard.press("Escape")
        assert [one["state"] for one in pending(client)] == ["open"] * 3

        keyboard.press("a")
        keyboard.press("Enter")
        tab.has("Approved by you", "article.question >> nth=0")
        # The next key is not for the next card before that was looked at.
        keyboard.press("d")
        assert len(pending(client)) == 2
        tab.seen(1)
        tab.page.clock.run_for(500)
        keyboard.press("d")
        tab.has("Denied by you", "article.question >> nth=1")
        # The third by nothing but Tab, from the top of the page.
        tab.seen(2)
        tab.page.clock.run_for(500)
        tab.page.evaluate("document.activeElement.blur()")
        for _ in range(30):
            keyboard.press("Tab")
            if tab.page.evaluate("document.activeElement.textContent") == "Approve":
                break
        outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        keyboard.press("Space")
        keyboard.press("Space")
        tab.has("Approved by you", "article.question >> nth=2")
        done = running.finish()

    assert done.code == 0, done.stderr
    assert len(ledger(waiting)) == 2


def test_text_is_shown_as_it_comes_and_a_new_card_moves_none_that_is_shown(
    waiting: Project, browser: Any, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    waiting.uses(model_endpoint([held_reply("First of all, ", gate, "and at last.")]))
    waiting.pipeline(BUSY)
    with live_run(waiting, *at_port()) as (running, client), open_tab(browser) as tab:
        gate.wait_arrived()
        tab.open(link_of(waiting))
        tab.until_enabled("Approve")
        tab.has("2 of 2", "#steps")
        before = tab.page.locator("article.question").first.bounding_box()
        # What came before the page was opened is not kept piece by piece; what comes now is shown.
        gate.open()
        tab.has("First of all, and at last.", "#texts")
        tab.page.locator("article.question").nth(1).wait_for()
        assert tab.page.locator("article.question").first.bounding_box() == before
        tab.has("10", "#tokens")
        # Denied and cleared away: the other has moved, and is looked at again before it counts.
        tab.button("Deny", 0).click()
        tab.has("Denied by you", "article.question >> nth=0")
        assert tab.page.locator("article.question").first.bounding_box() == before
        # Both in one turn of the page: half a second later it may be approved again.
        enabled = tab.page.get_by_role("button", name="Clear answered").evaluate(
            """(clear) => {
              clear.click();
              const buttons = [...document.querySelectorAll("article.question button")];
              return buttons.filter((one) => one.textContent === "Approve" && !one.disabled).length;
            }"""
        )
        assert (enabled, tab.page.locator("article.question").count()) == (0, 1)
        tab.until_enabled("Approve", 0)
        tab.button("Always approve", 0).click()
        tab.has("Approved by you")
        done = running.finish()
        tab.has("The run has ended, exit code 0")
        del client

    assert done.code == 0, done.stderr
    assert "two" in ledger(waiting)
    ends = of_type(waiting.journal, "approval.answered")
    assert [one["answer"] for one in ends] == ["deny", "always"]


def test_the_page_has_an_icon_which_its_policy_allows(waiting: Project, browser: Any) -> None:
    with live_run(waiting, *at_port()) as (running, client), open_tab(browser) as tab:
        tab.open(link_of(waiting))
        size = tab.page.locator("link[rel=icon]").evaluate(
            """async (link) => {
              const image = new Image();
              image.src = link.href;
              await image.decode();
              return [image.naturalWidth, image.naturalHeight];
            }"""
        )
        answer(client, pending(client)[0])
        assert running.finish().code == 0

    assert size == [32, 32]


STUBBED = """
    window.permission = "%s";
    window.asked = 0;
    window.notices = [];
    window.Notification = class extends EventTarget {
      static get permission() { return window.asked ? window.permission : "default"; }
      static async requestPermission() { window.asked += 1; return window.permission; }
      constructor(title, { body, tag }) {
        super();
        Object.assign(this, { title, body, tag, closed: false });
        window.notices.push(this);
      }
      close() { this.closed = true; }
    };
    let hidden = false;
    Object.defineProperty(document, "hidden", { get: () => hidden });
    window.hide = (value) => {
      hidden = value;
      document.dispatchEvent(new Event("visibilitychange"));
    };
"""
"""Notifications of a browser that are kept, and a page that can be hidden; Chromium without windows
shows none, and hides none."""
NOTICES = "window.notices.map((one) => [one.title, one.body, one.closed])"
NOTIFY = "Notify me of new questions"


@pytest.mark.parametrize("permission", ["granted", "denied"])
def test_a_person_who_asked_for_it_is_notified_while_the_page_is_hidden(
    waiting: Project, browser: Any, model_endpoint: ModelEndpoints, permission: str
) -> None:
    gates = [Gate() for _ in range(3)]
    waiting.uses(model_endpoint([held_reply("Well, ", gate, "go on.") for gate in gates]))
    waiting.pipeline(NOTIFYING)
    with live_run(waiting, *at_port()) as (running, client), open_tab(browser) as tab:

        def answer_elsewhere() -> None:
            answer(client, pending(client)[0])
            tab.has("0", "#question-count")

        def next_question() -> None:
            gates.pop(0).open()
            tab.has("1", "#question-count")

        tab.page.add_init_script(STUBBED % permission)
        tab.open(link_of(waiting))
        tab.has("1", "#question-count")
        # Unasked there is neither a notification nor a question for the permission.
        tab.page.evaluate("window.hide(true)")
        answer_elsewhere()
        next_question()
        assert tab.page.evaluate("[window.asked, window.notices.length]") == [0, 0]
        tab.page.evaluate("window.hide(false)")
        answer_elsewhere()
        tab.page.get_by_role("button", name=NOTIFY).click()
        if permission == "denied":
            tab.has("The browser allows no notifications of this page")
            tab.page.locator("#notify").wait_for(state="hidden")
        else:
            tab.page.locator("#notify[aria-pressed=true]").wait_for()
        tab.keep(f"notifications-{permission}", whole=False)
        # Whoever looks at the page sees the question; whoever does not is notified of it.
        next_question()
        assert tab.page.evaluate(NOTICES) == []
        answer_elsewhere()
        tab.page.evaluate("window.hide(true)")
        next_question()
        notice = ["release: 1 question waits for an answer", "box__write", False]
        assert tab.page.evaluate(NOTICES) == ([notice] if permission == "granted" else [])
        answer_elsewhere()
        notice[-1] = True
        assert tab.page.evaluate(NOTICES) == ([notice] if permission == "granted" else [])
        assert tab.page.evaluate("window.asked") == 1
        assert running.finish().code == 0


def test_the_page_stays_open_over_a_killed_and_resumed_run(waiting: Project, browser: Any) -> None:
    # While no run listens there, the kernel gives the port to nobody else.
    control = f"""control:
          listen: "127.0.0.1:{free_port()}"
          tokens:
            boss: {{token_env: BOSS, scopes: [read, answer]}}
            eye: {{token_env: EYE, scopes: [read]}}"""
    waiting.pipeline(asking("one", more=control))
    waiting.aish.env |= {"BOSS": "b" * 40, "EYE": "e" * 40}
    with open_tab(browser, narrow=True) as tab, open_tab(browser, dark=True) as reader:
        with waiting.aish.start("run", "p.yaml") as running:
            running.wait_for_line(WAITS)
            address = control_file(waiting)["address"]
            tab.open(f"http://{address}/")
            tab.has("prints a link to this page")
            tab.keep("sign-in")
            tab.page.get_by_label("Code of a link, or a token").fill("b" * 40)
            tab.page.keyboard.press("Enter")
            tab.until_enabled("Approve")
            reader.open(link_of(waiting, "latest", "--token-env", "EYE"))
            reader.has("This link may only look")
            assert not reader.is_enabled("Approve")
            assert not reader.is_enabled("Deny")
            reader.keep("reader")
            running.kill()
        tab.has("Connection lost, trying again", "#connection")
        assert not tab.is_enabled("Approve")
        assert not tab.is_enabled("Deny")
        tab.has("No answers while the connection is lost", "article.question")
        tab.keep("lost")
        # The same run at the same address: the token of the file is good, that of the link is not.
        with waiting.aish.start("run", "p.yaml", "--resume", "--control", address) as running:
            running.wait_for_line(WAITS)
            tab.until_enabled("Approve")
            assert tab.page.locator("article.question").count() == 1
            reader.has("Open this page by a link")
            reader.has("the token is not valid")
            # A new link in the same tab; the address leaves with it.
            reader.page.evaluate(
                "(link) => { location.hash = link.split('#')[1]; }",
                link_of(waiting, "latest", "--token-env", "EYE"),
            )
            reader.has("This link may only look")
            assert "code" not in reader.page.url
            tab.button("Approve").click()
            tab.has("Approved by you")
            done = running.finish()
        tab.has("The run has ended, exit code 0")

    assert done.code == 0, done.stderr
    assert ledger(waiting) == ["one"]
    (ended,) = of_type(waiting.journal, "approval.answered")
    assert (ended["by"], ended["way"]) == ("boss", "page")


def test_the_page_stays_open_over_a_pause(
    waiting: Project, browser: Any, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    waiting.uses(model_endpoint([held_reply("On ", gate, "it goes.")]))
    waiting.pipeline(
        f"""
        mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
        on_ask: pause
        control:
          listen: "127.0.0.1:{free_port()}"
          tokens: {{boss: {{token_env: BOSS, scopes: [read, answer]}}}}
        steps:
          - {{id: hold, needs: [], prompt: Write.}}
          - {{id: first, needs: [], call: box__write, with: {{text: one}}}}
          - {{id: second, needs: [first], on_ask: wait, call: box__write, with: {{text: two}}}}
        """
    )
    waiting.aish.env["BOSS"] = "b" * 40
    with open_tab(browser, narrow=True) as tab:
        with waiting.aish.start("run", "p.yaml") as running:
            running.wait_for_line(WAITS)
            gate.wait_arrived()
            address = control_file(waiting)["address"]
            tab.open(f"http://{address}/")
            tab.page.get_by_label("Code of a link, or a token").fill("b" * 40)
            tab.page.keyboard.press("Enter")
            tab.until_enabled("Approve")
            gate.open()
            paused = running.finish()
        tab.has("paused", "#state")
        tab.has("The run has ended, exit code 8 (paused)", "#exit")
        tab.has("nobody waits now", "article.question")
        assert not tab.is_enabled("Approve")
        assert not tab.is_enabled("Deny")
        tab.keep("paused")
        (asked,) = of_type(waiting.journal, "approval.asked")
        given = ("--yes", "--digest", asked["digest"])
        assert waiting.aish("approve", "latest", asked["id"], *given).code == 0
        resume = ("run", "p.yaml", "--resume", "--control", address)
        with waiting.aish.start(*resume) as running:
            running.wait_for_line(WAITS)
            tab.has("from aish approve", "#past")
            assert tab.page.locator("#past code").inner_text() == "aish approve"
            tab.has("box__write", "#calls")
            tab.until_enabled("Approve", 0)
            assert not tab.page.locator("#exit").is_visible()
            tab.button("Approve").click()
            tab.has("The run has ended, exit code 0")
            done = running.finish()

    assert (paused.code, done.code) == (8, 0), done.stderr
    assert ledger(waiting) == ["one", "two"]


def test_a_run_whose_items_end_after_an_interrupt_is_stopping(
    waiting: Project, browser: Any, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    waiting.uses(model_endpoint([held_reply("On ", gate, "it goes.")]))
    waiting.pipeline("steps: [{id: hold, foreach: {glob: item-a}, prompt: Write.}]")
    with waiting.aish.start("run", "p.yaml", *at_port()) as running, open_tab(browser) as tab:
        gate.wait_arrived()
        tab.open(link_of(waiting))
        tab.has("running", "#state")
        running.interrupt()
        tab.has("stopping", "#state")
        tab.keep("stopping")
        gate.open()
        tab.has("interrupted", "#state")
        assert running.finish().code == 130


def test_a_run_that_was_told_to_end_is_stopping_until_its_servers_have_ended(
    waiting: Project, browser: Any, tmp_path: Path
) -> None:
    note, held = tmp_path / "held", tmp_path / "gate"
    os.mkfifo(held)
    words = shlex.join(json.loads(SERVER))
    lines = ("trap '' TERM", words, f": > {note}", f"cat {held}")
    server = waiting.write("slow.sh", "\n".join(lines))
    waiting.pipeline(
        f"mcp: {{servers: {{box: {{command: [sh, {server}]}}}}, auto_approve: []}}\n"
        "on_ask: wait\n"
        "call: box__write\n"
        "with: {text: one}\n"
    )
    with waiting.aish.start("run", "p.yaml", *at_port()) as running, open_tab(browser) as tab:
        running.wait_for_line(WAITS)
        tab.open(link_of(waiting))
        tab.has("waiting", "#state")
        running.interrupt(signal.SIGTERM)
        wait_file(note)
        tab.has("stopping", "#state")
        held.write_text("")
        tab.has("The run has ended, exit code 143")
        assert running.finish().code == 143


def test_a_server_that_drains_is_stopping(project: Project, browser: Any, tmp_path: Path) -> None:
    end = tmp_path / "end"
    project.pipeline(f"mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: ['s__*']}}\n")
    with ServedHub(project, "p.yaml", *at_port()) as hub, open_tab(browser) as tab:
        hub.begin()
        hub.stderr_with("control API: listening on")
        arguments = {"ms": 0, "until": str(end)}
        call = hub.request("tools/call", {"name": "s__sleep", "arguments": arguments})
        hub.ask("ping")
        (folder,) = project.served_state().glob("hub-*")
        tab.open(project.aish("control", "open", folder.name).stdout.strip())
        tab.has("running", "#state")
        hub.signal(signal.SIGTERM)
        tab.has("stopping", "#state")
        end.touch()
        assert text_of(hub.answer(call)["result"]) == "slept 0 ms"
        tab.has("The server has ended, exit code 0")
        assert hub.finish() == 0
    assert "info: nothing new is taken, 1 call under way has 30 s to end" in hub.stderr


HOSTILE = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<svg/onload=window.pwned=1>",
    "<svg><script href=data:,window.pwned=1 /></svg>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<iframe src=javascript:parent.pwned=1>",
    "<object data=//evil.example/x>",
    "<embed src=//evil.example/x>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>*{display:none!important}</style>",
    "<style>@import '//evil.example/x.css'</style>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example/'>",
    "<form action=//evil.example><button>Approve</button></form>",
    "<a href=javascript:window.pwned=1>Approve</a>",
    "<details open ontoggle=window.pwned=1>",
    "<input autofocus onfocus=window.pwned=1>",
    "<textarea></textarea><script>window.pwned=1</script>",
    "<video><source onerror=window.pwned=1></video>",
    "<math><mtext></mtext><script>window.pwned=1</script></math>",
    "<template><script>window.pwned=1</script></template>",
    "<div style='position:fixed;inset:0;background:#fff'>Approved</div>",
    "<body onload=window.pwned=1>",
    "<!--><script>window.pwned=1</script>-->",
    "<![CDATA[<script>window.pwned=1</script>]]>",
    "</pre></article></body></html><script>window.pwned=1</script>",
    "'\"><script>window.pwned=1</script>",
    "javascript:window.pwned=1",
    "#{window.pwned=1}",
    "{ {constructor.constructor('window.pwned=1')()} }",
    "&lt;script&gt;window.pwned=1&lt;/script&gt;",
    "&#60;img src=x onerror=window.pwned=1&#62;",
    "%3Cscript%3Ewindow.pwned=1%3C/script%3E",
    "\\u003cscript\\u003ewindow.pwned=1",
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "\u202egnp.exe\u202c",
    "\u2066\u2069isolated\u2067",
    "zero\u200bwidth\u200d\ufeff",
    "\x1b[2J\x1b[31mred",
    "bell\x07 and \x9b cursor",
    "carriage\rreturn",
    "next\u2028line\u2029ends",
    "tag\U000e0041\U000e0042",
    "p\u0430yload in two alphabets",
    "Z" + "\u0335\u0336\u0337" * 40,
    "W" * 3000,
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 / \u05e2\u05d1\u05e8\u05d9\u05ea / 12:34",
]
# What would be invisible, or turn what stands around it.
DANGEROUS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)


def test_hostile_text_stays_text_in_every_place_of_the_page(
    waiting: Project, browser: Any, model_endpoint: ModelEndpoints
) -> None:
    assert len(set(HOSTILE)) == 50
    everything = "\n".join(HOSTILE)
    waiting.uses(model_endpoint([text_reply(everything, pieces=[f"{text}\n" for text in HOSTILE])]))
    keys = [re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "", text)[:200] for text in HOSTILE]
    items = [{"key": key, "text": text} for key, text in zip(keys, HOSTILE, strict=True)]
    waiting.write("items.json", json.dumps(items))
    # A YAML file has no pairs of surrogates, and its keys are short.
    plain_keys = {text[:300]: text for text in HOSTILE if max(text) <= "\uffff"}
    steps = [
        {"id": "tell", "prompt": "Say it."},
        {
            "id": "each",
            "needs": [],
            "foreach": {"file": "items.json"},
            "call": "box__write",
            "key": "item.key",
            "with": {"text": "{{ item.text }}"},
        },
        {
            "id": "ask",
            "needs": ["tell", "each"],
            "call": "box__write",
            "with": {"text": "{{ steps.tell.text }}", **plain_keys},
        },
    ]
    rules = "auto_approve: [{tool: box__write, schema: {maxProperties: 1}}]"
    waiting.pipeline(
        f"""
        name: hostile
        models: {{m: {{base_url: "${{MODEL_URL}}", model: "<img src=x onerror=window.pwned=1>"}}}}
        mcp: {{servers: {{box: {{command: {SERVER}}}}}, {rules}}}
        on_ask: wait
        on_denied: continue
        steps: {json.dumps(steps)}
        """
    )
    with live_run(waiting, *at_port()) as (running, client), open_tab(browser, narrow=True) as tab:
        assert len(pending(client)) == 1
        tab.open(link_of(waiting))
        tab.until_enabled("Deny")
        tab.page.get_by_role("button", name=re.compile(r"^Show all")).click()
        tab.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        tab.page.locator("article.question textarea").fill(everything[:2000])
        tab.page.wait_for_function("document.querySelectorAll('#calls pre').length >= 100")
        shown = tab.page.evaluate("document.body.innerText")
        assert DANGEROUS.sub("", shown) == shown
        calls = tab.page.locator("#calls .body").all_text_contents()
        for text in HOSTILE:
            assert any(f"wrote {for_terminal(text)}" in one for one in calls), text
        listed = tab.page.locator("#steps li .name").all_text_contents()
        assert sorted(listed) == sorted(for_line(key) for key in keys)
        model = tab.page.locator("#texts pre").text_content()
        assert model.rstrip("\n") == for_terminal(everything)
        assert tab.width() <= 360
        tab.check()
        tab.button("Deny").click()
        running.finish()
        tab.has("Denied by you", "article.question")
        tab.has("The run has ended")
        (ended,) = of_type(waiting.journal, "approval.answered")
        assert len(ended["note"]) > 1500
        assert for_line(ended["note"]) in tab.page.locator("#past").text_content()
        assert tab.width() <= 360
        assert tab.page.evaluate("window.pwned") is None
        tab.keep("hostile")


def test_the_page_fits_and_everything_has_a_name_and_a_size(
    waiting: Project, browser: Any, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    waiting.uses(model_endpoint([held_reply("The title is ", gate, "written.")]))
    waiting.pipeline(BUSY)
    waiting.aish.env["TZ"] = "UTC"
    with live_run(waiting, *at_port()) as (running, _):
        gate.wait_arrived()
        kinds = [(narrow, dark) for narrow in (False, True) for dark in (False, True)]
        with ExitStack() as stack:
            tabs = [
                stack.enter_context(open_tab(browser, narrow=narrow, dark=dark))
                for narrow, dark in kinds
            ]
            for tab in tabs:
                tab.open(link_of(waiting))
                tab.until_enabled("Approve")
            gate.open()
            for (narrow, dark), tab in zip(kinds, tabs, strict=True):
                tab.page.locator("article.question").nth(1).wait_for()
                tab.has("The title is written.", "#texts")
                tab.page.evaluate(
                    "for (const one of document.querySelectorAll('details')) one.open = true"
                )
                tab.has("wrote item-a", "#calls")
                assert tab.width() <= tab.page.viewport_size["width"]
                assert sizes(tab) == []
                assert nameless(tab) == []
                ground = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert (ground == "rgb(19, 20, 22)") is dark
                tab.page.evaluate("scrollTo(0, 0)")
                tab.keep(f"{'narrow' if narrow else 'wide'}-{'dark' if dark else 'light'}")
        running.interrupt()
        running.finish()


def sizes(tab: Tab) -> list[str]:
    """What can be pressed and is smaller than 44 px."""
    found: list[str] = tab.page.evaluate(
        "[...document.querySelectorAll('button, summary, input, textarea, a')].filter((one) => {"
        " const box = one.getBoundingClientRect();"
        " return one.checkVisibility() && (box.width < 44 || box.height < 44);"
        "}).map((one) => one.outerHTML)"
    )
    return found


def nameless(tab: Tab) -> list[str]:
    """What somebody who does not see the page could not tell from others."""
    session = tab.page.context.new_cdp_session(tab.page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "textbox", "article", "region", "progressbar", "DisclosureTriangle"}
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in named]
    assert {"button", "article", "region", "progressbar"} <= {one["role"]["value"] for one in shown}
    return [
        f"{node['role']['value']} {node['backendDOMNodeId']}"
        for node in shown
        if not node.get("name", {}).get("value")
    ]


def all_of(client: httpx.Client, count: int) -> list[Any]:
    """The open questions, once there are so many."""
    with client.stream("GET", "events", headers={"Accept": "text/event-stream"}) as stream:
        asked = 0
        for line in stream.iter_lines():
            asked += line.startswith("data: ") and json.loads(line[6:])["type"] == "approval.asked"
            if asked == count:
                break
    found = pending(client)
    assert len(found) == count
    return found


def test_a_call_of_a_servers_client_is_approved_on_its_page(project: Project, browser: Any) -> None:
    project.pipeline(f"mcp: {{servers: {{box: {{command: {SERVER}}}}}}}")
    with ServedHub(project, "p.yaml", *at_port()) as hub, open_tab(browser) as tab:
        hub.begin()
        hub.stderr_with("control API: listening on")
        params = {"name": "box__write", "arguments": {"text": "one"}}
        call = hub.request("tools/call", params)
        (folder,) = project.served_state().glob("hub-*")
        tab.open(project.aish("control", "open", folder.name).stdout.strip())
        tab.has(f"Server {folder.name}")
        tab.has("1", "#question-count")
        assert tab.page.get_by_role("heading", level=2).all_inner_texts() == ["QUESTIONS 1"]
        for text in ("box__write", "client stdio", "no rule approves"):
            tab.has(text, "article.question")
        tab.has("the call waits, or its client is told to make it again", "article.question")
        tab.until_enabled("Approve")
        tab.button("Approve").click()
        made = hub.answer(call)["result"]
        tab.has("Approved by you", "article.question")
        tab.keep("server")
        hub.end_input()
        assert hub.finish() == 0
        tab.has("The server has ended, exit code 0")
        tab.check()

    assert text_of(made) == "wrote one"
    assert ledger(project) == ["one"]
