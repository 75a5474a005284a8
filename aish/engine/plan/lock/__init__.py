"""Lock files: what servers offered when it was pinned, and how what is there differs (P8)."""
