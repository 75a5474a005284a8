"""Tools of our own, in process."""
