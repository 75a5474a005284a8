"""Decodes the tree of a whole file into a `Pipeline`.

One function for each section of a file. Values are known to fit the schema here; what no schema can
check is reported with its position.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from aish.config.documents import Documents
from aish.config.fields import Table, absolute_path
from aish.config.file_schema import builtin_options
from aish.config.model import (
    EMBEDDED_TOKENS,
    FIELDS,
    PLATFORM_SHELL,
    Annotation,
    Attachment,
    AuditSettings,
    AuthSettings,
    CacheUse,
    CallOutcome,
    CallStep,
    Case,
    CaseRepeat,
    CaseRows,
    CassetteSettings,
    Context,
    ContextFile,
    ControlSettings,
    ControlToken,
    Delivery,
    Effort,
    Expectation,
    ExpectKind,
    FinishUse,
    Flow,
    Foreach,
    ForwardKind,
    JsonSchemaUse,
    KeySource,
    Limits,
    LockIgnored,
    LoopLimits,
    MaxFailures,
    ModelEntry,
    ModelTimeout,
    NotifySettings,
    OnDenied,
    OnError,
    OnToolError,
    OnWait,
    Output,
    Pipeline,
    PipelineStep,
    Price,
    Prompt,
    PromptStep,
    ProtocolChoice,
    Quoted,
    QuoteSource,
    Refresh,
    Retrieval,
    RetryOn,
    RetryPolicy,
    RunStep,
    ServeClient,
    ServedPipeline,
    ServeLimits,
    ServerEntry,
    ServerPrompt,
    ServerSandbox,
    ServerTimeout,
    ServeSettings,
    Shell,
    Step,
    StepRetry,
    ToolMatch,
)
from aish.config.yaml_tree import (
    UNREADABLE,
    BrokenNode,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    is_whole,
    join,
    paths_of_broken_nodes,
    positions_of,
    to_data,
)
from aish.core.errors import Problem, UnavailableError, UsageError, did_you_mean
from aish.core.events import OnDuplicate
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.phrases import backticked, counted
from aish.core.protocols import Asking, OnAsk
from aish.core.rules import (
    Exfiltration,
    FlowRule,
    FlowSettings,
    HeldThen,
    PolicyTest,
    RuleEntry,
    RuleLists,
)
from aish.core.sources import Label
from aish.core.wires import CHAT, WIRES, Wire
from aish.net.oauth.settings import AssertionAudience, OAuthSettings, SecretPlace

_OF_ITEMS = ("as", "key", "on_duplicate", "concurrency", "max_failures")
CONTEXTS = frozenset({"inputs", "env", "steps", "stdin", "index"})
"""What templates call something else than an item."""


def decode_flow(table: Table, *, at_top: bool = False) -> Flow:
    """The fields that all kinds of steps share; the top-level `limits` are the run's."""
    return Flow(
        when=table.text("when"),
        foreach=_foreach(table),
        retry=_retry(table),
        timeout=table.seconds("timeout", 0.0) or None,
        on_error=cast("OnError", table.text("on_error") or "fail"),
        limits=Limits() if at_top else decode_limits(table.part("limits")),
    )


def decode_limits(limits: Table) -> Limits:
    cost = limits.data("cost_usd")
    return Limits(
        time=limits.seconds("time", 0.0) or None,
        tokens=limits.whole("tokens", 0) or None,
        cost_usd=float(cost) if isinstance(cost, (int, float)) else None,
        tool_calls=limits.whole("tool_calls", 0) if limits.has("tool_calls") else None,
        turns=limits.whole("turns", 0) or None,
    )


def decode_context(table: Table, default: Context) -> Context:
    """The bounds and files of a conversation in `table`, or those of the enclosing level."""
    context = table.part("context")
    return Context(
        max_tokens=context.whole("max_tokens", default.max_tokens or 0) or None,
        keep=context.whole("keep", default.keep),
        summary_model=context.text("summary_model") or default.summary_model,
        files=tuple(_context_files(context)) if context.has("files") else default.files,
        refresh=cast("Refresh", context.text("refresh") or default.refresh),
        file_limit=context.size("file_limit", default.file_limit),
        round_limit=context.size("round_limit", default.round_limit),
    )


_WILDCARDS = re.compile(r"[*?]")


def _context_files(context: Table) -> Iterator[ContextFile]:
    """The files: one text, or a list of texts and of `{path: …}`; a text may be a glob.

    Each is relative to the file that it is written in, which may be an extended one.
    """
    alone = context.text("files")
    if alone is not None:
        glob = _WILDCARDS.search(alone) is not None
        yield ContextFile(alone, context.folder_of("files"), context.place("files"), glob)
    for path, node in context.items("files"):
        folder = Path(node.position.file).parent
        if isinstance(node, MappingNode):
            yield _part_of_file(Table(node, path, context.problems), folder)
        elif isinstance(node, ScalarNode):
            text = str(node.value)
            yield ContextFile(text, folder, path, _WILDCARDS.search(text) is not None)


def _part_of_file(entry: Table, folder: Path) -> ContextFile:
    chosen = [key for key in ("lines", "name", "show") if entry.has(key)]
    if len(chosen) > 1:
        message = (
            f"an entry shows one part of a file, and this has {backticked(chosen, by=' and ')}"
        )
        entry.problem(chosen[1], message, "write two entries with the same `path`")
    lines = entry.data("lines")
    # The schema says two whole numbers.
    numbers = lines if isinstance(lines, list) else []
    span = [int(number) for number in numbers if isinstance(number, (int, float))]
    if span and span[-1] < span[0]:
        entry.problem("lines", f"the last line, {span[-1]}, is before the first, {span[0]}")
    return ContextFile(
        path=entry.text("path") or "",
        folder=folder,
        where=entry.path,
        lines=(span[0], span[-1]) if span else None,
        name=entry.text("name"),
        skeleton=entry.text("show") == "skeleton",
    )


def _retry(table: Table) -> StepRetry:
    retry = table.part("retry")
    on = cast("tuple[RetryOn, ...]", retry.texts("on"))
    return StepRetry(retry.whole("attempts", StepRetry().attempts), on)


def _foreach(table: Table) -> Foreach | None:
    if not table.has("foreach"):
        for key in () if table.is_broken("foreach") else _OF_ITEMS:
            if table.has(key):
                table.problem(key, f"`{key}` is for steps with `foreach`")
        return None
    name = table.text("as") or "item"
    if name in CONTEXTS:
        table.problem("as", f"`{name}` is a reserved name in templates")
    source = table.child("foreach")
    broken = source is not None and (source.is_broken("file") or source.is_broken("glob"))
    if source is not None and source.has("file") == source.has("glob") and not broken:
        table.problem("foreach", "`foreach` needs an expression, `{file: …}` or `{glob: …}`")
    if source is not None and source.has("delimiter") and not source.has("file"):
        source.problem("delimiter", "`delimiter` goes with `file`")
    if table.has("on_duplicate") and not table.has("key"):
        message = "`on_duplicate` is for items with a `key`"
        table.problem("on_duplicate", message)
    return Foreach(
        expression=table.text("foreach"),
        file=None if source is None else source.text("file"),
        delimiter=None if source is None else source.text("delimiter"),
        glob=None if source is None else source.text("glob"),
        folder=table.folder_of("foreach"),
        name=name,
        key=table.text("key"),
        on_duplicate=cast("OnDuplicate", table.text("on_duplicate") or "fail"),
        concurrency=table.whole("concurrency", 0) or None,
        max_failures=_max_failures(table),
    )


def _max_failures(table: Table) -> MaxFailures | None:
    text = table.text("max_failures")
    if text is None:
        has = table.has("max_failures")
        return MaxFailures(count=table.whole("max_failures", 0)) if has else None
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 2.0
    if share > 1:
        table.problem("max_failures", f"`{text}` is not a percentage such as `5%`")
    return MaxFailures(share=share)


