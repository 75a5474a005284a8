"""Chat completions: bytes and messages, pure."""
