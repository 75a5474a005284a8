"""Questions to the user at a terminal."""
