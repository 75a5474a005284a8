"""Compiles declared rules, and judges whether one applies to a call.

By the name of the tool, its arguments, and the words of its command, in that order below. Which
rule wins is up to `decide`; globs over text are in `system/globs`.
"""

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from itertools import starmap
from typing import Literal
from urllib.parse import unquote

from aish.core.errors import UsageError
from aish.core.events import RuleInfo
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.normal_form import compatible_form
from aish.core.phrases import counted, shorten
from aish.core.rules import RuleEntry, RuleLists
from aish.core.text import for_line, for_terminal
from aish.core.tools import Tool, ToolName
from aish.system.globs import is_autorun, matches_below, matches_path, matches_word

SEPARATOR = "__"

ListName = Literal["auto_approve", "ask", "deny", "parallel", "idempotent", "stage"]

THIS_SESSION = "this session"
"""Where a rule stands that a person made while working."""

LOCAL_COMMAND = ToolName("shell", "run")
"""What `run` steps are approved as; known in every pipeline."""

REST = "**"
"""As the last word of a pattern: any further words, none included."""

LONGEST = 4096
"""Characters of a text that globs are tried on; the cost grows with the product."""

_MEANT = 100
"""How `near` a rule is that would apply but for what kind of tool or command this is."""
_PARTLY = 50
"""How `near` one is with a condition that the arguments do not fit."""


@frozen
class Rule:
    """Rule with its glob already split; `text` is how it is shown and recorded.

    `given_for` is the tool that the user said "always" to: the rule does not apply once the tool
    has changed.
    """

    list: ListName
    entry: RuleEntry
    server: str
    tool: str
    text: str
    given_for: Tool | None = None

    @property
    def exact(self) -> bool:
        """True if the rule names one tool, without a wildcard."""
        return is_exact(self.entry.tool)

    @property
    def name(self) -> str:
        """Its name in decisions: its text, and whether it is of this session only."""
        return f"{self.text} ({THIS_SESSION})" if self.entry.path == THIS_SESSION else self.text

    @property
    def unconditional(self) -> bool:
        """True if the arguments do not matter."""
        entry = self.entry
        return not entry.when and entry.schema is None and entry.command is None

    def covers(self, name: ToolName) -> bool:
        """Match the glob against a tool; conditions are not checked."""
        return _matches(self.server, self.tool, name.server, name.name)


@frozen
class Policy:
    """All rules of a run. `deny` beats `stage` beats `ask` beats `auto_approve`."""

    auto_approve: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    parallel: tuple[Rule, ...] = ()
    idempotent: tuple[Rule, ...] = ()
    stage: tuple[Rule, ...] = ()

    def is_parallel(self, tool: Tool) -> bool:
        """Return true if its calls may run in parallel: our rule, or a pack's own mark."""
        return tool.parallel or _any_covers(self.parallel, tool.name)

    def is_idempotent(self, tool: Tool) -> bool:
        """Return true if a call of it may be sent again."""
        return _any_covers(self.idempotent, tool.name)

    def is_repeatable(self, tool: Tool) -> bool:
        """Return true if a call may be repeated unasked: it only reads, or is idempotent."""
        return self.is_parallel(tool) or self.is_idempotent(tool)

    def deciders(self) -> tuple[Rule, ...]:
        """The deciding rules, the strictest list first."""
        return self.deny + self.stage + self.ask + self.auto_approve

    def infos(self) -> tuple[RuleInfo, ...]:
        """Every rule as the plan and `run.started` show it."""
        return tuple(RuleInfo(list=rule.list, rule=rule.text) for rule in self.all())

    def with_rule(self, rule: Rule) -> "Policy":
        """A copy of the policy with another deciding rule."""
        if rule.list == "deny":
            return replace(self, deny=(*self.deny, rule))
        assert rule.list == "auto_approve", "only these are added to a session"
        return replace(self, auto_approve=(*self.auto_approve, rule))

    def without_approved(self, server: str) -> "Policy":
        """The same policy without the user's approvals for that server."""
        kept = (rule for rule in self.auto_approve if not _is_approved_here(rule, server))
        return replace(self, auto_approve=tuple(kept))

    def all(self) -> tuple[Rule, ...]:
        """Every rule, the deciding ones first."""
        return self.deciders() + self.parallel + self.idempotent


