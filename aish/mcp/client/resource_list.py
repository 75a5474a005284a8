"""Requests for the resources and prompts of a server; imported on demand.

Unlike in a tool call, a failure here is an `AishError`: a person or a file asked for the resource.
A server that refuses is distinguished from one that does not answer.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from aish.core.errors import StepFailedError, UnavailableError
from aish.core.json import JsonObject
from aish.core.tools import Part, PromptMessage, Resource, ServerPromptInfo
from aish.mcp.client.connection import Server
from aish.mcp.protocol.convert import Warn
from aish.mcp.protocol.convert_resources import (
    read_contents,
    read_messages,
    read_prompts,
    read_resources,
)
from aish.mcp.protocol.messages import METHOD_NOT_FOUND, McpError, RpcError
from aish.mcp.transports.factory import Notify


async def resources_of(server: Server, notify: Notify) -> tuple[Resource, ...]:
    """The resources that a server lists, and its templates after them."""
    if not server.declares("resources"):
        return ()
    warn = _warnings_of(server, notify)
    plain = await _pages(server, "resources/list", warn)
    templates = await _pages(server, "resources/templates/list", warn)
    alias = server.alias
    return (
        *(one for page in plain for one in read_resources(page, alias, warn)),
        *(one for page in templates for one in read_resources(page, alias, warn, template=True)),
    )


async def prompts_of(server: Server, notify: Notify) -> tuple[ServerPromptInfo, ...]:
    if not server.declares("prompts"):
        return ()
    warn = _warnings_of(server, notify)
    pages = await _pages(server, "prompts/list", warn)
    return tuple(prompt for page in pages for prompt in read_prompts(page, server.alias, warn))


async def read_resource(server: Server, uri: str) -> tuple[Part, ...]:
    """The contents of a resource.

    Raises:
        UnavailableError: no answer came.
        StepFailedError: the server refused, or what it sent cannot be used.
    """
    with _translate_errors(server, "resources", f"resource `{uri}`"):
        return read_contents(await server.ask("resources/read", {"uri": uri}), uri)


async def get_prompt(
    server: Server, name: str, arguments: Mapping[str, str]
) -> tuple[PromptMessage, ...]:
    """The messages of a prompt.

    Raises:
        UnavailableError: no answer came.
        StepFailedError: the server refused, or what it sent cannot be used.
    """
    with _translate_errors(server, "prompts", f"prompt `{name}`"):
        params: JsonObject = {"name": name, "arguments": dict(arguments)}
        return read_messages(await server.ask("prompts/get", params))


async def _pages(server: Server, method: str, warn: Warn) -> Sequence[JsonObject]:
    """The pages of a listing; if the server fails, an empty list, and the failure is reported."""
    try:
        return await server.pages(method)
    except RpcError as error:
        # Servers with resources often do not implement templates.
        if error.code != METHOD_NOT_FOUND:
            warn("list_failed", f"it refused `{method}`: {error.message}")
    except McpError as error:
        warn("list_failed", f"`{method}` failed: {error.message}")
    return ()


def _warnings_of(server: Server, notify: Notify) -> Warn:
    return lambda code, text: notify(server.alias, code, text)


@contextmanager
def _translate_errors(server: Server, capability: str, what: str) -> Generator[None]:
    """Convert each error that leaves this module to an `AishError`."""
    where = f"mcp server `{server.alias}`"
    if not server.declares(capability):
        raise StepFailedError(f"it offers no {capability}", where=where)
    try:
        yield
    except RpcError as error:
        raise StepFailedError(f"it refused the {what}: {error.message}", where=where) from error
    except McpError as error:
        text = f"it did not answer for the {what}: {error.message}"
        raise UnavailableError(text, where=where) from error
    except ValueError as error:
        raise StepFailedError(f"the {what} cannot be used: {error}", where=where) from error
