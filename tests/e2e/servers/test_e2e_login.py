"""The login of a person, from the command line to the wire."""

import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cli_process import Done, Running
from e2e_project import ModelEndpoints, Project, wait_file
from mcp_emulators import McpEndpoint
from model_endpoint import Gate, Recorded, Reply
from oauth_person import LoginServer, address_printed, guard_of, redirect_of, visit
from oauth_project import COMMAND, LoginProject
from oauth_servers import Form, forbidden, refusal, unauthorized
from open_descriptors import opened_by
from patience import rounds
from served_hub import ServedHub
from shell_sessions import COLUMNS, at_terminal, obedient, sit
from terminal_window import Window

from aish.system.file_lock import hold_lock


@dataclass
class Behind(LoginProject):
    """A project with a call of a server that is behind this issuer."""

    server: McpEndpoint
    issuer: LoginServer

    @property
    def lock(self) -> Path:
        return self.files[0].with_suffix(".lock")


@contextmanager
def behind(project: Project, **settings: Any) -> Generator[Behind]:
    """Such a project; `settings` are those of the issuer."""
    with LoginServer(**settings) as issuer, McpEndpoint(guard_of(issuer)) as server:
        yield Behind(project, server.url, server, issuer)


Case = tuple[dict[str, Any], dict[str, Any], str]
"""The settings of the issuer, those of the file, and words of the message."""


@pytest.mark.requirement("W19")
def test_a_person_logs_in_once_and_runs_use_and_renew_the_login(project: Project) -> None:
    with behind(project) as place:
        issuer = place.issuer
        before = project.run()
        assert before.code == 5
        assert f"nobody is logged in to `{place.url}`: {COMMAND}\n" in before.stderr
        assert issuer.pages == []

        done = place.log_in()

        assert done.code == 0, done.stderr
        assert f"w: logged in at `{issuer.issuer}`\n" in done.stdout
        assert f"kept in `{place.files[0]}`, which only you can read; it is renewed" in done.stderr
        assert stat.S_IMODE(place.files[0].stat().st_mode) == 0o600
        assert stat.S_IMODE(place.folder.stat().st_mode) == 0o700
        redirect, _ = redirect_of(done.stdout.split("\n")[2])
        assert issuer.registrations == [
            {
                "client_name": "aish",
                "application_type": "native",
                "redirect_uris": [redirect],
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
            }
        ]
        asked = issuer.pages[0]
        assert asked["code_challenge_method"] == "S256"
        assert asked["resource"] == place.url

        asked_for = len(issuer.requests)
        first = project.run()
        assert first.code == 0, first.stderr
        assert "hello" in first.stdout
        assert len(issuer.requests) == asked_for  # the token is good: nobody is asked
        place.change(expires=1.0)
        renewed = project.run()
        issuer.tokens[-1] = "not-that-of-before"  # revoked
        again = project.run()
        assert (renewed.code, again.code) == (0, 0), renewed.stderr + again.stderr
        assert issuer.grants == ["authorization_code", "refresh_token", "refresh_token"]
        assert issuer.reused == []

        # The port and the client stay; a login begins anew whatever is kept.
        assert place.log_in().code == 0
        assert len(issuer.registrations) == 1
        assert issuer.pages[1]["redirect_uri"] == redirect

        shown = "".join(one.stdout + one.stderr for one in (before, done, first, renewed, again))
        seen = shown + project.everything_written()
        assert not [one for one in (*issuer.tokens, *issuer.refreshing) if one in seen]


@pytest.mark.slow(reason="logs in and starts several processes")
def test_a_login_that_is_dead_is_dropped_and_told_with_the_command(project: Project) -> None:
    with behind(project) as place:
        assert place.log_in().code == 0
        place.issuer.refreshing.clear()
        place.change(expires=1.0)

        over, after = project.run(), project.run()

        assert (over.code, after.code) == (5, 5)
        assert "`invalid_grant` (this refresh token was used); the login is over" in over.stderr
        assert f"nobody is logged in to `{place.url}`: {COMMAND}\n" in after.stderr
        assert COMMAND in over.stderr
        assert len(place.issuer.reused) == 1
        assert not place.kept()["secrets"]["refresh_token"]
        checked = project.aish("doctor", "p.yaml")
        assert checked.code == 5
        assert f"hint: {COMMAND} logs in" in checked.stdout
        # A server that is in trouble ends no login.
        assert place.log_in().code == 0
        place.issuer.renew = lambda _form: Reply(status=503, framing="length")
        place.change(expires=1.0)
        assert "HTTP 503" in project.run().stderr
        place.issuer.renew = lambda _form: None
        assert project.run().code == 0


