"""Execution of a whole run: step graph, items, end."""
