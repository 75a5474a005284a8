"""`annotations` as declared: places in files that a run has something to say of (B11)."""

from aish.config.decode_flow import CONTEXTS
from aish.config.nodes import MappingNode
from aish.config.pipeline import FIELDS, Annotation
from aish.config.reading import Table

ANNOTATIONS = "annotations"


def decode_annotations(top: Table) -> tuple[Annotation, ...]:
    """What stands under `annotations`: an expression, or a list."""
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
        table.problem("as", f"`{name}` is what templates call something else")
    if table.has("as") and not table.has("foreach"):
        table.problem("as", "`as` is for annotations with `foreach`")
    fields = tuple((key, table.data(key)) for key in FIELDS if table.has(key))
    return Annotation(table.path, table.text("foreach"), name, fields)
