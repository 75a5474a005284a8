"""`prompts:` and `steps:` into what runs, the short form of one step included (F1, F2)."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar, cast

from aish.config.decode_expect import decode_expect
from aish.config.decode_flow import decode_context, decode_flow
from aish.config.decode_prompts import read_prompt
from aish.config.documents import Documents
from aish.config.nodes import UNREADABLE, BrokenNode, MappingNode, Node, ScalarNode
from aish.config.reading import Table
from aish.config.steps import (
    Attachment,
    CallStep,
    Context,
    LoopLimits,
    OnDenied,
    Output,
    PipelineStep,
    Prompt,
    PromptStep,
    RunStep,
    ServerPrompt,
    Step,
)
from aish.core.errors import did_you_mean
from aish.core.frozen import frozen

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
_BELONGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_PROMPT_ONLY, ("prompt",)),
    "context": ("prompt",),
    "with": ("call", "pipeline"),
}
# Of what is for one kind of step, what stands at the top for the whole file.
_OF_THE_FILE = frozenset({"model", "context"})
_NAME = re.compile(r"[a-z][a-z0-9_-]*\Z")


@frozen
class StepsReader:
    """What the steps of a file have in common."""

    prompts: Mapping[str, Prompt | ServerPrompt]
    knows_prompts: bool
    documents: Documents
    limits: LoopLimits
    on_denied: OnDenied
    context: Context

    def steps(self, top: Table) -> tuple[Step, ...]:
        """All steps; one that stands at the top is called `main`."""
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
        """The step; where it is not told what it does, one of any kind in its place."""
        kinds = _kinds(table)
        if len(kinds) > 1:
            named = " and ".join(f"`{key}`" for key in kinds)
            message = f"a step does one thing, and this has {named}"
            table.problem(kinds[1], message, "make two steps of it")
        elif not kinds:
            table.problem(None, "a step needs `prompt`, `call`, `run` or `pipeline`")
            here = table.node.position
            table.node.put(_ANY_KIND, BrokenNode(here, None), here)
        kind = kinds[0] if kinds else _ANY_KIND
        for key, owners in _BELONGS.items():
            of_file = not table.path and key in _OF_THE_FILE
            if table.has(key) and kinds and not of_file and not set(kinds) & set(owners):
                named = " or ".join(f"`{owner}`" for owner in owners)
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
            needs=table.texts("needs"),
            expect=decode_expect(table, self.documents),
            flow=decode_flow(table, at_top=not table.path),
        )

    def _output(self, table: Table) -> Output | None:
        output = table.child("output")
        if output is None:
            return None
        schema = self.documents.schema(output, "schema")
        return Output(schema, output.whole("attempts", Output(schema).attempts))

    def _prompt(self, table: Table) -> tuple[Prompt | ServerPrompt, str | None]:
        text = table.text("prompt")
        if text is None:
            return read_prompt(table, "prompt", self.documents), None
        if text in self.prompts:
            return self.prompts[text], text
        if _NAME.match(text) and self.knows_prompts:
            hint = did_you_mean(text, self.prompts) or (
                f"for a prompt of this one word write `prompt: {{user: {text}}}`"
            )
            table.problem("prompt", f"unknown prompt `{text}`", hint)
        return Prompt(user=text), None

    def _call(self, table: Table) -> CallStep:
        return CallStep(
            id=_id(table),
            call=table.text("call") or "",
            arguments=table.mapping("with"),
            limits=loop_limits(table, self.limits),
            on_denied=on_denied(table, self.on_denied),
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
    """A file as a person would type it, which messages name it by: relative where it is beneath."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def loop_limits(table: Table, default: LoopLimits) -> LoopLimits:
    """The bounds that stand in `table`, over those around it."""
    return LoopLimits(
        max_tool_depth=table.whole("max_tool_depth", default.max_tool_depth),
        max_calls_per_turn=table.whole("max_calls_per_turn", default.max_calls_per_turn),
        result_limit=table.size("result_limit", default.result_limit),
    )


Denied = TypeVar("Denied", OnDenied, OnDenied | None)


def on_denied(table: Table, default: Denied) -> Denied:
    """What a denial means here."""
    return cast("Denied", table.text("on_denied") or default)


def _attachments(table: Table) -> Iterator[Attachment]:
    """What is attached: one text, or a list of texts and of `{server: …, uri: …}`."""
    alone = table.text("attach")
    if alone is not None:
        yield Attachment(alone)
    for path, node in table.items("attach"):
        if isinstance(node, MappingNode):
            entry = Table(node, path, table.problems)
            yield Attachment(entry.text("uri") or "", entry.text("server"))
        elif isinstance(node, ScalarNode):
            yield Attachment(str(node.value))


def _kinds(table: Table) -> list[str]:
    """What a step says that it does, be it broken."""
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
