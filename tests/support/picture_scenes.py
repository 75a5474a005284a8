"""The runs that the pictures of the docs show: real ones, with a scripted endpoint as the model.

Each scene is a folder with a pipeline, and what its model answers when. The endpoint moves the
clock (`picture_driver.py`), so that a scene is the same each time.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from cli_process import Aish, clean_environment
from e2e_project import REPO, Project
from model_endpoint import ModelEndpoint, Reply, delta, sse, stream_reply
from picture_driver import Clock, new_clock
from shell_demo import Terminal

MORNING = 1_796_635_800.0
"""2026-12-07 09:30 UTC, when all runs begin."""
DRIVER = REPO / "tests" / "support" / "picture_driver.py"


@dataclass(frozen=True)
class Said:
    """An answer of a model: its text or its calls, how long it took, and its tokens."""

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    seconds: float = 1.0
    tokens: tuple[int, int] = (900, 60)

    def reply(self, model: str, name: str) -> Reply:
        """As chat completions; `name` makes the ids of the calls."""
        chunks = [delta(role="assistant", content=self.text or None)]
        for index, (tool, arguments) in enumerate(self.calls):
            function = {"name": tool, "arguments": json.dumps(arguments)}
            call = {"index": index, "id": f"{name}_{index}", "type": "function"}
            chunks.append(delta(tool_calls=[{**call, "function": function}]))
        chunks.append(delta("tool_calls" if self.calls else "stop"))
        prompt, completion = self.tokens
        spent = {"prompt_tokens": prompt, "completion_tokens": completion}
        chunks.append(
            {**delta(), "choices": [], "usage": {**spent, "total_tokens": sum(self.tokens)}}
        )
        return stream_reply(sse([{**chunk, "model": model} for chunk in chunks]))


Model = Callable[[Any], Said]
"""What a model says to a request."""


def in_turn(*answers: Said) -> Model:
    """A model that gives these answers one after another."""
    rest = iter(answers)
    return lambda _: next(rest)


@dataclass
class Stage(Project):
    """A project whose runs are on the clock of the pictures."""

    clock: Clock


@contextmanager
def stage(folder: Path, model: Model) -> Generator[Stage]:
    """A folder `project` in this one, and an endpoint that is `${MODEL_URL}` there."""
    clock = new_clock(folder / "clock", MORNING)
    for name in ("home", "project", "runtime"):
        (folder / name).mkdir(mode=0o700)
    count = iter(range(1_000_000))

    def answer(request: Any) -> Reply:
        said = model(request)
        clock.advance(said.seconds)
        return said.reply(request["model"], f"call{next(count)}")

    with ModelEndpoint(answer) as endpoint:
        environment = {
            **clean_environment(folder / "home"),
            "XDG_RUNTIME_DIR": str(folder / "runtime"),
            "PYTHONHASHSEED": "0",
            "TZ": "UTC",
            "MODEL_URL": endpoint.base_url,
            "MODEL_KEY": "key-of-the-scripted-endpoint",
        }
        program = (sys.executable, str(DRIVER), str(folder / "clock"))
        aish = Aish(folder / "project", environment, program)
        try:
            yield Stage(folder / "project", aish, clock)
        finally:
            aish.close()


# --- A review of a pull request --------------------------------------------------------------

ORDERS = '''\
    """Orders of the shop."""

    from decimal import Decimal

    from shop.db import connection

    PAGE_SIZE = 20


    def find_orders(customer: str, page: int = 1) -> list[dict]:
        """The orders of a customer, the newest first, a page at a time."""
        query = f"SELECT id, total FROM orders WHERE customer = '{customer}'"
        offset = page * PAGE_SIZE
        query += f" ORDER BY placed DESC LIMIT {PAGE_SIZE} OFFSET {offset}"
        with connection() as db:
            return [dict(row) for row in db.execute(query)]


    def total_of(orders: list[dict]) -> Decimal:
        """The sum of some orders."""
        return sum((order["total"] for order in orders), Decimal(0))
    '''
ROUTES = '''\
    """What the shop answers over HTTP."""

    from shop.orders import find_orders, total_of


    def orders_page(request):
        """GET /orders?customer=NAME&page=N, where the first page is 1."""
        page = int(request.args.get("page", 1))
        orders = find_orders(request.args["customer"], page)
        return {"orders": orders, "total": str(total_of(orders))}
    '''
CHANGE = '''\
diff --git a/shop/orders.py b/shop/orders.py
--- a/shop/orders.py
+++ b/shop/orders.py
@@ -10,5 +10,7 @@ PAGE_SIZE = 20
-def find_orders(customer: str) -> list[dict]:
-    """The orders of a customer, the newest first."""
-    query = "SELECT id, total FROM orders WHERE customer = ? ORDER BY placed DESC"
+def find_orders(customer: str, page: int = 1) -> list[dict]:
+    """The orders of a customer, the newest first, a page at a time."""
+    query = f"SELECT id, total FROM orders WHERE customer = '{customer}'"
+    offset = page * PAGE_SIZE
+    query += f" ORDER BY placed DESC LIMIT {PAGE_SIZE} OFFSET {offset}"
     with connection() as db:
-        return [dict(row) for row in db.execute(query, (customer,))]
+        return [dict(row) for row in db.execute(query)]

'''
FINDINGS = [
    {
        "file": "shop/orders.py",
        "line": 12,
        "severity": "high",
        "quote": "query = f\"SELECT id, total FROM orders WHERE customer = '{customer}'\"",
        "problem": "SQL injection: `customer` comes from the URL (shop/routes.py, line 9). Pass it "
        "as a parameter.",
    },
    {
        "file": "shop/orders.py",
        "line": 13,
        "severity": "medium",
        "quote": "offset = page * PAGE_SIZE",
        "problem": "Pages count from 1, so the 20 newest orders are never shown.",
    },
]
REVIEW = (
    Said(
        "Who calls the function that was changed?",
        [("repo__file_search", {"query": "find_orders", "path": "shop"})],
        3.1,
        (1420, 96),
    ),
    Said("", [("repo__file_read", {"path": "shop/routes.py"})], 1.7, (2310, 38)),
    Said(
        json.dumps({"verdict": "request_changes", "findings": FINDINGS}, indent=1),
        (),
        6.4,
        (2680, 242),
    ),
)


@contextmanager
def review_stage(folder: Path) -> Generator[Stage]:
    """The shipped `review.yaml`, and a pull request that it refuses."""
    with stage(folder, in_turn(*REVIEW)) as made:
        text = (REPO / "pipelines" / "review.yaml").read_text("utf-8")
        model = "key_env: REVIEW_KEY"
        assert model in text
        made.write(
            "pipelines/review.yaml",
            text.replace(model, f"{model}\n    price: {{input: 3, output: 15}}"),
        )
        made.write("shop/orders.py", ORDERS)
        made.write("shop/routes.py", ROUTES)
        made.write("change.diff", CHANGE)
        made.aish.env |= {
            "REVIEW_URL": made.aish.env["MODEL_URL"],
            "REVIEW_KEY": made.aish.env["MODEL_KEY"],
            "REVIEW_MODEL": "large",
        }
        yield made


def review_report(folder: Path) -> Path:
    """The report of the review."""
    with review_stage(folder) as made:
        report = made.folder / "review.html"
        done = made.aish("run", "pipelines/review.yaml", "--html", report, stdin=CHANGE)
        assert done.code == 1, done.stderr
        return report


# --- A batch ---------------------------------------------------------------------------------

TRIAGE = """
    name: triage
    description: Says which team a ticket is for, and how urgent it is
    models:
      small:
        base_url: ${MODEL_URL}
        model: small
        key_env: MODEL_KEY
        price: {input: 3, output: 15}
    steps:
      - id: tickets
        foreach: {file: tickets.csv}
        as: ticket
        key: ticket.id
        concurrency: 1
        max_failures: 10%
        prompt: "Which team is this ticket for, and how urgent is it? {{ ticket.text }}"
        output:
          schema:
            type: object
            properties:
              team: {enum: [login, billing, checkout, mobile, other]}
              urgency: {enum: [low, normal, high]}
              confidence: {type: number}
            required: [team, urgency, confidence]
        expect:
          - expression: output.confidence >= 0.5
    """
TICKETS = (
    ("I cannot log in since the update this morning", "login", "high", 0.97),
    ("The invoice for November has my old address", "billing", "normal", 0.93),
    ("Checkout hangs at 'confirm payment' with Visa", "checkout", "high", 0.98),
    ("Please add a dark theme to the Android app", "mobile", "low", 0.91),
    ("Charged twice for order 20817", "billing", "high", 0.96),
    ("The reset mail never arrives", "login", "high", 0.94),
    ("Great support last week, thank you!", "other", "low", 0.88),
    ("App crashes when I rotate the screen", "mobile", "normal", 0.95),
    ("Voucher SPRING is rejected although it is valid", "checkout", "normal", 0.92),
    ("Can I pay by bank transfer?", "billing", "low", 0.86),
    ("It does not work", "other", "normal", 0.31),
    ("Two-factor code is refused, clock is right", "login", "high", 0.9),
    ("Where do I find the VAT number on my invoice?", "billing", "low", 0.89),
    ("The cart is empty after I log in", "checkout", "high", 0.81),
    ("Push notifications come twice", "mobile", "normal", 0.93),
    ("I want to delete my account", "login", "normal", 0.74),
    ("Refund for order 20644 is missing after 14 days", "billing", "high", 0.97),
    ("Shipping costs change in the last step", "checkout", "normal", 0.9),
    ("The app is slow on my old phone", "mobile", "low", 0.85),
    ("Do you have a shop in Graz?", "other", "low", 0.83),
    ("SSO with our company's provider ends at a blank page", "login", "high", 0.92),
    ("PayPal says the merchant is not available", "checkout", "high", 0.95),
    ("My boss wants the receipts as one PDF", "billing", "low", 0.82),
    ("??", "other", "low", 0.22),
    ("Font in the app is far too small", "mobile", "low", 0.9),
    ("Password with an umlaut is not accepted", "login", "normal", 0.93),
    ("Order button does nothing in Firefox", "checkout", "high", 0.94),
    ("Wrong currency on the card statement", "billing", "normal", 0.79),
    ("Barcode scanner does not focus", "mobile", "normal", 0.91),
    ("I was logged out five times today", "login", "normal", 0.9),
    ("Gift cards cannot be combined with vouchers", "checkout", "low", 0.87),
    ("Subscription renewed although I cancelled it", "billing", "high", 0.95),
)


def triage(request: Any) -> Said:
    """The answer to the ticket at the end of the prompt."""
    prompt = request["messages"][-1]["content"]
    for number, (text, team, urgency, confidence) in enumerate(TICKETS):
        if f"it? {text}\n" in prompt:
            said = {"team": team, "urgency": urgency, "confidence": confidence}
            seconds = 0.4 + (number * 37 % 23) / 17 + (number % 11 == 2)
            return Said(json.dumps(said), (), round(seconds, 2), (148 + len(text), 24))
    raise AssertionError(prompt)


def batch_report(folder: Path) -> Path:
    """The report of a batch in which two rows did not meet the expectation."""
    with stage(folder, triage) as made:
        rows = [f'T-{4100 + 7 * n},"{text}"' for n, (text, *_) in enumerate(TICKETS)]
        made.write("tickets.csv", "\n".join(["id,text", *rows, ""]))
        made.pipeline(TRIAGE, "triage.yaml")
        done = made.aish("run", "triage.yaml", "--html", made.folder / "triage.html", "-q")
        assert done.code == 1, done.stderr
        return made.folder / "triage.html"


# --- A live matrix ---------------------------------------------------------------------------

REPLIES = """
    name: terms
    description: Answers questions of customers from the terms of the shop
    models:
      large:
        base_url: ${MODEL_URL}
        model: large
        key_env: MODEL_KEY
        price: {input: 3, output: 15}
      medium:
        base_url: ${MODEL_URL}
        model: medium
        key_env: MODEL_KEY
        price: {input: 0.8, output: 4}
      small:
        base_url: ${MODEL_URL}
        model: small
        key_env: MODEL_KEY
        price: {input: 0.1, output: 0.4}
    model: large
    inputs: {question: {type: string}}
    prompt: "Answer by our terms in one sentence. {{ inputs.question }}"
    tests:
    """
QUESTIONS = (
    # id, question, word, answer, a wrong one; runs of 8 that pass on large, medium and small
    (
        "refund",
        "Until when can I return a lamp?",
        "30 days",
        "You can return it within 30 days.",
        "You can return it within 14 days.",
        (8, 8, 8),
    ),
    (
        "opened",
        "And if I have opened the box?",
        "unused",
        "Yes, as long as the lamp is unused.",
        "An opened box cannot be returned.",
        (8, 7, 3),
    ),
    (
        "shipping",
        "What does shipping to Norway cost?",
        "12 euros",
        "Shipping to Norway is 12 euros.",
        "Shipping is free.",
        (8, 8, 6),
    ),
    (
        "defect",
        "The bulb was broken on arrival. What now?",
        "free",
        "We send a new one, free of charge.",
        "Please contact the manufacturer.",
        (8, 8, 7),
    ),
    (
        "invoice",
        "Can you change the name on my invoice?",
        "before",
        "Yes, before it is paid.",
        "No, an invoice is final.",
        (7, 6, 2),
    ),
    (
        "legal",
        "Is the warranty two years by law?",
        "cannot give",
        "I cannot give legal advice.",
        "Yes, it is two years by law.",
        (8, 5, 0),
    ),
)
MODELS = ("large", "medium", "small")


class Customers:
    """Models that pass each case in so many of its runs."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], int] = {}

    def __call__(self, request: Any) -> Said:
        model, prompt = request["model"], request["messages"][-1]["content"]
        for id, question, _, right, wrong, passes in QUESTIONS:
            if prompt.endswith(question):
                run = self._runs[model, id] = self._runs.get((model, id), -1) + 1
                place = MODELS.index(model)
                is_right = (5 * run + 3) % 8 < passes[place]
                seconds = (2.1, 1.2, 0.5)[place] + (run * 13 % 7) / 10
                text = right if is_right else wrong
                return Said(text, (), seconds, (412 + len(question), 14 + len(text) // 5))
        raise AssertionError(prompt)


def live_page(folder: Path) -> Path:
    """Six cases on three models, each eight times."""
    with stage(folder, Customers()) as made:
        cases = [
            f'  - name: {id}\n    inputs: {{question: "{question}"}}\n'
            f'    expect: [{{contains: "{word}"}}]\n'
            for id, question, word, *_ in QUESTIONS
        ]
        made.pipeline(dedent(REPLIES) + "".join(cases), "terms.yaml")
        models = [word for model in MODELS for word in ("-m", model)]
        page = made.folder / "live.html"
        done = made.aish(
            "test", "--live", *models, "--repeat", "8", "-n", "1", "--html", page, "-q"
        )
        assert done.code == 1, done.stderr
        return page


# --- Calls that wait for an answer -----------------------------------------------------------

RELEASE = """
    name: release
    description: Writes the changelog of a release, and publishes it
    models:
      large:
        base_url: ${MODEL_URL}
        model: large
        key_env: MODEL_KEY
        price: {input: 3, output: 15}
    mcp:
      servers:
        repo: {pack: [fs], root: .}
        box: {pack: shell, root: .}
      auto_approve:
        - repo__file_read
    on_ask: wait
    ask_timeout: 15m
    steps:
      - {id: collect, call: repo__file_read, with: {path: commits.txt}}
      - id: publish
        prompt: |
          Write the changelog of 1.4.0 from these commits, then push the tag.
          {{ steps.collect.text }}
    """
COMMITS = """
    9f2c1d7 Orders are shown in pages of 20
    51ab90e Vouchers work with gift cards
    c07d3f4 A refused Visa payment no longer hangs
    """
ENTRY = """\
## 1.4.0 (2026-12-07)

- Orders are shown in pages of 20.
- Vouchers can be combined with gift cards.
- Checkout no longer hangs when a Visa payment is refused.
"""
PUBLISH = Said(
    "Three commits since 1.3.2. I add them to the changelog, and push the tag.",
    [
        ("repo__file_write", {"path": "CHANGELOG.md", "content": ENTRY}),
        ("box__shell_run", {"command": "git push origin v1.4.0"}),
    ],
    4.2,
    (618, 164),
)


@contextmanager
def release_stage(folder: Path) -> Generator[tuple[Stage, str]]:
    """A run whose calls wait, and a link to its page."""
    with stage(folder, in_turn(PUBLISH)) as made:
        made.write("commits.txt", COMMITS)
        made.pipeline(RELEASE, "release.yaml")
        with made.aish.start("run", "release.yaml", "--control", "127.0.0.1:0") as running:
            running.wait_for_line("waits for an answer")
            made.clock.advance(8)
            opened = made.aish("control", "open", "latest")
            assert opened.code == 0, opened.stderr
            yield made, opened.stdout.strip()


# --- At a terminal ---------------------------------------------------------------------------

TAG = (
    Said("", [("repo__file_read", {"path": "CHANGELOG.md"})], 1.2, (540, 31)),
    Said("", [("box__shell_run", {"command": "git push origin v1.4.0"})], 0.9, (702, 29)),
    Said("Then I leave it."),
)


class Window(Terminal):
    """A tmux window whose styles are seen."""

    def styled(self) -> str:
        """All lines so far, with the escape sequences of their styles."""
        return self._tmux("capture-pane", "-e", "-p", "-S", "-").rstrip()


@contextmanager
def window(made: Stage) -> Generator[Window]:
    """A terminal in the folder of a stage, with `aish` as a command."""
    program = made.folder.parent / "bin" / "aish"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(made.aish.python)} "$@"\n', "utf-8")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{made.aish.env['PATH']}"
    made.aish.env |= {"PATH": path, "PS1": "$ "}
    with Window(made.folder, made.aish.env, made.folder) as opened:
        yield opened


def review_screen(folder: Path) -> str:
    """The review, as a person sees it at a terminal."""
    with review_stage(folder) as made, window(made) as opened:
        opened.run("aish run pipelines/review.yaml < change.diff")
        return opened.styled().rpartition("\n")[0]


def question_screen(folder: Path) -> str:
    """A session in which the model asks for a command that no rule approves."""
    with stage(folder, in_turn(*TAG)) as made:
        made.write("CHANGELOG.md", ENTRY)
        made.pipeline(RELEASE.partition("    on_ask")[0], "release.yaml")
        with window(made) as opened:
            opened.ask("aish shell release.yaml", "(connecting)", "large>")
            opened.ask("Is 1.4.0 in the changelog? Then push its tag.", "[y/N/a/?]")
            shown = opened.styled()
            opened.ask("n", TAG[-1].text)
            opened.type(":quit")
            opened.wait_for(opened.at_shell)
            return shown
