"""What no schema can say of a file, one module a subject."""