ANNOTATIONS = "annotations"


def decode_annotations(top: Table) -> tuple[Annotation, ...]:
    """The value of `annotations`: an expression, or a list."""
    expression = top.text(ANNOTATIONS)
    if expression is not None:
        return (Annotation(ANNOTATIONS, expression),)
    return tuple(
        _annotation(Table(node, path, top.problems))
        for path, node in top.items(ANNOTATIONS)
        if isinstance(node, MappingNode)
    )


def _annotation(table: Table) -> Annotation:
    name = table.text("as") or "item"
    if name in CONTEXTS:
        table.problem("as", f"`{name}` is a reserved name in templates")
    if table.has("as") and not table.has("foreach"):
        table.problem("as", "`as` is for annotations with `foreach`")
    fields = tuple((key, table.data(key)) for key in FIELDS if table.has(key))
    return Annotation(table.path, table.text("foreach"), name, fields)


_ONE_KIND = "an expectation is a mapping with one kind"
# The kinds that look at a text or a value, by the key of the longer form that holds what they want.
_WANTED = {
    "contains": "value",
    "not_contains": "value",
    "equals": "value",
    "matches": "regex",
    "schema": "schema",
    "snapshot": "file",
}
# Names that the templates of expectations use for other values.
_TAKEN = frozenset(
    [
        "inputs",
        "env",
        "steps",
        "stdin",
        "outputs",
        "index",
        "key",
        "text",
        "output",
        "status",
        "tool_calls",
        "usage",
        "cost_usd",
        "seconds",
    ]
)
_LONG_FORM = frozenset({"path", "schema"})


def decode_expect(table: Table, documents: Documents) -> tuple[Expectation, ...]:
    expectations = (
        _expectation(Table(node, path, table.problems), documents)
        for path, node in table.items("expect")
        if isinstance(node, MappingNode)
    )
    return tuple(expectation for expectation in expectations if expectation is not None)


def decode_tests(top: Table, documents: Documents) -> tuple[Case, ...]:
    return tuple(
        _case(Table(node, path, top.problems), documents)
        for path, node in top.items("tests")
        if isinstance(node, MappingNode)
    )


def decode_cassette(table: Table) -> CassetteSettings | None:
    path = table.absolute("cassette")
    if path is not None:
        return CassetteSettings(path, name=table.text("cassette") or "")
    settings = table.child("cassette")
    path = None if settings is None else settings.absolute("path")
    if settings is None or path is None:
        return None
    return CassetteSettings(
        path=path,
        ignore=settings.texts("ignore"),
        strict=settings.flag("strict", default=True) if settings.has("strict") else None,
        allow=settings.texts("allow"),
        name=settings.text("path") or "",
    )


def decode_control(table: Table) -> ControlSettings:
    """Read `control`: listeners, tokens, and who is notified of questions."""
    tokens = (
        ControlToken(name, one.text("token_env"), one.absolute("token_file"), one.texts("scopes"))
        for name, one in table.part("tokens").tables()
    )
    notify = table.child("notify")
    return ControlSettings(
        table.texts("listen"),
        table.texts("hosts"),
        table.texts("origins"),
        tuple(tokens),
        None if notify is None else NotifySettings(notify.texts("command"), notify.text("url_env")),
    )


_SERVED = (
    ("tools", "tool", "alias__tool"),
    ("resources", "resource", "alias__uri"),
    ("prompts", "prompt", "alias__name"),
)


_STDIO = "stdio"


def decode_serve(table: Table) -> ServeSettings:
    """Read what `aish serve` offers of the file, and how."""
    limits, audit, usual = table.part("limits"), table.part("audit"), ServeLimits()
    clients = tuple(
        ServeClient(
            name,
            one.text("token_env"),
            one.absolute("token_file"),
            one.texts("tools"),
            one.texts("scopes") if one.has("scopes") else None,
        )
        for name, one in table.part("clients").tables()
    )
    if any(client.name == _STDIO for client in clients):
        # The answers to its calls would be those of the client at standard streams.
        message = f"`{_STDIO}` is the client that has started the server"
        table.part("clients").problem(_STDIO, message, "give it another name")
    for part in (table, *(client for _, client in table.part("clients").tables())):
        for key, kind, form in _SERVED:
            for glob in part.texts(key) if part is table or key == "tools" else ():
                if not all(glob.partition("__")):
                    part.problem(key, f"`{glob}` matches no {kind}", f"write `{form}`")
    forward = cast("tuple[ForwardKind, ...]", table.texts("forward"))
    return ServeSettings(
        table.text("name"),
        table.text("instructions"),
        "plain" if table.text("names") == "plain" else "prefixed",
        table.texts("tools"),
        tuple("page" if way == "page" else "elicit" for way in table.texts("ask"))
        if table.has("ask")
        else ServeSettings().ask,
        table.seconds("hold", ServeSettings().hold),
        table.absolute("state"),
        ServeLimits(
            limits.size("message", usual.message),
            limits.seconds("receive", usual.receive),
            limits.whole("sessions", usual.sessions),
            limits.seconds("idle", usual.idle),
            limits.whole("http_connections", usual.http_connections),
            limits.whole("connections", usual.connections),
            limits.whole("session_calls", usual.session_calls),
            limits.whole("calls", usual.calls),
            limits.whole("waiting", usual.waiting),
            limits.whole("queued", usual.queued),
            limits.seconds("drain", usual.drain),
            limits.whole("pipelines", usual.pipelines),
            limits.whole("children", usual.children),
        ),
        AuditSettings(
            audit.absolute("path"),
            audit.size("rotate", AuditSettings().rotate),
            audit.whole("keep", AuditSettings().keep),
        ),
        clients,
        table.texts("hosts"),
        table.texts("origins"),
        tuple(_listeners(table)),
        forward=forward if table.has("forward") else ServeSettings().forward,
        pipelines=tuple(_pipelines_to_serve(table)),
        resources=table.texts("resources"),
        prompts=table.texts("prompts"),
        auth=_auth(table),
    )


def _auth(table: Table) -> AuthSettings | None:
    """Read whose tokens let clients in; reports what does not go with that."""
    part, clients = table.child("auth"), table.part("clients")
    scoped = [name for name, one in clients.tables() if one.has("scopes")]
    if part is None:
        for name in scoped:
            message = "only tokens of an issuer have scopes, and the file names none"
            clients.part(name).problem("scopes", message, "add `serve.auth`")
        return None
    # Imported where a file has such an entry only.
    from aish.net.oauth.metadata import is_secure

    for key in ("issuer", "jwks", "resource"):
        url = part.text(key)
        if url is None:
            continue
        if not is_secure(url):
            hint = "write `https://…`; `http://` is for this machine"
            part.problem(key, f"`{url}` is not an address that can be used here", hint)
        elif key != "jwks" and "?" in url:
            part.problem(key, f"`{url}` has a query", "leave out what follows the path")
    if not scoped:
        hint = "for example `readers: {scopes: [tools:read], tools: [repo__file_read]}`"
        message = "no token would be let in: no entry of `serve.clients` has `scopes`"
        part.problem(None, message, hint)
    for text in table.texts("listen"):
        if not text.startswith(("http://", "http+unix:")):
            message = f"`{text}` has no place for a token of an issuer"
            hint = "`serve.auth` goes with `http://HOST:PORT/mcp` and `http+unix:PATH`"
            table.problem("listen", message, hint)
    return AuthSettings(
        part.text("issuer") or "",
        part.texts("audience"),
        part.text("jwks"),
        part.text("resource"),
        part.texts("scopes") if part.has("scopes") else None,
        part.flag("step_up", default=False),
        part.flag("scopes_supported", default=True),
    )


