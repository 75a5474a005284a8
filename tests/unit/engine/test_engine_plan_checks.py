import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.config.loader import load_pipeline
from aish.engine.plan.validation.names import circles
from aish.engine.plan.validation.validate import (
    argument_check,
    check_file,
    cross_check,
    run_check,
    wildcard_check,
)

HEAD = "aish: 1\nmodels: {local: {embedded: smollm2}}\n"
SERVERS = "mcp: {servers: {fs: {pack: fs, root: .}, web: {url: 'http://127.0.0.1/mcp'}}}\n"


def problems(text: str, folder: Path) -> list[str]:
    file = folder / "p.yaml"
    file.write_text(text)
    found = cross_check(load_pipeline(file))
    level = {True: "warning: ", False: ""}
    return [f"{level[problem.warning]}{problem.path}: {problem.message}" for problem in found]


def hints(text: str, folder: Path) -> list[str | None]:
    file = folder / "p.yaml"
    file.write_text(text)
    return [problem.hint for problem in cross_check(load_pipeline(file))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("prompt: x y\ncontext: {max_tokens: 999, summary_model: local}", []),
        (
            "prompt: x y\ncontext: {max_tokens: 999, summary_model: locla}",
            ["context.summary_model: unknown model `locla`"],
        ),
        (
            (
                "context: {max_tokens: 999, summary_model: locla}\n"
                "steps: [{id: a, prompt: x y}, {id: b, prompt: x y},"
                " {id: c, prompt: x y, context: {summary_model: ocal}}]"
            ),
            [
                "context.summary_model: unknown model `locla`",
                "steps[2].context.summary_model: unknown model `ocal`",
            ],
        ),
        (
            "prompt: x y\ncontext: {summary_model: local}",
            ["warning: context.summary_model: there are no summaries without `max_tokens`"],
        ),
    ],
)
def test_a_model_that_summarises_is_known_and_has_a_reason(
    text: str, found: list[str], tmp_path: Path
) -> None:
    assert problems(HEAD + text, tmp_path) == found


