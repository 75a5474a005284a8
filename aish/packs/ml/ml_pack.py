"""The pack `ml`: `ml_generate`, `ml_score`, `ml_probe`, `ml_status`, `ml_backends`.

Models are those of the file, by alias: callers give no address and no key. The run counts, limits,
records and replays each request like those of its steps.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Literal

from aish.core.errors import did_you_mean
from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import backticked, counted, shorten
from aish.core.text import for_line, safe_utf8
from aish.packs.framework.pack import READS_WORLD, FileModel, Marks, Pack, PackContext, tool
from aish.packs.ml.ml_options import MlOptions
from aish.packs.model_request import ASKING_CODES, Message, ToolModelRequest, ask_model
from aish.packs.pack_error import PackError
from aish.packs.time_span import seconds_of
from aish.packs.tool_results import Answer, count_that_fits

if TYPE_CHECKING:
    from aish.net.guarded_client import GuardedClient
    from aish.packs.ml.probes import ProbeQuestion

LONGEST_TEXT = 400_000
"""Characters of a prompt, a system prompt or an answer that is scored."""
LONGEST_RUBRIC = 100_000
HOTTEST = 2.0
_MOST_TOKENS = 1_000_000
_SHOWN = 200
_REACH_SECONDS = 3.0
_PROBE_TOKENS = 512
# After so many requests in succession without an answer no more are made.
_MOST_FAILURES = 3
_ASKS = Marks(read_only=True, destructive=False, idempotent=False, open_world=True, parallel=True)
_PROBES = Marks(read_only=True, destructive=False, idempotent=False, open_world=True)
ModelAlias = Annotated[str, "The alias of a model of the file; without it the model of the step."]


@slotted
class Ml:
    """The state that the tools share; the client for InfluxDB is made when it is needed."""

    context: PackContext
    options: MlOptions
    influx: "GuardedClient | None" = None


@asynccontextmanager
async def _lifespan(context: PackContext) -> AsyncGenerator[Ml]:
    options = context.options
    assert isinstance(options, MlOptions)
    state = Ml(context, options)
    try:
        yield state
    finally:
        if state.influx is not None:
            await state.influx.aclose()


@tool(
    _ASKS,
    codes=ASKING_CODES,
    result={"response": "string", "model": "string", "usage": "object"},
    older_parameters={"backend": "model"},
)
async def ml_generate(
    ml: Ml,
    prompt: str,
    model: ModelAlias = "",
    system: str = "",
    temperature: float | None = None,
    max_tokens: int | None = None,
) -> Answer:
    """Asks a model of the file, without tools.

    Args:
        prompt: What the model is asked.
        system: The system prompt.
        temperature: From 0, the most likely answer, to 2.
        max_tokens: Most tokens of the answer.
    """
    _check_texts(prompt=prompt, system=system)
    if not prompt.strip():
        raise PackError("bad_arguments", "`prompt` is empty")
    if temperature is not None and not 0 <= temperature <= HOTTEST:
        raise PackError("bad_arguments", f"`temperature` needs to be 0 to {HOTTEST:g}")
    if max_tokens is not None and not 1 <= max_tokens <= _MOST_TOKENS:
        raise PackError("bad_arguments", f"`max_tokens` needs to be 1 to {_MOST_TOKENS:,}")
    _check_model(ml, model)
    messages = (Message("user", prompt),)
    answer = await ask_model(ToolModelRequest(messages, model, system, temperature, max_tokens))
    text = answer.text.strip()
    trailer = "[the answer was cut off at `max_tokens`]" if answer.stop == "maxTokens" else ""
    data: JsonObject = {"response": answer.text, "model": answer.model, "usage": dict(answer.usage)}
    return Answer(text or "the answer is empty", data, trailer=trailer)


@tool(
    _ASKS,
    codes=ASKING_CODES,
    result={"heuristic": "object", "semantic": "object"},
    older_parameters={"suites": "suite"},
)
async def ml_score(
    ml: Ml, prompt: str, response: str, suite: Literal["heuristic", "semantic", "all"] = "heuristic"
) -> Answer:
    """Scores an answer.

    Args:
        prompt: What was asked.
        response: The answer to it.
        suite: `heuristic` checks it here, `semantic` asks the judge of the options.
    """
    from aish.packs.ml.scoring import heuristic_scores, judge_answer

    _check_texts(prompt=prompt, response=response)
    data: dict[str, JsonValue] = {}
    lines: list[str] = []
    if suite != "semantic":
        scores = heuristic_scores(safe_utf8(prompt), safe_utf8(response))
        rows: JsonObject = {
            name: {"score": score.score, "reason": score.reason} for name, score in scores.items()
        }
        total = overall([score.score for score in scores.values()])
        data["heuristic"] = {"score": total, "checks": rows}
        lines.append(f"heuristic: {total:.2f}")
        lines += [f"  {name}: {score.score:.2f}, {score.reason}" for name, score in scores.items()]
    if suite != "heuristic":
        if ml.options.judge is None:
            message = "there is no judge: the option `judge` of the pack `ml` names a model"
            raise PackError("unavailable", message, **data)
        try:
            verdict = await judge_answer(ml.options.judge, await _rubric(ml), prompt, response)
        except PackError as error:
            raise PackError(error.code, error.message, **data, **error.details) from error
        reason = shorten(for_line(ml.context.services.mask(verdict.reason)), 2 * _SHOWN)
        data["semantic"] = {"score": verdict.score, "reason": reason, "model": ml.options.judge}
        lines.append(f"semantic: {verdict.score:.2f}, {reason}")
    return Answer("\n".join(lines), data)


def overall(scores: Sequence[float]) -> float:
    """The mean; 0 for an empty answer, which is the first check."""
    if scores[0] == 0:
        return 0.0
    return round(sum(scores) / len(scores), 2)


@tool(
    _PROBES,
    codes=ASKING_CODES,
    result={"total": "integer", "passed": "integer", "results": "array"},
    rows={
        "results": {"id": "string", "category": "string", "response": "string", "passed": "boolean"}
    },
    older_parameters={"backend": "model"},
)
async def ml_probe(ml: Ml, model: ModelAlias = "", categories: list[str] | None = None) -> Answer:
    """Probes a model with questions of known answer.

    Args:
        categories: Which of the 16 categories; without it all, with two questions each.
    """
    from aish.packs.ml.probes import CATEGORIES, questions_of

    unknown = [name for name in categories or () if name not in CATEGORIES]
    if unknown:
        near = did_you_mean(unknown[0], CATEGORIES) or f"there are: {', '.join(CATEGORIES)}"
        message = f"there is no category `{shorten(for_line(unknown[0]), _SHOWN)}`; {near}"
        raise PackError("bad_arguments", message)
    _check_model(ml, model)
    rows: list[JsonObject] = []
    failed: list[PackError] = []
    has_answered = False
    for question in questions_of(categories):
        response, passed = "", False
        if len(failed) >= _MOST_FAILURES or (failed and failed[-1].code == "limit"):
            response = f"ERROR: not asked, as {failed[-1].message}"
        else:
            try:
                response = await _ask(model, question)
                passed = question.accepts(response)
                has_answered = True
                failed.clear()
            except PackError as error:
                failed.append(error)
                if not has_answered and (error.code == "limit" or len(failed) == _MOST_FAILURES):
                    raise
                response = f"ERROR: {error.message}"
        rows.append(
            {
                "id": question.id,
                "category": question.category,
                "response": shorten(safe_utf8(ml.context.services.mask(response)), 2 * _SHOWN),
                "passed": passed,
            }
        )
    if not has_answered:
        raise failed[0]
    return _probe_answer(rows)


async def _ask(model: str, question: "ProbeQuestion") -> str:
    messages = (Message("user", question.text),)
    answer = await ask_model(
        ToolModelRequest(messages, model, temperature=0.0, max_tokens=_PROBE_TOKENS)
    )
    return answer.text.strip()


def _probe_answer(rows: Sequence[Mapping[str, JsonValue]]) -> Answer:
    passed = sum(bool(row["passed"]) for row in rows)
    lines = [f"passed {passed} of {counted(len(rows), 'question')}"]
    for row in rows:
        if not row["passed"]:
            reply = shorten(for_line(str(row["response"])), _SHOWN // 2)
            lines.append(f"{row['id']}: {reply or '(an empty answer)'}")
    data: JsonObject = {
        "total": len(rows),
        "passed": passed,
        "results": [dict(row) for row in rows],
    }
    return Answer("\n".join(lines[: count_that_fits(lines)]), data)


@tool(
    READS_WORLD,
    codes=("unavailable",),
    result={
        "runs": "integer",
        "ok": "integer",
        "failed": "integer",
        "models": "array",
        "points": "array",
        "degraded": "string",
    },
    rows={
        "models": {"model": "string", "turns": "integer", "tokens": "integer", "cost_usd": "number"}
    },
)
async def ml_status(ml: Ml, since: str = "24h") -> Answer:
    """Usage and status of past runs.

    Args:
        since: How far back: `30m`, `24h` or `7d`, up to 400 days.
    """
    from aish.packs.ml.run_usage import influx_client, points_since, runs_since

    seconds = seconds_of(since)
    services = ml.context.services
    if services.runs is None:
        raise PackError("unavailable", "no folder of runs is known here")
    usage = await runs_since(services.runs, seconds, services.run_folder)
    lines = [
        f"{counted(usage.runs, 'run')} in {since.strip()}: {usage.ok} ok, {usage.failed} failed"
    ]
    for row in usage.models:
        cost = "" if row["cost_usd"] is None else f", ${row['cost_usd']:.4f}"
        turns = counted(int(str(row["turns"])), "turn")
        lines.append(f"{for_line(str(row['model']))}: {turns}, {row['tokens']} tokens{cost}")
    data: dict[str, JsonValue] = {
        "runs": usage.runs,
        "ok": usage.ok,
        "failed": usage.failed,
        "models": [*usage.models],
    }
    notes = [usage.degraded] if usage.degraded else []
    if (influx := ml.options.influx) is not None:
        try:
            if ml.influx is None:
                ml.influx = influx_client(influx.url)
            token = services.secrets.get(influx.token_env, "")
            data["points"] = points = await points_since(ml.influx, influx, token, seconds)
            lines.append(counted(len(points), "point") + f" of `{for_line(influx.database)}`")
        except PackError as error:
            notes.append(services.mask(error.message))
    if notes:
        data["degraded"] = "; ".join(notes)
        lines.append(f"[degraded: {data['degraded']}]")
    return Answer("\n".join(lines), data)


@tool(
    READS_WORLD,
    result={"backends": "array", "default": "string"},
    rows={"backends": {"name": "string", "origin": "string", "available": "boolean"}},
)
async def ml_backends(ml: Ml) -> Answer:
    """The models of the file and their availability."""
    import anyio

    services = ml.context.services
    problems: dict[str, str] = {}

    async def look(alias: str, model: FileModel) -> None:
        problems[alias] = model.problem or await _unreachable(model)

    async with anyio.create_task_group() as tasks:
        for alias, model in services.models.items():
            tasks.start_soon(look, alias, model)
    rows: list[JsonValue] = []
    lines: list[str] = []
    for alias, model in services.models.items():
        problem = services.mask(problems[alias])
        rows.append({"name": alias, "origin": model.origin, "available": not problem})
        default = "  (default)" if alias == services.default_model else ""
        state = f"not available: {problem}" if problem else "available"
        lines.append(f"{alias}  {for_line(model.origin)}  {state}{default}")
    text = "\n".join(lines) or "the file has no models"
    return Answer(text, {"backends": rows, "default": services.default_model})


async def _unreachable(model: FileModel) -> str:
    """Return the reason why a model's address cannot be used; empty if it can."""
    from urllib.parse import urlsplit

    import anyio

    parts = urlsplit(model.origin)
    if parts.hostname is None or model.has_proxy:
        return ""  # embedded, or only the proxy can tell
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with anyio.fail_after(_REACH_SECONDS):
            async with await anyio.connect_tcp(parts.hostname, port):
                return ""
    except TimeoutError:
        return f"no connection within {_REACH_SECONDS:g} seconds"
    except OSError as error:
        return f"no connection: {(error.strerror or 'unknown host').lower()}"