def _any_covers(rules: tuple[Rule, ...], name: ToolName) -> bool:
    # These lists are used before arguments are known: a rule with a condition does not apply yet.
    return any(rule.unconditional and rule.covers(name) for rule in rules)


def _is_approved_here(rule: Rule, server: str) -> bool:
    return rule.entry.path == THIS_SESSION and rule.server == server


class Fit(Enum):
    """Result of a condition; `UNSURE` is never treated as permission."""

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"


FitsSchema = Callable[[JsonObject, JsonObject], bool | None]
"""Whether arguments fit a schema; `None` where that cannot be told here."""


@frozen
class Judgement:
    """The evaluation of one rule: whether it applies, and the reason as text.

    Of rules that do not, the one with the highest `near` was most likely meant; 0 is for unrelated
    ones.
    """

    rule: Rule
    fit: Fit
    why: str
    near: int = 0


@frozen
class ParsedCommand:
    """Command line of a call; `words` is `None` where only a shell could tell.

    `whole` commands are in a language without words that we know (PowerShell): only a rule with
    exactly that text fits.
    """

    words: tuple[str, ...] | None
    raw: JsonValue
    whole: bool = False

    @property
    def program(self) -> str:
        """The file name of the first word."""
        return self.words[0].rpartition("/")[2] if self.words else ""


@frozen
class Miss:
    """Why a permitting rule does not fit a command; a higher `near` is a closer match."""

    why: str
    near: int


def compile_policy(rules: RuleLists) -> Policy:
    """The rules as they decide; a glob without `__` is a `UsageError`."""
    return Policy(
        auto_approve=_compile("auto_approve", rules.auto_approve),
        ask=_compile("ask", rules.ask),
        deny=_compile("deny", rules.deny),
        parallel=_compile("parallel", rules.parallel),
        idempotent=_compile("idempotent", rules.idempotent),
        stage=_compile("stage", rules.stage),
    )


def _compile(name: ListName, entries: tuple[RuleEntry, ...]) -> tuple[Rule, ...]:
    return tuple(rule_of(name, entry) for entry in entries)


def rule_of(name: ListName, entry: RuleEntry) -> Rule:
    """Compile a rule.

    Raises:
        UsageError: its glob has no `__`, or its command no words.
    """
    try:
        server, tool = split_glob(entry.tool)
    except UsageError as error:
        raise UsageError(error.message, where=entry.path or None, hint=error.hint) from None
    if entry.command is not None and not entry.command:
        raise UsageError("`command` has no words", where=entry.path or None)
    return Rule(list=name, entry=entry, server=server, tool=tool, text=rule_text(entry))


def rule_text(entry: RuleEntry) -> str:
    """A rule in one line: its glob, and its conditions as JSON."""
    parts = [entry.tool]
    if entry.when:
        parts.append("when " + _compact(entry.when))
    if entry.schema is not None:
        parts.append("schema " + _compact(entry.schema))
    if entry.command is not None:
        parts.append("command " + _compact(entry.command))
    return " ".join(parts)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=str)


def rules_without_tools(policy: Policy, tools: Sequence[Tool]) -> tuple[RuleEntry, ...]:
    """The rules that match no known tool: a warning in `plan`, an error with `--strict`."""
    known = [LOCAL_COMMAND, *(tool.name for tool in tools)]
    return tuple(
        rule.entry for rule in policy.all() if not any(rule.covers(name) for name in known)
    )


def split_glob(glob: str) -> tuple[str, str]:
    """The server part and the tool part of `alias__tool`, split at the leftmost `__`.

    Raises:
        UsageError: there is no `__`, or nothing on one side of it.
    """
    server, separator, tool = glob.partition(SEPARATOR)
    if not separator:
        raise UsageError(
            f"`{glob}` has no `__` between server and tool",
            hint=f"write `{glob}__*` for every tool of a server, `*__{glob}` for one on any server",
        )
    if not server or not tool:
        raise UsageError(
            f"`{glob}` has nothing {'before' if tool else 'after'} its `__`",
            hint="write `*` for any server or any tool",
        )
    return server, tool


