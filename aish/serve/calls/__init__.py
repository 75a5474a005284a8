"""Calls of clients, from their arguments to their results: decided, held, waiting, as tasks."""
