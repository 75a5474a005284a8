"""Encrypted: a run's own port, a notification to a URL, and nginx in front, as the guide has it."""

import json
import sys
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import httpx
import pytest
from e2e_project import REPO, Project, of_type
from live_runs import control_file, ledger, runtime_folder
from mcp_peers import free_port
from nginx_proxy import NGINX, nginx
from plain_http import PLAIN
from tls_files import TlsFiles, make_tls_files
from web_server import Visit, WebServer, answer

from aish.control import Client, NotListeningError

SERVER = json.dumps([sys.executable, str(REPO / "tests" / "support" / "mcp_ledger_server.py")])
WAITING = f"""
    mcp: {{servers: {{box: {{command: {SERVER}}}}}}}
    on_ask: wait
    steps: [{{id: note, call: box__write, with: {{text: one}}}}]
    """
TOKEN = "phone-" + "p" * 40


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_tls_files(tmp_path_factory.mktemp("tls"), "localhost")


@pytest.fixture
def waiting(project: Project) -> Iterator[Project]:
    """A project whose run waits for an answer."""
    with runtime_folder(project):
        project.pipeline(WAITING)
        yield project


def test_a_run_with_a_certificate_is_asked_and_answered_encrypted(
    waiting: Project, tls: TlsFiles
) -> None:
    # `aish approve` asks once more after its answer; the run may have ended by then.
    control = ("--control", f"127.0.0.1:{free_port()}")
    flags = (*control, "--tls-cert", tls.certificate, "--tls-key", tls.key)
    with waiting.aish.start("run", "p.yaml", *map(str, flags)) as running:
        running.wait_for_line("waits for an answer")
        folder = waiting.run_folders[0]
        address = control_file(waiting)["address"]
        with Client.of_run(folder, tls=tls.trusting) as client:
            question = client.wait_for_approval()
            for other in (
                Client.of_run(folder, max_retries=0),
                Client(f"HTTPS://{address}", TOKEN, max_retries=0),
            ):
                with (
                    other,
                    pytest.raises(NotListeningError, match="certificate verify failed"),
                ):
                    other.status()
            with pytest.raises(httpx.TransportError):
                httpx.get(f"http://{address}/api/v1/status", trust_env=False, verify=PLAIN)
            given = ("latest", question.id, "--yes", "--digest", question.digest)
            distrustful = waiting.aish("approve", *given)
            told = waiting.aish("approve", *given, env={"SSL_CERT_FILE": str(tls.authority)})
            assert client.wait_for_end().exit.code == 0
        done = running.finish()

    assert distrustful.code == 1
    assert "does not answer" in distrustful.stderr
    assert told.code == 0, told.stderr
    assert done.code == 0, done.stderr
    assert ledger(waiting) == ["one"]


@pytest.mark.slow(reason="starts a server with a certificate for each case")
@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_url_with_a_certificate_is_told_if_it_is_trusted(
    waiting: Project, tls: TlsFiles, *, is_trusted: bool
) -> None:
    bodies: list[Any] = []

    def take(visit: Visit) -> None:
        bodies.append(json.loads(visit.body()))
        visit.send(answer(status="204 No Content"))

    waiting.pipeline(
        dedent(WAITING).replace("on_ask: wait", "on_ask: pause")
        + "control: {notify: {url_env: HOOK}}\n"
    )
    with WebServer({"/hook": take}, tls=tls.serving) as server:
        waiting.aish.env["HOOK"] = f"https://localhost:{server.url.rpartition(':')[2]}/hook"
        if is_trusted:
            waiting.aish.env["SSL_CERT_FILE"] = str(tls.authority)
        paused = waiting.run()

    assert paused.code == 8, paused.stderr
    failed = [one for one in of_type(waiting.journal, "notice") if one["code"] == "notify_failed"]
    if is_trusted:
        ((question,),) = [body["questions"] for body in bodies]
        assert question["tool"] == "box__write"
        assert failed == []
    else:
        assert bodies == []
        assert "cannot be reached" in failed[0]["text"]


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_a_run_is_asked_and_answered_through_the_proxy_of_the_guide(
    waiting: Project, tls: TlsFiles
) -> None:
    port, proxy = free_port(), free_port()
    waiting.aish.env["PHONE_TOKEN"] = TOKEN
    waiting.pipeline(
        dedent(WAITING)
        + dedent(f"""
        control:
          listen: 127.0.0.1:{port}
          hosts: [localhost]
          origins: ["https://localhost"]
          tokens: {{phone: {{token_env: PHONE_TOKEN, scopes: [read, answer]}}}}
        """)
    )
    url = f"https://localhost:{proxy}"
    with (
        nginx("approve-from-a-phone.md", waiting.folder, tls, port, proxy) as log,
        waiting.aish.start("run", "p.yaml") as running,
        Client(url, TOKEN, tls=tls.trusting) as client,
        httpx.Client(base_url=f"{url}/api/v1", verify=tls.trusting, trust_env=False) as anybody,
    ):
        client.wait_for_server()
        question = client.wait_for_approval()
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        said = {
            name: anybody.get(f"status{query}", headers=headers)
            for name, query, headers in (
                ("own", "", {**bearer, "Origin": "https://localhost"}),
                ("nobody", "", {}),
                ("in the URL", f"?token={TOKEN}", {}),
                ("another page", "", {**bearer, "Origin": "https://localhost.example.org"}),
                ("another name", "", {**bearer, "Host": "example.org"}),
            )
        }
        link = waiting.aish("control", "open", "latest", "--token-env", "PHONE_TOKEN")
        code = link.stdout.strip().partition("#code=")[2]
        page = {"Origin": "https://localhost"}
        exchanged = anybody.post("link", json={"code": code}, headers=page).json()
        as_page = {**page, "Authorization": f"Bearer {exchanged['token']}"}
        assert anybody.get("status", headers=as_page).json()["pending"] == [question.id]
        assert anybody.post("link", json={"code": code}, headers=page).status_code == 401
        with client.follow() as events:
            # Nothing is held back: this one has to arrive before the run goes on.
            while next(events)["type"] != "approval.asked":
                pass
            client.approve(question, "from a phone")
            *_, end = events
        done = running.finish()

    assert done.code == 0, done.stderr
    assert end["type"] == "run.finished"
    assert ledger(waiting) == ["one"]
    (answered,) = of_type(waiting.journal, "approval.answered")
    assert (answered["by"], answered["note"]) == ("phone", "from a phone")
    assert said.pop("own").status_code == 200
    assert {name: one.status_code for name, one in said.items()} == {
        "nobody": 401,
        "in the URL": 400,
        "another page": 403,
        "another name": 421,
    }
    assert link.stdout.startswith("https://localhost/#code=")
    # In the proxy's log is only what was wrongly put into a URL.
    assert [
        line for line in log.read_text().splitlines() if TOKEN in line and "?token=" not in line
    ] == []
    assert TOKEN not in waiting.everything_written() + done.stderr