@pytest.mark.slow(reason="logs in and starts several processes")
def test_a_renewal_without_a_new_refresh_token_keeps_the_old_one(project: Project) -> None:
    with behind(project) as place:
        assert place.log_in().code == 0
        old = place.kept()["secrets"]["refresh_token"]
        unusable = [None, "\ud800"]
        place.issuer.renew = lambda _form: place.issuer.new_tokens(refresh_token=unusable.pop())
        for _ in range(2):
            place.change(expires=1.0)
            assert project.run().code == 0
        assert place.kept()["secrets"]["refresh_token"] == old

        # The old one is dead by now: both are dropped, and it is not sent again.
        place.issuer.renew = lambda _form: None
        place.issuer.refreshing.clear()
        place.change(expires=1.0)
        over, after = project.run(), project.run()
        assert (over.code, after.code) == (5, 5)
        assert "`invalid_grant` (this refresh token was used); the login is over" in over.stderr
        assert place.issuer.reused == [old]
        assert set(place.kept()["secrets"].values()) == {""}


def test_a_server_that_refuses_every_token_gets_one_renewal_and_no_loop(project: Project) -> None:
    closed: list[bool] = []
    with LoginServer() as issuer:

        def refuse(token: str, request: Recorded) -> Reply | None:
            return unauthorized() if closed else issuer.refuse(token, request)

        with McpEndpoint(guard_of(issuer, refuse=refuse)) as server:
            place = Behind(project, server.url, server, issuer)
            assert place.log_in().code == 0
            asked = len(server.requests)
            closed.append(True)
            done = project.run()

            assert (done.code, "has just issued" in done.stderr) == (5, True), done.stderr
            assert issuer.grants == ["authorization_code", "refresh_token"]
            assert [one.method for one in server.requests[asked:]].count("POST") == 2


@pytest.mark.slow(reason="logs in and starts several processes")
def test_a_renewal_that_cannot_be_kept_is_used_and_told(project: Project) -> None:
    with behind(project) as place:
        assert place.log_in().code == 0
        place.change(expires=1.0)
        aside = place.folder.with_name("aside")

        def renew_on_a_full_disk(form: Form) -> Reply:
            place.folder.rename(aside)
            place.folder.write_text("")  # no file can be made below it
            return place.issuer.renew_once(form)

        place.issuer.renew = renew_on_a_full_disk
        done = project.run()
        assert (done.code, "hello" in done.stdout) == (0, True), done.stderr
        assert "the login cannot be kept in" in done.stderr
        assert f"later runs may need a new login: {COMMAND} (" in done.stderr

        # The refresh token that is on the disk is spent.
        place.folder.unlink()
        aside.rename(place.folder)
        place.issuer.renew = lambda _form: None
        later = project.run()
        assert (later.code, COMMAND in later.stderr) == (5, True), later.stderr
        assert not place.kept()["secrets"]["refresh_token"]


def test_a_login_is_answered_while_the_browser_that_it_opened_still_runs(project: Project) -> None:
    opened, closes = project.folder / "opened", project.folder / "closes"
    os.mkfifo(closes)
    browser = project.write("browser", f'#!/bin/sh\necho "$1" > {opened}\ncat {closes}\n')
    browser.chmod(0o755)
    with behind(project), closes.open("r+b", buffering=0):
        argv = [sys.executable, "-m", "aish", "login", "p.yaml"]
        env = {**project.aish.env, "BROWSER": str(browser)}
        with Window(argv, cwd=project.folder, env=env, warm=project.aish.warm) as window:
            window.wait_for("opened in the browser")
            wait_file(opened, whole=True)
            assert visit(opened.read_text("utf-8").strip()) == 200
            window.wait_for("logged in at")
            assert window.finish() == 0
        assert project.run().code == 0


