"""The server behind the hub under test of the MCP conformance suite, made with the official SDK.

    python tests/conformance/everything_server.py PORT

It has the tools, resources and prompts that the scenarios of the suite ask for, in both eras, over
streamable HTTP.
"""

import base64
import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    CallToolResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel, Field, JsonValue

PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQIAAAAAAA=="
PAUSE = 0.05
CHOICES: list[JsonValue] = ["active", "inactive", "pending"]
TITLED: list[JsonValue] = [
    {"const": "low", "title": "Low"},
    {"const": "middle", "title": "Middle"},
    {"const": "high", "title": "High"},
]

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

server: MCPServer[Any] = MCPServer("everything", version="1.0.0", log_level="WARNING")


def text(said: str) -> TextContent:
    return TextContent(type="text", text=said)


def picture() -> ImageContent:
    return ImageContent(type="image", data=PICTURE, mime_type="image/png")


def resource(uri: str, mime_type: str, content: str) -> EmbeddedResource:
    found = TextResourceContents(uri=uri, mime_type=mime_type, text=content)
    return EmbeddedResource(type="resource", resource=found)


@server.tool()
def test_simple_text() -> str:
    """Say a text."""
    return "This is a simple text response for testing."


@server.tool(structured_output=False)
def test_image_content() -> list[ImageContent]:
    """Give a picture."""
    return [picture()]


@server.tool(structured_output=False)
def test_audio_content() -> list[AudioContent]:
    """Give a sound."""
    return [AudioContent(type="audio", data=SOUND, mime_type="audio/wav")]


@server.tool(structured_output=False)
def test_embedded_resource() -> list[EmbeddedResource]:
    """Give a resource."""
    said = "This is an embedded resource content."
    return [resource("test://embedded-resource", "text/plain", said)]


@server.tool(structured_output=False)
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Give a text, a picture and a resource."""
    data = json.dumps({"test": "data", "value": 123})
    mixed = resource("test://mixed-content-resource", "application/json", data)
    return [text("Multiple content types test:"), picture(), mixed]


@server.tool()
async def test_tool_with_logging(context: Context) -> str:
    """Log three messages."""
    await context.info("Tool execution started")
    await anyio.sleep(PAUSE)
    await context.info("Tool processing data")
    await anyio.sleep(PAUSE)
    await context.info("Tool execution completed")
    return "Logged three messages"


@server.tool()
async def test_logging_tool(context: Context) -> str:
    """Log a message, which goes only to who wants it."""
    await context.info("Logged during a call")
    return "Logged"


@server.tool()
async def test_tool_with_progress(context: Context) -> str:
    """Report progress three times."""
    for progress in (0, 50, 100):
        await context.report_progress(progress, 100, f"Completed {progress} of 100")
        await anyio.sleep(PAUSE)
    return "Reported progress"


@server.tool()
def test_error_handling() -> str:
    """Fail."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@server.tool()
async def test_reconnection(context: Context) -> str:
    """Close the stream of the call, and answer on the next one."""
    await context.close_sse_stream()
    await anyio.sleep(PAUSE)
    return "Reconnected"