_LISTENER = re.compile(r"stdio\Z|(?P<tcp>(?:http|tcp)://)|(?P<unix>(?:http\+)?unix:)")


def _listeners(table: Table) -> Iterator[str]:
    """The addresses for clients; a relative path of a socket is in the folder of this file."""
    texts = table.texts("listen")
    if not texts:
        return
    # Imported where a file has such an entry only.
    from aish.net.listen.addresses import parse_address, unix_address

    for text in texts:
        match = _LISTENER.match(text)
        if match is None:
            hint = (
                "write `stdio`, `http://HOST:PORT/mcp`, `http+unix:PATH`, `tcp://HOST:PORT` or "
                "`unix:PATH`"
            )
            table.problem("listen", f"`{text}` is not a listening address", hint)
            continue
        rest = text[match.end() :]
        try:
            if match["tcp"]:
                parse_address(rest.partition("/")[0])
            elif match["unix"]:
                path = unix_address(table.folder_of("listen") / rest if rest else Path()).path
                rest = str(path)
        except UsageError as error:
            table.problem("listen", error.message, error.hint)
        yield f"{match[0]}{rest}"


def _pipelines_to_serve(table: Table) -> Iterator[ServedPipeline]:
    """The pipelines that are offered as tools: paths, or mappings with a `file`."""
    for where, node in table.items("pipelines"):
        if isinstance(node, MappingNode):
            entry = Table(node, where, table.problems)
            file = entry.absolute("file")
            if file is not None:
                yield ServedPipeline(
                    file,
                    entry.text("name"),
                    entry.text("description"),
                    entry.flag("task", default=False),
                    entry.flag("read_only", default=False),
                    where,
                )
        elif isinstance(node, ScalarNode) and isinstance(node.value, str):
            folder = Path(node.position.file).parent
            yield ServedPipeline(absolute_path(folder, node.value), where=where)


def _case(table: Table, documents: Documents) -> Case:
    return Case(
        name=table.text("name") or "",
        inputs=table.mapping("inputs"),
        stdin=table.text("stdin"),
        cassette=decode_cassette(table),
        expect=decode_expect(table, documents),
        where=table.path,
        rows=_rows(table),
        repeat=_repeat(table),
    )


def _repeat(table: Table) -> CaseRepeat | None:
    if not table.has("repeat"):
        return None
    settings = table.child("repeat")
    if settings is None:
        return CaseRepeat(table.whole("repeat", 1))
    runs, share = settings.whole("runs", 1), settings.text("pass")
    if share is not None:
        return CaseRepeat(runs, percent=int(share.removesuffix("%")))
    passes = settings.whole("pass", 0) or None
    if passes is not None and passes > runs:
        settings.problem("pass", f"`pass` is {passes}, but there are {counted(runs, 'run')}")
    return CaseRepeat(runs, passes)


def _rows(table: Table) -> CaseRows | None:
    source = table.child("foreach")
    file = None if source is None else source.text("file")
    if source is None or file is None:
        broken = source is not None or table.is_broken("foreach")
        for key in ("as", "key"):
            if table.has(key) and not broken:
                table.problem(key, f"`{key}` is for tests with `foreach`")
        return None
    name = table.text("as") or "item"
    if name in _TAKEN:
        table.problem("as", f"`{name}` is a reserved name in templates")
    folder = source.folder_of("file")
    return CaseRows(file, folder, name, table.text("key"), source.text("delimiter"))


def _expectation(table: Table, documents: Documents) -> Expectation | None:
    kinds = [key for key in table.node.entries if table.has(key)]
    if len(kinds) != 1:
        if kinds:
            named = backticked(kinds, by=" and ")
            table.problem(kinds[1], f"{_ONE_KIND}, and this has {named}", "split it into two items")
        else:
            table.problem(None, f"{_ONE_KIND}, and this has none")
        return None
    kind = cast("ExpectKind", kinds[0])
    if kind in _WANTED:
        return _about_a_value(kind, table, documents)
    if kind == "judge":
        form = table.part(kind)
        rubric, path, model = form.text("rubric"), form.text("path"), form.text("model")
        return Expectation(kind, rubric, where=table.path, path=path, model=model)
    if kind in {"tool_called", "tool_not_called"}:
        node = table.node.entries[kind]
        tool = _tool_match(node, table.place(kind), table)
        return Expectation(kind, where=table.path, tools=(tool,))
    return {"tool_sequence": _sequence, "quoted": _quoted}.get(kind, _maximum)(table, kind)


def _maximum(table: Table, kind: ExpectKind) -> Expectation:
    """A number, or a template of one; or an expression."""
    form = table.child(kind)
    inner, key = (table, str(kind)) if form is None else (form, "value")
    value = inner.data(key)
    if kind.startswith("max_") and isinstance(value, str) and "{{" not in value:
        inner.problem(key, f"expected a number or a template of one, found `{value}`")
    if form is None:
        return Expectation(kind, value, where=table.path)
    tools = tuple(_tool_match(node, path, table) for path, node in form.items("tools"))
    exit_codes = form.flag("exit_codes", default=False)
    return Expectation(kind, value, where=table.path, tools=tools, exit_codes=exit_codes)


def _about_a_value(kind: ExpectKind, table: Table, documents: Documents) -> Expectation:
    inner, key, path = table, str(kind), None
    form = table.child(kind)
    # A JSON Schema given inline may have any keys, but not only these two.
    if form is not None and (kind != "schema" or set(form.node.entries) == _LONG_FORM):
        inner, key, path = form, _WANTED[kind], form.text("path")
    if kind == "snapshot":
        file = inner.absolute(key)
        return Expectation(kind, inner.text(key), where=table.path, path=path, file=file)
    if kind == "schema":
        value = documents.schema(inner, key)
        return Expectation(kind, value, where=table.path, path=path, file=inner.absolute(key))
    return Expectation(kind, inner.data(key), where=table.path, path=path)


def _quoted(table: Table, kind: ExpectKind) -> Expectation:
    form = table.child("quoted")
    wanted = Quoted(each=table.text("quoted")) if form is None else _long_quoted(form)
    return Expectation(kind, where=table.path, quoted=wanted)


def _long_quoted(form: Table) -> Quoted:
    sources = tuple(_quote_source(node, path, form) for path, node in form.items("in"))
    usual = Quoted()
    return Quoted(
        each=form.text("each"),
        text=form.text("text"),
        file=form.text("file"),
        line=form.text("line"),
        within=form.whole("within", usual.within),
        sources=sources or usual.sources,
        tool=form.text("tool"),
        min_length=form.whole("min", usual.min_length),
        ellipsis=form.whole("ellipsis", usual.ellipsis),
        at_least=form.whole("at_least", usual.at_least),
    )


def _quote_source(node: Node, path: str, table: Table) -> QuoteSource:
    if isinstance(node, MappingNode):
        form = Table(node, path, table.problems)
        if form.has("file"):
            return QuoteSource("file", form.text("file") or "", form.absolute("file"))
        return QuoteSource("diff", form.text("diff") or "")
    assert isinstance(node, ScalarNode)
    name = str(node.value)
    return QuoteSource("tools") if name == "tools" else QuoteSource("value", name)


def _sequence(table: Table, kind: ExpectKind) -> Expectation:
    form = table.child("tool_sequence")
    inner, key = (table, "tool_sequence") if form is None else (form, "tools")
    tools = tuple(_tool_match(node, path, table) for path, node in inner.items(key))
    exact = form is not None and form.flag("exact", default=False)
    return Expectation(kind, where=table.path, tools=tools, exact=exact)


