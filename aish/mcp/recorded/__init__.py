"""What passes between a client and a server, recorded and replayed."""