def waiting_run(place: Behind, stack: ExitStack) -> Running:
    """A run that waits until it may renew the login: somebody else has the lock."""
    run = stack.enter_context(place.project.aish.start("run", "p.yaml"))
    for _ in rounds("the process does not come to the lock"):
        if place.lock in opened_by(run.pid):
            break
    return run


def test_two_processes_use_a_refresh_token_once(project: Project) -> None:
    with behind(project) as place, ExitStack() as stack:
        assert place.log_in().code == 0
        place.change(expires=1.0)
        with hold_lock(place.lock):
            runs = [waiting_run(place, stack) for _ in range(2)]
            assert place.issuer.grants == ["authorization_code"]
        assert [one.finish().code for one in runs] == [0, 0]
        assert place.issuer.grants == ["authorization_code", "refresh_token"]


@pytest.mark.slow(reason="logs in and starts several processes")
def test_ctrl_c_waits_for_no_other_process_and_loses_no_login(project: Project) -> None:
    with behind(project) as place, ExitStack() as stack:
        assert place.log_in().code == 0
        place.change(expires=1.0)
        with hold_lock(place.lock):
            run = waiting_run(place, stack)
            run.interrupt()
            assert run.finish(timeout=25).code == 130  # after 30 s it would give up by itself
        assert place.issuer.grants == ["authorization_code"]

        gate = Gate()
        renew = place.issuer.renew_once
        place.issuer.renew = lambda form: renew(form).but(before_head=gate)
        with project.aish.start("run", "p.yaml") as running:
            gate.wait_arrived()
            running.interrupt()
            gate.open()
            assert running.finish().code == 130
        assert project.run().code == 0
        assert place.issuer.grants == ["authorization_code", "refresh_token"]


def test_an_answer_of_somebody_else_is_refused_and_waited_past(project: Project) -> None:
    with behind(project) as place, project.aish.start("login", "p.yaml") as running:
        address = address_printed(running)
        redirect, state = redirect_of(address)

        # Of another process, of an issuer that refused the request, of no login, of no browser.
        assert visit(f"{redirect}?code=injected&state=guessed") == 400
        running.wait_for_line("its `state` is not that of this login\n")
        assert visit(f"{redirect}?error=invalid_scope&error_description=no+such") == 400
        running.wait_for_line("it has no `state` (`invalid_scope` (no such))\n")
        assert visit(f"{redirect}?code=injected&state={state}&code=twice") == 400
        assert visit(f"{redirect}/other?code=injected&state={state}") == 404
        assert visit(redirect) == 404
        for number in range(9):
            assert visit(f"{redirect}?error=of-a-page-{number}") == 400
        assert [place.issuer.grants, place.files] == [[], []]

        assert visit(address) == 200
        done = running.finish()
        assert done.code == 0, done.stderr
        assert done.stderr.count("was not accepted") == 5
        assert place.issuer.codes == {}
        assert project.run().code == 0


REFUSED: list[Case] = [
    ({"page": {"iss": "https://other.example"}}, {}, "is of the issuer `https://other.example`"),
    ({"page": {"iss": None}}, {}, "does not name its issuer"),
    ({"page": {"code": None, "error": "access_denied"}}, {}, "refuses the login: `access_denied`"),
    ({"page": {"code": "of-another-login"}}, {}, "`invalid_grant` (not bound)"),
]


def test_an_answer_of_another_issuer_or_without_a_code_ends_the_login(project: Project) -> None:
    for server, settings, words in REFUSED:
        with behind(project, **server) as place:
            place.write(**settings)
            done = place.log_in()
            assert done.code == 5, done.stdout + done.stderr
            assert words in done.stderr
            assert place.files == []
            expected = ["authorization_code"] if "invalid_grant" in words else []
            assert place.issuer.grants == expected