def _tool_match(node: Node, path: str, table: Table) -> ToolMatch:
    if isinstance(node, MappingNode):
        form = Table(node, path, table.problems)
        code = form.data("exit_code")
        return ToolMatch(
            form.text("tool") or "",
            form.mapping("with"),
            cast("CallOutcome", form.text("outcome") or "ok"),
            code if isinstance(code, int) else None,
            form.flag("last", default=False),
        )
    assert isinstance(node, ScalarNode)
    return ToolMatch(str(node.value))


EMBEDDED = "smollm2"
_MOST_TOKENS = ("max_tokens", "max_completion_tokens")
_ONLY_REMOTE = (
    *("api", "model", "key_env", "key_command", "key_file", "key_ttl", "key_header", "effort"),
    *("cache", "delivery", "headers", "proxy", "verify_tls"),
)


_ONLY_CHAT = ("tool_role", "usage")


def decode_models(models: Table) -> dict[str, ModelEntry]:
    return {alias: _entry(alias, table) for alias, table in models.tables()}


def _entry(alias: str, table: Table) -> ModelEntry:
    _check_kind(table)
    for key in ("base_url", "model", "key_command", "headers", "proxy"):
        table.check_references(key)
    retry, timeout = table.part("retry"), table.part("timeout")
    wire, vision = _wire(table), table.flag("vision", default=False)
    return ModelEntry(
        alias=alias,
        base_url=_base_url(table),
        model=table.text("model"),
        embedded=_embedded_model(table),
        api=wire.api,
        key_env=table.text("key_env"),
        key_header=table.text("key_header"),
        effort=cast("Effort | None", table.text("effort")),
        cache=_cache(table),
        delivery=cast("Delivery", table.text("delivery") or "single"),
        key_source=_key_source(table, "key", ("key_env",)),
        headers=table.pairs("headers"),
        params=_params(table),
        fallback=table.texts("fallback"),
        retry=RetryPolicy(
            attempts=retry.whole("attempts", RetryPolicy().attempts),
            max_delay=retry.seconds("max_delay", RetryPolicy().max_delay),
        ),
        timeout=_timeout(timeout),
        tool_role=table.flag("tool_role", default=True),
        json_schema=_json_schema(table),
        vision=vision,
        pdf=table.flag("pdf", default=vision and wire.takes_pdf),
        usage=table.flag("usage", default=True),
        finish=cast("FinishUse", table.text("finish") or "required"),
        max_tool_name=table.whole("max_tool_name", 64),
        verify_tls=table.absolute("verify_tls") or table.flag("verify_tls", default=True),
        proxy=table.text("proxy"),
        price=_price(table.child("price")),
    )


def _wire(table: Table) -> Wire:
    return WIRES.get(table.text("api") or CHAT, WIRES[CHAT])  # the schema reports other names


def _base_url(table: Table) -> str | None:
    own = table.text("base_url")
    return _wire(table).base_url if own is None and not table.has("embedded") else own


def _cache(table: Table) -> CacheUse:
    wire, given = _wire(table), table.text("cache")
    if given is not None and given not in wire.caches:
        known = backticked(wire.caches)
        table.problem("cache", f"with `api: {wire.api}` it is one of {known}")
    return cast("CacheUse", given or wire.caches[0])


def _key_source(table: Table, word: str, others: Sequence[str]) -> KeySource | None:
    """The source of the key or the token of an entry: `key_command` or `key_file`, and `key_ttl`.

    `others` are keys that give one as it is.
    """
    command, file, ttl = f"{word}_command", f"{word}_file", f"{word}_ttl"
    given = [key for key in (*others, command, file) if table.has(key)]
    made = [key for key in given if key not in others]
    if made and len(given) > 1:
        table.problem(made[-1], f"only one of {backticked(given, by=' and ')} can be set")
    if not made and table.has(ttl) and not table.has("header_commands"):
        table.problem(ttl, f"`{ttl}` is for a key that `{command}` or `{file}` makes")
    if not made:
        return None
    return _source(table, made[0], is_file=made[0] == file, seconds=_ttl(table, ttl))


def _source(table: Table, key: str, *, is_file: bool, seconds: float | None) -> KeySource:
    return KeySource(
        place=table.place(key),
        command=() if is_file else table.texts(key),
        folder=Path.cwd() / table.folder_of(key),
        file=table.absolute(key) if is_file else None,
        seconds=seconds,
    )


def _ttl(table: Table, key: str) -> float | None:
    return table.seconds(key, 0.0) or None


def _key_sources(table: Table) -> dict[str, KeySource]:
    """The sources of the values of a server's headers, by the header's name."""
    made: dict[str, KeySource] = {}
    commands, fixed = table.part("header_commands"), map(str.lower, table.mapping("headers"))
    taken = {
        *fixed,
        *(("authorization",) if table.has("auth_env") or table.has("auth_token") else ()),
    }
    if (token := _key_source(table, "auth", ("auth_env", "auth_token"))) is not None:
        made["authorization"] = token
    seconds = _ttl(table, "auth_ttl")
    for name in commands.names():
        if name.lower() in {*taken, *made}:
            commands.problem(name, f"the header `{name}` is set twice")
        source = _source(commands, name, is_file=False, seconds=seconds)
        made.setdefault(name.lower(), replace(source, scheme=""))
    return made


def _params(table: Table) -> Mapping[str, JsonValue]:
    params = table.mapping("params")
    if not table.has("embedded") or any(name in params for name in _MOST_TOKENS):
        return params
    return {**params, _MOST_TOKENS[0]: EMBEDDED_TOKENS}


def _price(price: Table | None) -> Price | None:
    if price is None:
        return None
    names = ("input", "output", "cached_input", "cache_write", "batch")
    parts = [price.data(name) for name in names]
    given = [float(part) if isinstance(part, (int, float)) else None for part in parts]
    return Price(given[0] or 0.0, given[1] or 0.0, *given[2:])


def _json_schema(table: Table) -> JsonSchemaUse:
    if not table.has("json_schema") and table.has("embedded"):
        return "without_tools"
    usual = _wire(table).json_schema
    return (
        "without_tools" if table.text("json_schema") else table.flag("json_schema", default=usual)
    )


def _check_kind(table: Table) -> None:
    if table.has("base_url") and table.has("embedded"):
        table.problem("embedded", "a model has `base_url` or `embedded`, not both")
    elif table.has("embedded"):
        for key in _ONLY_REMOTE:
            if table.has(key):
                table.problem(key, f"an embedded model has no `{key}`")
    elif _base_url(table) is None:
        hint = "`base_url: http://…/v1` for an endpoint, `embedded: smollm2` for an embedded one"
        table.problem(None, "a model needs `base_url` or `embedded`", hint)
    elif not table.has("model"):
        table.problem(None, "an endpoint needs `model`, the model's name there")
    if _wire(table).api != CHAT:
        for key in _ONLY_CHAT:
            if table.has(key):
                table.problem(key, f"only an endpoint with `api: chat` has `{key}`")


def _embedded_model(table: Table) -> str | None:
    text = table.text("embedded")
    if text is None or text == EMBEDDED:
        return text
    path = table.absolute("embedded")
    if path is None or path.suffix != ".gguf":
        hint = "write `smollm2`, or the path of a `.gguf` file"
        table.problem("embedded", f"`{text}` is not an embedded model", hint)
    return str(path)


def _timeout(table: Table) -> ModelTimeout:
    default = ModelTimeout()
    return ModelTimeout(
        connect=table.seconds("connect", default.connect),
        first_token=table.seconds("first_token", default.first_token),
        idle=table.seconds("idle", default.idle),
        turn=table.seconds("turn", default.turn),
    )


