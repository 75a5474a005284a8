"""The record of a run on disk: written, and read back."""
