"""Runs of the past: found on disk, told from their journals, and cleaned away."""
