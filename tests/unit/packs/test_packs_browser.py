"""The ten tools in a real Chromium, on pages of a local server (K69, K71-K74, K89)."""

import base64
import json
import os
import signal
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from browser_pages import chromium
from pack_scenes import PackScene, opened_packs
from web_server import Page, Visit, WebServer, answer

from aish.packs.browser.browser_options import BrowserOptions

pytestmark = pytest.mark.browser

SHOP = b"""<!doctype html><title>Shop</title>
<h1>Fruit</h1><p hidden>a secret price</p><p>It is tk-12345678.</p>
<input id=q value=ab><input id=mail type=email value=a@b.c><textarea id=t>one</textarea>
<div id=rich contenteditable>free</div><input id=fixed value=x readonly><input id=off disabled>
<form action=/found><input name=w id=w></form>
<button id=go onclick="document.title = 'clicked'; console.log('was clicked', 7)">Go</button>
<button id=alert onclick="confirm('Really\\u202e?')">Ask</button>
<button id=open onclick="window.open('/two')">Open</button>
<button id=quiet onclick="window.open('/two', '_blank', 'noopener')">Open more</button>
<button id=geo onclick="navigator.geolocation.getCurrentPosition(
  () => document.title = 'here', (e) => document.title = `no ${e.code}`)">Where</button>
<a id=file href=/file download>File</a> <a id=two href=/two>Two</a>
<div style="position: relative"><button id=under>Under</button>
<div id=cover class="modal dark" style="position: absolute; inset: 0"></div></div>
<button id=late style="display: none" onclick="this.textContent = 'done'">Late</button>
<script>
  setTimeout(() => document.querySelector('#late').style.display = 'inline', 300);
  document.body.querySelectorAll = document.querySelectorAll = () => { throw new Error('mine') };
  Element.prototype.getBoundingClientRect = () => ({x: 0, y: 0, width: 0, height: 0});
</script>"""
CLOBBERED = b"""<!doctype html><title>Odd</title><img name=body><img name=querySelectorAll>
<form id=f><input name=attributes><input name=getAttributeNames><input name=innerText></form>
<p>still here</p>"""
TALL = b"<!doctype html><body style='margin: 0'><div style='height: 3000px'>tall</div>"


def silent(visit: Visit) -> None:
    visit.gone.wait()


def without_secrets(text: str) -> str:
    return text.replace("tk-12345678", "***")


@pytest.fixture(scope="module")
def shop() -> Iterator[WebServer]:
    pages: dict[str, Page] = {
        "/": answer(SHOP),
        "/two": answer("<title>Two</title><p>two"),
        "/found": answer("<title>Found</title>pear"),
        "/file": answer(b"x", "application/octet-stream"),
        "/odd": answer(CLOBBERED),
        "/tall": answer(TALL),
        "/huge": answer("<body style='height: 90000px'>"),
        "/gone": b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone",
        "/slow": silent,
        "/flood": answer("<script>for (let i = 0; i < 1500; i++) console.warn('n' + i)</script>"),
    }
    with WebServer(pages) as server:
        yield server


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where the profiles of this module are, and no others."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as made:
        patch.setattr(tempfile, "tempdir", made)
        yield Path(made)


@pytest.fixture(scope="module")
def box(shop: WebServer, folder: Path) -> Iterator[PackScene]:
    options = {"browser": BrowserOptions(allow=(shop.destination,))}
    offered = {"environ": dict(os.environ), "mask": without_secrets}
    with opened_packs(["browser"], None, options, **offered) as scene:
        yield scene
    assert not list(folder.iterdir())


def went(box: PackScene, url: str, **more: Any) -> dict[str, Any]:
    return box.data("browser_navigate", url=url, **more)


def test_a_page_is_opened_looked_at_and_closed(box: PackScene, shop: WebServer) -> None:
    found = box.data("browser_connect")
    assert found["browser"].startswith("Chrome/")
    assert (found["attached"], found["sandboxed"]) == (False, os.geteuid() != 0)
    assert went(box, shop.url) == {
        "url": f"{shop.url}/",
        "title": "Shop",
        "status": 200,
        "loaded": True,
        "notes": [],
    }
    assert went(box, f"{shop.url}/gone")["status"] == 404
    assert went(box, "about:blank")["status"] is None
    assert box.data("browser_disconnect") == {"closed": True}
    assert box.data("browser_disconnect") == {"closed": False}
    assert box.code("browser_query") == "unavailable"


