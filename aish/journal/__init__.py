"""The record of a run on disk: writing and reading."""
