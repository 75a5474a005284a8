"""`aish shell`: a session at a terminal on a pipeline file."""