_OWN = ("user", "file", "system")
_OF_SERVER = ("name", "with", "arguments")


def decode_prompts(prompts: Table, documents: Documents) -> dict[str, Prompt | ServerPrompt]:
    return {name: read_prompt(prompts, name, documents) for name in prompts.names()}


def read_prompt(table: Table, key: str, documents: Documents) -> Prompt | ServerPrompt:
    """A prompt: a text, or a mapping with `user` or `file`, and `system`; or with `server`."""
    node = table.raw(key)
    if isinstance(node, ScalarNode):
        return Prompt(user=str(node.value))
    parts = table.part(key)
    if parts.has("server"):
        return _of_server(parts)
    for stray in () if parts.is_broken("server") else filter(parts.has, _OF_SERVER):
        parts.problem(stray, f"`{stray}` is for a prompt of a server", "add its `server`")
    if parts.has("user") and parts.has("file"):
        parts.problem("file", "a prompt has `user` or `file`, not both")
    if parts.has("file"):
        user, file = documents.text(parts, "file"), parts.absolute("file")
        return Prompt(user=user, system=parts.text("system"), file=file)
    if not parts.has("user") and not any(map(parts.is_broken, ("user", "file", "server"))):
        table.problem(key, "a prompt needs `user` or `file`")
    return Prompt(user=parts.text("user") or "", system=parts.text("system"))


def _of_server(parts: Table) -> ServerPrompt:
    for stray in filter(parts.has, _OWN):
        hint = "a step has its own `system`" if stray == "system" else None
        parts.problem(stray, f"a prompt of a server has no `{stray}`", hint)
    if not parts.has("name") and not parts.is_broken("name"):
        parts.problem("server", "a prompt of a server needs its `name`")
    return ServerPrompt(
        server=parts.text("server") or "",
        name=parts.text("name") or "",
        arguments=parts.pairs(_arguments_key(parts)),
    )


def _arguments_key(table: Table) -> str:
    if table.has("with") and table.has("arguments"):
        table.problem("arguments", "`arguments` is the older name of `with`, which is here too")
    return "arguments" if table.has("arguments") else "with"


def decode_rules(mcp: Table) -> RuleLists:
    """All lists; a rule whose value is `false` belongs to `ask`."""
    turned = [
        entry
        for key in ("auto_approve", "ask", "deny", "stage")
        for entry in _of_mapping(mcp, key, wanted=False)
    ]
    return RuleLists(
        auto_approve=_rules(mcp, "auto_approve"),
        ask=(*_rules(mcp, "ask"), *turned),
        deny=_rules(mcp, "deny"),
        parallel=_rules(mcp, "parallel"),
        idempotent=_rules(mcp, "idempotent"),
        stage=_rules(mcp, "stage"),
    )


def _rules(mcp: Table, key: str) -> tuple[RuleEntry, ...]:
    listed = (_rule(node, path, mcp) for path, node in mcp.items(key))
    return (*(rule for rule in listed if rule is not None), *_of_mapping(mcp, key, wanted=True))


def _of_mapping(mcp: Table, key: str, *, wanted: bool) -> Iterator[RuleEntry]:
    node = mcp.raw(key)
    if isinstance(node, MappingNode):
        for glob, value in node.entries.items():
            if isinstance(value, ScalarNode) and value.value is wanted:
                yield RuleEntry(tool=glob, path=join(mcp.place(key), glob))


def _rule(node: Node, path: str, mcp: Table) -> RuleEntry | None:
    if isinstance(node, BrokenNode):
        return None
    if isinstance(node, MappingNode):
        table = Table(node, path, mcp.problems)
        if not table.has("tool"):
            return None
        return RuleEntry(
            tool=table.text("tool") or "",
            when=table.mapping("when"),
            schema=table.mapping("schema") if table.has("schema") else None,
            command=table.texts("command") if table.has("command") else None,
            path=path,
        )
    assert isinstance(node, ScalarNode)
    return RuleEntry(tool=str(node.value), path=path)


def decode_flows(mcp: Table) -> FlowSettings:
    """The keys of `mcp` about flows."""
    given = mcp.child("exfiltration")
    word = mcp.text("exfiltration") if given is None else given.text("then")
    excepted = () if given is None else _rules(given, "except")
    return FlowSettings(
        exfiltration=Exfiltration(cast("HeldThen", word), excepted) if word else None,
        flow=tuple(
            _flow_rule(Table(node, path, mcp.problems))
            for path, node in mcp.items("flow")
            if isinstance(node, MappingNode)
        ),
        labels={
            source: cast("frozenset[Label]", frozenset(labels.texts(source)))
            for labels in (mcp.part("labels"),)
            for source in labels.names()
        },
    )


def _flow_rule(table: Table) -> FlowRule:
    return FlowRule(
        sources=table.texts("from"),
        sinks=table.texts("to"),
        then=cast("HeldThen", table.text("then") or "deny"),
        path=table.path,
    )


def decode_policy_tests(top: Table) -> tuple[PolicyTest, ...]:
    return tuple(
        _policy_test(Table(node, path, top.problems))
        for path, node in top.items("policy_tests")
        if isinstance(node, MappingNode)
    )


def _policy_test(table: Table) -> PolicyTest:
    return PolicyTest(
        tool=table.text("tool") or "",
        arguments=table.mapping(_arguments_key(table)),
        expect=cast("Literal['auto', 'ask', 'deny', 'staged']", table.text("expect")),
        path=table.path,
        read=table.texts("read"),
    )


_KINDS = ("url", "command", "pack")
# What only one kind of server has.
_BELONGS = {
    "auth_env": "url",
    "auth_token": "url",
    "oauth": "url",
    "auth_command": "url",
    "auth_file": "url",
    "auth_ttl": "url",
    "headers": "url",
    "header_commands": "url",
    "verify_tls": "url",
    "args": "command",
    "env": "command",
    "cwd": "command",
    "sandbox": "command",
    "root": "pack",
    "options": "pack",
}


def decode_servers(mcp: Table) -> dict[str, ServerEntry]:
    servers = mcp.part("servers")
    return {alias: _server_entry(alias, table, mcp) for alias, table in servers.tables()}


def _server_entry(alias: str, table: Table, mcp: Table) -> ServerEntry:
    _check_server_kind(table)
    for key in ("url", "auth_command", "headers", "header_commands", "command", "args", "env"):
        table.check_references(key)
    return ServerEntry(
        alias=alias,
        url=table.text("url"),
        auth_env=table.text("auth_env"),
        auth_token=table.text("auth_token"),
        oauth=_oauth(table),
        headers=table.pairs("headers"),
        key_sources=_key_sources(table),
        command=table.texts("command") + table.texts("args"),
        env=_env(table),
        cwd=_cwd(table),
        pack=table.texts("pack"),
        root=table.absolute("root"),
        options=_pack_options(table.part("options"), table.texts("pack")),
        required=table.flag("required", default=True) if table.has("required") else None,
        trust=table.flag("trust", default=False),
        instructions=table.flag("instructions", default=False),
        strict_output=table.flag("strict_output", default=False),
        protocol=cast("ProtocolChoice", table.text("protocol") or "auto"),
        sampling="allow" if table.text("sampling") == "allow" else "deny",
        roots=table.absolutes("roots"),
        tools=table.texts("tools"),
        exclude=table.texts("exclude"),
        timeout=_server_timeout(table.part("timeout")),
        verify_tls=table.absolute("verify_tls") or table.flag("verify_tls", default=True),
        share=table.flag("share", default=True),
        sandbox=_sandbox(table if table.has("sandbox") else mcp, table),
    )


