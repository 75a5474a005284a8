"""What goes to standard output, a file for each format."""
