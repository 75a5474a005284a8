"""Checks of a file that a schema cannot express."""
