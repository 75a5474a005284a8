"""The inputs of a run: `-i`, `--input-text`, `--inputs`, defaults; each fits its schema."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aish.config.documents import UnreadableError, parse_document, read_text
from aish.config.model import Pipeline
from aish.core.errors import UsageError, did_you_mean
from aish.core.json import JsonObject, JsonValue
from aish.core.patterns import lazy_pattern
from aish.core.phrases import backticked
from aish.system.schema.check import SchemaProblem, check_here, spell_path

INPUT_LIMIT = 64 * 1024 * 1024
_OPTION = "-i"
_AT = lazy_pattern(r"^([^=]*=)@")


def collect_inputs(
    pipeline: Pipeline,
    given: Sequence[str],
    file: str | None,
    read_stdin: Callable[[], str],
    earlier: Mapping[str, JsonValue] | None = None,
) -> dict[str, JsonValue]:
    """Every input of the pipeline with its value, in the order of the file.

    A value given with `-i` takes precedence over one of `--inputs`, then over one given `earlier`
    to the same run, then over the default.

    Raises:
        UsageError: one is missing, unknown, or does not fit its schema; all of them in one message.
    """
    schemas = pipeline.inputs
    issues: list[str] = []
    values = {name: schema["default"] for name, schema in schemas.items() if "default" in schema}
    values |= {name: value for name, value in (earlier or {}).items() if name in schemas}
    source = "--inputs"
    for name, value in _of_file(file, read_stdin).items():
        if name in schemas:
            values[name] = value
        else:
            issues.append(_unknown(name, schemas, source))
    for text in given:
        from aish.config.typed_text import as_typed

        name, value = _split_option(text)
        if name in schemas:
            values[name] = as_typed(value, schemas[name])
        else:
            issues.append(_unknown(name, schemas, _OPTION))
    unknown = bool(issues)
    texts: list[str] = []  # inputs that got a text, and are none
    for name, value in values.items():
        problems = fits(schemas[name], value)
        issues += [f"the input `{name}`{_problem_text(problem)}" for problem in problems]
        texts += [name] if problems and isinstance(value, str) else []
    missing = [f"`{name}`" for name in schemas if name not in values]
    if missing:
        many = "inputs are" if len(missing) > 1 else "input is"
        issues.append(f"the {many} missing: {', '.join(missing)}")
    if issues:
        raise UsageError("\n".join(issues), hint=_hint(pipeline, missing, texts, unknown=unknown))
    return {name: values[name] for name in schemas}


def complete_inputs(
    schemas: Mapping[str, JsonObject], given: Mapping[str, JsonValue], where: str | None = None
) -> dict[str, JsonValue]:
    """Every input with its value, in the order of the file: those given, else their defaults.

    Raises:
        UsageError: one is missing, unknown, or does not fit its schema; all of them in one message.
    """
    defaults = {name: schema["default"] for name, schema in schemas.items() if "default" in schema}
    values = {**defaults, **given}
    issues: list[str] = []
    for name, value in values.items():
        if name not in schemas:
            near = did_you_mean(name, schemas)
            issues.append(f"unknown input `{name}`" + (f", {near}" if near else ""))
            continue
        for problem in fits(schemas[name], value):
            place = f" at {spell_path(problem.path)}" if problem.path else ""
            issues.append(f"the input `{name}`{place}: {problem.message}")
    issues += [f"the input `{name}` is missing" for name in schemas if name not in values]
    if issues:
        raise UsageError("\n".join(issues), where=where)
    return {name: values[name] for name in schemas}


def fits(schema: JsonObject, value: JsonValue) -> tuple[SchemaProblem, ...]:
    """Return the problems of a value by a schema of the file, whose author is trusted."""
    problems = check_here(schema, value)
    if problems is not None:
        return problems
    from aish.system.schema.worker_process import evaluate

    return tuple(evaluate(schema, value))


def join_inputs(inputs: Sequence[str] | None, texts: Sequence[str] | None) -> tuple[str, ...]:
    """Join `-i` and `--input-text`, the latter as `-i` spells a text that is no file."""
    return (*(inputs or ()), *(_AT.sub(r"\1@@", text) for text in texts or ()))


def _split_option(text: str) -> tuple[str, str]:
    """The name and the text of `NAME=VALUE` or `NAME=@FILE`; `NAME=@@TEXT` is the text `@TEXT`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        hint = "for example -i since=v2"
        if text.startswith("@") and not equals:
            hint = f"`--inputs {text[1:]}` reads all inputs from a file"
        raise UsageError(f"`{text}` is not NAME=VALUE", where=_OPTION, hint=hint)
    if not value.startswith("@"):
        return name, value
    if value.startswith("@@"):
        return name, value[1:]
    return name, _text(Path(value[1:]), f"{_OPTION} {name}")


def _of_file(file: str | None, read_stdin: Callable[[], str]) -> Mapping[str, JsonValue]:
    if file is None:
        return {}
    name = "stdin" if file == "-" else file
    text = read_stdin() if file == "-" else _text(Path(file), "--inputs")
    try:
        value = parse_document(text, name)
    except ValueError as error:
        raise UsageError(f"`{name}` is neither JSON nor YAML: {error}", where="--inputs") from error
    if not isinstance(value, Mapping):
        hint = "write one entry for each input"
        raise UsageError(f"`{name}` does not contain a mapping", where="--inputs", hint=hint)
    return value


def _text(path: Path, where: str) -> str:
    try:
        return read_text(path, INPUT_LIMIT)
    except UnreadableError as error:
        raise UsageError(f"`{path}`: {error.problem.message}", where=where) from error


def _unknown(name: str, schemas: Mapping[str, JsonObject], where: str) -> str:
    near = did_you_mean(name, schemas)
    return f"{where}: unknown input `{name}`" + (f", {near}" if near else "")


def _problem_text(problem: SchemaProblem) -> str:
    place = f" at {spell_path(problem.path)}" if problem.path else ""
    return f"{place}: {problem.message}"


_SPELLINGS = {
    "array": "write a list as `-i {name}='[A, B]'`",
    "object": "write a mapping as `-i {name}='{{KEY: VALUE}}'`",
    "boolean": "write `-i {name}=true` or `-i {name}=false`",
}
"""How a value of a type is given, by the type of its schema."""


def _hint(
    pipeline: Pipeline, missing: Sequence[str], texts: Sequence[str], *, unknown: bool
) -> str | None:
    if missing:
        return f"give each as -i NAME=VALUE, such as -i {missing[0].strip('`')}=…"
    if unknown:
        return f"inputs of {pipeline.file}: {backticked(pipeline.inputs) or 'none'}"
    for name in texts:
        if spelling := _SPELLINGS.get(str(pipeline.inputs[name].get("type"))):
            return spelling.format(name=name)
    return None
