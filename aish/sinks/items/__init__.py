"""What items have come to: a line each, and tables of them."""
