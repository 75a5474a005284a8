"""Calls that are put down for review instead of being executed (B16)."""
