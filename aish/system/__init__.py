"""What touches the operating system: children, files, secrets, bounded validation."""