def _check_model(ml: Ml, alias: str) -> None:
    """Check the alias before any request."""
    models = ml.context.services.models
    if not alias:
        return
    if alias not in models:
        known = did_you_mean(alias, models) or f"models: {backticked(models) or 'none'}"
        message = f"the file has no model `{shorten(for_line(alias), _SHOWN)}`; {known}"
        raise PackError("bad_arguments", message)
    if models[alias].problem:
        message = f"model `{alias}` cannot be used: {models[alias].problem}"
        raise PackError("unavailable", message)


def _check_texts(**texts: str) -> None:
    for name, text in texts.items():
        if len(text) > LONGEST_TEXT:
            message = f"`{name}` has more than {LONGEST_TEXT:,} characters"
            raise PackError("bad_arguments", message)


async def _rubric(ml: Ml) -> str:
    import anyio.to_thread

    from aish.packs.ml.scoring import RUBRIC

    path = ml.options.rubric
    if path is None:
        return RUBRIC
    try:
        text = await anyio.to_thread.run_sync(path.read_text, "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PackError("failed", f"the rubric `{path.name}` cannot be read: {why}") from error
    if not text.strip() or len(text) > LONGEST_RUBRIC:
        message = f"the rubric `{path.name}` needs 1 to {LONGEST_RUBRIC:,} characters"
        raise PackError("failed", message)
    return text.strip()


PACK = Pack(
    tools=(ml_generate, ml_score, ml_probe, ml_status, ml_backends),
    root="none",
    lifespan=_lifespan,
    options=MlOptions,
)
