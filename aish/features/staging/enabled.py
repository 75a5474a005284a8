"""Whether a run may stage calls at all: the rest of this room is imported only then."""

from aish.engine.plan.plan import Plan


def stages(plan: Plan) -> bool:
    """Whether a rule of a pipeline, or of one of its sub-pipelines, stages calls."""
    return bool(plan.policy.stage) or any(map(stages, plan.inner.values()))
