"""A plan, run from its first event to its last; knows no feature."""
