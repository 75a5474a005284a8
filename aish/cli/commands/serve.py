"""`aish serve [FILE]`: the tools of a file, or of packs, for MCP clients."""

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio

from aish.cli.arguments import DEFAULT_ADDRESS
from aish.cli.boundary import say
from aish.cli.options import (
    OWN_FILE,
    Argument,
    CassetteOptions,
    ControlOption,
    LockUse,
    Option,
    RuleOptions,
    SetOption,
)
from aish.cli.pipeline_options import load, look_options
from aish.cli.printer import print_text, register_masks
from aish.cli.tool_preview import beginnings_at_terminal, notices
from aish.config.model import Pipeline, ServerEntry
from aish.core.errors import ExitCode, UsageError
from aish.core.frozen import frozen
from aish.core.rules import RuleEntry, RuleLists
from aish.engine.plan.credentials import needed_variables
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, make_plan
from aish.features.control.run_services import ControlRequest
from aish.mcp.protocol.messages import json_object
from aish.net.listen.addresses import Exposure
from aish.packs.catalogue import check_pack_name, pack_needs_root, tools_of
from aish.serve.listeners.client_config import PLACES, ClientEntry, ConfigClient, entry_name, render
from aish.serve.listeners.endpoint import (
    STDIO,
    TCP_DEFAULT,
    Endpoint,
    check_distinct,
    environment_endpoint,
    http_endpoint,
    parse_endpoint,
    tcp_endpoint,
    unix_endpoint,
)
from aish.serve.listeners.listening import open_listeners
from aish.serve.listeners.stdio import own_streams
from aish.serve.offer.active import LoadedFile
from aish.serve.server import ServeRequest, run_server
from aish.serve.state import state_folder
from aish.system.secrets.secrets import Secrets

_CALL_SECONDS = 300.0
"""How long a call may take unless the file says so: clients give up at 60 s, or later."""

if TYPE_CHECKING:
    from aish.features.recording.session import CassetteSession
    from aish.serve.offer.pipeline_tools import OfferedPipeline


@frozen
class PackOptions:
    pack: Annotated[
        list[str] | None, Option("--pack NAME", "Without FILE: serve this tool pack; repeatable.")
    ] = None
    root: Annotated[
        Path | None, Option("--root DIR", "With `--pack`: the folder that its tools work in.")
    ] = None


@frozen
class ListenOptions:
    """The addresses for clients, and the names of tools there."""

    stdio: Annotated[
        bool, Option("--stdio", "Serve the program that started this one; the default.")
    ] = False
    http: Annotated[
        list[str] | None,
        Option(
            "--http ADDRESS", "Listen for HTTP at HOST:PORT[/mcp] or unix:PATH; may be repeated."
        ),
    ] = None
    tcp: Annotated[
        list[str] | None,
        Option(
            "--tcp [HOST:PORT]", "Listen on a port, 127.0.0.1:9100 by default; may be repeated."
        ),
    ] = None
    unix: Annotated[
        list[Path] | None, Option("--unix PATH", "Listen on a socket file; may be repeated.")
    ] = None
    from_env: Annotated[bool, Option("--from-env", "Listen at the address in `MCP_ADDR`.")] = False
    allow_remote: Annotated[
        bool, Option("--allow-remote", "Allow addresses that other machines can reach.")
    ] = False
    behind_proxy: Annotated[
        bool, Option("--behind-proxy", "With `--allow-remote`: a proxy in front does TLS.")
    ] = False
    tls_cert: Annotated[
        Path | None, Option("--tls-cert FILE", "Encrypt ports with this certificate.")
    ] = None
    tls_key: Annotated[
        Path | None, Option("--tls-key FILE", "With `--tls-cert`: the key of the certificate.")
    ] = None
    plain: Annotated[
        bool, Option("--plain", "Call tools by their own names, without the alias.")
    ] = False


@frozen
class ServeCassetteOptions:
    """The cassette that a served session is recorded to, or replayed from."""

    record: Annotated[
        Path | None, Option("--record PATH", "Record to this cassette until the server ends.")
    ] = None
    replay: Annotated[
        Path | None, Option("--replay PATH", "Serve from this cassette; nothing is contacted.")
    ] = None


