"""Rules, decisions, and the single gate before every tool call."""
