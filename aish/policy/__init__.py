"""Rules, decisions and the one gate before every tool call."""
