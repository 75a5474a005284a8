"""Executes a plan from its first event to its last; independent of features."""
