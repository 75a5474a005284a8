"""What each requirement number of the design is about; every one has a test that carries it.

Numbers are stable: a test names them with `@pytest.mark.requirement("L7")`. `Q` numbers are the
rows of the table of endpoint quirks, `exit-` the process exit codes.
"""

from collections.abc import Mapping

FILE: Mapping[str, str] = {
    "F1": "a one-step pipeline needs no `steps`",
    "F2": "a step is a prompt, a call, a run or another pipeline",
    "F3": "steps form a graph; what is ready runs at the same time",
    "F4": "`when`, `retry`, `timeout`, `on_error` of every step",
    "F5": "`foreach` over lists, files and globs, read as streams",
    "F6": "templates are sandboxed, strict, rendered once, bounded",
    "F7": "`${VAR}` in models and servers only; no key travels unnamed",
    "F8": "`extends` merges deeply; no other file is read",
    "F9": "`--set`, `-i`, `--inputs`, stdin",
    "F10": "all errors at once, with place, path and nearest name",
    "F11": "what no schema can say is checked too",
    "F12": "what steps and tests expect, every kind of it",
    "F13": "durations and sizes with units",
    "F14": "step ids, aliases, and what `steps.X` has",
    "F15": "what is a secret; a short one is refused",
}

LOOP: Mapping[str, str] = {
    "L1": "one wire, no environment proxies, no redirects",
    "L2": "`tools` as the server gave them, left out when empty",
    "L3": "vendor spelling is pure, one module opens sockets, a call is yielded once and whole",
    "L4": "server-sent events at every cut and line end, with caps",
    "L5": "fragments of a tool call are put together",
    "L6": "text before a tool call is kept",
    "L7": "HTTP errors, errors in band, incomplete streams, truncated calls",
    "L8": "one retry layer with events",
    "L9": "the next model answers when one stays unavailable",
    "L10": "time-outs, and an interrupt stops a stream at once",
    "L11": "the embedded model in a child process",
    "L12": "typed turns; unknown fields go back verbatim",
    "L13": "with and without tool roles",
    "L14": "output of local commands waits for the next user turn",
    "L15": "the loop and its depth limit",
    "L16": "several calls in one turn, order and ids",
    "L17": "arguments that are no object or do not fit never reach a tool",
    "L18": "empty and overlong results",
    "L19": "long conversations are shortened, and say so",
}

SERVERS: Mapping[str, str] = {
    "M1": "both eras of the protocol",
    "M2": "streamable HTTP, stdio, in process",
    "M3": "authorization and headers; redirects within the origin",
    "M4": "aliases, tool names, wire names",
    "M5": "all servers connect at once; required and optional ones",
    "M6": "pages of `tools/list`; a malformed tool costs only itself",
    "M7": "results: text, structure, media",
    "M8": "every failure is a legal tool reply",
    "M9": "a call has its time-out, is cancelled, shows progress",
    "M10": "a child's environment, group and end",
    "M11": "requests from the server",
    "M12": "resources and prompts of servers, attached and as prompts",
    "M13": "the conformance suite and real peers",
}

PACKS: Mapping[str, str] = {
    "K1": "a pack is a module of typed functions, in a table",
    "K2": "names of pack tools, and their older names",
    "K3": "a tool failure is a result",
    "K4": "explicit roots, opened beneath their descriptor",
    "K5": "denied files look the same whether they exist or not",
    "K6": "writes are whole, keep what the file was, and break no code",
    "K7": "text results are capped and say so",
    "K8": "the packs `fs`, `edit`, `git` and `shell`",
}

APPROVALS: Mapping[str, str] = {
    "P1": "globs match whole and on both sides of `__`; deny beats ask beats allow",
    "P2": "the question shows exactly what will be sent; only a yes is a yes",
    "P3": "without a person the answer is no, at once",
    "P4": "rules that look at arguments",
    "P5": "annotations tighten and never loosen",
    "P6": "an approval is bound to one call and used once",
    "P7": "decisions are events, and can be explained and tested",
    "P8": "what differs from the lock is not offered, shown, and ends the run with 7",
    "P9": "descriptions are shown escaped and audited",
    "P10": "one gate on every path",
}