@server.tool()
def test_custom_headers(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Have an argument that is sent as a header too."""
    return f"Region: {region}"


@server.tool()
def json_schema_2020_12_tool() -> str:
    """Have a schema of all sorts."""
    return "called"


class Contact(BaseModel):
    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


class Defaults(BaseModel):
    name: str = Field(default="John Doe", description="Name")
    age: int = Field(default=30, description="Age")
    score: float = Field(default=95.5, description="Score")
    status: str = Field(default="active", json_schema_extra={"enum": [*CHOICES]})
    verified: bool = Field(default=True, description="Verified")


class Choices(BaseModel):
    untitledSingle: str = Field(json_schema_extra={"enum": [*CHOICES]})  # ruff: ignore[mixed-case-variable-in-class-scope] - a name of the suite
    titledSingle: str = Field(json_schema_extra={"oneOf": [*TITLED]})  # ruff: ignore[mixed-case-variable-in-class-scope] - a name of the suite
    legacyEnum: str = Field(  # ruff: ignore[mixed-case-variable-in-class-scope] - a name of the suite
        json_schema_extra={"enum": ["small", "large"], "enumNames": ["Small size", "Large size"]}
    )
    untitledMulti: list[str] = Field(  # ruff: ignore[mixed-case-variable-in-class-scope] - a name of the suite
        json_schema_extra={"items": {"type": "string", "enum": [*CHOICES]}}
    )
    titledMulti: list[str] = Field(json_schema_extra={"items": {"anyOf": [*TITLED]}})  # ruff: ignore[mixed-case-variable-in-class-scope] - a name of the suite


def completed(found: ElicitationResult[Any]) -> str:
    content = found.data.model_dump_json() if isinstance(found, AcceptedElicitation) else "{}"
    return f"action={found.action}, content={content}"


def ask_contact(message: str) -> Elicit[Contact]:
    return Elicit(message, Contact)


def ask_defaults() -> Elicit[Defaults]:
    return Elicit("Your data", Defaults)


def ask_choices() -> Elicit[Choices]:
    return Elicit("Your choices", Choices)


def ask_model(prompt: str) -> Sample:
    return Sample([SamplingMessage(role="user", content=text(prompt))], max_tokens=100)


@server.tool()
def test_elicitation(
    message: str, found: Annotated[ElicitationResult[Contact], Resolve(ask_contact)]
) -> str:
    """Ask for a name and an address."""
    return f"User response: {completed(found)}"


@server.tool()
def test_elicitation_sep1034_defaults(
    found: Annotated[ElicitationResult[Defaults], Resolve(ask_defaults)],
) -> str:
    """Ask with defaults."""
    return f"Elicitation completed: {completed(found)}"


@server.tool()
def test_elicitation_sep1330_enums(
    found: Annotated[ElicitationResult[Choices], Resolve(ask_choices)],
) -> str:
    """Ask with choices of all kinds."""
    return f"Elicitation completed: {completed(found)}"


@server.tool()
def test_streaming_elicitation(
    found: Annotated[ElicitationResult[Defaults], Resolve(ask_defaults)],
) -> str:
    """Ask on the way of a call."""
    return completed(found)


@server.tool()
def test_sampling(prompt: str, found: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Ask the client's model."""
    return f"LLM response: {said_by(found)}"


def said_by(found: Any) -> str:
    """The text of a model's answer."""
    is_text = isinstance(found, CreateMessageResult) and isinstance(found.content, TextContent)
    return found.content.text if is_text else "something else"


def require(context: Context, capability: str) -> None:
    """Refuse a client that has not declared a capability."""
    declared = context.client_capabilities
    if declared is None or getattr(declared, capability) is None:
        data: dict[str, Any] = {"requiredCapabilities": {capability: {}}}
        said = f"the client has to declare `{capability}`"
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, said, data)


@server.tool()
def test_missing_capability(context: Context) -> str:
    """Need a model of the client."""
    require(context, "sampling")
    return "The client has a model"


@server.tool()
async def test_trigger_tool_change(context: Context) -> str:
    """Add or remove a tool."""

    def added() -> str:
        """Be there."""
        return "added"

    if any(tool.name == "test_added_tool" for tool in await server.list_tools()):
        server.remove_tool("test_added_tool")
    else:
        server.add_tool(added, name="test_added_tool")
    await context.notify_tools_changed()
    return "Changed"


@server.tool()
async def test_trigger_prompt_change(context: Context) -> str:
    """Add or remove a prompt."""
    if any(prompt.name == "test_added_prompt" for prompt in await server.list_prompts()):
        server.remove_prompt("test_added_prompt")
    else:
        server.prompt(name="test_added_prompt", description="Was added")(test_simple_prompt)
    await context.notify_prompts_changed()
    return "Changed"


def form(message: str, name: str, kind: str = "string") -> ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def question(prompt: str, most: int) -> CreateMessageRequest:
    asked = [SamplingMessage(role="user", content=text(prompt))]
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=asked, max_tokens=most))


def wanted(state: str | None = None, /, **requests: InputRequest) -> InputRequiredResult:
    return InputRequiredResult(input_requests=requests, request_state=state)


def said(*texts: str) -> CallToolResult:
    return CallToolResult(content=[text(one) for one in texts])


def content_of(found: Any) -> Mapping[str, Any]:
    """What a person has filled in, if that was accepted."""
    if not isinstance(found, ElicitResult) or found.action != "accept":
        return {}
    return found.content or {}


def given(context: Context, key: str) -> Any:
    return (context.input_responses or {}).get(key)


NAME = form("What is your name?", "name")


@server.tool()
def test_input_required_result_elicitation(
    context: Context,
) -> CallToolResult | InputRequiredResult:
    """Ask for a name."""
    name = content_of(given(context, "user_name")).get("name")
    if not isinstance(name, str):
        return wanted(user_name=NAME)
    return said(f"Hello, {name}!")


@server.tool()
def test_input_required_result_sampling(context: Context) -> CallToolResult | InputRequiredResult:
    """Ask a model."""
    found = given(context, "capital_question")
    if not isinstance(found, CreateMessageResult):
        return wanted(capital_question=question("What is the capital of France?", 100))
    return said(said_by(found))


@server.tool()
def test_input_required_result_list_roots(context: Context) -> CallToolResult | InputRequiredResult:
    """Ask for the client's folders."""
    found = given(context, "client_roots")
    if not isinstance(found, ListRootsResult):
        return wanted(client_roots=ListRootsRequest())
    return said(*(f"Root: {root.uri}" for root in found.roots))


