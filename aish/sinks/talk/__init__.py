"""What a person sees of a session at a terminal."""
