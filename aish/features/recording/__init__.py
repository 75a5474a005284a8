"""Cassettes of runs: record, replay, compare, inspect."""
