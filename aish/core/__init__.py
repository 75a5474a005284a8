"""What is said, how it fails, and the values that every room knows."""
