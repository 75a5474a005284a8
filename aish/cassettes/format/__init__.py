"""What a cassette holds, and its file: vcrpy's format."""
