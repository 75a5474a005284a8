"""Files beneath the root: confined paths, reading, searching, changing."""
