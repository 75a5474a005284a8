"""A run on a cassette: recorded, replayed, compared, looked through."""