def test_text_and_elements_are_what_a_person_sees(box: PackScene, shop: WebServer) -> None:
    went(box, shop.url)
    text = box.text("browser_query")
    assert text.startswith(f"[from {shop.url}/]\n")
    assert "Fruit" in text
    assert "It is ***." in text
    assert "secret price" not in text
    found = box.data("browser_query", selector="h1")
    assert (found["found"], found["count"]) == (True, 1)
    (row,) = found["elements"]
    assert (row["tag"], row["text"], row["visible"]) == ("h1", "Fruit", True)
    assert row["box"]["width"] > 100
    assert box.data("browser_query", selector="p", all=True)["count"] == 2
    assert box.data("browser_query", selector="nothing")["found"] is False
    assert box.code("browser_query", selector="p[") == "bad_arguments"
    field = box.data("browser_query", selector="#q")["elements"][0]
    assert field["attributes"]["value"] == "ab"
    box.data("browser_eval", script="document.body.innerHTML = '<i>x</i>'.repeat(70); 0")
    many = box.data("browser_query", selector="i", all=True)
    assert (many["count"], len(many["elements"])) == (70, 50)


def test_names_of_elements_hide_nothing(box: PackScene, shop: WebServer) -> None:
    went(box, f"{shop.url}/odd")
    assert "still here" in box.text("browser_query")
    (form,) = box.data("browser_query", selector="form")["elements"]
    assert form["attributes"] == {"id": "f"}


@pytest.mark.requirement("K73")
def test_a_click_waits_until_the_element_can_be_clicked(box: PackScene, shop: WebServer) -> None:
    went(box, shop.url)
    box.data("browser_click", selector="#late", timeout_seconds=60)
    assert box.data("browser_query", selector="#late")["elements"][0]["text"] == "done"
    box.data("browser_click", selector="#go")
    assert box.data("browser_query", selector="h1")["title"] == "clicked"
    for selector, why in {
        "#under": "covered by `div#cover.modal.dark`",
        "#nothing": "nothing matches",
        "p[hidden]": "not visible",
        "#off": "disabled",
    }.items():
        failed = box.error("browser_click", selector=selector, timeout_seconds=1)
        assert failed["code"] == "no_match"
        assert why in failed["message"]
    assert box.code("browser_click", selector="p[") == "bad_arguments"
    # The page that a click leads to is there when the call returns.
    assert box.data("browser_click", selector="#two")["url"] == f"{shop.url}/two"


def test_typing_appends_and_may_clear_and_submit(box: PackScene, shop: WebServer) -> None:
    went(box, shop.url)
    typed = [
        box.data("browser_type", selector=selector, text=text, clear=clear)["value"]
        for selector, text, clear in (
            ("#q", "cd", False),
            ("#q", "e", True),
            ("#q", "", True),
            ("#mail", "d", False),
            ("#mail", "x@y.z", True),
            ("#t", "\ntwo", False),
            ("#rich", "dom", False),
        )
    ]
    assert typed == ["abcd", "e", "", "a@b.cd", "x@y.z", "one\ntwo", "freedom"]
    box.data("browser_type", selector="#w", text="pear", submit=True)
    assert box.data("browser_query", selector="body")["title"] == "Found"
    went(box, shop.url)
    assert "takes no text" in box.error("browser_type", selector="#fixed", text="x")["message"]


def noted(box: PackScene, name: str) -> list[str]:
    """What comes of a click: a call has what was noted since the last one.

    A download is told of once its server has answered, and that may be after the click's own end.
    """
    notes: list[str] = box.data("browser_click", selector=f"#{name}")["notes"]
    for _ in range(5_000):
        if notes:
            break
        notes = box.data("browser_type", selector="#q", text="")["notes"]
    return notes


