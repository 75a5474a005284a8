from samples import each_case

from aish.core.json import JsonValue
from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import Masks

SECRETS = {
    "TOKEN": "s3cr3t/of+the.house",
    "HOST": "intranet.example",
    "HOME": "/home/somebody",
    "HOOK": "https://hooks.example/services/T0001/B0002",
    "PROGRAM": "deploy-now",
    "PASS": "hunter2-hunter2",
    "NUMBER": "123456789012",
}


def masks() -> Masks:
    secrets = Secrets()
    for name, value in SECRETS.items():
        secrets.add(name, value)
    return Masks(secrets)


@each_case(
    "argument, shown",
    [
        ({"token": SECRETS["TOKEN"]}, {"token": "<secret:TOKEN>"}),
        ({"n": 123456789012}, {"n": "<secret:NUMBER>"}),
        ({SECRETS["TOKEN"]: 1}, {"<secret:TOKEN>": 1}),
        ({"<secret:TOKEN>": 1, SECRETS["TOKEN"]: 2}, {"<secret:TOKEN>": 1, "<secret:TOKEN>'": 2}),
        ({"deep": [{"x": "a" + SECRETS["TOKEN"]}]}, {"deep": [{"x": "a<secret:TOKEN>"}]}),
        ({"host": "intranet.example"}, {"host": "intranet.example"}),
        ({"host": "intranet.example:80"}, {"host": "intranet.example:80"}),
        ({"q": "intranet.example"}, {"q": "<secret:HOST>"}),
        ({"q": "https://intranet.example/x"}, {"q": "https://intranet.example/x"}),
        ({"u": SECRETS["HOOK"]}, {"u": "https://hooks.example<secret:HOOK>"}),
        (
            {"u": "https://me:hunter2-hunter2@h.example"},
            {"u": "https://me:<secret:PASS>@h.example"},
        ),
        ({"path": "/home/somebody/x"}, {"path": "/home/somebody/x"}),
        ({"new_path": "/home/somebody"}, {"new_path": "/home/somebody"}),
        ({"text": "see /home/somebody"}, {"text": "see <secret:HOME>"}),
        ({"command": "deploy-now --fast"}, {"command": "deploy-now --fast"}),
        ({"command": "X=1 deploy-now"}, {"command": "X=1 deploy-now"}),
        ({"command": "a | deploy-now"}, {"command": "a | deploy-now"}),
        ({"command": "a -k deploy-now"}, {"command": "a -k <secret:PROGRAM>"}),
        ({"command": "cat /home/somebody/x"}, {"command": "cat /home/somebody/x"}),
        ({"argv": ["deploy-now", "deploy-now"]}, {"argv": ["deploy-now", "<secret:PROGRAM>"]}),
        ({"argv": ["ls", "/home/somebody"]}, {"argv": ["ls", "/home/somebody"]}),
    ],
)
def test_a_mask_hides_the_value_and_never_the_command_the_path_or_the_host(
    argument: JsonValue, shown: JsonValue
) -> None:
    assert masks().json(argument) == shown


def test_what_was_hidden_is_named_once() -> None:
    subject = masks()
    subject.json({"a": SECRETS["TOKEN"], "b": [SECRETS["TOKEN"]], "host": "intranet.example"})
    assert list(subject.used) == ["<secret:TOKEN>"]


def test_without_secrets_nothing_changes() -> None:
    value: JsonValue = {"a": ["b", 1, None, True]}
    assert Masks(None).json(value) is value
    assert Masks(Secrets()).text("x") == "x"
