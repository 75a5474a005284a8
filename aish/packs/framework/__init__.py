"""Shared by all packs: declaration of tools, their results, the in-process server."""