@pytest.mark.requirement("K72")
def test_what_is_refused_and_closed_is_noted(box: PackScene, shop: WebServer) -> None:
    went(box, shop.url)
    notes = {name: noted(box, name) for name in ("alert", "open", "quiet", "geo", "file")}
    assert notes == {
        "alert": ["dismissed a dialog (confirm): Really\\u202e?"],
        "open": [f"closed a new window: {shop.url}/two"],
        "quiet": [f"closed a new window: {shop.url}/two"],
        "geo": ["refused a permission: geolocation"],
        "file": [f"refused a download: {shop.url}/file"],
    }
    # The page is told of the refusal in its own time.
    refused = """new Promise((done) => {
      const look = () => /^no /.test(document.title) ? done(document.title) : setTimeout(look, 20);
      look();
    })"""
    assert box.data("browser_eval", script=refused, timeout_seconds=60)["result"] == "no 1"
    failed = box.error("browser_navigate", url=f"{shop.url}/file")
    assert failed["code"] == "blocked"
    assert "downloads are refused" in failed["message"]


def test_only_permitted_addresses_are_opened(box: PackScene, shop: WebServer) -> None:
    with WebServer({"/": answer("private")}) as other:
        for url, code in {
            other.url: "blocked",
            "https://127.0.0.1/": "blocked",
            "file:///etc/passwd": "blocked",
            "chrome://version": "blocked",
            "javascript:alert(1)": "blocked",
            "http://user:pass@example.org/": "blocked",
            "nonsense": "bad_arguments",
            "http://": "bad_arguments",
        }.items():
            assert box.code("browser_navigate", url=url) == code, url
        went(box, shop.url)
        script = f"fetch('{other.url}').then(() => 'reached', () => 'refused')"
        assert box.data("browser_eval", script=script)["result"] == "refused"
        assert other.connections == 0
        assert any("guard" in note for note in went(box, shop.url)["notes"])


