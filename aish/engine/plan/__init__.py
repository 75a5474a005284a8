"""Everything that can be determined before anything is opened."""
