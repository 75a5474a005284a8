"""Model endpoints: the one room that opens model sockets."""
