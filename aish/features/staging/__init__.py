"""Staged calls: stored for review, and made after it."""
