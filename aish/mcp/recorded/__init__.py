"""Recording and replay of the messages between a client and a server."""
