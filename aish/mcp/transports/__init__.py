"""Transports to a server: HTTP, a child process, packs in this process."""
