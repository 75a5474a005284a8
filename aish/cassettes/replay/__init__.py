"""Replay: finding the recorded answer of a request."""
