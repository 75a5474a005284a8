"""The ways to reach a server: HTTP, a child process, packs in this process."""
