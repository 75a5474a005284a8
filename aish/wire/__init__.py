"""The wire format of model endpoints: pure code, no sockets."""
