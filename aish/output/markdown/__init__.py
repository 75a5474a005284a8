"""Markdown drawn on a terminal while it arrives."""
