"""Calls of clients, from arguments to results: decided, held for approval, or run as tasks."""
