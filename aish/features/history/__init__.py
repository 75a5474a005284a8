"""Runs of the past: found, told from their journals, merged, deleted."""
