"""Built-in tools, in process."""
