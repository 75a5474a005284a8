"""Scripts of a model in a page, and their results as data (`browser_eval`)."""

import json
from collections.abc import Mapping
from typing import Any, Final

import anyio

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.packs.browser.cdp import CdpError
from aish.packs.browser.page import Page, exception_text, remote_text
from aish.packs.pack_error import PackError

LARGEST: Final = 256 * 1024
"""Characters of a result."""
_GROUP: Final = "aish"
_MARGIN: Final = 0.5
_LEFT: Final = (
    "Promise was collected",
    "context was destroyed",
    "navigated or closed",
    "Cannot find context",
)
_DESCRIBE: Final = r"""function () {
  let text;
  try { text = JSON.stringify(this); } catch { text = undefined; }
  if (text === undefined || this instanceof Node || this instanceof Error) {
    const described = this instanceof Element ? this.cloneNode(false).outerHTML : String(this);
    return {described: described.slice(0, 300000)};
  }
  return {text: text.slice(0, 300000), length: text.length};
}"""


@frozen
class Evaluated:
    """The result of a script as data and text, or its error."""

    value: JsonValue = None
    text: str = ""
    error: str | None = None


async def evaluate(page: Page, script: str, seconds: float) -> Evaluated:
    deadline = anyio.current_time() + seconds
    try:
        reply = await page.call(
            "Runtime.evaluate",
            {
                "expression": script,
                "objectGroup": _GROUP,
                "replMode": True,
                # Ends what never returns.
                "timeout": max(seconds - _MARGIN, _MARGIN) * 1000,
            },
            seconds,
        )
        if reply.get("result", {}).get("subtype") == "promise" and _is_returned(reply):
            reply = await page.call(
                "Runtime.awaitPromise",
                {"promiseObjectId": reply["result"]["objectId"]},
                deadline - anyio.current_time(),
            )
        if not _is_returned(reply):
            return Evaluated(error=exception_text(reply["exceptionDetails"]))
        return await _value(page, reply.get("result", {}))
    except CdpError as error:
        if any(words in str(error) for words in _LEFT):
            return Evaluated(None, "the script led to another page")
        if anyio.current_time() >= deadline - _MARGIN:
            message = f"the script did not finish within {seconds:g} seconds"
            raise PackError("timeout", message) from error
        return Evaluated(error=str(error))
    finally:
        page.post("Runtime.releaseObjectGroup", {"objectGroup": _GROUP})


def _is_returned(reply: Mapping[str, Any]) -> bool:
    return "exceptionDetails" not in reply


async def _value(page: Page, remote: Mapping[str, Any]) -> Evaluated:
    if "objectId" not in remote:
        return _primitive(remote)
    reply = await page.call(
        "Runtime.callFunctionOn",
        {"functionDeclaration": _DESCRIBE, "objectId": remote["objectId"], "returnByValue": True},
    )
    if not _is_returned(reply):
        return Evaluated(error=exception_text(reply["exceptionDetails"]))
    described = reply.get("result", {}).get("value")
    described = described if isinstance(described, dict) else {}
    text = str(described.get("text", described.get("described", remote_text(remote))))
    length = described.get("length")
    if isinstance(length, int) and length > LARGEST:
        message = f"the result has {length:,} characters as JSON; return less of it"
        raise PackError("too_large", message)
    try:
        return Evaluated(json.loads(text) if "text" in described else text, text)
    except (ValueError, RecursionError):
        # Scripts of the page may have replaced what makes JSON.
        return Evaluated(text, text)


def _primitive(remote: Mapping[str, Any]) -> Evaluated:
    value, kind = remote.get("value"), remote.get("type")
    if kind == "undefined":
        return Evaluated(None, "undefined")
    if kind == "string":
        text = str(value)
        if len(text) > LARGEST:
            message = f"the result has {len(text):,} characters; return less of it"
            raise PackError("too_large", message)
        return Evaluated(text, text)
    if "unserializableValue" in remote:
        text = remote_text(remote)
        return Evaluated(text, text)
    return Evaluated(value, json.dumps(value))
