"""The control API: what a run tells over a socket, and the answers that it takes."""
