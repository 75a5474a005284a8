"""Files in a conversation that stay current."""
