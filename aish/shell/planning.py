"""What a session opens of a file, known before anything is opened (F8, F10)."""

from dataclasses import replace

from aish.config.model import Pipeline
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, make_plan
from aish.system.secrets.secrets import Secrets


def session_plan(
    pipeline: Pipeline, options: RunOptions, secrets: Secrets, model: str | None = None
) -> Plan:
    """What a session opens: the servers, the rules with those of `shell`, and one model.

    Raises:
        PipelineError: a variable that these need is not set.
        UsageError: an option names what the file does not have.
    """
    rules = pipeline.rules
    ours = replace(rules, auto_approve=rules.auto_approve + pipeline.shell.auto_approve)
    bare = replace(pipeline, steps=(), outputs=None, rules=ours)
    plan = _without_prompts(make_plan(bare, options, secrets=secrets))
    alias = model or plan.default_model
    if alias is None:
        return plan
    summary = pipeline.context.summary_model if pipeline.context.max_tokens else None
    judges = (alias,) if summary is None else (alias, summary)
    return _without_prompts(make_plan(bare, options, secrets=secrets, judges=judges))


def _without_prompts(plan: Plan) -> Plan:
    """A session has no steps, so what a lock pins of their prompts is not about it."""
    return plan if plan.lock is None else replace(plan, lock=replace(plan.lock, prompts={}))