def test_scripts_return_values_errors_and_never_too_much(
    box: PackScene, shop: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A page whose script was ended answers again, but not at once on a busy machine.
    monkeypatch.setattr("aish.packs.browser.page._PING_SECONDS", 60.0)
    went(box, shop.url)
    values = {
        "1 + 1": 2,
        "const x = {a: [1, null, 'z']}; x": {"a": [1, None, "z"]},
        "new Promise((done) => setTimeout(() => done('later'), 20))": "later",
        "await Promise.resolve(3)": 3,
        "undefined": None,
        "NaN": "NaN",
        "12n": "12n",
        "document.querySelector === 1": False,
        "document.body.children[0]": "<h1></h1>",
        "(() => 1)": "() => 1",
        "'tk-12345678'": "***",
    }
    for script, value in values.items():
        found = box.data("browser_eval", script=script)
        assert (found["success"], found["result"], found["error"]) == (True, value, None), script
    for script, error in {
        "throw new TypeError('boo')": "TypeError: boo",
        "Promise.reject(new Error('no'))": "Error: no",
        "return 1": "SyntaxError",
    }.items():
        found = box.data("browser_eval", script=script)
        assert found["success"] is False
        assert error in found["error"]
    for script in ("'x'.repeat(300000)", "'x'.repeat(40000000)", "Array(300000).fill(1)"):
        assert box.code("browser_eval", script=script) == "too_large"
    for script in ("while (true);", "new Promise(() => {})"):
        assert box.code("browser_eval", script=script, timeout_seconds=1) == "timeout"
    assert box.data("browser_eval", script="1")["result"] == 1
    deep = "let nest = 1; for (let at = 0; at < 700; at++) nest = [nest]; nest"
    told = box.data("browser_eval", script=deep)
    assert told["success"] is True
    assert told["result"] == f"{'[' * 700}1{']' * 700}"


def test_the_console_keeps_the_last_thousand(box: PackScene, shop: WebServer) -> None:
    went(box, shop.url)
    box.data("browser_console", clear=True)
    box.data("browser_eval", script="console.log('tk-12345678', {a: 1}); 0")
    # The second of two timers of the same time comes after the first.
    throws = "setTimeout(() => { throw new Error('thrown') })"
    box.data("browser_eval", script=f"{throws}; new Promise((done) => setTimeout(done))")
    messages = box.data("browser_console")["messages"]
    assert ("log", "*** Object") in [(one["type"], one["text"]) for one in messages]
    assert any("thrown" in one["text"] and one["type"] == "error" for one in messages)
    went(box, f"{shop.url}/flood")
    found = box.data("browser_console", clear=True)
    assert len(found["messages"]) == 1000
    assert found["dropped"] >= 500
    assert any(one["text"] == "n1499" for one in found["messages"])
    assert box.data("browser_console") == {"messages": [], "dropped": 0}


def test_screenshots_have_the_size_that_they_say(box: PackScene, shop: WebServer) -> None:
    went(box, f"{shop.url}/tall")
    for given, size in (
        ({}, (1280, 800)),
        ({"format": "jpeg"}, (1280, 800)),
        ({"full_page": True}, (1280, 3000)),
        ({"format": "jpeg", "full_page": True}, (1280, 3000)),
        ({"selector": "div"}, (1280, 3000)),
    ):
        result = box.call("browser_screenshot", **given)
        found, image = result["structuredContent"], result["content"][1]
        assert (found["width"], found["height"]) == size
        data = base64.b64decode(image["data"])
        assert len(data) == found["bytes"]
        kind = given.get("format", "png")
        assert (found["format"], image["mimeType"]) == (kind, f"image/{kind}")
        assert data.startswith(b"\x89PNG" if kind == "png" else b"\xff\xd8")
    assert box.code("browser_screenshot", selector="nothing") == "no_match"
    assert box.code("browser_screenshot", selector="div", full_page=True) == "bad_arguments"
    went(box, f"{shop.url}/huge")
    assert box.code("browser_screenshot", full_page=True) == "too_large"


def test_waiting_ends_when_it_is_so_or_time_is_over(box: PackScene, shop: WebServer) -> None:
    went(box, shop.url)
    assert box.data("browser_wait", selector="#late")["found"] is True
    assert box.data("browser_wait", selector="p[hidden]", state="present")["found"] is True
    assert box.data("browser_wait", selector="p[hidden]", state="gone")["found"] is True
    late = box.data("browser_wait", selector="p[hidden]", timeout_seconds=1)
    assert late["found"] is False
    assert late["seconds"] >= 1
    script = "setTimeout(() => document.querySelector('h1').remove(), 100); 0"
    went(box, f"{shop.url}/two")
    box.data("browser_eval", script="document.body.innerHTML = '<h1>x</h1>'; 0")
    box.data("browser_eval", script=script)
    assert box.data("browser_wait", selector="h1", state="gone")["found"] is True


@pytest.mark.requirement("K74")
def test_a_page_that_crashes_or_hangs_is_replaced(
    box: PackScene, shop: WebServer, folder: Path
) -> None:
    went(box, shop.url)
    for renderer in renderers(folder):
        with suppress(ProcessLookupError):
            os.kill(renderer, signal.SIGKILL)
    for _ in range(2):
        failed = box.error("browser_wait", selector="nothing", timeout_seconds=60)
        assert failed["code"] == "unavailable"
        assert "crashed" in failed["message"]
    assert box.code("browser_navigate", url=f"{shop.url}/slow", timeout_seconds=1) == "timeout"
    went(box, shop.url)
    told = threading.Event()

    def wait_told(visit: Visit) -> None:
        told.wait(60)
        visit.send(answer())

    # It hangs when the call has ended, however long that took.
    shop.pages["/told"] = wait_told
    box.data("browser_eval", script="fetch('/told').then(() => { while (true); }); 0")
    told.set()
    failed = box.error("browser_wait", selector="nothing", timeout_seconds=60)
    assert failed["code"] == "unavailable"
    assert "hangs" in failed["message"]
    for name, given in {
        "browser_query": {},
        "browser_screenshot": {},
        "browser_eval": {"script": "1"},
        "browser_click": {"selector": "a"},
        "browser_type": {"selector": "a", "text": "x"},
    }.items():
        assert box.code(name, **given) == "unavailable"
    assert box.data("browser_console")["messages"] is not None
    assert went(box, shop.url)["title"] == "Shop"
    box.data("browser_eval", script="setTimeout(() => window.close()); 0")
    assert went(box, shop.url)["title"] == "Shop"


def test_without_the_program_it_is_said_how_to_install_it() -> None:
    with opened_packs(["browser"], None, {}, environ={"PATH": "/nowhere"}) as box:
        failed = box.error("browser_navigate", url="about:blank")
        assert failed["code"] == "not_installed"
        assert "apt-get install chromium" in failed["message"]


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("exit 1", ", or cannot run here: it ended without speaking the DevTools protocol"),
        ("yes >&4", ": it did not speak the DevTools protocol"),
        ("printf 'nothing\\0' >&4; read line <&3", ": it did not speak the DevTools protocol"),
        ("cat <&3", ", or hangs: it did not speak the DevTools protocol"),
    ],
    ids=["ends", "endless", "garbage", "silent"],
)
def test_a_program_that_is_no_browser_is_unavailable(tmp_path: Path, does: str, why: str) -> None:
    program = tmp_path / "browser"
    program.write_text(
        f"#!/bin/sh\necho first >&2\necho 1:FATAL:x.cc second >&2\necho third >&2\n{does}\n"
    )
    program.chmod(0o700)
    options = {"browser": BrowserOptions(program=str(program))}
    with opened_packs(["browser"], None, options, environ=dict(os.environ)) as box:
        failed = box.error("browser_connect", timeout_seconds=20)
        assert failed["code"] == "unavailable"
        assert (
            failed["message"]
            == f"`{program}` is no Chromium{why}: first … 1:FATAL:x.cc second … third"
        )


