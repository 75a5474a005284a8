"""A whole run: its graph of steps, its items, its end."""