@pytest.mark.requirement("F11")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("steps: [{id: a, prompt: x y, model: locla}]", ["steps[0].model: unknown model `locla`"]),
        ("prompt: x y\nmodel: locla", ["model: unknown model `locla`"]),
        ("steps: [{id: a, run: ls, needs: [b]}]", ["steps[0].needs[0]: unknown step `b`"]),
        ("steps: [{id: a, run: ls, needs: [a]}]", ["steps[0]: the step `a` depends on itself"]),
        (
            (
                "steps: [{id: a, run: l, needs: [b]}, {id: b, run: l, needs: [c]}, "
                "{id: c, run: 'x {{ steps.a.text }}'}]"
            ),
            ["steps[0]: circular dependency between steps: `a` → `b` → `c` → `a`"],
        ),
        (
            "steps: [{id: a, run: ls}, {id: a, run: ls}]",
            ["steps[1].id: the id `a` is also"],
        ),
        ("call: fs__file_read", []),
        ("call: fs__file_raed", ["call: the pack `fs` has no tool `file_raed`"]),
        ("call: sf__x", ["call: unknown server `sf`"]),
        ("call: x", ["call: `x` has no `__` between server and tool"]),
        ("prompt: x y\ntools: ['f?__*', '*__x']", []),
        (
            "prompt: x y\ntools: ['shell__*']",
            ["tools[0]: `shell__*` can match no"],
        ),
        ("prompt: x y\ntool_choice: fs__file_read", []),
        (
            "prompt: x y\ntools: [fs__x]\ntool_choice: fs__file_read",
            ["tool_choice: `fs__file_read` is not am"],
        ),
        (
            "prompt: x y\ntools: []\ntool_choice: required",
            ["tool_choice: a tool is required"],
        ),
        ("prompt: '{{ inputs.a }}'", ["prompt: `inputs.a` is not defined"]),
        ("inputs: {a: {}}\nprompt: '{{ inputs.a }}'", []),
        ("inputs: {a: {}}\nprompt: '{{ inputs[\"a\"] }}'", []),
        ("inputs: {a: {}}\nprompt: '{{ inputs | tojson }}'", []),
        ("inputs: {a: {}}\nprompt: '{% for k, v in inputs.items() %}{{ k }}{% endfor %}'", []),
        ("inputs: {a: {}}\nprompt: x y", ["warning: inputs.a: the input `a` is used nowhere"]),
        ("env: [A]\nprompt: '{{ env.A }}{{ env.B }}'", ["prompt: `env.B` is not defined"]),
        ("prompt: '{{ stdin }}{{ stdin.upper() }}'", []),
        ("prompt: '{% for i in range(3) %}{{ i }}{{ loop.index }}{% endfor %}'", []),
        ("prompt: '{% set x = 1 %}{{ x }}{{ y }}'", ["prompt: `y` is not defined"]),
        ("prompt: '{{ outputs.a }}'", ["prompt: `outputs` is not defined"]),
        ("steps: [{id: a-b, run: ls}, {id: c, run: \"{{ steps['a-b'].output.stdout }}\"}]", []),
        (
            "steps: [{id: a, run: ls}, {id: c, run: '{{ steps.a.output.out }}'}]",
            ["steps[1].run: `steps.a.output.out`"],
        ),
        (
            "steps: [{id: a, run: ls}]\noutputs: {x: {y: ['{{ steps.b.text }}']}}",
            ["outputs.x.y[0]: `steps.b`"],
        ),
        (
            "inputs: {a: {type: integer, default: x}}\nprompt: '{{ inputs.a }}'",
            ["inputs.a.default: the"],
        ),
        (
            "prompt: x y\noutput: {schema: {type: object, required: 5}}",
            ["output.schema.required: the ans"],
        ),
        (
            "prompt: x y\noutput: {schema: {$ref: 'https://x.example/s.json'}}",
            ['output.schema["$ref"]: the ans'],
        ),
        ("env: [A]\nsecrets: [A]\nrun: ls", ["env[0]: `A` is under `env` and under `secrets`"]),
    ],
)
def test_what_no_schema_can_say_is_said(text: str, found: list[str], tmp_path: Path) -> None:
    said = problems(HEAD + SERVERS + text + "\n", tmp_path)
    assert len(said) == len(found)
    assert [message[: len(start)] for message, start in zip(said, found, strict=True)] == found


@pytest.mark.parametrize(
    ("url", "count"),
    [
        ("nowhere", 1),
        ("ftp://a/mcp", 1),
        ("http:///mcp", 1),
        ("HTTP://a/mcp", 0),
        ("https://a:1/", 0),
        ("${URL}", 0),
    ],
)
def test_a_server_is_at_a_url_of_the_web(url: str, count: int, tmp_path: Path) -> None:
    found = problems(f"{HEAD}mcp: {{servers: {{w: {{url: '{url}'}}}}}}\nrun: ls\n", tmp_path)
    assert found == ["mcp.servers.w.url: this is not the URL of a server"] * count


@pytest.mark.parametrize("key", ["auto_approve", "ask", "deny", "parallel", "idempotent"])
def test_a_rule_that_can_match_no_server_is_an_error(key: str, tmp_path: Path) -> None:
    listed = "[fs__x, '*__x', shell__run, fss__x]"
    rules = f"mcp: {{servers: {{fs: {{pack: fs, root: .}}}}, {key}: {listed}}}\n"
    found = problems(f"{HEAD}{rules}run: ls\n", tmp_path)
    assert found == [f"mcp.{key}[3]: `fss__x` can match no server of this file"]
    assert hints(f"{HEAD}{rules}run: ls\n", tmp_path) == ["did you mean `fs`"]


def test_models_that_fall_back_in_a_circle_are_an_error(tmp_path: Path) -> None:
    models = "".join(
        f"  {name}: {{embedded: smollm2, fallback: [{after}]}}\n"
        for name, after in (("a", "b"), ("b", "c"), ("c", "b"))
    )
    found = problems(f"aish: 1\nmodels:\n{models}model: a\nprompt: x y\n", tmp_path)
    assert found == ["models.b.fallback: circular fallback between models: `b` → `c` → `b`"]


