"""Replay: finding the recorded response to a request."""
