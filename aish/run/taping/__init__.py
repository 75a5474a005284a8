"""A run on a cassette: what is chosen, where it is put in, how it ends."""