def _sandbox(holder: Table, server: Table) -> ServerSandbox | None:
    """The sandbox of a server: its own, or the default of all that are child processes."""
    if not holder.has("sandbox") or not server.has("command"):
        return None
    table = holder.child("sandbox")
    if table is None:
        word = holder.text("sandbox")
        folder = Path.cwd() / holder.folder_of("sandbox")
        if word == "auto":
            return ServerSandbox(read=(folder,), network="full", best_effort=True)
        return ServerSandbox() if word == "required" else None
    home, write = table.absolute("home"), table.absolutes("write")
    return ServerSandbox(
        kind=cast("Literal['auto', 'bubblewrap', 'landlock']", table.text("kind") or "auto"),
        read=table.absolutes("read"),
        write=write if home is None or home in write else (*write, home),
        network=_sandbox_network(table),
        home=home,
    )


def _sandbox_network(table: Table) -> Literal["none", "full"] | tuple[str, ...]:
    if not isinstance(table.data("network"), list):
        return "full" if table.text("network") == "full" else "none"
    from aish.net.destinations import parse_destination

    listed: list[str] = []
    for text in table.texts("network"):
        try:
            listed.append(str(parse_destination(text)))
        except ValueError as error:
            table.problem("network", f"`{text}` cannot be listed: {error}")
    return tuple(dict.fromkeys(listed))


def _oauth(server: Table) -> OAuthSettings | None:
    table = server.child("oauth")
    if table is None:
        return None
    others = [key for key in _TOKENS if server.has(key)]
    others += [
        f"{key}.{name}"
        for key in ("headers", "header_commands")
        for name in server.part(key).node.entries
        if name.lower() == "authorization"
    ]
    for other in others:
        message = f"`oauth` gets the token, and `{other}` is another one"
        server.problem(other.partition(".")[0], message, "remove one of the two")
    for key in ("client_id", "issuer", "token_url", "authorization_url"):
        table.check_references(key)
    proofs = [key for key in ("client_secret_env", "private_key_file") if table.has(key)]
    by_person = table.flag("login", default=False)
    if not by_person:
        _check_program(table, has_proof=bool(proofs))
    elif table.has("token_url") != table.has("authorization_url"):
        here, other = ("token_url", "authorization_url")[:: 1 if table.has("token_url") else -1]
        table.problem(here, f"a person's login with `{here}` needs `{other}`")
    elif table.has("token_url") and not table.has("client_id"):
        message = "`client_id` is missing: where both addresses are named, no client is registered"
        table.problem(None, message)
    if len(proofs) > 1:
        message = "a login has `client_secret_env` or `private_key_file`, not both"
        table.problem(proofs[1], message)
    for key, proof in _PROOF_KEYS.items():
        if table.has(key) and proofs and proof not in proofs:
            table.problem(key, f"`{key}` goes with `{proof}`")
    return OAuthSettings(
        client_id=table.text("client_id") or "",
        login=by_person,
        client_secret_env=table.text("client_secret_env"),
        private_key_file=table.absolute("private_key_file"),
        key_id=table.text("key_id"),
        scopes=table.texts("scopes") if table.has("scopes") else None,
        issuer=table.text("issuer"),
        token_url=table.text("token_url"),
        authorization_url=table.text("authorization_url"),
        redirect_url=table.text("redirect_url"),
        token_auth=cast("SecretPlace | None", table.text("token_auth")),
        resource=table.flag("resource", default=True),
        assertion_audience=cast("AssertionAudience", table.text("assertion_audience") or "issuer"),
    )


def _check_program(table: Table, *, has_proof: bool) -> None:
    """Problems of a login that has nobody to ask."""
    if not table.has("client_id"):
        table.problem(None, "`client_id` is missing")
    if not has_proof:
        hint = (
            "`client_secret_env` names the variable that has the client's secret;"
            " with `login: true` a person logs in"
        )
        table.problem(None, "a login needs `client_secret_env` or `private_key_file`", hint)
    for key in ("authorization_url", "redirect_url"):
        if table.has(key):
            table.problem(key, f"`{key}` goes with `login: true`")


_TOKENS = ("auth_env", "auth_token", "auth_command", "auth_file")
_PROOF_KEYS = {
    "token_auth": "client_secret_env",
    "key_id": "private_key_file",
    "assertion_audience": "private_key_file",
}


def _pack_options(table: Table, packs: Sequence[str]) -> dict[str, Any]:
    """The options of packs, in the order of the schema: a lock has them in it."""
    if not table.node.entries:
        return {}
    # Most files have no options.
    from aish.system.pack_index import options_class

    values: dict[str, Any] = {}
    builtin = builtin_options()
    for name in dict.fromkeys((*builtin, *packs)):
        child = table.child(name)
        # A pack that cannot be loaded is a server that does not start.
        with suppress(UsageError, UnavailableError):
            if child is not None and (kind := options_class(name)) is not None:
                read = _options if name in builtin else _offered_options
                values[name] = read(kind, child)
    return values


def _offered_options(kind: Any, table: Table) -> Any:
    """The options of a pack of a distribution, whose class may check the values itself."""
    from aish.system.foreign_output import foreign_output

    try:
        with foreign_output():
            return _options(kind, table)
    except Exception as error:  # ruff: ignore[blind-except] - code of others may raise anything
        table.problem(None, f"{type(error).__name__}: {error}")
        return kind()


def _options(kind: Any, table: Table) -> Any:
    """The options of a class, each read by the type of its field."""
    values: dict[str, Any] = {}
    types = get_type_hints(kind)
    for option in fields(kind):
        if "literal" in option.metadata and any("${" in text for text in table.texts(option.name)):
            # Options are pinned as they stand: a variable would change them behind the lock.
            table.problem(option.name, "variables are not read in the options of a pack")
        values[option.name] = _option(option, types[option.name], table)
    options = kind(**values)
    if hasattr(options, "problems") and not any(map(table.is_broken, values)):
        for name, message in options.problems():
            table.problem(name, message)
    return options


def _option(option: "Field[Any]", kind: Any, table: Table) -> Any:
    name, usual = option.name, None if option.default is MISSING else option.default
    if is_dataclass(kind):
        return _options(kind, table.part(name)) if table.has(name) else usual
    inner = next(filter(is_dataclass, get_args(kind)), None)
    if inner is not None and get_origin(kind) is tuple:
        return tuple(_option_items(inner, name, table))
    if inner is not None:
        child = table.child(name)
        return None if child is None else _options(inner, child)
    read = _OPTION_READERS.get(kind)
    return table.text(name) or usual or "" if read is None else read(table, name, usual)


_OPTION_READERS: Mapping[Any, Callable[[Table, str, Any], Any]] = {
    bool: lambda table, name, usual: table.flag(name, default=usual),
    int: Table.whole,
    float: Table.seconds,
    Path | None: lambda table, name, _usual: table.absolute(name),
    str | None: lambda table, name, _usual: table.text(name),
    tuple[str, ...]: lambda table, name, _usual: table.texts(name),
}
"""How an option of another type than `str` or a choice of words is read."""


def _option_items(kind: Any, name: str, table: Table) -> Iterator[Any]:
    """Read a list whose items have several forms, by the class that they are of."""
    for path, node in table.items(name):
        try:
            yield kind.parse(to_data(node))
        except ValueError as error:
            table.problems.append(Problem(node.position, path, str(error), None))


def _check_server_kind(table: Table) -> None:
    kinds = [key for key in _KINDS if table.has(key)]
    if not kinds:
        hint = "`url` for HTTP, `command` for a child process, `pack` for a built-in pack"
        table.problem(None, "a server needs `url`, `command` or `pack`", hint)
        return
    if len(kinds) > 1:
        named = backticked(kinds, by=" and ")
        table.problem(kinds[1], f"a server has one of `url`, `command` and `pack`, not {named}")
        return
    for key, kind in _BELONGS.items():
        if table.has(key) and kind != kinds[0]:
            table.problem(key, f"`{key}` is for servers with `{kind}`")
    if table.has("args") and isinstance(table.raw("command"), ListNode):
        table.problem("args", "`args` go with a `command` that is one program")