def test_the_code_of_one_issuer_does_not_reach_another_that_leads_to_its_page(
    project: Project,
) -> None:
    """A server of an attacker names the login page of an honest issuer as its own (mix-up)."""
    with LoginServer() as honest:
        page = {"authorization_endpoint": f"{honest.origin}/authorize"}
        silent = {"authorization_response_iss_parameter_supported": None}
        with behind(project, **page, **silent) as place:
            done = place.log_in()
            assert done.code == 5
            words = f"the login page `{honest.origin}/authorize` has another origin than its"
            assert f"warning: {words}" in done.stderr
            assert f"is of the issuer `{honest.issuer}`, and the login began at" in done.stderr
            assert (len(honest.pages), honest.grants, place.issuer.grants) == (1, [], [])
            assert place.files == []


NEVER_OPENED: list[Case] = [
    ({"token_endpoint": "http://localhost:1/token"}, {}, "has another origin than its"),
    ({"authorization_endpoint": "javascript:alert(1)"}, {}, "is not opened"),
    ({"authorization_endpoint": "http://login.example/a"}, {}, "is not opened"),
    ({"authorization_endpoint": None}, {}, "it names no `authorization_endpoint`"),
    ({"code_challenge_methods_supported": ["plain"]}, {}, "does not say that it binds a code"),
    ({"code_challenge_methods_supported": None}, {}, "does not say that it binds a code"),
    ({"issuer": "https://other.example"}, {}, "it names the issuer `https://other.example`"),
    ({"registration_endpoint": None}, {}, "registers no client by itself"),
    ({"registered": {"client_id": None, "error": "no_more"}}, {}, "no client is registered at"),
    ({"registered": {"client_id": "\ud800"}}, {}, "no client is registered at"),
    ({"registered": {"client_id": "two\nlines"}}, {}, "no client is registered at"),
    ({}, {"issuer": "https://mine.example"}, "its credentials go nowhere else"),
]


def test_a_login_page_that_must_not_be_opened_is_not_shown(project: Project) -> None:
    for server, settings, words in NEVER_OPENED:
        with behind(project, **server) as place:
            place.write(**settings)
            done = project.aish("login", "p.yaml")
            assert done.code == 5, done.stdout + done.stderr
            assert words in done.stderr
            assert not done.stdout
            assert [place.issuer.pages, place.files] == [[], []]


def test_nothing_of_a_login_goes_where_another_server_leads_it(project: Project) -> None:
    with LoginServer() as other:
        led: list[Case] = [
            ({"elsewhere": {"/register": f"{other.origin}/register"}}, {}, "registered at"),
            ({"elsewhere": {"/token": f"{other.origin}/token"}}, {}, "HTTP 307"),
            ({"registration_endpoint": "http://h.example/register"}, {}, "it is not https"),
            ({}, {"resource": "https://h.example/mcp"}, "another server"),
        ]
        for server, metadata, words in led:
            with (
                LoginServer(**server) as issuer,
                McpEndpoint(guard_of(issuer, metadata=metadata)) as guarded,
            ):
                place = Behind(project, guarded.url, guarded, issuer)
                with project.aish.start("login", "p.yaml") as running:
                    if "/token" in server.get("elsewhere", {}):
                        visit(address_printed(running))
                    done = running.finish()
                assert (done.code, words in done.stderr) == (5, True), done.stderr
                assert place.files == []
        assert other.requests == []


def test_a_program_without_a_person_is_told_the_command_and_opens_no_browser(
    project: Project,
) -> None:
    opened = project.folder / "opened"
    browser = project.write("browser", f"#!/bin/sh\ntouch {opened}\n")
    browser.chmod(0o755)
    project.aish.env |= {"CI": "true", "BROWSER": str(browser)}
    with behind(project) as place:
        place.issuer.renew = lambda _form: refusal("invalid_grant", "revoked", status=401)
        assert place.log_in().code == 0
        secrets = {*place.issuer.tokens, *place.issuer.refreshing}
        recorded = project.aish("record", "p.yaml", "-o", "c.yaml", "-v")
        assert recorded.code == 0, recorded.stderr
        place.change(expires=1.0)
        over = project.run("-v")
        assert (over.code, COMMAND in over.stderr) == (5, True), over.stderr
        assert "the login is over" in over.stderr
        assert project.aish("logout", "p.yaml").code == 0
        asked = len(place.server.requests)
        replayed = project.run("--replay", "c.yaml", "-v")
        assert (replayed.code, replayed.stdout) == (0, "hello\n"), replayed.stderr
        assert len(place.server.requests) == asked
        shown = "".join(one.stdout + one.stderr for one in (recorded, over, replayed))
        seen = shown + project.everything_written()
        assert not [one for one in secrets if one in seen]
        assert len(place.issuer.pages) == 1
        assert not opened.exists()