@pytest.mark.parametrize("alias", ["a__b", "a-", "a_"])
def test_an_alias_that_could_be_misread_is_refused(alias: str, tmp_path: Path) -> None:
    text = f"aish: 1\nmcp: {{servers: {{{alias}: {{pack: fs, root: .}}}}}}\nrun: ls\n"
    assert [found.partition(":")[0] for found in problems(text, tmp_path)] == [
        f"mcp.servers.{alias}"
    ]


def test_shell_is_a_reserved_alias(tmp_path: Path) -> None:
    text = "aish: 1\nmcp: {servers: {shell: {pack: fs, root: .}}}\nrun: ls\n"
    assert "`shell` is reserved" in problems(text, tmp_path)[0]


def test_a_token_in_the_file_and_unchecked_certificates_are_warnings(tmp_path: Path) -> None:
    text = (
        "aish: 1\n"
        "models: {a: {base_url: 'https://h/v1', model: m, verify_tls: false}}\n"
        "mcp: {servers: {w: {url: 'https://h/mcp', auth_token: abcdefgh, verify_tls: false}}}\n"
        "prompt: x y\n"
    )
    assert problems(text, tmp_path) == [
        "warning: models.a.verify_tls: the certificate of this endpoint is not checked",
        "warning: mcp.servers.w.auth_token: the file contains a token",
        "warning: mcp.servers.w.verify_tls: the certificate of this server is not checked",
    ]


def test_authorities_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_text("none")
    text = (
        "aish: 1\n"
        "models: {a: {base_url: 'https://h/v1', model: m, verify_tls: own.pem}}\n"
        "mcp: {servers: {w: {url: 'https://h/mcp', verify_tls: gone.pem}}}\n"
        "prompt: x y\n"
    )
    first, second = problems(text, tmp_path)
    assert first.startswith("models.a.verify_tls: no authorities in PEM can be read there: ")
    assert second == (
        "mcp.servers.w.verify_tls: no authorities in PEM can be read there:"
        " No such file or directory"
    )


def test_a_password_in_the_url_of_a_server_is_refused(tmp_path: Path) -> None:
    text = "aish: 1\nmcp: {servers: {w: {url: 'https://u:pw@h/mcp'}}}\nrun: ls\n"
    (found,) = problems(text, tmp_path)
    assert "mcp.servers.w.url: a user or a password in a URL would be shown in logs" in found


def test_a_bad_template_in_a_file_is_placed_where_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.j2").write_text("a\n{% if %}\n")
    text = HEAD + "prompts: {x: {file: x.j2}}\nsteps: [{id: a, prompt: {name: x}}]\n"
    (found,) = problems(text, tmp_path)
    assert found.startswith("prompts.x.file: not a template in line 2: ")


def test_the_name_that_was_meant_is_offered(tmp_path: Path) -> None:
    text = (
        f"{HEAD}inputs: {{since: {{}}}}\n"
        "steps: [{id: notes-1, run: '{{ inputs.snice }}'}, {id: b, run: '{{ since }}'},"
        " {id: c, run: '{{ steps.notes-1.text }}'}, {id: d, run: '{{ steps.b.txet }}'}]\n"
    )
    assert [hint for hint in hints(text, tmp_path) if hint] == [
        "did you mean `inputs.since`",
        "did you mean `inputs.since`",
        "write `steps['notes-1']`: a `-` in a dotted name is a minus",
        "did you mean `steps.b.text`",
    ]


def test_a_file_that_cannot_be_read_is_not_looked_at_further(tmp_path: Path) -> None:
    pipeline, found = check_file(tmp_path / "x.yaml")
    assert pipeline is None
    assert [problem.message for problem in found] == ["no such file"]


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdefg"), max_size=4)))
def test_a_graph_has_circles_only_if_something_leads_back(graph: dict[str, list[str]]) -> None:
    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(graph.get(start, []))
        while ahead:
            name = ahead.pop()
            if name not in seen:
                seen.add(name)
                ahead += graph.get(name, [])
        return seen

    found = circles(graph)
    assert bool(found) == any(name in reach(name) for name in graph)
    for circle in found:
        for name, after in zip(circle, (*circle[1:], circle[0]), strict=True):
            assert after in graph[name]


