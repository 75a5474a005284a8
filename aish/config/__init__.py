"""Reads YAML into a frozen, typed `Pipeline`, and reports all problems at once."""