def command(
    file: Annotated[
        Path | None, Argument("[FILE]", f"The pipeline file; default, without packs: {OWN_FILE}.")
    ] = None,
    *,
    packs: PackOptions,
    listen: ListenOptions,
    policy: RuleOptions,
    cassettes: ServeCassetteOptions,
    print_config: Annotated[
        ConfigClient | None,
        Option("--print-config", "Print the entry for this client's configuration, and end."),
    ] = None,
    control: ControlOption = None,
    overrides: SetOption = None,
) -> int:
    """Serve tools to MCP clients, under the file's rules.

    Clients get the tools of all servers under `mcp.servers`, or of packs. Each call passes the
    rules; with `--control` a person is asked about what no rule approves, else it is denied. Over
    HTTP a client has a token: of the file's own, or of an identity provider (`serve.auth`).

    Example: aish serve --pack fs --root .
    """
    if file is None and packs == PackOptions() and OWN_FILE.exists():
        file = OWN_FILE
    options = look_options(policy)
    exposure = Exposure(listen.allow_remote, listen.behind_proxy, listen.tls_cert, listen.tls_key)
    if print_config is not None:
        pipeline = _pipeline(file, packs, overrides, policy.lock)
        endpoints = _endpoints(listen, pipeline, options.environ)
        arguments = (
            *_arguments(file, packs, listen, policy, overrides),
            *_more_arguments(cassettes, control or ()),
        )
        _print_config(pipeline, endpoints, exposure, arguments, print_config)
        return ExitCode.OK
    with own_streams() as streams:

        def load_file(old: Plan | None = None) -> LoadedFile:
            if old is not None and cassette is not None and cassette.replays:
                raise UsageError("the cassette that is replayed is that of one file")
            pipeline = _pipeline(file, packs, overrides, policy.lock)
            if listen.plain:
                pipeline = replace(pipeline, serve=replace(pipeline.serve, names="plain"))
            secrets = None if old is None else old.secrets
            plan = _plan(pipeline, options, secrets, cassette, is_file=file is not None)
            return LoadedFile(plan, _pipelines(pipeline, options, plan, cassette))

        cassette = None
        if cassettes != ServeCassetteOptions():
            cassette = _cassette(
                _pipeline(file, packs, overrides, policy.lock, quiet=True), cassettes
            )
        loaded = load_file()
        plan = loaded.plan
        register_masks(plan.secrets)
        emit = notices(plan.secrets)
        endpoints = _endpoints(listen, plan.pipeline, options.environ)
        if STDIO in endpoints and os.isatty(streams.input):
            say("serving on standard input and output: an MCP client starts this command")
        gc.freeze()
        gc.enable()
        replays = cassette is not None and cassette.replays
        request = ServeRequest(
            loaded,
            options.environ,
            emit,
            streams,
            load_file,
            endpoints,
            exposure,
            cassette,
            _control_request(plan.pipeline, control or (), exposure, replays=replays),
            None if replays else beginnings_at_terminal(plan.secrets.mask),
        )
        return anyio.run(run_server, request)


def _endpoints(
    listen: ListenOptions, pipeline: Pipeline, environ: Mapping[str, str]
) -> tuple[Endpoint, ...]:
    """Return the addresses for clients: those of flags, else of the file, else standard streams."""
    found = [STDIO] if listen.stdio else []
    found += [http_endpoint(text.removeprefix("http://"), "--http") for text in listen.http or ()]
    usual = tcp_endpoint(TCP_DEFAULT, "--tcp")
    if listen.from_env:
        usual = environment_endpoint(environ)
        found += [] if DEFAULT_ADDRESS in (listen.tcp or ()) else [usual]
    for text in listen.tcp or ():
        found.append(
            usual if text == DEFAULT_ADDRESS else tcp_endpoint(text.removeprefix("tcp://"), "--tcp")
        )
    found += [unix_endpoint(path, "--unix") for path in listen.unix or ()]
    if found:
        return check_distinct(found, "the options")
    where = "serve.listen"
    named = [parse_endpoint(text, where) for text in pipeline.serve.listen]
    return check_distinct(named or [STDIO], where)


def _arguments(
    file: Path | None,
    packs: PackOptions,
    listen: ListenOptions,
    policy: RuleOptions,
    overrides: list[str] | None,
) -> Iterator[str]:
    """The words behind `aish serve` that serve the same over standard streams, from any folder."""
    if file is not None:
        yield str(file.absolute())
    for name in packs.pack or ():
        yield from ("--pack", name)
    if packs.root is not None:
        yield from ("--root", str(packs.root.absolute()))
    yield "--stdio"
    for flag, values in (("--set", overrides), ("--allow", policy.allow), ("--deny", policy.deny)):
        for value in values or ():
            yield from (flag, value)
    if policy.broad_root:
        yield "--allow-broad-root"
    if policy.lock is not LockUse.ENFORCE:
        yield from ("--lock", policy.lock.value)
    if policy.no_fetch:
        yield "--no-fetch"
    if listen.plain:
        yield "--plain"


