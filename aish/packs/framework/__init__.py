"""Shared by all packs: declaration of tools, their results, the packs of a server, open."""
