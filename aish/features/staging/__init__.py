"""Calls put down for review, and made once they were reviewed."""