def test_nothing_is_left_of_a_browser(shop: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        left = Path(folder) / "aish-browser-left"
        (left / "Default").mkdir(parents=True)
        (left / "lock").touch()
        options = {"browser": BrowserOptions(allow=(shop.destination,))}
        with opened_packs(["browser"], None, options, environ=dict(os.environ)) as box:
            went(box, shop.url)
            # What a killed process had left is removed, what is in use is not.
            (profile,) = Path(folder).iterdir()
            assert profile != left
            assert profile.stat().st_mode & 0o777 == 0o700
            assert with_argument(f"--user-data-dir={profile}")
        assert not with_argument(f"--user-data-dir={profile}")
        assert not list(Path(folder).iterdir())


def test_a_long_path_for_temporary_files_keeps_no_browser_from_starting(
    shop: WebServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    options = {"browser": BrowserOptions(allow=(shop.destination,))}
    with opened_packs(["browser"], None, options, environ=dict(os.environ)) as box:
        went(box, shop.url)
    assert not list(folder.iterdir())


def test_a_running_browser_is_attached_to_and_left(shop: WebServer, tmp_path: Path) -> None:
    flags = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={tmp_path}"]
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []
    flags += ["--disable-background-networking", "about:blank#mine"]
    started = subprocess.Popen(
        [chromium(), *flags], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert started.stderr is not None
        line = next(line for line in started.stderr if "DevTools listening on" in line)
        url = line.split()[-1].strip()
        while not (before := pages_of(url)):
            pass  # its first page is about to open
        options = {"browser": BrowserOptions(attach=True)}
        with opened_packs(["browser"], None, options, environ={}) as box:
            found = box.data("browser_connect", debug_url=f"http://{url.split('/')[2]}")
            assert (found["attached"], found["sandboxed"]) == (True, None)
            assert went(box, shop.url)["title"] == "Shop"
            notes = box.data("browser_click", selector="#open")["notes"]
            assert notes == [f"closed a new window: {shop.url}/two"]
            assert box.data("browser_disconnect") == {"closed": True}
            # What was there before is there still, and nothing of ours.
            assert box.data("browser_connect", debug_url=url)["attached"] is True
            assert started.poll() is None
        # A page is told of until it has closed.
        assert any(pages_of(url) == before for _ in range(100_000))
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        if started.stderr is not None:
            started.stderr.close()


def pages_of(url: str) -> list[str]:
    with urllib.request.urlopen(f"http://{url.split('/')[2]}/json/list") as listed:
        return sorted(one["id"] for one in json.load(listed) if one["type"] == "page")


def renderers(folder: Path) -> list[int]:
    """The processes of pages of browsers whose profile is in a folder."""
    ours = set(with_argument(f"--user-data-dir={folder}/"))
    return [int(pid) for pid in ours & set(with_argument("--type=renderer"))]


def with_argument(word: str) -> list[str]:
    """The processes that have a word in their command line."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in line:
                found.append(process.name)
    return found
