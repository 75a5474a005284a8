"""A `prompt` step: a model with the tool loop."""

from aish.config.pipeline import PromptStep
from aish.errors import StepFailedError
from aish.loop.conversation import add_system, add_user
from aish.loop.converse import Ask, Outcome, converse
from aish.policy.rules import matches_tool
from aish.run.records import StepRecord
from aish.run.stage import EXIT_OF_STATUS, Stage
from aish.run.structured import instruction, parse_answer
from aish.run.tools import AllTools
from aish.templates.render import render
from aish.vocab.events import Failure, Place
from aish.vocab.json import JsonValue
from aish.vocab.messages import History
from aish.vocab.protocols import AnswerSchema, Model
from aish.vocab.tools import Tool, ToolName


async def run_prompt(step: PromptStep, stage: Stage) -> StepRecord:
    """Ask the step's model until it answers without a tool call.

    Raises:
        UnavailableError: the model stayed out of reach.
        StepFailedError: the endpoint refused, or a template cannot be rendered.
    """
    model = stage.resources.models[stage.plan.model_of(step)]
    schema = AnswerSchema(f"{step.id}_answer", step.output.schema) if step.output else None
    ask = Ask(
        history=opening(step, stage, model),
        model=model,
        tools=visible_tools(step, stage.resources.tools.listed()),
        tool_choice=wire_choice(step.tool_choice, stage.resources.tools),
        params=step.params,
        schema=schema,
        place=Place(step=step.id),
    )
    outcome = await converse(ask, stage.equipment(step.limits, step.on_denied))
    if schema is None or outcome.status != "ok":
        return _record(step, outcome, output=outcome.text if outcome.status == "ok" else None)
    return await _with_schema(step, outcome, schema, stage)


def opening(step: PromptStep, stage: Stage, model: Model) -> History:
    """The conversation up to the first request."""
    context = stage.context()
    history = History()
    systems = [text for text in (step.prompt.system, step.system) if text is not None]
    if systems:
        add_system(history, "\n\n".join(render(text, context) for text in systems))
    user = render(step.prompt.user, context)
    if step.output is not None and not model.enforces_schema:
        user = f"{user}\n\n{instruction(step.output.schema)}"
    add_user(history, user)
    return history


def visible_tools(step: PromptStep, listed: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """What the step's model is shown: all tools, or those its globs match."""
    if step.tools is None:
        return listed
    globs = step.tools
    return tuple(tool for tool in listed if any(matches_tool(glob, tool.name) for glob in globs))


def wire_choice(choice: str, tools: AllTools) -> str:
    """`tool_choice` as the wire has it: a tool's name becomes its wire name."""
    if "__" not in choice:
        return choice
    server, _, name = choice.partition("__")
    tool = tools.by_name(ToolName(server, name))
    if tool is None:
        tools.require(ToolName(server, name))
        raise StepFailedError(f"`tool_choice` names the tool `{choice}`, which no server offers")
    return tool.wire


async def _with_schema(
    step: PromptStep, outcome: Outcome, schema: AnswerSchema, stage: Stage
) -> StepRecord:
    try:
        value = parse_answer(outcome.text)
    except ValueError as error:
        failure = Failure("schema", f"the answer is not JSON: {error}")
        return _record(step, outcome, status_failure=failure)
    problems = await stage.resources.equipment.check_arguments(schema.schema, value)
    if problems:
        first = "; ".join(str(problem) for problem in problems[:3])
        failure = Failure("schema", f"the answer does not fit its schema: {first}")
        return _record(step, outcome, output=value, status_failure=failure)
    return _record(step, outcome, output=value)


def _record(
    step: PromptStep,
    outcome: Outcome,
    *,
    output: JsonValue = None,
    status_failure: Failure | None = None,
) -> StepRecord:
    status = "failed" if status_failure else outcome.status
    return StepRecord(
        id=step.id,
        kind="prompt",
        status=status,
        text=outcome.text,
        output=output,
        calls=outcome.calls,
        usage=outcome.usage,
        failure=status_failure or outcome.failure,
        exit_code=EXIT_OF_STATUS[status],
    )