def is_exact(glob: str) -> bool:
    """Return true if a glob has no wildcard and so names a single item."""
    return "*" not in glob and "?" not in glob


def matches_tool(glob: str, name: ToolName) -> bool:
    """Match a glob `alias__tool`, server and tool separately and whole.

    A glob without `__` is a `UsageError`.
    """
    server, tool = split_glob(glob)
    return _matches(server, tool, name.server, name.name)


@lru_cache(maxsize=4096)
def _matches(server: str, tool: str, alias: str, name: str) -> bool:
    """Match both globs against both parts of a name: asked anew for each call of a tool."""
    return matches_word(server, alias) and matches_word(tool, name)


_PATH = "path"
_NEW_PATH = "new_path"


def judge(
    rule: Rule,
    tool: Tool,
    arguments: JsonObject,
    fits_schema: FitsSchema,
    mask: Callable[[str], str] = str,
) -> Judgement:
    """Judge whether `rule` applies to a call of `tool` with exactly these arguments.

    `mask` takes the secrets out of those that the reason shows.
    """
    permits = rule.list not in {"ask", "deny", "stage"}
    if not rule.covers(tool.name):
        return Judgement(rule, Fit.NO, f"`{rule.entry.tool}` does not match `{tool.name}`")
    if permits:
        why = (
            _not_meant(rule, tool)
            or _autorun(rule, tool, arguments, mask)
            or _changes_more(rule, tool, arguments)
        )
        if why:
            return Judgement(rule, Fit.NO, why, near=_MEANT)
    found = _conditions(rule, tool, arguments, fits_schema, mask, permits=permits)
    if permits and found.fit is Fit.YES and is_command_tool(tool.name):
        return _certain_command(rule, tool, arguments) or found
    return found


def may_approve(rule: Rule, tool: Tool) -> bool:
    """Return true if a permitting rule approves some calls of a tool."""
    return rule.covers(tool.name) and _not_meant(rule, tool) is None


_DESTRUCTIVE = (
    "the tool calls itself destructive and its server is not trusted: only its exact name"
)


def _not_meant(rule: Rule, tool: Tool) -> str | None:
    """Why a permitting rule does not permit this tool, although the name matches."""
    if rule.given_for is not None and rule.given_for != tool:
        return "it was given for the tool as it was before it changed"
    if tool.annotations.destructive and not tool.trusted:
        if not rule.exact:
            return _DESTRUCTIVE
        if tool.name == LOCAL_COMMAND and rule.unconditional:
            # Approval for the commands of a file's author does not extend to those a model
            # proposes.
            return "a model proposes it: only a rule about its command"
    return None


def autorun_paths(tool: Tool, arguments: JsonObject) -> Mapping[str, str]:
    """The arguments of a call by which files would change that programs run by themselves.

    Only a rule with that very path under `when` approves such a call.
    """
    if not tool.builtin or tool.annotations.read_only is True:
        return {}
    given = ((name, arguments.get(name)) for name in (_PATH, _NEW_PATH))
    return {name: path for name, path in given if isinstance(path, str) and is_autorun(path)}


def _autorun(
    rule: Rule, tool: Tool, arguments: JsonObject, mask: Callable[[str], str]
) -> str | None:
    """Why a permitting rule does not permit changing such a file, or `None`."""
    when = rule.entry.when
    for name, path in autorun_paths(tool, arguments).items():
        # A rule about `path` that is silent on `new_path` means both.
        if when.get(name, when.get(_PATH)) != path:
            return (
                f"other programs run {_quote(path, mask)} by themselves: only a rule with exactly "
                "this path under `when`"
            )
    return None


