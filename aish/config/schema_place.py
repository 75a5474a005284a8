"""What the pipeline's schema says of one place in a file."""

from collections.abc import Iterable, Mapping, Sequence

from aish.core.frozen import frozen
from aish.core.json import JsonValue


@frozen
class SchemaPlace:
    """One place in a schema: follows references and the form that is meant for mappings."""

    root: JsonValue
    schema: JsonValue

    def along(self, path: Iterable[str | int]) -> "SchemaPlace":
        """The place that a path leads to."""
        place = self
        for part in path:
            place = place.item() if isinstance(part, int) else place.entry(part)
        return place

    def resolved(self) -> Mapping[str, JsonValue]:
        """The schema itself, or its form for mappings."""
        schema = self.schema
        while isinstance(schema, Mapping) and "$ref" in schema:
            assert isinstance(self.root, Mapping)
            definitions = self.root["$defs"]
            assert isinstance(definitions, Mapping)
            schema = definitions[str(schema["$ref"]).rpartition("/")[2]]
        if isinstance(schema, Mapping) and isinstance(schema.get("anyOf"), Sequence):
            forms = schema["anyOf"]
            assert isinstance(forms, Sequence)
            for form in forms:
                inner = SchemaPlace(self.root, form).resolved()
                if inner.get("type") == "object":
                    return inner
        return schema if isinstance(schema, Mapping) else {}

    def names(self) -> tuple[str, ...]:
        """The keys there can be."""
        properties = self.resolved().get("properties")
        return tuple(properties) if isinstance(properties, Mapping) else ()

    def takes(self, key: str, *, last: bool) -> bool:
        """Whether a new entry `key` makes sense here."""
        if key in self.names():
            return True
        # A new model or server made of one value would be a misspelt one.
        others = self.resolved().get("additionalProperties", True)
        return others is True or (last and isinstance(others, Mapping))

    def entry(self, key: str) -> "SchemaPlace":
        """What is said of an entry."""
        schema = self.resolved()
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return SchemaPlace(self.root, properties[key])
        others = schema.get("additionalProperties", True)
        return SchemaPlace(self.root, others if isinstance(others, Mapping) else {})

    def item(self) -> "SchemaPlace":
        """What is said of an item."""
        return SchemaPlace(self.root, self.resolved().get("items", {}))