@pytest.mark.parametrize(
    ("server", "rules", "missed"),
    [
        ("", "auto_approve: [repo__file_*]", ["write", "delete", "rename"]),
        ("", "auto_approve: [repo__file_*, repo__file_write]", ["delete", "rename"]),
        ("", "auto_approve: [repo__file_*], ask: ['*__file_delete']", ["write", "rename"]),
        (", exclude: [file_delete, file_rename]", "auto_approve: [repo__file_*]", ["write"]),
        (", tools: ['file_r*']", "auto_approve: [repo__file_*]", ["rename"]),
        (", trust: true", "auto_approve: [repo__file_*]", []),
        ("", "auto_approve: [repo__file_re*]", ["rename"]),
        ("", "auto_approve: [repo__*]", ["write", "delete", "rename"]),
        ("", "auto_approve: ['*__*']", ["write", "delete", "rename"]),
        (", trust: true", "auto_approve: ['*__*']", []),
        ("", "auto_approve: [repo__*], deny: [repo__file_*]", []),
        ("", "auto_approve: [other__*]", []),
    ],
)
def test_a_wildcard_that_does_not_approve_what_is_destructive_is_odd(
    server: str, rules: str, missed: list[str], tmp_path: Path
) -> None:
    text = f"{HEAD}mcp: {{servers: {{repo: {{pack: fs{server}}}}}, {rules}}}\nrun: ls\n"
    file = tmp_path / "p.yaml"
    file.write_text(text)
    said = wildcard_check(load_pipeline(file))
    listed = ", ".join(f"`repo__file_{name}`" for name in missed)
    assert [problem.warning for problem in said] == [True] * bool(missed)
    for problem in said:
        assert problem.path == "mcp.auto_approve[0]"
        assert f"does not approve {listed}: " in problem.message
        assert problem.hint == (
            "wildcards do not approve destructive tools: add a rule such as "
            f"`repo__file_{missed[0]}`"
        )


def test_arguments_that_a_tool_of_a_pack_does_not_take_are_found(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        f"{HEAD}mcp: {{servers: {{repo: {{pack: fs, root: .}}, ai: {{pack: ml}}}}}}\n"
        "steps:\n"
        "  - {id: a, call: repo__file_read, with: {pth: x}}\n"
        "  - {id: b, call: repo__file_read, with: {path: '{{ steps.a.text }}', start_line: one}}\n"
        "  - {id: c, call: repo__file_read, with: {path: x, start_line: '{{ steps.a.text }}'}}\n"
        "  - {id: d, call: repo__file_read}\n"
        "  - {id: e, call: ai__ml_generate, with: {prompt: hi, model: nope}}\n"
        "  - {id: f, call: ai__ml_generate, with: {prompt: hi, model: '{{ steps.a.text }}'}}\n"
        "  - {id: g, call: other__any, with: {x: 1}}\n"
    )
    found = [(one.path, one.message) for one in argument_check(load_pipeline(file))]
    misfit = "does not fit the schema of `repo__file_read`: "
    assert found == [
        ("steps[0].with.path", f"{misfit}is required"),
        (
            "steps[0].with.pth",
            f"{misfit}is not a known key; known here: path, start_line, end_line",
        ),
        ("steps[1].with.start_line", f"{misfit}'one' is not of type 'integer'"),
        ("steps[3].with.path", f"{misfit}is required"),
        ("steps[4].with.model", "unknown model `nope`"),
    ]


