"""Options of the command line for one run."""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from aish.config.model import Delivery
from aish.core.events import KeySurvey, Shard
from aish.core.frozen import frozen
from aish.core.json import JsonValue

LockMode = Literal["enforce", "warn", "none"]
"""What a difference from the lock means; `none` looks at no lock, as `aish lock` itself does."""


@frozen
class RunOptions:
    """Everything besides the file that affects a run; `environ` is the process environment.

    `stdin` is piped text, read only if the file uses it. `delivery` is that of requests to every
    model. `timeout` in seconds overrides `limits.time`, `max_cost_usd` and `max_turns` the limits
    of those names. `allow_broad_root` lets a pack have `/` or the home folder as its root.
    `concurrency` limits the units of work in flight. `servers_required` is the default for servers
    without `required`. `force` resumes a run although its fingerprint has changed. `key_check`
    checks the keys of all items of a step before the first one is run; `surveys` are of the steps,
    by id, whose keys were already checked. With `may_fetch` a server that its launcher would fetch
    is fetched before it is confined.
    """

    inputs: Mapping[str, JsonValue] = field(default_factory=dict)
    stdin: str | None = None
    model: str | None = None
    delivery: Delivery | None = None
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    timeout: float | None = None
    max_cost_usd: float | None = None
    max_turns: int | None = None
    allow_broad_root: bool = False
    lock: LockMode = "enforce"
    shard: Shard | None = None
    concurrency: int | None = None
    servers_required: bool = True
    force: bool = False
    key_check: bool = True
    surveys: Mapping[str, KeySurvey] = field(default_factory=dict)
    may_fetch: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)
