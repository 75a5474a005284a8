"""Resuming runs: find and lock a run, and determine what is completed."""