def address_shown(window: Window, *, times: int = 1) -> str:
    """The address of the last of so many login pages as the program wrote it, in one line."""
    window.wait_for_raw(b"for it to return to", times=times)
    lines = bytes(window.raw).decode().split("\r\n")
    return next(line.strip() for line in reversed(lines) if "/authorize?" in line)


@pytest.fixture
def session(project: Project) -> Generator[tuple[Behind, Window]]:
    """A session at a terminal whose server wants a login that nobody has made."""
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9"  # it is not asked
    with behind(project) as place, at_terminal(project) as window:
        window.wait_for(f"(`:mcp connect w` tries again): nobody is logged in to `{place.url}")
        yield place, window


@pytest.mark.requirement("W19")
def test_a_session_logs_in_when_it_connects_to_a_server(session: tuple[Behind, Window]) -> None:
    place, window = session
    window.type(":mcp connect w\r")
    address = address_shown(window)
    assert len(address) > COLUMNS

    assert visit(address) == 200

    window.wait_for(f"w: logged in at `{place.issuer.issuer}`")
    window.wait_for("w is connected: 8 tools")
    window.type(":mcp connect w\r")
    window.wait_for("`w` is already connected")
    assert place.issuer.grants == ["authorization_code"]
    # Its login is over: it is made anew without a new connection.
    assert place.project.aish("logout", "p.yaml").code == 0
    window.type(":mcp connect w\r")
    assert visit(address_shown(window, times=2)) == 200
    window.wait_for_raw(b"w: logged in at", times=2)
    assert place.issuer.grants == ["authorization_code"] * 2
    assert not [one for one in place.issuer.tokens if one.encode() in window.raw]


@pytest.mark.slow(reason="logs in in a session")
def test_a_server_that_is_added_in_a_session_may_want_a_login(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(obedient))
    with behind(project) as place:
        project.pipeline("")
        with at_terminal(project) as window:
            window.type(f":mcp connect {place.url} notes\r")
            window.wait_for("`oauth=login` logs in")
            window.type(f":mcp connect {place.url} notes oauth=login\r")
            assert visit(address_shown(window)) == 200
            window.wait_for("notes is connected: 8 tools")
            window.type(":approve notes__*\r")
            window.type('CALL notes__echo {"text": "hi there"}\r')
            window.wait_for("<4: hi there>")
            window.type(":quit\r")
            assert window.finish() == 0
        with at_terminal(project, "--resume") as window:
            window.type(":mcp connect notes\r")
            window.wait_for("notes is connected: 8 tools")
            assert len(place.issuer.pages) == 1
            window.type(":export x.yaml\r")
            window.wait_for("accepts it")
            text = (project.folder / "x.yaml").read_text("utf-8")
            assert "oauth:\n        login: true" in text
            assert project.aish("logout", place.url).code == 0
            window.type(":mcp connect notes\r")
            assert visit(address_shown(window)) == 200
            window.wait_for("notes: logged in at")


@pytest.mark.slow(reason="logs in in a session")
def test_ctrl_c_gives_up_a_login_and_leaves_the_session_intact(
    session: tuple[Behind, Window],
) -> None:
    place, window = session
    window.type(":mcp connect w\r")
    address_shown(window)
    window.type("\x03")
    window.wait_for("w: nobody is logged in: interrupted")
    # The person says no, the next time.
    window.type(":mcp connect w\r")
    redirect, state = redirect_of(address_shown(window, times=2))
    assert visit(f"{redirect}?error=access_denied&state={state}&iss={place.issuer.issuer}") == 200
    window.wait_for("refuses the login: `access_denied`")
    assert [place.files, place.issuer.grants] == [[], []]

    # A login at another terminal is as good.
    assert place.log_in().code == 0
    asked = len(place.issuer.pages)
    window.type(":mcp connect w\r")
    window.wait_for("w is connected: 8 tools")
    assert len(place.issuer.pages) == asked