def _env(table: Table) -> dict[str, str | None]:
    """Names with their values; `None` passes the variable on."""
    if isinstance(table.raw("env"), ListNode):
        return dict.fromkeys(table.texts("env"))
    return {
        name: None if value is None else str(value) for name, value in table.mapping("env").items()
    }


def _cwd(table: Table) -> Path | None:
    if not table.has("command"):
        return None
    return table.absolute("cwd") or Path.cwd() / table.folder_of("command")


def _server_timeout(table: Table) -> ServerTimeout:
    default = ServerTimeout()
    tools = table.part("tools")
    return ServerTimeout(
        connect=table.seconds("connect", default.connect),
        call=table.seconds("call", default.call),
        tools={name: tools.seconds(name, default.call) for name in tools.node.entries},
        call_max=table.seconds("call_max", 0.0) or None,
    )


_TOOL = "shell__run"


def decode_shell(shell: Table) -> Shell:
    return Shell(
        auto_approve=tuple(
            RuleEntry(tool=_TOOL, command=_words(node, path, shell), path=path)
            for path, node in shell.items("auto_approve")
        ),
        cmd_lines=shell.flag("cmd_lines", default=True),
        run=_run(shell),
    )


def _run(shell: Table) -> tuple[str, ...]:
    """The argv before a command line; a program alone is given `-c`."""
    if not shell.has("run"):
        return PLATFORM_SHELL
    program = shell.text("run")
    return shell.texts("run") if program is None else (program, "-c")


def _words(node: Node, path: str, shell: Table) -> tuple[str, ...]:
    """The words of a glob over a command line, quoted as in a shell, or listed."""
    if isinstance(node, ListNode):
        return tuple(str(item.value) for item in node.items if isinstance(item, ScalarNode))
    assert isinstance(node, ScalarNode)
    import shlex

    try:
        words = tuple(shlex.split(str(node.value)))
    except ValueError:
        words = ()
    if not words:
        message = f"`{node.value}` is not a command line"
        hint = "close its quotes, or write its words as a list"
        shell.problems.append(Problem(node.position, path, message, hint))
    return words


ONE_STEP = "main"
KINDS = ("prompt", "call", "run", "pipeline")
# Of a step of no kind, as little as possible can be wrong when it is this.
_ANY_KIND = "call"
_STEP_ONLY = (
    *("with", "system", "tools", "tool_choice", "params", "output", "attach"),
    *(
        "when",
        "on_error",
        "foreach",
        "as",
        "key",
        "concurrency",
        "max_failures",
        "retry",
        "timeout",
    ),
)
_PROMPT_ONLY = (
    *("model", "system", "tools", "tool_choice", "params", "output"),
    *("attach", "continues"),
)
_STEP_BELONGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_PROMPT_ONLY, ("prompt",)),
    "context": ("prompt",),
    "on_tool_error": ("prompt", "call"),
    "with": ("call", "pipeline"),
    "on_ask": ("prompt", "call", "run"),
    "ask_timeout": ("prompt", "call", "run"),
}
# Of what is for one kind of step, what stands at the top for the whole file.
_OF_THE_FILE = frozenset({"model", "context", "on_ask", "ask_timeout", "on_tool_error"})
_NOT_BY_NAME = ("server", "user", "file", UNREADABLE)


@frozen
class StepsReader:
    """Reads the steps of a file with what they share."""

    prompts: Mapping[str, Prompt | ServerPrompt]
    knows_prompts: bool
    documents: Documents
    limits: LoopLimits
    on_denied: OnDenied
    on_tool_error: OnToolError
    asking: Asking
    context: Context

    def steps(self, top: Table) -> tuple[Step, ...]:
        """All steps; a single step at the top level is called `main`."""
        kinds = _kinds(top)
        if top.has("steps") or top.is_broken("steps"):
            for key in (*kinds, "id", *_STEP_ONLY):
                if top.has(key):
                    message = f"`{key}` at the top is for a pipeline without `steps`"
                    top.problem(key, message, "put it into one of the steps")
            return tuple(
                self._step(Table(_readable(node), path, top.problems))
                for path, node in top.items("steps")
            )
        if not kinds:
            for key in filter(top.has, ("id", *_STEP_ONLY)):
                top.problem(key, f"`{key}` is for a step, and there is none", "add a `prompt`")
            return ()
        return (self._step(top),)

    def _step(self, table: Table) -> Step:
        """Read a step; one of no valid kind is replaced by a placeholder."""
        kinds = _kinds(table)
        if len(kinds) > 1:
            named = backticked(kinds, by=" and ")
            message = f"a step does one thing, and this has {named}"
            table.problem(kinds[1], message, "split it into two steps")
        elif not kinds:
            table.problem(None, "a step needs `prompt`, `call`, `run` or `pipeline`")
            here = table.node.position
            table.node.put(_ANY_KIND, BrokenNode(here, None), here)
        kind = kinds[0] if kinds else _ANY_KIND
        for key, owners in _STEP_BELONGS.items():
            of_file = not table.path and key in _OF_THE_FILE
            if table.has(key) and kinds and not of_file and not set(kinds) & set(owners):
                named = backticked(owners, by=" or ")
                table.problem(key, f"`{key}` is for steps with {named}")
        if kind == "prompt":
            return self._prompt_step(table)
        if kind == "pipeline":
            return self._pipeline(table)
        return self._call(table) if kind == "call" else self._run(table)

    def _prompt_step(self, table: Table) -> PromptStep:
        prompt, name = self._prompt(table)
        return PromptStep(
            id=_id(table),
            prompt=prompt,
            prompt_name=name,
            model=table.text("model"),
            system=table.text("system"),
            tools=table.texts("tools") if table.has("tools") else None,
            tool_choice=table.text("tool_choice") or "auto",
            params=table.mapping("params"),
            output=self._output(table),
            attach=tuple(_attachments(table)),
            continues=table.text("continues"),
            context=decode_context(table, self.context),
            limits=loop_limits(table, self.limits),
            on_denied=on_denied(table, self.on_denied),
            on_tool_error=on_tool_error(table, self.on_tool_error),
            asking=decode_asking(table, self.asking),
            needs=table.texts("needs"),
            expect=decode_expect(table, self.documents),
            flow=decode_flow(table, at_top=not table.path),
        )

    def _output(self, table: Table) -> Output | None:
        output = table.child("output")
        if output is None:
            return None
        schema = self.documents.schema(output, "schema")
        attempts = output.whole("attempts", Output(schema).attempts)
        return Output(schema, attempts, output.texts("release"))

    def _prompt(self, table: Table) -> tuple[Prompt | ServerPrompt, str | None]:
        parts = table.part("prompt")
        if parts.has("name") and not any(map(parts.node.entries.__contains__, _NOT_BY_NAME)):
            return self._prompt_by_name(parts)
        return read_prompt(table, "prompt", self.documents), None

    def _prompt_by_name(self, parts: Table) -> tuple[Prompt | ServerPrompt, str | None]:
        name = parts.text("name") or ""
        for stray in filter(parts.has, ("system", "with", "arguments")):
            hint = "a step has its own `system`" if stray == "system" else None
            parts.problem(stray, f"a prompt of this file has no `{stray}` here", hint)
        if name not in self.prompts and self.knows_prompts:
            hint = did_you_mean(name, self.prompts) or "`prompts` has the prompts of this file"
            parts.problem("name", f"unknown prompt `{name}`", hint)
        known = name in self.prompts
        return (self.prompts[name], name) if known else (Prompt(user=""), None)

    def _call(self, table: Table) -> CallStep:
        return CallStep(
            id=_id(table),
            call=table.text("call") or "",
            arguments=table.mapping("with"),
            limits=loop_limits(table, self.limits),
            on_denied=on_denied(table, self.on_denied),
            on_tool_error=on_tool_error(table, self.on_tool_error),
            asking=decode_asking(table, self.asking),
            needs=table.texts("needs"),
            expect=decode_expect(table, self.documents),
            flow=decode_flow(table, at_top=not table.path),
        )

    def _run(self, table: Table) -> RunStep:
        return RunStep(
            id=_id(table),
            run=table.text("run") or table.texts("run"),
            limits=loop_limits(table, self.limits),
            on_denied=on_denied(table, self.on_denied),
            asking=decode_asking(table, self.asking),
            needs=table.texts("needs"),
            expect=decode_expect(table, self.documents),
            flow=decode_flow(table, at_top=not table.path),
        )

    def _pipeline(self, table: Table) -> PipelineStep:
        return PipelineStep(
            id=_id(table),
            file=_from_here(table.absolute("pipeline") or Path()),
            inputs=table.mapping("with"),
            limits=loop_limits(table, self.limits),
            on_denied=on_denied(table, self.on_denied),
            needs=table.texts("needs"),
            expect=decode_expect(table, self.documents),
            flow=decode_flow(table, at_top=not table.path),
        )