@server.tool()
def test_input_required_result_request_state(
    context: Context,
) -> CallToolResult | InputRequiredResult:
    """Ask for a confirmation, and keep a state."""
    if context.request_state is None:
        return wanted("asked", confirm=form("Please confirm", "ok", "boolean"))
    return said("state-ok" if context.request_state == "asked" else "another state")


@server.tool()
def test_input_required_result_multiple_inputs(
    context: Context,
) -> CallToolResult | InputRequiredResult:
    """Ask for three things at once."""
    answers = context.input_responses or {}
    if not {"user_name", "greeting", "client_roots"} <= answers.keys():
        greeting = question("Generate a greeting", 50)
        return wanted("asked", user_name=NAME, greeting=greeting, client_roots=ListRootsRequest())
    return said(f"{said_by(answers['greeting'])} {content_of(answers['user_name']).get('name')}")


@server.tool()
def test_input_required_result_multi_round(
    context: Context,
) -> CallToolResult | InputRequiredResult:
    """Ask twice, one after the other."""
    if context.request_state is None:
        return wanted("round 1", step1=form("Step 1: What is your name?", "name"))
    if context.request_state == "round 1":
        asked = form("Step 2: What is your favorite color?", "color")
        name = content_of(given(context, "step1")).get("name")
        return wanted(f"round 2 of {name}", step2=asked)
    return said(f"{context.request_state}: {content_of(given(context, 'step2')).get('color')}")


@server.tool()
def test_input_required_result_tampered_state(
    context: Context,
) -> CallToolResult | InputRequiredResult:
    """Keep a state that nobody else can make."""
    if context.request_state is None:
        return wanted("kept", confirm=form("Please confirm", "ok", "boolean"))
    return said("the state is ours")


@server.tool()
def test_input_required_result_capabilities(
    context: Context,
) -> CallToolResult | InputRequiredResult:
    """Ask for what the client has declared, and nothing else."""
    declared = context.client_capabilities
    requests: dict[str, InputRequest] = {}
    if declared is not None and declared.sampling is not None:
        requests["greeting"] = question("Generate a greeting", 50)
    if declared is not None and declared.elicitation is not None:
        requests["user_name"] = NAME
    if context.input_responses is None and requests:
        return wanted(**requests)
    return said("asked for what there is")


@server.resource("test://static-text", mime_type="text/plain", description="A text")
def static_text() -> str:
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png", description="A picture")
def static_binary() -> bytes:
    return base64.b64decode(PICTURE)


@server.resource("test://watched-resource", description="One that may change")
def watched() -> str:
    return "This may change."


@server.resource(
    "test://template/{id}/data", mime_type="application/json", description="One for each id"
)
def of_template(id: str) -> str:
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.prompt()
def test_simple_prompt() -> str:
    """Be simple."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Have arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:  # ruff: ignore[invalid-argument-name] - a name of the suite
    """Embed a resource."""
    said = "Embedded resource content for testing."
    return [
        UserMessage(resource(resourceUri, "text/plain", said)),
        UserMessage("Please process the embedded resource above."),
    ]


@server.prompt()
def test_prompt_with_image() -> list[Message]:
    """Have a picture."""
    return [UserMessage(picture()), UserMessage("Please analyze the image above.")]


@server.prompt()
def test_input_required_result_prompt(context: Context) -> list[Message] | InputRequiredResult:
    """Ask for a context."""
    found = content_of(given(context, "user_context")).get("context")
    if found is None:
        return wanted(user_context=form("What context should the prompt use?", "context"))
    return [UserMessage(f"The context is {found}")]


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]  # as the SDK has it
async def complete(  # ruff: ignore[unused-async] - as the SDK has it
    ref: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    context: CompletionContext | None,
) -> Completion:
    del ref, context
    cities = [city for city in ("paris", "park", "party") if city.startswith(argument.value)]
    return Completion(values=cities, total=len(cities), has_more=False)


async def accept(context: Any, params: Any) -> EmptyResult:  # ruff: ignore[unused-async] - as the SDK has it
    """What the handshake era has, and the SDK no decorator for."""
    del context, params
    return EmptyResult()


def main() -> None:
    lowlevel = server._lowlevel_server
    lowlevel.add_request_handler("logging/setLevel", SetLevelRequestParams, accept)
    lowlevel.add_request_handler("resources/subscribe", SubscribeRequestParams, accept)
    lowlevel.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, accept)
    echo = server._tool_manager.get_tool("json_schema_2020_12_tool")
    assert echo is not None
    echo.parameters = SCHEMA
    anyio.run(lambda: server.run_streamable_http_async(port=int(sys.argv[1])))


if __name__ == "__main__":
    main()
