"""Passages that the pack `rag` finds, before a prompt's own text.

The file asks for them, not a model, so no rule has to approve the search; one under `deny` still
forbids it, and the text that its query is of may hold it. A search that fails attaches nothing, and
is told once a run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from aish.agent.dispatch import call_tool
from aish.agent.runtime import UsedCall
from aish.config.model import RETRIEVAL_TOOL, PromptStep, Retrieval
from aish.core.errors import StepFailedError
from aish.core.events import Notice
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import shorten
from aish.core.sources import NO_SOURCES, Sources
from aish.core.text import safe_utf8
from aish.core.tools import Tool, ToolName, ToolResult
from aish.engine.steps.attachments import AttachedText
from aish.engine.steps.context import RAG_DEGRADED, RAG_REDUCED, StepContext
from aish.packs.tool_results import enclose
from aish.policy.decide import forbidden

_QUERY_LIMIT = 500
_SECONDS = 10.0
_LONGEST_REASON = 300


@frozen
class _AttachedPassage:
    """A row of the result: a text, where it is from, and how well it fits."""

    source: str
    text: str


class _NothingFoundError(Exception):
    """The search failed: the message says why."""


async def retrieve(
    wanted: Retrieval,
    query: str,
    step: PromptStep,
    context: StepContext,
    sources: Sources = NO_SOURCES,
) -> AttachedText:
    """The passages found for `query`, each between marks; nothing where the search fails.

    The passages that no longer fit into `result_limit` are counted on a line of their own.

    Raises:
        LockDiffersError: the lock excludes the tool.
        StepFailedError: a rule forbids the search or holds it, or the tool is not what it was.
        PausedError: the run is paused before somebody answers whether to search.
        CassetteMissError: a replay met a search that the cassette does not hold.
    """
    try:
        text = _format_passages(await _search(wanted, query, step, context, sources), step)
        tool = context.resources.tools.by_name(ToolName(wanted.server, RETRIEVAL_TOOL))
        if context.agent.flow is None or tool is None:
            return AttachedText(text)
        return AttachedText(text, sources=context.agent.flow.of_result(tool, sources))
    except _NothingFoundError as error:
        why = f"nothing is attached from the server `{wanted.server}`: {error}"
        _tell(RAG_DEGRADED, why, step, context)
        return AttachedText("")


async def _search(
    retrieval: Retrieval, query: str, step: PromptStep, context: StepContext, sources: Sources
) -> tuple[_AttachedPassage, ...]:
    tools, runtime = context.resources.tools, context.runtime(step)
    name = ToolName(retrieval.server, RETRIEVAL_TOOL)
    tool = tools.by_name(name)
    if tool is None:
        tools.require(name)
        failure = None if tools.servers is None else tools.servers.failure(retrieval.server)
        raise _NothingFoundError(failure or f"it does not offer the tool `{RETRIEVAL_TOOL}`")
    question = safe_utf8(query).strip()[:_QUERY_LIMIT]
    if not question:
        raise _NothingFoundError("the query is empty")
    arguments: JsonObject = {
        "question": question,
        "top_k": retrieval.top_k,
        "threshold": retrieval.threshold,
        **({} if retrieval.collection is None else {"collection": retrieval.collection}),
    }
    ruling = forbidden(runtime.gate.policy, tool, arguments)
    if ruling is not None:
        message = f"the passages of the server `{retrieval.server}` are forbidden: {ruling.reason}"
        raise StepFailedError(message, hint="take the entry out of `attach`, or narrow the rule")
    result = await _call(tool, arguments, retrieval, step, context, sources)
    if result.kind == "denied":
        raise StepFailedError(result.content.removeprefix("[aish] "))
    if result.kind != "ok":
        # Masked before it is cut: a cut secret would not be recognized.
        message = runtime.mask(result.content).removeprefix("[aish] ").removeprefix("ERROR: ")
        raise _NothingFoundError(shorten(message, _LONGEST_REASON))
    data = result.structured if isinstance(result.structured, Mapping) else {}
    rows = data.get("results")
    if isinstance(rows, str) or not isinstance(rows, Sequence):
        raise _NothingFoundError(f"the answer of `{RETRIEVAL_TOOL}` has no `results`")
    degraded = data.get("degraded")
    if isinstance(degraded, str) and degraded:
        why = shorten(runtime.mask(degraded), _LONGEST_REASON)
        message = f"the search of the server `{retrieval.server}` is reduced: {why}"
        _tell(RAG_REDUCED, message, step, context)
    return tuple(_passages(rows))


async def _call(
    tool: Tool,
    arguments: JsonObject,
    retrieval: Retrieval,
    step: PromptStep,
    context: StepContext,
    sources: Sources,
) -> ToolResult | UsedCall:
    """The result of the search; by the gate if a rule about flows is about it."""
    flow = context.agent.flow
    if flow is None or flow.policy.judge(tool, arguments, sources) is None:
        tools = context.resources.tools
        return await tools.call(tool, arguments, lambda _progress: None, limit=_SECONDS)
    call = f"{step.id}-attach-{step.attach.index(retrieval) + 1}"
    place, runtime = replace(context.place(step), call=call), context.runtime(step)
    used = await call_tool(tool, arguments, runtime, place, sources=sources, by_file=True)
    if used.kind == "denied" or used.verdict == "staged":
        why = used.content.removeprefix("[aish] ")
        message = f"nothing is attached from the server `{retrieval.server}`: {why}"
        raise StepFailedError(message, hint=used.hint)
    return used


def _passages(rows: Sequence[JsonValue]) -> Iterator[_AttachedPassage]:
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        text, source, section = (
            str(row.get(key) or "") for key in ("content", "source", "section")
        )
        if text.strip():
            yield _AttachedPassage(f"{source}, {section}" if section else source, text)


def _format_passages(passages: Sequence[_AttachedPassage], step: PromptStep) -> str:
    """The best passages that fit, in their order, and how many there are beside."""
    blocks: list[str] = []
    left = step.limits.result_limit
    for passage in passages:
        block = enclose(passage.source, passage.text.rstrip("\n"))
        left -= len(safe_utf8(block).encode()) + 2
        if left < 0:
            more = len(passages) - len(blocks)
            blocks.append(f"[aish] passages that exceed `result_limit`: {more}")
            break
        blocks.append(block)
    return "\n\n".join(blocks)


def _tell(code: str, text: str, step: PromptStep, context: StepContext) -> None:
    """Emit the notice, unless another search of the run has."""
    if context.tells_first(code):
        context.emit(Notice(context.place(step), "warning", code, text))