def _from_here(path: Path) -> Path:
    """A path as messages show it: relative to the working directory if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def loop_limits(table: Table, default: LoopLimits) -> LoopLimits:
    """The loop bounds in `table`, else those of `default`."""
    return LoopLimits(
        max_tool_depth=table.whole("max_tool_depth", default.max_tool_depth),
        max_calls_per_turn=table.whole("max_calls_per_turn", default.max_calls_per_turn),
        result_limit=table.size("result_limit", default.result_limit),
    )


Denied = TypeVar("Denied", OnDenied, OnDenied | None)


def on_denied(table: Table, default: Denied) -> Denied:
    return cast("Denied", table.text("on_denied") or default)


def on_tool_error(table: Table, default: OnToolError) -> OnToolError:
    return cast("OnToolError", table.text("on_tool_error") or default)


def decode_asking(table: Table, default: Asking) -> Asking:
    """The values of `on_ask` and `ask_timeout`; another `on_ask` has its own default time."""
    on_ask_text = cast("OnAsk | None", table.text("on_ask"))
    on_ask = on_ask_text or default.on_ask
    timeout = default.timeout
    if table.has("ask_timeout"):
        timeout = table.seconds("ask_timeout", Asking(on_ask).seconds)
    return Asking(on_ask, timeout)


def _attachments(table: Table) -> Iterator[Attachment | Retrieval]:
    """The attachments: one text, or a list of texts, `{server, uri}` and `{server, query}`."""
    alone = table.text("attach")
    if alone is not None:
        yield Attachment(alone)
    for path, node in table.items("attach"):
        if isinstance(node, MappingNode):
            yield _from_server(Table(node, path, table.problems))
        elif isinstance(node, ScalarNode):
            yield Attachment(str(node.value))


def _from_server(entry: Table) -> Attachment | Retrieval:
    """A resource of a server, or what a search there finds."""
    chosen = [key for key in ("uri", "query") if entry.has(key) or entry.is_broken(key)]
    if len(chosen) > 1:
        message = "an attachment has `uri` or `query`, not both"
        entry.problem("query", message, "write two entries with the same `server`")
    server = entry.text("server")
    if "query" in chosen:
        retrieval = Retrieval(server or "", entry.text("query") or "")
        threshold = entry.data("threshold")
        least = threshold if isinstance(threshold, (int, float)) else retrieval.threshold
        return replace(
            retrieval,
            top_k=entry.whole("top_k", retrieval.top_k),
            threshold=float(least),
            collection=entry.text("collection"),
        )
    for key in filter(entry.has, ("top_k", "threshold", "collection")):
        entry.problem(key, f"`{key}` is for an attachment with `query`")
    return Attachment(entry.text("uri") or "", server)


def _kinds(table: Table) -> list[str]:
    """The kinds that a step names, even if their values are broken."""
    return [key for key in KINDS if table.has(key) or table.is_broken(key)]


def _readable(node: Node) -> MappingNode:
    """A step, or one that lacks anything in the place of what is none."""
    if isinstance(node, MappingNode):
        return node
    broken = BrokenNode(node.position, None)
    return MappingNode(node.position, {UNREADABLE: broken}, {UNREADABLE: node.position})


def _id(table: Table) -> str:
    if table.path and not table.has("id"):
        return f"<{table.path}>"  # no template can name it
    return table.text("id") or ONE_STEP


def decode(
    root: MappingNode,
    path: Path,
    overrides: Sequence[str],
    problems: list[Problem],
    files: Sequence[str] = (),
) -> Pipeline:
    """The pipeline of a tree that fits the schema; other errors are added to `problems`.

    `files` are the resolved paths of the files that the tree was read from.
    """
    top = Table(root, "", problems)
    mcp = top.part("mcp")
    documents = Documents()
    prompts = decode_prompts(top.part("prompts"), documents)
    denied = on_denied(top, None)
    asking = decode_asking(top, Asking())
    bounds = loop_limits(top, loop_limits(mcp, LoopLimits()))
    context = decode_context(top, Context())
    named = is_whole(root) and not top.is_broken("prompts") and is_whole(top.part("prompts").node)
    steps = StepsReader(
        prompts,
        named,
        documents,
        bounds,
        denied or "fail",
        on_tool_error(top, "unmended"),
        asking,
        context,
    ).steps(top)
    tests = decode_tests(top, documents)
    data = to_data(root)
    assert isinstance(data, Mapping)
    return Pipeline(
        file=path,
        name=top.text("name") or path.stem,
        description=top.text("description") or "",
        inputs={
            name: inputs.mapping(name)
            for inputs in (top.part("inputs"),)
            for name in inputs.names()
        },
        stdin="optional" if top.text("stdin") == "optional" else "required",
        env=top.texts("env"),
        secrets=top.texts("secrets"),
        models=decode_models(top.part("models")),
        model=top.text("model"),
        servers=decode_servers(mcp),
        rules=decode_rules(mcp),
        flows=decode_flows(mcp),
        prompts=prompts,
        steps=steps,
        outputs=top.mapping("outputs") if top.has("outputs") else None,
        annotations=decode_annotations(top),
        limits=decode_limits(top.part("limits")),
        on_denied=denied,
        asking=asking,
        on_wait=cast("OnWait", top.text("on_wait") or "wait"),
        loop=bounds,
        context=context,
        shell=decode_shell(top.part("shell")),
        policy_tests=decode_policy_tests(top),
        cassette=decode_cassette(top),
        control=decode_control(top.part("control")),
        serve=decode_serve(top.part("serve")),
        tests=tests,
        lock=top.part("lock").absolute("path") or top.absolute("lock"),
        lock_ignore=cast("tuple[LockIgnored, ...]", top.part("lock").texts("ignore")),
        overrides=tuple(overrides),
        digest=_digest(data, documents.hashes),
        files=documents.hashes,
        sources=frozenset(map(Path, (*files, *documents.files))),
        data=data,
        positions=positions_of(root),
        broken=tuple(paths_of_broken_nodes(root)) if problems else (),
    )


def _digest(data: JsonValue, hashes: Mapping[str, str]) -> str:
    """SHA-256 of the canonical JSON of the data and of the files it names."""
    whole = {"pipeline": data, "files": dict(hashes)}
    canonical = json.dumps(whole, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
