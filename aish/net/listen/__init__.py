"""Listening: addresses, sockets, tokens, and an HTTP server with its guards."""
