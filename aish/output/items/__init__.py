"""Results of items: their file in the run folder, and tables made from it."""
