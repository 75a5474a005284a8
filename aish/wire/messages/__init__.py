"""Messages (Anthropic): bytes and messages, pure."""
