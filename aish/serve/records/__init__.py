"""Records of calls and clients: the audit log, events, metrics."""
