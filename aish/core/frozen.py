"""Frozen, slotted value classes: `dataclasses.dataclass(frozen=True, slots=True)`, made faster.

The standard decorator compiles six methods for each class, half a millisecond; a run imports over
a hundred of them before its first request, which was a fifth of its start (docs/decisions/0003).
`frozen` fills the first instances of a class by a loop, compiles `__init__` alone for classes that
are used more often, once for each number of fields, and shares the rest. The result is a dataclass
to everybody who asks: `fields`, `replace`, `is_dataclass`, pattern matching and type checkers.
`slotted` does the same for `dataclasses.dataclass(slots=True)`, for what changes while a run goes
on.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, field
from functools import cache
from itertools import starmap
from operator import attrgetter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, dataclass_transform

Kind = TypeVar("Kind")
_FEW = 8


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[Kind]) -> type[Kind]:
    """Make `cls` a frozen dataclass with slots, out of its annotations and defaults.

    Not for what needs more of `dataclass` than that: `__post_init__`, `InitVar`, `kw_only`,
    inherited fields.
    """
    methods = {
        "__setattr__": _refuse,
        "__delattr__": _refuse,
        "__getstate__": _get_state,
        "__setstate__": _set_state,
        "__hash__": _hash,
    }
    return _rebuild_class(cls, methods)


@dataclass_transform(field_specifiers=(field,))
def slotted(cls: type[Kind]) -> type[Kind]:
    """Make `cls` a dataclass with slots that may change; what `frozen` cannot do, this cannot."""
    return _rebuild_class(cls, {"__hash__": None}, changes=True)


def _rebuild_class(
    cls: type[Kind], methods: dict[str, Any], *, changes: bool = False
) -> type[Kind]:
    namespace = dict(cls.__dict__)
    made = {
        name: _field(name, note, namespace.pop(name, MISSING))
        for name, note in namespace.get("__annotations__", {}).items()
    }
    required = [one.default is MISSING and one.default_factory is MISSING for one in made.values()]
    if (wrong := sum(required)) and not all(required[:wrong]):
        name = [*made][required.index(True, required.index(False))]
        raise TypeError(f"the field {name!r} without a default follows one that has one")
    for leftover in ("__dict__", "__weakref__"):
        namespace.pop(leftover, None)
    names = tuple(made)
    namespace |= {"__slots__": names, "__match_args__": names, "__dataclass_fields__": made}
    for name, method in (methods | {"__eq__": _equal, "__repr__": _repr}).items():
        namespace.setdefault(name, method)
    kind: Any = type(cls)
    new: Any = kind(cls.__name__, cls.__bases__, namespace)
    new.__init__ = _initializer(new, made, changes=changes)
    result: type[Kind] = new
    return result


if TYPE_CHECKING:
    from dataclasses import replace as replace  # ruff: ignore[useless-import-alias] - for type checkers, which look at the fields
else:

    def replace(one: Kind, **changes: Any) -> Kind:
        """Copy an instance of such a class, with other values in some of its fields.

        As `dataclasses.replace` does, without its cases that these classes have not.
        """
        kind = type(one)
        places, values = _places(kind), [*_getter(kind)(one)]
        try:
            for name, value in changes.items():
                values[places[name]] = value
        except KeyError as error:
            raise TypeError(f"{kind.__name__} has no field {error}") from None
        return kind(*values)


def _field(name: str, note: Any, given: Any) -> "Field[Any]":
    made: Any = given
    if not isinstance(given, Field):
        made = field() if given is MISSING else field(default=given)
    made.name, made.type, made.kw_only = name, note, False
    made._field_type = dataclasses._FIELD  # type: ignore[attr-defined]  # ruff: ignore[private-member-access] - how `fields` and `replace` tell a field from a ClassVar
    return made  # type: ignore[no-any-return]  # a `Field`, by both branches


def _initializer(cls: Any, made: "dict[str, Field[Any]]", *, changes: bool) -> Any:
    """Fills the first instances itself: a run makes few of most classes.

    The compiled one takes its place after `_FEW` calls, and where an argument is missing or wrong.
    """
    names = cls.__match_args__
    calls = 0

    def fill(self: Any, *values: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        given = dict(zip(names, values, strict=False)) | named
        complete = len(given) == len(values) + len(named) and calls <= _FEW
        for name, one in made.items() if complete else ():
            if name not in given:
                if one.default_factory is not MISSING:
                    given[name] = one.default_factory()
                elif one.default is not MISSING:
                    given[name] = one.default
        if complete and given.keys() == made.keys():
            for name, value in given.items():
                cls.__dict__[name].__set__(self, value)
        else:
            cls.__init__ = _real(cls, made, changes=changes)
            cls.__init__(self, *values, **named)

    return fill


def _real(cls: Any, made: "dict[str, Field[Any]]", *, changes: bool) -> Any:
    """The one method that is made: each field goes straight into its slot.

    A class that `changes` is assigned to, which takes a fifth of the time of calling the slot.
    """
    is_made = tuple(one.default_factory is not MISSING for one in made.values())
    scope: dict[str, Any] = {"_missing": MISSING}
    defaults = []
    attributes: dict[str, str] = {}
    for number, (name, one) in enumerate(made.items()):
        attributes[f"_at_{number}"] = name
        scope[f"_set_{number}"] = cls.__dict__[name].__set__
        if is_made[number]:
            scope[f"_make_{number}"] = one.default_factory
            defaults.append(MISSING)
        elif one.default is not MISSING:
            defaults.append(one.default)
    code = _compile_init(is_made, changes=changes).replace(co_varnames=("self", *made))
    code = code.replace(co_names=tuple(attributes.get(name, name) for name in code.co_names))
    return FunctionType(code, scope, "__init__", tuple(defaults))


@cache
def _compile_init(is_made: tuple[bool, ...], *, changes: bool) -> CodeType:
    """An initializer for as many fields, some of which have a factory.

    Compiling takes thirty times as long as giving its parameters the names of the fields.
    """
    values = (
        f"_make_{n}() if v{n} is _missing else v{n}" if one else f"v{n}"
        for n, one in enumerate(is_made)
    )
    form = " self._at_{0} = {1}" if changes else " _set_{0}(self, {1})"
    body = list(starmap(form.format, enumerate(values)))
    names = "".join(f", v{number}" for number in range(len(is_made)))
    lines = "\n".join(body) or " pass"
    scope: dict[str, Any] = {}
    exec(f"def __init__(self{names}):\n{lines}", scope)  # ruff: ignore[exec-builtin] - as `dataclasses` does, on no text but ours
    code: CodeType = scope["__init__"].__code__
    return code


def _refuse(self: Any, name: str, *_: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot change the field {name!r} of {type(self).__name__}")


def values_of(self: Any) -> tuple[Any, ...]:
    """The values of the fields, in their order."""
    values: tuple[Any, ...] = _getter(self.__class__)(self)
    return values


@cache
def _getter(cls: Any) -> Callable[[Any], Any]:
    """Return a getter of a class's field values: they are keys of many dictionaries."""
    names: tuple[str, ...] = cls.__match_args__
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple([getattr(one, name) for name in names])


@cache
def _places(cls: Any) -> dict[str, int]:
    return {name: place for place, name in enumerate(cls.__match_args__)}


def _equal(self: Any, other: Any) -> Any:
    if self is other:
        return True
    if self.__class__ is not other.__class__:
        return NotImplemented
    return values_of(self) == values_of(other)


def _hash(self: Any) -> int:
    return hash(values_of(self))


def _repr(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _get_state(self: Any) -> list[Any]:
    return list(values_of(self))


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__match_args__, state, strict=True):
        getattr(type(self), name).__set__(self, value)