def _changes_more(rule: Rule, tool: Tool, arguments: JsonObject) -> str | None:
    """Why a permitting rule about `path` does not permit changes of files below it, or `None`."""
    wanted = rule.entry.when.get(_PATH)
    if not tool.reach or tool.annotations.read_only is True or not isinstance(wanted, str):
        return None
    if wanted.endswith(REST) or (rule.exact and wanted == arguments.get(_PATH)):
        return None
    return f"the call may change files below its `path`, and `{wanted}` has no `**` at its end"


_UNCHECKED = "the schema is too complex to be certain of"


def _conditions(
    rule: Rule,
    tool: Tool,
    arguments: JsonObject,
    fits_schema: FitsSchema,
    mask: Callable[[str], str],
    *,
    permits: bool,
) -> Judgement:
    """The result for all conditions of a rule; the worst one counts."""
    entry = rule.entry
    doubt = ""
    for name, wanted in entry.when.items():
        fit, which = _fit_argument(name, entry.when, arguments, permits=permits)
        if fit is Fit.NO and name == _PATH and _reaches(rule, tool, arguments):
            doubt = f"the call looks below a folder, and something there may fit `{wanted}`"
            continue
        if fit is Fit.NO:
            why = f"argument `{which}` does not fit `{wanted}`"
            return Judgement(rule, Fit.NO, why, near=_PARTLY)
        if fit is Fit.UNSURE:
            doubt = f"whether argument `{which}` fits `{wanted}` is not certain"
    if entry.command is not None:
        found = _command(rule, entry.command, tool, arguments, mask, permits=permits)
        if found.fit is Fit.NO:
            return found
        doubt = found.why if found.fit is Fit.UNSURE else doubt
    if entry.schema is not None:
        fits = fits_schema(entry.schema, arguments)
        if fits is False or (fits is None and permits):
            why = "the arguments do not fit the schema" if fits is False else _UNCHECKED
            return Judgement(rule, Fit.NO, why, near=_PARTLY)
        if fits is None:
            doubt = _UNCHECKED
    return Judgement(rule, Fit.UNSURE, doubt) if doubt else Judgement(rule, Fit.YES, "it matches")


def _fit_argument(
    name: str, when: Mapping[str, JsonValue], arguments: JsonObject, *, permits: bool
) -> tuple[Fit, str]:
    """The result of a condition, and the argument that decided it.

    What moves a file touches two paths, and a rule about `path` that is silent on `new_path` means
    both: it permits only where both are permitted, and forbids where one is forbidden.
    """
    names = [name]
    if name == _PATH and _NEW_PATH in arguments and _NEW_PATH not in when:
        names.append(_NEW_PATH)
    fits = [
        (
            fit_value(when[name], arguments[one], permits=permits) if one in arguments else Fit.NO,
            one,
        )
        for one in names
    ]
    order = (Fit.NO, Fit.UNSURE, Fit.YES) if permits else (Fit.YES, Fit.UNSURE, Fit.NO)
    return min(fits, key=lambda found: order.index(found[0]))


_CAUTIOUS = frozenset({"deny", "ask"})


def _reaches(rule: Rule, tool: Tool, arguments: JsonObject) -> bool:
    """Return true if a call may meet something below a folder that a rule is about."""
    wanted, given = rule.entry.when[_PATH], arguments.get(_PATH, "")
    # A stage rule is about changes: what only reads below a folder is not staged.
    is_meant = rule.list in _CAUTIOUS or (
        rule.list == "stage" and tool.annotations.read_only is not True
    )
    if not is_meant or not tool.reach or not isinstance(wanted, str):
        return False
    folder = given if isinstance(given, str) and tool.reach == "below" else ""
    return len(folder) > LONGEST or matches_below(_fold(wanted), _fold(_canonical(folder)))


def _command(
    rule: Rule,
    pattern: tuple[str, ...],
    tool: Tool,
    arguments: JsonObject,
    mask: Callable[[str], str],
    *,
    permits: bool,
) -> Judgement:
    """Match the command of a call against the command pattern of a rule."""
    command = command_of(arguments, tool.name.name)
    fit = fit_command(pattern, command, permits=permits, option=tool.builtin)
    if fit is Fit.NO and permits:
        miss = miss_of(pattern, command, mask)
        return Judgement(rule, fit, miss.why, near=miss.near)
    if fit is Fit.NO:
        return Judgement(rule, fit, "the command does not fit, word by word")
    return Judgement(rule, fit, "whether the command fits is not certain")


