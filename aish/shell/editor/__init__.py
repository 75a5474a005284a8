"""The line editor of a session at a terminal."""
