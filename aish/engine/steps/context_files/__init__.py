"""Files in a conversation that stay current (K82 to K86)."""
