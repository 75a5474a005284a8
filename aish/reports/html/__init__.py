"""A run as one HTML page that needs no network (B11, X3)."""