def _more_arguments(cassettes: ServeCassetteOptions, control: Sequence[str]) -> Iterator[str]:
    for flag, path in (("--record", cassettes.record), ("--replay", cassettes.replay)):
        if path is not None:
            yield from (flag, str(path.absolute()))
    for text in control:
        kind, is_address, rest = text.partition(":")
        yield "--control"
        if kind == "unix":
            yield f"unix:{Path(rest).absolute()}"
        elif is_address:
            yield text


def _print_config(
    pipeline: Pipeline,
    endpoints: Sequence[Endpoint],
    exposure: Exposure,
    arguments: Iterable[str],
    client: ConfigClient,
) -> None:
    """Print a client's entry for the HTTP listener, or for standard streams without one."""
    name = entry_name(pipeline.serve.name or pipeline.name)
    http = next((endpoint for endpoint in endpoints if endpoint.kind == "http"), None)
    if http is not None:
        clients, auth = pipeline.serve.clients, pipeline.serve.auth
        # The variable of the only client, where it has one.
        token = clients[0].env if len(clients) == 1 else None
        token = token or ("AISH_TOKEN" if auth is None else "")
        url = None if auth is None else auth.resource
        entry = ClientEntry(name, url=url or _url(http, pipeline, exposure), token=token)
    elif pipeline.serve.auth is not None:
        message = "tokens of an issuer come over HTTP, and no address for it is named"
        raise UsageError(message, where="serve.auth", hint="add `--http HOST:PORT`")
    elif STDIO in endpoints:
        named = list(needed_variables(pipeline, with_models=False))
        for served in pipeline.serve.pipelines:
            named += needed_variables(load(served.file, None), with_models=True)
        command = (*_program(), "serve", *arguments)
        entry = ClientEntry(name, command, tuple(dict.fromkeys(named)))
    else:
        hint = "add `--stdio`, or an HTTP listener"
        raise UsageError("no client connects to these listeners by itself", hint=hint)
    say(f"put this entry into {PLACES[client]}")
    if entry.token:
        say(f"set the variable `{entry.token}` to the token of the client")
    print_text(render(entry, client))


def _program() -> tuple[str, ...]:
    """Return the words that start this program, whatever the folder and `PATH`."""
    program = Path(sys.argv[0])
    if program.name == "aish" and os.access(program, os.X_OK):
        return (str(program.absolute()),)
    return (sys.executable, "-m", "aish")


def _url(http: Endpoint, pipeline: Pipeline, exposure: Exposure) -> str:
    assert http.address is not None, "HTTP has one"
    if http.address.path is not None:
        hint = "name an address `HOST:PORT`"
        raise UsageError("these clients cannot use HTTP over a socket file", hint=hint)
    if exposure.behind_proxy and pipeline.serve.hosts:
        return f"https://{pipeline.serve.hosts[0]}{http.path}"
    if http.address.port == 0:
        return _url_now(http, pipeline)
    return http.at(http.address.reached).to_text(has_tls=exposure.has_tls)


def _url_now(http: Endpoint, pipeline: Pipeline) -> str:
    """The URL of a running server: port 0 is another one at each start."""
    for text in open_listeners(state_folder(pipeline)):
        scheme, separator, rest = text.partition("://")
        if scheme not in {"http", "https"}:
            continue
        running = http_endpoint(rest, "listeners.json")
        if running.path == http.path and running.address is not None:
            return f"{scheme}{separator}{running.address.reached}{running.path}"
    hint = "start it first, or name the port"
    raise UsageError("port 0 is known only while the server runs", hint=hint)


def _control_request(
    pipeline: Pipeline, texts: Sequence[str], exposure: Exposure, *, replays: bool
) -> ControlRequest | None:
    """Return the addresses of the control API; `None` if none was requested."""
    if texts and replays:
        hint = "a replay waits for nobody: it gives the recorded answers"
        raise UsageError("`--control` and a replay exclude each other", hint=hint)
    if replays or (not texts and not pipeline.control.listen):
        return None
    # Imported here, because most servers have no control API.
    from aish.features.control.server import OWN_SOCKET

    addresses = texts or pipeline.control.listen
    has_port = any(one != OWN_SOCKET and not one.startswith("unix:") for one in addresses)
    # A socket file has neither TLS nor a proxy: these are for the ports of clients then.
    return ControlRequest(tuple(texts), exposure if has_port else Exposure())


