"""The keys of other programs' files, a table for each kind of mapping: what becomes of which keys.

`EXACT` is carried over as it is. Any other text is told under `not mapped`: one that begins with
`left out` says that the entry is left out, one that begins with `WHOLE` that the mapping around it
is left out too, and any other how the entry is carried over. A key in no table is `UNKNOWN`.
"""

from collections.abc import Mapping
from typing import Final

EXACT: Final = ""
UNKNOWN: Final = "left out: no pipeline has this"
WHOLE: Final = "left out with all around it: "
PARAMS: Final = (
    "temperature max_tokens max_completion_tokens top_p top_k seed stop presence_penalty "
    "frequency_penalty reasoning_effort"
)
_ALL_HOLD: Final = "every expectation has to hold"
_CODE: Final = f"{WHOLE}pipelines do not run code of other files"
_EXPORT: Final = "left out: export the variables before the run"
_JUDGE: Final = "the judge is the first model of the file, and says yes or no"
_MODEL: Final = "each case asks the first model; `-m ALIAS` takes another"
_NOTE: Final = "left out: not needed here"
_OAUTH: Final = "left out: a token in `auth_env` instead: aish does not log in"
_PROMPT: Final = f"{WHOLE}write the prompt out"
RULES: Final = "left out: rules under `mcp.auto_approve`"
_RUBRIC: Final = "the judge has words of its own"
_SERVERS: Final = "left out: servers under `mcp.servers`"
_TIMES: Final = "its meaning differs between programs"

_TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "promptfoo": {
        EXACT: "description prompts tests providers targets defaultTest",
        "carried over where a `$ref` names them": "assertionTemplates",
        "left out: `-o FILE` of `aish run`, `--junit FILE` of `aish test`": "outputPath",
        "left out: `concurrency` of a step, `timeout` of a step": "evaluateOptions",
        "left out: options of `aish run` and `aish test`": "commandLineOptions",
        "left out: write the cases out under `tests`": "scenarios",
        "left out: the filters of templates": "nunjucksFilters",
        "left out: pipelines do not run code of other files": "extensions",
        "left out: no pipeline does this": "redteam tracing",
        _EXPORT: "env",
        _NOTE: "$schema tags metadata derivedMetrics writeLatestResults sharing",
    },
    "promptfoo.prompt": {
        EXACT: "raw id",
        "the id of the step, where there are several": "label",
        _NOTE: "display template",
        "left out: `params` of the step": "config",
        _PROMPT: "function",
    },
    "promptfoo.provider": {
        EXACT: "id label config",
        "every model is asked every prompt": "prompts",
        f"{WHOLE}code changes the answer": "transform",
        _EXPORT: "env",
        UNKNOWN: "delay inputs",
    },
    "promptfoo.config": {
        EXACT: f"{PARAMS} apiBaseUrl baseUrl apiHost apiKey apiKeyEnvar",
        _SERVERS: "tools functions tool_choice function_call mcp",
        "left out: `headers` of the model": "organization headers",
        "left out: `params` of the model": "passthrough",
        "left out: `price` of the model": "cost",
        "left out: `output: {schema: …}` of the step": "response_format",
    },
    "promptfoo.case": {
        EXACT: "description vars assert options",
        _MODEL: "provider providers",
        _ALL_HOLD: "threshold __threshold",
        f"{WHOLE}each case asks every prompt": "prompts",
        f"{WHOLE}each case asks a model": "providerOutput __providerOutput",
        _CODE: "assertScoringFunction path config",
        _PROMPT: "__prefix __suffix",
        _NOTE: "metadata __metric",
    },
    "promptfoo.options": {
        _CODE: "transform transformVars postprocess",
        _PROMPT: "prefix suffix",
        _RUBRIC: "rubricPrompt factuality",
        _JUDGE: "provider",
        _NOTE: "runSerially disableConversationVar repeat",
        f"{WHOLE}another case reads its answer": "storeOutputAs",
        f"{WHOLE}a list is a case for each of its values": "disableVarExpansion",
        f"{WHOLE}write the cases out without `defaultTest`": "disableDefaultAsserts",
        f"{WHOLE}`output: {{schema: …}}` of the step": "response_format",
    },
    "promptfoo.assertion": {
        EXACT: "type value",
        _ALL_HOLD: "weight threshold",
        _JUDGE: "provider",
        _RUBRIC: "rubricPrompt",
        _CODE: "transform contextTransform",
        _NOTE: "metric",
        UNKNOWN: "config assert",
    },
    "promptfoo.type": {
        EXACT: "contains contains-all contains-any starts-with equals icontains icontains-all "
        "icontains-any",
        _JUDGE: "llm-rubric model-graded-closedqa",
        "`matches`, as Python reads a regular expression": "regex",
        "`max_seconds`, of the whole case": "latency",
        "left out: `expression: …`": "javascript python ruby word-count levenshtein",
        "left out: `output: {schema: …}` of the step, which checks every answer": "is-json "
        "contains-json",
        "left out: `max_cost_usd`, once the model has a `price`": "cost",
        "left out: `judge`": "similar similar:cosine similar:dot similar:euclidean factuality "
        "model-graded-factuality g-eval answer-relevance context-faithfulness context-recall "
        "context-relevance conversation-relevance search-rubric agent-rubric pi",
        "left out: `tool_called`, `tool_sequence`": "tool-call-f1 skill-used trajectory:tool-used "
        "trajectory:tool-args-match trajectory:tool-sequence",
        "left out: write its assertions out": "assert-set",
        "left out: no expectation is like it": "bleu classifier contains-html contains-sql "
        "contains-xml finish-reason gleu guardrails human is-html is-refusal is-sql "
        "is-valid-function-call is-valid-openai-function-call is-valid-openai-tools-call is-xml "
        "max-score meteor moderation perplexity perplexity-score rouge-n select-best webhook "
        "trajectory:goal-success trajectory:step-count trace-error-spans trace-span-count "
        "trace-span-duration",
    },
    "goose": {
        EXACT: "description instructions prompt parameters extensions settings response retry",
        "the description, where there is no other": "title",
        "left out: they are for the desktop program": "activities",
        "left out: a step `pipeline: FILE` for each, once it is imported too": "sub_recipes",
        "left out: `attach` of the step": "context",
        _NOTE: "version author",
    },
    "goose.desktop": {EXACT: "recipe", _NOTE: "name isGlobal lastModified isArchived"},
    "goose.settings": {EXACT: "goose_provider goose_model temperature max_turns"},
    "goose.parameter": {EXACT: "key input_type requirement description default options"},
    "goose.response": {EXACT: "json_schema"},
    "goose.retry": {
        "`attempts`, after a step that failed: `checks` decide there": "max_retries",
        "left out: `expect` of the step, or a step `run: …` after it": "checks on_failure "
        "timeout_seconds on_failure_timeout_seconds",
    },
    "goose.extension": {
        EXACT: "type name enabled cmd command args envs env_keys uri url headers timeout "
        "available_tools",
        _NOTE: "description display_name bundled",
        _OAUTH: "client_id client_secret_key scopes",
        "left out: `cwd` of the server": "cwd",
        "left out: pipelines reach servers over HTTP only": "socket",
        UNKNOWN: "code dependencies tools instructions",
    },
    "mcp.server": {
        EXACT: "command args env environment cwd working_directory url serverUrl httpUrl headers "
        "type transport disabled enabled includeTools excludeTools enabledTools disabledTools "
        "tools enabled_tools disabled_tools autoApprove alwaysAllow",
        _OAUTH: "oauth oauth_resource oauthScopes scopes auth authProviderType targetAudience "
        "targetServiceAccount",
        f"left out: `timeout: {{connect: 20s, call: 60s}}`; {_TIMES}": "timeout initTimeout "
        "connectionTimeout discoveryTimeoutMs",
        RULES: "trust default_tools_approval_mode",
        "left out: run the command in a sandbox of your own": "sandbox sandboxEnabled",
        "left out: export what the file holds, and name the variables under `env`": "envFile",
        "left out: a token in `auth_env`, or `headers` with a `${VAR}`": "headersHelper "
        "requestOptions",
        "left out: pipelines reach servers over HTTP only": "tcp",
        "left out: settings of the other program": "settings source remote extension extensionName "
        "watchPaths dev start_on_launch alwaysLoad isActive filterMapping",
        _NOTE: "description name displayName icon iconUrl faviconUrl gallery version note comment "
        "_comment bundled registryUrl",
    },
    "zed.command": {EXACT: "path program args env", UNKNOWN: "timeout"},
    "mcp.input": {EXACT: "id type description default password options", _NOTE: "command args"},
    "codex.server": {
        EXACT: "command args env env_vars cwd url http_headers env_http_headers required enabled "
        "bearer_token_env_var startup_timeout_sec startup_timeout_ms tool_timeout_sec "
        "enabled_tools disabled_tools tools",
        _OAUTH: "oauth oauth_resource scopes auth",
        RULES: "default_tools_approval_mode",
        "left out: a token in `auth_env`": "http_headers_helper",
        "the server starts on this machine": "experimental_environment",
        "left out: `auth_env` with the name of a variable": "bearer_token",
        "left out: `mcp.parallel`": "supports_parallel_tool_calls",
        _NOTE: "name",
    },
    "codex.tool": {EXACT: "approval_mode", UNKNOWN: "output_token_limit"},
    "codex.provider": {
        EXACT: "base_url env_key wire_api",
        "left out: write them into `base_url`": "query_params",
        _NOTE: "name",
    },
}
TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    kind: {key: instead for instead, keys in table.items() for key in keys.split()}
    for kind, table in _TABLES.items()
}
