"""What of a plan is different on a worker's machine, and what a worker is to its scheduler."""

import os
from collections.abc import Mapping
from dataclasses import replace

from distributed import Security, Worker

from aish.engine.plan.credentials import ResolvedServer
from aish.engine.plan.plan import Plan
from aish.system.process.child import CHILD_ENV_NAMES


def as_client(worker: Worker) -> Security:
    """The worker's certificate, as that of a client of its scheduler."""
    known = worker.security
    return Security(
        require_encryption=known.require_encryption,
        tls_ca_file=known.tls_ca_file,
        tls_client_cert=known.tls_worker_cert,
        tls_client_key=known.tls_worker_key,
    )


def at_home(plan: Plan) -> Plan:
    """The plan with the `PATH` and the `HOME` of this machine for child processes."""
    here = {name: os.environ[name] for name in CHILD_ENV_NAMES if name in os.environ}
    return replace(
        plan,
        servers=tuple(_server(server, here) for server in plan.servers),
        inner={step: at_home(inner) for step, inner in plan.inner.items()},
    )


def _server(server: ResolvedServer, here: Mapping[str, str]) -> ResolvedServer:
    if not server.child_env:
        return server
    ours = {name: value for name, value in here.items() if name not in server.entry.env}
    return replace(server, child_env={**server.child_env, **ours})
