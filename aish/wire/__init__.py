"""The spelling of model endpoints: pure code, no sockets."""
