"""`aish shell`: a session at a terminal on a pipeline file (design 6)."""