def test_a_session_without_a_person_opens_no_login_page(project: Project) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9"  # it is not asked
    with behind(project) as place:
        done = sit(project, ":mcp list", ":mcp connect w")
        assert COMMAND in done.stderr
        assert place.issuer.pages == []
        assert place.issuer.registrations == []


@pytest.mark.slow(reason="logs in and starts several processes")
def test_a_served_server_tells_that_its_login_is_over_and_takes_the_next_one(
    project: Project,
) -> None:
    with behind(project) as place:
        assert place.log_in().code == 0
        with ServedHub(project, "p.yaml") as hub:
            hub.begin()
            assert "hello" in str(hub.call("w__echo", {"text": "hello"}))
            place.issuer.tokens[-1] = "not-that-of-before"
            place.issuer.refreshing.clear()
            for words in ("the login is over", "nobody is logged in"):
                refused = str(hub.call("w__echo", {"text": "hello"}))
                assert words in refused
                assert COMMAND in refused
            assert place.log_in().code == 0
            assert "hello" in str(hub.call("w__echo", {"text": "hello"}))
            assert len(place.issuer.reused) == 1
            assert not [one for one in place.issuer.tokens if one in hub.stderr]


def test_a_login_is_of_one_server_one_client_and_one_issuer(project: Project) -> None:
    with behind(project) as place, McpEndpoint(guard_of(place.issuer)) as other:
        assert place.log_in().code == 0
        text = (project.folder / "p.yaml").read_text("utf-8")

        def outcome(old: str, new: str) -> Done:
            (project.folder / "p.yaml").write_text(text.replace(old, new), "utf-8")
            return project.run()

        login = '"login": true'
        changes = [
            (place.url, other.url),
            (login, f'{login}, "client_id": "another"'),
            (login, f'{login}, "issuer": "{place.issuer.issuer}"'),
        ]
        for change in changes:
            done = outcome(*change)
            assert (done.code, "nobody is logged in" in done.stderr) == (5, True), done.stderr
        sent = {one.headers.get("authorization") for one in other.requests}
        assert sent == {None}
        assert outcome(login, login).code == 0


def test_ctrl_c_and_the_end_of_the_time_leave_nothing_behind(project: Project) -> None:
    with behind(project) as place:
        with project.aish.start("login", "p.yaml") as running:
            redirect, _ = redirect_of(address_printed(running))
            running.interrupt(signal.SIGINT)
            assert running.finish().code == 130
        late = project.aish("login", "p.yaml", "--timeout", "1s")

        assert late.code == 5
        assert "no answer to the login within 1 s" in late.stderr
        assert list(place.folder.iterdir()) == []
        parts = urlsplit(redirect)
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind((parts.hostname, parts.port))


def test_a_client_is_registered_anew_if_its_port_is_taken(project: Project) -> None:
    with behind(project) as place:
        assert place.log_in().code == 0
        port = urlsplit(place.kept()["redirect_url"]).port
        with socket.create_server(("127.0.0.1", port)):
            assert place.log_in().code == 0
        assert len(place.issuer.registrations) == 2
        assert urlsplit(place.kept()["redirect_url"]).port != port


@pytest.mark.slow(reason="logs in and starts several processes")
def test_a_client_of_the_file_is_not_registered(project: Project) -> None:
    with behind(project, scopes_supported=["offline_access", "more"]) as place:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        back = f"http://127.0.0.1:{port}/back"
        place.write(client_id="of-the-file", redirect_url=back, scopes=["a", "b"])
        assert place.log_in().code == 0
        document = "https://client.example/aish.json"
        place.write(client_id=document)
        assert place.log_in().code == 0
        asked = [
            (one["client_id"], one["redirect_uri"], one["scope"]) for one in place.issuer.pages
        ]
        assert asked[0] == ("of-the-file", back, "a b offline_access")
        assert place.issuer.pages[0]["prompt"] == "consent"
        # This issuer reads no documents of clients, and registers one.
        assert asked[1][0] == "client-1-by-itself"
        assert len(place.issuer.registrations) == 1
    with behind(project, client_id_metadata_document_supported=True) as place:
        place.write(client_id=document)
        assert place.log_in().code == 0
        assert place.issuer.pages[0]["client_id"] == document
        assert place.issuer.registrations == []
        assert project.run().code == 0