CASSETTES: Mapping[str, str] = {
    "C1": "one file holds what models, servers and commands were asked and answered",
    "C2": "record and replay without patching, at the transports",
    "C3": "streams stay streams: recorded as they come, replayed with their cuts",
    "C4": "what counts when requests are compared, and what does not",
    "C5": "a request that is not held ends the run, with the difference",
    "C6": "a replay reaches nothing: no socket, no process, no look-up, no key",
    "C7": "modes, and replays in which only tools or only a model are live",
    "C8": "no secret in a cassette, in any encoding; what looks like one is refused",
    "C9": "a recording takes its place only when it is complete",
    "C11": "big cassettes load, and long runs replay, within their time",
    "C10": "readable in review: laid out, shown as a conversation, compared",
    "C12": "`aish test`: cases on their cassettes, processes, reports, unused cassettes",
    "C13": "our own tests use the same cassettes; plain vcrpy reads and plays them",
}

CI: Mapping[str, str] = {
    "B1": "a run has a folder of its own, private and ignored by git",
    "B2": "the journal: one write a record, checked, synced, one writer, torn tails cut off",
    "B3": "an interrupted run goes on: nothing done is done again, nothing changed is overlooked",
    "B4": "items in flight at most as many as wanted, each with a key of its own",
    "B5": "items that fail: tried again, recorded in place, too many of them stop the batch",
    "B6": "shards are stable, disjoint, complete, and can be joined",
    "B7": "items on workers: nothing lost, nothing recorded twice, all decided by the driver",
    "B8": "limits of a run and of a step, held before each request and call",
    "B9": "answers in a schema: asked for, read leniently, checked, asked for again",
    "B10": "what a turn costs: as the provider says, by the file, by a price list, or unknown",
    "B11": "reports: JUnit, a page, GitHub's summary and annotations, traces",
    "B12": "stdout carries the contract only, and may be closed by its reader",
    "B13": "no text of a stranger is a command to GitHub, and secrets are masks there",
    "B15": "the repository ships an action for GitHub and hooks for pre-commit",
    "B14": "signals, kills, a full disk, no descriptors: said, and nothing acknowledged is lost",
    "B16": "staged calls: put down and not executed, reviewed, applied once",
}

SHELL: Mapping[str, str] = {
    "S1": "lines at a terminal: editing, history, completion, paste, Ctrl-C, and lines from a pipe",
    "S2": "proposed commands: asked about, edited, approved by rules about their words",
    "S3": "a static frame before a session: no tool list in it",
    "S4": "tool calls are framed, answers drawn as they arrive",
    "S5": "commands do what their rows say; help, completion and docs are made of one table",
    "S6": "conversations are journals: they come back exactly, tool turns included",
    "S7": "a session becomes a pipeline that `aish test` accepts",
    "S8": "the narrowest rules for what was done, and nothing that was denied",
}

SECURITY: Mapping[str, str] = {
    "X1": "default deny, on what will be sent",
    "X2": "one function for each kind of place that shows a stranger's text",
    "X3": "only our own escape sequences reach a terminal",
    "X4": "secrets are masked in every form",
    "X5": "credentials go to the configured origin only",
    "X6": "every stream of bytes has a cap and a deadline",
    "X7": "schemas from outside fetch nothing and can be stopped",
    "X8": "child processes: argv lists, small environment, own group",
    "X9": "files of ours are private and follow no link",
    "X10": "YAML and templates have limits",
    "X11": "what listens does so on loopback only",
    "X12": "in doubt it fails closed and says so",
}

_QUIRKS_LEFT_OUT = {11}
QUIRKS: Mapping[str, str] = {
    f"Q{number}": f"row {number} of the endpoint quirks"
    for number in range(1, 61)
    if number not in _QUIRKS_LEFT_OUT
}

EXITS: Mapping[str, str] = {
    "exit-0": "every step succeeded",
    "exit-1": "a step failed",
    "exit-2": "bad usage or an invalid file; nothing was contacted",
    "exit-3": "a needed tool call was denied",
    "exit-4": "a limit was reached",
    "exit-5": "an endpoint or a required server is unavailable",
    "exit-6": "a replay that does not fit its cassette",
    "exit-7": "something is not as the lock file pins it",
    "exit-70": "a bug in aish",
    "exit-130": "interrupted by SIGINT",
    "exit-143": "interrupted by SIGTERM",
}

REQUIREMENTS: Mapping[str, str] = {
    **FILE,
    **LOOP,
    **SERVERS,
    **PACKS,
    **APPROVALS,
    **CASSETTES,
    **CI,
    **SHELL,
    **SECURITY,
    **QUIRKS,
    **EXITS,
}
