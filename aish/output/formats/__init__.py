"""The formats of standard output, one file each."""
