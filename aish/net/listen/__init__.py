"""Listening: addresses, sockets, tokens, and an HTTP server with its guards (H17 to H20, X11)."""