def test_a_secret_that_is_given_at_the_registration_is_used(project: Project) -> None:
    given = {"client_secret": "given-at-the-registration", "token_endpoint_auth_method": None}
    with behind(project, registered=given) as place:
        assert place.log_in().code == 0
        sent = [one.headers.get("authorization", "") for one in place.issuer.posts]
        assert not sent[0]
        assert sent[1].startswith("Basic ")
        place.change(expires=1.0)
        assert project.run().code == 0
        assert place.issuer.posts[-1].headers["authorization"] == sent[1]


def test_a_server_that_wants_more_scopes_is_a_matter_for_the_person(project: Project) -> None:
    with LoginServer() as issuer:
        wants = 'Bearer error="insufficient_scope", scope="notes:write"'
        guard = guard_of(
            issuer,
            refuse=lambda token, request: (
                issuer.refuse(token, request)
                or (forbidden(wants) if b"tools/call" in request.body else None)
            ),
            metadata={"scopes_supported": ["notes:read"]},
        )
        with McpEndpoint(guard) as server:
            place = Behind(project, server.url, server, issuer)
            assert place.log_in().code == 0
            done = project.run()
            assert "the scopes `notes:write` too" in done.stderr
            assert "write `scopes: [notes:read, notes:write]`, and log in again" in done.stderr
            assert COMMAND in done.stderr


def test_logins_are_listed_and_forgotten(project: Project) -> None:
    with behind(project) as place:
        assert project.aish("login", "--list").stdout == "no logins\n"
        assert place.log_in().code == 0
        listed = project.aish("login", "--list")
        assert f"{place.url}: at `{place.issuer.issuer}`; kept in" in listed.stdout
        found = json.loads(project.aish("login", "--list", "--format", "json").stdout)
        assert found[0]["client_id"] == "client-1-by-itself"
        assert project.aish("logout", "p.yaml").stdout == "w: logged out\n"
        assert project.aish("logout", "p.yaml").stdout == "w: nobody was logged in\n"
        assert place.files == []
        assert place.log_in().code == 0
        assert "logged out" in project.aish("logout", place.url).stdout
        assert place.files == []


@pytest.mark.slow(reason="logs in and starts several processes")
def test_a_login_that_cannot_be_read_or_kept_is_told_and_replaced(project: Project) -> None:
    with behind(project) as place:
        assert place.log_in().code == 0
        place.files[0].write_text('{"half', "utf-8")
        listed, run = project.aish("login", "--list"), project.run()
        assert (listed.code, listed.stdout) == (0, "no logins\n")
        assert f"warning: the login in `{place.files[0]}` cannot be read" in listed.stderr
        assert (run.code, f"{COMMAND} replaces it" in run.stderr) == (5, True), run.stderr
        assert place.log_in().code == 0
        assert project.run().code == 0
        place.files[0].chmod(0o644)
        open_to_all = project.run()
        assert (open_to_all.code, "its mode is 0644" in open_to_all.stderr) == (5, True)
        assert place.log_in().code == 0
        assert project.run().code == 0
        project.aish.env["XDG_STATE_HOME"] = str(project.folder / "p.yaml")
        asked = len(place.issuer.pages)
        refused = project.aish("login", "p.yaml")
        assert (refused.code, refused.stdout) == (5, ""), refused.stderr
        assert "no login can be kept in" in refused.stderr
        assert len(place.issuer.pages) == asked


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("login",), "`FILE` is missing"),
        (("login", "p.yaml", "x"), "no server `x` wants a person to log in"),
        (("login", "p.yaml", "--list"), "`--list` takes no file"),
        (("login", "p.yaml", "--timeout", "0s"), "--timeout: duration must be greater than zero"),
    ],
)
def test_a_login_of_nothing_is_an_error(
    project: Project, words: tuple[str, ...], told: str
) -> None:
    server = "w: {url: 'https://h.example/mcp', oauth: {login: true}}"
    project.pipeline(f"mcp: {{servers: {{{server}}}}}\ncall: w__echo\n")
    done = project.aish(*words)
    assert done.code == 2
    assert told in done.stderr
