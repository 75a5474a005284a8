"""All names of OpenTelemetry's conventions that are written, in one table.

Those of generative AI and of MCP are in development and still change. A changed name changes
`CONVENTIONS` and this file, and nothing else; our own names begin with `aish.`.
"""

# The release of the semantic conventions of these names; the schema's address contains it too.
CONVENTIONS = "1.41.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{CONVENTIONS}"
SCOPE = "aish"

# Operations, which are also the prefixes of span names.
OPERATION = "gen_ai.operation.name"
WORKFLOW = "invoke_workflow"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
TOOLS_CALL = "tools/call"
STEP = "step"
ITEM = "item"

WORKFLOW_NAME = "gen_ai.workflow.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITTEN_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
MCP_METHOD = "mcp.method.name"
TRANSPORT = "network.transport"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"
RESPONSE_STATUS = "http.response.status_code"
TOOL_ERROR = "tool_error"

# Parameters of a request, by their names in its body.
STREAM = "gen_ai.request.stream"
NUMBERS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
INTEGERS = {
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}
STOP_SEQUENCES = "gen_ai.request.stop_sequences"
# Not in the release above, but in the one that follows it.
REASONING_LEVEL = "gen_ai.request.reasoning.level"

# Content: written only if the user requested it.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"

RUN = "aish.run.id"
PIPELINE_DIGEST = "aish.pipeline.digest"
STATUS = "aish.status"
EXIT_CODE = "aish.exit.code"
EXIT_NAME = "aish.exit.name"
COST = "aish.cost_usd"
STEP_ID = "aish.step.id"
STEP_KIND = "aish.step.kind"
ITEMS = "aish.step.items"
ITEM_KEY = "aish.item.key"
ITEM_INDEX = "aish.item.index"
TURN = "aish.turn"
MODEL_ALIAS = "aish.model.alias"
MESSAGES = "aish.request.messages"
SERVER = "aish.server"
SERVER_KIND = "aish.server.transport"
TOOL = "aish.tool"
VERDICT = "aish.tool.verdict"
LEVEL = "aish.tool.level"
APPROVAL = "aish.approval.id"
APPROVAL_ANSWER = "aish.approval.answer"
APPROVAL_WAY = "aish.approval.way"
RULE = "aish.tool.rule"
KIND = "aish.tool.result"

# Events within spans.
RETRY = "aish.retry"
FALLBACK = "aish.fallback"
NOTICE = "aish.notice"
EXPECTATION = "aish.expectation"

# The provider of a host, as the convention names it; for any other, the host itself is written.
PROVIDERS = {
    "api.anthropic.com": "anthropic",
    "api.cohere.com": "cohere",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.openai.com": "openai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
}
# Transports of servers whose calls are MCP; calls within this process have none.
NETWORK = {"http": "tcp", "stdio": "pipe"}
