"""Who may connect with a token, as the file says it (H18)."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from aish.config.loader import load_pipeline
from aish.core.errors import PipelineError, UsageError
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import make_plan
from aish.serve.clients import DEFAULT_CLIENT, Clients, HubClient, read_tokens
from aish.serve.state import open_state
from aish.system.clock import SystemClock
from aish.system.secrets.secrets import Secrets

ALICE = "alice-token-" + "0a1b2c3d" * 4
BOB = "bobs-token-" + "9f8e7d6c" * 4
SECRETS = Secrets()


def clients_of(
    folder: Path, text: str, environ: Mapping[str, str], secrets: Secrets = SECRETS
) -> Clients:
    """The clients of a file with these lines under `serve.clients`."""
    file = folder / "p.yaml"
    file.write_text(f"aish: 1\nserve:\n  clients: {text}\n" if text else "aish: 1\n")
    pipeline = load_pipeline(file)
    state = open_state(pipeline)
    found = Clients(SystemClock(), lambda _: read_tokens(pipeline.serve, state, environ, secrets))
    plan = make_plan(pipeline, RunOptions(), with_models=False)
    found.configure(found.prepare(plan), pipeline.serve)
    return found


def client_of(clients: Clients, token: str) -> HubClient | None:
    """Whose a token is."""
    proof = clients.by_token(token)
    return None if proof is None else proof.client


def test_a_token_of_a_variable_or_a_file_is_one_client_with_its_tools(tmp_path: Path) -> None:
    path = tmp_path / "bob.token"
    path.touch(0o600)
    path.write_text(f"{BOB}\n")
    secrets = Secrets()

    clients = clients_of(
        tmp_path,
        "{alice: {token_env: A, tools: [repo__*]}, bob: {token_file: bob.token}}",
        {"A": ALICE},
        secrets,
    )

    assert client_of(clients, ALICE) == HubClient("alice", ("repo__*",))
    assert client_of(clients, BOB) == HubClient("bob")
    assert client_of(clients, "c" * 40) is None
    assert secrets.mask(f"{ALICE} {BOB}") == "<secret:A> <secret:serve.clients.bob>"


def test_without_clients_one_token_is_made_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    clients_of(tmp_path, "", {})
    (path,) = (tmp_path / "state" / "aish" / "serve").glob("*/.aish/token")
    token = path.read_text().strip()

    again = clients_of(tmp_path, "", {})

    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert client_of(again, token) == HubClient(DEFAULT_CLIENT)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{a: {token_env: NONE}}", "the token of `a` is missing: `NONE` is not set"),
        ("{a: {token_env: SHORT}}", "the token of `a` in `SHORT` is shorter than 32 characters"),
        ("{a: {token_env: A}, b: {token_env: A}}", "`a` and `b` have the same token"),
        ("{a: {token_file: link.token}}", "link.token` is a link"),
        ("{a: {token_file: open.token}}", "holds a token, and others may read it"),
    ],
)
def test_what_is_no_good_token_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "open.token").write_text(ALICE)
    (tmp_path / "open.token").chmod(0o644)
    (tmp_path / "link.token").symlink_to("open.token")

    with pytest.raises(UsageError, match=said):
        clients_of(tmp_path, text, {"A": ALICE, "SHORT": "x" * 31})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{a: {}}", "the key `token_env` is missing"),
        ("{a: {}}", "or `token_file`, a file that only its owner can read"),
        ("{a: {token_env: A, token_file: b}}", "more than one form"),
        ('{"a b": {token_env: A}}', "a b"),
        ("{a: {token_env: A, tools: [file_read]}}", "`file_read` matches no tool"),
    ],
)
def test_what_the_file_may_not_say_of_clients(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PipelineError) as raised:
        clients_of(tmp_path, text, {"A": ALICE})

    assert said in str(raised.value.problems)


def test_no_client_has_the_name_of_the_one_at_standard_streams(tmp_path: Path) -> None:
    """Or else it would use the answers to the questions about the other's calls."""
    with pytest.raises(PipelineError, match="is the client that has started the server"):
        clients_of(tmp_path, "{stdio: {token_env: ALICE}}", {"ALICE": ALICE})


def test_the_scopes_of_a_token_choose_entries_and_it_sees_the_tools_of_all_of_them(
    tmp_path: Path,
) -> None:
    auth = "auth: {issuer: https://id.example, audience: a, step_up: true}"
    entries = "{r: {scopes: [read], tools: [s__r]}, w: {scopes: [read, write], tools: [s__w]},"
    clients = clients_of(tmp_path, f"{entries} all: {{scopes: [admin]}}}}\n  {auth}", {})

    few = clients.admit("oauth:ada", frozenset({"read"}))
    more = clients.admit("oauth:ada", frozenset({"read", "write", "else"}))
    assert few is not None
    assert more is not None

    assert few.client == HubClient("oauth:ada", ("s__r",), ())
    assert more.client.tools == ("s__r", "s__w")
    assert [one.name for one in clients.entries_of(more)] == ["r", "w"]
    assert clients.admit("oauth:ada", frozenset({"write"})) is None
    # What a waiting call may do is what its own token is good for.
    assert [clients.current(one) for one in (few, more)] == [few.client, more.client]
    everything = clients.admit("oauth:root", frozenset({"admin", "read"}))
    assert everything is not None
    assert everything.client.tools == ()
    assert clients.holds(few)
    clients.scoped = clients.scoped[1:]
    assert not clients.holds(few)
    assert clients.proof("oauth:ada", few.key) is None
    assert clients.current(few) is None
