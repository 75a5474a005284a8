"""The tool-call loop: request, stream, call tools, reply, request again."""
