import json

import pytest
from cassette_exchanges import CHAT, answer, chat, message
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.cassettes.format.interaction import CassetteMissError, Interaction, Request
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.replay.matching import Ignored, Matching
from aish.cassettes.replay.store import Store
from aish.core.errors import UsageError

PLAIN = Matching()


def are_same(one: Request, other: Request, rules: Matching = PLAIN) -> bool:
    return rules.canonical(one).digest == rules.canonical(other).digest


def test_the_order_of_keys_spaces_and_headers_do_not_matter() -> None:
    one = Request("post", CHAT, (("a", "1"),), b'{"model": "m", "n": 1}')
    other = Request("POST", CHAT, (), b'{"n":1,\n "model":"m"}')

    assert are_same(one, other)


@each_case(
    "other",
    [
        Request("GET", "http://host/p?q=1", body=b'{"a": 1}'),
        Request("POST", "https://host/p?q=1", body=b'{"a": 1}'),
        Request("POST", "http://other/p?q=1", body=b'{"a": 1}'),
        Request("POST", "http://host:81/p?q=1", body=b'{"a": 1}'),
        Request("POST", "http://host/r?q=1", body=b'{"a": 1}'),
        Request("POST", "http://host/p?q=2", body=b'{"a": 1}'),
        Request("POST", "http://host/p?q=1", body=b'{"a": 2}'),
        Request("POST", "http://host/p?q=1", body=b'{"a": "1"}'),
        Request("POST", "http://host/p?q=1", body=b'{"a": 1, "b": null}'),
        Request("POST", "http://host/p?q=1", body=b"a=1"),
    ],
)
def test_a_request_that_differs_in_one_part_is_another(other: Request) -> None:
    assert not are_same(Request("POST", "http://host/p?q=1", body=b'{"a": 1}'), other)


def test_spellings_of_one_address_are_the_same() -> None:
    assert are_same(
        Request("GET", "HTTP://Host/p?b=2&a=1"), Request("GET", "http://host:80/p?a=1&b=2")
    )


@pytest.mark.parametrize("method", ["notifications/progress", "notifications/cancelled"])
def test_ids_that_are_numbered_anew_in_each_run_do_not_count(method: str) -> None:
    def noted(token: int) -> Request:
        params = {"progressToken": token, "requestId": token}
        wanted = {"notifications/progress": "progressToken"}.get(method, "requestId")
        body = {"jsonrpc": "2.0", "method": method, "params": {wanted: params[wanted]}}
        return Request("POST", "mcp+stdio://files", body=json.dumps(body).encode())

    assert are_same(noted(1), noted(2))
    assert are_same(message(1, token="t1"), message("9", token=4))
    assert are_same(message(1), message(2, token=4))


def test_sessions_of_mcp_do_not_count_and_other_queries_do() -> None:
    body = message(1).body
    address = "http://host/messages?sessionId="

    assert are_same(
        Request("POST", f"{address}1", body=body), Request("POST", f"{address}2", body=body)
    )
    assert not are_same(Request("GET", f"{address}1"), Request("GET", f"{address}2"))
    assert are_same(
        Request("POST", "http://host/", (("mcp-session-id", "1"),), body),
        Request("POST", "http://host/", (("mcp-session-id", "2"),), body),
    )


def test_an_id_that_is_no_id_of_the_protocol_counts() -> None:
    assert not are_same(
        Request("POST", CHAT, body=b'{"id": 1}'), Request("POST", CHAT, body=b'{"id": 2}')
    )
    assert not are_same(message(1), message(1, method="tools/list"))


@pytest.mark.requirement("C4")
def test_what_the_file_says_to_ignore_does_not_count() -> None:
    rules = Matching(ignore=["$.metadata.date", "$.messages[*].name", '$["x y"][0]'])
    one = {"metadata": {"date": 1}, "messages": [{"name": "a", "content": "c"}], "x y": [1, 2]}
    other = {"metadata": {"date": 2}, "messages": [{"content": "c"}], "x y": [5, 2]}
    third = {**other, "x y": [5, 3]}

    def sent(body: object) -> Request:
        return Request("POST", CHAT, body=json.dumps(body).encode())

    assert are_same(sent(one), sent(other), rules)
    assert not are_same(sent(one), sent(third), rules)
    assert not are_same(sent(one), sent(other))


@each_case("path", ["", "$", "a.b", "$..a", "$.a[?(@.b)]", "$.a[", "$.a b", "$.a[-1]"])
def test_a_path_that_is_not_understood_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="not a path that can be ignored"):
        Ignored([path])


def test_folders_of_another_machine_are_the_same_folders() -> None:
    here = PathPlaceholders(
        root="/home/ann/project", run="/home/ann/project/.aish/run1", home="/home/ann"
    )
    there = PathPlaceholders(root="/srv/ci", run="/tmp/r2", home="/root")
    text = "read {root}/a.txt and {run}/log then {home}, not {root}-old"
    one = text.format(
        root="/home/ann/project", run="/home/ann/project/.aish/run1", home="/home/ann"
    )
    other = text.format(root="/srv/ci", run="/tmp/r2", home="/root")
    recorded = text.format(root="<root>", run="<run>", home="<home>")

    asked = [chat("s", said.replace("-old", "")) for said in (one, other, recorded)]
    assert are_same(asked[0], asked[2], Matching(places=here))
    digests = {
        Matching(places=here).canonical(asked[0]).digest,
        Matching(places=there).canonical(asked[1]).digest,
        Matching(places=there).canonical(asked[2]).digest,
    }
    assert len(digests) == 1
    assert here.hide("/home/ann/project-old/x") == "<home>/project-old/x"
    assert there.show(here.hide(one.replace("-old", ""))) == other.replace("-old", "")


def test_a_path_whose_slashes_are_escaped_is_found() -> None:
    places = PathPlaceholders(root="/srv/work")

    assert places.hide('{"a": "\\/srv\\/work\\/x", "b": "/srv/work"}') == (
        '{"a": "<root>\\/x", "b": "<root>"}'
    )


def test_places_that_are_not_given_change_nothing() -> None:
    assert PathPlaceholders(root="/", home="").hide("/ and /etc") == "/ and /etc"
    assert PathPlaceholders().show("<root>") == "<root>"


@given(st.binary())
def test_any_bytes_can_be_matched(body: bytes) -> None:
    request = Request("POST", CHAT, body=body)

    assert are_same(request, Request("POST", CHAT, body=body))


@pytest.mark.parametrize(
    "uri", ["http://[", "http://h:99999999/", "mcp+stdio://a b", "", "exec://s"]
)
def test_any_address_can_be_matched(uri: str) -> None:
    assert are_same(Request("POST", uri), Request("POST", uri))
    assert not are_same(Request("POST", uri), Request("POST", "http://x"))


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 500 + b"]" * 500])
def test_a_body_nested_too_deeply_is_matched_as_text(body: bytes) -> None:
    assert are_same(Request("POST", CHAT, body=body), Request("POST", CHAT, body=body))


def test_each_recording_is_used_once_and_equals_come_in_their_order() -> None:
    asked = chat("s", "again")
    store = Store([Interaction(asked, answer(f"reply {n}")) for n in (1, 2)], PLAIN)

    assert [store.take(asked).body for _ in range(2)] == [b"reply 1", b"reply 2"]
    with pytest.raises(CassetteMissError, match="recorded 2 times and is requested once more"):
        store.take(asked)