def _pipeline(
    file: Path | None,
    packs: PackOptions,
    overrides: list[str] | None,
    lock: LockUse,
    *,
    quiet: bool = False,
) -> Pipeline:
    """The file, or what stands for one where packs are served without it."""
    if file is not None:
        if packs != PackOptions():
            hint = "name the packs under `mcp.servers` of the file"
            raise UsageError("`--pack` and `--root` go without a file", hint=hint)
        pipeline = load(file, overrides, quiet=quiet, lock=lock)
        tables = json_object(json_object(pipeline.data.get("mcp")).get("servers"))
        servers = {
            alias: entry
            if {"call", "call_max"}
            & json_object(json_object(tables.get(alias)).get("timeout")).keys()
            else replace(entry, timeout=replace(entry.timeout, call=_CALL_SECONDS))
            for alias, entry in pipeline.servers.items()
        }
        return replace(pipeline, servers=servers)
    if not packs.pack:
        hint = f"`aish init` writes `{OWN_FILE}`; `aish serve --pack fs --root .` serves a pack"
        raise UsageError(f"there is no `{OWN_FILE}` here, and no file or pack is named", hint=hint)
    if overrides:
        raise UsageError("`--set` goes with a file", hint="name a file to change a value of it")
    names = tuple(dict.fromkeys(packs.pack))
    for name in names:
        check_pack_name(name)
    root = None if packs.root is None else packs.root.absolute()
    if root is None and (needy := next(filter(pack_needs_root, names), None)):
        hint = "`--root .` is the current folder"
        raise UsageError(f"the pack `{needy}` needs `--root`, the folder for its tools", hint=hint)
    read_only = tuple(
        RuleEntry(tool=f"{marks.pack}__{name}", path="--pack")
        for name, marks in tools_of(names)
        if marks.read_only
    )
    return Pipeline(
        file=_home_of(root) / OWN_FILE,
        name="aish",
        servers={name: ServerEntry(alias=name, pack=(name,), root=root) for name in names},
        rules=RuleLists(auto_approve=read_only),
    )


def _home_of(root: Path | None) -> Path:
    """Return the folder for the state of packs without a file: their root if it can be.

    Clients start servers in any folder, some in `/`, where nothing can be written.
    """
    from aish.packs.workspace.confined_path import resolve_root

    if root is None:
        return Path.cwd()
    try:
        return resolve_root(root, allow_broad_root=False)
    except UsageError:  # told when the pack is opened, or allowed by an option
        return Path.cwd()


def _cassette(pipeline: Pipeline, options: ServeCassetteOptions) -> "CassetteSession":
    """The cassette that the server records to, or plays.

    Raises:
        CassetteFileError: it cannot be read.
    """
    from aish.cli.cassette_options import session_of
    from aish.features.recording.session import serve_renewal

    flags = CassetteOptions(record=options.record, replay=options.replay)
    renewed_by = serve_renewal(pipeline, options.replay) if options.replay is not None else None
    return session_of(pipeline, flags, renewed_by)


def _pipelines(
    pipeline: Pipeline, options: RunOptions, plan: Plan, cassette: "CassetteSession | None"
) -> "tuple[OfferedPipeline, ...]":
    """The pipelines that the file serves; their secrets are those of the hub too."""
    if not pipeline.serve.pipelines:
        return ()
    from aish.serve.offer.pipeline_tools import load_pipelines

    return load_pipelines(pipeline, options, plan.secrets, cassette)


def _plan(
    pipeline: Pipeline,
    options: RunOptions,
    secrets: Secrets | None,
    cassette: "CassetteSession | None",
    *,
    is_file: bool,
) -> Plan:
    """The servers and rules, without steps; a lock file applies to a file only."""
    bare = replace(pipeline, steps=(), outputs=None)
    if not is_file:
        options = replace(options, lock="none")
    plan = make_plan(bare, options, secrets=secrets, session=cassette)
    # Without steps there are no prompts that a lock could pin.
    return plan if plan.lock is None else replace(plan, lock=replace(plan.lock, prompts={}))