@pytest.mark.parametrize("named", ["call: {}", "prompt: Say something.\ntool_choice: {}"])
@pytest.mark.parametrize("tool", ["repo__file_*", "repo__file_rea?", "repo__file_raed"])
def test_a_step_names_one_tool_of_a_pack_exactly(tool: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    step = named.format(f'"{tool}"')
    file.write_text(f"{HEAD}mcp: {{servers: {{repo: {{pack: [fs, edit], root: .}}}}}}\n{step}\n")
    (problem,) = cross_check(load_pipeline(file))
    assert not problem.warning
    name = tool.removeprefix("repo__")
    assert problem.message == f"the packs `fs`, `edit` have no tool `{name}`"


def test_a_glob_that_matches_no_tool_of_a_pack_is_odd(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        f"{HEAD}mcp:\n"
        "  servers:\n"
        "    repo: {pack: [fs, edit], root: ., tools: ['file_*', dir_lits]}\n"
        "    other: {command: [x]}\n"
        "  auto_approve: [repo__file_raed, repo__file_read, repo__read_file, other__x, '*__x']\n"
        "  deny: ['repo__delete*', {tool: repo__file_delte, when: {path: x}}]\n"
        "policy_tests: [{tool: repo__file_writ, expect: ask}]\n"
        "steps: [{id: a, prompt: Say something., tools: [repo__file_reed, 'repo__*', other__x]}]\n"
    )
    found = {one.path: one for one in wildcard_check(load_pipeline(file))}
    assert {path: one.hint for path, one in found.items()} == {
        "mcp.servers.repo.tools[1]": "did you mean `dir_list`",
        "mcp.auto_approve[0]": "did you mean `file_read`",
        "mcp.deny[0]": found["mcp.deny[0]"].hint,
        "mcp.deny[1]": "did you mean `file_delete`",
        "policy_tests[0].tool": "did you mean `file_write`",
        "steps[0].tools[0]": "did you mean `file_read`",
    }
    assert all(one.warning for one in found.values())
    assert found["mcp.deny[0]"].message == (
        "`repo__delete*` matches no tool: the packs `fs`, `edit` have no tool `delete*`"
    )


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ("auto_approve: ['s__{a,b}']", "{a,b}"),
        ("auto_approve: ['repo__{file_read,dir_list}']", "{file_read,dir_list}"),
        ("deny: ['s__[ab]']", "[ab]"),
        ("ask: [{tool: s__a, when: {path: 'docs/*.{md,txt}'}}]", "{md,txt}"),
        ("ask: [{tool: s__a, when: {path: 'app/[id]/{x}.tsx'}}]", ""),
        ("ask: ['s__a*', 's__?']", ""),
    ],
)
def test_braces_and_brackets_in_a_glob_are_odd(rules: str, found: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    servers = "{repo: {pack: fs, root: .}, s: {command: [x]}}"
    file.write_text(f"{HEAD}mcp: {{servers: {servers}, {rules}}}\nrun: ls\n")
    pipeline, problems = check_file(file)
    assert pipeline is not None
    said = [*problems, *wildcard_check(pipeline)]
    assert [one.message.partition(" has no meaning")[0] for one in said] == (
        [f"`{found}`"] if found else []
    )
    assert all(one.warning for one in said)


@pytest.mark.parametrize(("serve", "errors"), [("serve: {}\n", 1), ("", 0)])
def test_no_server_has_the_alias_of_the_pipelines_that_are_served(
    serve: str, errors: int, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"{HEAD}mcp: {{servers: {{pipeline: {{command: [x]}}}}}}\nrun: ls\n{serve}")
    _, problems = check_file(file)
    assert [one.path for one in problems] == ["mcp.servers.pipeline"] * errors


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("git log **", "`--output`, which writes a file"),
        ("git **", "`--output`, which writes a file"),
        ("git fetch origin **", "`--upload-pack`, which runs a program"),
        ("find . **", "`-exec`, which runs a program"),
        ("python* **", "`-c`, which runs code"),
        ("git status **", ""),
        ("git log *", ""),
        ("echo **", ""),
    ],
)
@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("mcp: {auto_approve: [{tool: shell__run, command: %s}]}", "mcp.auto_approve[0]"),
        ("mcp: {deny: [{tool: shell__run, command: %s}]}", ""),
        ("shell: {auto_approve: [%s]}", "shell.auto_approve[0]"),
    ],
)
def test_a_rule_for_any_further_words_that_approves_more_than_it_appears_to_is_odd(
    words: str, option: str, given: str, path: str, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"{HEAD}{given % json.dumps(words.split())}\nrun: ls\n")
    found = [
        (problem.path, problem.warning, problem.message)
        for problem in wildcard_check(load_pipeline(file))
    ]
    expected = (path, True, f"`{words}` also approves the option {option}")
    assert found == ([expected] if option and path else [])


