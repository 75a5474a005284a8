"""Lock files: read and written, as pins, and in words."""
