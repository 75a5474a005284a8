import json
from base64 import b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aish.cassettes.format.interaction import Request
from aish.cassettes.record.redact import redact_request
from aish.cassettes.record.repeated_secrets import Repeated
from aish.system.secrets.secrets import Secrets

VALUE = 'pä"ss/word+42yz'
LONG = "a line of what a tool gave back, as they are\n" * 400


def known(*values: str) -> Secrets:
    secrets = Secrets()
    for number, value in enumerate(values):
        secrets.add(f"S{number}", value)
    return secrets


def asked(*said: str, ascii_only: bool = False) -> Request:
    messages = [{"role": "user", "content": text} for text in said]
    body = json.dumps({"messages": messages, "stream": True}, ensure_ascii=ascii_only)
    return Request("POST", "http://h/v1", body=body.encode())


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("spelled", [VALUE, json.dumps(VALUE), b64encode(VALUE.encode()).decode()])
def test_a_secret_is_found_wherever_a_conversation_goes_on(
    spelled: str, *, ascii_only: bool
) -> None:
    secrets, repeated = known(VALUE), Repeated()
    said = ["Go on.", LONG, "Grüße", LONG]

    for news in ("nothing", f"see {spelled} there", "later", f"{LONG}{spelled}"):
        said.append(news)
        request = asked(*said, ascii_only=ascii_only)
        made = redact_request(request, secrets, repeated)
        assert made == redact_request(request, secrets)
        assert (b"<secret:S0>" in made.body) == (len(said) > 5)


def test_a_secret_that_becomes_known_later_is_looked_for_in_all_of_it() -> None:
    secrets, repeated = known("another-secret"), Repeated()
    request = asked(f"it is {VALUE}", LONG)
    assert redact_request(request, secrets, repeated).body == request.body

    secrets.add("NEW", VALUE)

    assert b"<secret:NEW>" in redact_request(request, secrets, repeated).body


@given(st.lists(st.sampled_from([LONG, VALUE, "\\", '"', "\\u00", "é", "x"]), max_size=6))
@example([LONG, "\\", VALUE])
def test_what_is_repeated_makes_no_difference(pieces: list[str]) -> None:
    secrets, repeated = known(VALUE), Repeated()

    for count in range(len(pieces) + 1):
        for request in (asked(*pieces[:count]), asked("".join(pieces[:count]), ascii_only=True)):
            assert redact_request(request, secrets, repeated) == redact_request(request, secrets)
