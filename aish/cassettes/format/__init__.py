"""The content of a cassette, and its file: vcrpy's format."""
