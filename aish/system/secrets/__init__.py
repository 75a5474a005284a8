"""Secrets, and the masks over them."""
