"""Everything that can be known before anything is opened."""