def _certain_command(rule: Rule, tool: Tool, arguments: JsonObject) -> Judgement | None:
    """Why a permitting rule does not permit this command after all, or `None`."""
    if approves_every_command(rule, tool):
        return None
    if why := _elsewhere(rule, tool, arguments):
        return Judgement(rule, Fit.NO, why, near=_MEANT)
    command = command_of(arguments, tool.name.name)
    if command is None:
        return Judgement(rule, Fit.NO, "there is no command in the arguments")
    if command.words is not None or _states(rule, tool, command):
        return None
    return Judgement(rule, Fit.NO, uncertain(command), near=_MEANT)


def approves_every_command(rule: Rule, tool: Tool) -> bool:
    """Return true if a rule approves all that a pack's tool can run, by its plain name."""
    return tool.builtin and rule.exact and rule.unconditional and is_command_tool(tool.name)


_DEFAULTS: Mapping[str, tuple[JsonValue, ...]] = {"cwd": (".",), "shell": ("sh",), "env": ((), {})}
"""Where and how a command runs if its call does not say."""


def _elsewhere(rule: Rule, tool: Tool, arguments: JsonObject) -> str | None:
    """Why a rule about a command does not permit it in that folder, shell or environment."""
    entry = rule.entry
    keys = command_keys(tool.name.name)
    if entry.command is None and not any(key in entry.when for key in keys):
        return None
    for name, usual in _DEFAULTS.items():
        if name in arguments and name not in entry.when:
            value = arguments[name]
            if not any(same_json(value, one) for one in usual):
                return f"`{name}` is not the default: a rule about a command needs it under `when`"
    return None


def _states(rule: Rule, tool: Tool, command: ParsedCommand) -> bool:
    stated = command_of(rule.entry.when, tool.name.name)
    patterns = (rule.entry.command, None if stated is None else stated.raw)
    return any(pattern is not None and spells_out(pattern, command) for pattern in patterns)


def fit_value(wanted: JsonValue, value: JsonValue, *, permits: bool) -> Fit:
    """Compare an argument: text by glob, other values by equality."""
    if isinstance(wanted, str) and isinstance(value, str):
        return fit_permitted_text(wanted, value) if permits else fit_forbidden_text(wanted, value)
    if isinstance(wanted, str):
        # `["secrets/key"]` is not the forbidden text, but the server may treat it as that.
        return Fit.NO if permits or value is None else Fit.UNSURE
    if same_json(wanted, value):
        return Fit.YES
    loosely = (
        not permits
        and isinstance(value, str)
        and value.strip().casefold() == str(wanted).casefold()
    )
    return Fit.UNSURE if loosely else Fit.NO


def fit_permitted_text(pattern: str, text: str) -> Fit:
    """Match text for a permitting rule: exactly, or by a glob over a plain one."""
    if pattern == text:
        return Fit.YES
    if len(text) > LONGEST or is_odd(text):
        return Fit.NO
    return Fit.YES if matches_path(pattern, text) else Fit.NO


def fit_forbidden_text(pattern: str, text: str) -> Fit:
    """Match text for a forbidding rule, other spellings included."""
    if pattern == text:
        return Fit.YES
    if len(text) > LONGEST:
        return Fit.UNSURE
    canonical = _canonical(text)
    if matches_path(pattern, text) or matches_path(pattern, canonical):
        return Fit.YES
    # A file system may ignore case and Unicode forms.
    alike = matches_path(_fold(pattern), _fold(canonical))
    return Fit.UNSURE if alike or is_odd(text) else Fit.NO


def _canonical(text: str) -> str:
    segments = text.replace("\\", "/").split("/")
    return "/".join(segment for segment in segments if segment not in {"", "."})


def _fold(text: str) -> str:
    return compatible_form(text).casefold()


_ODD_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_DRIVE = 2


