"""Cassettes as people look at them: conversations and differences."""