@pytest.mark.parametrize(
    ("rules", "on_ask", "run", "warned"),
    [
        ("[]", "deny", '[git, log, "-1"]', True),
        ("[]", "deny", "git log -1", True),
        ("[{tool: shell__run, command: [git, log]}]", "deny", '[git, log, "-1"]', True),
        ("[{tool: shell__run, command: [git, log, '*']}]", "deny", "[git, log, x]", False),
        ("[shell__run]", "deny", '[git, log, "-1"]', False),
        ("[]", "wait", '[git, log, "-1"]', False),
        ("[]", "deny", '[git, log, "{{ inputs.x }}"]', False),
    ],
)
def test_a_command_of_the_file_that_no_rule_approves_is_told_with_its_rule(
    rules: str, on_ask: str, run: str, *, warned: bool, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    head = f"{HEAD}inputs: {{x: {{default: y}}}}\non_ask: {on_ask}\n"
    file.write_text(f"{head}mcp: {{auto_approve: {rules}}}\nrun: {run}\n")
    found = run_check(load_pipeline(file))
    assert [problem.path for problem in found] == ["run"] * warned
    for problem in found:
        assert problem.warning
        rule, _, rest = (
            (problem.hint or "").removeprefix("`").partition("` under `mcp.auto_approve`")
        )
        assert rest == " approves this"
        file.write_text(f"{head}mcp: {{auto_approve: [{rule}]}}\nrun: {run}\n")
        assert run_check(load_pipeline(file)) == ()


@pytest.mark.parametrize(
    ("token", "root", "read_by"),
    [
        ("alice.token", ".", "fs"),
        ("tokens/alice", ".", "fs"),
        ("link/alice", "served", "fs"),
        ("served/alice", "way", "fs"),
        ("tokens/alice", "served", None),
        (".aish/tokens/alice", ".", None),
        ("tokens/alice.pem", ".", None),
    ],
)
def test_no_pack_has_a_token_or_the_state_of_the_server_below_its_root(
    token: str, root: str, read_by: str | None, tmp_path: Path
) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "link").symlink_to("served")
    (tmp_path / "way").symlink_to("served")
    servers = f"aish: 1\nmcp: {{servers: {{fs: {{pack: fs, root: {root}}}}}}}\n"
    tokens = f"serve: {{state: {token}, clients: {{alice: {{token_file: {token}}}}}}}\n"
    control = f"control: {{tokens: {{ci: {{token_file: {token}, scopes: [answer]}}}}}}\n"

    found = problems(servers + tokens + control, tmp_path)

    read = f"the tools of `{read_by}` could read"
    expected = [
        f"serve.state: {read} keys and tokens: it is below their root",
        f"serve.clients.alice.token_file: {read} the token: it is below their root",
        f"control.tokens.ci.token_file: {read} the token: it is below their root",
    ]
    assert found == (expected if read_by else [])


@pytest.mark.parametrize(("packs", "is_open"), [("[fs]", False), ("[fs, shell]", True)])
def test_no_command_has_the_state_of_the_server_below_its_root(
    packs: str, *, is_open: bool, tmp_path: Path
) -> None:
    servers = f"aish: 1\nmcp: {{servers: {{box: {{pack: {packs}, root: .}}}}}}\n"
    found = problems(f"{servers}serve: {{state: .aish/state}}\n", tmp_path)
    said = "the tools of `box` could read keys and tokens: it is below their root"
    assert found == [f"serve.state: {said}"] * is_open


@pytest.mark.parametrize("line", ["9" * 5_000, "1e999", "²"])
def test_a_line_of_an_annotation_is_no_number_of_any_size(line: str, tmp_path: Path) -> None:
    found = problems(
        f"aish: 1\nname: p\nrun: [x]\nannotations: [{{path: a, line: '{line}', message: m}}]\n",
        tmp_path,
    )
    assert found == [f"annotations[0].line: `{line}` is not a line number"]
