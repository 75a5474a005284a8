"""The network: what models, servers and packs stand on."""
