"""Files below the root: confined paths, reading, searching, changing."""