def is_odd(text: str) -> bool:
    """Return true if a text, as a path, could lead elsewhere than it appears to.

    That is `..`, an absolute path, a home folder, a drive, control and invisible characters,
    percent-encoded ones too.
    """
    return _is_odd(text) or ("%" in text and _is_odd(unquote(text)))


def _is_odd(text: str) -> bool:
    segments = text.replace("\\", "/").split("/")
    return (
        ".." in (segment.strip() for segment in segments)
        or text.startswith(("/", "\\", "~"))
        or (len(segments[0]) >= _DRIVE and segments[0][1] == ":" and segments[0][0].isalpha())
        or any(unicodedata.category(character) in _ODD_CATEGORIES for character in text)
    )


def same_json(left: JsonValue, right: JsonValue) -> bool:
    """Compare two values as JSON: `1` is `1.0` and is not `true`."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(
            same_json(value, right[key]) for key, value in left.items()
        )
    if _is_list(left) and _is_list(right):
        assert isinstance(left, Sequence)
        assert isinstance(right, Sequence)
        return len(left) == len(right) and all(map(same_json, left, right))
    return left == right


def _is_list(value: JsonValue) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


_PROCESS = "process_start"
_SHELL_TOOLS = frozenset({"shell_run", _PROCESS})


def is_command_tool(name: ToolName) -> bool:
    """Return true for a tool that runs commands: `shell__run`, `shell_run`, `process_start`."""
    return (name.server, name.name) == ("shell", "run") or name.name in _SHELL_TOOLS


def command_keys(tool: str) -> tuple[str, ...]:
    """The arguments of a tool that a command is made of."""
    return ("command", "args") if tool == _PROCESS else ("argv", "command")


_READ_BY_WORDS = frozenset({"sh", "bash"})
_SHELLS = frozenset({"sh", "ash", "bash", "dash", "fish", "ksh", "zsh", "busybox"})


def command_of(arguments: JsonObject, tool: str) -> ParsedCommand | None:
    """The command in the arguments of a call of the tool `tool`, or `None` if there is none.

    A started process gets its words as they are: `command`, and those of `args`.
    """
    given = [arguments[key] for key in ("argv", "command") if arguments.get(key) is not None]
    if len(given) != 1:
        return None
    raw = given[0]
    if tool == _PROCESS:
        return _command_of_words(_process_words(raw, arguments.get("args")))
    if arguments.get("shell", "sh") not in _READ_BY_WORDS:
        return ParsedCommand(None, raw, whole=True)
    return ParsedCommand(_split(raw), raw) if isinstance(raw, str) else _command_of_words(raw)


def _process_words(program: JsonValue, args: JsonValue) -> JsonValue:
    if not isinstance(program, str) or not program or not (args is None or _is_list(args)):
        return None
    assert args is None or isinstance(args, Sequence)
    return [program, *(args or ())]


def _command_of_words(raw: JsonValue) -> ParsedCommand | None:
    """A command that is given word by word, if it is."""
    if not isinstance(raw, Sequence) or isinstance(raw, str) or not raw:
        return None
    words = tuple(word for word in raw if isinstance(word, str))
    if len(words) != len(raw):
        return None
    through_shell = any(word.rpartition("/")[2] in _SHELLS for word in words)
    certain = not through_shell or not any(has_metacharacter(word) or "=" in word for word in words)
    return ParsedCommand(words if certain else None, raw)


_METACHARACTERS = frozenset("|&;<>()$`\\\"'*?[]{}~#!\n\r")


def has_metacharacter(text: str) -> bool:
    """Return true if a shell, or a reader, sees more than plain words, spaces and tabs."""
    return for_terminal(text) != text or any(
        character in _METACHARACTERS or (not character.isprintable() and character != "\t")
        for character in text
    )


def _split(text: str) -> tuple[str, ...] | None:
    if has_metacharacter(text):
        return None
    # Without quotes no further check is needed, and `shlex` takes quadratic time in a word's
    # length.
    words = tuple(text.split())
    # `PATH=here ls` is an assignment and then a command.
    return None if not words or "=" in words[0] else words


def fit_command(
    pattern: Sequence[str], command: ParsedCommand | None, *, permits: bool, option: bool = False
) -> Fit:
    """Match a command against a pattern; with `option` also by `_is_lone_option`."""
    if command is None:
        return Fit.NO if permits else Fit.UNSURE
    if spells_out(pattern, command):
        return Fit.YES
    if command.words is None:
        return Fit.NO if permits else Fit.UNSURE
    if permits:
        alone = option and _is_lone_option(pattern, command.words)
        return Fit.YES if alone else _fit_permitted(pattern, command.words)
    return _fit_forbidden(pattern, command)


def spells_out(pattern: JsonValue, command: ParsedCommand) -> bool:
    """Return true if a rule has exactly this command, character by character."""
    if command.whole and isinstance(pattern, Sequence) and not isinstance(pattern, str):
        words = [word for word in pattern if isinstance(word, str) and not _has_wildcard(word)]
        return len(words) == len(pattern) and " ".join(words) == command.raw
    if isinstance(pattern, str) or isinstance(command.raw, str):
        return pattern == command.raw
    return (
        isinstance(pattern, Sequence)
        and isinstance(command.raw, Sequence)
        and list(pattern) == list(command.raw)
    )


def _has_wildcard(pattern: str) -> bool:
    return not {"*", "?"}.isdisjoint(pattern)


_LONE = 2
_WRAPPERS = _SHELLS | frozenset(
    {"command", "doas", "env", "eval", "exec", "nice", "nohup", "sudo", "time", "timeout", "xargs"}
)


def _is_lone_option(pattern: Sequence[str], words: tuple[str, ...]) -> bool:
    """Return true if the `*` of `[program, "*"]` is an option of one letter, as in `pytest -q`.

    Such an option has no value, and there is no further word that it could change the meaning of.
    Anywhere else, and for programs that run others, `*` matches a value.
    """
    if len(pattern) != _LONE or len(words) != _LONE or pattern[1] != "*":
        return False
    option = words[1]
    is_short = len(option) == _LONE and option[0] == "-" and option[1].isascii()
    runs_others = words[0].rpartition("/")[2] in _WRAPPERS
    return pattern[0] == words[0] and is_short and option[1].isalnum() and not runs_others


def _fit_permitted(pattern: Sequence[str], words: tuple[str, ...]) -> Fit:
    fixed = pattern[:-1] if pattern[-1] == REST else pattern
    more = words[len(fixed) :]
    if len(words) < len(fixed) or (more and pattern[-1] != REST):
        return Fit.NO
    fits = all(map(_permits_word, fixed, words)) and all(map(_permits_extra_word, more))
    return Fit.YES if fits else Fit.NO


def _permits_word(pattern: str, word: str) -> bool:
    if pattern == word:
        return True
    # A wildcard matches a value; `--output=x` in its place would be another command.
    is_option = word.startswith("-") or _names_arguments(word)
    smuggled = _leads_away(word) or (is_option and not pattern.startswith(word[0]))
    return not smuggled and fit_permitted_text(pattern, word) is Fit.YES


def _permits_extra_word(word: str) -> bool:
    """Return true if `**` takes a word: any option or value that can be read here."""
    refused = _leads_away(word) or _names_arguments(word)
    return not refused and fit_permitted_text(REST, word) is Fit.YES


def _leads_away(word: str) -> bool:
    """Return true if a word is not plain, or its value leaves the folder: `--to=/etc`, `-o../x`."""
    values = [word.partition("=")[2], word[2:] if word.startswith("-") else ""]
    return has_metacharacter(word) or any(map(is_odd, values))


def _names_arguments(word: str) -> bool:
    """Return true if many programs would read more arguments from a file: `@args.txt`."""
    return len(word) > 1 and word.startswith("@")


def _fit_forbidden(pattern: Sequence[str], command: ParsedCommand) -> Fit:
    assert command.words is not None
    spellings = (command.words, (command.program, *command.words[1:]))
    fits = {_fit_forbidden_line(pattern, words) for words in spellings}
    if Fit.YES in fits:
        return Fit.YES
    return Fit.UNSURE if Fit.UNSURE in fits or command.program in _WRAPPERS else Fit.NO


def _fit_forbidden_line(pattern: Sequence[str], words: tuple[str, ...]) -> Fit:
    fixed = pattern[:-1] if pattern[-1] == REST else pattern
    if len(words) < len(fixed) or (len(words) > len(fixed) and pattern[-1] != REST):
        return Fit.NO
    fits = set(starmap(_forbidden_word, zip(fixed, words, strict=False)))
    if Fit.NO in fits:
        return Fit.NO
    return Fit.UNSURE if Fit.UNSURE in fits else Fit.YES


def _forbidden_word(pattern: str, word: str) -> Fit:
    return Fit.YES if matches_word(pattern, word) else fit_forbidden_text(pattern, word)


def miss_of(
    pattern: Sequence[str], command: ParsedCommand | None, mask: Callable[[str], str] = str
) -> Miss:
    """Why `fit_command` does not permit; `mask` takes secrets out of the words that are shown."""
    if command is None:
        return Miss("there is no command in the arguments", 0)
    if command.words is None:
        first = command.raw.split() if isinstance(command.raw, str) else command.raw
        alike = isinstance(first, Sequence) and bool(first) and first[0] == pattern[0]
        return Miss(uncertain(command), _MEANT if alike else 0)
    words = command.words
    fixed = pattern[:-1] if pattern[-1] == REST else pattern
    for index, (wanted, word) in enumerate(zip(fixed, words, strict=False)):
        if not _permits_word(wanted, word):
            return _word_miss(wanted, word, index, mask)
    for word in words[len(fixed) :] if pattern[-1] == REST else ():
        if not _permits_extra_word(word):
            return Miss(f"`{REST}` does not take {_odd_word(word, mask)}", _MEANT)
    more = " at least" if pattern[-1] == REST else ""
    hint = "" if more else f"; `{REST}` at the end of a rule stands for any further words"
    counts = f"the command has {counted(len(words), 'word')}, and the rule {len(fixed)}{more}"
    return Miss(counts + hint, _MEANT)


def _word_miss(wanted: str, word: str, index: int, mask: Callable[[str], str]) -> Miss:
    if not _has_wildcard(wanted):
        return Miss(
            f"word {index + 1} is {_quote(word, mask)}, and the rule has {_quote(wanted, mask)}",
            index,
        )
    if word.startswith("-") and not wanted.startswith("-"):
        why = f"`{wanted}` does not take a word that begins with a dash, {_quote(word, mask)}"
        return Miss(why, _MEANT)
    if _leads_away(word) or is_odd(word) or (_names_arguments(word) and wanted[0] != "@"):
        return Miss(f"`{wanted}` does not take {_odd_word(word, mask)}", _MEANT)
    return Miss(
        f"word {index + 1}, {_quote(word, mask)}, does not fit {_quote(wanted, mask)}", index
    )


def _odd_word(word: str, mask: Callable[[str], str]) -> str:
    if has_metacharacter(word):
        return f"a word with shell metacharacters, {_quote(word, mask)}"
    if _names_arguments(word):
        return f"a word that may name a file of arguments, {_quote(word, mask)}"
    return f"a word that may lead out of the folder, {_quote(word, mask)}"


_SHOWN = 60


def _quote(word: str, mask: Callable[[str], str]) -> str:
    # Masked before it is cut: half a secret would not be recognised.
    text = for_line(mask(word))
    return f"`{shorten(text, _SHOWN)}`"


def uncertain(command: ParsedCommand) -> str:
    """Why the words of a command are uncertain, and the consequence for rules."""
    only = "only a rule with exactly this command approves it"
    if isinstance(command.raw, str):
        found = next((sign for sign in command.raw if sign in _METACHARACTERS), None)
        if found is not None:
            sign = "a line break" if found in "\n\r" else f"the shell metacharacter `{found}`"
            return f"the command has {sign}: {only}"
        return f"the words of the command are not certain before a shell reads it: {only}"
    return f"the command goes through a shell, with metacharacters: {only}"
