"""Looking whether an endpoint is there, for `doctor`."""

import socket

import anyio
import pytest
from model_endpoint import ModelEndpoint, json_reply
from model_turns import an_entry
from waits import waits_of

from aish.config.model import ModelTimeout
from aish.core.errors import UnavailableError
from aish.models.probe import probe
from aish.system.secrets.secrets import Secrets

pytestmark = pytest.mark.anyio


async def test_an_endpoint_that_answers_is_there() -> None:
    with ModelEndpoint() as endpoint:
        said = await probe(an_entry(endpoint.base_url), "sk-planted-key", Secrets())
    assert said == f"{endpoint.origin} answers"
    request = endpoint.requests[0]
    assert (request.method, request.path) == ("GET", "/v1/models")
    assert request.headers["authorization"] == "Bearer sk-planted-key"


async def test_refused_credentials_name_their_variable() -> None:
    refusal = json_reply(401, {"error": "no"})
    with ModelEndpoint(models=refusal) as endpoint, pytest.raises(UnavailableError) as caught:
        await probe(an_entry(endpoint.base_url, key_env="CLOUD_KEY"), "sk-planted", Secrets())
    assert caught.value.hint == f"is the key in `CLOUD_KEY` one for {endpoint.origin}?"


async def test_an_endpoint_without_a_list_of_models_is_there_too() -> None:
    with ModelEndpoint(models=json_reply(404, {})) as endpoint:
        said = await probe(an_entry(endpoint.base_url), None, Secrets())
    assert said == f"{endpoint.origin} answers (HTTP 404)"


async def test_nobody_there_is_said_with_a_hint() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UnavailableError) as caught:
            await probe(an_entry(f"{origin}/v1"), None, Secrets())
    assert caught.value.hint == f"is the server running at {origin}?"


def test_an_endpoint_that_says_nothing_is_not_waited_for_without_end() -> None:
    # Connections are taken by the system; nobody reads from them. The limit is one for the
    # connection too, which on a busy machine takes longer by a real clock.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        entry = an_entry(
            f"http://127.0.0.1:{silent.getsockname()[1]}/v1", timeout=ModelTimeout(connect=0.05)
        )

        async def asked() -> None:
            with anyio.fail_after(60), pytest.raises(UnavailableError, match="ReadTimeout"):
                await probe(entry, None, Secrets())

        waits_of(asked)
