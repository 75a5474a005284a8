"""The page of the control API: its files, and the paths that only it and its links need."""
