"""Operating system access: child processes, files, secrets, bounded validation."""
