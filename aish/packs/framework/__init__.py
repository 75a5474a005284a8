"""Shared by all packs: declaring tools, their results, and opening the packs of a server."""
