"""What no schema can say of a file."""
