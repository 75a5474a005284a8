"""The revisions of the protocol, and the keys of `_meta` that the stateless era reserves. Pure."""

MODERN = "2026-07-28"
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The revisions of the handshake era, newest first."""
BATCHING = "2025-03-26"
"""The only revision in which several messages may come as an array."""
META = "io.modelcontextprotocol/"
VERSION_KEY = f"{META}protocolVersion"
CAPABILITIES_KEY = f"{META}clientCapabilities"
CLIENT_KEY = f"{META}clientInfo"
SERVER_KEY = f"{META}serverInfo"
SUBSCRIPTION_KEY = f"{META}subscriptionId"
