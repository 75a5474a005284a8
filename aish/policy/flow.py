"""The table of sources and sinks, and the judgement on calls by it; pure.

Run and static analysis read the same: the labels of a source, whether a tool `sends` or `changes`,
and where text that it is given can be read again. What is not known counts as both labels, and as
sending and changing. Nothing of this is loaded unless a file asks for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import starmap
from operator import itemgetter
from typing import Final

from aish.core.events import HeldFlow
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.phrases import and_more
from aish.core.rules import FlowRule, FlowSettings, HeldThen
from aish.core.sources import (
    ATTACH,
    CLIENT,
    CONTEXT_FILES,
    ITEM,
    NO_SOURCES,
    OWN_COMMANDS,
    READFILE,
    STDIN,
    UNKNOWN,
    Label,
    Sources,
    descriptions_of,
    names_of,
    union,
)
from aish.core.tools import Annotations, Tool, ToolName
from aish.policy.decide import Ruling, RulingVerdict, simple_fit
from aish.policy.rules import (
    LOCAL_COMMAND,
    SEPARATOR,
    Fit,
    Policy,
    Rule,
    is_command_tool,
    is_exact,
    judge,
    matches_tool,
)
from aish.system.globs import matches_word
from aish.system.pack_index import pack_manifest

Labels = frozenset[Label]
_NONE: Labels = frozenset()
_PRIVATE: Labels = frozenset({"private"})
_UNTRUSTED: Labels = frozenset({"untrusted"})
_BOTH: Labels = _PRIVATE | _UNTRUSTED

_LABELS: Final[Mapping[str, Labels]] = {
    ATTACH: _PRIVATE,
    CONTEXT_FILES: _PRIVATE,
    READFILE: _PRIVATE,
    STDIN: _UNTRUSTED,
    ITEM: _UNTRUSTED,
    CLIENT: _UNTRUSTED,
    OWN_COMMANDS: _BOTH,
    UNKNOWN: _BOTH,
}
_OF_PACKS: Final[Mapping[str, Labels]] = {
    "rag": _BOTH,
    "issues": _BOTH,
    "web": _UNTRUSTED,
    "browser": _UNTRUSTED,
}
"""Labels of all results of a pack; those of others have what their tools are marked with."""
_COMMAND_PACKS = frozenset({"shell", "proc"})
_FILE_PACKS = frozenset({"fs", "edit", "py", "c"})
"""What one of their tools writes is answered with the lines around it."""
_OWN_WORDS = ("inputs.", "steps.")
_DESCRIPTIONS = ".tools"
SENDS, CHANGES = "sends", "changes"

LOCAL = "local"
"""The place of files, commands, the browser, and all servers that may write files."""

_STRICTNESS: Sequence[HeldThen] = ("warn", "ask", "stage", "deny")
_VERDICTS: Sequence[RulingVerdict] = ("auto", "ask", "staged", "deny")
_VERDICT_OF: Mapping[HeldThen, RulingVerdict] = {"ask": "ask", "stage": "staged", "deny": "deny"}
EXFILTRATION = "mcp.exfiltration"
CURE = (
    "give the step fewer tools, put a closed `output.schema` with `release` between two steps, or "
    "let a person decide with `then: ask`"
)
SHOWN = 6


@frozen
class ServerFacts:
    """Facts about a server by its file; the defaults are for one that nothing is known of.

    `packs` are those of a server whose packs are all built in, and `online` says whether their
    commands have a network. A server is `pinned` by a lock, `offline` in a sandbox without network.
    What it is given can be read again at its `place`. One that `holds_own_calls` judges what the
    call of a tool does as it does it.
    """

    packs: tuple[str, ...] = ()
    online: bool = True
    trusted: bool = False
    pinned: bool = False
    has_credential: bool = True
    reads_files: bool = True
    offline: bool = False
    place: str = LOCAL
    holds_own_calls: bool = False


_STRANGER = ServerFacts()


@frozen
class FlowFile:
    """A pipeline file with its servers; `excepted` are its compiled rules."""

    name: str
    settings: FlowSettings
    servers: Mapping[str, ServerFacts]
    excepted: tuple[Rule, ...] = ()

    def labels(self, source: str) -> Labels | None:
        """The labels of a source by this file; `None` if it does not know the source."""
        given = self.settings.labels
        if source in given:
            return given[source]
        globs = [labels for glob, labels in given.items() if matches_source(glob, source)]
        if globs:
            return _NONE.union(*globs)
        plain = _NONE if source.startswith(_OWN_WORDS) else _LABELS.get(source)
        facts = self.servers.get(alias_of(source))
        of_server = None if facts is None else _labels_of_server(source, facts)
        if plain is None or of_server is None:
            return of_server if plain is None else plain
        return plain | of_server

    def facts(self, tool: ToolName) -> ServerFacts:
        return self.servers.get(tool.server, _STRANGER)

    def sends(self, tool: Tool) -> bool:
        """Return true if a call may carry text to somebody else."""
        facts = self.facts(tool.name)
        if tool.name == LOCAL_COMMAND and not facts.packs:
            return True
        if not facts.packs:
            return not facts.offline and not _only_reads(tool, facts)
        marks = _marks(tool.name.name)
        is_open = bool(marks.get("open_world")) and not marks.get("read_only")
        if marks.get("pack") in _COMMAND_PACKS:
            return is_open and facts.online
        return is_open or bool(marks.get("sends")) or marks.get("pack") == "web"

    def changes(self, tool: Tool) -> bool:
        """Return true if a call may change something."""
        facts = self.facts(tool.name)
        if facts.packs:
            marks = _marks(tool.name.name)
            return not (marks.get("read_only") if marks else tool.annotations.read_only)
        return tool.name == LOCAL_COMMAND or not _only_reads(tool, facts)

    def is_sink(self, rule: FlowRule, tool: Tool, matches: Callable[[str], bool]) -> bool:
        """Return true if a rule is about calls of a tool; `matches` tells if a glob is."""
        return any(
            self.sends(tool)
            if sink == SENDS
            else self.changes(tool)
            if sink == CHANGES
            else matches(sink)
            for sink in rule.sinks
        )

    def place(self, tool: Tool) -> str | None:
        """The place where text given to a call can be read again; `None` for nowhere."""
        facts = self.facts(tool.name)
        if facts.packs and not (self.sends(tool) or self.changes(tool)):
            return None
        return facts.place

    def read_places(self, tool: Tool) -> tuple[str, ...]:
        """The places whose text may be in the result of a call."""
        facts = self.facts(tool.name)
        return (facts.place, LOCAL) if facts.reads_files else (facts.place,)


def _marks(name: str) -> Mapping[str, object]:
    marks: Mapping[str, object] = pack_manifest()["tools"].get(name, {})
    return marks


def _only_reads(tool: Tool, facts: ServerFacts) -> bool:
    """Return true if a server is believed that a tool only reads."""
    return facts.trusted and facts.pinned and tool.annotations.read_only is True


def _labels_of_server(source: str, facts: ServerFacts) -> Labels:
    if source.endswith(_DESCRIPTIONS):
        return _NONE if facts.packs or facts.trusted or facts.pinned else _UNTRUSTED
    if not facts.packs:
        private = _PRIVATE if facts.has_credential or facts.reads_files else _NONE
        return private if facts.trusted else private | _UNTRUSTED
    marks = _marks(source.partition(SEPARATOR)[2])
    pack = str(marks.get("pack", ""))
    if pack in _COMMAND_PACKS or not marks:
        return _BOTH if facts.online else _PRIVATE
    shows_files = marks.get("reads_files") or (pack in _FILE_PACKS and marks.get("destructive"))
    private = _PRIVATE if shows_files else _NONE
    return _OF_PACKS.get(pack, private | _UNTRUSTED if marks.get("reads_untrusted") else private)


def is_of_commands(name: str) -> bool:
    """Return true for a tool of the packs that run commands, whatever it does itself."""
    return _marks(name).get("pack") in _COMMAND_PACKS


def runs_commands(name: ToolName) -> bool:
    """Return true for a tool that runs commands, or gives them to a shell that was started."""
    return is_command_tool(name) or name.name == "process_input"


def alias_of(source: str) -> str:
    """The alias of the server that a source is of, if it is of one."""
    return source.partition(SEPARATOR)[0].removesuffix(_DESCRIPTIONS)


def matches_source(glob: str, source: str) -> bool:
    """Match a name or a glob against a source: `*` does not cross the `__`."""
    if glob == source:
        return True
    server, separator, tool = glob.partition(SEPARATOR)
    alias, also, name = source.partition(SEPARATOR)
    if separator != also:
        return False
    return matches_word(server, alias) and (not separator or matches_word(tool, name))


@frozen
class Held:
    """A call that is not simply made: the rule, what becomes of it, and the sources that did it.

    `by_itself`: the private text is what the called tool reads.
    """

    rule: str
    then: HeldThen
    causes: tuple[tuple[str, Labels], ...]
    by_itself: bool = False

    @property
    def flow(self) -> HeldFlow:
        """The rule and the sources, as events have them."""
        return HeldFlow(self.rule, tuple(source for source, _ in self.causes))

    @property
    def why(self) -> str:
        """The causes in words, as the model, a person and the journal are told."""
        return read_words(self.causes, len(self.causes), by_itself=self.by_itself)


def read_words(causes: Sequence["_Cause"], count: int, *, by_itself: bool = False) -> str:
    """The first of `count` sources that were read, in words."""
    shown = list(starmap(_with_labels, causes[:SHOWN]))
    itself = "; the tool reads private text itself" if by_itself else ""
    return f"read {', '.join(shown)}{and_more(count - len(shown))}{itself}"


def _with_labels(source: str, labels: Labels) -> str:
    return f"{source} ({', '.join(sorted(labels))})" if labels else source


class FlowPolicy:
    """The judge of the calls of one file.

    `above` are the files that run it as a sub-pipeline, whose `exfiltration` holds here too.
    `family` are all files of the run: a source may have come from any of them.
    """

    def __init__(
        self, own: FlowFile, above: tuple[FlowFile, ...] = (), family: Iterable[FlowFile] = ()
    ) -> None:
        self.own = own
        self.above = above
        self.family = tuple(family) or (own, *above)
        self._labels: dict[str, Labels] = {}
        self._causes_in = lru_cache(_MOST_SETS)(self._find_causes)
        self._none = _Causes((), (), ((),) * len(own.settings.flow))
        self._latest = NO_SOURCES, self._none

    def labels(self, source: str) -> Labels:
        """The labels of a source: of each file that knows it; both if none does."""
        known = self._labels.get(source)
        if known is None:
            said = [file.labels(source) for file in self.family]
            sets = [labels for labels in said if labels is not None]
            known = self._labels[source] = _NONE.union(*sets) if sets else _BOTH
        return known

    def words_of(self, sources: Sources) -> str:
        """All of these sources, each with its labels."""
        return ", ".join(_with_labels(one, self.labels(one)) for one in names_of(sources))

    def judge(
        self, tool: Tool, arguments: JsonObject, sources: Sources, *, exact: bool = False
    ) -> Held | None:
        """The strictest rule that holds a call made from text of these sources.

        `exact`: the rule that approves it leaves no argument open.
        """
        held = self._rules_that_hold(tool, arguments, sources, exact=exact) if sources else ()
        return max(held, key=lambda one: _STRICTNESS.index(one.then), default=None)

    def without_labels(self, sources: Sources, released: Iterable[str]) -> Sources:
        """The sources that have a label which is not released, or that had none."""
        gone = frozenset(released)
        return frozenset(
            source for source in sources if not (labels := self.labels(source)) or labels - gone
        )

    def stricter(
        self,
        policy: Policy,
        ruling: Ruling,
        tool: Tool,
        arguments: JsonObject,
        sources: Sources,
    ) -> Ruling:
        """The stricter of the ruling by a policy and of what holds the call."""
        exact = ruling.verdict == "auto" and any(
            rule.name == ruling.rule and gives_exact_values(rule, arguments)
            for rule in policy.auto_approve
        )
        held = self.judge(tool, arguments, sources, exact=exact)
        if held is None:
            return ruling
        flow = held.flow
        if held.then == "warn":
            return replace(ruling, flow=flow, warning=f"{held.rule}: {tool.name} {held.why}")
        order = _VERDICTS.index
        if order(ruling.verdict) > order(_VERDICT_OF[held.then]) or ruling.verdict == "deny":
            return ruling
        return Ruling(
            _VERDICT_OF[held.then], held.rule, f"{held.rule}: {held.why}", hint=CURE, flow=flow
        )

    def _rules_that_hold(
        self, tool: Tool, arguments: JsonObject, sources: Sources, *, exact: bool
    ) -> Iterator[Held]:
        found = self._causes_in(sources)
        is_free = exact and not runs_commands(tool.name)
        is_free = is_free or self.own.facts(tool.name).holds_own_calls
        if not is_free and self.own.sends(tool):
            for file in (self.own, *self.above):
                yield from self._exfiltration(file, tool, arguments, found)
        for rule, causes in zip(self.own.settings.flow, found.of_rules, strict=True):
            if causes and self.own.is_sink(rule, tool, lambda glob: matches_tool(glob, tool.name)):
                yield Held(rule.path, rule.then, causes)

    def _exfiltration(
        self, file: FlowFile, tool: Tool, arguments: JsonObject, causes: "_Causes"
    ) -> Iterator[Held]:
        asked, untrusted, private = file.settings.exfiltration, causes.untrusted, causes.private
        if asked is None or not untrusted:
            return
        by_itself = not private and "private" in self.labels(str(tool.name))
        if not (private or by_itself) or _is_excepted(file, tool, arguments):
            return
        name = EXFILTRATION if file is self.own else f"{EXFILTRATION} of {file.name}"
        # Some of both kinds are shown, however many there are.
        half = SHOWN // 2
        both = dict.fromkeys((*private[:half], *untrusted[:half], *private, *untrusted))
        yield Held(name, asked.then, tuple(both), by_itself)

    def _find_causes(self, sources: Sources) -> "_Causes":
        """The causes in a set of sources, which is looked at once, however large it is."""
        before, found = self._latest
        if not before <= sources:
            before, found = NO_SOURCES, self._none
        # Mostly a source more than in the decision before.
        added = [(source, self.labels(source)) for source in sources - before]
        causes = _Causes(
            _with(found.untrusted, (cause for cause in added if "untrusted" in cause[1])),
            _with(found.private, (cause for cause in added if "private" in cause[1])),
            tuple(
                _with(known, (cause for cause in added if _is_from(rule, *cause)))
                for rule, known in zip(self.own.settings.flow, found.of_rules, strict=True)
            ),
        )
        self._latest = sources, causes
        return causes


class RunFlow:
    """The sources of the places of a run, and of what its calls are given and return.

    `places` and `warned` belong to the run with its sub-pipelines; `policy` is that of one file.
    `inputs` are the sources of the inputs of a pipeline that it is around.
    """

    cure = CURE

    def __init__(
        self,
        policy: FlowPolicy,
        places: dict[str, Sources],
        warned: set[tuple[str, str]],
        inputs: Sources = NO_SOURCES,
    ) -> None:
        self.policy = policy
        self.places = places
        self.inputs = inputs
        self._warned = warned

    def inner(self, file: FlowFile, family: Sequence[FlowFile] = ()) -> "RunFlow":
        """The flow of a sub-pipeline, whose `family` may be new here."""
        above = (self.policy.own, *self.policy.above)
        policy = FlowPolicy(file, above, (*family, *self.policy.family))
        return RunFlow(policy, self.places, self._warned)

    def with_inputs(self, sources: Sources) -> "RunFlow":
        """The same flow around a pipeline whose inputs have these sources."""
        return RunFlow(self.policy, self.places, self._warned, sources)

    @property
    def local(self) -> Sources:
        """The sources of what may stand in files by now."""
        return self.places.get(LOCAL, NO_SOURCES)

    def descriptions(self, tools: Iterable[Tool]) -> Sources:
        """The sources of the descriptions of tools that a model is shown, where they matter."""
        names = {descriptions_of(tool.name.server) for tool in tools}
        return frozenset(name for name in names if self.policy.labels(name))

    def of_call(self, tool: Tool, sources: Sources) -> Sources:
        """The sources of a call: a command may execute what was written."""
        return union((sources, self.local)) if runs_commands(tool.name) else sources

    def begin(self, tool: Tool, sources: Sources) -> None:
        """Note what a call leaves at its place; before it is sent."""
        place = self.policy.own.place(tool)
        if place is not None and sources:
            self.write(place, sources)

    def begin_request(
        self, alias: str, given: JsonObject, sources: Sources, what: str = "a request"
    ) -> tuple[str, str]:
        """Why a server may not get a request or an answer, or the first warning of it, or neither.

        If it is made, note what it leaves at its place. `what` is given, in words.
        """
        tool = _request_to(alias)
        held = self.policy.judge(tool, given, sources)
        if held is not None and held.then != "warn":
            return f"{what} to `{alias}` is denied by {held.rule}: {held.why}", ""
        self.begin(tool, sources)
        if held is not None and self.warns_first(held.flow, tool):
            return "", f"{held.rule}: {what} to `{alias}` {held.why}"
        return "", ""

    def filter_metadata(self, tool: Tool, given: JsonObject, sources: Sources) -> JsonObject:
        """The text of these sources that a server may get beside a call: all of it, or nothing."""
        held = self.policy.judge(_request_to(tool.name.server), given, sources)
        return given if held is None or held.then == "warn" else {}

    def of_request(self, alias: str, sources: Sources) -> Sources:
        """The sources of what a server returns to a request."""
        return self.of_result(_request_to(alias), sources, alias)

    def write(self, place: str, sources: Sources) -> None:
        self.places[place] = union((self.places.get(place, NO_SOURCES), sources))

    def scatter(self) -> None:
        """Note that other machines write too: what stands at any place is not known."""
        places = {facts.place for file in self.policy.family for facts in file.servers.values()}
        for place in (LOCAL, *places):
            self.write(place, frozenset({UNKNOWN}))

    def of_result(self, tool: Tool, sources: Sources, source: str = "") -> Sources:
        """The sources of the result of a call that has ended; `source` is its own name."""
        places = self.policy.own.read_places(tool)
        found = (self.places.get(place, NO_SOURCES) for place in places)
        return union((sources, frozenset({source or str(tool.name)}), *found))

    def warns_first(self, flow: HeldFlow | None, tool: Tool) -> bool:
        """Return true for the first warning of a rule about a tool in the run."""
        if flow is None or (key := (flow.rule, str(tool.name))) in self._warned:
            return False
        self._warned.add(key)
        return True


def _request_to(alias: str) -> Tool:
    """A request to a server for a prompt or a resource, judged as a call of a tool that reads."""
    return Tool(ToolName(alias, "get"), alias, "", {}, annotations=Annotations(read_only=True))


_Cause = tuple[str, Labels]


@frozen
class _Causes:
    """The causes in a set of sources: by label, and for each entry of `mcp.flow`."""

    untrusted: tuple[_Cause, ...]
    private: tuple[_Cause, ...]
    of_rules: tuple[tuple[_Cause, ...], ...]


_MOST_SETS = 256


def _with(causes: tuple[_Cause, ...], added: Iterable[_Cause]) -> tuple[_Cause, ...]:
    """The causes with others, by name."""
    more = tuple(added)
    return tuple(sorted((*causes, *more), key=itemgetter(0))) if more else causes


def _is_from(rule: FlowRule, source: str, labels: Labels) -> bool:
    return any(given in labels or matches_source(given, source) for given in rule.sources)


def _is_excepted(file: FlowFile, tool: Tool, arguments: JsonObject) -> bool:
    """Return true if a rule leaves a call out: it has to fit for certain, as one that approves."""
    return any(judge(rule, tool, arguments, simple_fit).fit is Fit.YES for rule in file.excepted)


def gives_exact_values(rule: Rule, arguments: JsonObject) -> bool:
    """Return true if a rule that approves a call leaves no argument of it open."""
    entry = rule.entry
    schema = entry.schema or {}
    properties = schema.get("properties")
    constants = {
        name
        for name, value in (properties.items() if isinstance(properties, Mapping) else ())
        if isinstance(value, Mapping) and "const" in value
    }
    exact = {
        name for name, value in entry.when.items() if not isinstance(value, str) or is_exact(value)
    }
    return rule.exact and exact | constants >= arguments.keys()
