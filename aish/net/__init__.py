"""The network layer of models, servers and packs."""
