"""Cassettes in readable form: conversations and differences."""
