"""Asking the person at a terminal."""
